"""Ensembles of decision trees: random forests, gradient boosting (domain ai.onnx.ml)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.ml.forest import LEAF, MODES, Forest, Votes, numbered, without_sets
from tilewright.ops.ml.scores import class_labels, logistic, post_transform, transformed
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_ML = "ai.onnx.ml"
_WHY = "which nodes of a tree are visited depends on data"
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")  # as TreeEnsemble numbers them
_MEMBER = 6  # the mode of a node that asks whether a value is in a set, in TreeEnsemble
_MOST_TARGETS = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class TreeEnsembleRegressor(HostOp):
    onnx = ("ai.onnx.ml.TreeEnsembleRegressor",)
    why = _WHY
    forest: Forest
    votes: Votes
    base: Array
    aggregate: str
    transform: str

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        forest, votes = _classic(node, "target", node.integer("n_targets", 1))
        aggregate = _known_aggregate(node.text("aggregate_function", "SUM"))
        base = _base(node, votes.targets)
        return cls(forest, votes, base, aggregate, post_transform(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        totals = self.votes.gathered(self.forest.leaves(_rows(inputs[0])), self.aggregate) + self.base
        return (transformed(totals, self.transform).astype(np.float32),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        def sample(x: Array, **attrs: Any) -> HostSample:
            version = 3 if "nodes_values_as_tensor" in attrs else 1
            return HostSample("TreeEnsembleRegressor", (x,), attrs, domain=_ML, version=version)

        x = rng.standard_normal((5, 2)).astype(np.float32)
        x[0, 0], x[1, 1] = np.nan, 0.25
        one = {**_trees(), **_sampled_votes("target", [0] * 5)}
        for mode in MODES:
            yield sample(x, **{**_trees(f"BRANCH_{mode}"), **_sampled_votes("target", [0] * 5)}, n_targets=1)
        yield sample(x, **one, n_targets=1, nodes_missing_value_tracks_true=[1, 0, 0, 0, 0, 1, 0, 0])
        for how in _AGGREGATES:
            yield sample(x, **one, n_targets=1, aggregate_function=how, base_values=[0.5])
        every = {"target_treeids": [0, 0, 0, 0, 0, 0, 1, 1], "target_nodeids": [1, 1, 3, 3, 4, 4, 2, 2]}
        several = {
            **_trees(),
            "target_treeids": [*every["target_treeids"], 1, 1],
            "target_nodeids": [*every["target_nodeids"], 1, 1],
            "target_ids": [0, 1] * 5,
            "target_weights": [0.5, 1.5, -2.0, 0.25, 3.0, 1.0, 0.75, -0.5, 0.125, 2.5],
        }
        for post in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
            yield sample(x, **several, n_targets=2, post_transform=post, base_values=[0.0, 0.5])
        yield sample(x.astype(np.float64), **one, n_targets=1)
        names = {"nodes_values", "target_weights"}
        doubles = {f"{n}_as_tensor": _tensor(one[n], np.float64) for n in names}
        rest = {n: v for n, v in one.items() if n not in names}
        yield sample(x.astype(np.float64), **rest, **doubles, n_targets=1)


@dataclass(frozen=True, slots=True, eq=False)
class TreeEnsembleClassifier(HostOp):
    """Two classes may share one score, that of the second: it wins from one half on if no weight is negative, as
    probabilities do, and from zero on otherwise.
    """

    onnx = ("ai.onnx.ml.TreeEnsembleClassifier",)
    why = _WHY
    forest: Forest
    votes: Votes
    base: Array
    transform: str
    labels: Array

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        labels = class_labels(node, "classlabels_int64s")
        if not labels.size:
            raise UserError("the classes have no labels")
        forest, votes = _classic(node, "class", len(labels))
        return cls(forest, votes, _base(node, len(labels)), post_transform(node), labels)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        totals = self.votes.gathered(self.forest.leaves(_rows(inputs[0])), "SUM") + self.base
        if self.votes.targets > 2 or len(np.unique(self.votes.target)) != 1:
            return self.labels[totals.argmax(1)], transformed(totals, self.transform).astype(np.float32)
        voted = int(self.votes.target[0])
        score = totals[:, voted]
        if len(self.labels) == 1:
            return (score > 0).astype(np.int64), totals.astype(np.float32)
        is_probability = bool((self.votes.weight >= 0).all())
        chosen = self.labels[(score > (0.5 if is_probability else 0)).astype(np.int64)]
        if voted == 1:
            return chosen, transformed(totals, self.transform).astype(np.float32)
        if self.transform == "LOGISTIC":
            both = np.stack([logistic(-score), logistic(score)], 1)
        else:
            both = np.stack([1 - score if is_probability else -score, score], 1)
        return chosen, both.astype(np.float32)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        def sample(x: Array, **attrs: Any) -> HostSample:
            return HostSample("TreeEnsembleClassifier", (x,), attrs, outputs=2, domain=_ML)

        x = rng.standard_normal((6, 2)).astype(np.float32)
        three = {**_trees(), **_sampled_votes("class", [0, 1, 2, 0, 1]), "classlabels_int64s": [7, -9, 11]}
        for post in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
            yield sample(x, **three, post_transform=post)
            yield sample(x, **three, post_transform=post, base_values=[0.5, 0.0, 0.25])
        two = {**_trees(), "classlabels_strings": ["no", "yes"]}
        for weights in ([0.1, 0.2, 0.3, 0.1, 0.45], [-0.5, 1.5, 0.25, -0.75, 0.5]):
            votes = {**_sampled_votes("class", [0] * 5), "class_weights": weights}
            for post in ("NONE", "LOGISTIC"):
                yield sample(x, **two, **votes, post_transform=post)
                yield sample(x, **two, **votes, post_transform=post, base_values=[0.125])
        second = {**_sampled_votes("class", [1] * 5), "class_weights": [0.1, 0.2, 0.3, 0.1, 0.45]}
        yield sample(x.astype(np.float64), **two, **second)


@dataclass(frozen=True, slots=True, eq=False)
class TreeEnsemble(HostOp):
    """The form of opset 5: inner nodes and leaves are listed apart, and a node may ask for membership in a set."""

    onnx = ("ai.onnx.ml.TreeEnsemble",)
    why = _WHY
    forest: Forest
    votes: Votes
    aggregate: str
    transform: str

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        targets = node.integer("n_targets", 1)
        modes = _integers(node, "nodes_modes")
        inner, leaves = len(modes), len(_integers(node, "leaf_targetids"))
        splits = np.asarray(node.attrs["nodes_splits"]).reshape(-1)
        branches = [
            np.where(_integers(node, f"nodes_{side}leafs"), inner, 0)
            + _integers(node, f"nodes_{side}nodeids")
            for side in ("true", "false")
        ]
        features = _integers(node, "nodes_featureids")
        missing = _integers(node, "nodes_missing_value_tracks_true", inner)
        _check_equal_lengths(modes, splits, features, missing, *branches)
        for b, side in zip(branches, ("true", "false"), strict=True):
            is_leaf = _integers(node, f"nodes_{side}leafs").astype(bool)
            if (b < np.where(is_leaf, inner, 0)).any() or (
                b >= np.where(is_leaf, inner + leaves, inner)
            ).any():
                raise UserError("a tree leads to a node that does not exist")
        roots = _integers(node, "tree_roots")
        if modes.size and not 0 <= modes.min() <= modes.max() <= _MEMBER:
            raise UserError(f"nodes have modes from {modes.min()} to {modes.max()}")
        if roots.size and not 0 <= roots.min() <= roots.max() < inner:
            raise UserError("a tree's root does not exist")
        at_leaves = np.arange(inner, inner + leaves)
        forest = Forest(
            roots,
            np.concatenate([features, np.zeros(leaves, np.int64)]),
            np.concatenate([splits, np.zeros(leaves, splits.dtype)]),
            np.concatenate([np.where(modes == _MEMBER, MODES.index("EQ"), modes), np.full(leaves, LEAF)]),
            np.concatenate([branches[0], at_leaves]),
            np.concatenate([branches[1], at_leaves]),
            np.concatenate([missing.astype(bool), np.zeros(leaves, bool)]),
        )
        forest.check()
        forest = without_sets(forest, _sets(node), modes == _MEMBER)
        weights = np.asarray(node.attrs["leaf_weights"]).reshape(-1)
        votes = _votes(len(forest.mode), at_leaves, _integers(node, "leaf_targetids"), weights, targets)
        number = node.integer("aggregate_function", 1)
        aggregate = _AGGREGATES[number] if 0 <= number < len(_AGGREGATES) else _known_aggregate(str(number))
        return cls(forest, votes, aggregate, post_transform(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = _rows(inputs[0])
        totals = self.votes.gathered(self.forest.leaves(x), self.aggregate)
        return (transformed(totals, self.transform).astype(x.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        def sample(x: Array, **attrs: Any) -> HostSample:
            return HostSample("TreeEnsemble", (x,), attrs, domain=_ML, version=5)

        # No sample has a transform: onnxruntime numbers them in another order than ONNX does.
        for dtype in (np.float32, np.float64):
            x = np.array([[1.2, 3.0], [0.5, 2.0], [7.0, 1.0], [8.0, 4.0], [np.nan, 2.0]], dtype)
            trees: dict[str, Any] = {
                "nodes_modes": _tensor([0, 0, 2], np.uint8),
                "nodes_splits": _tensor([3.14, 1.2, 2.5], dtype),
                "nodes_featureids": [0, 0, 1],
                "nodes_truenodeids": [1, 0, 2],
                "nodes_trueleafs": [0, 1, 1],
                "nodes_falsenodeids": [2, 1, 3],
                "nodes_falseleafs": [0, 1, 1],
                "tree_roots": [0],
                "leaf_targetids": [0, 1, 0, 1],
                "leaf_weights": _tensor([5.23, 12.12, -12.23, 7.21], dtype),
            }
            for aggregate in (0, 1, 2, 3):
                yield sample(x, **trees, n_targets=2, aggregate_function=aggregate)
            yield sample(x, **trees, n_targets=2, nodes_missing_value_tracks_true=[1, 0, 0])
            sets = {
                "nodes_modes": _tensor([6, 0, 6], np.uint8),
                "membership_values": _tensor([1.2, 8.0, np.nan, 4.0, np.nan], dtype),
                "nodes_splits": _tensor([0.0, 1.2, 0.0], dtype),
            }
            yield sample(x[:4], **{**trees, **sets}, n_targets=2)


# ------------------------------------------------------------------------------------------------- attributes


def _classic(node: OnnxNode, what: str, targets: int) -> tuple[Forest, Votes]:
    """The trees and votes of a regressor ("target") or a classifier ("class"): nodes are known by two numbers."""
    trees, ids = _integers(node, "nodes_treeids"), _integers(node, "nodes_nodeids")
    names: list[str] = node.attrs.get("nodes_modes") or []
    modes = np.array([_mode(n) for n in names], np.int64)
    thresholds = _reals(node, "nodes_values")
    features = _integers(node, "nodes_featureids")
    missing = _integers(node, "nodes_missing_value_tracks_true", len(ids))
    branches = [_integers(node, f"nodes_{side}nodeids") for side in ("true", "false")]
    _check_equal_lengths(trees, ids, modes, thresholds, features, missing, *branches)
    if not ids.size:
        raise UserError("there are no trees")
    numbering = numbered(trees, ids)
    own = np.arange(len(ids))
    is_leaf = modes == LEAF
    yes, no = (np.where(is_leaf, own, numbering.find(trees, np.where(is_leaf, ids, b))) for b in branches)
    is_child = np.zeros(len(ids), bool)
    is_child[np.concatenate([yes[~is_leaf], no[~is_leaf]])] = True
    roots = np.flatnonzero(~is_child)
    if len(roots) != len(numbering.trees) or len(np.unique(trees[roots])) != len(roots):
        raise UserError("a tree has more than one root, or none")
    forest = Forest(roots, features, thresholds, modes, yes, no, missing.astype(bool))
    forest.check()
    at = numbering.find(_integers(node, f"{what}_treeids"), _integers(node, f"{what}_nodeids"))
    weights = _reals(node, f"{what}_weights")
    return forest, _votes(len(ids), at, _integers(node, f"{what}_ids"), weights, targets)


def _votes(nodes: int, leaf: Array, target: Array, weight: Array, targets: int) -> Votes:
    _check_equal_lengths(leaf, target, weight)
    if not 0 < targets <= _MOST_TARGETS:
        raise UserError(f"trees with {targets} targets")
    return Votes.of(nodes, leaf, target, weight, targets)


def _mode(name: str) -> int:
    if name == "LEAF":
        return LEAF
    if name.removeprefix("BRANCH_") not in MODES or not name.startswith("BRANCH_"):
        raise UserError(f"a node of a tree has the mode {name!r}")
    return MODES.index(name.removeprefix("BRANCH_"))


def _sets(node: OnnxNode) -> list[list[float]]:
    """The sets of values, which are written one after the other, with a NaN after each."""
    out: list[list[float]] = [[]]
    array = node.attrs.get("membership_values")
    values: list[float] = [] if array is None else array.reshape(-1).tolist()
    for v in values:
        if v == v:
            out[-1].append(v)
        else:
            out.append([])
    if out[-1]:
        raise UserError("membership_values has no NaN at its end")
    return out[:-1]


def _known_aggregate(name: str) -> str:
    if name not in _AGGREGATES:
        raise UserError(
            f"aggregate_function is {name!r}", hint=f"it should be one of {', '.join(_AGGREGATES)}"
        )
    return name


def _base(node: OnnxNode, targets: int) -> Array:
    base = _reals(node, "base_values")
    if base.size not in (0, targets) and not (base.size == 1 and targets == 2):
        raise UserError(f"{base.size} base_values for {targets} targets")
    return base.astype(np.float64) if base.size else np.zeros(1)


def _rows(value: HostValue) -> Array:
    """Rows of floats: integers become f32."""
    x = np.atleast_2d(tensor(value, "input 0"))
    if x.ndim != 2:
        raise UserError(f"the rows have shape {list(x.shape)}: they should be [N, C]")
    return x if x.dtype.kind == "f" else x.astype(np.float32)


def _integers(node: OnnxNode, name: str, otherwise: int = 0) -> Array:
    """A list of integers; zeros if it is absent."""
    found = node.attrs.get(name)
    missing = found is None or len(found) == 0
    return np.zeros(otherwise, np.int64) if missing else np.asarray(found).reshape(-1).astype(np.int64)


def _reals(node: OnnxNode, name: str) -> Array:
    """Floats, as a list or, for doubles, as a tensor."""
    array = node.attrs.get(f"{name}_as_tensor")
    return np.array(node.attrs.get(name) or [], np.float32) if array is None else array.reshape(-1)


def _check_equal_lengths(*arrays: Array) -> None:
    if len({len(a) for a in arrays}) > 1:
        raise UserError(f"lists that describe the same things have {[len(a) for a in arrays]} elements")


# --------------------------------------------------------------------------------------------------- samples


def _trees(mode: str = "BRANCH_LEQ") -> dict[str, Any]:
    """Two trees, of two inner nodes and of one."""
    return {
        "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 0, 1, 0, 0, 1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.25, 0.0, 0.0, -0.5, 0.0, 0.0],
        "nodes_modes": [mode, "LEAF", mode, "LEAF", "LEAF", mode, "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 3, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 0, 4, 0, 0, 2, 0, 0],
    }


def _sampled_votes(what: str, ids: list[int]) -> dict[str, Any]:
    return {
        f"{what}_treeids": [0, 0, 0, 1, 1],
        f"{what}_nodeids": [1, 3, 4, 1, 2],
        f"{what}_ids": ids,
        f"{what}_weights": [0.5, 1.5, -2.0, 0.25, 3.0],
    }


def _tensor(values: Sequence[float], dtype: Any) -> Any:
    return np.array(values, dtype)
