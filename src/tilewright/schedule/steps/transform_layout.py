"""transform_layout: a buffer gets another layout, in all kernels that touch it.

    T = alloc(f32[64, 100])     TransformLayout("T", Layout((                    T = alloc(f32[4, 100, 16])
    T[i, j] = …                   SplitDim(0, 16), ReorderDims((0, 2, 1)))))     T[i // 16, j, i % 16] = …
    … = T[m, n]                               ─────>                             … = T[m // 16, n, m % 16]

Blocks keep their iterators and loops, which are those of the logical shape; only indices change. A loop split by 16
then walks the blocks. Positions that the layout adds (a SplitDim that does not divide, a PadDim) have no logical index,
so no access reaches them and they need no value. A constant is laid out here and now, with zeros there.

The inputs and outputs of the Module, and what external code sees, keep the layout that was agreed with the caller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Indices
from tilewright.ir.layout import Dims, FuseDims, Layout, LayoutPrimitive, PadDim, ReorderDims, SplitDim
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Constant, Func, Module
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges


@dataclass(frozen=True, slots=True)
class TransformLayout(Step):
    buffer: str
    layout: Layout

    def apply(self, module: Module) -> Module:
        return transform_layouts(module, [self])

    def find(self, module: Module) -> Buffer:
        """The buffer, if it may have the layout."""
        found = self._find(module)
        self._check_layout(found)
        return found

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
        if found in module.outside:
            raise ScheduleError(
                f"{self}: {found.name} is used by external code or as a condition, where its layout is fixed",
                where=repr(found),
                hint="CacheRead or CacheWrite makes a copy that may have any layout",
            )
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


def transform_layouts(module: Module, steps: Iterable[TransformLayout]) -> Module:
    """What the steps do one after the other, if each is about another buffer. Whoever touches several of these is
    rewritten once.
    """
    layouts: dict[Buffer, Layout] = {}
    for step in steps:
        buffer = step.find(module)
        if buffer in layouts:
            raise ScheduleError(f"{step}: this buffer gets another layout at the same time")
        if _moves(step.layout, buffer):
            layouts[buffer] = step.layout
    if not layouts:
        return module
    new = {b: layout.buffer(b) for b, layout in layouts.items()}
    users = {f.name: f for b in layouts for f in module.users(b)}
    return module.with_funcs(
        {name: _laid_out(f, layouts, new) for name, f in users.items()},
        constants=_constants(module, layouts, new),
        temps=new,
    )


def _moves(layout: Layout, buffer: Buffer) -> bool:
    return layout.shape(buffer.shape) != buffer.shape or any(
        isinstance(p, ReorderDims) for p in layout.primitives
    )


def _laid_out(func: Func, layouts: Mapping[Buffer, Layout], new: Mapping[Buffer, Buffer]) -> Func:
    simplify = Simplifier(ranges(func.body))

    def place(buffer: Buffer, indices: Indices) -> Indices:
        return tuple([simplify(i) for i in layouts[buffer].forward(buffer.shape, indices)])

    here = {b: new[b] for b in (*func.params, *func.locals) if b in new}
    return replace(
        func,
        params=_swapped(func.params, new),
        locals=_swapped(func.locals, new),
        body=redirect(func.body, here, place),
        outputs=_swapped(func.outputs, new),
    )


def _constants(
    module: Module, layouts: Mapping[Buffer, Layout], new: Mapping[Buffer, Buffer]
) -> tuple[Constant, ...]:
    if {c.buffer for c in module.constants}.isdisjoint(layouts):
        return module.constants
    return tuple(
        [
            Constant(new[c.buffer], layouts[c.buffer].array(c.value)) if c.buffer in layouts else c
            for c in module.constants
        ]
    )


def _swapped(buffers: tuple[Buffer, ...], new: Mapping[Buffer, Buffer]) -> tuple[Buffer, ...]:
    return tuple([new.get(b, b) for b in buffers])


def misfit(p: LayoutPrimitive, shape: Dims) -> str | None:
    """Why a layout primitive cannot be applied to `shape`."""
    rank = len(shape)
    match p:
        case SplitDim():
            if p.factor < 1:
                return "the factor must be positive"
            return None if 0 <= p.dim < rank else f"there is no dimension {p.dim}"
        case PadDim():
            if p.before < 0 or p.after < 0:
                return "padding must not be negative"
            return None if 0 <= p.dim < rank else f"there is no dimension {p.dim}"
        case FuseDims():
            return (
                None if p.dim >= 0 and p.count >= 1 and p.dim + p.count <= rank else "it reaches over the end"
            )
        case ReorderDims():
            return (
                None
                if sorted(p.order) == list(range(rank))
                else "the order is no permutation of its dimensions"
            )
