"""transform_layout with tiles that overlap: windows and others read them, whoever writes fills all copies."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_programs import check, check_native

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, as_index, const, select
from tilewright.ir.layout import (
    CropDim,
    FoldDim,
    FuseDims,
    Layout,
    PadDim,
    ReorderDims,
    SplitDim,
    UnfoldDim,
)
from tilewright.ir.window_tiles import WindowTiles
from tilewright.schedule.steps import ComputeAt, ComputeInline, Parallel, TransformLayout, Vectorize
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError
from tilewright.support.sizes import Dim, sym_int
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Call, Constant, Func, Module, single
from tilewright.tir.interp import interpret_module
from tilewright.tir.passes.limit_loops import limit_loops
from tilewright.tir.printer import print_expr
from tilewright.tir.rewrite import redirect
from tilewright.tir.stmt import blocks
from tilewright.tir.verify import verify_module


def conv(
    outputs: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    *,
    unread: int = 0,
    dtype: DType = DType.I32,
) -> Func:
    """T is computed, windows read its rows, and its columns one by one."""
    extent = WindowTiles(outputs, 1, kernel, stride, dilation).reach + unread
    b = FuncBuilder("conv")
    x, w = b.param("X", (2, extent, 4), dtype), b.param("W", (3, 2, kernel), dtype)
    t = b.compute("T", (2, extent, 4), lambda c, h, v: x[c, h, v] * 2)
    y = b.reduce(
        "Y",
        (3, outputs, 4),
        (2, kernel),
        lambda o, h, v, c, r: (t[c, h * stride + r * dilation, v], w[o, c, r]),
    )
    return b.finish(y)


def loads_of(func: Func, block: str, buffer: str) -> str:
    """How the block reads the buffer."""
    found = next(b for b in blocks(func.body) if b.name == block)
    text = print_expr(found.store.value)
    start = text.index(f"{buffer}[")
    return text[start : text.index("]", start) + 1]


@pytest.mark.parametrize("per_tile", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("outputs", "kernel", "stride", "dilation"),
    [(6, 3, 1, 1), (5, 3, 2, 1), (7, 3, 1, 2), (5, 3, 2, 2), (5, 1, 2, 1), (4, 2, 3, 1), (5, 2, 2, 3)],
)
def test_windows_read_tiles(outputs: int, kernel: int, stride: int, dilation: int, per_tile: int) -> None:
    windows = WindowTiles(outputs, per_tile, kernel, stride, dilation)
    for unread in (0, 1, 5):
        func = conv(outputs, kernel, stride, dilation, unread=unread)
        layout = windows.layout(1, windows.reach + unread)
        done = check(func, TransformLayout("T", layout))
        tiles = next(b for b in done.locals if b.name == "T")
        assert tiles.shape == (2, windows.tiles, windows.tile, 4)
        assert "min" not in loads_of(done, "Y", "T")


def test_the_tile_is_that_of_the_output() -> None:
    done = check(conv(6, 3, 2), TransformLayout("T", WindowTiles(6, 2, 3, 2).layout(1, 13)))
    assert loads_of(done, "Y", "T") == "T[Y_vc, Y_vh // 2, Y_vh % 2 * 2 + Y_vr, Y_vv]"
    assert [b.name for b in blocks(done.body)] == ["T", "T_unfold", "Y"]


def test_tiles_go_together_with_other_primitives() -> None:
    tiled = WindowTiles(6, 2, 3).layout(1, 8) + Layout(
        (ReorderDims((1, 2, 3, 0)), SplitDim(2, 2), PadDim(0, 0, 1))
    )
    check(conv(6, 3), TransformLayout("T", tiled))
    blocks_first = Layout((SplitDim(2, 3), UnfoldDim(1, 4, 2), FuseDims(0, 2)))
    check(conv(6, 3), TransformLayout("T", blocks_first))
    check(
        conv(6, 3),
        TransformLayout("T", blocks_first),
        TransformLayout("T", Layout((ReorderDims((2, 1, 0, 3)),))),
    )


def test_an_image_in_tiles_of_rows_columns_and_channels() -> None:
    """As ALT lays out the input of a convolution: tiles of rows, of columns, and of channels, each with its inside."""
    b = FuncBuilder("image")
    x, w = b.param("X", (4, 9, 8), DType.I32), b.param("W", (3, 4, 3, 3), DType.I32)
    t = b.compute("T", (4, 9, 8), lambda c, h, v: x[c, h, v] * 2)
    y = b.reduce("Y", (3, 4, 6), (4, 3, 3), lambda o, h, v, c, r, s: (t[c, h * 2 + r, v + s], w[o, c, r, s]))
    rows, columns = WindowTiles(4, 2, 3, 2), WindowTiles(6, 3, 3)
    split = rows.layout(1, 9) + columns.layout(3, 8) + Layout((SplitDim(0, 2),))
    layout = split + Layout((ReorderDims((2, 4, 0, 3, 5, 1)),))
    assert layout.shape((4, 9, 8)) == (2, 2, 2, 5, 5, 2)
    done = check_native(b.finish(y), TransformLayout("T", layout))
    expected = "T[Y_vh // 2, Y_vv // 3, Y_vc // 2, Y_vh % 2 * 2 + Y_vr, Y_vv % 3 + Y_vs, Y_vc % 2]"
    assert loads_of(done, "Y", "T") == expected


def test_native_code_of_tiles() -> None:
    step = TransformLayout("T", WindowTiles(6, 2, 3, 2).layout(1, 13))
    schedule = (step, Parallel("T_unfold_i0"), Vectorize("T_unfold_i3"), Vectorize("Y_v"))
    check_native(conv(6, 3, 2, dtype=DType.F32), step)
    check_native(conv(6, 3, 2, dtype=DType.F32), *schedule)
    check_native(plain(), TransformLayout("T", Layout((UnfoldDim(1, 4, 2),))))


def plain() -> Func:
    """Readers that have no windows: one after the other, backwards, every third, and a sum."""
    b = FuncBuilder("plain")
    x = b.param("X", (3, 11), DType.I32)
    t = b.reduce("T", (3, 11), (3,), lambda i, j, k: (x[i, j], x[k, j]))
    y = b.compute("Y", (3, 11), lambda i, j: t[i, j] + t[i, as_index(10) - j])
    z = b.compute("Z", (3, 4), lambda i, j: t[i, j * 3])
    s = b.reduce("S", (3,), (11,), lambda i, j: t[i, j])
    return b.finish(y, z, s)


@pytest.mark.parametrize(
    ("tile", "stride"), [(1, 1), (3, 3), (4, 2), (5, 1), (5, 2), (5, 4), (11, 3), (20, 7)]
)
def test_readers_without_windows(tile: int, stride: int) -> None:
    check(plain(), TransformLayout("T", Layout((UnfoldDim(1, tile, stride),))))


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 6),
    st.integers(1, 6),
)
@settings(max_examples=40, deadline=None)
def test_any_tiles_keep_the_meaning(o: int, k: int, v: int, d: int, tile: int, stride: int) -> None:
    """Those that windows want, and others, where they do not leave gaps."""
    step = TransformLayout("T", Layout((UnfoldDim(1, tile, min(stride, tile)), SplitDim(0, 2))))
    check(conv(o, k, v, d), step)


def test_the_padding_of_a_convolution_is_made_in_tiles() -> None:
    """Nothing is computed twice by a block that only moves data: it goes into the copy."""
    b = FuncBuilder("padded")
    x, w = b.param("X", (2, 6), DType.I32), b.param("W", (2, 3), DType.I32)

    def inside(c: Expr, h: Expr) -> Expr:
        return select(logical_and(as_index(1) <= h, h < 7), x[c, h - 1], const(0, DType.I32))

    p = b.compute("P", (2, 8), inside)
    func = b.finish(b.reduce("Y", (6,), (2, 3), lambda h, c, r: (p[c, h + r], w[c, r])))
    tiles = TransformLayout("P", WindowTiles(6, 2, 3).layout(1, 8))
    done = check(func, tiles, ComputeInline("P"))
    assert [b.name for b in blocks(done.body)] == ["P_unfold", "Y"]
    assert [b.name for b in done.locals] == ["P"]


def test_inlining_the_copy_undoes_it() -> None:
    tiles = TransformLayout("T", WindowTiles(6, 2, 3, 2).layout(1, 13))
    done = check(conv(6, 3, 2), tiles, ComputeInline(tiles.copy))
    assert loads_of(done, "Y", "T_folded") == "T_folded[Y_vc, Y_vh * 2 + Y_vr, Y_vv]"


def test_tiles_are_copied_where_they_are_read() -> None:
    """The copy is a block like others: here one tile is made at a time."""
    tiles = TransformLayout("T", WindowTiles(6, 2, 3).layout(1, 8) + Layout((ReorderDims((1, 0, 2, 3)),)))
    check(conv(6, 3), tiles, ComputeAt("T_unfold", "Y_h"))


# ------------------------------------------------------------------------------------------- several kernels


def network() -> Module:
    """A kernel makes t and reads it, two others read it."""
    f = FuncBuilder("first", "f_")
    x = f.param("x", (2, 9), DType.I32)
    t = f.compute("t", (2, 9), lambda i, j: x[i, j] * 3)
    u = f.compute("u", (2, 9), lambda i, j: t[i, as_index(8) - j] + 1)
    first = f.finish(t, u)
    g = FuncBuilder("windows", "g_")
    second = g.finish(g.reduce("y", (2, 4), (3,), lambda i, o, r: g.use(t)[i, o * 2 + r]))
    k = FuncBuilder("other", "k_")
    third = k.finish(k.compute("z", (9, 2), lambda i, j: k.use(t)[j, i] + k.use(u)[j, i]))
    funcs = (first, second, third)
    buffers = {b.name: b for fn in funcs for b in fn.params}
    outputs = (buffers["g_y"], buffers["k_z"])
    program = tuple(Call(fn.name, fn.params) for fn in funcs)
    return Module(funcs, program, (x,), outputs, (), (buffers["f_t"], buffers["f_u"]))


def results(module: Module) -> dict[str, np.ndarray]:
    feeds = {b.name: np.arange(b.size, dtype=np.int32).reshape(b.shape) - 7 for b in module.inputs}
    return interpret_module(module, feeds)


def check_modules(before: Module, after: Module) -> None:
    verify_module(after)
    expected = results(before)
    for name, found in results(after).items():
        np.testing.assert_array_equal(found, expected[name])


def test_a_buffer_between_kernels_is_copied_by_the_one_that_makes_it() -> None:
    module = network()
    done = TransformLayout("f_t", WindowTiles(4, 2, 3, 2).layout(1, 9)).apply(module)
    check_modules(module, done)
    assert [(b.name, b.shape) for b in done.temps] == [("f_t", (2, 2, 5)), ("f_u", (2, 9))]
    assert [b.name for b in done.func("first").locals] == ["f_t_folded"]
    assert [b.name for b in blocks(done.func("first").body)] == ["f_t", "f_t_unfold", "f_u"]
    assert loads_of(done.func("windows"), "g_y", "f_t") == "f_t[g_y_vi, g_y_vo // 2, g_y_vo % 2 * 2 + g_y_vr]"
    both = replay(done, (TransformLayout("f_u", Layout((UnfoldDim(0, 1, 1), UnfoldDim(2, 3, 2)))),))
    check_modules(module, both)


def with_constant(value: np.ndarray) -> Module:
    b = FuncBuilder("taps")
    x = b.param("X", (4,), DType.I32)
    w = b.param("W", value.shape, DType.I32)
    func = b.finish(b.reduce("Y", (4,), (3,), lambda o, r: (w[o * 2 + r], x[o])))
    return single(func, (Constant(w, value),))


def test_constants_are_unfolded_at_compile_time() -> None:
    module = with_constant(np.arange(10, dtype=np.int32))
    done = TransformLayout("W", WindowTiles(4, 2, 3, 2).layout(0, 10)).apply(module)
    check_modules(module, done)
    np.testing.assert_array_equal(done.constants[0].value, [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]])
    assert [b.name for b in blocks(done.funcs[0].body)] == ["Y"]


def test_a_layout_and_its_inverse_leave_constants_and_kernels_as_they_were() -> None:
    module = with_constant(np.arange(10, dtype=np.int32))
    for layout in (
        Layout((UnfoldDim(0, 5, 4),)),
        Layout((PadDim(0, 2, 1),)),
        Layout((SplitDim(0, 4), ReorderDims((1, 0)), FuseDims(0, 2))),
    ):
        there = TransformLayout("W", layout).apply(module)
        back = TransformLayout("W", layout.inverted((10,))).apply(there)
        check_modules(module, back)
        np.testing.assert_array_equal(back.constants[0].value, module.constants[0].value)
        assert str(back) == str(module)


def test_the_inverse_of_padding_and_splitting_of_what_is_computed() -> None:
    layout = Layout((PadDim(1, 2, 1), SplitDim(1, 4)))
    module = single(conv(6, 3, 2))
    there = TransformLayout("T", layout).apply(module)
    back = TransformLayout("T", layout.inverted((2, 13, 4))).apply(there)
    assert str(back) == str(module)


# --------------------------------------------------------------------------------------------------- open dimensions


def test_tiles_of_an_open_dimension() -> None:
    rows = sym_int(Dim("rows", 3, 12))
    b = FuncBuilder("open")
    x = b.param("X", (rows, 2), DType.I32)
    t = b.compute("T", (rows, 2), lambda i, j: x[i, j] * 3)
    func = b.finish(b.compute("Y", (rows - 2, 2), lambda o, j: t[o, j] + t[o + 1, j] * 5 + t[o + 2, j] * 7))
    done = TransformLayout("T", Layout((UnfoldDim(0, 6, 4),))).apply(single(func))
    verify_module(done)
    before, after = limit_loops(func), limit_loops(done.funcs[0])
    tiles = next(p for p in after.locals if p.name == "T")
    assert tiles.shape == (3, 6, 2) and tiles.is_open(0)
    for size in range(3, 13):
        feeds = {"X": np.arange(24, dtype=np.int32).reshape(12, 2), "size__rows": np.array([size], np.int64)}
        expected = interpret_module(single(before), feeds)["Y"][: size - 2]
        np.testing.assert_array_equal(interpret_module(single(after), feeds)["Y"][: size - 2], expected)


# --------------------------------------------------------------------------------------------------------- refusals


def refused(module: Module, step: TransformLayout) -> str:
    with pytest.raises(ScheduleError) as e:
        step.apply(module)
    return str(e.value)


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (Layout((UnfoldDim(3, 2, 2),)), "there is no dimension 3"),
        (Layout((UnfoldDim(1, 0, 2),)), "tile and stride must be positive"),
        (Layout((CropDim(1, -1, 0),)), "must not be negative"),
        (Layout((CropDim(1, 4, 7),)), "nothing would be left"),
        (Layout((CropDim(1, 0, 1),)), "not known to be of elements of T that have a place"),
        (Layout((UnfoldDim(1, 2, 3),)), "not known to be of elements of T that have a place"),
        (Layout((FoldDim(0, 1, 12),)), "elements of T would share a place"),
        (Layout((FoldDim(1, 1, 12),)), "there is no dimension 2"),
        (Layout((FoldDim(0, 0, 12),)), "stride and extent must be positive"),
    ],
)
def test_layouts_that_are_not_exact(layout: Layout, why: str) -> None:
    text = refused(single(plain()), TransformLayout("T", layout))
    assert why in text
    assert "T: i32[3, 11]" in text


def test_tiles_of_what_is_read_where_it_is_made() -> None:
    module = replay(single(conv(6, 3)), (ComputeAt("T", "Y_h"),))
    text = refused(module, TransformLayout("T", WindowTiles(6, 2, 3).layout(1, 8)))
    assert "nothing reads T after the nest that writes it" in text


@pytest.mark.parametrize("more", [(), (PadDim(0, 0, 1),)])
def test_tiles_of_what_is_padded(more: tuple[PadDim, ...]) -> None:
    """Also where places without an element make the copy conditional."""
    module = TransformLayout("T", Layout((PadDim(1, 0, 1),))).apply(single(plain()))
    text = refused(module, TransformLayout("T", Layout((UnfoldDim(1, 4, 2), *more))))
    assert "would be copied that nobody writes" in text
    assert "unfold a buffer before its layout is padded" in text


def test_tiles_twice() -> None:
    tiles = TransformLayout("T", Layout((UnfoldDim(1, 4, 2),)))
    assert "'T_folded' or 'T_unfold' is taken" in refused(tiles.apply(single(plain())), tiles)


def test_tiles_that_two_kernels_fill() -> None:
    module = network()
    again = FuncBuilder("again", "a_")
    t = next(b for b in module.temps if b.name == "f_t")
    func = again.finish(again.compute("t", t.shape, lambda i, j: again.use(module.inputs[0])[i, j]))
    renamed = replace(
        module,
        funcs=(*module.funcs, _storing(func, t)),
        program=(*module.program, Call(func.name, _storing(func, t).params)),
    )
    text = refused(renamed, TransformLayout("f_t", Layout((UnfoldDim(1, 4, 2),))))
    assert "2 kernels write f_t" in text


def _storing(func: Func, target: Buffer) -> Func:
    old = func.outputs[0]
    params = tuple(target if p is old else p for p in func.params)
    return replace(func, params=params, outputs=(target,), body=redirect(func.body, {old: target}))


def test_constants_whose_copies_differ_are_not_folded() -> None:
    module = with_constant(np.arange(10, dtype=np.int32))
    done = TransformLayout("W", Layout((UnfoldDim(0, 5, 4),))).apply(module)
    value = done.constants[0].value.copy()
    value[1, 0] = 99
    changed = replace(done, constants=(Constant(done.constants[0].buffer, value),))
    text = refused(changed, TransformLayout("W", Layout((FoldDim(0, 4, 10),))))
    assert "that would share a place under FoldDim(dim=0, stride=4, extent=10) are not equal" in text


def test_an_open_dimension_is_not_cut() -> None:
    rows = sym_int(Dim("rows", 3, 12))
    b = FuncBuilder("open")
    x = b.param("X", (rows,), DType.I32)
    t = b.compute("T", (rows,), lambda i: x[i] * 3)
    func = b.finish(b.compute("Y", (rows - 2,), lambda o: t[o]))
    text = refused(single(func), TransformLayout("T", Layout((CropDim(0, 0, 2),))))
    assert "is of an open dimension" in text
