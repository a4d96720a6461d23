"""Models with recurrent nodes, against onnxruntime; and what is compiled for them."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import tilewright as tw
from tests.onnx_cases import Array, Model, check_model, check_outputs, run_onnxruntime
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.passes import prepare
from tilewright.graph.passes.lower import lower_graph
from tilewright.tir.stmt import Store, blocks


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


def lstm_weights(m: Model, directions: int, inputs: int, hidden: int) -> tuple[str, str, str]:
    w, r = m.weight(directions, 4 * hidden, inputs), m.weight(directions, 4 * hidden, hidden)
    return w, r, m.weight(directions, 8 * hidden)


def tagger() -> ModelProto:
    """As exported: batches in front, two layers that read both ways, and a layer for the last state."""
    batch, steps, inputs, hidden = 3, 6, 10, 12
    m = Model()
    x, lengths = m.input(batch, steps, inputs), m.input(batch, dtype=np.int32)
    y = m.op("Transpose", x, perm=[1, 0, 2])
    for width in (inputs, 2 * hidden):
        w, r, b = lstm_weights(m, 2, width, hidden)
        y, last, cell = m.op(
            "LSTM", y, w, r, b, lengths, outputs=3, hidden_size=hidden, direction="bidirectional"
        )
        y = m.op("Reshape", m.op("Transpose", y, perm=[0, 2, 1, 3]), m.ints(steps, batch, 2 * hidden))
    w, r, b = m.weight(1, 3 * hidden, 2 * hidden), m.weight(1, 3 * hidden, hidden), m.weight(1, 6 * hidden)
    _, state = m.op("GRU", y, w, r, b, outputs=2, hidden_size=hidden, linear_before_reset=1)
    logits = m.op("MatMul", m.op("Squeeze", state, m.ints(0)), m.weight(hidden, 5))
    return m.finish(m.op("Transpose", m.op("Relu", y), perm=[1, 0, 2]), logits, last, cell)


def test_a_model_as_it_is_exported() -> None:
    rng = np.random.default_rng(3)
    feeds: dict[str, Array] = {
        "input_1": rng.standard_normal((3, 6, 10)).astype(np.float32),
        "input_2": np.array([6, 1, 4], np.int32),
    }
    check_model(tagger(), feeds=feeds)


def test_directions_run_on_two_workers() -> None:
    m = Model()
    w, r, b = lstm_weights(m, 2, 16, 64)
    y = m.op("LSTM", m.input(30, 2, 16), w, r, b, hidden_size=64, direction="bidirectional")
    check_model(m.finish(y))


@pytest.mark.parametrize(("op", "gates", "attrs"), [("LSTM", 4, {}), ("GRU", 3, {"linear_before_reset": 1})])
def test_one_sequence_runs_on_any_number_of_workers(op: str, gates: int, attrs: dict[str, int]) -> None:
    """Workers share the columns of each step: the same bits, and those of onnxruntime nearly."""
    m = Model()
    hidden = 128
    w, r, b = (
        m.weight(1, gates * hidden, 16),
        m.weight(1, gates * hidden, hidden),
        m.weight(1, 2 * gates * hidden),
    )
    x = m.input(12, 1, 16)
    model = m.finish(*m.op(op, x, w, r, b, outputs=2, hidden_size=hidden, **attrs))
    check_model(model)
    feeds = {x: np.random.default_rng(1).standard_normal((12, 1, 16)).astype(np.float32)}
    found: list[bytes] = []
    for threads in (1, 2, 3):
        with tw.load(model, threads=threads) as session:
            found += [b"".join(y.tobytes() for y in session.run(feeds).values()) for _ in range(20)]
    assert len(set(found)) == 1


def test_weights_that_are_computed() -> None:
    m = Model()
    y = m.op("RNN", m.input(4, 2, 3), m.op("Tanh", m.input(1, 5, 3)), m.input(1, 5, 5), hidden_size=5)
    check_model(m.finish(y))


def test_any_number_of_steps() -> None:
    m = Model()
    w, r, b = lstm_weights(m, 1, 3, 5)
    model = m.finish(m.op("LSTM", m.input(4, 2, 3), w, r, b, hidden_size=5))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "steps"
    session = tw.load(model, threads=1)
    for steps in (4, 1, 7):
        feeds = {
            model.graph.input[0].name: np.random.default_rng(steps)
            .standard_normal((steps, 2, 3))
            .astype(np.float32)
        }
        check_outputs(session.run(feeds), run_onnxruntime(model, feeds))


def test_outputs_that_are_left_out_are_not_computed() -> None:
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["", "last"], hidden_size=5)]
    shapes = {"x": [4, 2, 3], "w": [1, 20, 3], "r": [1, 20, 5]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("last", TensorProto.FLOAT, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (func,) = lower_graph(prepare(load_graph(model))).funcs
    last = [b for b in blocks(func.body) if isinstance(b.body, Store) and b.body.buffer in func.outputs]
    assert [b.name for b in last] == ["last__lstm0_1"]
    assert "last__lstm0" not in {b.name for b in blocks(func.body)}
    check_model(model)
