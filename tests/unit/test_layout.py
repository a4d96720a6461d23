"""Layouts: shape, forward, inverse and array say the same."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import Evaluated, evaluate
from tilewright.ir.expr import Buffer, Const, Expr, Load, Scope, Var, as_index
from tilewright.ir.layout import (
    CropDim,
    Dims,
    FoldDim,
    FuseDims,
    Layout,
    LayoutPrimitive,
    PadDim,
    ReorderDims,
    SplitDim,
    UnfoldDim,
    reshape_layout,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.ir.window_tiles import WindowTiles
from tilewright.schedule.trace import parse_layout
from tilewright.support.errors import UserError

CASES: list[tuple[Dims, Layout]] = [
    ((6,), Layout()),
    ((12, 4), Layout((SplitDim(0, 4),))),
    ((10, 4), Layout((SplitDim(0, 4),))),  # does not divide
    ((2, 3, 4), Layout((ReorderDims((2, 0, 1)),))),
    ((2, 3, 4), Layout((FuseDims(1, 2),))),
    ((2, 3, 4), Layout((FuseDims(0, 3),))),
    ((5, 3), Layout((PadDim(0, 1, 2),))),
    ((1, 20, 3, 3), Layout((SplitDim(1, 8), ReorderDims((0, 1, 3, 4, 2))))),  # NCHW8c with a tail
    ((4, 6), Layout((SplitDim(0, 2), SplitDim(2, 3), ReorderDims((0, 2, 1, 3))))),  # tiles
    ((5, 7), Layout((PadDim(1, 1, 1), SplitDim(1, 4), FuseDims(0, 2)))),
    ((6, 5), Layout((SplitDim(0, 4), SplitDim(0, 2)))),  # a tail of a tail
    ((3, 9), Layout((UnfoldDim(1, 5, 2),))),  # tiles that overlap
    ((3, 10), Layout((UnfoldDim(1, 5, 2),))),  # the last one is not full
    ((10,), Layout((UnfoldDim(0, 4, 4),))),  # they touch: a split
    ((10,), Layout((UnfoldDim(0, 12, 3),))),  # one tile holds all
    ((2, 8, 9), Layout((UnfoldDim(2, 4, 2), UnfoldDim(1, 4, 2), ReorderDims((0, 1, 3, 2, 4))))),  # both ways
    ((4, 9), Layout((PadDim(1, 1, 1), UnfoldDim(1, 5, 3), SplitDim(0, 3), FuseDims(0, 2)))),
]
LOSING: list[tuple[Dims, Layout]] = [
    ((7, 2), Layout((CropDim(0, 1, 2),))),
    ((10,), Layout((UnfoldDim(0, 2, 4),))),  # gaps between tiles
    ((11,), Layout((UnfoldDim(0, 1, 3),))),
    ((9, 2), Layout((CropDim(0, 0, 2), UnfoldDim(0, 3, 2), FuseDims(0, 2)))),
    ((6, 4), Layout((SplitDim(0, 4), CropDim(1, 0, 2), ReorderDims((1, 2, 0))))),
]


def _no_load(node: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
    raise AssertionError


def _at(exprs: tuple[Expr, ...], variables: list[Var], values: tuple[int, ...]) -> tuple[int, ...]:
    env = {v: np.int64(x) for v, x in zip(variables, values, strict=True)}
    return tuple(int(evaluate(e, env, _no_load)) for e in exprs)


def _numbered(shape: Dims) -> NDArray[np.int64]:
    return np.arange(1, 1 + np.prod(shape), dtype=np.int64).reshape(shape)


def check(logical: Dims, layout: Layout) -> None:
    """By all indices of both shapes. Elements are told apart by their values, and none is zero."""
    physical = layout.shape(logical)
    source = _numbered(logical)
    stored = layout.array(source)
    assert stored.shape == physical and stored.flags.c_contiguous
    places = [Var(f"p{n}") for n in range(len(physical))]
    back, inside = layout.inverse(logical, places)

    variables = [Var(f"d{n}") for n in range(len(logical))]
    simplify = Simplifier({v: Interval(0, n - 1) for v, n in zip(variables, logical, strict=True)})
    kept = set(stored.flat)
    for forward in (layout.forward(logical, variables), layout.forward(logical, variables, simplify)):
        for at in itertools.product(*map(range, logical)):
            if source[at] in kept:
                where = _at(forward, variables, at)
                assert stored[where] == source[at]
                assert _at(back, places, where) == at
                assert _at((inside,), places, where) == (1,)
    if layout.keeps(logical, variables, simplify):
        assert kept >= set(source.flat)
    if layout.is_one_to_one:
        assert layout.keeps(logical, variables, simplify)
        np.testing.assert_array_equal(np.sort(stored[stored != 0]), source.ravel())

    for at in itertools.product(*map(range, physical)):
        if _at((inside,), places, at) == (1,):
            assert stored[at] == source[_at(back, places, at)]
        else:
            assert stored[at] == 0


def check_algebra(logical: Dims, layout: Layout) -> None:
    source = _numbered(logical)
    stored = layout.array(source)
    inverted = layout.inverted(logical)
    assert inverted.shape(stored.shape) == logical
    there_and_back = np.where(np.isin(source, stored), source, 0)
    np.testing.assert_array_equal(inverted.array(stored), there_and_back)
    np.testing.assert_array_equal((layout + inverted).array(source), there_and_back)

    short = layout.normalised(logical)
    assert len(short.primitives) <= len(layout.primitives)
    assert short.normalised(logical) == short
    np.testing.assert_array_equal(short.array(source), stored)
    both = (layout + inverted).normalised(logical)
    np.testing.assert_array_equal(both.array(source), there_and_back)
    losing = any(
        isinstance(p, CropDim) or (isinstance(p, UnfoldDim) and p.has_gaps) for p in layout.primitives
    )
    assert losing or both == Layout()
    assert parse_layout(str(layout)) == layout
    assert parse_layout(str(inverted)) == inverted


@pytest.mark.parametrize(("logical", "layout"), [*CASES, *LOSING], ids=str)
def test_forward_inverse_and_array_agree(logical: Dims, layout: Layout) -> None:
    check(logical, layout)
    check_algebra(logical, layout)


@st.composite
def _layouts(draw: st.DrawFn) -> tuple[Dims, Layout]:
    logical = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    shape, primitives = logical, list[LayoutPrimitive]()
    for _ in range(draw(st.integers(0, 4))):
        dim = draw(st.integers(0, len(shape) - 1))
        # What is cut off of copies is some of them, and maybe the one that `forward` tells: no place is known then.
        copied = any(isinstance(p, UnfoldDim) for p in primitives)
        kinds = ["split", "reorder", "fuse", "pad", "unfold", *(() if copied else ("crop",))]
        kind = draw(st.sampled_from(kinds))
        if kind == "split":
            p: LayoutPrimitive = SplitDim(dim, draw(st.integers(1, 4)))
        elif kind == "reorder":
            p = ReorderDims(tuple(draw(st.permutations(range(len(shape))))))
        elif kind == "fuse":
            p = FuseDims(dim, draw(st.integers(1, len(shape) - dim)))
        elif kind == "pad":
            p = PadDim(dim, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        elif kind == "crop":
            before = draw(st.integers(0, shape[dim] - 1))
            p = CropDim(dim, before, draw(st.integers(0, shape[dim] - 1 - before)))
        else:
            tile = draw(st.integers(1, 4))
            p = UnfoldDim(dim, tile, draw(st.integers(1, tile if copied else 4)))
        if np.prod(p.shape(shape)) > 400:
            break
        assert p.misfit(shape) is None
        primitives.append(p)
        shape = p.shape(shape)
    return logical, Layout(tuple(primitives))


@given(_layouts())
@settings(max_examples=60, deadline=None)
def test_any_composition_agrees(case: tuple[Dims, Layout]) -> None:
    check(*case)


@given(_layouts())
@settings(max_examples=150, deadline=None)
def test_any_composition_can_be_inverted_and_normalised(case: tuple[Dims, Layout]) -> None:
    check_algebra(*case)


@pytest.mark.parametrize(
    ("steps", "short"),
    [
        ((ReorderDims((1, 0, 2)), ReorderDims((2, 0, 1))), (ReorderDims((2, 1, 0)),)),
        ((ReorderDims((1, 0, 2)), ReorderDims((1, 0, 2))), ()),
        ((PadDim(0, 1, 0), PadDim(0, 0, 2)), (PadDim(0, 1, 2),)),
        ((PadDim(0, 2, 2), CropDim(0, 1, 2)), (PadDim(0, 1, 0),)),
        (
            (CropDim(2, 1, 0), PadDim(2, 1, 0)),
            (CropDim(2, 1, 0), PadDim(2, 1, 0)),
        ),  # what was cut off is lost
        ((FuseDims(1, 1), FuseDims(0, 2), FuseDims(0, 2)), (FuseDims(0, 3),)),
        (
            (SplitDim(1, 4), FuseDims(1, 2)),
            (SplitDim(1, 4), FuseDims(1, 2)),
        ),  # 5 do not divide: the tail stays
        ((SplitDim(1, 5), FuseDims(1, 2)), ()),
        ((UnfoldDim(1, 3, 2), FoldDim(1, 2, 5)), ()),
    ],
)
def test_what_is_normalised(steps: tuple[LayoutPrimitive, ...], short: tuple[LayoutPrimitive, ...]) -> None:
    assert Layout(steps).normalised((4, 5, 6)) == Layout(short)


def test_folding_takes_elements_from_tiles_and_undoes_itself() -> None:
    tiles = _numbered((3, 4))
    fold = FoldDim(0, 2, 7)
    np.testing.assert_array_equal(fold.array(tiles), [1, 2, 5, 6, 9, 10, 11])
    check_inverse_of_fold(fold, (3, 4))
    check_inverse_of_fold(FoldDim(0, 3, 14), (3, 2))  # gaps, and more than there is
    check_inverse_of_fold(FoldDim(1, 2, 5), (2, 3, 4))  # less than there is: the last tile comes back empty
    assert not fold.agrees(tiles)
    assert fold.agrees(UnfoldDim(0, 4, 2).array(np.arange(7)))
    floats = UnfoldDim(0, 4, 2).array(np.array([0.0, np.nan, np.nan, -0.0, 1.0, 2.0, 3.0], np.float32))
    assert fold.agrees(floats)
    floats[1, 1] = 0.0  # a copy of -0
    assert not fold.agrees(floats)


def check_inverse_of_fold(fold: FoldDim, shape: Dims) -> None:
    folded = fold.array(_numbered(shape))
    assert folded.shape == fold.shape(shape)
    places = [Var(f"p{n}") for n in range(folded.ndim)]
    layout = Layout((fold,))
    back, inside = layout.inverse(shape, places)
    for at in itertools.product(*map(range, folded.shape)):
        if _at((inside,), places, at) == (1,):
            assert folded[at] == _numbered(shape)[_at(back, places, at)]
        else:
            assert folded[at] == 0
    assert layout.inverted(shape).shape(folded.shape) == shape


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_windows_find_their_elements_in_one_tile(kernel: int, dilation: int, stride: int) -> None:
    o, r = Var("o"), Var("r")
    for outputs, per_tile, unread in itertools.product(range(1, 7), range(1, 5), (0, 1, 4)):
        windows = WindowTiles(outputs, per_tile, kernel, stride, dilation)
        extent = windows.reach + unread
        layout = windows.layout(0, extent)
        source = _numbered((extent,))
        tiles = layout.array(source)
        assert tiles.shape == (windows.tiles, windows.tile) == (-(-outputs // per_tile), windows.tile)
        simplify = Simplifier({o: Interval(0, outputs - 1), r: Interval(0, kernel - 1)})
        index = o * stride + r * dilation
        assert layout.keeps((extent,), [index], simplify)
        place = layout.forward((extent,), [index], simplify)
        for at in itertools.product(range(outputs), range(kernel)):
            where = _at(place, [o, r], at)
            assert tiles[where] == source[at[0] * stride + at[1] * dilation]


def test_the_tile_of_a_window_is_that_of_its_output() -> None:
    o, r = Var("o"), Var("r")
    simplify = Simplifier({o: Interval(0, 9), r: Interval(0, 2)})
    windows = WindowTiles(10, 4, 3, 2, 3)
    assert (windows.tile, windows.step, windows.tiles) == (13, 8, 3)
    place = windows.layout(0, windows.reach).forward((windows.reach,), [o * 2 + r * 3], simplify)
    assert place == (o // 4, simplify(o % 4 * 2 + r * 3))


def test_an_element_between_tiles_has_no_place() -> None:
    x, simplify = Var("x"), Simplifier({Var("x"): Interval(0, 9)})
    assert not Layout((UnfoldDim(0, 2, 4),)).keeps((10,), [x], simplify)
    assert Layout((UnfoldDim(0, 2, 4),)).keeps((10,), [x // 8 * 4], simplify)
    assert not Layout((CropDim(0, 1, 0),)).keeps((10,), [x], simplify)
    assert Layout((CropDim(0, 1, 0),)).keeps((11,), [x + 1], simplify)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((4, 6), (3, 8)),
        ((4, 6), (24,)),
        ((2, 3, 4), (6, 2, 2)),
        ((1, 5), (5,)),
        ((5, 1, 1), (5,)),
        ((5,), (1, 5, 1)),
        ((1, 1), (1,)),
        ((2, 3, 5), (2, 3, 5)),
    ],
)
def test_reshapes(old: Dims, new: Dims) -> None:
    layout = reshape_layout(old, new)
    assert layout is not None
    np.testing.assert_array_equal(layout.array(_numbered(old)), _numbered(old).reshape(new))
    assert reshape_layout(old, (*new, 2)) is None


def check_projection(logical: Dims, layout: Layout, operand: Dims) -> bool:
    """Is there one? Then each element of the whole meets the one of the operand that it is computed with."""
    projection = layout.projected(logical, operand)
    if projection is None:
        return False
    source = _numbered(operand)
    whole = layout.array(np.ascontiguousarray(np.broadcast_to(source, logical)))
    own = projection.layout.array(source)
    if not projection.dims:
        assert own.size == 1
        return True
    physical = layout.shape(logical)
    assert own.shape == tuple(physical[d] for d in projection.dims)
    for at in itertools.product(*map(range, physical)):
        if whole[at]:
            assert own[tuple(at[d] for d in projection.dims)] == whole[at]
    return True


@pytest.mark.parametrize(("logical", "layout"), CASES)
def test_projections_to_operands(logical: Dims, layout: Layout) -> None:
    for mask in itertools.product((False, True), repeat=len(logical)):
        operand = tuple(n if m else 1 for n, m in zip(logical, mask, strict=True))
        found = check_projection(logical, layout, operand)
        fused = any(isinstance(p, FuseDims) for p in layout.primitives)
        assert found or fused
    assert check_projection(logical, layout, ())
    assert layout.projected(logical, (*logical, 7)) is None
    assert layout.projected(logical, (logical[-1] + 1,)) is None


def test_a_bias_takes_the_split_of_the_channels_alone() -> None:
    blocks = Layout((SplitDim(1, 16), ReorderDims((0, 3, 4, 1, 2))))  # channels of a pixel together
    image = (1, 40, 7, 7)
    assert check_projection(image, blocks, (40, 1, 1))
    projection = blocks.projected(image, (40, 1, 1))
    assert projection is not None and projection.dims == (3, 4)
    assert projection.layout.primitives[-1] == SplitDim(0, 16)
    rows = Layout((FuseDims(2, 2),))
    assert rows.projected(image, (7,)) is None  # its place would depend on h, in which it does not vary
    assert rows.projected((1, 40, 1, 7), (7,)) is not None


@given(_layouts(), st.lists(st.booleans(), min_size=3, max_size=3))
@settings(max_examples=100, deadline=None)
def test_any_projection_meets_the_whole(case: tuple[Dims, Layout], varies: list[bool]) -> None:
    logical, layout = case
    operand = tuple(n if v else 1 for n, v in zip(logical, varies, strict=False))
    check_projection(logical, layout, operand)


def test_layouts_are_read_from_text() -> None:
    layout = Layout((UnfoldDim(1, 6, 4), CropDim(0, 1, 0), FoldDim(1, 4, 9)))
    assert parse_layout(str(layout)) == layout == parse_layout(repr(layout))
    with pytest.raises(UserError, match="not in Python syntax"):
        parse_layout("Layout((")
    with pytest.raises(UserError, match="not a layout"):
        parse_layout("SplitDim(0, 2)")
    with pytest.raises(UserError, match="not known here"):
        parse_layout("open('x')")


@pytest.mark.parametrize(("logical", "layout"), CASES)
def test_what_is_in_use_of_a_buffer_is_in_use_of_it_laid_out(logical: Dims, layout: Layout) -> None:
    for d, n in enumerate(logical):
        for size in range(1, n + 1):
            sizes = tuple(as_index(size) if k == d else None for k in range(len(logical)))
            buffer = Buffer("x", logical, DType.F32, Scope.GLOBAL, sizes)
            laid_out = layout.buffer(buffer)
            limits = laid_out.sizes or (None,) * len(laid_out.shape)
            used = [size if k == d else m for k, m in enumerate(logical)]
            for index in itertools.product(*map(range, used)):
                at = layout.forward(logical, [as_index(i) for i in index])
                for i, limit in zip(at, limits, strict=True):
                    assert isinstance(i, Const)
                    assert limit is None or (isinstance(limit, Const) and i.value < limit.value)


def test_layouts_keep_open_dimensions() -> None:
    sizes = (None, None, as_index(5), as_index(6))
    image = Buffer("x", (1, 16, 8, 8), DType.F32, Scope.GLOBAL, sizes)
    last = Layout((ReorderDims((0, 2, 3, 1)),)).buffer(image)
    assert last.sizes == (None, as_index(5), as_index(6), None)
    wide = Layout((PadDim(2, 1, 2),)).buffer(image)
    assert wide.sizes == (None, None, as_index(8), as_index(6))
