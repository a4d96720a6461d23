"""Models that cannot be imported: one test per complaint. Each is a UserError that names the place and the cause."""

import contextlib
import os
import socket
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tilewright.api import load
from tilewright.frontend.onnx.file import LIMITS, ModelLimits
from tilewright.frontend.onnx.functions import Functions
from tilewright.frontend.onnx.load import load_graph
from tilewright.support.errors import UserError

FLOAT = TensorProto.FLOAT


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=f"the {op}", **attrs)


def model(*nodes: onnx.NodeProto, **inputs: Sequence[int | str | None]) -> onnx.ModelProto:
    """A model of these nodes; its input is x: f32[2, 3] unless given, its output y."""
    given = inputs or {"x": (2, 3)}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in given.items()],
        [onnx.ValueInfoProto(name="y")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


RELU = node("Relu", ["x"], ["y"])


def refused(
    source: Any, *, limits: ModelLimits = LIMITS, shapes: Mapping[str, Any] | None = None
) -> UserError:
    with pytest.raises(UserError) as e:
        load_graph(source, shapes, limits)
    return e.value


# ----------------------------------------------------------------------------------------------------- the file


def test_no_such_file(tmp_path: Path) -> None:
    assert "absent.onnx: No such file" in str(refused(tmp_path / "absent.onnx"))
    assert "cannot read" in str(refused("a\0b"))


def test_a_folder(tmp_path: Path) -> None:
    assert "is not a regular file" in str(refused(tmp_path))


def irregular(folder: Path, kind: str) -> Path:
    """A file of a kind that cannot be read like others; a program has the ending .tw."""
    path = folder / f"model{kind[kind.rfind('.') :]}"
    if kind.startswith("pipe"):
        os.mkfifo(path)
    elif kind.startswith("device"):
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    return path


@pytest.mark.parametrize(
    "kind", ["pipe.onnx", "device.onnx", "socket.onnx", "pipe.tw", "device.tw", "socket.tw"]
)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """Without waiting for somebody to write to a pipe, and without reading a device that has no end."""
    path = irregular(tmp_path, kind)
    with pytest.raises(UserError) as e:
        load(path)
    assert "not a regular file" in str(e.value) or kind.startswith("socket")
    assert str(path) in str(e.value)


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model(RELU).SerializeToString())
    tracemalloc.start()
    try:
        load_graph(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_garbage() -> None:
    assert "is not an ONNX model" in str(refused(b"\xff\xfe garbage"))


@pytest.mark.parametrize("data", [b"", b"\x08\x0a"])
def test_a_file_without_graph(data: bytes) -> None:
    assert "has no graph" in str(refused(data))


def test_a_truncated_file() -> None:
    data = model(RELU).SerializeToString()
    assert "is cut off" in str(refused(data[:-3]))


def test_a_git_lfs_pointer() -> None:
    assert "git lfs pull" in str(refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:0"))


def test_a_file_over_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model(RELU).SerializeToString())
    for source in (path, path.read_bytes()):
        assert "the limit is 10" in str(refused(source, limits=ModelLimits(file_bytes=10)))


def test_too_many_nodes() -> None:
    assert "over 1 nodes" in str(refused(model(RELU, node("Exp", ["x"], ["z"])), limits=ModelLimits(nodes=1)))


def test_too_deeply_nested_subgraphs() -> None:
    inner = helper.make_graph([], "inner", [], [])
    for _ in range(4):
        body = node("If", ["c"], ["o"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([body], "inner", [], [])
    deep = model(node("If", ["x"], ["y"], then_branch=inner, else_branch=inner))
    assert "over 3 deep" in str(refused(deep, limits=ModelLimits(nesting=3)))


def test_a_name_that_is_not_text() -> None:
    data = model(RELU).SerializeToString().replace(b"the Relu", b"the \xff\xff\xff\xff")
    assert "a name that is not UTF-8" in str(refused(data))
    assert "is not UTF-8" in str(refused(model(node("Conv", ["x", "x"], ["y"], auto_pad=b"\xff"))))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_file_never_ends_in_another_error(data: st.DataObject) -> None:
    whole = bytearray(_DAMAGED)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UserError):
        load_graph(bytes(whole))


def _network() -> bytes:
    proto = model(
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Reshape", ["c", "s"], ["r"]),
        node("Softmax", ["r"], ["y"], axis=-1),
        x=(1, 2, 4, 4),
    )
    proto.graph.initializer.extend(
        [
            numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w"),
            numpy_helper.from_array(np.array([2, -1]), "s"),
        ]
    )
    return proto.SerializeToString()


_DAMAGED = _network()


# ------------------------------------------------------------------------------------------------------- opsets


def with_functions(*functions: tuple[str, list[str]]) -> onnx.ModelProto:
    """A model that calls the first of these functions; each calls others, one after another."""
    proto = model(node(functions[0][0], ["x"], ["y"], domain="mine"))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    for name, called in functions:
        values = ["a", *(f"v{i}" for i in range(len(called)))]
        calls = [
            helper.make_node(c, [values[i]], [values[i + 1]], domain="" if c == "Relu" else "mine")
            for i, c in enumerate(called)
        ]
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
        proto.functions.append(helper.make_function("mine", name, ["a"], [values[-1]], calls, opsets))
    return proto


def test_a_function_that_calls_itself() -> None:
    assert "calls itself: F → F" in str(refused(with_functions(("F", ["Relu", "F"]))))
    text = str(refused(with_functions(("F", ["G"]), ("G", ["Relu", "H"]), ("H", ["G"]))))
    assert "calls itself: G → H → G" in text


def test_functions_that_call_each_other_too_deeply() -> None:
    chain = [(f"F{i}", [f"F{i + 1}"]) for i in range(30)]
    assert "call each other over 16 deep" in str(refused(with_functions(*chain, ("F30", ["Relu"]))))


def test_functions_that_stand_for_too_many_nodes() -> None:
    laughs = [(f"F{i}", [f"F{i + 1}"] * 20) for i in range(6)]
    error = refused(with_functions(*laughs, ("F6", ["Relu"])), limits=ModelLimits(nodes=1000))
    assert "expand to over 1000 nodes" in str(error)


def test_functions_are_counted_before_they_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fourteen that call each other four times stand for 268 million nodes."""
    monkeypatch.setattr(Functions, "expand", lambda *_: pytest.fail("a function was expanded"))
    laughs = [(f"F{i}", [f"F{i + 1}"] * 4) for i in range(14)]
    assert "expand to over 200000 nodes" in str(refused(with_functions(*laughs, ("F14", ["Relu"]))))


def test_functions_that_nobody_calls_may_stand_for_any_number_of_nodes() -> None:
    laughs = [(f"F{i}", [f"F{i + 1}"] * 4) for i in range(14)]
    proto = with_functions(("F", ["Relu"]), *laughs, ("F14", ["Relu"]))
    assert len(load_graph(proto).nodes) == 1


def test_a_function_with_an_unsupported_node() -> None:
    assert "'Nonsense' (domain mine, opset 1)" in str(refused(with_functions(("F", ["Nonsense"]))))


def test_a_function_that_is_called_with_too_many_inputs() -> None:
    proto = with_functions(("F", ["Relu"]))
    proto.graph.node[0].input.append("x")
    assert "takes 1 inputs and has 1 outputs" in str(refused(proto))


def test_two_functions_of_one_name() -> None:
    assert "two functions of the model" in str(refused(with_functions(("F", ["Relu"]), ("F", ["Relu"]))))


def test_an_absurd_version_of_a_domain() -> None:
    proto = with_functions(("F", ["Relu"]))
    proto.opset_import[-1].version = 2**40
    assert "is no version of the opset 'mine'" in str(refused(proto))


def test_no_opset() -> None:
    proto = model(RELU)
    del proto.opset_import[:]
    assert "does not say which ONNX opset" in str(refused(proto))


@pytest.mark.parametrize("version", [0, 1, 29, 1 << 40])
def test_an_opset_that_is_not_supported(version: int) -> None:
    proto = model(RELU)
    proto.opset_import[0].version = version
    assert f"opset {version}; supported are 7 to 28" in str(refused(proto))


def test_an_old_opset_whose_operators_changed() -> None:
    proto = model(node("Add", ["x", "x"], ["z"], broadcast=1), node("Relu", ["z"], ["y"]))
    proto.opset_import[0].version = 6
    assert "opset 6; supported are 7 to 28 for 'Add'" in str(refused(proto))
    proto = model(RELU)  # has been the same since opset 6
    proto.opset_import[0].version = 6
    assert [type(n.op).__name__ for n in load_graph(proto).nodes] == ["Relu"]


def test_an_op_that_the_opset_does_not_have() -> None:
    error = refused(model(node("Gelu", ["x"], ["y"])))
    assert error.message == "opset 18 has no Gelu"
    assert error.where == "node 'the Gelu': Gelu(f32[2, 3]), opset 18"


def test_all_unsupported_nodes_are_listed() -> None:
    custom = node("Frobnicate", ["x"], ["z"], domain="org.example")
    proto = model(node("Frob", ["x"], ["a"]), RELU, custom, helper.make_node("NoSuchOp", ["z"], ["b"]))
    proto.opset_import.append(helper.make_opsetid("org.example", 3))
    assert str(refused(proto)).splitlines() == [
        "3 nodes of the model are not supported:",
        "  'Frob' (domain ai.onnx, opset 18) in node 'the Frob'",
        "  'Frobnicate' (domain org.example, opset 3) in node 'the Frobnicate'",
        "  'NoSuchOp' (domain ai.onnx, opset 18) in the node that computes 'b'",
    ]


def test_a_long_list_of_unsupported_nodes_is_cut() -> None:
    nodes = [helper.make_node("NoSuchOp", ["x"], [f"z{i}"]) for i in range(150)]
    lines = str(refused(model(RELU, *nodes))).splitlines()
    assert lines[0].startswith("150 nodes") and lines[-1] == "  and 50 more"


# --------------------------------------------------------------------------------------------- names and order


def test_a_cycle() -> None:
    error = refused(
        model(node("Add", ["x", "b"], ["a"]), node("Exp", ["a"], ["b"]), node("Relu", ["b"], ["y"]))
    )
    assert error.message == "the model has a cycle: Add 'the Add' ← Exp 'the Exp' ← Add 'the Add'"


def test_a_node_that_reads_itself() -> None:
    assert "has a cycle: Add 'the Add' ← Add 'the Add'" in str(refused(model(node("Add", ["x", "y"], ["y"]))))


def test_a_very_long_cycle() -> None:
    nodes = [node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(5000)]
    assert "has a cycle" in str(refused(model(*nodes, node("Add", ["v5000", "x"], ["v0"]))))


def test_an_input_that_is_defined_nowhere() -> None:
    error = refused(model(node("Add", ["x", "nowhere"], ["y"])))
    assert error.message == "the input 'nowhere' is defined nowhere in the model"
    assert error.where == "Add 'the Add'"


def test_a_value_defined_twice() -> None:
    assert "define 'y'" in str(refused(model(RELU, node("Exp", ["x"], ["y"]))))
    assert "define 'x'" in str(refused(model(node("Exp", ["x"], ["x"]))))


def test_two_inputs_of_one_name() -> None:
    proto = model(RELU)
    proto.graph.input.append(proto.graph.input[0])
    assert "two inputs are named 'x'" in str(refused(proto))


def test_two_initializers_of_one_name() -> None:
    proto = model(RELU)
    w = numpy_helper.from_array(np.zeros(1, np.float32), "w")
    proto.graph.initializer.extend([w, w])
    assert "two initializers are named 'w'" in str(refused(proto))


def test_an_output_that_nothing_computes() -> None:
    assert "output 'y' is computed by no node" in str(refused(model(node("Relu", ["x"], ["z"]))))


def test_no_outputs() -> None:
    proto = model(RELU)
    del proto.graph.output[:]
    assert "has no outputs" in str(refused(proto))


def test_an_output_of_another_type_than_declared() -> None:
    proto = model(RELU)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, None))
    assert "declares its output 'y' as INT64; it is f32[2, 3]" in str(refused(proto))


def test_long_names_are_cut_in_messages() -> None:
    assert len(str(refused(model(node("Add", ["x", "n" * 10_000], ["y"]))))) < 500


# -------------------------------------------------------------------------------------------- types and attributes


def test_types_that_do_not_fit() -> None:
    error = refused(model(node("Add", ["x", "z"], ["y"]), x=(2, 3), z=(4,)))
    assert "the shapes do not broadcast" in error.message
    assert error.where == "node 'the Add': Add(f32[2, 3], f32[4]), opset 18"


def test_an_attribute_of_the_wrong_type() -> None:
    error = refused(model(node("Softmax", ["x"], ["y"], axis=1.5)))
    assert error.message == "attribute axis has the wrong type" and error.hint == "it should be INT"


def test_an_unknown_attribute() -> None:
    assert "has no attribute 'sharpness'" in str(refused(model(node("Softmax", ["x"], ["y"], sharpness=1))))


def test_an_attribute_given_twice() -> None:
    twice = node("Softmax", ["x"], ["y"], axis=1)
    twice.attribute.append(twice.attribute[0])
    assert "attribute axis is given twice" in str(refused(model(twice)))


def test_a_missing_attribute() -> None:
    assert "the attribute to is missing" in str(refused(model(node("Cast", ["x"], ["y"]))))


def test_an_axis_out_of_range() -> None:
    assert "axis 7 is out of range" in str(refused(model(node("Softmax", ["x"], ["y"], axis=7))))


def test_too_many_inputs_and_outputs() -> None:
    assert "does not take 2 inputs" in str(refused(model(node("Relu", ["x", "x"], ["y"]))))
    assert "does not have 2 outputs" in str(refused(model(node("Relu", ["x"], ["y", "z"]))))


def test_a_sum_of_too_many() -> None:
    assert "100 inputs of one node: the limit is 64" in str(refused(model(node("Sum", ["x"] * 100, ["y"]))))


def test_a_required_input_that_is_absent() -> None:
    error = refused(model(node("Add", ["x", ""], ["y"])))
    assert error.where == "node 'the Add': Add(f32[2, 3], absent), opset 18"


def test_a_constant_of_nothing() -> None:
    assert "given by nothing" in str(refused(model(node("Constant", [], ["y"]))))


def test_a_shape_that_is_computed_at_run_time() -> None:
    cast = node("Cast", ["x"], ["s"], to=TensorProto.INT64)
    assert "is computed at run time" in str(refused(model(cast, node("Reshape", ["x", "s"], ["y"]), x=(2,))))


def test_a_tensor_too_large_to_compute() -> None:
    proto = model(node("Expand", ["x", "s"], ["y"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1 << 40, 2, 3]), "s"))
    assert "the limit is" in str(refused(proto))


# ------------------------------------------------------------------------------------------------------- inputs


def test_open_dimensions_are_named() -> None:
    error = refused(model(RELU, x=("batch", 3, None)))
    assert error.message == "input 'x' has open dimensions: batch, ? in [batch, 3, ?]"
    assert error.hint == "pass its shape, for example shapes={'x': (1, 3, 1)}"


def test_an_input_without_shape() -> None:
    proto = model(RELU)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert "input 'x' has no shape in the model" in str(refused(proto))


@pytest.mark.parametrize("shape", [(2,), (2, 4), (2, 3, 1)])
def test_a_given_shape_that_does_not_fit(shape: tuple[int, ...]) -> None:
    message = f"the shape {list(shape)} does not fit: the model has 'x' as [batch, 3]"
    assert message in str(refused(model(RELU, x=("batch", 3)), shapes={"x": shape}))


@pytest.mark.parametrize("extent", [-1, "batch", 2.5, None])
def test_a_given_extent_that_is_none(extent: Any) -> None:
    assert "is no extent" in str(refused(model(RELU, x=("batch", 3)), shapes={"x": (extent, 3)}))


def test_a_shape_for_no_input() -> None:
    error = refused(model(RELU), shapes={"images": (1, 3)})
    assert "no input 'images'" in error.message and error.hint == "its inputs are 'x'"


def test_one_dimension_with_two_extents() -> None:
    proto = model(node("Add", ["x", "z"], ["y"]), x=("n",), z=("n",))
    assert "n is 3 in 'z' and 2 in 'x'" in str(refused(proto, shapes={"x": (2,), "z": (3,)}))


def test_an_input_that_is_a_sequence() -> None:
    proto = model(RELU)
    proto.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", FLOAT, None))
    with pytest.raises(UserError, match="Relu takes tensors, not sequences"):
        load(proto).run({"x": [np.ones(1, np.float32)]})


def test_an_input_of_strings() -> None:
    proto = model(RELU)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(UserError, match="Relu does not compute with elements of this type"):
        load(proto).run({"x": np.full((2, 3), "text", object)})


# ------------------------------------------------------------------------------------------------------ tensors


def with_weight(change: Callable[[TensorProto], object]) -> onnx.ModelProto:
    proto = model(node("Add", ["x", "w"], ["y"]))
    w = numpy_helper.from_array(np.zeros((2, 3), np.float32), "w")
    change(w)
    proto.graph.initializer.append(w)
    return proto


def test_raw_data_of_another_size() -> None:
    error = refused(with_weight(lambda w: setattr(w, "raw_data", b"12")))
    assert error.message == "raw data has 2 bytes; f32[2, 3] takes 24" and error.where == "initializer 'w'"


def test_too_few_elements() -> None:
    def change(w: TensorProto) -> None:
        w.ClearField("raw_data")
        w.float_data.extend([1, 2])

    assert "float_data has 2 elements" in str(refused(with_weight(change)))


def test_negative_extents() -> None:
    assert "cannot have the shape [-2, 3]" in str(refused(with_weight(lambda w: w.dims.__setitem__(0, -2))))


def test_a_product_of_extents_that_would_overflow() -> None:
    def change(w: TensorProto) -> None:
        del w.dims[:]
        w.dims.extend([1 << 33, 1 << 33])

    assert "the limit is" in str(refused(with_weight(change)))


def test_too_many_axes() -> None:
    assert "a tensor of 42 axes" in str(refused(with_weight(lambda w: w.dims.extend([1] * 40))))


@pytest.mark.parametrize(("number", "name"), [(27, "FLOAT6E2M3"), (999, "number 999"), (0, "UNDEFINED")])
def test_an_element_type_that_is_not_supported(number: int, name: str) -> None:
    assert f"elements of type {name} are not" in str(
        refused(with_weight(lambda w: setattr(w, "data_type", number)))
    )


@pytest.mark.parametrize("indices", [[1, 6], [-1, 0], [[0, 1], [3, 0]], [[0], [1]], [0]])
def test_a_sparse_initializer_with_indices_that_make_no_sense(indices: Any) -> None:
    proto = model(node("MatMul", ["x", "w"], ["y"]))
    values = numpy_helper.from_array(np.array([3, 7], np.float32), "w")
    places = numpy_helper.from_array(np.array(indices, np.int64))
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, (3, 2)))
    error = refused(proto)
    assert error.message.startswith("sparse tensor [3, 2]: ") and error.where == "initializer 'w'"


# ------------------------------------------------------------------------------------------------ external data


def external(folder: Path, location: str, **entries: object) -> Path:
    def change(w: TensorProto) -> None:
        w.ClearField("raw_data")
        w.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            w.external_data.add(key=key, value=str(value))

    path = folder / "model" / "m.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(with_weight(change).SerializeToString())
    (folder / "secret").write_bytes(bytes(24))
    return path


@pytest.mark.parametrize("location", ["../secret", "a/../../secret", "./../secret"])
def test_external_data_that_leaves_the_folder(tmp_path: Path, location: str) -> None:
    assert "leaves the model's folder" in str(refused(external(tmp_path, location)))


@pytest.mark.parametrize("location", ["", "/etc/passwd", "..\\secret", "C:secret", "a\0b", "."])
def test_external_data_at_no_path(tmp_path: Path, location: str) -> None:
    assert "is not a path inside" in str(refused(external(tmp_path, location)))


def test_external_data_behind_a_symbolic_link(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    (path.parent / "w.bin").symlink_to(tmp_path / "secret")
    assert "is a symbolic link" in str(refused(path))


def test_external_data_in_a_linked_folder(tmp_path: Path) -> None:
    path = external(tmp_path, "data/secret")
    (path.parent / "data").symlink_to(tmp_path)
    assert "'data' is a symbolic link" in str(refused(path))


def test_external_data_that_is_a_hard_link(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    (path.parent / "w.bin").hardlink_to(tmp_path / "secret")
    assert "is a hard link" in str(refused(path))


def test_external_data_that_is_a_pipe(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    os.mkfifo(path.parent / "w.bin")
    assert "is not a regular file" in str(refused(path))


def test_external_data_that_is_a_folder(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    (path.parent / "w.bin").mkdir()
    assert "is not a regular file" in str(refused(path))


def test_external_data_that_is_absent(tmp_path: Path) -> None:
    assert "cannot be read" in str(refused(external(tmp_path, "w.bin")))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": 8}, "bytes 8 to 32 of 'w.bin', which has 24"),
        ({"offset": -8}, "offset is '-8', not a number"),
        ({"offset": "9" * 30}, "not a number"),
        ({"length": 12}, "length is 12 bytes; the tensor takes 24"),
        ({"length": "many"}, "length is 'many', not a number"),
    ],
)
def test_external_data_with_wrong_bounds(tmp_path: Path, entries: dict[str, object], message: str) -> None:
    path = external(tmp_path, "w.bin", **entries)
    (path.parent / "w.bin").write_bytes(bytes(24))
    assert message in str(refused(path))


def test_external_data_of_a_model_without_file(tmp_path: Path) -> None:
    data = external(tmp_path, "w.bin").read_bytes()
    assert "the model was not read from a file" in str(refused(data))
