"""bind: the iterations of a loop run on an axis of a GPU's grid.

    for i in range(64):            Bind("i", "block_x")           for i in block_x(64):
        for j in range(32):              ─────>                       for j in range(32):
            C(vi = i, vj = j)                                             C(vi = i, vj = j)

Axes are `block_x`, `block_y`, `block_z`, `thread_x`, `thread_y`, `thread_z` and `vthread`. The iterations must be
independent, as for `parallel`: no reduce iterator is fed (rfactor first, and bind the loop over the partial results),
and what one iteration writes no other touches, except buffers that each fills for itself. The loops of the nest fit one
launch together (`tir/thread_axes.py`): loops on one axis have one extent, and no axis is longer than the hardware has.
"""

from dataclasses import dataclass, replace

from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_loop
from tilewright.schedule.step import LoopStep
from tilewright.schedule.steps.loop_kind import check_independent, serial_loop
from tilewright.tir.func import Func
from tilewright.tir.stmt import LoopKind
from tilewright.tir.thread_axes import launch_misfit

_AXES = {k.value: k for k in LoopKind if k.is_thread_axis}


@dataclass(frozen=True, slots=True)
class Bind(LoopStep):
    axis: str

    def rewrite(self, func: Func) -> Func:
        loop = serial_loop(func, self.loop)
        kind = _AXES.get(self.axis)
        if kind is None:
            raise step_refusal(
                func, loop, f"there is no thread axis {self.axis!r}", hint=f"there are: {', '.join(_AXES)}"
            )
        check_independent(
            func,
            loop,
            private=True,
            hint=f"give each iteration a partial result of its own first: Rfactor(<block>, {self.loop!r})",
        )
        bound = replace_stmt(func, loop, replace(loop, kind=kind))
        misfit = launch_misfit(bound.body)
        if misfit is not None:
            at = find_loop(func, misfit.loop.var.name)
            raise step_refusal(
                func, at, misfit.reason, hint="split the loop to the size of the axis, or take another"
            )
        return bound
