"""transform_layout: a buffer gets another layout, in all kernels that touch it.

    T = alloc(f32[64, 100])     TransformLayout("T", Layout((                    T = alloc(f32[4, 100, 16])
    T[i, j] = …                   SplitDim(0, 16), ReorderDims((0, 2, 1)))))     T[i // 16, j, i % 16] = …
    … = T[m, n]                               ─────>                             … = T[m // 16, n, m % 16]

Blocks keep their iterators and loops, which are those of the logical shape; only indices change. A loop split by 16
then walks the blocks. Positions that the layout adds (a SplitDim that does not divide, a PadDim) have no logical index,
so no access reaches them and they need no value. A constant is laid out here and now, with zeros there.

With UnfoldDim an element has several places. A constant has it in all of them. What is computed is computed as before,
into a buffer `T_folded`, and a block `T_unfold` then copies it to all of its places (`schedule/tile_copies.py`);
readers that come after have the tiles. With CropDim, every access must be known to be of an element that stays. FoldDim
is for constants whose copies are equal.

The inputs and outputs of the Module, and what external code sees, keep the layout that was agreed with the caller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Indices
from tilewright.ir.layout import CropDim, Dims, FoldDim, FuseDims, Layout, SplitDim
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.step import Step
from tilewright.schedule.tile_copies import check_kept, copied_to_tiles
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Constant, Func, Module
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges


@dataclass(frozen=True, slots=True)
class TransformLayout(Step):
    buffer: str
    layout: Layout

    @property
    def folded(self) -> str:
        """The buffer that is computed, and then copied to tiles."""
        return f"{self.buffer}_folded"

    @property
    def copy(self) -> str:
        """The block that does so."""
        return f"{self.buffer}_unfold"

    def apply(self, module: Module) -> Module:
        return transform_layouts(module, [self])

    def find(self, module: Module) -> Buffer:
        """The buffer, if it may have the layout."""
        found = own_buffer(module, self.buffer, self)
        self._check_layout(found)
        return found

    def _check_layout(self, buffer: Buffer) -> None:
        shape: Dims = buffer.shape
        sizes = buffer.sizes
        for p in self.layout.primitives:
            wrong = p.misfit(shape)
            if wrong is not None:
                raise ScheduleError(
                    f"{self}: {p} does not fit a shape of {list(shape)}: {wrong}",
                    where=repr(buffer),
                    hint="each primitive counts the dimensions that the one before it leaves",
                )
            if sizes and isinstance(p, CropDim | FoldDim) and sizes[p.dim] is not None:
                raise ScheduleError(
                    f"{self}: {p} is of an open dimension, whose end is known only when the program runs",
                    where=repr(buffer),
                )
            sizes = p.sizes(shape, sizes) if sizes else ()
            shape = p.shape(shape)


def own_buffer(module: Module, name: str, step: Step) -> Buffer:
    """The buffer of this name, if its layout is ours to choose; `step` wants to do so."""
    for b in (*module.inputs, *module.outputs):
        if b.name == name:
            raise ScheduleError(
                f"{step}: {b.name} is an input or output of the module; callers know its layout",
                where=repr(b),
                hint="CacheRead or CacheWrite makes a copy that may have any layout",
            )
    found = module.buffer(name)
    if found is None:
        unused = (*(c.buffer for c in module.constants), *module.temps)
        found = next((b for b in unused if b.name == name), None)
    if found is None:
        raise ScheduleError(f"{step}: the module has no buffer {name!r}")
    if found in module.outside:
        raise ScheduleError(
            f"{step}: {found.name} is used by external code or as a condition, where its layout is fixed",
            where=repr(found),
            hint="CacheRead or CacheWrite makes a copy that may have any layout",
        )
    return found


def transform_layouts(module: Module, steps: Iterable[TransformLayout]) -> Module:
    """What the steps do one after the other, if each is about another buffer. Whoever touches several of these is
    rewritten once.
    """
    layouts: dict[Buffer, Layout] = {}
    unfolded: dict[Buffer, tuple[TransformLayout, Layout]] = {}
    for step in steps:
        buffer = step.find(module)
        if buffer in layouts or buffer in unfolded:
            raise ScheduleError(f"{step}: this buffer gets another layout at the same time")
        layout = step.layout
        if not layout.is_one_to_one:
            layout = layout.normalised(buffer.shape)
            constant = next((c for c in module.constants if c.buffer is buffer), None)
            _check_merged(step, layout, buffer, constant)
            if layout.copies and constant is None:
                unfolded[buffer] = step, layout
                continue
            for f in module.users(buffer):
                check_kept(step, f.body, Simplifier(ranges(f.body)), buffer, layout)
        if _moves(layout, buffer):
            layouts[buffer] = layout
    if layouts:
        new = {b: layout.buffer(b) for b, layout in layouts.items()}
        users = {f.name: f for b in layouts for f in module.users(b)}
        module = module.with_funcs(
            {name: _laid_out(f, layouts, new) for name, f in users.items()},
            constants=_constants(module, layouts, new),
            temps=new,
        )
    for buffer, (step, layout) in unfolded.items():
        module = copied_to_tiles(step, module, buffer, layout, folded=step.folded, copy=step.copy)
    return module


def _check_merged(step: TransformLayout, layout: Layout, buffer: Buffer, constant: Constant | None) -> None:
    """Elements that get one place are equal."""
    if not layout.merges:
        return
    if constant is None:
        raise ScheduleError(
            f"{step}: elements of {buffer.name} would share a place; that they are equal is known of constants only",
            where=repr(buffer),
            hint=f"ComputeInline of the block that makes the copies reads {buffer.name} as it was",
        )
    value = constant.value
    for p in layout.primitives:
        if isinstance(p, FoldDim) and not p.agrees(value):
            raise ScheduleError(
                f"{step}: elements of {buffer.name} that would share a place under {p} are not equal",
                where=repr(buffer),
            )
        value = p.array(value)


def _moves(layout: Layout, buffer: Buffer) -> bool:
    """Only splits and fuses of the same elements in the same shape leave all where it is."""
    return layout.shape(buffer.shape) != buffer.shape or any(
        not isinstance(p, SplitDim | FuseDims) for p in layout.primitives
    )


def _laid_out(func: Func, layouts: Mapping[Buffer, Layout], new: Mapping[Buffer, Buffer]) -> Func:
    simplify = Simplifier(ranges(func.body))

    def place(buffer: Buffer, indices: Indices) -> Indices:
        return tuple([simplify(i) for i in layouts[buffer].forward(buffer.shape, indices, simplify)])

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
