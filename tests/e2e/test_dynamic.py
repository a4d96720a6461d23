"""Models that are no single program: open dimensions, and nodes that the host runs."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

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


def roots() -> ModelProto:
    """Shapes that are no sums and products of the open dimensions: a square root is taken on the way."""
    return model(
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=F32),
        node("Sqrt", ["f"], ["root"]),
        node("Cast", ["root"], ["r"], to=I64),
        node("Expand", ["one", "r"], ["y"]),
        inputs=[("x", F32, ["n", "m"]), ("one", F32, [1, 1])],
        outputs=[("y", F32, ["p", "q"])],
    )


def compilations(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if "compiling" in r.message or "program" in r.message]


def test_a_dimension_that_varies_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    session = tw.load(sums(), threads=1)
    assert isinstance(session, DynamicSession)
    with caplog.at_level(logging.INFO, "tilewright"):
        for n in (2, 3, 2, 64, 1, 17):
            x = np.ones((n, 4), np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.full((n, 4), n * 4))
    assert compilations(caplog) == [
        "compiling for x [2, 4]: the first shapes",
        "compiling for n from 1 to 64, m 4: n is 3, and was 2",
    ]
    assert "; and one for n from 1 to 64, m 4>" in repr(session)


def test_sizes_beyond_the_range_get_a_wider_program(caplog: pytest.LogCaptureFixture) -> None:
    session = tw.load(sums(), threads=1)
    with caplog.at_level(logging.INFO, "tilewright"):
        for n, m in ((2, 4), (40, 4), (100, 4), (300, 5), (256, 64), (7, 3)):
            x = np.ones((n, m), np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.full((n, m), n * m))
    assert compilations(caplog)[1:] == [
        "compiling for n from 1 to 128, m 4: n is 40, and was 2",
        "compiling for n from 1 to 1024, m from 1 to 64: n is 300, outside of n from 1 to 128; m is 5, and was 4",
    ]


def test_shapes_that_cannot_be_followed_have_a_program_each(caplog: pytest.LogCaptureFixture) -> None:
    session = tw.load(roots(), threads=1, variants=2)
    one = np.ones((1, 1), np.float32)
    with caplog.at_level(logging.INFO, "tilewright"):
        for n in (4, 9, 16, 4):
            assert session.run({"x": np.ones((n, 9), np.float32), "one": one})["y"].shape == (n**0.5, 3)
    messages = compilations(caplog)
    assert [m for m in messages if m.startswith("a program for each shape: ")] == messages[2:3]
    compiled = [m for m in messages if m.startswith("compiling for x ")]
    assert len(compiled) == 4
    assert "none of 2 variants has them; the least recently used variant goes" in compiled[2]


def test_sizes_that_the_open_program_leaves_out_have_their_own(caplog: pytest.LogCaptureFixture) -> None:
    last_three = model(
        node("Constant", [], ["from"], value_ints=[-3]),
        node("Constant", [], ["to"], value_ints=[1 << 40]),
        node("Slice", ["x", "from", "to"], ["y"]),
        inputs=[("x", F32, ["n"])],
        outputs=[("y", F32, ["k"])],
    )
    session = tw.load(last_three, threads=1)
    with caplog.at_level(logging.INFO, "tilewright"):
        for n in (5, 9, 2, 33, 0, 2):
            x = np.arange(n, dtype=np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], x[-3:])
    messages = compilations(caplog)
    assert messages[1] == "compiling for n from 1 to 64: n is 9, and was 5"
    assert messages[2].startswith("compiling for x [2]: the program for n from 1 to 64 leaves them out: ")
    assert messages[3].startswith("compiling for x [0]: ")
    assert len(messages) == 4


def test_images_keep_their_step(caplog: pytest.LogCaptureFixture) -> None:
    pool = model(
        node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
        inputs=[("x", F32, [1, 2, "h", "w"])],
        outputs=[("y", F32, [1, 2, "p", "q"])],
    )
    session = tw.load(pool, threads=1)
    with caplog.at_level(logging.INFO, "tilewright"):
        for h, w in ((32, 64), (64, 64), (96, 64), (50, 64)):
            x = np.arange(2 * h * w, dtype=np.float32).reshape(1, 2, h, w)
            np.testing.assert_array_equal(session.run({"x": x})["y"], x[:, :, 1::2, 1::2])
    assert compilations(caplog)[1:] == [
        "compiling for h from 32 to 128 in steps of 32, w 64: h is 64, and was 32",
        "compiling for h from 1 to 128, w 64: h is 50, outside of h from 32 to 128 in steps of 32",
    ]


def test_a_program_for_all_sizes_is_found_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    for _ in range(2):
        with tw.load(sums(), threads=1) as session:
            for n in (11, 12):
                bound = session.bind({"x": np.ones((n, 3), np.float32)})
                np.testing.assert_array_equal(bound.run()["y"], np.full((n, 3), 3 * n))
        monkeypatch.setattr("tilewright.compiler.Compilation.run_graph", None)


def test_a_fault_of_the_compiler_leaves_a_program_for_each_shape(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tilewright.compiler.compile_open", None)
    session = tw.load(sums(), threads=1, cache=False)
    with caplog.at_level(logging.INFO, "tilewright"):
        for n in (2, 3, 4):
            np.testing.assert_array_equal(
                session.run({"x": np.ones((n, 1), np.float32)})["y"], np.full((n, 1), n)
            )
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert warning.message == "a program for each shape: a mistake of Tilewright's, please report it"
    assert warning.exc_info


def test_threads_meet_in_one_open_program(caplog: pytest.LogCaptureFixture) -> None:
    session = tw.load(sums(), threads=1)

    def use(n: int) -> bool:
        results = [session.run({"x": np.ones((n, 2), np.float32)})["y"] for _ in range(20)]
        return all(r.shape == (n, 2) and (r == 2 * n).all() for r in results)

    with caplog.at_level(logging.INFO, "tilewright"), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, (1, 5, 3, 30, 2, 17, 9)))
    assert len(compilations(caplog)) <= 3


def test_negative_dimensions_are_open() -> None:
    """As published exporters write what they do not know, and onnxruntime reads it."""
    open_batch = model(
        node("Relu", ["x"], ["y"]), inputs=[("x", F32, [-1, 3])], outputs=[("y", F32, [-1, 3])]
    )
    for n in (1, 4):
        check(open_batch, x=np.linspace(-1, 1, 3 * n, dtype=np.float32).reshape(n, 3))


def test_threads_with_more_shapes_than_variants() -> None:
    session = tw.load(roots(), threads=1, variants=1)
    one = np.ones((1, 1), np.float32)

    def use(n: int) -> bool:
        feeds = {"x": np.ones((n * n, 4), np.float32), "one": one}
        return all(session.run(feeds)["y"].shape == (n, 2) for _ in range(20))

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


def test_programs_of_a_model_have_equal_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory and in the cache, compiled or loaded, whether a program is for one shape or for all."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    w = np.random.default_rng(0).random((256, 384), np.float32)
    m = model(
        node("MatMul", ["x", "w"], ["y"]), inputs=[("x", F32, ["n", 256])], outputs=[("y", F32, ["n", 384])]
    )
    m.graph.initializer.append(numpy_helper.from_array(w, "w"))

    def run_all() -> None:
        target = "x86-64-v3"  # whose schedules for these sizes pack weights alike
        sessions = [tw.load(m, threads=1, target=target, shapes={"x": (n, 256)}) for n in (96, 120)]
        sessions += [tw.load(m, threads=1, target=target, dims={"n": (2, 96)})]
        for n, session in zip((96, 120, 3), sessions, strict=True):
            x = np.full((n, 256), 1 / 256, np.float32)
            np.testing.assert_allclose(session.run({"x": x})["y"][-1], w.mean(0), rtol=1e-5)
        pools = [getattr(s, "_pool", None) or s._whole.pool for s in sessions]  # pyright: ignore
        plans = [pool._plan for pool in pools]  # pyright: ignore
        assert len({a for p in plans for a in p.constants.addresses}) == 1
        for session in sessions:
            session.close()

    run_all()
    (blob,) = (tmp_path / "cache").glob("*.tww")
    assert len(list((tmp_path / "cache").glob("*.tw"))) == 3
    written = blob.stat().st_mtime_ns
    run_all()
    assert blob.stat().st_mtime_ns == written
    blob.write_bytes(b"damaged")
    run_all()
    assert blob.stat().st_size == w.nbytes
