"""LightGBM, and the only module that touches it: its types are incomplete.

It is an extra: what it trains becomes a `CostTrees`, which runs without it.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.learned.ensemble import NEVER, CostTrees, SingleArray
from tilewright.support.arrays import FloatArray
from tilewright.support.errors import UserError

_LEAST_SHARED = 5000  # rows, given: of fewer, threads wait for each other longer than they work

# Scores to the first and second derivative of the loss by each.
Derivatives: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How large an ensemble is, and how carefully it learns. Depth is bounded because complete trees are what runs."""

    trees: int = 400
    leaves: int = 31
    depth: int = 6
    rate: float = 0.04
    least_rows: int = 20  # in a leaf
    least_curve: float = 1e-3  # in a leaf: the sum of second derivatives
    smoothing: float = 5.0  # L2 of leaves
    row_share: float = 0.7  # that a tree sees
    column_share: float = 0.5


def boost(
    features: SingleArray,
    start: FloatArray,
    derivatives: Derivatives,
    shape: TreeShape,
    seed: int,
    names: tuple[str, ...],
) -> CostTrees:
    """Trees whose sum, added to `start`, makes the loss small that has these derivatives."""
    return ensemble_of(boosted(features, start, derivatives, shape, seed, names), shape.depth)


def boosted(
    features: SingleArray,
    start: FloatArray,
    derivatives: Derivatives,
    shape: TreeShape,
    seed: int,
    names: tuple[str, ...],
) -> Any:
    """LightGBM's own form of these trees."""
    lgb = _lightgbm()

    def objective(scores: FloatArray, data: object) -> tuple[FloatArray, FloatArray]:
        return derivatives(np.asarray(scores, np.float64))

    parameters: dict[str, Any] = {
        "objective": objective,
        "num_leaves": min(shape.leaves, 1 << shape.depth),
        "max_depth": shape.depth,
        "learning_rate": shape.rate,
        "min_data_in_leaf": shape.least_rows,
        "min_sum_hessian_in_leaf": shape.least_curve,
        "lambda_l2": shape.smoothing,
        "bagging_fraction": shape.row_share,
        "bagging_freq": 1,
        "feature_fraction": shape.column_share,
        "seed": seed,
        "deterministic": True,
        "force_col_wise": True,
        "num_threads": min(2, os.cpu_count() or 1) if len(features) >= _LEAST_SHARED else 1,
        "use_missing": False,
        "verbosity": -1,
    }
    data = lgb.Dataset(features, np.zeros(len(features)), init_score=start, feature_name=list(names))
    return lgb.train(parameters, data, num_boost_round=shape.trees)


def ensemble_of(booster: Any, depth: int) -> CostTrees:
    """The arrays of a booster whose trees have at most this depth."""
    dumped: list[Mapping[str, Any]] = booster.dump_model()["tree_info"]
    count, nodes = len(dumped), (1 << depth) - 1
    columns = np.zeros((count, nodes), np.int64)
    thresholds = np.full((count, nodes), NEVER, np.float32)
    shares = np.ones((count, nodes))
    leaves = np.zeros((count, nodes + 1), np.float32)
    for n, tree in enumerate(dumped):
        _fill(tree["tree_structure"], 0, columns[n], thresholds[n], shares[n], leaves[n])
    return CostTrees(columns, thresholds, leaves, shares)


def _fill(
    node: Mapping[str, Any],
    at: int,
    columns: Any,
    thresholds: Any,
    shares: Any,
    leaves: Any,
) -> None:
    if "split_feature" not in node:
        _fill_leaf(float(node["leaf_value"]), at, leaves)
        return
    columns[at] = node["split_feature"]
    thresholds[at] = single_below(float(node["threshold"]))
    first, second = node["left_child"], node["right_child"]
    shares[at] = _count(first) / max(_count(first) + _count(second), 1)
    _fill(first, 2 * at + 1, columns, thresholds, shares, leaves)
    _fill(second, 2 * at + 2, columns, thresholds, shares, leaves)


def _fill_leaf(value: float, at: int, leaves: Any) -> None:
    """All leaves of the complete tree below a node."""
    first = last = at
    while first < len(leaves) - 1:
        first, last = 2 * first + 1, 2 * last + 2
    leaves[first - len(leaves) + 1 : last - len(leaves) + 2] = value


def _count(node: Mapping[str, Any]) -> int:
    return int(node.get("internal_count", node.get("leaf_count", 0)))


def single_below(value: float) -> np.float32:
    """The largest number of single precision that is not above: features of single precision compare the same."""
    near = np.float32(value)
    return near if float(near) <= value else np.nextafter(near, np.float32(-np.inf))


def _lightgbm() -> Any:
    try:
        import lightgbm  # noqa: PLC0415  # an optional extra
    except ImportError as e:
        raise UserError(
            "LightGBM, which trains trees, is not installed", hint="pip install 'tilewright[learn]'"
        ) from e
    return lightgbm
