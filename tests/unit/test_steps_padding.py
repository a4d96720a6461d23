"""Steps that pad, and that take padding apart: what they make, and that the meaning stays to the bit, whatever numbers
the inputs hold.
"""

import numpy as np
import pytest
from native import bits, run_native
from schedule_programs import check, conv, matmul, outline, row_sum

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Var, as_index, cast
from tilewright.schedule.find import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    ComputeAt,
    DecomposePadding,
    LoopPartition,
    PadEinsum,
    Parallel,
    Split,
    Vectorize,
)
from tilewright.schedule.trace import replay
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func

SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 1e-30, -1e-30, 3e38)


def extents(func: Func, block: str) -> list[int]:
    return [it.extent for it in find_block(func, block).iters]


def hostile(func: Func, seed: int = 0) -> list[Array]:
    """Inputs with numbers whose product or sum with zero is not what it seems."""
    rng = np.random.default_rng(seed)
    made: list[Array] = []
    for p in func.params:
        if p in func.outputs:
            continue
        x = rng.standard_normal(p.shape).astype(p.dtype.numpy)
        where = rng.random(p.shape) < 0.2
        x[where] = rng.choice(np.array(SPECIAL, p.dtype.numpy), int(where.sum()))
        made.append(x)
    return made


def check_bits(func: Func, *trace: Step) -> None:
    """Before and after, interpreted and native: the same bits."""
    done = replay(single(func), trace).funcs[0]
    for seed in range(3):
        inputs = hostile(func, seed)
        expected = run_func(func, *inputs)
        for actual in (run_func(done, *inputs), run_native(done, inputs)):
            for a, b in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(bits(a), bits(b))


# ---------------------------------------------------------------------------------------------------------- pad_einsum


def test_pad_einsum_of_all_iterators() -> None:
    step = PadEinsum("C", (4, 8, 4))
    done = check(matmul(), step)
    assert [line.split("(")[0].strip() for line in outline(done.body) if "for " not in line] == [
        step.pad("A"),
        step.pad("B"),
        "C",
        step.copy,
    ]
    assert extents(done, "C") == [8, 8, 8]
    assert extents(done, step.pad("A")) == [8, 8]
    assert extents(done, step.copy) == [7, 6]


def test_pad_einsum_of_the_reduction_leaves_the_result() -> None:
    done = check(matmul(), PadEinsum("C", (1, 1, 4)))
    assert extents(done, "C") == [7, 6, 8]
    assert [b.name for b in done.locals] == ["A_C_pad", "B_C_pad"]


def test_pad_einsum_of_rows_leaves_the_other_operand() -> None:
    done = check(matmul(), PadEinsum("C", (4, 1, 1)))
    assert [b.name for b in done.locals] == ["A_C_pad", "C_C_pad"]
    assert done.locals[0].shape == (8, 5)


def test_pad_einsum_of_multiples_changes_nothing() -> None:
    func = matmul()
    assert check(func, PadEinsum("C", (7, 3, 5))) is func


def test_pad_einsum_then_exact_tiles() -> None:
    done = check(
        matmul(DType.F32, relu=True),
        PadEinsum("C", (4, 8, 1)),
        Split("C_i", (None, 4)),
        Split("C_j", (None, 8)),
        Vectorize("C_j_1"),
    )
    assert all("where" not in line for line in outline(done.body))


def test_pad_einsum_keeps_the_order_of_loops() -> None:
    s = Schedule(single(matmul()))
    s.reorder("C_k", "C_i", "C_j")
    s.pad_einsum("C", (4, 8, 4))
    done = check(matmul(), *s.trace)
    loops = [line.strip() for line in outline(done.body) if "for C_i " in line or "for C_k " in line]
    assert loops == ["for C_k in range(8):", "for C_i in range(8):"]


