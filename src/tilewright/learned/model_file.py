"""A trained ensemble as an ONNX file: how the file is laid out, and reading it.

The graph is made of ordinary operators, so that Tilewright compiles it (`training/export.py` writes it). It evaluates
trees from their leaves to their roots: the value of a node is that of one of its children, for all trees and a batch of
rows at once. Values of a level lie one after the other such that first children are its first half; that is the order
of the bits of a path, the last turn first. What a graph cannot say is in the file's metadata: which features there are,
whether scores are corrections of the closed form, the guard, how the training went.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from tilewright.learned.ensemble import CostTrees
from tilewright.learned.features import FEATURES
from tilewright.learned.guard import TrustGuard
from tilewright.learned.guarded import GuardedModel
from tilewright.support.arrays import Array, FloatArray, IntArray
from tilewright.support.errors import UserError

METADATA = "tilewright.cost_model"  # the key of ours
FORMAT = 2
BATCH = (
    64  # rows of a run: values of the widest level stay in a cache of 2 MB, and little is padded; measured
)
INPUT, OUTPUT = "features", "scores"
_GUARD_ARRAYS = ("centre", "spread", "least", "most", "known", "families")


@dataclass(frozen=True, slots=True, eq=False)
class StoredTrees:
    """What a file holds."""

    ensemble: CostTrees
    is_residual: bool
    guard: TrustGuard | None
    training: Mapping[str, Any]  # for people: the task, rows, kernels and programs, the seed

    def model(self) -> GuardedModel:
        """By numpy; slower than the compiled program, and with the same scores."""
        return GuardedModel("trees", self.ensemble.scores, self.is_residual, self.guard)


def read_trees(path: Path) -> StoredTrees:
    try:
        return trees_of(ModelProto.FromString(path.read_bytes()))
    except (OSError, DecodeError) as e:
        raise UserError(
            f"cannot read {path}: {getattr(e, 'strerror', None) or e or 'no ONNX file'}",
            hint="`tilewright cost train` writes such files",
        ) from e
    except UserError as e:
        raise UserError(e.message, where=str(path), hint=e.hint) from e


def trees_of(model: ModelProto) -> StoredTrees:
    held = {p.key: p.value for p in model.metadata_props}
    if METADATA not in held:
        raise UserError("this is no cost model", hint="`tilewright cost train` writes them")
    found = json.loads(held[METADATA])
    if found["format"] != FORMAT or tuple(found["features"]) != FEATURES:
        raise UserError(
            "the cost model was trained with another version of Tilewright, on other features",
            hint="train it again: `tilewright cost train`",
        )
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    depth = int(found["depth"])
    orders = [path_order(level) for level in range(depth)]
    columns, thresholds = (
        np.concatenate([arrays[f"{name}{level}"].reshape(1 << level, -1) for level in range(depth)])
        for name in ("columns", "thresholds")
    )
    leaves = np.concatenate([arrays["first_leaves"], arrays["second_leaves"]]).reshape(1 << depth, -1)
    ensemble = CostTrees(
        _by_node(columns, orders).astype(np.int64),
        _by_node(thresholds, orders).astype(np.float32),
        leaves[path_order(depth)].T.astype(np.float32),
        unpacked_floats(found["left_shares"], np.float16).astype(np.float64),
        int(found["members"]),
        float(found["caution"]),
    )
    guard = guard_from(found["guard"]) if found["guard"] else None
    return StoredTrees(ensemble, bool(found["is_residual"]), guard, found["training"])


def path_order(level: int) -> IntArray:
    """Of the nodes of a level from left to right: where each lies in the order of the file. It is its own inverse."""
    numbers = np.arange(1 << level)
    out = np.zeros_like(numbers)
    for bit in range(level):
        out |= (numbers >> bit & 1) << (level - 1 - bit)
    return out.astype(np.int64)


def _by_node(values: Array, orders: list[IntArray]) -> Array:
    """Rows as the file has them, level by level, to columns as ensembles have them."""
    start, rows = 0, list[Array]()
    for order in orders:
        rows.append(values[start : start + len(order)][order])
        start += len(order)
    return np.concatenate(rows).T


def packed_floats(values: Array, dtype: type[np.floating[Any]] = np.float32) -> dict[str, Any]:
    data = np.ascontiguousarray(values, dtype)
    return {"shape": list(data.shape), "data": base64.b64encode(data.tobytes()).decode()}


def unpacked_floats(stored: Mapping[str, Any], dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(stored["data"]), dtype).reshape(stored["shape"])


def guard_text(guard: TrustGuard) -> dict[str, Any]:
    return {
        "near": guard.near,
        "far": guard.far,
        **{name: packed_floats(getattr(guard, name)) for name in _GUARD_ARRAYS},
    }


def guard_from(stored: Mapping[str, Any]) -> TrustGuard:
    arrays: dict[str, FloatArray] = {n: unpacked_floats(stored[n]).astype(np.float64) for n in _GUARD_ARRAYS}
    return TrustGuard(near=float(stored["near"]), far=float(stored["far"]), **arrays)
