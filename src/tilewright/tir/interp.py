"""The interpreter: what a tensor program means.

It runs any Func, unscheduled, scheduled or lowered, on numpy arrays and in place. Loops run in order, float
operations happen one by one as they are written, and every access is checked against the shape of its buffer. Memory
that nobody has written holds NaN (or the largest integer), so that reading it shows.

To be quick enough for tests it may run all iterations of a loop at once: the loop variable is then an array with an
axis of its own, and each statement runs for all iterations before the next one does. That is done only for loops
whose iterations provably touch different elements of everything they write (`independent_loops`), so it never
changes a result. Conditions become masks.

Lanes: the n-th loop from outside that runs at once has axis -n, so values inside broadcast against those outside as
they are. Memory allocated inside such loops has a part for each lane.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, assert_never

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import Evaluated, evaluate
from tilewright.ir.expr import TRUE, Buffer, Expr, Var
from tilewright.support.arrays import Array
from tilewright.support.errors import InternalError, UserError
from tilewright.support.program import Branch, While
from tilewright.tir.analysis.independent_loops import independent_loops
from tilewright.tir.func import Call, External, Func, Module, Program
from tilewright.tir.passes.place_sizes import place_sizes
from tilewright.tir.stmt import Alloc, Block, Emit, For, If, IterKind, Repeat, Seq, Stmt, Store, walk_stmts

ExternalFn: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
_Lanes: TypeAlias = tuple[int, ...]

_MAX_LANES = 1 << 16  # iterations run at once: enough to hide Python, little enough to stay in the cache


def interpret_func(func: Func, arrays: Mapping[Buffer, Array]) -> None:
    """Run `func` on `arrays`, one for each of its params, which it reads and writes in place."""
    func = place_sizes(func)
    for p in func.params:
        if p not in arrays:
            raise UserError(f"{func.name}: no array is given for {p}")
        check_array(func.name, p, arrays[p])
    memory = {p: arrays[p] for p in func.params} | {b: poisoned_array(b) for b in func.locals}
    written = {s.buffer for s in walk_stmts(func.body) if isinstance(s, Store)}
    aliased = any(
        np.may_share_memory(memory[a], memory[b])
        for a in written & memory.keys()
        for b in memory
        if a is not b
    )
    at_once = frozenset[Var]() if aliased else independent_loops(func.body)
    with np.errstate(all="ignore"):
        _Machine(func.name, memory, at_once).run(func.body, (), None)


def run_func(func: Func, *inputs: Array) -> tuple[Array, ...]:
    """Run `func` on the params that are not its outputs, in order; returns the outputs."""
    given = [p for p in func.params if p not in func.outputs]
    if len(given) != len(inputs):
        raise UserError(f"{func.name} takes {len(given)} inputs, {len(inputs)} were given")
    arrays = dict(zip(given, inputs, strict=True)) | {o: poisoned_array(o) for o in func.outputs}
    interpret_func(func, arrays)
    return tuple(arrays[o] for o in func.outputs)


def interpret_module(
    module: Module,
    inputs: Mapping[str, Array],
    externals: Mapping[str, ExternalFn] | None = None,
) -> dict[str, Array]:
    """Run the program of `module`; returns its outputs by name. The arrays of `inputs` are not written.

    `externals` has the code of External nodes by key: a function from input arrays to output arrays.
    """
    memory: dict[Buffer, Array] = {b: poisoned_array(b) for b in (*module.temps, *module.outputs)}
    memory |= {c.buffer: np.asarray(c.value) for c in module.constants}
    for b in module.inputs:
        if b.name not in inputs:
            raise UserError(f"no array is given for the input {b}")
        memory[b] = np.array(inputs[b.name])
        check_array("the program", b, memory[b])
    _run_program(module, module.program, memory, externals or {})
    return {b.name: memory[b] for b in module.outputs}


def _run_program(
    module: Module, program: Program, memory: dict[Buffer, Array], externals: Mapping[str, ExternalFn]
) -> None:
    for step in program:
        match step:
            case Call():
                func = module.func(step.func)
                interpret_func(func, {p: memory[a] for p, a in zip(func.params, step.args, strict=True)})
            case External():
                if step.key not in externals:
                    raise UserError(f"no code is given for the external function {step.key!r}")
                results = externals[step.key]([memory[b] for b in step.inputs])
                for b, value in zip(step.outputs, results, strict=True):
                    check_array(f"external {step.key}", b, value)
                    memory[b][...] = value
            case Branch():
                chosen = step.then if memory[step.cond].item() else step.otherwise
                _run_program(module, chosen, memory, externals)
            case While():
                while memory[step.cond].item():
                    _run_program(module, step.body, memory, externals)
            case _:
                assert_never(step)


def poisoned_array(buffer: Buffer) -> Array:
    """Fresh memory, filled with what stands out: NaN, or the largest integer."""
    if buffer.dtype.is_float:
        return np.full(buffer.shape, np.nan, buffer.dtype.numpy)
    if buffer.dtype is DType.BOOL:
        return np.ones(buffer.shape, np.bool_)
    return np.full(buffer.shape, np.iinfo(buffer.dtype.numpy).max, buffer.dtype.numpy)


def check_array(who: str, buffer: Buffer, array: Array) -> None:
    if array.shape != buffer.shape or array.dtype != buffer.dtype.numpy:
        raise UserError(f"{who}: {buffer} was given an array of {array.dtype} with shape {array.shape}")


# ------------------------------------------------------------------------------------------------------ running


class _Machine:
    """Runs statements. `lanes` is the shape of the loops that run at once, `mask` which of the lanes do."""

    def __init__(self, name: str, memory: dict[Buffer, Array], at_once: frozenset[Var]) -> None:
        self._name, self._memory, self._at_once = name, memory, at_once
        self._env: dict[Var, Evaluated] = {}
        self._parts: dict[Buffer, tuple[Evaluated, ...]] = {}  # which part of a buffer belongs to a lane
        self._blocks: list[str] = []

    def run(self, s: Stmt, lanes: _Lanes, mask: Array | None) -> None:
        match s:
            case For():
                self._loop(s, lanes, mask)
            case Block():
                self._blocks.append(s.name)
                self._block(s, lanes, mask)
                self._blocks.pop()
            case Seq():
                for c in s.stmts:
                    self.run(c, lanes, mask)
            case If():
                self._where(self._value(s.cond, mask), s.then, lanes, mask)
            case Repeat():
                while (again := _both(mask, self._value(s.cond, mask))).any():
                    self.run(s.body, lanes, None if again.all() else again)
            case Store():
                self._store(s, lanes, mask)
            case Emit():
                self.run(s.body, lanes, mask)
            case Alloc():
                self._memory[s.buffer] = poisoned_array(s.buffer.with_shape((*lanes, *s.buffer.shape)))
                self._parts[s.buffer] = tuple(np.ogrid[tuple(slice(n) for n in lanes)])
                self.run(s.body, lanes, mask)
                del self._memory[s.buffer]
            case _:
                assert_never(s)

    def _loop(self, s: For, lanes: _Lanes, mask: Array | None) -> None:
        limit = None if s.limit is None else np.asarray(self._value(s.limit, mask))
        extent = s.extent if limit is None else min(s.extent, max(0, int(limit.max(initial=0))))
        if s.var in self._at_once and 1 < extent <= _MAX_LANES // math.prod(lanes):
            self._env[s.var] = np.arange(extent).reshape(extent, *(1 for _ in lanes))
            lanes = (extent, *lanes)
            if limit is None or limit.ndim == 0:
                self.run(s.body, lanes, mask)
            else:  # the lanes around have limits of their own
                self._where(np.less(self._env[s.var], limit), s.body, lanes, mask)
        else:
            for i in range(extent):
                self._env[s.var] = np.int64(i)
                if limit is None or limit.ndim == 0:
                    self.run(s.body, lanes, mask)
                else:
                    self._where(np.less(i, limit), s.body, lanes, mask)

    def _block(self, s: Block, lanes: _Lanes, mask: Array | None) -> None:
        inside = mask if s.predicate is TRUE else _both(mask, self._value(s.predicate, mask))
        if inside is not None and not inside.any():
            return
        inside = None if inside is not None and inside.all() else inside
        values = [self._value(b, inside) for b in s.bindings]
        for it, value in zip(s.iters, values, strict=True):
            self._check_domain(it.var, it.extent, value, inside)
            self._env[it.var] = value
        for it, value in zip(s.iters, values, strict=True):
            if it.size is not None:
                inside = _both(inside, np.less(value, self._value(it.size, inside)))
                if not inside.any():
                    return
                inside = None if inside.all() else inside
        if s.init is not None:
            first: Evaluated = np.True_
            for it, value in zip(s.iters, values, strict=True):
                if it.kind is IterKind.REDUCE:
                    first = np.logical_and(first, value == 0)
            self._where(first, s.init, lanes, inside)
        self.run(s.body, lanes, inside)

    def _where(self, cond: Evaluated, s: Stmt, lanes: _Lanes, mask: Array | None) -> None:
        both = _both(mask, cond)
        if both.any():
            self.run(s, lanes, None if both.all() else both)

    # ------------------------------------------------------------------------------------------------- accesses

    def _value(self, e: Expr, mask: Array | None) -> Evaluated:
        return evaluate(e, self._env, lambda load, indices: self._load(load.buffer, indices, mask))

    def _load(self, buffer: Buffer, indices: tuple[Evaluated, ...], mask: Array | None) -> Evaluated:
        if mask is not None:  # lanes that do not run read element 0, and nobody looks at it
            indices = tuple([np.where(mask, i, 0) for i in indices])
        self._check_bounds("reads", buffer, indices)
        at: Any = (*self._parts.get(buffer, ()), *indices)
        return self._array(buffer)[at]

    def _store(self, s: Store, lanes: _Lanes, mask: Array | None) -> None:
        indices = tuple([self._value(i, mask) for i in s.indices])
        value = self._value(s.value, mask)
        part = self._parts.get(s.buffer, ())
        if mask is not None:
            wanted = np.broadcast_to(mask, lanes)
            indices = tuple([np.broadcast_to(i, lanes)[wanted] for i in indices])
            part = tuple([np.broadcast_to(i, lanes)[wanted] for i in part])
            value = np.broadcast_to(value, lanes)[wanted]
        self._check_bounds("writes", s.buffer, indices)
        at: Any = (*part, *indices)
        self._array(s.buffer)[at] = value

    def _array(self, buffer: Buffer) -> Array:
        if buffer not in self._memory:
            raise InternalError(f"{self._here()} uses {buffer}, which is no parameter and not allocated")
        return self._memory[buffer]

    def _check_bounds(self, verb: str, buffer: Buffer, indices: tuple[Evaluated, ...]) -> None:
        if len(indices) != len(buffer.shape):
            raise InternalError(f"{self._here()} {verb} {buffer} with {len(indices)} indices")
        for index, extent in zip(indices, buffer.shape, strict=True):
            if not is_inside(index, extent):
                bad = _outside(index, extent)
                raise InternalError(
                    f"{self._here()} {verb} {_spell_access(buffer, indices, bad)}, outside {buffer}"
                )

    def _check_domain(self, var: Var, extent: int, value: Evaluated, mask: Array | None) -> None:
        if is_inside(value, extent):
            return
        bad = _outside(value, extent)
        bad = bad if mask is None else np.asarray(bad & mask)
        if bad.any():
            first = np.broadcast_to(value, bad.shape)[bad][0]
            raise InternalError(f"{self._here()} binds {var.name} to {first}, outside 0 … {extent - 1}")

    def _here(self) -> str:
        return f"{self._name}: block {self._blocks[-1]}" if self._blocks else self._name


def is_inside(index: Any, extent: int) -> bool:
    """Are all elements of `index` from 0 to `extent`?"""
    if np.ndim(index) == 0:
        return 0 <= index < extent
    return bool(index.min() >= 0 and index.max() < extent)


def _outside(index: Any, extent: int) -> Array:
    return np.asarray((index < 0) | (index >= extent))


def _both(mask: Array | None, cond: Evaluated) -> Array:
    return np.asarray(cond) if mask is None else np.asarray(mask & cond)


def _spell_access(buffer: Buffer, indices: tuple[Evaluated, ...], bad: Array) -> str:
    """The first offending access: A[8, 0]."""
    shape = np.broadcast_shapes(bad.shape, *(np.shape(i) for i in indices))
    where = np.broadcast_to(bad, shape)
    return f"{buffer.name}[{', '.join(str(np.broadcast_to(i, shape)[where][0]) for i in indices)}]"
