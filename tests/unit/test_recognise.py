"""Operations in pieces are recognised, however they are written, and only where they mean the same."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from graph_cases import check_pass, f32, floats, names

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.recognise_activations import recognise_activations
from tilewright.graph.passes.recognise_softmax import recognise_softmax
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Clip, Gelu, HardSigmoid, HardSwish, Sigmoid, Swish
from tilewright.ops.core.arithmetic import Add, Div, Mul, Pow, Sub
from tilewright.ops.core.pointwise import Erf, Exp, Log, Neg, Reciprocal, Tanh
from tilewright.ops.core.reduce import ReduceMax, ReduceSum
from tilewright.ops.core.softmax import Softmax
from tilewright.ops.opdef import Op, TensorType

ROOT = math.sqrt(2 / math.pi)


class Writer:
    """Builds a graph over one input `x` from arithmetic on values and numbers."""

    def __init__(self, dtype: DType = DType.F32, shape: tuple[int, ...] = (3, 4)) -> None:
        self.b, self.dtype = GraphBuilder(), dtype
        self.x = self.b.input("x", TensorType(dtype, shape))

    def __call__(self, op: Op, *args: Value | float) -> Value:
        values = [
            a if isinstance(a, Value) else self.b.constant("c", np.array(a).astype(self.dtype.numpy))
            for a in args
        ]
        return self.b.apply(op, *values)


Body = Callable[[Writer, Value], Value]


def gelu_erf(w: Writer, x: Value) -> Value:
    return w(Mul(), w(Mul(), x, 0.5), w(Add(), w(Erf(), w(Div(), x, math.sqrt(2))), 1.0))


def gelu_erf_turned(w: Writer, x: Value) -> Value:
    return w(Mul(), 0.5, w(Mul(), w(Add(), 1.0, w(Erf(), w(Mul(), math.sqrt(0.5), x))), x))


def gelu_erf_multiplied_out(w: Writer, x: Value) -> Value:
    half = w(Add(), w(Mul(), 0.5, w(Erf(), w(Mul(), x, math.sqrt(0.5)))), 0.5)
    return w(Mul(), half, x)


def gelu_tanh(w: Writer, x: Value) -> Value:
    inner = w(Mul(), ROOT, w(Add(), x, w(Mul(), 0.044715, w(Pow(3.0), x))))
    return w(Mul(), w(Mul(), 0.5, x), w(Add(), 1.0, w(Tanh(), inner)))


def gelu_tanh_of_products(w: Writer, x: Value) -> Value:
    square = w(Mul(), w(Mul(), x, x), 0.044715)
    inner = w(Mul(), w(Mul(), x, ROOT), w(Add(), square, 1.0))
    return w(Mul(), x, w(Mul(), w(Add(), w(Tanh(), inner), 1.0), 0.5))


def silu(w: Writer, x: Value) -> Value:
    return w(Mul(), w(Sigmoid(), x), x)


def quick_gelu(w: Writer, x: Value) -> Value:
    return w(Mul(), x, w(Sigmoid(), w(Mul(), 1.702, x)))


def hard_sigmoid(w: Writer, x: Value) -> Value:
    return w(Div(), w(Clip(0.0, 6.0), w(Add(), x, 3.0)), 6.0)


def hard_swish(w: Writer, x: Value) -> Value:
    return w(Div(), w(Mul(), x, w(Clip(0.0, 6.0), w(Add(), 3.0, x))), 6.0)


def hard_swish_of_hard_sigmoid(w: Writer, x: Value) -> Value:
    return w(Mul(), w(HardSigmoid(1 / 6, 0.5), x), x)


def hard_swish_of_clip(w: Writer, x: Value) -> Value:
    return w(Mul(), x, w(Clip(0.0, 1.0), w(Add(), w(Mul(), x, 1 / 6), 0.5)))


CASES: list[tuple[Body, Op]] = [
    (gelu_erf, Gelu()),
    (gelu_erf_turned, Gelu()),
    (gelu_erf_multiplied_out, Gelu()),
    (gelu_tanh, Gelu(tanh=True)),
    (gelu_tanh_of_products, Gelu(tanh=True)),
    (silu, Swish()),
    (hard_swish, HardSwish()),
    (hard_swish_of_hard_sigmoid, HardSwish()),
    (hard_swish_of_clip, HardSwish()),
]


def recognised(w: Writer, y: Value, step: Callable[[Graph], Graph] = recognise_activations) -> Graph:
    return eliminate_dead(check_pass(w.b.finish(y), step))


@pytest.mark.parametrize(("body", "op"), CASES, ids=[b.__name__ for b, _ in CASES])
def test_an_activation_in_pieces_is_one_op(body: Body, op: Op) -> None:
    w = Writer()
    assert [n.op for n in recognised(w, body(w, w.x)).nodes] == [op]


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F64])
@pytest.mark.parametrize("body", [gelu_erf, gelu_tanh, hard_swish], ids=lambda b: b.__name__)
def test_constants_may_be_rounded_to_the_type_of_the_model(body: Body, dtype: DType) -> None:
    w = Writer(dtype)
    after = eliminate_dead(recognise_activations(w.b.finish(body(w, w.x))))
    assert len(after.nodes) == 1


def test_an_activation_after_arithmetic_is_recognised() -> None:
    w = Writer()
    biased = w(Add(), w(Mul(), w.x, 3.0), w.b.constant("bias", floats(4)))
    assert names(recognised(w, gelu_tanh(w, biased))) == ["Mul", "Add", "Gelu"]


def test_slopes_of_their_own() -> None:
    w = Writer()
    (swish,) = recognised(w, quick_gelu(w, w.x)).nodes
    assert isinstance(swish.op, Swish) and swish.op.alpha == pytest.approx(1.702)
    w = Writer()
    (sigmoid,) = recognised(w, hard_sigmoid(w, w.x)).nodes
    assert isinstance(sigmoid.op, HardSigmoid)
    assert (sigmoid.op.alpha, sigmoid.op.beta) == pytest.approx((1 / 6, 0.5))


def with_another_constant(w: Writer, x: Value) -> Value:
    return w(Mul(), w(Mul(), x, 0.5), w(Add(), w(Erf(), w(Div(), x, 1.4)), 1.0))


def with_another_argument(w: Writer, x: Value) -> Value:
    return w(Mul(), x, w(Sigmoid(), w(Add(), x, 1.0)))


def of_two_values(w: Writer, x: Value) -> Value:
    return w(Mul(), x, w(Sigmoid(), w.b.input("y", f32(3, 4))))


def clipped_elsewhere(w: Writer, x: Value) -> Value:
    return w(Div(), w(Mul(), x, w(Clip(0.0, 5.0), w(Add(), x, 3.0))), 6.0)


def relu6(w: Writer, x: Value) -> Value:
    return w(Div(), w(Clip(0.0, 6.0), x), 3.0)


OTHERS = [with_another_constant, with_another_argument, of_two_values, clipped_elsewhere, relu6]


@pytest.mark.parametrize("body", OTHERS, ids=lambda b: b.__name__)
def test_what_only_looks_like_an_activation_stays(body: Body) -> None:
    w = Writer()
    graph = w.b.finish(body(w, w.x))
    assert recognise_activations(graph) is graph


def test_an_activation_whose_parts_are_needed_stays() -> None:
    w = Writer()
    gate = w(Sigmoid(), w.x)
    graph = w.b.finish(w(Mul(), w.x, gate), w(Neg(), gate))
    assert recognise_activations(graph) is graph
    graph = w.b.finish(w(Mul(), w.x, gate), gate)
    assert recognise_activations(graph) is graph


def test_an_activation_that_broadcasts_stays() -> None:
    w = Writer()
    wide = w.b.constant("ones", floats(2, 1, 1))
    graph = w.b.finish(w(Mul(), w(Mul(), w.x, wide), w(Sigmoid(), w.x)))
    assert recognise_activations(graph) is graph


# -------------------------------------------------------------------------------------------------------- softmax


def test_a_softmax_in_pieces_is_one_op() -> None:
    for turned in (False, True):
        w = Writer()
        e = w(Exp(), w(Sub(), w.x, w(ReduceMax((1,)), w.x)))
        total = w(ReduceSum((1,)), e)
        y = w(Mul(), w(Reciprocal(), total), e) if turned else w(Div(), e, total)
        assert [n.op for n in recognised(w, y, recognise_softmax).nodes] == [Softmax((1,))]


def test_the_logarithm_of_a_softmax_in_pieces_is_one_op() -> None:
    w = Writer()
    d = w(Sub(), w.x, w(ReduceMax((0, 1)), w.x))
    y = w(Sub(), d, w(Log(), w(ReduceSum((0, 1)), w(Exp(), d))))
    assert [n.op for n in recognised(w, y, recognise_softmax).nodes] == [Softmax((0, 1), log=True)]


def test_powers_that_may_overflow_are_no_softmax() -> None:
    w = Writer()
    e = w(Exp(), w.x)
    graph = w.b.finish(w(Div(), e, w(ReduceSum((1,)), e)))
    assert recognise_softmax(graph) is graph


def test_a_sum_over_other_axes_is_no_softmax() -> None:
    w = Writer()
    e = w(Exp(), w(Sub(), w.x, w(ReduceMax((0,)), w.x)))
    graph = w.b.finish(w(Div(), e, w(ReduceSum((1,)), e)))
    assert recognise_softmax(graph) is graph
