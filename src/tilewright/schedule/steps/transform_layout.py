"""transform_layout: a buffer gets another layout, in all kernels that touch it.

    T = alloc(f32[64, 100])          TransformLayout("T", Layout((        T = alloc(f32[4, 100, 16])
    T[i, j] = …                        Split(0, 16), Reorder((0, 2, 1)))))     T[i // 16, j, i % 16] = …
    … = T[m, n]                                 ─────>                         … = T[m // 16, n, m % 16]

Blocks keep their iterators and loops, which are those of the logical shape; only indices change. A loop split by 16
then walks the blocks. Positions that the layout adds (a Split that does not divide, a Pad) have no logical index, so
no access reaches them and they need no value. A constant is laid out here and now, with zeros there.

The inputs and outputs of the Module, and what external code sees, keep the layout that was agreed with the caller.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Indices
from tilewright.ir.layout import Dims, Fuse, Layout, LayoutPrimitive, Pad, Reorder, Split
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.support.program import map_program
from tilewright.tir.func import Call, Constant, External, Func, Module, Program
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges


@dataclass(frozen=True, slots=True)
class TransformLayout(Step):
    buffer: str
    layout: Layout

    def apply(self, module: Module) -> Module:
        old = self._find(module)
        self._check_layout(old)
        new = old.with_shape(self.layout.shape(old.shape))
        if new is old and not any(isinstance(p, Reorder) for p in self.layout.primitives):
            return module

        users = module.users(old)
        return module.with_funcs(
            {f.name: self._rewrite(f, old, new) for f in users},
            program=self._program(module, old, new, {f.name for f in users}),
            constants=self._constants(module, old, new),
            temps=_swapped(module.temps, old, new),
        )

    def _find(self, module: Module) -> Buffer:
        for b in (*module.inputs, *module.outputs):
            if b.name == self.buffer:
                raise ScheduleError(
                    f"{self}: {b.name} is an input or output of the module; callers know its layout",
                    where=repr(b),
                    hint="CacheRead or CacheWrite makes a copy that may have any layout",
                )
        found = module.buffer(self.buffer)
        if found is None:
            unused = (*(c.buffer for c in module.constants), *module.temps)
            found = next((b for b in unused if b.name == self.buffer), None)
        if found is None:
            raise ScheduleError(f"{self}: the module has no buffer {self.buffer!r}")
        return found

    def _check_layout(self, buffer: Buffer) -> None:
        shape: Dims = buffer.shape
        for p in self.layout.primitives:
            wrong = misfit(p, shape)
            if wrong is not None:
                raise ScheduleError(
                    f"{self}: {p} does not fit a shape of {list(shape)}: {wrong}",
                    where=repr(buffer),
                    hint="each primitive counts the dimensions that the one before it leaves",
                )
            shape = p.shape(shape)

    def _rewrite(self, func: Func, old: Buffer, new: Buffer) -> Func:
        simplify = Simplifier(ranges(func.body))

        def place(_: Buffer, indices: Indices) -> Indices:
            return tuple([simplify(i) for i in self.layout.forward(old.shape, indices)])

        return replace(
            func,
            params=_swapped(func.params, old, new),
            locals=_swapped(func.locals, old, new),
            body=redirect(func.body, {old: new}, place),
            outputs=_swapped(func.outputs, old, new),
        )

    def _constants(self, module: Module, old: Buffer, new: Buffer) -> tuple[Constant, ...]:
        if old in module.temps:
            return module.constants
        return tuple(
            [Constant(new, self.layout.array(c.value)) if c.buffer is old else c for c in module.constants]
        )

    def _program(self, module: Module, old: Buffer, new: Buffer, users: set[str]) -> Program:
        if old in module.outside:
            raise ScheduleError(
                f"{self}: {old.name} is used by external code or as a condition, where its layout is fixed",
                where=repr(old),
                hint="CacheRead or CacheWrite makes a copy that may have any layout",
            )

        def swapped(run: list[Call | External]) -> list[Call | External]:
            return [
                Call(c.func, _swapped(c.args, old, new)) if isinstance(c, Call) and c.func in users else c
                for c in run
            ]

        return map_program(module.program, swapped, lambda cond: cond)


def _swapped(buffers: tuple[Buffer, ...], old: Buffer, new: Buffer) -> tuple[Buffer, ...]:
    return tuple([new if b is old else b for b in buffers]) if old in buffers else buffers


def misfit(p: LayoutPrimitive, shape: Dims) -> str | None:
    """Why a layout primitive cannot be applied to `shape`."""
    rank = len(shape)
    match p:
        case Split():
            if p.factor < 1:
                return "the factor must be positive"
            return None if 0 <= p.dim < rank else f"there is no dimension {p.dim}"
        case Pad():
            if p.before < 0 or p.after < 0:
                return "padding must not be negative"
            return None if 0 <= p.dim < rank else f"there is no dimension {p.dim}"
        case Fuse():
            return (
                None if p.dim >= 0 and p.count >= 1 and p.dim + p.count <= rank else "it reaches over the end"
            )
        case Reorder():
            return (
                None
                if sorted(p.order) == list(range(rank))
                else "the order is no permutation of its dimensions"
            )
