"""Models with open dimensions as one program for all sizes: against ONNX Runtime, size by size."""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.runtime.open_session import OpenSession
from tilewright.sessions.dynamic import DynamicSession

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(0)
node = helper.make_node


def weights(**arrays: Any) -> list[Any]:
    return [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    nodes: Sequence[Any], inputs: dict[str, list[Any]], constants: Sequence[Any] = (), result: int = F32
) -> ModelProto:
    infos = [helper.make_tensor_value_info(n, F32, s) for n, s in inputs.items()]
    out = helper.make_tensor_value_info("y", result, None)
    graph = helper.make_graph(list(nodes), "g", infos, [out], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@cache
def mlp() -> ModelProto:
    steps = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "b"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("MatMul", ["d", "v"], ["y"]),
    ]
    return model(steps, {"x": ["n", 24]}, weights(w=floats(24, 40), b=floats(40), v=floats(40, 10)))


@cache
def batched() -> ModelProto:
    steps = [node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["y"], axis=1)]
    return model(steps, {"x": ["batch", "n", 24]}, weights(w=floats(24, 16)))


@cache
def attention() -> ModelProto:
    steps = [
        node("MatMul", ["x", "wq"], ["q"]),
        node("MatMul", ["x", "wk"], ["k"]),
        node("MatMul", ["x", "wv"], ["v"]),
        *(node("Reshape", [n, "heads"], [f"{n}4"]) for n in "qkv"),
        node("Transpose", ["q4"], ["qt"], perm=[0, 2, 1, 3]),
        node("Transpose", ["k4"], ["kt"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v4"], ["vt"], perm=[0, 2, 1, 3]),
        node("MatMul", ["qt", "kt"], ["s"]),
        node("Div", ["s", "scale"], ["z"]),
        node("Softmax", ["z"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["m"]),
        node("Transpose", ["m"], ["mt"], perm=[0, 2, 1, 3]),
        node("Reshape", ["mt", "joined"], ["y"]),
    ]
    constants = weights(
        wq=floats(32, 32),
        wk=floats(32, 32),
        wv=floats(32, 32),
        heads=ints(0, 0, 4, 8),
        joined=ints(0, 0, 32),
        scale=np.float32(2.8),
    )
    return model(steps, {"x": ["batch", "n", 32]}, constants)


def shape_arithmetic() -> ModelProto:
    """A mask by the length, as exporters write it: Shape, Gather, Range, Expand."""
    steps = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["n"], axis=0),
        node("Range", ["zero", "n", "unit"], ["r"]),
        node("Unsqueeze", ["r", "axis"], ["u"]),
        node("LessOrEqual", ["r", "u"], ["m"]),
        node("Cast", ["m"], ["f"], to=F32),
        node("MatMul", ["f", "x"], ["y"]),
    ]
    constants = weights(one=np.int64(1), zero=np.int64(0), unit=np.int64(1), axis=ints(1))
    return model(steps, {"x": ["batch", "n", 5]}, constants)


def mean_and_last() -> ModelProto:
    steps = [
        node("ReduceMean", ["x", "axis"], ["m"], keepdims=1),
        node("Gather", ["x", "last"], ["g"], axis=1),
        node("Sub", ["x", "m"], ["d"]),
        node("ReduceMax", ["d", "axis"], ["e"], keepdims=0),
        node("Add", ["g", "e"], ["y"]),
    ]
    return model(steps, {"x": ["batch", "n", 6]}, weights(axis=ints(1), last=np.int64(-1)))


@cache
def joined() -> ModelProto:
    """What grows: a cache of `past` elements, and new ones."""
    steps = [
        node("Concat", ["x", "z"], ["c"], axis=1),
        node("Slice", ["c", "from", "to", "axis"], ["t"]),
        node("Softmax", ["c"], ["p"], axis=1),
        node("ReduceSum", ["t", "axis"], ["s"], keepdims=1),
        node("Mul", ["p", "s"], ["y"]),
    ]
    constants = weights(**{"from": ints(-3), "to": ints(1 << 60), "axis": ints(1)})
    return model(steps, {"x": [2, "past", 4], "z": [2, "n", 4]}, constants)


def padded() -> ModelProto:
    steps = [
        node("Pad", ["x", "pads"], ["a"]),
        node("Conv", ["a", "w"], ["c"], kernel_shape=[3]),
        node("Relu", ["c"], ["d"]),
        node("Conv", ["d", "v"], ["y"], kernel_shape=[3], pads=[1, 1], strides=[2]),
    ]
    return model(
        steps,
        {"x": [1, 8, "n"]},
        weights(pads=ints(0, 0, 1, 0, 0, 1), w=floats(16, 8, 3), v=floats(4, 16, 3)),
    )


MODELS: dict[str, Callable[[], ModelProto]] = {
    f.__name__: f for f in (mlp, batched, attention, shape_arithmetic, mean_and_last, joined, padded)
}
DIMS = {"batch": (1, 4), "n": (1, 40), "past": (1, 70)}
SIZES = [
    {"batch": 1, "n": 1, "past": 3},
    {"batch": 2, "n": 7, "past": 1},
    {"batch": 3, "n": 17, "past": 33},
    {"batch": 4, "n": 40, "past": 70},
    {"batch": 1, "n": 39, "past": 64},
]


def feeds_of(m: ModelProto, at: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i in m.graph.input:
        dims = i.type.tensor_type.shape.dim
        found[i.name] = floats(*(at[d.dim_param] if d.dim_param else d.dim_value for d in dims))
    return found


def open_session(m: ModelProto, threads: int = 2) -> OpenSession:
    names = {d.dim_param for i in m.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    session = tw.load(m, dims={n: DIMS[n] for n in names}, threads=threads)
    assert isinstance(session, OpenSession)
    return session


@pytest.mark.parametrize("name", MODELS)
def test_one_program_is_right_for_all_sizes(name: str) -> None:
    m = MODELS[name]()
    other: Any = ort.InferenceSession(m.SerializeToString())
    with open_session(m) as session:
        for at in SIZES:
            feeds = feeds_of(m, at)
            got: Any = session.run(feeds)["y"]
            wanted: Any = other.run(None, feeds)[0]
            np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5, err_msg=str(at))


def test_the_same_bits_with_any_number_of_threads() -> None:
    m = attention()
    feeds = feeds_of(m, {"batch": 2, "n": 23})
    with open_session(m, 1) as one, open_session(m, 2) as two:
        np.testing.assert_array_equal(one.run(feeds)["y"], two.run(feeds)["y"])


def test_what_was_there_before_does_not_matter() -> None:
    m = attention()
    with open_session(m) as session:
        feeds = feeds_of(m, {"batch": 2, "n": 9})
        wanted = session.run(feeds)["y"]
        session.run({"x": np.full((4, 40, 32), np.nan, np.float32)})
        np.testing.assert_array_equal(session.run(feeds)["y"], wanted)


def test_results_that_are_kept_are_not_written_to_again() -> None:
    """Their memory is used again only when nobody has it."""
    session = tw.load(mlp(), dims={"n": (1, 8192)}, threads=1)
    first = session.run({"x": np.ones((3, 24), np.float32)})["y"]
    before = np.array(first)
    for n in (3, 5, 3):
        session.run({"x": floats(n, 24)})
    np.testing.assert_array_equal(first, before)


def test_a_bound_program_reads_its_arrays_anew() -> None:
    m = mlp()
    feeds = feeds_of(m, {"n": 5})
    with open_session(m) as session:
        bound = session.bind(feeds)
        first = bound.run()["y"].copy()
        feeds["x"][:] *= 2
        np.testing.assert_array_equal(session.run(feeds)["y"], bound.run()["y"])
        assert not np.array_equal(first, bound.outputs["y"])


def test_outputs_are_written_to_the_callers_arrays() -> None:
    m = mlp()
    feeds = feeds_of(m, {"n": 5})
    with open_session(m) as session:
        out = np.zeros((5, 10), np.float32)
        assert session.run(feeds, {"y": out})["y"] is out
        np.testing.assert_array_equal(out, session.run(feeds)["y"])


def test_a_file_holds_an_open_program(tmp_path: Path) -> None:
    m = attention()
    path = tmp_path / "open.tw"
    tw.compile(m, dims={"batch": (1, 4), "n": (1, 40)}).save(path)
    with tw.load(path) as loaded, open_session(m) as session:
        assert isinstance(loaded, OpenSession)
        for at in ({"batch": 3, "n": 11}, {"batch": 1, "n": 40}):
            feeds = feeds_of(m, at)
            np.testing.assert_array_equal(loaded.run(feeds)["y"], session.run(feeds)["y"])


def test_a_compiled_model_with_ranges_has_an_open_session() -> None:
    m = mlp()
    feeds = feeds_of(m, {"n": 7})
    with tw.compile(m, dims={"n": (1, 40)}).session(1) as made, open_session(m) as session:
        assert isinstance(made, OpenSession)
        np.testing.assert_array_equal(made.run(feeds)["y"], session.run(feeds)["y"])


def test_a_range_of_one_size_is_no_open_dimension() -> None:
    m = attention()
    with tw.load(m, dims={"batch": 2, "n": (1, 40)}) as session:
        assert isinstance(session, OpenSession)
        assert [d.name for d in session.dims] == ["n"]
        feeds = feeds_of(m, {"batch": 2, "n": 9})
        other: Any = ort.InferenceSession(m.SerializeToString())
        got: Any = session.run(feeds)["y"]
        np.testing.assert_allclose(got, other.run(None, feeds)[0], rtol=2e-4, atol=2e-5)
        with pytest.raises(tw.UserError, match="should be"):
            session.run(feeds_of(m, {"batch": 3, "n": 9}))


@pytest.mark.parametrize("method", ["run", "bind"])
def test_a_size_out_of_range_says_the_range_and_how_to_widen_it(method: str) -> None:
    with open_session(mlp()) as session:
        with pytest.raises(tw.UserError, match=r"n is 41, .* n from 1 to 40") as raised:
            getattr(session, method)({"x": floats(41, 24)})
        assert "dims={'n':" in str(raised.value.hint)


def test_shapes_of_a_compiled_program_are_those_it_has(tmp_path: Path) -> None:
    for dims, shapes in (({"n": (1, 8)}, None), (None, {"x": (4, 24)})):
        path = tmp_path / "program.tw"
        tw.compile(mlp(), dims=dims, shapes=shapes).save(path)
        with pytest.raises(tw.UserError, match="the program is made for"):
            tw.load(path, shapes={"x": (9, 24)})
    with tw.load(path, shapes={"x": (4, 24)}) as session:
        assert session.inputs[0].shape == (4, 24)


def test_sizes_that_do_not_fit_each_other_are_refused() -> None:
    m = joined()
    with open_session(m) as session, pytest.raises(tw.UserError, match="should be"):
        session.run({"x": floats(2, 9, 5), "z": floats(2, 3, 4)})


def test_sizes_that_are_not_known_to_be_equal_are_no_error_of_the_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The pool has one row for two of them and for three, which is seen only where their number is given."""
    steps = [
        node("MaxPool", ["x"], ["p"], kernel_shape=[3, 2], pads=[1, 0, 0, 0], strides=[2, 2]),
        node("Concat", ["p", "c"], ["y"], axis=0),
    ]
    m = model(steps, {"x": [2, 3, "n", 2]}, weights(c=floats(1, 3, 1, 1)))
    caplog.set_level(logging.INFO, "tilewright")
    other: Any = ort.InferenceSession(m.SerializeToString())
    with tw.load(m, dims={"n": (1, 3)}) as session:
        assert "makes no sense for all sizes" in caplog.text
        for n in (2, 3):
            feeds = {"x": floats(2, 3, n, 2)}
            got: Any = session.run(feeds)["y"]
            np.testing.assert_array_equal(got, other.run(None, feeds)[0])
    wrong = model([node("Add", ["x", "c"], ["y"])], {"x": ["n", 3]}, weights(c=floats(4)))
    with pytest.raises(tw.UserError, match="broadcast"):
        tw.load(wrong, dims={"n": (1, 3)})


def test_a_dimension_without_a_range_is_named() -> None:
    with pytest.raises(tw.UserError, match="'batch' is not given"):
        tw.load(attention(), dims={"n": (1, 40)})


def test_a_model_that_cannot_be_followed_has_a_program_for_each_shape(
    caplog: pytest.LogCaptureFixture,
) -> None:
    m = model([node("NonZero", ["x"], ["y"])], {"x": ["n"]}, result=I64)
    with caplog.at_level(logging.INFO, "tilewright"):
        session = tw.load(m, dims={"n": (1, 40)})
    assert isinstance(session, DynamicSession)
    assert "a program for each shape" in caplog.text