def square(dtype: DType = DType.F32) -> Func:
    """A · Aᵀ: two operands out of one buffer."""
    b = FuncBuilder("square")
    x = b.param("A", (5, 3), dtype)
    return b.finish(b.reduce("C", (5, 5), (3,), lambda i, j, k: (x[i, k], x[j, k])))


def norms(dtype: DType = DType.F32) -> Func:
    """x · x · y: one operand twice."""
    b = FuncBuilder("norms")
    x, y = b.param("X", (4, 5), dtype), b.param("Y", (5,), dtype)
    return b.finish(b.reduce("S", (4,), (5,), lambda i, k: x[i, k] * x[i, k] * y[k]))


def bytes_product() -> Func:
    b = FuncBuilder("bytes")
    x, y = b.param("A", (5, 6), DType.U8), b.param("B", (6, 7), DType.I8)

    def term(i: Var, j: Var, k: Var) -> Expr:
        return cast(DType.I32, x[i, k]) * cast(DType.I32, y[k, j])

    return b.finish(b.reduce("C", (5, 7), (6,), term))


def scaled() -> Func:
    """An operand that a padded reduce iterator does not index: for integers that is no harm."""
    b = FuncBuilder("scaled")
    x, y = b.param("X", (4, 5), DType.I32), b.param("Y", (4,), DType.I32)
    return b.finish(b.reduce("S", (4,), (5,), lambda i, k: x[i, k] * y[i]))


def fixed() -> Func:
    """Constant indices, as DropUnitIters leaves them."""
    b = FuncBuilder("fixed")
    x, y = b.param("X", (2, 5, 3), DType.F32), b.param("Y", (3, 3), DType.F32)
    return b.finish(b.reduce("C", (5,), (3,), lambda i, k: (x[as_index(1), i, k], y[k, as_index(2)])))


@pytest.mark.parametrize(
    ("func", "step"),
    [
        (square(), PadEinsum("C", (4, 8, 4))),
        (norms(), PadEinsum("S", (3, 4))),
        (bytes_product(), PadEinsum("C", (4, 8, 4))),
        (scaled(), PadEinsum("S", (3, 4))),
        (fixed(), PadEinsum("C", (4, 4))),
        (row_sum(), PadEinsum("S", (8, 8))),
        (matmul(relu=True), PadEinsum("C", (2, 2, 2))),
    ],
    ids=["square", "norms", "bytes", "scaled", "fixed", "row_sum", "relu"],
)
def test_pad_einsum_of_other_sums(func: Func, step: PadEinsum) -> None:
    check(func, step)


@pytest.mark.parametrize(
    ("func", "step"),
    [
        (matmul(DType.F32), PadEinsum("C", (4, 8, 4))),
        (matmul(DType.F32, k=3), PadEinsum("C", (1, 1, 4))),
        (square(), PadEinsum("C", (4, 8, 4))),
        (norms(), PadEinsum("S", (3, 8))),
        (row_sum(DType.F32), PadEinsum("S", (8, 8))),
        (fixed(), PadEinsum("C", (4, 4))),
    ],
    ids=["matmul", "reduction", "square", "norms", "row_sum", "fixed"],
)
def test_pad_einsum_is_exact(func: Func, step: PadEinsum) -> None:
    check_bits(func, step)


def test_padding_of_the_reduction_keeps_a_negative_zero() -> None:
    func = matmul(DType.F32, m=1, n=1, k=1)
    done = replay(single(func), (PadEinsum("C", (1, 1, 4)),)).funcs[0]
    tiny = [np.full((1, 1), v, np.float32) for v in (-1e-30, 1e-30)]
    for f in (func, done):  # the product rounds to -0
        assert np.signbit(run_func(f, *tiny)[0]).all()


# --------------------------------------------------------------------------------------------------- decompose_padding


def lines(func: Func) -> list[str]:
    return [line.strip() for line in outline(func.body)]


