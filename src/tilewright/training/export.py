"""A trained ensemble as an ONNX model that Tilewright compiles: see `learned/model_file.py` for how it is laid out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tilewright.learned.ensemble import CostTrees
from tilewright.learned.features import FEATURES
from tilewright.learned.model_file import (
    BATCH,
    FORMAT,
    INPUT,
    METADATA,
    OUTPUT,
    StoredTrees,
    guard_text,
    packed_floats,
    path_order,
)
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.version import __version__

_OPSET, _IR = 18, 9  # what operators are written as; old enough for other readers


def write_trees(path: Path, stored: StoredTrees, batch: int = BATCH) -> int:
    """The file's size in bytes."""
    return write_model(path, trees_model(stored, batch))


def write_model(path: Path, model: ModelProto) -> int:
    data = model.SerializeToString(deterministic=True)
    try:
        path.write_bytes(data)
    except OSError as e:
        raise UserError(f"cannot write the model: {e.strerror or e}", where=str(path)) from e
    return len(data)


def trees_model(stored: StoredTrees, batch: int = BATCH) -> ModelProto:
    """Features [batch, features] to scores [batch]."""
    nodes, arrays = _graph(stored.ensemble, batch)
    graph = helper.make_graph(
        nodes,
        "cost_model",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, [batch, len(FEATURES)])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [batch])],
        [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    model.producer_name, model.producer_version = "tilewright", __version__
    helper.set_model_props(model, {METADATA: json.dumps(_metadata(stored))})
    return model


def _graph(trees: CostTrees, batch: int) -> tuple[list[NodeProto], Mapping[str, Array]]:
    """Rows of features become columns first: then everything else is the same instruction for neighbouring rows."""
    depth = trees.depth
    leaves = _placed(trees.leaves, depth)
    half = len(leaves) // 2
    arrays: dict[str, Array] = {"first_leaves": leaves[:half], "second_leaves": leaves[half:]}
    nodes = [helper.make_node("Transpose", [INPUT], ["by_feature"], perm=[1, 0])]
    first, second = "first_leaves", "second_leaves"
    for level in reversed(range(depth)):
        here = slice((1 << level) - 1, (2 << level) - 1)
        arrays[f"columns{level}"] = _placed(trees.columns[:, here], level)[..., 0].astype(np.int32)
        arrays[f"thresholds{level}"] = _placed(trees.thresholds[:, here], level)
        nodes += [
            helper.make_node("Gather", ["by_feature", f"columns{level}"], [f"feature{level}"], axis=0),
            helper.make_node("Greater", [f"feature{level}", f"thresholds{level}"], [f"is_second{level}"]),
            helper.make_node("Where", [f"is_second{level}", second, first], [f"value{level}"]),
        ]
        if level:
            first, second = f"first{level}", f"second{level}"
            nodes.append(helper.make_node("Split", [f"value{level}"], [first, second], axis=0, num_outputs=2))
    # From one value for each tree to one for each member, and to their mean and how far they are from it.
    arrays |= {
        "by_member": np.array([trees.members, -1, batch]),
        "trees": np.array([1]),
        "members": np.array([0]),
    }
    nodes += [
        helper.make_node("Reshape", ["value0", "by_member"], ["member_values"]),
        helper.make_node("ReduceSum", ["member_values", "trees"], ["said"], keepdims=0),
    ]
    if not trees.caution:
        nodes.append(helper.make_node("ReduceMean", ["said", "members"], [OUTPUT], keepdims=0))
        return nodes, arrays
    arrays["caution"] = np.array(trees.caution, np.float32)
    nodes += [
        helper.make_node("ReduceMean", ["said", "members"], ["mean"], keepdims=0),
        helper.make_node("Sub", ["said", "mean"], ["off"]),
        helper.make_node("Mul", ["off", "off"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "members"], ["variance"], keepdims=0),
        helper.make_node("Sqrt", ["variance"], ["deviation"]),
        helper.make_node("Mul", ["deviation", "caution"], ["doubt"]),
        helper.make_node("Add", ["mean", "doubt"], [OUTPUT]),
    ]
    return nodes, arrays


def _placed(values: Array, level: int) -> Array:
    """Of nodes of a level, tree by tree: node by node in the order of the file, and one column for all rows."""
    return values.T[path_order(level)][..., None]


def _metadata(stored: StoredTrees) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "features": FEATURES,
        "depth": stored.ensemble.depth,
        "members": stored.ensemble.members,
        "caution": stored.ensemble.caution,
        "is_residual": stored.is_residual,
        "left_shares": packed_floats(stored.ensemble.left_shares, np.float16),
        "guard": guard_text(stored.guard) if stored.guard else None,
        "training": dict(stored.training),
    }
