"""attach: a buffer is stored in rows of another one.

    W: f32[64, 32], b: f32[32]                Attach("b", "W", 0)      W: f32[65, 32]
    Y[i, j] += X[i, k] * W[k, j]                    ─────>             Y[i, j] += X[i, k] * W[k, j]
    Z[i, j] = Y[i, j] + b[j]                                           Z[i, j] = Y[i, j] + W[64, j]

The guest gets the rows of dimension `dim` behind those of the host, or from `row` on: in a border that a layout has
made (PadDim) and that nobody uses. It has the dimensions of the host, or all but `dim` and is one row; in other
dimensions it may have less, and the rest of its rows has no value. The host keeps its indices. What comes in one cache
line then, or in one block of memory, is there for both (`store_at` of ALT; `StoreAt` here spares a copy).

Both are constants, and become one here and now, with zeros in the rest; or both are between kernels, or local to the
same one. Then a part of the program that writes one of them must not touch the other: it would read and write one
buffer, and steps tell buffers apart, not parts of them. Where a dimension is open, memory behind its size is anybody's,
so buffers with open dimensions stay apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir.expr import Buffer, Indices, as_index
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.find import accesses_of
from tilewright.schedule.step import Step
from tilewright.schedule.steps.transform_layout import own_buffer
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Constant, Func, Module
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, blocks
from tilewright.tir.touched import touched


@dataclass(frozen=True, slots=True)
class Attach(Step):
    guest: str
    host: str
    dim: int
    row: int | None = None  # of the host, where the guest begins; None: behind the last

    def apply(self, module: Module) -> Module:
        guest, host = own_buffer(module, self.guest, self), own_buffer(module, self.host, self)
        wrong = self._misfit(guest, host) or _apart(module, guest, host)
        if wrong is not None:
            raise ScheduleError(f"{self}: {wrong}", where=f"{guest!r}, {host!r}")
        users = {f.name: f for b in (guest, host) for f in module.users(b)}
        start = host.shape[self.dim] if self.row is None else self.row
        stop = start + self._rows(guest, host)
        if start < host.shape[self.dim]:
            self._check_free(users.values(), host, start, stop)
        extent = max(host.shape[self.dim], stop)
        shape = (*host.shape[: self.dim], extent, *host.shape[self.dim + 1 :])
        both = host.with_shape(shape)
        constants = self._constants(module, guest, host, both, start)
        return module.with_funcs(
            {name: self._attached(f, guest, host, both, start) for name, f in users.items()},
            constants=constants,
            temps={guest: None, host: both},
        )

    def _rows(self, guest: Buffer, host: Buffer) -> int:
        return guest.shape[self.dim] if len(guest.shape) == len(host.shape) else 1

    def _misfit(self, guest: Buffer, host: Buffer) -> str | None:
        """What is wrong with the two as such."""
        if guest is host:
            return "a buffer has no place in itself"
        if not 0 <= self.dim < len(host.shape):
            return f"{host.name} has no dimension {self.dim}"
        if (guest.dtype, guest.scope) != (host.dtype, host.scope):
            return "they have different types, or are in different memory"
        if guest.sizes or host.sizes:
            return "one of them has an open dimension, behind whose size nothing is kept"
        others = [n for d, n in enumerate(host.shape) if d != self.dim]
        same_rank = len(guest.shape) == len(host.shape)
        own = [n for d, n in enumerate(guest.shape) if not same_rank or d != self.dim]
        if len(own) != len(others) or any(n > m for n, m in zip(own, others, strict=True)):
            return f"{guest.name} does not fit into rows of {list(others)} elements"
        if self.row is not None and not 0 <= self.row <= host.shape[self.dim]:
            return f"{host.name} has no row {self.row}, and none ends there"
        return None

    def _check_free(self, users: Iterable[Func], host: Buffer, start: int, stop: int) -> None:
        """Nobody uses these rows of the host."""
        for f in users:
            simplify = Simplifier(ranges(f.body))
            for indices in accesses_of(f.body, host):
                lo, hi = simplify.bounds(indices[self.dim])
                if lo < stop and hi >= start:
                    raise ScheduleError(
                        f"{self}: {f.name} uses rows {lo} to {hi} of {host.name}; {start} to {stop - 1} must be free",
                        where=repr(host),
                        hint="PadDim makes rows that nobody uses; without `row`, they are added at the end",
                    )

    def _attached(self, func: Func, guest: Buffer, host: Buffer, both: Buffer, start: int) -> Func:
        simplify = Simplifier(ranges(func.body))

        def place(b: Buffer, indices: Indices) -> Indices:
            if b is host:
                return indices
            before, rest = indices[: self.dim], indices[self.dim :]
            if len(indices) < len(both.shape):
                return (*before, as_index(start), *rest)
            return (*before, simplify(rest[0] + start), *rest[1:])

        def swap(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
            return tuple(dict.fromkeys(both if b is guest or b is host else b for b in buffers))

        return replace(
            func,
            params=swap(func.params),
            locals=swap(func.locals),
            outputs=swap(func.outputs),
            body=redirect(func.body, {guest: both, host: both}, place),
        )

    def _constants(
        self, module: Module, guest: Buffer, host: Buffer, both: Buffer, start: int
    ) -> tuple[Constant, ...]:
        values = {c.buffer: c.value for c in module.constants if c.buffer is guest or c.buffer is host}
        if not values:
            return module.constants
        inner, outer = values[guest], values[host]
        if inner.ndim < outer.ndim:
            inner = np.expand_dims(inner, self.dim)
        value = np.zeros(both.shape, outer.dtype)
        value[tuple([slice(0, n) for n in outer.shape])] = outer
        places = [
            slice(start * (d == self.dim), start * (d == self.dim) + n) for d, n in enumerate(inner.shape)
        ]
        value[tuple(places)] = inner
        kept = [c for c in module.constants if c.buffer is not guest]
        return tuple([Constant(both, value) if c.buffer is host else c for c in kept])


def _apart(module: Module, guest: Buffer, host: Buffer) -> str | None:
    """Why the two must be different buffers."""
    constants = {c.buffer for c in module.constants}
    users = [f for f in module.users(guest) if f in module.users(host)]
    if guest in constants or host in constants:
        return (
            None
            if guest in constants and host in constants
            else "one of them is a constant, the other is not"
        )
    if guest in module.temps and host in module.temps:
        if not module.is_sequence:
            return "the program is not a sequence of calls"
        mixed = next((f.name for f in users if guest in f.outputs or host in f.outputs), None)
        return None if mixed is None else f"{mixed} uses both, and writes one of them"
    local = next((f for f in users if guest in f.locals and host in f.locals), None)
    if local is None:
        return "they are not local to the same kernel, nor both between kernels"
    block = next((b.name for b in blocks(local.body) if _mixes(b, guest, host)), None)
    return None if block is None else f"block {block!r} uses both, and writes one of them"


def _mixes(block: Block, guest: Buffer, host: Buffer) -> bool:
    uses = touched(block)
    written = guest in uses.writes or host in uses.writes
    return written and uses.any_of((guest,)) and uses.any_of((host,))
