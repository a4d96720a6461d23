"""Recurrences over sequences, kept whole: one ONNX node for each layer.

PyTorch orders the gates of an LSTM as input, forget, cell, output, and those of a GRU as reset, update, new; ONNX has
them as input, output, forget, cell, and as update, reset, new. Weights are reordered on the way, which is folded.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.frontend.torch.emitter import NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator

_GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


def _lstm(
    e: NodeEmitter,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[str, ...]:
    return _layers(
        "LSTM", {}, e, x, states, params, has_biases, layers, dropout * train, bidirectional, batch_first
    )


def _one_state(
    op: str,
    attrs: Mapping[str, Any],
    e: NodeEmitter,
    x: Tensor,
    state: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[str, ...]:
    return _layers(
        op, attrs, e, x, [state], params, has_biases, layers, dropout * train, bidirectional, batch_first
    )


def _layers(
    op: str,
    attrs: Mapping[str, Any],
    e: NodeEmitter,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[str, ...]:
    if dropout and layers > 1:
        raise UnsupportedOperator("a recurrence with dropout")
    if x.rank != 3:
        raise UnsupportedOperator("a recurrence without a batch")
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    if len(params) != layers * directions * each:
        raise UnsupportedOperator("a recurrence with projections")
    hidden = params[1].extent(1)
    gates = _GATES[op]
    sequence = e.op("Transpose", x, perm=[1, 0, 2]) if batch_first else x.name
    finals: list[list[str]] = [[] for _ in states]
    for layer in range(layers):
        first = layer * directions
        own = [params[(first + d) * each : (first + d + 1) * each] for d in range(directions)]

        def stacked(i: int, own: Sequence[Sequence[Tensor]] = own) -> str:
            rows = [_reordered(e, p[i], gates, hidden) for p in own]
            return e.op("Concat", *(e.op("Unsqueeze", r, e.integers(0)) for r in rows), axis=0)

        bias = e.op("Concat", stacked(2), stacked(3), axis=1) if has_biases else None
        initial = [
            e.op("Slice", s, e.integers(first), e.integers(first + directions), e.integers(0)) for s in states
        ]
        made = e.ops(
            1 + len(states),
            op,
            sequence,
            stacked(0),
            stacked(1),
            bias,
            None,
            *initial,
            hidden_size=hidden,
            direction="bidirectional" if bidirectional else "forward",
            **attrs,
        )
        # [time, direction, batch, hidden] to [time, batch, direction · hidden]
        moved = e.op("Transpose", made[0], perm=[0, 2, 1, 3])
        sequence = e.op("Reshape", moved, e.integers(0, 0, directions * hidden))
        for final, name in zip(finals, made[1:], strict=True):
            final.append(name)
    ends = [f[0] if len(f) == 1 else e.op("Concat", *f, axis=0) for f in finals]
    return (e.op("Transpose", sequence, perm=[1, 0, 2]) if batch_first else sequence), *ends


def _reordered(e: NodeEmitter, weight: Tensor, gates: Sequence[int], hidden: int) -> str:
    if len(gates) == 1:
        return weight.name
    parts = e.ops(len(gates), "Split", weight, e.integers(*[hidden] * len(gates)), axis=0)
    return e.op("Concat", *(parts[g] for g in gates), axis=0)


def _mkldnn_lstm(
    e: NodeEmitter,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor,
    b2: Tensor,
    h: Tensor,
    c: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden: int,
    layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[str | None, ...]:
    """One direction of one layer, as PyTorch hands it to oneDNN; states have no axis for layers."""
    if mode != 2 or layers != 1 or batch_first or batch_sizes:
        raise UnsupportedOperator("a recurrence of another kind")
    gates = _GATES["LSTM"]
    unit = e.integers(0)

    def one(name: str) -> str:
        return e.op("Unsqueeze", name, unit)

    bias = None
    if has_biases:
        bias = one(e.op("Concat", *(_reordered(e, v, gates, hidden) for v in (b, b2)), axis=0))
    states = [s.name if s.rank == 3 else one(s.name) for s in (h, c)]
    made = e.ops(
        3,
        "LSTM",
        x,
        one(_reordered(e, w, gates, hidden)),
        one(_reordered(e, r, gates, hidden)),
        bias,
        None,
        *states,
        hidden_size=hidden,
        direction="reverse" if reverse else "forward",
    )
    ends = [n if s.rank == 3 else e.op("Squeeze", n, unit) for n, s in zip(made[1:], (h, c), strict=True)]
    return e.op("Squeeze", made[0], e.integers(1)), *ends, None


_GRU = partial(_one_state, "GRU", {"linear_before_reset": 1})

ENTRIES: Mapping[str, Callable[..., Any]] = {
    "aten.lstm.input": _lstm,
    "aten.gru.input": _GRU,
    "aten.rnn_tanh.input": partial(_one_state, "RNN", {}),
    "aten.mkldnn_rnn_layer.default": _mkldnn_lstm,
}
