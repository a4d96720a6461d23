"""RNN, GRU and LSTM: what a step makes of its input and of the state before it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ir.expr import Buffer, Expr
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.recurrent import Arrays, Extents, Recurrence, Recurrent
from tilewright.ops.opdef import OnnxNode, Sample
from tilewright.support.arrays import Array


@dataclass(frozen=True, slots=True)
class RNN(Recurrent):
    """h = f(X Wᵀ + h Rᵀ + biases)"""

    onnx = ("RNN",)
    gates = 1
    usual = ("Tanh",)

    def blocks(self, r: Recurrence) -> tuple[Buffer, ...]:
        x = r.projection(lambda d, g: r.bias(d, g) + r.recurrent_bias(d, g))
        weights, h = r.weights("weights", range(1)), r.state("h")
        with r.steps():
            total = r.product("sum", h, weights, lambda d, t, n, g: x[d, r.time(d, t, n), n, g])
            r.step("h", h, lambda d, t, n, j: r.act(0, d, total[d, t, n, j]))
        return (h,)

    def advance(self, d: int, x: Array, states: Sequence[Array], of: Arrays) -> tuple[Array, ...]:
        return (self.act(0, d, x + states[0] @ of["R"][d].T + sum(self.biases(d, of))),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from _shared_samples(cls, rng)
        yield _small(
            cls,
            rng,
            direction="bidirectional",
            activations=["LeakyRelu", "Affine"],
            activation_alpha=[0.5, 0.75],
            activation_beta=[0.25],
        )


@dataclass(frozen=True, slots=True)
class GRU(Recurrent):
    """z and r say how much of the state is kept, and how much of it the new one sees:

        z, r = f(X Wᵀ + h Rᵀ + biases)
        h = (1 - z) · g(X Wᵀ + (r · h) Rᵀ + biases) + z · h

    `linear_before_reset`: r is multiplied with the result of the MatMul with R and its bias instead of h.
    """

    onnx = ("GRU",)
    gates = 3
    usual = ("Sigmoid", "Tanh")
    linear_before_reset: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        linear = bool(node.integer("linear_before_reset", 0))
        return cls(*cls.common(node), linear_before_reset=linear), cls.taken(node)

    def blocks(self, r: Recurrence) -> tuple[Buffer, ...]:
        return self._linear_blocks(r) if self.linear_before_reset else self._blocks(r)

    def _blocks(self, r: Recurrence) -> tuple[Buffer, ...]:
        x = r.projection(lambda d, g: r.bias(d, g) + r.recurrent_bias(d, g))
        size, h = r.hidden, r.state("h")
        gate_weights, new_weights = r.weights("gate_weights", range(2)), r.weights("new_weights", range(2, 3))
        with r.steps():
            gates = r.product("gates", h, gate_weights, lambda d, t, n, g: x[d, r.time(d, t, n), n, g])
            seen = r.block(
                "seen",
                lambda d, t, n, j: r.act(0, d, gates[d, t, n, j + size]) * h[d, t, n, j],
            )
            new = r.product(
                "new", seen, new_weights, lambda d, t, n, g: x[d, r.time(d, t, n), n, g + 2 * size]
            )

            def element(d: Expr, t: Expr, n: Expr, j: Expr) -> Expr:
                z = r.act(0, d, gates[d, t, n, j])
                return (1 - z) * r.act(1, d, new[d, t, n, j]) + z * h[d, t, n, j]

            r.step("h", h, element)
        return (h,)

    def _linear_blocks(self, r: Recurrence) -> tuple[Buffer, ...]:
        x = r.projection(r.bias)
        size, h, weights = r.hidden, r.state("h"), r.weights("weights", range(3))
        with r.steps():
            gates = r.product(
                "gates",
                h,
                weights,
                lambda d, t, n, g: r.recurrent_bias(d, g) if "B" in r.of else None,
            )

            def element(d: Expr, t: Expr, n: Expr, j: Expr) -> Expr:
                time = r.time(d, t, n)
                z, reset = (
                    r.act(0, d, x[d, time, n, j + k * size] + gates[d, t, n, j + k * size]) for k in range(2)
                )
                new = x[d, time, n, j + 2 * size] + reset * gates[d, t, n, j + 2 * size]
                return (1 - z) * r.act(1, d, new) + z * h[d, t, n, j]

            r.step("h", h, element)
        return (h,)

    def advance(self, d: int, x: Array, states: Sequence[Array], of: Arrays) -> tuple[Array, ...]:
        (h,), (bias, recurrent_bias) = states, self.biases(d, of)
        xz, xr, xn = np.split(x + bias, 3, axis=1)
        rz, rr, rn = np.split(of["R"][d], 3)
        bz, br, bn = np.split(recurrent_bias, 3)
        z, reset = self.act(0, d, xz + h @ rz.T + bz), self.act(0, d, xr + h @ rr.T + br)
        seen = reset * (h @ rn.T + bn) if self.linear_before_reset else (reset * h) @ rn.T + bn
        return ((1 - z) * self.act(1, d, xn + seen) + z * h,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from _shared_samples(cls, rng)
        yield _small(cls, rng, linear_before_reset=1)
        yield _small(cls, rng, linear_before_reset=1, leave_out=("B", "initial_h"))
        yield _small(cls, rng, linear_before_reset=1, direction="bidirectional", lengths=[1, 3])
        yield _small(
            cls,
            rng,
            activations=["HardSigmoid", "ScaledTanh"],
            activation_alpha=[0.3, 0.9],
            activation_beta=[0.4, 0.6],
        )


@dataclass(frozen=True, slots=True)
class LSTM(Recurrent):
    """A cell c is kept beside the output h:

        i, o, f = f(X Wᵀ + h Rᵀ + biases + P · c)        o sees the new c
        c = f · c + i · g(X Wᵀ + h Rᵀ + biases)
        h = o · h(c)

    `input_forget`: f is 1 - i. As in other engines, c is not clipped before its function.
    """

    onnx = ("LSTM",)
    operands = (*Recurrent.operands, "initial_c", "P")
    gates = 4
    states = ("h", "c")
    usual = ("Sigmoid", "Tanh", "Tanh")
    input_forget: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        coupled = bool(node.integer("input_forget", 0))
        return cls(*cls.common(node), input_forget=coupled), cls.taken(node)

    def blocks(self, r: Recurrence) -> tuple[Buffer, ...]:
        x = r.projection(lambda d, g: r.bias(d, g) + r.recurrent_bias(d, g))
        size, weights = r.hidden, r.weights("weights", range(4))
        h, c = r.state("h"), r.state("c")
        with r.steps():
            gates = r.product("gates", h, weights, lambda d, t, n, g: x[d, r.time(d, t, n), n, g])

            def gate(which: int, peephole: int, seen: int, d: Expr, t: Expr, n: Expr, j: Expr) -> Expr:
                """A gate that sees the cell before the step, or the one after it."""
                value: Expr = gates[d, t, n, j + which * size]
                if "P" in r.of:
                    value = value + r.load("P", d, j + peephole * size) * c[d, t + seen, n, j]
                return r.act(0, d, value)

            def cell(d: Expr, t: Expr, n: Expr, j: Expr) -> Expr:
                new = r.act(1, d, gates[d, t, n, j + 3 * size])
                taken = gate(0, 0, 0, d, t, n, j)
                kept = 1 - taken if self.input_forget else gate(2, 2, 0, d, t, n, j)
                return kept * c[d, t, n, j] + taken * new

            def output(d: Expr, t: Expr, n: Expr, j: Expr) -> Expr:
                return gate(1, 1, 1, d, t, n, j) * r.function(2, d, c[d, t + 1, n, j])

            r.step("c", c, cell)
            r.step("h", h, output)
        return h, c

    def advance(self, d: int, x: Array, states: Sequence[Array], of: Arrays) -> tuple[Array, ...]:
        h, c = states
        i, o, f, new = np.split(x + h @ of["R"][d].T + sum(self.biases(d, of)), 4, axis=1)
        pi, po, pf = np.split(of["P"][d], 3) if "P" in of else (0, 0, 0)
        taken = self.act(0, d, i + pi * c)
        kept = 1 - taken if self.input_forget else self.act(0, d, f + pf * c)
        cell = kept * c + taken * self.act(1, d, new)
        return self.act(0, d, o + po * cell) * self.functions[d][2].array(cell), cell

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from _shared_samples(cls, rng)
        yield _small(cls, rng, peepholes=True, direction="bidirectional", clip=0.4)
        yield _small(cls, rng, peepholes=True, input_forget=1)
        yield _small(
            cls,
            rng,
            direction="bidirectional",
            activations=["HardSigmoid", "Softsign", "Relu", "Sigmoid", "ScaledTanh", "Elu"],
            activation_alpha=[0.3, 0.8, 0.5],
            activation_beta=[0.4, 0.6],
        )
        yield _small(
            cls,
            rng,
            activations=["Softplus", "ThresholdedRelu", "Affine"],
            activation_alpha=[0.5, 0.7],
            activation_beta=[0.1],
        )


# -------------------------------------------------------------------------------------------------------- samples


def _arrays(cls: type[Recurrent], rng: np.random.Generator, e: Extents) -> dict[str, Array]:
    """All inputs; small, so that cells do not saturate."""
    state = (e.directions, e.batch, e.hidden)
    rows = cls.gates * e.hidden
    shapes = {
        "X": (e.steps, e.batch, e.inputs),
        "W": (e.directions, rows, e.inputs),
        "R": (e.directions, rows, e.hidden),
        "B": (e.directions, 2 * rows),
        "initial_h": state,
        "initial_c": state,
        "P": (e.directions, 3 * e.hidden),
    }
    return {name: normal(rng, *shape) * np.float32(0.5) for name, shape in shapes.items()}


def _small(
    cls: type[Recurrent],
    rng: np.random.Generator,
    leave_out: Sequence[str] = (),
    peepholes: bool = False,
    lengths: Sequence[int] | None = None,
    hidden: int = 4,
    steps: int = 3,
    batch: int = 2,
    runtime: Sequence[int] = (),
    **attrs: Any,
) -> Sample:
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    of: dict[str, Array | None] = {**_arrays(cls, rng, Extents(steps, batch, 3, hidden, directions))}
    of["sequence_lens"] = None if lengths is None else np.array(lengths, np.int32)
    for name in (*leave_out, *(() if peepholes else ("P",))):
        of[name] = None
    attrs.setdefault("outputs", 1 + len(cls.states))
    return cls.sample(*(of[name] for name in cls.operands), runtime=runtime, hidden_size=hidden, **attrs)


def _shared_samples(cls: type[Recurrent], rng: np.random.Generator) -> Iterable[Sample]:
    """What all cells are tried with."""
    at = cls.operands.index("sequence_lens")
    yield _small(cls, rng, hidden=5, outputs=1, lengths=[3, 3])
    yield _small(cls, rng, leave_out=("B", "initial_h", "initial_c"), clip=0.3)
    yield _small(cls, rng, steps=1, batch=1, direction="reverse")
    yield _small(cls, rng, lengths=[0, 2])
    yield _small(cls, rng, lengths=[1, 3], direction="reverse", runtime=[at])
    yield _small(cls, rng, lengths=[1, 3], direction="bidirectional", runtime=[at])
    yield _special(_small(cls, rng, clip=9.0))
    # onnxruntime has neither other layouts nor other element types.
    yield _transposed(_small(cls, rng, direction="bidirectional", lengths=[2, 3]))
    for dtype in (np.float16, np.float64):
        whole = _small(cls, rng)
        yield Sample(whole.op, tuple(x.astype(dtype) for x in whole.inputs))


def _transposed(sample: Sample) -> Sample:
    """The sample with the batch in front."""
    assert sample.onnx is not None and isinstance(sample.op, Recurrent)
    case, cls = sample.onnx, type(sample.op)
    inputs = list(case.inputs)
    for i, x in enumerate(inputs):
        if x is not None and (i == 0 or cls.operands[i].startswith("initial")):
            inputs[i] = np.ascontiguousarray(x.swapaxes(0, 1))
    made = cls.sample(*inputs, outputs=case.outputs, layout=1, **case.attrs)
    return Sample(made.op, made.inputs)


def _special(sample: Sample) -> Sample:
    """The sample with NaN in one sequence and an infinity in another."""
    x = sample.inputs[0].copy()
    x[1, 0, 0], x[0, 1, 1] = np.nan, np.inf
    return Sample(sample.op, (x, *sample.inputs[1:]))
