"""parallel, vectorize, unroll: how the iterations of a loop run.

    for i in range(8):             Parallel("i")              for i in parallel(8):
        block(vi = i)                    ─────>                   block(vi = i)

PARALLEL and VECTORIZED promise that iterations are independent, so these steps prove it: no reduce iterator is fed,
and what one iteration writes no other touches. Buffers that each iteration fills for itself are excepted under a
parallel loop, where each iteration has its own; the lanes of a vector share them. Unrolling keeps the order and
needs no proof.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import free_vars
from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_loop, path_to
from tilewright.schedule.step import LoopStep
from tilewright.tir.analysis.independence import dependence, instances
from tilewright.tir.func import Func
from tilewright.tir.stmt import For, IterKind, LoopKind, Stmt, loops


@dataclass(frozen=True, slots=True)
class Parallel(LoopStep):
    """Iterations run on the workers of the team, in parts."""

    def rewrite(self, func: Func) -> Func:
        loop = serial_loop(func, self.loop)
        for other in (*path_to(func.body, loop)[:-1], *loops(loop.body)):
            if isinstance(other, For) and (other.kind is LoopKind.PARALLEL or other.kind.is_thread_axis):
                raise step_refusal(
                    func,
                    other,
                    f"{self.loop} would be nested with the {other.kind.value} loop {other.var.name}",
                    hint="fuse the loops and make the result parallel",
                )
        _check_not_inside(func, loop, LoopKind.VECTORIZED)
        check_independent(
            func, loop, private=True, hint="its iterations would race; make another loop parallel"
        )
        return _with_kind(func, loop, LoopKind.PARALLEL)


@dataclass(frozen=True, slots=True)
class Vectorize(LoopStep):
    """Iterations are the lanes of vectors."""

    def rewrite(self, func: Func) -> Func:
        loop = serial_loop(func, self.loop)
        for other in loops(loop.body):
            if other.kind.is_at_once:
                raise step_refusal(
                    func, other, f"{self.loop} would hold the {other.kind.value} loop {other.var.name}"
                )
        _check_not_inside(func, loop, LoopKind.VECTORIZED)
        check_independent(
            func,
            loop,
            private=False,
            hint=f"give each lane a partial result of its own first: Rfactor(<block>, {self.loop!r})",
        )
        return _with_kind(func, loop, LoopKind.VECTORIZED)


@dataclass(frozen=True, slots=True)
class Unroll(LoopStep):
    """The body is written out once per iteration."""

    def rewrite(self, func: Func) -> Func:
        return _with_kind(func, serial_loop(func, self.loop), LoopKind.UNROLLED)


def serial_loop(func: Func, name: str) -> For:
    """The loop of that name, which nothing has been decided about yet."""
    loop = find_loop(func, name)
    if loop.kind is not LoopKind.SERIAL:
        raise step_refusal(func, loop, f"{name} is {loop.kind.value} already")
    return loop


def _with_kind(func: Func, loop: For, kind: LoopKind) -> Func:
    return replace_stmt(func, loop, replace(loop, kind=kind))


def _check_not_inside(func: Func, loop: For, kind: LoopKind) -> None:
    above: tuple[Stmt, ...] = path_to(func.body, loop)[:-1]
    for other in above:
        if isinstance(other, For) and other.kind is kind:
            raise step_refusal(
                func, loop, f"{loop.var.name} is inside the {kind.value} loop {other.var.name}"
            )


def check_independent(func: Func, loop: For, *, private: bool, hint: str) -> None:
    """Iterations may run in any order. `private`: each may have its own of the buffers that it fills for itself."""
    for b in instances(loop.body):
        if loop.var in b.loop_vars(IterKind.REDUCE):
            fed = next(
                it.var.name
                for it, e in zip(b.block.iters, b.bindings, strict=True)
                if it.kind is IterKind.REDUCE and loop.var in free_vars(e)
            )
            raise step_refusal(
                func,
                loop,
                f"{loop.var.name} feeds the reduce iterator {fed} of {b.block.name}, so its iterations update the "
                "same elements",
                hint=hint.replace("<block>", repr(b.block.name)),
            )
    conflict = dependence(func, loop, private=private)
    if conflict is not None:
        raise step_refusal(
            func,
            loop,
            f"iterations of {loop.var.name} are not independent: {conflict.other} uses elements of "
            f"{conflict.buffer.name} that {conflict.writer} writes in another iteration",
        )
