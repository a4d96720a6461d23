"""Which blocks only move data, and how: what the layout makes of the source is what the block stores."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Load, as_index, select
from tilewright.ir.layout import (
    CropDim,
    Dims,
    FuseDims,
    Layout,
    PadDim,
    ReorderDims,
    SplitDim,
    reshape_layout,
)
from tilewright.schedule.index_map import IndexMap, index_map
from tilewright.schedule.steps import TransformLayout
from tilewright.support.sizes import Dim, sym_int
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import Block, blocks


def moving(old: Dims, new: Dims, fn: Callable[..., Expr]) -> Func:
    """A Func whose only block stores what `fn` says of X and the iterators."""
    b = FuncBuilder("moves")
    x = b.param("X", old, DType.I32)
    return b.finish(b.compute("Y", new, lambda *i: fn(x, *i)))


def only_block(func: Func) -> Block:
    (block,) = blocks(func.body)
    return block


def check(func: Func) -> Layout | None:
    """The layout, compared with what the block does by running it."""
    found = index_map(only_block(func))
    if found is None:
        return None
    assert found.source is func.params[0]
    x = np.arange(found.source.size, dtype=np.int32).reshape(found.source.shape)
    (y,) = run_func(func, x)
    np.testing.assert_array_equal(found.layout.array(x), y)
    return found.layout


MOVES: dict[str, tuple[Dims, Dims, Callable[..., Load], Layout]] = {
    "copy": ((3, 4), (3, 4), lambda x, i, j: x[i, j], Layout()),
    "transpose": ((3, 4), (4, 3), lambda x, i, j: x[j, i], Layout((ReorderDims((1, 0)),))),
    "split": ((12,), (3, 4), lambda x, i, j: x[i * 4 + j], Layout((SplitDim(0, 4),))),
    "fuse": ((3, 4), (12,), lambda x, i: x[i // 4, i % 4], Layout((FuseDims(0, 2),))),
    "slice": ((3, 7), (3, 4), lambda x, i, j: x[i, j + 2], Layout((CropDim(1, 2, 1),))),
    "select": ((3, 7), (3,), lambda x, i: x[i, 2], Layout((CropDim(1, 2, 4), FuseDims(0, 2)))),
    "unsqueeze": ((3, 4), (3, 1, 4), lambda x, i, u, j: x[i, j], Layout((SplitDim(1, 4),))),
    "squeeze": ((1, 3, 1), (3,), lambda x, i: x[0, i, 0], Layout((FuseDims(0, 3),))),
    "blocks": (
        (2, 6, 5),
        (2, 3, 5, 2),
        lambda x, n, c, h, k: x[n, c * 2 + k, h],
        Layout((SplitDim(1, 2), ReorderDims((0, 1, 3, 2)))),
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    old, new, fn, expected = MOVES[name]
    layout = check(moving(old, new, fn))
    assert layout == expected


def test_moves_that_are_several_primitives() -> None:
    assert check(moving((9,), (4,), lambda x, i: x[i * 2 + 1])) is not None  # every second
    assert check(moving((4, 6), (3, 8), lambda x, i, j: x[(i * 8 + j) // 6, (i * 8 + j) % 6])) is not None
    assert check(moving((4, 6), (6, 2, 2), lambda x, i, j, k: x[j * 2 + k, i])) is not None
    depth_to_space = moving((8, 3), (2, 6, 2), lambda x, c, h, w: x[(c * 2 + h % 2) * 2 + w, h // 2])
    assert check(depth_to_space) is not None
    assert check(moving((2, 3, 4), (4, 6), lambda x, i, j: x[j // 3, j % 3, i])) is not None
    assert check(moving((5, 4), (1, 1), lambda x, i, j: x[3, 2])) is not None


@pytest.mark.parametrize(
    "func",
    [
        moving((3,), (3, 2), lambda x, i, j: x[i]),  # a broadcast
        moving((3,), (3,), lambda x, i: x[i] + 1),  # computes
        moving((3, 3), (3,), lambda x, i: x[i, i]),  # a diagonal
        moving((4,), (4,), lambda x, i: x[as_index(3) - i]),  # backwards
        moving((4,), (4,), lambda x, i: x[(i + 1) % 4]),  # round and round
        moving((4,), (4,), lambda x, i: select(i < 2, x[i], x[i + 0 * i] * 2)),
    ],
    ids=["broadcast", "computes", "diagonal", "backwards", "rolled", "choice"],
)
def test_what_no_layout_says(func: Func) -> None:
    assert index_map(only_block(func)) is None


def test_reductions_are_no_moves() -> None:
    b = FuncBuilder("sum")
    x = b.param("X", (3, 4), DType.I32)
    assert index_map(only_block(b.finish(b.reduce("Y", (3,), (4,), lambda i, k: x[i, k])))) is None


def test_pieces_of_a_concatenation() -> None:
    b = FuncBuilder("cat")
    x, z = b.param("X", (2, 3), DType.I32), b.param("Z", (2, 5), DType.I32)
    block = only_block(b.finish(b.compute("Y", (2, 8), lambda i, j: select(j < 3, x[i, j], z[i, j - 3]))))
    assert index_map(block) is None
    assert index_map(block, x) == IndexMap(x, Layout((PadDim(1, 0, 5),)))
    assert index_map(block, z) == IndexMap(z, Layout((PadDim(1, 3, 0),)))


def test_open_dimensions_move_whole() -> None:
    rows = sym_int(Dim("rows", 1, 6))
    turned = moving((rows, 2), (2, rows), lambda x, i, j: x[j, i])
    found = index_map(only_block(turned))
    assert found is not None and found.layout == Layout((ReorderDims((1, 0)),))
    fixed = moving((rows, 2), (2, 6), lambda x, i, j: x[j, i])
    assert index_map(only_block(fixed)) is None  # the output is in use beyond what there is of X


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_reshape_of_a_transposition(data: st.DataObject) -> None:
    """Split, turned and put together again, as shuffles of channels are."""
    parts = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    cuts = data.draw(st.integers(1, len(parts)))
    old = (int(np.prod(parts[:cuts])), int(np.prod(parts[cuts:])))
    order = data.draw(st.permutations(range(len(parts))))
    turned = tuple(parts[d] for d in order)
    ends = data.draw(st.integers(1, len(parts)))
    new = (int(np.prod(turned[:ends])), int(np.prod(turned[ends:])))
    first, last = reshape_layout(old, tuple(parts)), reshape_layout(turned, new)
    assert first is not None and last is not None
    made = first + Layout((ReorderDims(tuple(order)),)) + last
    func = moving(old, new, lambda x, i, j: x[made.inverse(old, (i, j))[0]])
    layout = check(func)
    assert layout is not None


def test_a_layout_carried_over_a_move_makes_it_a_copy() -> None:
    """Y = L(X): with X laid out by L + M and Y by M, the block copies place by place."""
    b = FuncBuilder("carried")
    a = b.param("A", (4, 6), DType.I32)
    x = b.compute("X", (4, 6), lambda i, j: a[i, j] * 2)
    y = b.compute("Y", (6, 4), lambda i, j: x[j, i])
    func = b.finish(b.compute("Z", (6, 4), lambda i, j: y[i, j] + 1))
    found = index_map(next(n for n in blocks(func.body) if n.name == "Y"))
    assert found is not None
    wanted = Layout((SplitDim(0, 3),))
    module = TransformLayout("Y", wanted).apply(single(func))
    module = TransformLayout("X", found.layout + wanted).apply(module)
    copy = next(n for n in blocks(module.funcs[0].body) if n.name == "Y").store
    assert isinstance(copy.value, Load) and copy.value.indices == copy.indices
