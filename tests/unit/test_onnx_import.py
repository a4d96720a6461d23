"""ONNX models become graphs that compute what ONNX Runtime computes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes import prepare
from tilewright.graph.verify import verify_graph
from tilewright.ir.dtype import DType
from tilewright.ops.opdef import TensorType

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(11)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """Names separated by blanks; `_` is an absent one."""
    split = [["" if n == "_" else n for n in names.split()] for names in (inputs, outputs)]
    return helper.make_node(op, *split, name=f"the {op} of {outputs}", **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None] | None],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
    dtype: int = FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, dtype, s) for n, s in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def check_against_ort(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Graph:
    graph = load_graph(proto, shapes)
    verify_graph(graph)
    feeds = {v.name: RNG.standard_normal(v.shape).astype(v.type.dtype.numpy) for v in graph.inputs}
    for o in proto.graph.output:  # ONNX Runtime wants to know the types of outputs
        value = graph.outputs[list(graph.output_names).index(o.name)]
        o.CopyFrom(
            helper.make_tensor_value_info(
                o.name, helper.np_dtype_to_tensor_dtype(value.type.dtype.numpy), None
            )
        )
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    want = dict(zip(graph.output_names, session.run(None, feeds), strict=True))
    for g in (graph, prepare(graph, lambda _, after: verify_graph(after))):
        for name, array in interpret_graph(g, feeds).items():
            np.testing.assert_allclose(array, want[name], rtol=1e-4, atol=1e-5, err_msg=name)
    return graph


def test_a_small_network() -> None:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f v", "y", transB=1),
    ]
    weights = {
        "w": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "b": RNG.standard_normal(4).astype(np.float32),
        "v": RNG.standard_normal((5, 4)).astype(np.float32),
    }
    graph = check_against_ort(model(nodes, {"x": [1, 3, 8, 8]}, ["y"], weights))
    assert [n.name for n in graph.nodes] == [n.name for n in nodes]
    assert [v.name for v in graph.outputs] == ["y"]


def test_shape_arithmetic_is_resolved() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "batch"),
        node("Unsqueeze", "batch zeros", "batch1"),
        node("Concat", "batch1 rest", "target", axis=0),
        node("Reshape", "x target", "y"),
        node("Shape", "x", "tail", start=-2, end=5),
        node("Size", "x", "n"),
    ]
    constants = {"zero": np.array(0), "zeros": np.array([0]), "rest": np.array([-1])}
    graph = check_against_ort(
        model(nodes, {"x": ["batch", 3, 4]}, ["y", "tail", "n"], constants), {"x": (2, 3, 4)}
    )
    assert graph.outputs[0].shape == (2, 12)
    assert not [n for n in prepare(graph).nodes if type(n.op).__name__ != "Reshape"]


def test_constants_in_all_spellings() -> None:
    values: list[dict[str, Any]] = [
        {"value": numpy_helper.from_array(np.array([1, 2], np.float32))},
        {"value_float": 3.0},
        {"value_floats": [4.0, 5.0]},
    ]
    nodes = [node("Constant", "", f"c{i}", **v) for i, v in enumerate(values)]
    nodes += [node("Constant", "", "i", value_int=1), node("Constant", "", "j", value_ints=[1, 2])]
    nodes += [node("Sum", "x c0 c1 c2", "y"), node("Add", "i j", "k")]
    check_against_ort(model(nodes, {"x": [2]}, ["y", "k"]))


def test_nodes_in_any_order() -> None:
    nodes = [node("Relu", "a", "y"), node("Exp", "x", "a")]
    graph = load_graph(model(nodes, {"x": [2]}, ["y"]))
    assert [type(n.op).__name__ for n in graph.nodes] == ["Exp", "Relu"]


def test_an_initializer_that_is_an_input_too_is_a_constant() -> None:
    w = np.ones(2, np.float32)
    graph = check_against_ort(model([node("Add", "x w", "y")], {"x": [2]}, ["y"], {"w": w}))
    both = load_graph(model([node("Add", "x w", "y")], {"x": [2], "w": [2]}, ["y"], {"w": w}))
    for g in (graph, both):
        assert [v.name for v in g.inputs] == ["x"] and [v.name for v in g.constants] == ["w"]


def test_unused_initializers_are_not_read() -> None:
    proto = model([node("Relu", "x", "y")], {"x": [2]}, ["y"], {"w": np.ones(2, np.float32)})
    proto.graph.initializer[0].raw_data = b"broken"
    assert not load_graph(proto).constants


def test_outputs_that_are_inputs_constants_and_identities() -> None:
    proto = model(
        [node("Identity", "x", "same"), node("Identity", "w", "fixed")],
        {"x": [2]},
        ["same", "fixed", "x"],
        {"w": np.ones(2, np.float32)},
    )
    graph = load_graph(proto)
    assert not graph.nodes and graph.output_names == ("same", "fixed", "x")
    x = np.array([1, 2], np.float32)
    assert [a.tolist() for a in interpret_graph(graph, {"x": x}).values()] == [[1, 2], [1, 1], [1, 2]]


def test_absent_optional_inputs_and_outputs() -> None:
    nodes = [node("Clip", "x _ high", "c"), node("Split", "c", "y _", num_outputs=2)]
    graph = load_graph(model(nodes, {"x": [4]}, ["y"], {"high": np.array(0.5, np.float32)}))
    assert interpret_graph(graph, {"x": np.array([1, -1, 0, 0], np.float32)})["y"].tolist() == [0.5, -1]
    assert [v.name for v in graph.nodes[1].outputs] == ["y", "the Split of y _.1"]


def test_the_name_of_a_node_is_made_up_if_it_has_none() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Exp", ["h"], ["y"])]
    assert [n.name for n in load_graph(model(nodes, {"x": [1]}, ["y"])).nodes] == ["Relu_0", "Exp_1"]


# --------------------------------------------------------------------------------------------------- tensors

_ARRAYS = [
    np.array([[1.5, -2, 0]], np.float32),
    np.array([1.5], np.float64),
    np.array([1.5, 65504], np.float16),
    np.array([1.5, 3e38], ml_dtypes.bfloat16),
    np.array([True, False]),
    *(
        np.array([np.iinfo(t).min, np.iinfo(t).max], t)
        for t in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    ),
    np.array(7, np.int64),
    np.zeros((0, 3), np.float32),
]


@pytest.mark.parametrize("array", _ARRAYS, ids=lambda a: f"{a.dtype}-{a.shape}")
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "fields"])
def test_tensors_of_every_type(array: np.ndarray, raw: bool) -> None:
    tensor = numpy_helper.from_array(array, "w")
    if not raw:
        bits = {
            np.dtype(np.float16): np.uint16,
            np.dtype(ml_dtypes.bfloat16): np.uint16,
            np.dtype(bool): np.uint8,
        }
        data = array.view(bits.get(array.dtype, array.dtype))
        field = {1: "float_data", 11: "double_data", 7: "int64_data", 12: "uint64_data", 13: "uint64_data"}
        tensor.ClearField("raw_data")
        getattr(tensor, field.get(tensor.data_type, "int32_data")).extend(data.reshape(-1).tolist())
    proto = model([], {}, ["w"])
    proto.graph.initializer.append(tensor)
    graph = load_graph(proto)
    (found,) = graph.constants.values()
    assert TensorType.of(found) == TensorType(DType.of(array.dtype), array.shape)
    assert found.tobytes() == array.tobytes()


def test_bools_are_brought_into_order() -> None:
    proto = model([], {}, ["w"], {"w": np.array([True, False])})
    proto.graph.initializer[0].raw_data = b"\x02\x00"
    (found,) = load_graph(proto).constants.values()
    assert found.tobytes() == b"\x01\x00"


def test_weights_are_views_of_what_protobuf_hands_out() -> None:
    proto = model([node("Add", "x w", "y")], {"x": [2]}, ["y"], {"w": np.ones(2, np.float32)})
    (w,) = load_graph(proto).constants.values()
    assert not w.flags.owndata and not w.flags.writeable


def with_external(folder: Path, location: str = "weights.bin", **entries: int) -> Path:
    proto = model([node("Add", "x w", "y")], {"x": [4]}, ["y"], {"w": np.zeros(4, np.float32)})
    w = proto.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        w.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("entries", [{"offset": 8, "length": 16}, {"offset": 8}], ids=["length", "no-length"])
def test_external_data_next_to_the_model(tmp_path: Path, entries: dict[str, int]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights.bin").write_bytes(
        b"\xff" * 8 + np.arange(4, dtype=np.float32).tobytes() + b"\xff"
    )
    (w,) = load_graph(with_external(tmp_path, "data/weights.bin", **entries)).constants.values()
    assert w.tolist() == [0, 1, 2, 3]


# ---------------------------------------------------------------------------------------------- open dimensions


def relu(*dims: int | str | None, opset: int = 18) -> onnx.ModelProto:
    return model([node("Relu", "x", "y")], {"x": dims}, ["y"], opset=opset)


def test_shapes_fill_open_dimensions() -> None:
    for dims in (("n", 3), (None, 3), (0, 3), (-1, 3), (-1, -7), ("n", "m")):
        assert load_graph(relu(*dims), {"x": (2, 3)}).inputs[0].shape == (2, 3)


def test_shapes_give_the_rank_where_the_model_does_not() -> None:
    proto = model([node("Relu", "x", "y")], {"x": None}, ["y"])
    assert load_graph(proto, {"x": (2, 3)}).inputs[0].shape == (2, 3)


def test_a_named_dimension_given_once_holds_everywhere() -> None:
    proto = model([node("Add", "x z", "y")], {"x": ["n", 3], "z": ["n", 1]}, ["y"])
    assert [v.shape for v in load_graph(proto, {"x": (2, 3)}).inputs] == [(2, 3), (2, 1)]


def test_shapes_may_be_numpy_integers_and_zero() -> None:
    assert load_graph(relu("n", 3), {"x": tuple(np.array([0, 3]))}).inputs[0].type == TensorType(
        DType.F32, (0, 3)
    )


@pytest.mark.parametrize("opset", [7, 13, 18, 21, 28])
def test_opsets(opset: int) -> None:
    assert len(load_graph(relu(2, opset=opset)).nodes) == 1


def test_sources_of_a_model(tmp_path: Path) -> None:
    proto = relu(2)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    for source in (proto, proto.SerializeToString(), path, str(path)):
        assert load_graph(source).name == "test"


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "by axis"])
def test_sparse_tensors_are_written_out(indices: Any) -> None:
    values = numpy_helper.from_array(np.array([3, 7], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices, np.int64)), (2, 3))
    proto = model([node("MatMul", "x w", "y")], {"x": (4, 2)}, ["y"])
    proto.graph.sparse_initializer.append(sparse)
    check_against_ort(proto)
    constant = node("Constant", "", "w", sparse_value=sparse)
    check_against_ort(model([constant, node("MatMul", "x w", "y")], {"x": (4, 2)}, ["y"]))
