"""What recurrent networks have in common: a state that goes through a sequence, step by step.

    x[d, t, n, g] = Σ X[t, n, k] · W[d, g, k] + biases         for all times at once: one contraction
    for d, t:                                                  directions apart, steps in order
        gates[n, g] = Σ h[d, t, n, k] · R[d, g, k] + x[d, time, n, g]
        h[d, t + 1, n, j] = what the cell makes of gates and h[d, t, n, j]

States are kept for all steps: number 0 is the initial one, number t + 1 what step t has made. The number of a step is
the time if the direction is forward, and counts from the end of each sequence if it is backward. So the outputs are
reads of `h`, and one that nobody needs costs nothing. A sequence that is over goes on in `h` without being read.

The gates of a cell follow each other in W, R and B. Half precision is computed in f32 and rounded at the end.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias

import numpy as np

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, as_index, cast, const, maximum, minimum, select
from tilewright.ops.axes import FLOATS, accumulator, narrow
from tilewright.ops.core.elementwise import Pointwise
from tilewright.ops.core.recurrent_activations import functions
from tilewright.ops.opdef import Kind, OnnxNode, Op, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.stmt import Store

Arrays: TypeAlias = Mapping[str, Array]
Element: TypeAlias = Callable[
    [Expr, Expr, Expr, Expr], Expr
]  # of direction, step, place in the batch, and the last

# By the name that ONNX has for it: for each direction, whether it starts at the end.
_DIRECTIONS: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}


@dataclass(frozen=True, slots=True)
class Extents:
    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: int


@dataclass(frozen=True, slots=True)
class Recurrent(Op):
    """`given` names the inputs that there are. The outputs are all states, and the last of each kind."""

    kind = Kind.CONTRACTION
    operands: ClassVar[tuple[str, ...]] = ("X", "W", "R", "B", "sequence_lens", "initial_h")
    gates: ClassVar[int]
    states: ClassVar[tuple[str, ...]] = ("h",)
    usual: ClassVar[tuple[str, ...]]  # the functions of a direction, if none are given
    given: tuple[str, ...]
    backward: tuple[bool, ...]  # of each direction
    functions: tuple[tuple[Pointwise, ...], ...]  # of each direction
    clip: float | None = None
    batch_first: bool = False
    outputs: int = 1

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(*cls.common(node)), cls.taken(node)

    @classmethod
    def taken(cls, node: OnnxNode) -> tuple[int, ...]:
        """The inputs that are there and mean something: lengths need not be said if they are all the same."""
        at = cls.operands.index("sequence_lens")
        lengths = node.constant(at) if node.has(at) else None
        full = lengths is not None and bool((lengths == node.input(0).shape[node.integer("layout", 0)]).all())
        return tuple(i for i in node.present if not (full and i == at))

    @classmethod
    def common(
        cls, node: OnnxNode
    ) -> tuple[tuple[str, ...], tuple[bool, ...], tuple[tuple[Pointwise, ...], ...], float | None, bool, int]:
        """The fields that all cells have."""
        for i in range(3):
            if node.input(i).rank != 3:
                raise UserError(f"{cls.operands[i]} has {node.input(i).rank} axes instead of 3")
        direction = node.text("direction", "forward")
        if direction not in _DIRECTIONS:
            raise UserError(f"the direction {direction!r} is none of {', '.join(_DIRECTIONS)}")
        layout = node.integer("layout", 0)
        if layout not in (0, 1):
            raise UserError(f"the layout {layout} is neither 0 nor 1")
        hidden = node.input(2).shape[2]
        if node.integer("hidden_size", hidden) != hidden:
            raise UserError(f"hidden_size is {node.integer('hidden_size', hidden)}, but R is for {hidden}")
        if node.outputs < 1:
            raise UserError("the node has no output")
        backward = _DIRECTIONS[direction]
        names = node.attrs.get("activations") or cls.usual * len(backward)
        if len(names) != len(cls.usual) * len(backward):
            raise UserError(
                f"{len(names)} activations are given, but a {direction} {node.op_type} has "
                f"{len(cls.usual) * len(backward)}"
            )
        every = functions(
            names, node.attrs.get("activation_alpha", ()), node.attrs.get("activation_beta", ())
        )
        apart = tuple(every[i : i + len(cls.usual)] for i in range(0, len(every), len(cls.usual)))
        clip = node.real("clip", 0.0) if "clip" in node.attrs else None
        if clip is not None and not clip >= 0:
            raise UserError(f"the clip threshold {clip} is negative")
        given = tuple(cls.operands[i] for i in cls.taken(node))
        return given, backward, apart, clip, bool(layout), node.outputs

    # ------------------------------------------------------------------------------------------------------- types

    def extents(self, x: Sequence[int], r: Sequence[int]) -> Extents:
        """From the shapes of X and R."""
        batch, steps = (x[0], x[1]) if self.batch_first else (x[1], x[0])
        return Extents(steps, batch, x[2], r[2], len(self.backward))

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if len(inputs) != len(self.given):
            raise self.misfit(inputs, f"takes {', '.join(self.given)}")
        of = dict(zip(self.given, inputs, strict=True))
        x = of["X"]
        for name, t in of.items():
            if t.dtype is not (DType.I32 if name == "sequence_lens" else x.dtype) or x.dtype not in FLOATS:
                raise self.misfit(inputs, f"{name} has the wrong element type")
        if x.rank != 3 or of["R"].rank != 3:
            raise self.misfit(inputs, "X and R have 3 axes")
        e = self.extents(x.shape, of["R"].shape)
        if 0 in (e.steps, e.inputs, e.hidden):
            raise self.misfit(inputs, "there are no steps, or nothing in them")
        for name, shape in self.shapes(e).items():
            if name in of and of[name].shape != shape:
                raise self.misfit(inputs, f"{name} should have the shape {list(shape)}")
        every, last = (e.steps, e.directions, e.batch, e.hidden), self._state(e)
        if self.batch_first:
            every = (e.batch, e.steps, e.directions, e.hidden)
        shapes = (every, *(last for _ in self.states))[: self.outputs]
        if len(shapes) < self.outputs:
            raise self.misfit(inputs, f"has no {self.outputs} outputs")
        return tuple(TensorType(x.dtype, s) for s in shapes)

    def shapes(self, e: Extents) -> dict[str, tuple[int, ...]]:
        """Of all inputs but X."""
        rows = self.gates * e.hidden
        return {
            "W": (e.directions, rows, e.inputs),
            "R": (e.directions, rows, e.hidden),
            "B": (e.directions, 2 * rows),
            "sequence_lens": (e.batch,),
            "P": (e.directions, 3 * e.hidden),
            **{f"initial_{s}": self._state(e) for s in self.states},
        }

    def _state(self, e: Extents) -> tuple[int, ...]:
        lead = (e.batch, e.directions) if self.batch_first else (e.directions, e.batch)
        return (*lead, e.hidden)

    # ------------------------------------------------------------------------------------------------------ blocks

    @abstractmethod
    def blocks(self, r: "Recurrence") -> tuple[Buffer, ...]:
        """All states of each kind, [direction, number, batch, hidden]."""

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        r = Recurrence(self, b, dict(zip(self.given, inputs, strict=True)), name)
        states = self.blocks(r)
        every, *last = self.infer([TensorType(x.dtype, x.shape) for x in inputs])
        made = [r.all_states(name, states[0], every)]
        for n, (state, out) in enumerate(zip(states, last, strict=False), 1):
            made.append(r.last_state(f"{name}_{n}", state, out))
        return tuple(made)

    # --------------------------------------------------------------------------------------------------- reference

    @abstractmethod
    def advance(self, d: int, x: Array, states: Sequence[Array], of: Arrays) -> tuple[Array, ...]:
        """The states [batch, hidden] after a step of direction `d` whose input times W is `x`."""

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        of = {name: x.astype(np.float64) for name, x in zip(self.given, inputs, strict=True)}
        e = self.extents(inputs[0].shape, of["R"].shape)
        if self.batch_first:
            of = {n: a.swapaxes(0, 1) if n == "X" or n.startswith("initial") else a for n, a in of.items()}
        lengths = np.clip(of.get("sequence_lens", np.full(e.batch, e.steps)).astype(np.int64), 0, e.steps)
        every = np.zeros((e.steps, e.directions, e.batch, e.hidden))
        last = [
            of.get(f"initial_{s}", np.zeros((e.directions, e.batch, e.hidden))).copy() for s in self.states
        ]
        with np.errstate(all="ignore"):
            for d, backward in enumerate(self.backward):
                for n in range(e.batch):
                    times = range(int(lengths[n]))
                    for t in reversed(times) if backward else times:
                        x = of["X"][t, n : n + 1] @ of["W"][d].T
                        new = self.advance(d, x, [s[d, n : n + 1] for s in last], of)
                        for s, value in zip(last, new, strict=True):
                            s[d, n] = value[0]
                        every[t, d, n] = last[0][d, n]
                    if not times:
                        for s in last:
                            s[d, n] = 0
        if self.batch_first:
            every, last = every.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in last]
        dtype = DType.of(inputs[0].dtype)
        return tuple(narrow(a, dtype) for a in (every, *last)[: self.outputs])

    def act(self, which: int, d: int, x: Array) -> Array:
        clipped = x if self.clip is None else np.clip(x, -self.clip, self.clip)
        return self.functions[d][which].array(clipped)

    def biases(self, d: int, of: Arrays) -> tuple[Array, Array]:
        """Those that are added to the MatMuls with W and with R."""
        rows = of["W"].shape[1]
        both = of["B"][d] if "B" in of else np.zeros(2 * rows)
        return both[:rows], both[rows:]


class Recurrence:
    """The blocks of one node. Indices are d: direction, t: step, n: place in the batch, g: gate and hidden, j: hidden,
    k: what is summed over.
    """

    def __init__(self, op: Recurrent, b: FuncBuilder, of: Mapping[str, Buffer], name: str) -> None:
        self.op, self.b, self.of, self.name = op, b, of, name
        self.wide = accumulator(of["X"].dtype)
        self.e = op.extents(of["X"].shape, of["R"].shape)

    @property
    def hidden(self) -> int:
        return self.e.hidden

    # ------------------------------------------------------------------------------------------------ elements

    def load(self, name: str, *at: Expr | int) -> Expr:
        return cast(self.wide, self.of[name][at])

    def initial(self, name: str, d: Expr, n: Expr, j: Expr) -> Expr:
        if name not in self.of:
            return const(0, self.wide)
        return self.load(name, n, d, j) if self.op.batch_first else self.load(name, d, n, j)

    def act(self, which: int, d: Expr, x: Expr) -> Expr:
        """A function of a gate, whose input is clipped."""
        clip = self.op.clip
        return self.function(which, d, x if clip is None else minimum(maximum(x, -clip), clip))

    def function(self, which: int, d: Expr, x: Expr) -> Expr:
        """The function number `which` of direction `d`."""
        first, *others = (f[which] for f in self.op.functions)
        value = first.scalar(x)
        if any(f != first for f in others):
            value = select(d < 1, value, others[0].scalar(x))
        return value

    def bias(self, d: Expr, g: Expr) -> Expr:
        """What is added to the MatMul with W."""
        return self.load("B", d, g)

    def recurrent_bias(self, d: Expr, g: Expr) -> Expr:
        return self.load("B", d, g + self.op.gates * self.hidden)

    def time(self, d: Expr, t: Expr, n: Expr) -> Expr:
        """The time of step `t`, and also the step of time `t`."""
        if not any(self.op.backward):
            return t
        length = self._length(n)
        back = as_index(self.e.steps) - 1 - t if length is None else select(t < length, length - 1 - t, t)
        return back if all(self.op.backward) else select(d < 1, t, back)

    def _length(self, n: Expr) -> Expr | None:
        if "sequence_lens" not in self.of:
            return None
        return minimum(maximum(cast(INDEX, self.of["sequence_lens"][n]), 0), self.e.steps)

    # -------------------------------------------------------------------------------------------------- blocks

    def projection(self, bias: Callable[[Expr, Expr], Expr]) -> Buffer:
        """X times W, [direction, time, batch, gate and hidden]; with the bias if there is one."""
        e, x, w = self.e, self.of["X"], self.of["W"]
        shape = (e.directions, e.steps, e.batch, self.op.gates * e.hidden)

        def product(d: Expr, t: Expr, n: Expr, g: Expr, k: Expr) -> tuple[Expr, Expr]:
            taken = x[n, t, k] if self.op.batch_first else x[t, n, k]
            return cast(self.wide, taken), cast(self.wide, w[d, g, k])

        total = self.b.reduce(f"{self.name}_matmul", shape, (e.inputs,), product)
        if "B" not in self.of:
            return total

        def element(d: Expr, t: Expr, n: Expr, g: Expr) -> Expr:
            return total[d, t, n, g] + bias(d, g)

        return self.b.compute(f"{self.name}_projected", shape, element)

    def weights(self, what: str, gates: range) -> Buffer:
        """The part of R for these gates, [direction, k, gate and hidden]: what a step reads side by side."""
        first, count = gates.start * self.hidden, len(gates) * self.hidden

        def element(d: Expr, k: Expr, g: Expr) -> Expr:
            return self.load("R", d, g + first, k)

        return self.b.compute(f"{self.name}_{what}", (self.e.directions, self.hidden, count), element)

    def state(self, kind: str) -> Buffer:
        """All states of a kind; the initial one is made here."""
        e = self.e
        state = self.b.ahead(f"{self.name}_{kind}", (e.directions, e.steps + 1, e.batch, e.hidden), self.wide)

        def initial(d: Expr, n: Expr, j: Expr) -> Store:
            return Store(state, (d, as_index(0), n, j), self.initial(f"initial_{kind}", d, n, j))

        self.b.update(f"{self.name}_{kind}_initial", (e.directions, e.batch, e.hidden), (), initial)
        return state

    @contextmanager
    def steps(self) -> Generator[None]:
        with self.b.around(f"{self.name}_step", (self.e.directions, self.e.steps), ("d", "t")):
            yield

    def block(self, what: str, fn: Element) -> Buffer:
        """One element for each of the state's."""
        return self.b.compute(f"{self.name}_{what}", self._shape(self.hidden), fn)

    def step(self, kind: str, state: Buffer, fn: Element) -> None:
        """The state after a step."""

        def store(d: Expr, t: Expr, n: Expr, j: Expr) -> Store:
            return Store(state, (d, t + 1, n, j), fn(d, t, n, j))

        self.b.update(f"{self.name}_{kind}", self._shape(self.hidden), (), store)

    def product(
        self, what: str, state: Buffer, weights: Buffer, plus: Callable[[Expr, Expr, Expr, Expr], Expr | None]
    ) -> Buffer:
        """The state times weights, plus something."""
        shape = self._shape(weights.shape[2])

        def product(d: Expr, t: Expr, n: Expr, g: Expr, k: Expr) -> tuple[Expr, Expr]:
            return state[d, t, n, k], weights[d, k, g]

        total = self.b.reduce(f"{self.name}_{what}_matmul", shape, (self.hidden,), product)

        def element(d: Expr, t: Expr, n: Expr, g: Expr) -> Expr:
            more = plus(d, t, n, g)
            return total[d, t, n, g] if more is None else total[d, t, n, g] + more

        return self.b.compute(f"{self.name}_{what}", shape, element)

    def _shape(self, last: int) -> tuple[int, ...]:
        return self.e.directions, self.e.steps, self.e.batch, last

    # ------------------------------------------------------------------------------------------------- outputs

    def all_states(self, name: str, state: Buffer, out: TensorType) -> Buffer:
        """Zero where a sequence is over."""

        def element(*i: Expr) -> Expr:
            n, t, d, j = i if self.op.batch_first else (i[2], i[0], i[1], i[3])
            found, length = cast(out.dtype, state[d, self.time(d, t, n) + 1, n, j]), self._length(n)
            return found if length is None else select(t < length, found, const(0, out.dtype))

        return self.b.compute(name, out.shape, element, axes=list("ntdj" if self.op.batch_first else "tdnj"))

    def last_state(self, name: str, state: Buffer, out: TensorType) -> Buffer:
        """Zero for a sequence without steps, as in onnxruntime; ONNX leaves that open."""

        def element(*i: Expr) -> Expr:
            n, d, j = i if self.op.batch_first else (i[1], i[0], i[2])
            length = self._length(n)
            if length is None:
                return cast(out.dtype, state[d, self.e.steps, n, j])
            found = cast(out.dtype, state[d, length, n, j])
            return select(length < 1, const(0, out.dtype), found)

        return self.b.compute(name, out.shape, element, axes=list("ndj" if self.op.batch_first else "dnj"))
