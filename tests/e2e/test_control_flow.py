"""Branches, loops and sequences in models: they agree with onnxruntime, and what they cost is bounded."""

import logging
import threading
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import GraphProto, ModelProto, TypeProto, helper, numpy_helper
from onnx.onnx_pb import TensorProto

import tilewright as tw
from tilewright.support.errors import UserError

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def info(name: str, kind: int | TypeProto, shape: list[Any] | None = None) -> Any:
    if isinstance(kind, TypeProto):
        return helper.make_value_info(name, kind)
    return helper.make_tensor_value_info(name, kind, shape)


def sequence_of(kind: int) -> TypeProto:
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind, None))


def graph(nodes: list[Any], inputs: list[Any], outputs: list[Any], **constants: Any) -> GraphProto:
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    return helper.make_graph(nodes, "g", inputs, outputs, stored)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], **constants: Any) -> ModelProto:
    made = graph(nodes, inputs, outputs, **constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def check(m: ModelProto, *many: dict[str, Any]) -> None:
    """One session, all feeds, twice: what was compiled for some must not be taken for others."""
    judge = ort.InferenceSession(m.SerializeToString())
    with tw.load(m, threads=1) as session:
        for feeds in (*many, *many):
            same(list(session.run(feeds).values()), list(judge.run(None, feeds)))


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert isinstance(got, list) and len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            same(g, w)
    else:
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def f32(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LOOP = [info("i", I64, []), info("going", BOOL, [])]


def test_a_while_loop_ends_when_its_condition_says_so() -> None:
    body = graph(
        [
            node("Mul", ["v", "half"], ["v2"]),
            node("ReduceSum", ["v2"], ["sum"], keepdims=0),
            node("Greater", ["sum", "limit"], ["on"]),
        ],
        [*LOOP, info("v", F32, [3])],
        [info("on", BOOL, []), info("v2", F32, [3]), info("sum", F32, [])],
        half=np.float32(0.5),
    )
    m = model(
        [node("Loop", ["", "start", "x"], ["y", "sums"], body=body)],
        [info("x", F32, [3]), info("start", BOOL, []), info("limit", F32, [])],
        [info("y", F32, [3]), info("sums", F32, None)],
    )
    x = np.array([3.0, 40.0, 5.0], np.float32)
    check(
        m,
        {"x": x, "start": np.array(True), "limit": np.array(1, np.float32)},
        {"x": x, "start": np.array(True), "limit": np.array(20, np.float32)},
        {"x": x, "start": np.array(False), "limit": np.array(1, np.float32)},
    )


def greedy() -> ModelProto:
    """Every step scores the last token, takes the best next one and appends it."""
    body = graph(
        [
            node("Gather", ["tokens", "last"], ["newest"], axis=0),
            node("Gather", ["table", "newest"], ["scores"], axis=0),
            node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
            node("Concat", ["tokens", "best"], ["longer"], axis=0),
            node("Equal", ["best", "end"], ["is_end"]),
            node("Not", ["is_end"], ["goes_on"]),
            node("Squeeze", ["goes_on"], ["on"]),
        ],
        [*LOOP, info("tokens", I64, ["n"])],
        [info("on", BOOL, []), info("longer", I64, ["m"])],
        last=np.array([-1]),
        end=np.array([0]),
    )
    return model(
        [node("Loop", ["most", "", "prompt"], ["tokens"], body=body)],
        [info("most", I64, []), info("prompt", I64, ["p"])],
        [info("tokens", I64, None)],
        table=f32(40, 40),
    )


def test_a_greedy_decoder_whose_sequence_grows() -> None:
    prompts = [np.array([5]), np.array([7, 9, 3]), np.array([1, 2])]
    check(greedy(), *({"most": np.array(n), "prompt": p} for n, p in zip((4, 6, 0), prompts, strict=True)))


def test_types_that_keep_changing_are_interpreted(caplog: pytest.LogCaptureFixture) -> None:
    m = greedy()
    with caplog.at_level(logging.INFO, "tilewright"), tw.load(m, threads=1) as session:
        feeds = {"most": np.array(30), "prompt": np.array([5, 6])}
        got = session.run(feeds)["tokens"]
    np.testing.assert_array_equal(got, ort.InferenceSession(m.SerializeToString()).run(None, feeds)[0])
    assert any("it is interpreted" in r.message for r in caplog.records)


def test_an_interpreted_stage_that_keeps_coming_is_compiled() -> None:
    """Nine shapes first, then one of them very often: all have the same results."""
    body = graph(
        [node("Exp", ["v"], ["e"]), node("Sub", ["e", "e"], ["zero"]), node("Add", ["zero", "v"], ["v2"])],
        [*LOOP, info("v", F32, ["n"])],
        [info("going", BOOL, []), info("v2", F32, ["n"])],
    )
    m = model(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        [info("n", I64, []), info("x", F32, ["k"])],
        [info("y", F32, None)],
    )
    with tw.load(m, threads=1) as session:
        for k in (*range(1, 12), 11):
            x = f32(k)
            got = session.run({"n": np.array(50 if k == 11 else 2), "x": x})["y"]
            np.testing.assert_allclose(got, x, rtol=1e-6)


def test_scan_as_a_recurrent_cell() -> None:
    body = graph(
        [
            node("MatMul", ["step", "w"], ["a"]),
            node("MatMul", ["h", "r"], ["b"]),
            node("Add", ["a", "b"], ["c"]),
            node("Tanh", ["c"], ["h2"]),
            node("Identity", ["h2"], ["seen"]),
        ],
        [info("h", F32, [2, 4]), info("step", F32, [2, 3])],
        [info("h2", F32, [2, 4]), info("seen", F32, [2, 4])],
        r=f32(4, 4, seed=1),
    )
    m = model(
        [
            node("MatMul", ["x", "mix"], ["mixed"]),
            node("Scan", ["h0", "mixed"], ["h", "all"], body=body, num_scan_inputs=1),
            node("ReduceSum", ["all"], ["sum"], keepdims=0),
        ],
        [info("h0", F32, [2, 4]), info("x", F32, ["t", 2, 3])],
        [info("h", F32, [2, 4]), info("all", F32, None), info("sum", F32, [])],
        w=f32(3, 4, seed=2),
        mix=f32(3, 3, seed=3),
    )
    check(m, *({"h0": f32(2, 4), "x": f32(t, 2, 3)} for t in (5, 1, 3)))


def test_a_branch_by_a_flag_with_weights_from_around_it() -> None:
    then = graph([node("MatMul", ["x", "w"], ["t"])], [], [info("t", F32, [2, 4])])
    other = graph(
        [node("Neg", ["before"], ["m"]), node("ReduceSum", ["m"], ["e"], keepdims=0)],
        [],
        [info("e", F32, [])],
    )  # another rank
    m = model(
        [
            node("Exp", ["x"], ["before"]),
            node("If", ["flag"], ["chosen"], then_branch=then, else_branch=other),
            node("Mul", ["chosen", "two"], ["y"]),
        ],
        [info("x", F32, [2, 3]), info("flag", BOOL, [])],
        [info("y", F32, None)],
        w=f32(3, 4),
        two=np.float32(2),
    )
    check(m, *({"x": f32(2, 3), "flag": np.array(flag)} for flag in (True, False)))


def test_branches_that_give_values_from_around_them() -> None:
    then = graph([], [], [info("x", F32, [3])])
    other = graph([], [], [info("minus", F32, [3])])
    m = model(
        [node("Neg", ["x"], ["minus"]), node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
        [info("x", F32, [3]), info("flag", BOOL, [])],
        [info("y", F32, [3])],
    )
    with tw.load(m, threads=1) as session:  # onnxruntime wants a node in every branch
        for flag, sign in ((True, 1), (False, -1)):
            x = f32(3)
            y = session.run({"x": x, "flag": np.array(flag)})["y"]
            np.testing.assert_array_equal(y, sign * x)
            assert not np.shares_memory(x, y)


def test_a_branch_inside_of_a_loop_inside_of_a_branch() -> None:
    even = graph([node("Add", ["v", "w"], ["t"])], [], [info("t", F32, [3])])
    odd = graph([node("Sub", ["v", "outer"], ["e"])], [], [info("e", F32, [3])])
    body = graph(
        [
            node("Mod", ["i", "two"], ["rest"]),
            node("Equal", ["rest", "zero"], ["is_even"]),
            node("If", ["is_even"], ["v2"], then_branch=even, else_branch=odd),
            node("Identity", ["going"], ["on"]),
        ],
        [*LOOP, info("v", F32, [3])],
        [info("on", BOOL, []), info("v2", F32, [3])],
        two=np.array(2),
        zero=np.array(0),
    )
    then = graph([node("Loop", ["n", "", "x"], ["t"], body=body)], [], [info("t", F32, [3])])
    other = graph([node("Neg", ["outer"], ["e"])], [], [info("e", F32, [3])])
    m = model(
        [node("Exp", ["x"], ["outer"]), node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
        [info("x", F32, [3]), info("n", I64, []), info("flag", BOOL, [])],
        [info("y", F32, [3])],
        w=f32(3, seed=4),
    )
    feeds = [
        {"x": f32(3), "n": np.array(n), "flag": np.array(f)} for n, f in ((3, True), (0, True), (2, False))
    ]
    check(m, *feeds)


def test_a_sequence_built_in_a_loop_and_joined() -> None:
    body = graph(
        [
            node("Cast", ["i"], ["number"], to=F32),
            node("Mul", ["x", "number"], ["scaled"]),
            node("SequenceInsert", ["s", "scaled"], ["s2"]),
        ],
        [*LOOP, info("s", sequence_of(F32))],
        [info("going", BOOL, []), info("s2", sequence_of(F32))],
    )
    m = model(
        [
            node("SequenceEmpty", [], ["none"]),
            node("SequenceInsert", ["none", "x"], ["first"]),
            node("Loop", ["n", "", "first"], ["all"], body=body),
            node("ConcatFromSequence", ["all"], ["joined"], axis=0),
            node("SequenceLength", ["all"], ["length"]),
            node("Exp", ["joined"], ["y"]),
        ],
        [info("x", F32, [2, 3]), info("n", I64, [])],
        [info("y", F32, None), info("length", I64, []), info("all", sequence_of(F32))],
    )
    check(m, *({"x": f32(2, 3), "n": np.array(n)} for n in (0, 1, 4)))


def test_a_loop_that_never_runs_gives_outputs_of_its_types() -> None:
    body = graph(
        [
            node("Cast", ["v"], ["whole"], to=I64),
            node("Add", ["v", "v"], ["v2"]),
            node("Mul", ["i", "i"], ["square"]),
        ],
        [*LOOP, info("v", F32, [2, 3])],
        [
            info("going", BOOL, []),
            info("v2", F32, [2, 3]),
            info("whole", I64, [2, 3]),
            info("square", I64, []),
        ],
    )
    m = model(
        [node("Loop", ["n", "", "x"], ["y", "seen", "numbers"], body=body)],
        [info("x", F32, [2, 3]), info("n", I64, [])],
        [info("y", F32, [2, 3]), info("seen", I64, None), info("numbers", I64, None)],
    )
    check(m, *({"x": f32(2, 3), "n": np.array(n)} for n in (0, 2)))


def test_a_sequence_map_with_values_from_around_it() -> None:
    body = graph(
        [node("Mul", ["piece", "w"], ["scaled"]), node("Add", ["scaled", "extra"], ["y"])],
        [info("piece", F32, None), info("extra", F32, None)],
        [info("y", F32, None)],
    )
    m = model(
        [
            node("Neg", ["x"], ["minus"]),
            node("SequenceMap", ["s", "minus"], ["y"], body=body),
        ],
        [info("s", sequence_of(F32)), info("x", F32, [1])],
        [info("y", sequence_of(F32))],
        w=np.float32(3),
    )
    pieces = [f32(2), f32(4, 1), f32()]
    with tw.load(m, threads=1) as session:
        for s in (pieces, [], pieces[:1]):
            got = session.run({"s": s, "x": np.ones(1, np.float32)})["y"]
            same(got, [p * 3 - np.ones(1, np.float32) for p in s])


def test_an_optional_is_asked_for() -> None:
    then = graph([node("OptionalGetElement", ["maybe"], ["t"])], [], [info("t", F32, [2])])
    other = graph([node("Identity", ["otherwise"], ["e"])], [], [info("e", F32, [2])])
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(F32, [2]))
    m = model(
        [
            node("OptionalHasElement", ["maybe"], ["has"]),
            node("If", ["has"], ["y"], then_branch=then, else_branch=other),
        ],
        [info("maybe", kind), info("otherwise", F32, [2])],
        [info("y", F32, [2])],
    )
    x, otherwise = f32(2), f32(2, seed=1)
    with tw.load(m, threads=1) as session:
        np.testing.assert_array_equal(session.run({"maybe": x, "otherwise": otherwise})["y"], x)
        np.testing.assert_array_equal(session.run({"maybe": None, "otherwise": otherwise})["y"], otherwise)


def test_loops_in_several_threads_at_once() -> None:
    """The shapes differ, so plans are made, dropped and found while others run."""
    m = greedy()
    feeds = [{"most": np.array(6), "prompt": np.arange(n) % 40} for n in range(1, 14)]
    judge = ort.InferenceSession(m.SerializeToString())
    wanted = [judge.run(None, f)[0] for f in feeds]
    faults: list[Any] = []
    with tw.load(m, threads=1) as session:

        def work(start: int) -> None:
            try:
                for k in range(len(feeds)):
                    i = (k + start) % len(feeds)
                    np.testing.assert_array_equal(session.run(feeds[i])["tokens"], wanted[i])
            except BaseException as e:
                faults.append(e)

        threads = [threading.Thread(target=work, args=(5 * t,)) for t in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not faults


def test_faults_in_bodies_name_the_node() -> None:
    body = graph(
        [node("Reshape", ["v", "shape"], ["v2"], name="again")],
        [*LOOP, info("v", F32, [4])],
        [info("going", BOOL, []), info("v2", F32, None)],
    )
    m = model(
        [node("Loop", ["n", "", "x"], ["y"], body=body, name="round")],
        [info("x", F32, [4]), info("n", I64, []), info("shape", I64, [1])],
        [info("y", F32, None)],
    )
    with tw.load(m, threads=1) as session:
        feeds = {"x": f32(4), "n": np.array(1), "shape": np.array([3])}
        with pytest.raises(UserError, match="node 'again'"):
            session.run(feeds)
        session.run({**feeds, "shape": np.array([4])})


def test_a_loop_with_outputs_that_its_body_does_not_give() -> None:
    body = graph(
        [node("Neg", ["v"], ["v2"])],
        [*LOOP, info("v", F32, [1])],
        [info("going", BOOL, []), info("v2", F32, [1])],
    )
    m = model(
        [node("Loop", ["n", "", "x"], ["y", "more"], body=body)],
        [info("x", F32, [1]), info("n", I64, [])],
        [info("y", F32, None), info("more", F32, None)],
    )
    with tw.load(m, threads=1) as session:
        for n in (0, 1):
            with pytest.raises(UserError, match="2 come out of a loop whose body gives 2"):
                session.run({"x": f32(1), "n": np.array(n)})


def test_results_may_be_written_to() -> None:
    """Also those that are constants, of the model or of a body, or one value under two names."""
    body = graph(
        [node("Neg", ["v"], ["v2"])],
        [*LOOP, info("v", F32, [2]), info("u", F32, [2])],
        [info("going", BOOL, []), info("k", F32, [2]), info("folded", F32, [2])],
        k=np.ones(2, np.float32),
    )
    body.node.append(node("Add", ["k", "k"], ["folded"]))
    m = model(
        [
            node("Loop", ["n", "", "x", "x"], ["y", "z"], body=body),
            node("SequenceConstruct", ["w", "w"], ["s"]),
            node("Identity", ["y"], ["again"]),
        ],
        [info("x", F32, [2]), info("n", I64, [])],
        [*(info(n, F32, [2]) for n in ("y", "z", "again", "w")), info("s", sequence_of(F32))],
        w=np.full(2, 5, np.float32),
    )
    with tw.load(m, threads=1) as session:
        for _ in range(2):
            x = f32(2)
            for n in (0, 1):
                got = session.run({"x": x, "n": np.array(n)})
                same(got["y"], np.ones(2, np.float32) if n else f32(2))
                same(got["z"], np.full(2, 2, np.float32) if n else f32(2))
                same(got["again"], got["y"])
                same(got["w"], np.full(2, 5, np.float32))
                same(got["s"], [np.full(2, 5, np.float32)] * 2)
                same(x, f32(2))
                for v in (got["y"], got["z"], got["w"], *got["s"]):
                    v += 1
                same(got["again"], np.ones(2, np.float32) if n else f32(2))