def test_decompose_padding_of_a_whole_block() -> None:
    step = DecomposePadding("P", "P_c")
    done = check(conv(), step)
    assert lines(done)[:8] == [
        "for P_c_fill in range(2):",
        "for P_h_fill in range(7):",
        "for P_w_fill in range(8):",
        "P_fill(P_vc_fill = P_c_fill, P_vh_fill = P_h_fill, P_vw_fill = P_w_fill)",
        "for P_c in range(2):",
        "for P_h in range(5):",
        "for P_w in range(6):",
        "P(P_vc = P_c, P_vh = P_h, P_vw = P_w)",
    ]
    assert step.name == "P_fill"
    assert extents(done, "P") == [2, 5, 6]


def test_decompose_padding_of_rows_leaves_a_condition_on_the_row() -> None:
    done = check(conv(), DecomposePadding("P", "P_w"))
    assert lines(done)[2:6] == [
        "for P_w_fill in range(8):",
        "P_fill(P_vc_fill = P_c, P_vh_fill = P_h, P_vw_fill = P_w_fill)",
        "for P_w in range(6):",
        "P(P_vc = P_c, P_vh = P_h - 1, P_vw = P_w) where 0 < P_h and P_h < 6",
    ]


def test_decompose_padding_in_vectors_and_threads() -> None:
    done = check(conv(DType.F32), Vectorize("P_w"), Parallel("P_c"), DecomposePadding("P", "P_w"))
    assert "for P_w in vectorized(6):" in lines(done)
    assert "for P_w_fill in vectorized(8):" in lines(done)


def test_decompose_padding_of_tiles() -> None:
    done = check(conv(), Split("P_w", (None, 4)), DecomposePadding("P", "P_h"))
    assert (
        "P(P_vc = P_c, P_vh = P_h, P_vw = P_w_0 * 4 + P_w_1 - 1) where 0 < P_w_0 * 4 + P_w_1 and P_w_0 * 4 + P_w_1 < 7"
        in (lines(done))
    )


def test_decompose_padding_of_tiles_that_do_not_divide() -> None:
    check(conv(), Split("P_w", (None, 3)), Split("P_h", (None, 2)), DecomposePadding("P", "P_h_0"))


def test_decompose_padding_of_a_part() -> None:
    done = check(conv(), LoopPartition("P_h", (3,)), DecomposePadding("P_p0", "P_h_p0"))
    at = lines(done).index("for P_h_p0 in range(2):")
    assert lines(done)[at + 2] == "P_p0(P_vc_p0 = P_c, P_vh_p0 = P_h_p0, P_vw_p0 = P_w_p0)"


@pytest.mark.parametrize("loop", ["P_0", "P_1", "P_2"])
@pytest.mark.parametrize("place", ["Y_o", "Y_h", "Y_v"])
def test_decompose_padding_where_it_is_used(place: str, loop: str) -> None:
    check(conv(), ComputeAt("P", place), DecomposePadding("P", loop))


def test_decompose_padding_of_an_einsum() -> None:
    step = PadEinsum("C", (4, 8, 4))
    s = Schedule(single(matmul()))
    s.apply(step)
    fill = s.decompose_padding(step.pad("A"), "C_A_pad_i0")
    done = check(matmul(), *s.trace)
    assert extents(done, fill) == [8, 8]
    assert extents(done, step.pad("A")) == [7, 5]


@pytest.mark.parametrize(
    ("func", "trace"),
    [
        (conv(DType.F32), (DecomposePadding("P", "P_c"),)),
        (conv(DType.F32), (ComputeAt("P", "Y_h"), DecomposePadding("P", "P_1"), Vectorize("P_2"))),
        (matmul(DType.F32), (PadEinsum("C", (4, 8, 4)), DecomposePadding("C_A_pad", "C_A_pad_i0"))),
    ],
    ids=["whole", "rows", "einsum"],
)
def test_decompose_padding_is_exact(func: Func, trace: tuple[Step, ...]) -> None:
    check_bits(func, *trace)
