"""Models that are no single program: open dimensions, and nodes that the host runs."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper

import tilewright as tw
from tilewright.sessions.dynamic import DynamicSession
from tilewright.support.errors import UserError

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Info = tuple[str, int, list[Any] | None]


def graph(nodes: list[Any], inputs: list[Info], outputs: list[Info], name: str = "g") -> GraphProto:
    infos = [[helper.make_tensor_value_info(n, t, s) for n, t, s in group] for group in (inputs, outputs)]
    return helper.make_graph(nodes, name, *infos)


def model(*nodes: Any, inputs: list[Info], outputs: list[Info]) -> ModelProto:
    return helper.make_model(
        graph(list(nodes), inputs, outputs), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )


node = helper.make_node


def check(m: ModelProto, **feeds: Any) -> None:
    wanted = ort.InferenceSession(m.SerializeToString()).run(None, feeds)
    with tw.load(m, threads=1) as session:
        for _ in range(2):  # compiled, and then found
            got = session.run(feeds)
            for g, w in zip(got.values(), wanted, strict=True):
                np.testing.assert_allclose(g, w, rtol=1e-6)
                assert g.dtype == w.dtype


def sums() -> ModelProto:
    return model(
        node("Shape", ["x"], ["s"]),
        node("ReduceSum", ["x"], ["r"], keepdims=0),
        node("Expand", ["r", "s"], ["y"]),
        inputs=[("x", F32, ["n", "m"])],
        outputs=[("y", F32, ["n", "m"])],
    )


def test_open_dimensions_are_those_of_the_feeds(caplog: pytest.LogCaptureFixture) -> None:
    session = tw.load(sums(), threads=1)
    assert isinstance(session, DynamicSession)
    with caplog.at_level(logging.INFO, "tilewright"):
        for n in (2, 3, 2):
            x = np.ones((n, 4), np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.full((n, 4), n * 4))
    messages = [r.message for r in caplog.records if r.message.startswith("compiling")]
    assert messages == [
        "compiling for x [2, 4]: the first shapes",
        "compiling for x [3, 4]: none of 1 variants has them",
    ]


def test_negative_dimensions_are_open() -> None:
    """As published exporters write what they do not know, and onnxruntime reads it."""
    open_batch = model(
        node("Relu", ["x"], ["y"]), inputs=[("x", F32, [-1, 3])], outputs=[("y", F32, [-1, 3])]
    )
    for n in (1, 4):
        check(open_batch, x=np.linspace(-1, 1, 3 * n, dtype=np.float32).reshape(n, 3))


def test_variants_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    session = tw.load(sums(), threads=1, variants=2)
    with caplog.at_level(logging.INFO, "tilewright"):
        for n in (1, 2, 3, 1):
            session.run({"x": np.ones((n, 1), np.float32)})
    messages = [r.message for r in caplog.records if r.message.startswith("compiling")]
    assert len(messages) == 4
    assert "the least recently used variant goes" in messages[2]


def test_threads_with_more_shapes_than_variants() -> None:
    session = tw.load(sums(), threads=1, variants=1)

    def use(n: int) -> bool:
        results = [session.run({"x": np.ones((n, 2), np.float32)})["y"] for _ in range(20)]
        return all((r == 2 * n).all() for r in results)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(use, (1, 2, 3)))


def test_wrong_feeds_of_open_dimensions() -> None:
    session = tw.load(sums(), threads=1)
    with pytest.raises(UserError, match=r"x: missing, should be float32\[n, m\]"):
        session.run({})
    with pytest.raises(UserError, match="z: there is no such input"):
        session.run({"x": np.ones((1, 1), np.float32), "z": 1})
    with pytest.raises(UserError, match="should be float32"):
        session.run({"x": np.ones((1, 1), np.float64)})
    with pytest.raises(UserError, match="does not fit"):
        session.run({"x": np.ones((1, 1, 1), np.float32)})


def test_inputs_of_open_dimensions_without_names() -> None:
    session = tw.load(sums(), threads=1)
    x = np.ones((1, 1), np.float32)
    for call in (session.run, session.bind):
        with pytest.raises(UserError, match=r"this is one array.*\n.*write run\(\{'x': …\}\)"):
            call(x)  # pyright: ignore
        with pytest.raises(UserError, match="unlike in ONNX Runtime"):
            call(None, {"x": x})  # pyright: ignore


def test_a_session_with_open_dimensions_says_what_it_is() -> None:
    session = tw.load(sums(), threads=1)
    assert repr(session) == (
        "<DynamicSession x: float32[n, m] -> y; 0 of at most 8 programs compiled, each for its shapes>"
    )
    session.run({"x": np.ones((1, 1), np.float32)})
    assert "; 1 of at most 8 programs" in repr(session)


def test_native_code_on_both_sides_of_a_host_node() -> None:
    m = model(
        node("Relu", ["x"], ["positive"]),
        node("NonZero", ["positive"], ["places"]),
        node("Transpose", ["places"], ["rows"], perm=[1, 0]),
        node("Shape", ["rows"], ["y"]),
        inputs=[("x", F32, [3, 4])],
        outputs=[("y", I64, None), ("rows", I64, None)],
    )
    check(m, x=np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32))
    check(m, x=-np.ones((3, 4), np.float32))


def test_a_shape_that_is_computed_from_values() -> None:
    m = model(
        node("Neg", ["x"], ["minus"]),
        node("Reshape", ["minus", "shape"], ["again"]),
        node("Exp", ["again"], ["y"]),
        inputs=[("x", F32, [6]), ("shape", I64, [2])],
        outputs=[("y", F32, None)],
    )
    x = np.arange(6, dtype=np.float32)
    check(m, x=x, shape=np.array([2, 3]))
    check(m, x=x, shape=np.array([-1, 2]))


def test_an_error_of_the_host_names_the_node() -> None:
    m = model(
        node("Reshape", ["x", "shape"], ["y"], name="again"),
        inputs=[("x", F32, [6]), ("shape", I64, [2])],
        outputs=[("y", F32, None)],
    )
    with pytest.raises(UserError, match="node 'again'"):
        tw.load(m, threads=1).run({"x": np.ones(6, np.float32), "shape": np.array([4, 4])})


def test_a_model_that_the_host_has_a_part_in_is_no_file() -> None:
    m = model(
        node("NonZero", ["x"], ["y"], name="where"), inputs=[("x", F32, [6])], outputs=[("y", I64, None)]
    )
    with pytest.raises(UserError, match="node 'where': NonZero: the shape of its result depends on data"):
        tw.compile(m)
    with pytest.raises(UserError, match="cannot be bound"):
        tw.load(m, threads=1).bind({"x": np.ones(6, np.float32)})


def test_a_function_of_the_model() -> None:
    m = model(
        node("Twice", ["x"], ["y"], domain="mine", by=3.0),
        inputs=[("x", F32, [4])],
        outputs=[("y", F32, [4])],
    )
    by = node("Constant", [], ["c"])
    by.attribute.add(name="value_float", ref_attr_name="by", type=1)
    m.functions.append(
        helper.make_function(
            "mine", "Twice", ["a"], ["b"], [by, node("Mul", ["a", "c"], ["b"])],
            [helper.make_opsetid("", 18)], ["by"],
        )
    )  # fmt: skip
    m.opset_import.append(helper.make_opsetid("mine", 1))
    check(m, x=np.arange(4, dtype=np.float32))


def test_a_condition_that_is_known_leaves_one_branch() -> None:
    then = graph([node("Neg", ["x"], ["t"])], [], [("t", F32, [4])])
    other = graph([node("Exp", ["x"], ["e"])], [], [("e", F32, [4])])
    m = model(
        node("Constant", [], ["c"], value=helper.make_tensor("c", BOOL, [], [False])),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        inputs=[("x", F32, [4])],
        outputs=[("y", F32, [4])],
    )
    assert not isinstance(tw.load(m, threads=1), DynamicSession)
    check(m, x=np.arange(4, dtype=np.float32))


def test_a_split_sequence_is_no_business_of_the_host() -> None:
    m = model(
        node("SplitToSequence", ["x"], ["pieces"], axis=1, keepdims=0),
        node("Constant", [], ["two"], value_int=2),
        node("Constant", [], ["last"], value_int=-1),
        node("SequenceAt", ["pieces", "two"], ["a"]),
        node("SequenceErase", ["pieces", "two"], ["fewer"]),
        node("SequenceInsert", ["fewer", "a"], ["turned"]),
        node("SequenceAt", ["turned", "last"], ["b"]),
        node("ConcatFromSequence", ["turned"], ["c"], axis=1, new_axis=1),
        node("SequenceLength", ["turned"], ["n"]),
        node("Add", ["a", "b"], ["y"]),
        inputs=[("x", F32, [2, 4])],
        outputs=[("y", F32, None), ("c", F32, None), ("n", I64, [])],
    )
    assert not isinstance(tw.load(m, threads=1), DynamicSession)
    check(m, x=np.arange(8, dtype=np.float32).reshape(2, 4))


def test_a_known_sequence_that_the_host_uses_all_the_same() -> None:
    m = model(
        node("Neg", ["x"], ["minus"]),
        node("Constant", [], ["sizes"], value_ints=[1, 3]),
        node("SplitToSequence", ["minus", "sizes"], ["pieces"], axis=0),
        node("SequenceInsert", ["pieces", "x"], ["more"]),
        node("SequenceAt", ["more", "at"], ["chosen"]),
        node("Exp", ["chosen"], ["y"]),
        inputs=[("x", F32, [4]), ("at", I64, [])],
        outputs=[("y", F32, None)],
    )
    for at in (0, 1, 2, -1):
        check(m, x=np.arange(4, dtype=np.float32), at=np.array(at))


def test_functions_in_functions_keep_their_values_apart() -> None:
    m = model(node("Outer", ["x"], ["y"], domain="mine"), inputs=[("x", F32, [4])], outputs=[("y", F32, [4])])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    halves = [node("Neg", ["a"], ["b"]), node("Exp", ["b"], ["c"])]
    calls = [node("Inner", ["a"], ["b"], domain="mine"), node("Inner", ["b"], ["c"], domain="mine")]
    m.functions.append(helper.make_function("mine", "Inner", ["a"], ["c"], halves, opsets))
    m.functions.append(helper.make_function("mine", "Outer", ["a"], ["c"], calls, opsets))
    m.opset_import.append(opsets[1])
    check(m, x=np.linspace(-1, 1, 4).astype(np.float32))


def test_a_computed_shape_that_is_absurd() -> None:
    m = model(
        node("Expand", ["x", "shape"], ["y"], name="wide"),
        inputs=[("x", F32, [1]), ("shape", I64, [2])],
        outputs=[("y", F32, None)],
    )
    with pytest.raises(UserError, match="the limit is"):
        tw.load(m, threads=1).run({"x": np.ones(1, np.float32), "shape": np.array([2**40, 2**20])})
