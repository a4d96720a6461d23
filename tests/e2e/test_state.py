"""State that stays in place between runs: the same results as with arrays that are handed on, and errors."""

import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.open_state import State
from tilewright.sessions.dynamic import DynamicSession

F32 = TensorProto.FLOAT
RNG = np.random.default_rng(0)
node = helper.make_node
HEADS, WIDTH = 3, 8


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    nodes: Sequence[Any], inputs: dict[str, list[Any]], outputs: Sequence[str], **constants: Any
) -> ModelProto:
    infos = [helper.make_tensor_value_info(n, F32, s) for n, s in inputs.items()]
    outs = [helper.make_tensor_value_info(n, F32, None) for n in outputs]
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(list(nodes), "g", infos, outs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@cache
def attention() -> ModelProto:
    """Attention of new tokens to all, with caches of keys and values."""
    whole = HEADS * WIDTH
    steps = [
        *(node("MatMul", ["x", f"w{n}"], [n]) for n in "qkv"),
        *(node("Reshape", [n, "heads"], [f"{n}4"]) for n in "qkv"),
        *(node("Transpose", [f"{n}4"], [f"{n}t"], perm=[0, 2, 1, 3]) for n in "qkv"),
        node("Concat", ["past.0.key", "kt"], ["present.0.key"], axis=2),
        node("Concat", ["past.0.value", "vt"], ["present.0.value"], axis=2),
        node("Transpose", ["present.0.key"], ["keys"], perm=[0, 1, 3, 2]),
        node("MatMul", ["qt", "keys"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "present.0.value"], ["m"]),
        node("Transpose", ["m"], ["mt"], perm=[0, 2, 1, 3]),
        node("Reshape", ["mt", "joined"], ["y"]),
    ]
    past = ["batch", HEADS, "past", WIDTH]
    return model(
        steps,
        {"x": ["batch", "n", whole], "past.0.key": past, "past.0.value": past},
        ["y", "present.0.key", "present.0.value"],
        heads=np.array([0, 0, HEADS, WIDTH], np.int64),
        joined=np.array([0, 0, whole], np.int64),
        **{f"w{n}": floats(whole, whole) / 5 for n in "qkv"},
    )


@cache
def recurrent() -> ModelProto:
    steps = [
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["h", "u"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Tanh", ["c"], ["next"]),
        node("Mul", ["next", "next"], ["y"]),
    ]
    return model(steps, {"x": ["batch", 5], "h": ["batch", 7]}, ["y", "next"], w=floats(5, 7), u=floats(7, 7))


@cache
def prepended() -> ModelProto:
    """The newest comes first, so nothing is appended."""
    steps = [
        node("Concat", ["x", "old"], ["all"], axis=0),
        node("ReduceMax", ["all", "axis"], ["y"], keepdims=0),
    ]
    return model(steps, {"x": ["n", 4], "old": ["past", 4]}, ["y", "all"], axis=np.array([0], np.int64))


DIMS = {"batch": (1, 2), "n": (1, 12), "past": (0, 30)}


def open_session(m: ModelProto, dims: dict[str, Any] | None = None) -> OpenSession:
    names = {d.dim_param for i in m.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    session = tw.load(m, dims=dims or {n: DIMS[n] for n in names}, threads=2)
    assert isinstance(session, OpenSession)
    return session


class Reference:
    """ONNX Runtime, which is handed arrays from run to run."""

    def __init__(self, m: ModelProto, pairs: dict[str, str], **state: Any) -> None:
        self._session: Any = ort.InferenceSession(m.SerializeToString())
        self._names = [o.name for o in m.graph.output]
        self.pairs, self.state = pairs, state

    def step(self, feeds: dict[str, Any]) -> Any:
        found = dict(zip(self._names, self._session.run(None, {**feeds, **self.state}), strict=True))
        self.state = {i: found[o] for o, i in self.pairs.items()}
        return found["y"]


CACHES = {"present.0.key": "past.0.key", "present.0.value": "past.0.value"}


def attention_reference(m: ModelProto, batch: int = 1, length: int = 0) -> Reference:
    past = {name: floats(batch, HEADS, length, WIDTH) for name in CACHES.values()}
    return Reference(m, CACHES, **past)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def step_both(state: State, reference: Reference, n: int, batch: int = 1) -> None:
    feeds = {"x": floats(batch, n, HEADS * WIDTH)}
    close(state.step(feeds)["y"], reference.step(feeds))
    for name, array in state.arrays.items():
        close(array, reference.state[name])


def test_a_state_gives_what_handing_arrays_on_gives() -> None:
    m = attention()
    with open_session(m) as session:
        for batch in (1, 2):
            state, reference = session.state(), attention_reference(m, batch)
            for n in (7, 1, 1, 3, 1, 12, 1):
                step_both(state, reference, n, batch)
            assert state.sizes["past"] == 26


def test_what_is_kept_is_appended_to_where_it_is() -> None:
    with open_session(attention()) as session:
        state = session.state()
        state.step({"x": floats(1, 5, HEADS * WIDTH)})
        before = state.arrays["past.0.key"]
        first = before.copy()
        state.step({"x": floats(1, 1, HEADS * WIDTH)})
        after = state.arrays["past.0.key"]
        assert after.ctypes.data == before.ctypes.data
        np.testing.assert_array_equal(after[:, :, :5], first)


def test_states_of_one_session_do_not_meet() -> None:
    m = attention()
    with open_session(m) as session:
        pairs = [(session.state(), attention_reference(m)) for _ in range(3)]
        for n in (4, 1, 2, 1):
            for k, (state, reference) in enumerate(pairs):
                step_both(state, reference, n + k)
            feeds = {"x": floats(1, 3, HEADS * WIDTH), **attention_reference(m, length=9).state}
            session.run(feeds)  # one that keeps nothing, in between


def test_states_of_several_threads() -> None:
    m = attention()
    failed: list[BaseException] = []

    def generate(session: OpenSession) -> None:
        try:
            state, reference = session.state(), attention_reference(m)
            for n in (5, 1, 1, 1, 2, 1, 1):
                step_both(state, reference, n)
        except BaseException as e:
            failed.append(e)

    with open_session(m) as session:
        threads = [threading.Thread(target=generate, args=(session,)) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not failed


def test_arrays_to_start_with_and_reset() -> None:
    m = attention()
    with open_session(m) as session:
        reference = attention_reference(m, length=6)
        state = session.state(reference.state)
        step_both(state, reference, 2)
        state.reset()
        assert state.sizes == {"past": 0}
        step_both(state, attention_reference(m), 3)
        again = attention_reference(m, length=4)
        state.reset(again.state)
        step_both(state, again, 1)


def test_a_part_of_what_was_appended_may_be_taken() -> None:
    m = attention()
    with open_session(m) as session:
        state, reference = session.state(), attention_reference(m)
        step_both(state, reference, 4)
        tried = floats(1, 5, HEADS * WIDTH)
        state.run({"x": tried})
        state.advance(2)
        reference.step({"x": tried[:, :2]})
        step_both(state, reference, 1)
        state.run({"x": tried})
        with pytest.raises(tw.UserError, match="6 elements are taken of 5"):
            state.advance(6)


def test_a_full_state_says_the_range_and_how_to_widen_it() -> None:
    with open_session(attention()) as session:
        state = session.state()
        for _ in range(3):
            state.step({"x": floats(1, 12, HEADS * WIDTH)})
        with pytest.raises(tw.UserError, match=r"full: past is 36, .* past from 0 to 30") as e:
            state.step({"x": floats(1, 1, HEADS * WIDTH)})
        assert e.value.hint is not None
        assert "dims={'past'" in str(e.value.hint) and "window" in str(e.value.hint)


def test_a_window_keeps_the_last_elements_when_the_range_ends() -> None:
    m = attention()
    with open_session(m) as session:
        state, reference = session.state(window=10), attention_reference(m)
        lengths: list[int] = []
        for n in (12, 12, 5, 5, 1, *[1] * 30):
            step_both_within(state, reference, n)
            lengths.append(state.sizes["past"])
        assert lengths[3] == 10 and max(lengths) == 30 and lengths.count(10) == 2
        with pytest.raises(tw.UserError, match="a window of 31"):
            session.state(window=31)


def step_both_within(state: State, reference: Reference, n: int) -> None:
    feeds = {"x": floats(1, n, HEADS * WIDTH)}
    close(state.step(feeds)["y"], reference.step(feeds))
    length = state.sizes["past"]
    reference.state = {name: a[:, :, -length:] for name, a in reference.state.items()}


def test_a_state_of_one_type_changes_places() -> None:
    m = recurrent()
    with open_session(m) as session:
        state, reference = (
            session.state(pairs={"next": "h"}),
            Reference(m, {"next": "h"}, h=np.zeros((2, 7), np.float32)),
        )
        for _ in range(5):
            feeds = {"x": floats(2, 5)}
            close(state.step(feeds)["y"], reference.step(feeds))
        close(state.arrays["h"], reference.state["h"])
        with pytest.raises(tw.UserError, match="no output of the model is known"):
            session.state()


def test_what_is_not_appended_is_copied() -> None:
    m = prepended()
    with open_session(m, {"n": (1, 3), "past": (1, 9)}) as session:
        start = floats(2, 4)
        state = session.state({"old": start}, pairs={"all": "old"})
        reference = Reference(m, {"all": "old"}, old=start)
        for n in (1, 3, 2):
            feeds = {"x": floats(n, 4)}
            close(state.step(feeds)["y"], reference.step(feeds))
        state.run({"x": floats(3, 4)})
        with pytest.raises(tw.UserError, match=r"old is .11, 4., and the program is made for at most .9, 4."):
            state.advance()


def test_a_run_without_a_state_leaves_its_arrays_alone() -> None:
    m = attention()
    with open_session(m) as session:
        for n, past in ((1, 30), (12, 1), (3, 0)):
            reference = attention_reference(m, 2, past)
            feeds = {"x": floats(2, n, HEADS * WIDTH), **reference.state}
            copies = {name: a.copy() for name, a in feeds.items()}
            bound = session.bind(feeds)
            close(session.run(feeds)["y"], bound.run()["y"])
            close(bound.outputs["y"], reference.step({"x": feeds["x"]}))
            for name, a in feeds.items():
                np.testing.assert_array_equal(a, copies[name])


def test_a_file_has_what_is_kept_in_place(tmp_path: Path) -> None:
    m = attention()
    made = tw.compile(m, dims=DIMS)
    assert made.artifact.manifest.in_place == ((1, 1), (2, 2))
    path = tmp_path / "open.tw"
    made.save(path)
    loaded = tw.load(path)
    assert isinstance(loaded, OpenSession)
    with loaded:
        step_both(loaded.state(), attention_reference(m), 4)


def test_an_input_that_something_else_reads_is_right_too() -> None:
    steps = [
        node("Concat", ["past", "x"], ["present"], axis=0),
        node("ReduceMax", ["past", "axis"], ["a"], keepdims=1),
        node("Mul", ["present", "a"], ["y"]),
    ]
    m = model(steps, {"x": ["n", 4], "past": ["past", 4]}, ["y", "present"], axis=np.array([0], np.int64))
    with open_session(m, {"n": (1, 3), "past": (1, 9)}) as session:
        start = floats(2, 4)
        state = session.state({"past": start}, pairs={"present": "past"})
        reference = Reference(m, {"present": "past"}, past=start)
        for n in (1, 3, 2):
            feeds = {"x": floats(n, 4)}
            close(state.step(feeds)["y"], reference.step(feeds))


def test_a_dimension_that_kernels_meet_may_not_be_empty() -> None:
    m = prepended()
    assert isinstance(tw.load(m, dims={"n": (1, 3), "past": (0, 9)}), DynamicSession)


def test_errors_name_what_is_wrong() -> None:
    m = attention()
    with open_session(m) as session:
        state = session.state()
        with pytest.raises(tw.UserError, match="without a run"):
            state.advance()
        with pytest.raises(tw.UserError, match=r"past.0.key: is kept by the state"):
            state.run({"x": floats(1, 1, 24), "past.0.key": floats(1, HEADS, 1, WIDTH)})
        with pytest.raises(tw.UserError, match="x: missing"):
            state.run({})
        with pytest.raises(tw.UserError, match=r"past.0.value: missing"):
            session.state({"past.0.key": floats(1, HEADS, 4, WIDTH)})
        with pytest.raises(tw.UserError, match="'nothing', which the model does not have"):
            session.state(pairs={"nothing": "past.0.key"})
        with pytest.raises(tw.UserError, match=r"'present.0.key' does not have the type of the input 'x'"):
            session.state(pairs={"present.0.key": "x"})
        state.step({"x": floats(1, 2, 24)})
        with pytest.raises(tw.UserError, match="do not fit each other"):
            state.step({"x": floats(2, 1, 24)})
    with (
        open_session(m, {**DIMS, "past": (1, 30)}) as session,
        pytest.raises(tw.UserError, match="the state is empty"),
    ):
        session.state().run({"x": floats(1, 1, 24)})


def test_a_pair_other_than_the_one_in_place_is_refused() -> None:
    with (
        open_session(attention()) as session,
        pytest.raises(tw.UserError, match=r"'past.0.key' is what the program appends to in place"),
    ):
        session.state(pairs={"present.0.value": "past.0.key"})
