"""Rules of random models whose loops have an order: recurrences, sorts, scans. What stands next to them is scheduled
around loops that no other rule makes.
"""

from collections.abc import Callable

import numpy as np
from onnx import helper

from tests.fuzz.random_models import Generator, Value

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(g: Generator) -> bool:
    """A layer over [steps, batch, features]; what it keeps of all steps, or of the last."""
    x = g.value(min_rank=3)
    if x is None:
        return False
    if x.rank > 3:
        x = _as_sequence(g, x)
    steps, batch, features = x.shape
    if steps > 24 or features > 600:
        return False
    op, hidden = g.pick(("RNN", "GRU", "LSTM")), g.pick((1, 3, 8, 16, 20))
    kind = g.pick(("forward", "forward", "reverse", "bidirectional"))
    directions = 2 if kind == "bidirectional" else 1
    if steps * batch * directions * hidden > g.max_size:
        return False
    rows = _GATES[op] * hidden
    inputs = [
        x.name,
        g.scaled(features, directions, rows, features),
        g.scaled(hidden, directions, rows, hidden),
    ]
    if g.chance(0.6):
        inputs.append(g.scaled(4, directions, 2 * rows))
    extra = {"linear_before_reset": 1} if op == "GRU" and g.chance(0.5) else {}
    names = g.m.op(op, *inputs, outputs=2, hidden_size=hidden, direction=kind, **extra)
    every, last = (
        Value(names[0], (steps, directions, batch, hidden)),
        Value(names[1], (directions, batch, hidden)),
    )
    for made in g.pick(((every,), (every,), (last,), (every, last))):
        g.keep(made, [x])
    return True


def _as_sequence(g: Generator, x: Value) -> Value:
    """As networks turn what their convolutions make into a sequence: columns of an image, or channels."""
    first = g.pick((0, 1))
    shape = (x.shape[0], x.shape[1], x.size // (x.shape[0] * x.shape[1]))
    flat = g.add(shape, "Reshape", [x, g.m.ints(*shape)])
    perm = [1, 0, 2] if first else [2, 0, 1]
    return g.add([shape[p] for p in perm], "Transpose", [flat], perm=perm)


def largest(g: Generator) -> bool:
    """The largest or smallest along an axis, in order. Where they are is not kept: that may change by rounding."""
    x = g.value(min_rank=1)
    if x is None:
        return False
    axis = g.axis(x)
    extent = x.shape[axis]
    k = extent if g.chance(0.3) else int(g.rng.integers(1, extent + 1))
    names = g.m.op(
        "TopK", x.name, g.m.ints(k), outputs=2, axis=g.spelled(axis, x.rank), largest=int(g.chance(0.6))
    )
    g.keep(Value(names[0], (*x.shape[:axis], k, *x.shape[axis + 1 :])), [x])
    return True


def scan(g: Generator) -> bool:
    """A running mean along the first axis, by a body of its own."""
    x = g.value(min_rank=2, max_rank=4)
    if x is None or x.shape[0] > 12:
        return False
    element = helper.np_dtype_to_tensor_dtype(g.dtype)
    shape = list(x.shape[1:])
    kept, now = (helper.make_tensor_value_info(n, element, shape) for n in ("kept", "now"))
    after, seen = (helper.make_tensor_value_info(n, element, shape) for n in ("after", "seen"))
    half = helper.make_tensor("half", element, (), [0.5])
    body = helper.make_graph(
        [
            helper.make_node("Add", ["kept", "now"], ["both"]),
            helper.make_node("Mul", ["both", "half"], ["after"]),
            helper.make_node(g.pick(("Identity", "Tanh")), ["after"], ["seen"]),
        ],
        "body",
        [kept, now],
        [after, seen],
        [half],
    )
    last, every = g.m.op("Scan", g.floats(*shape), x.name, outputs=2, body=body, num_scan_inputs=1)
    g.keep(Value(every, x.shape), [x])
    if g.chance(0.4):
        g.keep(Value(last, x.shape[1:]), [x])
    return True


def scatter(g: Generator) -> bool:
    """Rows that are replaced, or added to."""
    x = g.value(min_rank=2, max_rank=4)
    if x is None:
        return False
    rows = int(g.rng.integers(1, x.shape[0] + 1))
    places = g.rng.permutation(x.shape[0])[:rows].reshape(rows, 1)
    kind = {"reduction": "add"} if g.chance(0.4) else {}
    inputs = [x, g.m.constant(places, np.int64), g.floats(rows, *x.shape[1:])]
    g.add(x.shape, "ScatterND", inputs, **kind)
    return True


ORDERED: tuple[Callable[[Generator], bool], ...] = (recurrent, largest, scan, scatter)
