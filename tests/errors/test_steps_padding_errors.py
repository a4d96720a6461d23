"""Steps that pad, or take padding apart, and are refused: one test per mistake."""

import pytest

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Expr,
    Var,
    as_index,
    const,
    equal,
    select,
)
from tilewright.schedule.step import Step
from tilewright.schedule.steps import Bind, ComputeAt, DecomposePadding, LoopPartition, PadEinsum, Split
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.parser import parse_func


def gemm() -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (7, 6), DType.F32), b.param("B", (6, 4), DType.F32)
    c = b.reduce("C", (7, 4), (6,), lambda i, j, k: (x[i, k], y[k, j]))
    return b.finish(b.compute("D", (7, 4), lambda i, j: c[i, j] * 2.0))


def refused(step: Step, *before: Step, func: Func | None = None) -> str:
    module = replay(single(func or gemm()), before)
    with pytest.raises(ScheduleError) as e:
        step.apply(module)
    assert str(e.value).startswith(f"{step}: ")
    return str(e.value)


# ---------------------------------------------------------------------------------------------------------- pad_einsum


def test_pad_einsum_of_a_tiled_block() -> None:
    assert "not alone under plain loops" in refused(PadEinsum("C", (4, 4, 4)), Split("C_i", (None, 4)))


def test_pad_einsum_of_a_moved_block() -> None:
    b = FuncBuilder("moved")
    x = b.param("X", (5,), DType.F32)
    s = b.reduce("S", (2,), (5,), lambda i, k: x[k])
    func = b.finish(b.compute("D", (3, 5), lambda i, j: x[j] * s[0] + s[1]))
    assert "inside another nest" in refused(PadEinsum("S", (1, 4)), ComputeAt("S", "D_i"), func=func)


@pytest.mark.parametrize("padding", [(4, 4), (4, 4, 0), (4, 4, 4, 4)])
def test_pad_einsum_with_the_wrong_numbers(padding: tuple[int, ...]) -> None:
    assert "not a positive number for each of its 3 iterators" in refused(PadEinsum("C", padding))


def test_pad_einsum_of_an_elementwise_block() -> None:
    assert "not a reduction of one store with a constant init" in refused(PadEinsum("D", (4, 4)))


def test_pad_einsum_of_a_maximum() -> None:
    b = FuncBuilder("rows")
    x = b.param("X", (4, 5), DType.F32)
    func = b.finish(b.reduce("S", (4,), (5,), lambda i, k: x[i, k], "max"))
    assert "does not add a product of loads" in refused(PadEinsum("S", (1, 8)), func=func)


def test_pad_einsum_of_a_sum_of_what_is_not_zero_at_zero() -> None:
    b = FuncBuilder("rows")
    x = b.param("X", (4, 5), DType.F32)
    func = b.finish(b.reduce("S", (4,), (5,), lambda i, k: x[i, k] + const(1.0, DType.F32)))
    assert "does not add a product of loads" in refused(PadEinsum("S", (1, 8)), func=func)


def test_pad_einsum_of_a_convolution() -> None:
    b = FuncBuilder("conv")
    x, w = b.param("X", (9,), DType.F32), b.param("W", (3,), DType.F32)
    func = b.finish(b.reduce("Y", (7,), (3,), lambda i, k: (x[i + k], w[k])))
    text = refused(PadEinsum("Y", (4, 4)), func=func)
    assert "the indices of X in Y are not distinct iterators" in text
    assert "Reindex" in text


def test_pad_einsum_of_a_trace() -> None:
    b = FuncBuilder("trace")
    x = b.param("X", (5, 5), DType.F32)
    func = b.finish(b.reduce("Y", (1,), (5,), lambda i, k: x[k, k]))
    assert "not distinct iterators" in refused(PadEinsum("Y", (1, 4)), func=func)


def test_pad_einsum_of_an_operand_that_stays() -> None:
    b = FuncBuilder("scaled")
    x, y = b.param("X", (4, 5), DType.F32), b.param("Y", (4,), DType.F32)
    func = b.finish(b.reduce("S", (4,), (5,), lambda i, k: (x[i, k], y[i])))
    text = refused(PadEinsum("S", (1, 4)), func=func)
    assert "Y is not indexed by S_vk: 0 · Y would be added, which is not 0 if that is infinite" in text


