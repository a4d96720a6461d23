"""Steps that change which iterators a block has, or take loops apart: what they make, and that the meaning stays."""

import pytest
from schedule_programs import check, conv, matmul, outline, row_sum

from tilewright.ir.dtype import DType
from tilewright.ir.expr import FALSE, TRUE, Scope, Var
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.find import find_block
from tilewright.schedule.steps import (
    AddUnitLoop,
    CacheWrite,
    Distribute,
    DropUnitIters,
    FuseIters,
    IterateOver,
    Reindex,
    Reorder,
    ReverseComputeAt,
    Split,
)
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.invert import try_invert
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import If, loops, walk_stmts


def heads(dtype: DType = DType.I32) -> Func:
    """A GEMM whose result is split into heads and transposed."""
    b = FuncBuilder("heads")
    x, w = b.param("X", (5, 4), dtype), b.param("W", (4, 6), dtype)
    c = b.reduce("C", (5, 6), (4,), lambda i, j, k: (x[i, k], w[k, j]))
    return b.finish(b.compute("T", (3, 5, 2), lambda h, i, d: c[i, h * 2 + d]))


def test_fuse_iters_makes_rows_of_pixels() -> None:
    done = check(conv(), FuseIters("Y", ("Y_vh", "Y_vv")))
    block = find_block(done, "Y")
    assert [it.extent for it in block.iters] == [3, 30, 2, 3, 3]
    assert "for Y_h_f in range(30):" in [line.strip() for line in outline(done.body)]


def test_fuse_iters_of_a_reduction() -> None:
    done = check(conv(), FuseIters("Y", ("Y_vr", "Y_vs")))
    assert [it.extent for it in find_block(done, "Y").iters] == [3, 5, 6, 2, 9]


def test_iterate_over_stores_where_the_element_belongs() -> None:
    done = check(heads(), IterateOver("T", "C"))
    block = find_block(done, "T")
    assert [it.extent for it in block.iters] == [5, 6]
    assert block.store.buffer.shape == (3, 5, 2)


def test_a_transposed_result_follows_its_producer_by_tiles() -> None:
    done = check(
        heads(),
        IterateOver("T", "C"),
        Split("C_i", (None, 5)),
        Split("C_j", (None, 2)),
        Reorder(("C_i_0", "C_j_0", "C_i_1", "C_j_1")),
        ReverseComputeAt("T", "C_j_0"),
    )
    assert len([n for n in loops(done.body)]) == 7


def test_reindex_copies_the_operand_in_the_order_of_the_iterators() -> None:
    step = Reindex("C", "B", ("C_vj", "C_vk"))
    done = check(matmul(), step)
    copy = find_block(done, step.copy)
    assert copy.store.buffer.shape == (6, 5)


def test_distribute_parts_a_consumer_from_its_producer() -> None:
    done = check(
        matmul(relu=True),
        CacheWrite("C", "C", Scope.LOCAL),
        ReverseComputeAt("C_C_out", "C_i"),
        Distribute("C_i"),
    )
    assert [n.var.name for n in loops(done.body)][:1] == ["C_i"]
    assert "C_i_d1" in [n.var.name for n in loops(done.body)]


def test_drop_unit_iters_leaves_the_others() -> None:
    b = FuncBuilder("unit")
    x = b.param("X", (1, 4, 1, 3), DType.I32)
    func = b.finish(b.compute("Y", (1, 4, 1, 3), lambda n, i, u, j: x[n, i, u, j] * 2 + 1))
    done = check(func, DropUnitIters("Y"))
    assert [it.extent for it in find_block(done, "Y").iters] == [4, 3]
    assert [n.extent for n in loops(done.body)] == [4, 3]


def test_drop_unit_iters_of_a_reduction_over_one_element() -> None:
    done = check(row_sum(columns=1), DropUnitIters("S"))
    assert [it.extent for it in find_block(done, "S").iters] == [4]


def test_add_unit_loop_goes_around_the_nest() -> None:
    step = AddUnitLoop("C")
    done = check(matmul(), step)
    assert next(loops(done.body)).var.name == step.loop


# ------------------------------------------------------------------------------------------------------ inverting


def invert(
    indices: list[object], shape: tuple[int, ...], extents: dict[Var, int]
) -> dict[Var, object] | None:
    outputs = [Var(f"u{d}") for d in range(len(shape))]
    simplify = Simplifier({v: Interval(0, e - 1) for v, e in extents.items()})
    found = try_invert(indices, shape, extents, outputs, simplify)  # type: ignore[arg-type]
    assert found is None or not found.conditions
    return None if found is None else dict(found.values)


@pytest.mark.parametrize("inner", [1, 2, 3, 4])
def test_reshape_and_transpose_invert(inner: int) -> None:
    h, i, d = Var("h"), Var("i"), Var("d")
    extents = {h: 3, i: 5, d: inner}
    forward = [i, h * inner + d]
    inverse = invert(forward, (5, 3 * inner), extents)
    assert inverse is not None
    for a in range(3):
        for b in range(5):
            for c in range(inner):
                u = {Var("u0"): Interval(b, b), Var("u1"): Interval(a * inner + c, a * inner + c)}
                known = Simplifier(u)
                assert [known.constant(inverse[v]) for v in (h, i, d)] == [a, b, c]  # type: ignore[arg-type]


def test_merged_digits_invert() -> None:
    n = Var("n")
    inverse = invert([n // 4, n % 4], (3, 4), {n: 12})
    assert inverse is not None
    known = Simplifier({Var("u0"): Interval(2, 2), Var("u1"): Interval(3, 3)})
    assert known.constant(inverse[n]) == 11  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("indices", "shape"),
    [
        ([Var("n") // 4], (3,)),  # the remainder is lost
        ([Var("n") + 1], (13,)),  # an offset
        ([Var("n") * 2], (24,)),  # holes
        ([Var("n") % 5], (5,)),  # does not tile
        ([Var("n"), Var("n")], (12, 12)),  # a diagonal
    ],
)
def test_what_has_no_inverse(indices: list[object], shape: tuple[int, ...]) -> None:
    assert invert(indices, shape, {Var("n"): 12}) is None


def test_tiles_that_reach_beyond_the_end_invert_up_to_there() -> None:
    n = Var("n")
    outputs = [Var("u0"), Var("u1")]
    found = try_invert([n // 4, n % 4], (3, 4), {n: 10}, outputs, Simplifier({n: Interval(0, 9)}))
    assert found is not None
    for a in range(3):
        for b in range(4):
            known = Simplifier({Var("u0"): Interval(a, a), Var("u1"): Interval(b, b)})
            assert known.constant(found.values[n]) == 4 * a + b
            assert [known(c) for c in found.conditions] == [TRUE if 4 * a + b < 10 else FALSE]


def tiles(length: int) -> Func:
    """y[i] = x[i // 4, i % 4]: what tiles of four give for `length` elements."""
    b = FuncBuilder("tiles")
    x = b.param("X", (-(-length // 4), 4), DType.F32)
    return b.finish(b.compute("Y", (length,), lambda i: x[i // 4, i % 4]))


def test_iterate_over_tiles_skips_what_is_not_read() -> None:
    with pytest.raises(ScheduleError, match="does not read all elements of X"):
        replay(single(tiles(10)), (IterateOver("Y", "X"),))
    done = check(tiles(10), IterateOver("Y", "X", partial=True))
    assert [it.extent for it in find_block(done, "Y").iters] == [3, 4]
    assert not any(
        isinstance(n, If) for n in walk_stmts(check(tiles(12), IterateOver("Y", "X", partial=True)).body)
    )
