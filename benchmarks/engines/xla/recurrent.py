"""LSTM and GRU, as loops over time. Their recurrent weights come transposed: a row for each element of the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from .arrays import Array, jnp

lax: Any = import_module("jax.lax")
nn: Any = import_module("jax.nn")

State = tuple[Any, ...]
Cell = Callable[[State, Any, Any, Any], State]  # state, gates of the input, recurrent weights, their bias


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
) -> tuple[Array, ...]:
    _check_alike(lengths)

    def cell(state: State, gates: Any, r: Any, b: Any) -> State:
        h, c = state
        i, o, f, new = jnp.split(gates + h @ r, 4, -1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(new)
        return nn.sigmoid(o) * jnp.tanh(c), c

    n = 4 * hidden_size
    biases = [(0, 0) if b is None else (b[d, :n] + b[d, n:], 0) for d in range(len(w))]
    return _all_steps(x, w, r, biases, (h, c), direction, cell)


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
) -> tuple[Array, ...]:
    _check_alike(lengths)
    n = hidden_size

    def cell(state: State, gates: Any, r: Any, b: Any) -> State:
        (h,) = state
        parts = h @ r + b if linear_before_reset else h @ r[:, : 2 * n] + b[: 2 * n]
        update = nn.sigmoid(gates[:, :n] + parts[:, :n])
        reset = nn.sigmoid(gates[:, n : 2 * n] + parts[:, n : 2 * n])
        last = reset * parts[:, 2 * n :] if linear_before_reset else (reset * h) @ r[:, 2 * n :] + b[2 * n :]
        new = jnp.tanh(gates[:, 2 * n :] + last)
        return ((1 - update) * new + update * h,)

    none = jnp.zeros(3 * n, x.dtype)
    biases = [(none, none) if b is None else (b[d, : 3 * n], b[d, 3 * n :]) for d in range(len(w))]
    return _all_steps(x, w, r, biases, (h,), direction, cell)


def _check_alike(lengths: Any) -> None:
    if lengths is not None:
        raise LookupError("sequences of different lengths have no translation to JAX")


def _all_steps(
    x: Any,
    w: Any,
    r: Any,
    biases: Sequence[tuple[Any, Any]],
    states: State,
    direction: str,
    cell: Cell,
) -> tuple[Array, ...]:
    """In each direction; what does not depend on the state is one MatMul before."""
    every: list[Any] = []
    last: list[State] = []
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    for d, reverse in enumerate(backwards):
        outside, inside = biases[d]
        gates = jnp.einsum("sbi,gi->sbg", x, w[d]) + outside
        start = tuple(jnp.zeros((x.shape[1], r.shape[1]), x.dtype) if s is None else s[d] for s in states)

        def step(state: State, gate: Any, r: Any = r[d], b: Any = inside) -> tuple[State, Any]:
            state = cell(state, gate, r, b)
            return state, state[0]

        end, outputs = lax.scan(step, start, gates, reverse=reverse)
        every.append(outputs)
        last.append(end)
    return jnp.stack(every, 1), *(jnp.stack(ends) for ends in zip(*last, strict=True))
