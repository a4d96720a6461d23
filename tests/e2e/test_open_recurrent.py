"""Recurrent networks whose sequences or batches are left open, in the interpreter and as native code."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import tilewright as tw
from tests.fuzz.open_models import OpenModel, feeds_at
from tests.onnx_cases import Array, check_outputs, run_onnxruntime
from tests.open_interp import OpenInterpreter
from tilewright.runtime.open_session import OpenSession
from tilewright.support.sizes import Dim, sym_int

STEPS, BATCH = Dim("steps", 1, 17), Dim("batch", 1, 5)
SIZES = ((17, 5), (1, 1), (16, 4), (7, 3), (17, 1), (1, 5), (2, 2))
FEATURES, HIDDEN = 6, 9
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


def layer(
    op: str, steps: int, batch: int, *, lengths: bool = False, states: bool = False, **attrs: Any
) -> ModelProto:
    """All states of a layer, and the last of each kind; `lengths` and `states`: these are inputs."""
    m = OpenModel(0)
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    x, rows = m.input(steps, batch, FEATURES), GATES[op] * HIDDEN
    kinds = 2 if op == "LSTM" else 1

    def weight(*shape: int) -> str:
        return m.constant(0.4 * m.rng.standard_normal(shape).astype(np.float32))

    inputs = [x, weight(directions, rows, FEATURES), weight(directions, rows, HIDDEN)]
    inputs += [weight(directions, 2 * rows), m.input(batch, dtype=np.int32) if lengths else ""]
    inputs += [m.input(directions, batch, HIDDEN) for _ in range(kinds)] if states else []
    return m.finish(*m.op(op, *inputs, outputs=1 + kinds, hidden_size=HIDDEN, **attrs))


def feeds_of(model: ModelProto, at: dict[str, int], rng: np.random.Generator) -> dict[str, Array]:
    feeds = feeds_at(model, at, rng)
    for name, a in feeds.items():
        if a.dtype == np.int32:
            feeds[name] = rng.integers(1, at["steps"] + 1, a.shape).astype(np.int32)
    return feeds


both = {"steps": sym_int(STEPS), "batch": sym_int(BATCH)}
LAYERS: dict[str, ModelProto] = {
    "RNN from the end": layer("RNN", both["steps"], 3, direction="reverse"),
    "GRU both ways": layer("GRU", both["steps"], both["batch"], direction="bidirectional"),
    "GRU, linear": layer("GRU", both["steps"], 1, linear_before_reset=1, states=True),
    "LSTM": layer("LSTM", both["steps"], both["batch"], states=True),
    "LSTM with lengths": layer("LSTM", both["steps"], both["batch"], lengths=True, direction="bidirectional"),
    "LSTM from the end of each": layer(
        "LSTM", both["steps"], both["batch"], lengths=True, direction="reverse"
    ),
    "LSTM of an open batch": layer("LSTM", 4, both["batch"], direction="reverse"),
}


def dims_of(model: ModelProto) -> dict[str, Dim]:
    names = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    return {d.name: d for d in (STEPS, BATCH) if d.name in names}


@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrence_runs_as_far_as_its_sizes(name: str) -> None:
    """One program for all sizes; what was there before it, beyond them, is not finite."""
    model, rng = LAYERS[name], np.random.default_rng(0)
    dims = dims_of(model)
    ranges = {d.name: (d.least, d.most) for d in dims.values()}
    with tw.load(model, dims=ranges, threads=2) as session:
        assert isinstance(session, OpenSession)
        for steps, batch in SIZES:
            bad = feeds_of(model, {d.name: d.most for d in dims.values()}, rng)
            session.run({k: np.full_like(a, np.nan) if a.dtype == np.float32 else a for k, a in bad.items()})
            feeds = feeds_of(model, {"steps": steps, "batch": batch}, rng)
            check_outputs(session.run(feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("name", LAYERS)
def test_the_interpreter_goes_as_far(name: str) -> None:
    model, rng = LAYERS[name], np.random.default_rng(1)
    dims = dims_of(model)
    interpreter = OpenInterpreter(model, dims)
    for steps, batch in SIZES:
        at = {"steps": steps, "batch": batch}
        feeds = feeds_of(model, at, rng)
        check_outputs(interpreter.run(feeds, at), run_onnxruntime(model, feeds))


def test_pieces_of_a_sequence_with_a_state_are_the_whole() -> None:
    model = layer("LSTM", both["steps"], both["batch"], states=True)
    x, h, c = (v.name for v in model.graph.input)
    y, _, last_c = (v.name for v in model.graph.output)
    whole = np.random.default_rng(2).standard_normal((17, 2, FEATURES)).astype(np.float32)
    zeros = np.zeros((1, 2, HIDDEN), np.float32)
    want = run_onnxruntime(model, {x: whole, h: zeros, c: zeros})
    with tw.load(model, dims={"steps": (1, 17), "batch": (1, 5)}) as session:
        assert isinstance(session, OpenSession)
        state = session.state()  # what is kept is found in the graph
        assert state.arrays.keys() <= {h, c}
        pieces = [state.step({x: part})[y].copy() for part in np.split(whole, [1, 2, 9])]
        check_outputs({y: np.concatenate(pieces), c: state.arrays[c]}, {y: want[y], c: want[last_c]})


def layers(order: Sequence[int]) -> ModelProto:
    """Two layers that take their first states from one input, and leave their last ones in this order."""
    m = OpenModel(0)
    x, states = m.input(both["steps"], both["batch"], HIDDEN), m.input(2, both["batch"], HIDDEN)
    left: list[str] = []
    for n in range(2):
        first = m.op("Slice", states, m.ints(n), m.ints(n + 1), m.ints(0))
        w, r = (
            m.constant(0.3 * m.rng.standard_normal((1, 3 * HIDDEN, HIDDEN)).astype(np.float32)) for _ in "wr"
        )
        every, last = m.op("GRU", x, w, r, "", "", first, outputs=2, hidden_size=HIDDEN)
        x = m.op("Squeeze", every, m.ints(1))
        left.append(last)
    return m.finish(x, m.op("Concat", *(left[n] for n in order), axis=0))


def test_states_of_several_layers_are_followed() -> None:
    model = layers((0, 1))
    x, states = (v.name for v in model.graph.input)
    y, last = (v.name for v in model.graph.output)
    whole = np.random.default_rng(3).standard_normal((9, 2, HIDDEN)).astype(np.float32)
    want = run_onnxruntime(model, {x: whole, states: np.zeros((2, 2, HIDDEN), np.float32)})
    dims = {"steps": (1, 17), "batch": (1, 5)}
    with tw.load(model, dims=dims) as session:
        assert isinstance(session, OpenSession)
        state = session.state()
        pieces = [state.step({x: part})[y].copy() for part in np.split(whole, [4])]
        check_outputs({y: np.concatenate(pieces), last: state.arrays[states]}, want)
    with tw.load(layers((1, 0)), dims=dims) as session, pytest.raises(tw.UserError, match="no output"):
        assert isinstance(session, OpenSession)
        session.state()
