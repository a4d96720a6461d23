"""set_scope: a buffer of a Func moves to other memory.

    T = alloc(f32[64, 64])        SetScope("T", LOCAL)       T = alloc(f32[64, 64], "local")
                                       ─────>

Memory of one worker must not carry values into or out of a parallel loop: all uses are inside it, or none.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Scope
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import contains_block
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.func import Func, Module
from tilewright.tir.rewrite import redirect
from tilewright.tir.stmt import LoopKind, loops


@dataclass(frozen=True, slots=True)
class SetScope(Step):
    buffer: str
    scope: Scope

    def apply(self, module: Module) -> Module:
        for func in module.funcs:
            for old in func.locals:
                if old.name == self.buffer:
                    return module.with_func(self._rewrite(func, old))
        shared = {p.name for f in module.funcs for p in f.params}
        if self.buffer in shared:
            raise ScheduleError(
                f"{self}: {self.buffer} is shared between kernels or with the caller; only a buffer that is local to "
                "one Func can leave global memory",
                hint="CacheRead and CacheWrite make a local copy",
            )
        known = ", ".join(b.name for f in module.funcs for b in f.locals)
        raise ScheduleError(f"{self}: no Func has a local buffer {self.buffer!r}", hint=f"there are: {known}")

    def _rewrite(self, func: Func, old: Buffer) -> Func:
        if self.scope is not Scope.GLOBAL:
            flow = Dataflow(func)
            users = (*flow.writers(old), *flow.readers(old))
            for loop in loops(func.body):
                if loop.kind is not LoopKind.PARALLEL and not loop.kind.is_thread_axis:
                    continue
                inside = [u for u in users if contains_block(loop, u)]
                if inside and len(inside) < len(users):
                    outside = next(u for u in users if not contains_block(loop, u))
                    error = step_refusal(
                        func,
                        loop,
                        f"block {inside[0].name!r} uses {old.name} in the {loop.kind.value} loop {loop.var.name!r}, "
                        f"and block {outside.name!r} outside of it: they share it through global memory",
                        f"move {outside.name!r} under the loop first",
                    )
                    raise ScheduleError(f"{self}: {error.message}", where=error.where, hint=error.hint)
        new = Buffer(old.name, old.shape, old.dtype, self.scope, old.sizes)
        body = redirect(func.body, {old: new})
        return replace(func, body=body, locals=tuple(new if b is old else b for b in func.locals))
