"""Decision trees as arrays, walked for all rows and all trees at once (domain ai.onnx.ml).

Nodes of all trees are numbered together. A leaf leads to itself. Every inner node but a root has exactly one parent,
which is checked, so that each walk ends at a leaf: a file can say anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
LEAF = len(MODES)
_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_WALKS = 1 << 16  # of rows through trees, at a time: what they need stays in cache


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Arrays by node. `missing`: NaN goes where a condition that holds does."""

    roots: Array
    feature: Array
    threshold: Array
    mode: Array
    yes: Array
    no: Array
    missing: Array

    @property
    def features(self) -> int:
        """How many columns the rows must have."""
        inner = self.feature[self.mode != LEAF]
        return int(inner.max(initial=-1)) + 1

    def check(self) -> None:
        inner = self.mode != LEAF
        if (self.feature[inner] < 0).any():
            raise UserError("a node of a tree looks at a column before the first")
        children = np.concatenate([self.yes[inner], self.no[inner]])
        parents = np.bincount(children, minlength=len(self.mode))
        parents[self.roots] += 1
        if (parents[inner] > 1).any():
            raise UserError("a node of a tree has two parents")
        reached, level = 0, self.roots[inner[self.roots]]
        while level.size:
            reached += level.size
            below = np.concatenate([self.yes[level], self.no[level]])
            level = below[inner[below]]
        if reached != inner.sum():
            raise UserError("a node of a tree cannot be reached from its root")

    def leaves(self, x: Array) -> Array:
        """The leaf that every row of x comes to in every tree: [rows, trees]."""
        if x.shape[1] < self.features:
            raise UserError(f"the trees look at {self.features} columns: there are {x.shape[1]}")
        rows = max(1, _WALKS // max(1, len(self.roots)))
        parts = [self._leaves(x[i : i + rows]) for i in range(0, len(x), rows)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.roots)), np.int64)

    def _leaves(self, x: Array) -> Array:
        trees = len(self.roots)
        end = np.tile(self.roots, len(x))
        walking = np.flatnonzero(self.mode[end] != LEAF)
        while walking.size:
            at = end[walking]
            value = x[walking // trees, self.feature[at]]
            end[walking] = at = np.where(self._holds(at, value), self.yes[at], self.no[at])
            walking = walking[self.mode[at] != LEAF]
        return end.reshape(len(x), trees)

    def _holds(self, at: Array, value: Array) -> Array:
        mode, threshold = self.mode[at], self.threshold[at]
        first = int(mode[0])
        if (mode == first).all():  # most ensembles compare in one way only
            holds = _COMPARE[first](value, threshold)
        else:
            holds = np.select([mode == m for m in range(LEAF)], [c(value, threshold) for c in _COMPARE])
        return holds | (self.missing[at] & np.isnan(value))


@dataclass(frozen=True, slots=True, eq=False)
class Votes:
    """What leaves give: entries `first[leaf]` to `first[leaf + 1]` are a target and a weight each."""

    first: Array
    target: Array
    weight: Array
    targets: int

    @staticmethod
    def of(nodes: int, leaf: Array, target: Array, weight: Array, targets: int) -> "Votes":
        """From a leaf, a target and a weight for every entry, in any order."""
        if target.size and not 0 <= target.min() <= target.max() < targets:
            raise UserError(f"leaves vote for {target.min()} to {target.max()} of {targets} targets")
        order = np.argsort(leaf, kind="stable")
        first = np.concatenate([[0], np.cumsum(np.bincount(leaf, minlength=nodes))])
        return Votes(first, target[order], weight[order], targets)

    def gathered(self, leaves: Array, how: str) -> Array:
        """SUM, AVERAGE, MIN or MAX of what all trees say, in f64: [rows, targets]. What no tree votes for is 0."""
        rows, trees = leaves.shape
        flat = leaves.reshape(-1)
        counts = self.first[flat + 1] - self.first[flat]
        shift: Array = self.first[flat] - np.cumsum(counts) + counts
        entry: Array = np.repeat(shift, counts)
        entry += np.arange(len(entry))
        row = np.repeat(np.arange(len(flat)) // max(1, trees), counts)
        place = row * self.targets + self.target[entry]
        weight = self.weight[entry].astype(np.float64)
        size = rows * self.targets
        if how in ("SUM", "AVERAGE"):
            out = np.bincount(place, weight, size)
            return (out / trees if how == "AVERAGE" and trees else out).reshape(rows, self.targets)
        pick, start = (np.minimum, np.inf) if how == "MIN" else (np.maximum, -np.inf)
        out = np.full(size, start)
        pick.at(out, place, weight)
        is_voted_for = np.bincount(place, minlength=size) > 0
        return np.where(is_voted_for, out, 0).reshape(rows, self.targets)


def numbered(trees: Array, nodes: Array) -> "Numbering":
    """Numbers for nodes that are known by their tree and their number in it."""
    kinds, tree = np.unique(trees, return_inverse=True)
    ids, node = np.unique(nodes, return_inverse=True)
    keys = tree * len(ids) + node
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) == 0).any():
        raise UserError("a tree has two nodes of one number")
    return Numbering(kinds, ids, keys[order], order)


@dataclass(frozen=True, slots=True, eq=False)
class Numbering:
    trees: Array
    ids: Array
    keys: Array
    order: Array

    def find(self, trees: Array, nodes: Array) -> Array:
        """The numbers of nodes, which have to exist."""
        tree, node = np.searchsorted(self.trees, trees), np.searchsorted(self.ids, nodes)
        tree, node = np.minimum(tree, len(self.trees) - 1), np.minimum(node, len(self.ids) - 1)
        key = tree * len(self.ids) + node
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        if ((self.trees[tree] != trees) | (self.ids[node] != nodes) | (self.keys[at] != key)).any():
            raise UserError("a tree leads to a node that it does not have")
        return self.order[at]


def without_sets(forest: Forest, members: Sequence[Sequence[float]], is_set: Array) -> Forest:
    """Nodes that ask for membership in a set as chains of nodes that ask for equality with one of its members."""
    parts = {
        name: list(getattr(forest, name)) for name in ("feature", "threshold", "mode", "yes", "no", "missing")
    }
    for at, values in zip(np.flatnonzero(is_set).tolist(), members, strict=True):
        end = parts["no"][at]
        here = at
        parts["mode"][at] = MODES.index("EQ")
        parts["threshold"][at] = values[0] if values else np.nan  # equal to nothing
        for value in values[1:]:
            new = len(parts["mode"])
            parts["no"][here] = new
            for name in parts:
                parts[name].append(parts[name][at])
            parts["threshold"][new], parts["no"][new] = value, end
            here = new
    arrays = {name: np.array(values, getattr(forest, name).dtype) for name, values in parts.items()}
    return Forest(forest.roots, **arrays)
