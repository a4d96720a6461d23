"""split_phases: a Func whose body is a sequence of nests becomes one kernel per nest.

Nests of one part that read nothing, such as the sides of a border, are one nest if they follow each other: each of them
takes less than a barrier (`with_joined_fills`). Others stay apart: what reads constants alone runs at compile time.

Workers meet at a barrier between kernels, so each kernel has a static number of parts: the extent of its
outermost loop if that is PARALLEL, else one. A PARALLEL loop that is all there is in serial ones (the steps of a
recurrence) makes parts in steps: workers meet after each step. Local buffers that flow from one phase to another, or
between the parts of a phase, become memory shared by the workers (`shared`, placed in the arena); what stays inside
one part becomes memory of one worker, unless it is too large for that (`share_large_buffers`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from tilewright.ir.expr import Buffer, Indices, Scope, Var, as_index, loads, maximum, minimum
from tilewright.support.errors import InternalError, ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.passes.place_allocations import indices_by_buffer, place_allocations, separate_buffers
from tilewright.tir.rewrite import redirect, substitute_stmt, transform_stmt
from tilewright.tir.stmt import Alloc, For, LoopKind, Seq, Stmt, Store, seq, stmt_exprs, walk_stmts
from tilewright.tir.touched import touched

MAX_LOCAL_BYTES = 1 << 20  # on a worker's stack
MAX_SHARED_SCRATCH = 1 << 28  # of all parts of a kernel together
MAX_STEPS = 1 << 12  # of a kernel: each is a row in the table of calls


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A kernel: its params are some of the Func's params and of the shared buffers."""

    func: Func
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]


def part_loops(body: Stmt) -> tuple[For, ...]:
    """The loops that number the parts of a kernel, outermost first: those over steps, and the PARALLEL one. None of
    them if the kernel is one part.
    """
    found: list[For] = []
    while isinstance(body, For) and body.kind is LoopKind.SERIAL:
        found.append(body)
        body = body.body
    if not isinstance(body, For) or body.kind is not LoopKind.PARALLEL:
        return ()
    if found and (body.extent == 1 or math.prod(n.extent for n in found) > MAX_STEPS):
        return ()
    return (*found, body)


def with_joined_fills(nests: Sequence[Stmt]) -> list[Stmt]:
    """The nests, in which those that only fill memory, in one part, are one where they follow each other."""
    out: list[Stmt] = []
    for is_fill, run in groupby(nests, _is_fill):
        found = list(run)
        out += [seq(*found)] if is_fill else found
    return out


def _is_fill(nest: Stmt) -> bool:
    reads = (e for s in walk_stmts(nest) for root in stmt_exprs(s) for e in loads(root))
    return not part_loops(nest) and next(reads, None) is None


def copies_of_params(func: Func) -> frozenset[Buffer]:
    """Local buffers that are made of params alone: packed weights."""
    local = frozenset(func.locals)
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    found = {b for n in nests for b in touched(n).writes if b in local and b.scope is Scope.GLOBAL}
    for n in nests:
        if not local.isdisjoint(touched(n).reads):
            found.difference_update(touched(n).writes)
    return frozenset(found)


def split_phases(
    func: Func, *, keep: frozenset[Buffer] = frozenset()
) -> tuple[tuple[Phase, ...], tuple[Buffer, ...]]:
    """(phases in order, shared buffers). The body is a sequence of nests. Buffers to `keep` stay one for all nests."""
    func = separate_buffers(func, keep=keep)
    assert isinstance(func.body, Seq)
    nests = func.body.stmts
    local = frozenset(func.locals)
    used_in = [indices_by_buffer(n, local) for n in nests]
    shared: list[Buffer] = []
    placed: list[Stmt] = []
    for b in func.locals:
        if sum(b in u for u in used_in) > 1:
            shared.append(b)
    for nest, used in zip(nests, used_in, strict=True):
        own = tuple(b for b in used if b not in shared)
        body = place_allocations(Func(func.name, func.params, own, nest)).body
        loops = part_loops(nest)
        if loops:
            body, outside = _without_outer_allocations(body)
            for b in outside:
                if b.scope is not Scope.GLOBAL:
                    raise ScheduleError(
                        f"{func.name}: {b.name} in {b.scope.value} scope is carried between iterations of the "
                        f"parallel loop {loops[-1].var.name}",
                        hint="set the scope of the buffer to global, or make another loop parallel",
                    )
            shared += outside
        placed.append(_privatise(body))
    crossing = [b for b in shared if b.scope is not Scope.GLOBAL]
    if crossing:
        raise ScheduleError(
            f"{func.name}: {crossing[0].name} in {crossing[0].scope.value} scope is used by two nests",
            hint="move what writes it and what reads it into one nest, or set its scope to global",
        )
    known = (*func.params, *shared)
    phases = [
        _phase(func.name if len(placed) == 1 else f"{func.name}_{n}", s, known) for n, s in enumerate(placed)
    ]
    return tuple(phases), tuple(shared)


