"""A long Fourier transform as two of short ones, where that is less work (Cooley and Tukey).

    X[k1 + N1·k2] = Σ_n2 ( w^(n2·k1) · Σ_n1 x[N2·n1 + n2] · w1^(n1·k1) ) · w2^(n2·k2)        N = N1·N2

    A = MatMul(x as [S·N2, N1·parts], first)      short transforms along n1
    T = A · cos + swapped(A) · sin                the factors between them; swapped: imaginary, real
    Y = MatMul(second, T as [S, N2·2, N1])        short transforms along n2

Each short one is a contraction with a matrix that fits the nearest cache, which takes the place of several levels of a
fast transform: with 32 · 32 points it has ten times the additions, all of them in full registers. An inverse transform
to real numbers stays whole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.axes import accumulator
from tilewright.ops.core.arithmetic import Add, Mul
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.dft import DFT, ShortTransforms
from tilewright.ops.core.movement import Reshape, Transpose
from tilewright.ops.core.pieces import Pad, Slice
from tilewright.ops.opdef import Op
from tilewright.support.arrays import Array


def divide_transforms(graph: Graph) -> Graph:
    def divide(state: Sweep, node: Node) -> Sequence[Value] | None:
        if not isinstance(node.op, DFT):
            return None
        x = node.inputs[0]
        division = node.op.transform.division(x.type.shape[node.op.axis], x.type.shape[-1])
        if division is None:
            return None
        return _Divided(state, node, node.op, division).outputs()

    return sweep(graph, divide)


@dataclass(frozen=True, slots=True)
class _Divided:
    state: Sweep
    node: Node
    op: DFT
    division: ShortTransforms

    def outputs(self) -> tuple[Value, ...]:
        (out,) = self.node.outputs
        x = self._signals(self.node.inputs[0])  # [S, N, parts]
        signals, _, parts = x.type.shape
        d, results = self.division, self.op.transform.results
        short = self._add(Reshape((signals, d.first, d.second, parts)), x)
        rows = self._add(Transpose((0, 2, 1, 3)), short)
        flat = self._add(Reshape((signals * d.second, d.first * parts)), rows)
        once = self._add(MatMul(), flat, self._constant("first", self._first(parts)))
        apart = self._add(Reshape((signals, d.second, 2, d.first)), once)
        swapped = self._add(Slice((0, 0, 1, 0), (1, 1, -1, 1), apart.type.shape), apart)
        cos, sin = (self._constant(n, a) for n, a in zip(("cos", "sin"), self._between(), strict=True))
        rotated = self._add(Add(), self._add(Mul(), apart, cos), self._add(Mul(), swapped, sin))
        columns = self._add(Reshape((signals, d.second * 2, d.first)), rotated)
        second = self._constant("second", self._second())
        twice = self._add(MatMul(), second, columns)
        kept = second.type.shape[0] // 2
        pairs = self._add(Reshape((signals, kept, 2, d.first)), twice)
        ordered = self._add(Transpose((0, 1, 3, 2)), pairs)
        line = self._add(Reshape((signals, kept * d.first, 2)), ordered)
        if kept * d.first > results:
            line = self._add(_start((signals, results, 2)), line)
        return self._back(line, out)

    # ----------------------------------------------------------------------------------------------- axes

    def _signals(self, x: Value) -> Value:
        """All signals one after another, as long as the transform."""
        shape, axis, length = x.type.shape, self.op.axis, self.op.transform.length
        wide = accumulator(x.type.dtype)
        if x.type.dtype is not wide:
            x = self._add(Cast(wide), x)
        if axis != len(shape) - 2:
            x = self._add(Transpose(self._moved(len(shape))), x)
        extent, parts = x.type.shape[-2:]
        x = self._add(Reshape((math.prod(x.type.shape[:-2]), extent, parts)), x)
        if extent > length:
            return self._add(_start((x.type.shape[0], length, parts)), x)
        if extent < length:
            return self._add(Pad((0, 0, 0), (0, length - extent, 0)), x)
        return x

    def _moved(self, rank: int) -> tuple[int, ...]:
        """The axes with the transform's just before the last."""
        axis = self.op.axis
        return (*(d for d in range(rank - 1) if d != axis), axis, rank - 1)

    def _back(self, line: Value, out: Value) -> tuple[Value, ...]:
        shape, moved = out.type.shape, self._moved(len(out.type.shape))
        ops: list[Op] = [Reshape(tuple(shape[d] for d in moved))]
        if self.op.axis != len(shape) - 2:
            ops.append(Transpose(tuple(moved.index(d) for d in range(len(shape)))))
        if line.type.dtype is not out.type.dtype:
            ops.append(Cast(out.type.dtype))
        for op in ops[:-1]:
            line = self._add(op, line)
        return self.state.add(ops[-1], (line,), self.node)

    # ------------------------------------------------------------------------------------------- matrices

    def _angles(self, a: int, b: int, period: int) -> Array:
        sign = 1 if self.op.transform.inverse else -1
        return sign * 2 * np.pi / period * (np.arange(a)[:, None] * np.arange(b) % period)

    def _first(self, parts: int) -> Array:
        """[(n1, part), (part', k1)]"""
        d = self.division
        angle = self._angles(d.first, d.first, d.first)
        return _complex(np.cos(angle), np.sin(angle))[:, :parts].reshape(d.first * parts, 2 * d.first)

    def _between(self) -> tuple[Array, Array]:
        """[n2, part, k1]: what a part is multiplied by, and the other."""
        d = self.division
        angle = self._angles(d.second, d.first, d.first * d.second)
        cos, sin = np.cos(angle), np.sin(angle)
        return np.stack([cos, cos], axis=1), np.stack([-sin, sin], axis=1)

    def _second(self) -> Array:
        """[(k2, part'), (n2, part)], as far as results are wanted."""
        d, t = self.division, self.op.transform
        angle = self._angles(d.second, d.second, d.second)
        whole = _complex(np.cos(angle), np.sin(angle))  # [n2, part, part', k2]
        whole = whole / t.length if t.inverse else whole
        kept = -(-t.results // d.first)
        return whole.transpose(3, 2, 0, 1)[:kept].reshape(2 * kept, 2 * d.second)

    # --------------------------------------------------------------------------------------------- pieces

    def _add(self, op: Op, *inputs: Value) -> Value:
        return self.state.add_piece(op, inputs, self.node)

    def _constant(self, name: str, array: Array) -> Value:
        dtype = accumulator(self.node.inputs[0].type.dtype)
        return self.state.add_constant(f"{self.node.outputs[0].name}.{name}", array.astype(dtype.numpy))


def _start(sizes: tuple[int, ...]) -> Slice:
    """The first elements of each axis."""
    return Slice((0,) * len(sizes), (1,) * len(sizes), sizes)


def _complex(cos: Array, sin: Array) -> Array:
    """[n, part, part', k]: what each part of a number adds to each part of its product with cos + i·sin."""
    return np.stack([np.stack([cos, sin], axis=1), np.stack([-sin, cos], axis=1)], axis=1)
