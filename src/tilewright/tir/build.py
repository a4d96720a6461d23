"""Building a Func from tensor expressions.

    b = FuncBuilder("gemm")
    A, B = b.param("A", (M, K), F32), b.param("B", (K, N), F32)
    C = b.reduce("C", (M, N), (K,), lambda i, j, k: (A[i, k], B[k, j]), "sum")     # sum of products: an Fma
    D = b.compute("D", (M, N), lambda i, j: relu(C[i, j]))
    func = b.finish(D)

Each call makes one block under one loop per iterator, and one buffer, which is local to the Func unless it is
handed to `finish`. Loops are named `<block>_<axis>`, iterators `<block>_v<axis>`; the axes take the parameter
names of the lambda, or `axes`.

What one iteration leaves to the next, as in recurrent networks, is stored for all iterations:

    h = b.ahead("h", (T, N), F32)                     # read before the block that makes it is there
    with b.around("step", (T,), ("t",)):              # loops that the blocks inside share: their first axes
        p = b.compute("p", (T, N), lambda t, i: select(t < 1, start[i], h[t - 1, i]))
        b.compute("h", (T, N), lambda t, i: tanh(p[t, i] + x[t, i]), out=h)

What changes elements that exist, at places that data chooses, is an update:

    y = b.ahead("y", (N,), F32)
    b.compute("y_copy", (N,), lambda i: x[i], out=y)
    b.update("y", (K,), (0,), lambda k: Store(y, (at[k],), y[at[k]] + u[k]))
"""

import inspect
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, Fma, Scope, Var, binary, const, select, size_expr
from tilewright.support.sizes import SizeError, SymInt, capacity, is_open
from tilewright.tir.func import Func
from tilewright.tir.passes.bound_reads import bound_reads
from tilewright.tir.passes.place_sizes import has_sizes, size_buffers
from tilewright.tir.rewrite import redirect
from tilewright.tir.stmt import Block, For, Iter, IterKind, Stmt, Store, seq, walk_stmts

BodyFn: TypeAlias = Callable[..., Expr]
ReduceBody: TypeAlias = Callable[..., "Expr | tuple[Expr, Expr]"]

_COMBINE = {"sum": BinaryOp.ADD, "max": BinaryOp.MAX, "min": BinaryOp.MIN, "prod": BinaryOp.MUL}


def identity(combine: str, dtype: DType) -> Expr:
    """The neutral element of a reduction."""
    match combine:
        case "sum":
            return const(0, dtype)
        case "prod":
            return const(1, dtype)
        case "max" | "min":
            sign = -1 if combine == "max" else 1
            if dtype.is_float:
                return const(sign * float("inf"), dtype)
            if dtype is DType.BOOL:
                return const(combine == "min", dtype)
            low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
            return const(low if combine == "max" else low + (1 << dtype.bits) - 1, dtype)
        case _:
            raise KeyError(combine)


