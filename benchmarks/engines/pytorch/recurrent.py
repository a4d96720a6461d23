"""LSTM and GRU: PyTorch has its gates in another order."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .trace import is_known

torch: Any = import_module("torch")


def lstm(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    *,
    hidden_size: int,
    direction: str = "forward",
) -> tuple[Any, ...]:
    start = [_state(x, r, s) for s in (h, c)]
    return _run(torch.lstm, x, w, r, b, lengths, start, hidden_size, direction, (0, 2, 3, 1))


def gru(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    *,
    hidden_size: int,
    direction: str = "forward",
    linear_before_reset: int = 0,
) -> tuple[Any, ...]:
    if not linear_before_reset:
        raise LookupError("GRU whose reset comes before its MatMul has no translation to PyTorch")
    return _run(torch.gru, x, w, r, b, lengths, _state(x, r, h), hidden_size, direction, (1, 0, 2))


def _state(x: Any, r: Any, given: Any) -> Any:
    return torch.zeros(r.shape[0], x.shape[1], r.shape[2]) if given is None else given


def _run(
    compute: Any,
    x: Any,
    w: Any,
    r: Any,
    b: Any,
    lengths: Any,
    start: Any,
    hidden: int,
    direction: str,
    order: tuple[int, ...],
) -> tuple[Any, ...]:
    """All steps of all directions; `order` has the place in ONNX of each gate of PyTorch."""
    if lengths is not None or not all(map(is_known, (w, r, b))):
        raise LookupError("lengths, or weights that are no constants, have no translation to PyTorch")
    rows = torch.cat([torch.arange(g * hidden, (g + 1) * hidden) for g in order])
    weights: list[Any] = []
    for d in range(w.shape[0]):
        weights += [w[d][rows], r[d][rows]]
        if b is not None:
            weights += [part[rows] for part in b[d].split(len(order) * hidden)]
    flipped = direction == "reverse"
    x = torch.flip(x, [0]) if flipped else x
    both = direction == "bidirectional"
    found = compute(x, start, weights, b is not None, 1, 0.0, False, both, False)
    every = torch.flip(found[0], [0]) if flipped else found[0]
    y = every.reshape(x.shape[0], x.shape[1], w.shape[0], hidden).permute(0, 2, 1, 3)
    return (y, *(found[n] for n in range(1, 3 if compute is torch.lstm else 2)))