def _without_outer_allocations(s: Stmt) -> tuple[Stmt, list[Buffer]]:
    """`s` without the allocations that are not inside an iteration of its parallel loop, and their buffers."""
    if isinstance(s, Alloc):
        rest, found = _without_outer_allocations(s.body)
        return rest, [s.buffer, *found]
    if isinstance(s, For) and s.kind is LoopKind.SERIAL:
        rest, found = _without_outer_allocations(s.body)
        return replace(s, body=rest), found
    return s, []


def share_large_buffers(phase: Phase) -> tuple[Phase, tuple[Buffer, ...]]:
    """The phase with the buffers that a worker's stack has no room for in shared memory, and these buffers. Each part
    of a parallel phase has its own slice.
    """
    body = phase.func.body
    local = [
        n.buffer for n in walk_stmts(body) if isinstance(n, Alloc) and n.buffer.scope is not Scope.REGISTER
    ]
    part = next(iter(part_loops(body)[-1:]), None)  # steps follow each other, and can use the same slice
    moved: dict[Buffer, Buffer] = {}
    room = MAX_LOCAL_BYTES
    for b in sorted(local, key=lambda b: b.bytes):  # the smallest stay
        room -= b.bytes
        if room < 0:
            moved[b] = Buffer(b.name, b.shape if part is None else (part.extent, *b.shape), b.dtype)
    if not moved:
        return phase, ()
    total = sum(b.bytes for b in moved.values())
    if part is not None and total > MAX_SHARED_SCRATCH:
        most = MAX_SHARED_SCRATCH // sum(b.bytes for b in moved)
        if not most:
            raise InternalError(
                f"{phase.func.name}: a part of the parallel loop {part.var.name} needs more than {MAX_SHARED_SCRATCH} "
                f"bytes of memory for {', '.join(b.name for b in moved)}; its schedule must keep less in a part"
            )
        fewer = transform_stmt(body, lambda n: _in_runs(part, most) if n is part else None)
        return share_large_buffers(replace(phase, func=phase.func.with_body(fewer)))
    front = () if part is None else (part.var,)
    known = (*phase.func.params, *moved.values())
    return _phase(phase.func.name, _replace_allocations(body, moved, front), known), tuple(moved.values())


def _in_runs(part: For, most: int) -> For:
    """The loop with `most` parts at most, each of which is a run of iterations that follow each other."""
    run = -(-part.extent // most)
    parts, outer = -(-part.extent // run), Var(f"{part.var.name}_run")
    first, extent = outer * run, as_index(part.extent)
    end = extent if part.limit is None else part.limit
    inner = Var(f"{part.var.name}_in_run")
    body = substitute_stmt(part.body, {part.var: first + inner})
    is_whole = part.limit is None and parts * run == part.extent
    steps = For(inner, run, body, limit=None if is_whole else maximum(minimum(end - first, run), 0))
    limit = None if part.limit is None else (part.limit + (run - 1)) // run
    return replace(part, var=outer, extent=parts, body=steps, limit=limit)


def _replace_allocations(s: Stmt, buffers: Mapping[Buffer, Buffer], front: Indices) -> Stmt:
    """Without the allocations of `buffers`: accesses go to others, with the indices `front` before their own."""
    moved = set(buffers.values())

    def without(n: Stmt) -> Stmt | None:
        return n.body if isinstance(n, Alloc) and n.buffer in moved else None

    return transform_stmt(redirect(s, buffers, lambda _, indices: (*front, *indices)), without)


def _privatise(body: Stmt) -> Stmt:
    """Allocations of GLOBAL scope inside a nest are memory of one worker."""
    found = [n.buffer for n in walk_stmts(body) if isinstance(n, Alloc) and n.buffer.scope is Scope.GLOBAL]
    return redirect(body, {b: Buffer(b.name, b.shape, b.dtype, Scope.LOCAL, b.sizes) for b in found})


def _phase(name: str, body: Stmt, known: tuple[Buffer, ...]) -> Phase:
    used = indices_by_buffer(body, frozenset(known))
    params = tuple(b for b in known if b in used)
    writes = {n.buffer for n in walk_stmts(body) if isinstance(n, Store)}
    func = Func(name, params, (), body, tuple(b for b in params if b in writes))
    return Phase(func, tuple(b for b in params if b not in writes), func.outputs)