REPEATED = """
@func
def repeated(X: f32[5], S: out(f32[1])):
    for r in range(3):
        for k in range(5):
            with block("S"):
                vr = spatial(3, r)
                vk = reduce(5, k)
                with init():
                    S[0] = f32(0.0)
                S[0] = S[0] + X[vk]
"""


def test_pad_einsum_of_an_iterator_that_does_not_index_the_result() -> None:
    assert "vr does not index S" in refused(PadEinsum("S", (2, 1)), func=parse_func(REPEATED))


def test_pad_einsum_twice() -> None:
    step = PadEinsum("C", (4, 4, 4))
    assert "is taken" in refused(PadEinsum("C", (16, 1, 1)), step)


# --------------------------------------------------------------------------------------------------- decompose_padding


def padded(condition: str = "box") -> Func:
    b = FuncBuilder("padded")
    x = b.param("X", (6, 6), DType.F32)

    def value(i: Var, j: Var) -> Expr:
        zero = const(0.0, DType.F32)
        match condition:
            case "box":
                return select(
                    logical_and(as_index(1) <= i, i < 7, as_index(1) <= j, j < 7), x[i - 1, j - 1], zero
                )
            case "triangle":
                return select(logical_and(i + j < 6, i < 6, j < 6), x[i, j], zero)
            case "even":
                return select(equal(i % 2, 0), x[i // 2, j // 2], zero)
            case "other":
                return select(i < 6, x[i % 6, j % 6], x[0, 0])
            case _:
                return select(i < 60, x[i % 6, j % 6], zero)

    p = b.compute("P", (8, 8), value)
    return b.finish(b.compute("D", (8, 8), lambda i, j: p[i, j] + p[j, i]))


def test_decompose_padding_of_what_is_no_padding() -> None:
    assert "does not store select(inside, value, constant)" in refused(DecomposePadding("C", "C_i"))


def test_decompose_padding_with_no_constant_around() -> None:
    text = refused(DecomposePadding("P", "P_i"), func=padded("other"))
    assert "does not store select(inside, value, constant)" in text


@pytest.mark.parametrize("condition", ["triangle", "even"])
def test_decompose_padding_whose_inside_is_no_box(condition: str) -> None:
    text = refused(DecomposePadding("P", "P_i"), func=padded(condition))
    assert "does not bound its iterators by constants" in text


def test_decompose_padding_without_padding() -> None:
    assert "there is no padding" in refused(DecomposePadding("P", "P_i"), func=padded("always"))


def test_decompose_padding_at_a_loop_elsewhere() -> None:
    assert "D_i is not a loop around P alone" in refused(DecomposePadding("P", "D_i"), func=padded())


def test_decompose_padding_at_a_loop_around_others() -> None:
    text = refused(DecomposePadding("P", "D_i"), ComputeAt("P", "D_i"), func=padded())
    assert "D_i is not a loop around P alone" in text


def test_decompose_padding_of_a_thread_axis() -> None:
    text = refused(DecomposePadding("P", "P_j"), Bind("P_j", "thread_x"), func=padded())
    assert "P_j is bound to thread_x" in text


@pytest.mark.parametrize("point", [1, 2])
def test_decompose_padding_of_the_border(point: int) -> None:
    b = FuncBuilder("wide")
    x = b.param("X", (4,), DType.F32)
    zero = const(0.0, DType.F32)
    func = b.finish(
        b.compute("P", (8,), lambda i: select(logical_and(as_index(2) <= i, i < 6), x[i - 2], zero))
    )
    text = refused(DecomposePadding("P_p0", "P_i_p0"), LoopPartition("P_i", (point,)), func=func)
    assert "P_p0 copies nothing here" in text


def test_decompose_padding_twice() -> None:
    text = refused(DecomposePadding("P", "P_i"), DecomposePadding("P", "P_i"), func=padded())
    assert "does not store select" in text


IN_PLACE = """
@func
def shift(P: out(f32[8])):
    for i in range(8):
        with block("P"):
            v = spatial(8, i)
            P[v] = select(v < 7, P[v + 1], f32(0.0))
"""


def test_decompose_padding_in_place() -> None:
    text = refused(DecomposePadding("P", "i"), func=parse_func(IN_PLACE))
    assert "P reads P, which it would fill first" in text
