"""split_phases: a Func whose body is a sequence of nests becomes one kernel per nest.

Workers meet at a barrier between kernels, so each kernel has a static number of parts: the extent of its
outermost loop if that is PARALLEL, else one. Local buffers that flow from one phase to another, or between
the iterations of a phase's outermost loop, become memory shared by the workers (`shared`, placed in the
arena); what stays inside one iteration becomes memory of one worker.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Scope
from tilewright.support.errors import InternalError
from tilewright.tir.func import Func
from tilewright.tir.passes.place_allocations import accesses, place_allocations, separate_buffers
from tilewright.tir.rewrite import replace_buffers
from tilewright.tir.stmt import Alloc, For, LoopKind, Seq, Stmt, Store, walk


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A kernel: its params are some of the Func's params and of the shared buffers."""

    func: Func
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]


def split_phases(func: Func) -> tuple[tuple[Phase, ...], tuple[Buffer, ...]]:
    """(phases in order, shared buffers). The body is a sequence of nests."""
    func = separate_buffers(func)
    assert isinstance(func.body, Seq)
    nests = func.body.stmts
    local = frozenset(func.locals)
    used_in = [accesses(n, local) for n in nests]
    shared: list[Buffer] = []
    placed: list[Stmt] = []
    for b in func.locals:
        if sum(b in u for u in used_in) > 1:
            shared.append(b)
    for nest, used in zip(nests, used_in, strict=True):
        own = tuple(b for b in used if b not in shared)
        body = place_allocations(Func(func.name, func.params, own, nest)).body
        while isinstance(body, Alloc):  # at the top: not inside any iteration
            if body.buffer.scope is Scope.GLOBAL:
                shared.append(body.buffer)
            elif isinstance(nest, For) and nest.kind is LoopKind.PARALLEL:
                raise InternalError(
                    f"{func.name}: {body.buffer.name} is carried between iterations of a parallel loop"
                )
            else:
                break
            body = body.body
        placed.append(_privatise(body))
    crossing = [b for b in shared if b.scope is not Scope.GLOBAL]
    if crossing:
        raise InternalError(
            f"{func.name}: {crossing[0].name} in {crossing[0].scope.value} scope is used by two nests"
        )
    known = (*func.params, *shared)
    phases = [
        _phase(func.name if len(placed) == 1 else f"{func.name}_{n}", s, known) for n, s in enumerate(placed)
    ]
    return tuple(phases), tuple(shared)


def _privatise(body: Stmt) -> Stmt:
    """Allocations of GLOBAL scope inside a nest are memory of one worker."""
    found = [n.buffer for n in walk(body) if isinstance(n, Alloc) and n.buffer.scope is Scope.GLOBAL]
    return replace_buffers(body, {b: Buffer(b.name, b.shape, b.dtype, Scope.LOCAL) for b in found})


def _phase(name: str, body: Stmt, known: tuple[Buffer, ...]) -> Phase:
    used = accesses(body, frozenset(known))
    params = tuple(b for b in known if b in used)
    writes = {n.buffer for n in walk(body) if isinstance(n, Store)}
    func = Func(name, params, (), body, tuple(b for b in params if b in writes))
    return Phase(func, tuple(b for b in params if b not in writes), func.outputs)


def rename(phase: Phase, name: str) -> Phase:
    return replace(phase, func=replace(phase.func, name=name))