class FuncBuilder:
    """Collects blocks in order. `prefix` makes names unique when many Funcs share a Module."""

    def __init__(self, name: str, prefix: str = "") -> None:
        self.name, self._prefix = name, prefix
        self._params: list[Buffer] = []
        self._made: dict[Buffer, None] = {}
        self._stmts: list[Stmt] = []
        self._ahead: set[Buffer] = set()
        self._around: tuple[tuple[Var, int], ...] = ()  # loops that blocks share now, and their extents

    def param(self, name: str, shape: Sequence[int], dtype: DType) -> Buffer:
        return self.use(Buffer(name, tuple(shape), dtype, Scope.GLOBAL))

    def use(self, buffer: Buffer) -> Buffer:
        """Take a buffer of the Module as a parameter."""
        if buffer not in self._params:
            self._params.append(buffer)
        return buffer

    def ahead(self, name: str, shape: Sequence[int], dtype: DType) -> Buffer:
        """A buffer of the Func that a block made later writes, given to it as `out`."""
        buffer = Buffer(self._prefix + name, tuple(shape), dtype, Scope.GLOBAL)
        self._ahead.add(buffer)
        return buffer

    def var(self, name: str) -> Var:
        """The variable of a loop inside of a block."""
        return Var(self._prefix + name)

    @contextmanager
    def around(self, name: str, extents: Sequence[int], axes: Sequence[str]) -> Generator[None]:
        """Loops around all blocks that are made inside, which run one after the other in each iteration. The first
        axes of each of them are these. A loop over an open dimension may go beyond its size: who passes something on
        stores nothing there (`update`).
        """
        assert not self._around, "loops that blocks share are not nested"
        outside, self._stmts = self._stmts, []
        self._around = tuple(
            (Var(f"{self._prefix}{name}_{a}"), e) for a, e in zip(axes, extents, strict=True)
        )
        yield
        nest = seq(*self._stmts)
        for var, extent in reversed(self._around):
            nest = For(var, capacity(extent), nest)
        self._stmts, self._around = [*outside, nest], ()

    def compute(
        self,
        name: str,
        shape: Sequence[int],
        fn: BodyFn,
        *,
        axes: Sequence[str] | None = None,
        out: Buffer | None = None,
    ) -> Buffer:
        """out[i…] = fn(i…). `out` is a buffer of the Module to write; by default a new one of the Func."""
        iters, loops = self._iters(name, tuple(shape), (), fn, axes)
        value = fn(*(it.var for it in iters))
        buffer = self._output(name, tuple(shape), value.dtype, out)
        store = Store(buffer, tuple(it.var for it in iters), value)
        self._emit(Block(self._prefix + name, iters, loops, store))
        return buffer

    def reduce(
        self,
        name: str,
        shape: Sequence[int],
        over: Sequence[int],
        fn: ReduceBody,
        combine: str = "sum",
        *,
        axes: Sequence[str] | None = None,
        out: Buffer | None = None,
    ) -> Buffer:
        """out[i…] = combine of fn(i…, k…) over k. For "sum", fn may return a pair of float factors: a fused
        multiply-add.
        """
        iters, loops = self._iters(name, tuple(shape), tuple(over), fn, axes)
        value = fn(*(it.var for it in iters))
        dtype = value[0].dtype if isinstance(value, tuple) else value.dtype
        if not isinstance(value, tuple):
            for it in iters:
                if it.size is not None:  # what lies beyond may be anything, and must not count
                    value = select(it.var < it.size, value, identity(combine, dtype))
        if 0 in over:  # of nothing there is the neutral element; a loop that never runs would not store it
            spatial = axes if axes is None else axes[: len(shape)]
            return self.compute(name, shape, lambda *_: identity(combine, dtype), axes=spatial, out=out)
        buffer = self._output(name, tuple(shape), dtype, out)
        indices = tuple(it.var for it in iters[: len(shape)])
        if isinstance(value, tuple):
            a, b = value
            update = Fma(a, b, buffer[indices]) if dtype.is_float else buffer[indices] + a * b
        else:
            update = binary(_COMBINE[combine], buffer[indices], value)
        init = Store(buffer, indices, identity(combine, dtype))
        if not over:  # of one element there is nothing to combine
            update, init = value[0] * value[1] if isinstance(value, tuple) else value, None
        self._emit(Block(self._prefix + name, iters, loops, Store(buffer, indices, update), init))
        return buffer

    def update(
        self,
        name: str,
        extents: Sequence[int],
        ordered: Collection[int],
        fn: Callable[..., Stmt],
        *,
        axes: Sequence[str] | None = None,
    ) -> None:
        """A block with the body fn(i…), which stores to buffers that are `ahead`. The iterators numbered in `ordered`
        are reduce iterators: what iterations along them change may be the same, so they run in order. Along the others
        each iteration changes something else. What is stored where, is not known of an update: along open dimensions
        it does nothing beyond their sizes.
        """
        iters, loops = self._iters(name, tuple(extents), (), fn, axes)
        iters = tuple(
            Iter(it.var, it.extent, IterKind.REDUCE if n in ordered else it.kind, _size(extents[n]))
            for n, it in enumerate(iters)
        )
        body = fn(*(it.var for it in iters))
        if is_open(s.extent for s in walk_stmts(body) if isinstance(s, For)):
            raise SizeError(f"{name} has a loop of its own over an open dimension")
        self._made.update((s.buffer, None) for s in walk_stmts(body) if isinstance(s, Store))
        self._emit(Block(self._prefix + name, iters, loops, body))

    def finish(self, *outputs: Buffer) -> Func:
        """The Func. `outputs` become parameters if they are not yet; what else was made stays local."""
        params = (*self._params, *(o for o in outputs if o not in self._params))
        local = tuple(b for b in self._made if b not in params)
        func = Func(self.name, params, local, seq(*self._stmts), tuple(p for p in params if p in self._made))
        return _at_capacity(func) if has_sizes(func) or _has_open_buffers(func) else func

    def _iters(
        self,
        name: str,
        spatial: tuple[int, ...],
        over: tuple[int, ...],
        fn: Callable[..., object],
        axes: Sequence[str] | None,
    ) -> tuple[tuple[Iter, ...], tuple[Expr, ...]]:
        extents = (*spatial, *over)
        if axes is None:
            given = [p for p in inspect.signature(fn).parameters.values() if p.kind is not p.VAR_POSITIONAL]
            axes = (
                [p.name for p in given]
                if len(given) == len(extents)
                else [f"i{d}" for d in range(len(extents))]
            )
        kinds = [IterKind.SPATIAL] * len(spatial) + [IterKind.REDUCE] * len(over)
        base = self._prefix + name
        iters = tuple(
            Iter(Var(f"{base}_v{a}"), capacity(e), k, _size(e) if k is IterKind.REDUCE else None)
            for a, e, k in zip(axes, extents, kinds, strict=True)
        )
        shared = self._around
        assert extents[: len(shared)] == tuple(e for _, e in shared), (
            f"{name} is not made for the loops around"
        )
        return iters, (*(v for v, _ in shared), *(Var(f"{base}_{a}") for a in axes[len(shared) :]))

    def _output(self, name: str, shape: tuple[int, ...], dtype: DType, out: Buffer | None) -> Buffer:
        buffer = out if out is not None else Buffer(self._prefix + name, shape, dtype, Scope.GLOBAL)
        if out is not None and out not in self._ahead:
            self.use(out)
        self._made[buffer] = None
        return buffer

    def _emit(self, block: Block) -> None:
        nest: Stmt = block
        own = list(zip(block.bindings, block.iters, strict=True))[len(self._around) :]
        for loop, it in reversed(own):
            assert isinstance(loop, Var)
            nest = For(loop, it.extent, nest)
        self._stmts.append(nest)


def _size(extent: int) -> Expr | None:
    return size_expr(extent.size) if isinstance(extent, SymInt) else None


def at_capacity(buffer: Buffer) -> Buffer:
    """The buffer as it lies in memory: open dimensions are as large as they may be, and have sizes."""
    if not is_open(buffer.shape):
        return buffer
    sizes = tuple(size_expr(n.size) if isinstance(n, SymInt) else None for n in buffer.shape)
    return Buffer(buffer.name, tuple(map(capacity, buffer.shape)), buffer.dtype, buffer.scope, sizes)


def _has_open_buffers(func: Func) -> bool:
    return any(is_open(b.shape) for b in (*func.params, *func.locals))


def _at_capacity(func: Func) -> Func:
    moved = {b: at_capacity(b) for b in (*func.params, *func.locals)}
    params, local, outputs = (tuple(moved[b] for b in bs) for bs in (func.params, func.locals, func.outputs))
    changed = {b: new for b, new in moved.items() if new is not b}
    made = bound_reads(Func(func.name, params, local, redirect(func.body, changed), outputs))
    return replace(made, params=(*params, *size_buffers(made)))
