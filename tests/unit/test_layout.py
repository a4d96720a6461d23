"""Layouts: shape, forward, inverse and array say the same."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import Evaluated, evaluate
from tilewright.ir.expr import Buffer, Const, Load, Scope, Var, as_index
from tilewright.ir.layout import Dims, FuseDims, Layout, LayoutPrimitive, PadDim, ReorderDims, SplitDim

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
]


def _no_load(node: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
    raise AssertionError


def check(logical: Dims, layout: Layout) -> None:
    physical = layout.shape(logical)
    source = np.arange(1, 1 + np.prod(logical)).reshape(logical)
    stored = layout.array(source)
    assert stored.shape == physical and stored.flags.c_contiguous

    variables = [Var(f"d{n}") for n in range(len(logical))]
    forward = layout.forward(logical, variables)
    for at in itertools.product(*map(range, logical)):
        env = {v: np.int64(x) for v, x in zip(variables, at, strict=True)}
        where = tuple(int(evaluate(f, env, _no_load)) for f in forward)
        assert stored[where] == source[at]

    variables = [Var(f"p{n}") for n in range(len(physical))]
    back, inside = layout.inverse(logical, variables)
    holes = 0
    for at in itertools.product(*map(range, physical)):
        env = {v: np.int64(x) for v, x in zip(variables, at, strict=True)}
        if evaluate(inside, env, _no_load):
            assert stored[at] == source[tuple(int(evaluate(b, env, _no_load)) for b in back)]
        else:
            holes += 1
            assert stored[at] == 0
    assert holes == stored.size - source.size


@pytest.mark.parametrize(("logical", "layout"), CASES, ids=lambda c: str(c) if isinstance(c, tuple) else "")
def test_forward_inverse_and_array_agree(logical: Dims, layout: Layout) -> None:
    check(logical, layout)


@st.composite
def _layouts(draw: st.DrawFn) -> tuple[Dims, Layout]:
    logical = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    shape, primitives = logical, list[LayoutPrimitive]()
    for _ in range(draw(st.integers(0, 3))):
        dim = draw(st.integers(0, len(shape) - 1))
        kind = draw(st.sampled_from(["split", "reorder", "fuse", "pad"]))
        if kind == "split":
            p: LayoutPrimitive = SplitDim(dim, draw(st.integers(1, 4)))
        elif kind == "reorder":
            p = ReorderDims(tuple(draw(st.permutations(range(len(shape))))))
        elif kind == "fuse":
            p = FuseDims(dim, draw(st.integers(1, len(shape) - dim)))
        else:
            p = PadDim(dim, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        primitives.append(p)
        shape = p.shape(shape)
    return logical, Layout(tuple(primitives))


@given(_layouts())
@settings(max_examples=40, deadline=None)
def test_any_composition_agrees(case: tuple[Dims, Layout]) -> None:
    check(*case)


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
