"""The rules that random models grow by: each adds an operator (or the few that make sense together) to a Generator."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from onnx import ModelProto, helper

from tests.fuzz.movement_rules import MOVEMENT, concat, transpose
from tests.fuzz.ordered_rules import ORDERED, largest, recurrent
from tests.fuzz.random_models import Generator, Value

Rule: TypeAlias = Callable[[Generator], bool]


def random_model(seed: int, rules: Sequence[Rule] | None = None) -> ModelProto:
    """By all rules, unless others are given."""
    g = Generator(seed)
    for _ in range(g.pick((1, 1, 2))):
        g.add_input()
    wanted = int(g.rng.integers(2, 13))
    made = tries = 0
    while made < wanted and tries < 200:
        made += g.pick(rules or RULES)(g)
        tries += 1
    return g.finish()


# ---------------------------------------------------------------------------------------------------------- elementwise

_UNARY = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "Neg",
    "Abs",
    "Erf",
    "Softplus",
    "LeakyRelu",
    "HardSwish",
    "HardSigmoid",
    "Elu",
    "Selu",
    "Softsign",
    "Mish",
    "Sin",
    "Cos",
    "Identity",
)


def unary(g: Generator) -> bool:
    x = g.value()
    if x is None:
        return False
    match g.pick(("plain", "plain", "plain", "clip", "exp", "sqrt", "log", "square")):
        case "clip":
            g.add(x.shape, "Clip", [x, g.number(-0.5), g.number(1.5)])
        case "exp":
            g.add(x.shape, "Exp", [g.add(x.shape, "Tanh", [x])])
        case "sqrt":
            g.add(x.shape, "Sqrt", [g.add(x.shape, "Sigmoid", [x])])
        case "log":
            g.add(x.shape, "Log", [g.add(x.shape, "Softplus", [g.add(x.shape, "Tanh", [x])])])
        case "square":
            g.add(x.shape, "Pow", [g.add(x.shape, "Tanh", [x]), g.number(2.0)])
        case _:
            g.add(x.shape, g.pick(_UNARY), [x])
    return True


def binary(g: Generator) -> bool:
    x = g.value()
    if x is None:
        return False
    others = [v for v in g.values if _broadcasts(x.shape, v.shape)]
    y: Value | str = g.floats(*g.broadcastable(x.shape))
    shape = x.shape
    op = g.pick(("Add", "Add", "Sub", "Mul", "Max", "Min", "Div", "PRelu"))
    if op == "PRelu":
        g.add(shape, op, [x, y])
        return True
    if op == "Div" or g.chance(0.6):
        y = g.pick(others)
        assert isinstance(y, Value)
        shape = np.broadcast_shapes(x.shape, y.shape)
        if math.prod(shape) > g.max_size:
            return False
        if op == "Mul":  # damped: products of products grow
            y = g.add(y.shape, "Tanh", [y])
        if op == "Div":
            y = g.add(y.shape, "Add", [g.add(y.shape, "Abs", [y]), g.number(1.0)])
            g.add(shape, op, [x, y])
            return True
    g.add(shape, op, [y, x] if g.chance(0.3) else [x, y])
    return True


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def where(g: Generator) -> bool:
    x = g.value()
    if x is None:
        return False
    fitting = [
        v
        for v in g.flags
        if _broadcasts(v.shape, x.shape) and np.broadcast_shapes(v.shape, x.shape) == x.shape
    ]
    if fitting and g.chance(0.5):
        flag: Value = g.pick(fitting)
    else:
        shape = g.broadcastable(x.shape)
        flag = Value(g.m.input(*shape, dtype=np.bool_), shape)
        g.flags.append(flag)
    if g.chance(0.3):
        flag = g.add(flag.shape, "Not", [flag], "flags")
    g.add(x.shape, "Where", [flag, x, g.floats(*g.broadcastable(x.shape))])
    return True


def integers(g: Generator) -> bool:
    """Integer arithmetic and comparisons, exact in every engine."""
    if not g.integers or g.chance(0.3):
        shape = tuple(g.pick(g.dims) for _ in range(g.pick((1, 2, 3))))
        g.integers.append(Value(g.m.input(*shape, dtype=np.int64), shape))
    x: Value = g.pick(g.integers)
    match g.pick(("Add", "Mul", "Max", "compare", "cast", "reduce", "Div", "Mod")):
        case "cast":
            small = g.add(x.shape, "Mod", [x, g.m.constant(5, np.int64)], "integers")
            g.keep(
                Value(g.m.op("Cast", small.name, to=helper.np_dtype_to_tensor_dtype(g.dtype)), x.shape),
                [small],
            )  # `to` is a name of ours in `add`
        case "compare":
            op = g.pick(("Less", "Equal", "GreaterOrEqual"))
            g.add(x.shape, op, [x, g.m.constant(2, np.int64)], "flags")
        case "reduce":
            g.add(_reduced(x.shape, [0], True), "ReduceSum", [x, g.m.ints(0)], "integers", keepdims=1)
        case "Max":
            g.add(x.shape, "Max", [x, g.m.constant(g.rng.integers(0, 5, x.shape), np.int64)], "integers")
        case op:
            g.add(x.shape, op, [x, g.m.constant(int(g.rng.integers(1, 4)), np.int64)], "integers")
    return True


# --------------------------------------------------------------------------------------------------------- contractions


def matmul(g: Generator) -> bool:
    x = g.value(min_rank=1)
    if x is None:
        return False
    n, k = g.pick((*g.dims, 24, 33)), x.shape[-1]
    kind = g.pick(("weight", "weight", "left", "itself", "vector", "batched"))
    match kind if x.rank > 1 else "weight":
        case "left":
            rows = x.shape[-2]
            shape, inputs = (*x.shape[:-2], n, k), [g.scaled(rows, n, rows), x]
        case "vector":
            shape, inputs = x.shape[:-1], [x, g.scaled(k, k)]
        case "batched":
            batch = g.broadcastable(x.shape[:-2])
            shape, inputs = (*x.shape[:-1], n), [x, g.scaled(k, *batch, k, n)]
        case "itself":
            shape = (*x.shape[:-1], x.shape[-2])
            if math.prod(shape) > g.max_size:
                return False
            perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
            turned = g.add([x.shape[p] for p in perm], "Transpose", [x], perm=perm)
            product = g.add(shape, "MatMul", [x, turned])
            g.add(shape, "Div", [product, g.number(float(k))])
            return True
        case _:
            shape, inputs = (*x.shape[:-1], n), [x, g.scaled(k, k, n)]
    if math.prod(shape) > g.max_size:
        return False
    g.add(shape, "MatMul", inputs)
    return True


def gemm(g: Generator) -> bool:
    x = g.value(min_rank=2, max_rank=2)
    if x is None:
        return False
    flip_a, flip_b, n = g.chance(0.4), g.chance(0.5), g.pick(g.dims)
    rows, k = x.shape[::-1] if flip_a else x.shape
    w = g.scaled(k, *((n, k) if flip_b else (k, n)))
    bias = [g.floats(*g.broadcastable((rows, n)))] if g.chance(0.7) else []
    scale = {"alpha": 0.5, "beta": 2.0} if g.chance(0.3) else {}
    g.add((rows, n), "Gemm", [x, w, *bias], transA=int(flip_a), transB=int(flip_b), **scale)
    return True


def conv(g: Generator) -> bool:
    x = g.value(min_rank=3, max_rank=5)
    if x is None:
        return False
    channels, space = x.shape[1], x.shape[2:]
    group = g.pick([d for d in range(1, channels + 1) if channels % d == 0])
    out = group * g.pick((1, 1, 2, 3, 5, 8))
    kernel = [g.pick((1, 1, 2, 3, 3, 5)) for _ in space]
    strides = [g.pick((1, 1, 1, 2, 3)) for _ in space]
    dilations = [g.pick((1, 1, 1, 2)) for _ in space]
    before, after = ([int(g.rng.integers(k)) for k in kernel] for _ in range(2))
    sizes = [
        (d + b + a - (k - 1) * e - 1) // s + 1
        for d, b, a, k, s, e in zip(space, before, after, kernel, strides, dilations, strict=True)
    ]
    if out > 40 or min(sizes) < 1 or math.prod(sizes) * out * x.shape[0] > g.max_size:
        return False
    per_group = channels // group
    w = g.scaled(per_group * math.prod(kernel), out, per_group, *kernel)
    bias = [g.floats(out)] if g.chance(0.6) else []
    attrs = {"strides": strides, "dilations": dilations, "pads": [*before, *after], "group": group}
    g.add((x.shape[0], out, *sizes), "Conv", [x, w, *bias], **attrs)
    return True


def conv_transpose(g: Generator) -> bool:
    x = g.value(min_rank=3, max_rank=4)
    if x is None:
        return False
    out = g.pick((1, 3, 8))
    kernel, strides = [g.pick((1, 2, 3)) for _ in x.shape[2:]], [g.pick((1, 2)) for _ in x.shape[2:]]
    sizes = [(d - 1) * s + k for d, k, s in zip(x.shape[2:], kernel, strides, strict=True)]
    if math.prod(sizes) * out * x.shape[0] > g.max_size:
        return False
    w = g.scaled(x.shape[1] * math.prod(kernel), x.shape[1], out, *kernel)
    g.add((x.shape[0], out, *sizes), "ConvTranspose", [x, w], strides=strides)
    return True


# ----------------------------------------------------------------------------------------------------------- reductions


def _reduced(shape: Sequence[int], axes: Sequence[int], keep: bool) -> tuple[int, ...]:
    return tuple(1 if d in axes else n for d, n in enumerate(shape) if keep or d not in axes)


def reduce(g: Generator) -> bool:
    x = g.value(min_rank=1)
    if x is None:
        return False
    axes = sorted({g.axis(x) for _ in range(g.pick((1, 1, 2, 3)))})
    keep = g.chance(0.5)
    op = g.pick(("Mean", "Mean", "Max", "Min", "L2", "LogSumExp", "Sum"))
    shape = _reduced(x.shape, axes, keep)
    spelled = [g.spelled(a, x.rank) for a in axes]
    y = g.add(shape, f"Reduce{op}", [x, g.m.ints(*spelled)], keepdims=int(keep))
    if op in ("L2", "Sum"):
        n = math.prod(x.shape[a] for a in axes)
        g.add(shape, "Div", [y, g.number(math.sqrt(n))])
    return True


def softmax(g: Generator) -> bool:
    x = g.value(min_rank=1)
    if x is None:
        return False
    g.add(x.shape, g.pick(("Softmax", "Softmax", "LogSoftmax")), [x], axis=g.spelled(g.axis(x), x.rank))
    return True


def norm(g: Generator) -> bool:
    x = g.value(min_rank=2)
    if x is None:
        return False
    kind = g.pick(("layer", "layer", "batch", "instance"))
    if kind == "layer":
        axis = g.axis(x)
        rest = x.shape[axis:]
        bias = [g.floats(*rest)] if g.chance(0.7) else []
        inputs = [x, g.floats(*rest), *bias]
        g.add(x.shape, "LayerNormalization", inputs, axis=g.spelled(axis, x.rank))
    elif kind == "batch":
        c = x.shape[1]
        variance = g.m.constant(g.rng.uniform(0.5, 1.5, c).astype(g.dtype))
        g.add(x.shape, "BatchNormalization", [x, g.floats(c), g.floats(c), g.floats(c), variance])
    elif x.rank >= 3:
        g.add(x.shape, "InstanceNormalization", [x, g.floats(x.shape[1]), g.floats(x.shape[1])])
    else:
        return False
    return True


def pool(g: Generator) -> bool:
    x = g.value(min_rank=3, max_rank=5)
    if x is None:
        return False
    if g.chance(0.3):
        g.add((*x.shape[:2], *(1 for _ in x.shape[2:])), g.pick(("GlobalAveragePool", "GlobalMaxPool")), [x])
        return True
    kernel = [min(d, g.pick((1, 2, 2, 3))) for d in x.shape[2:]]
    strides = [g.pick((1, 1, 2)) for _ in kernel]
    before, after = ([int(g.rng.integers((k + 1) // 2)) for k in kernel] for _ in range(2))
    sizes = [
        (d + b + a - k) // s + 1
        for d, b, a, k, s in zip(x.shape[2:], before, after, kernel, strides, strict=True)
    ]
    op = g.pick(("MaxPool", "AveragePool"))
    extra = {"count_include_pad": int(g.chance(0.5))} if op == "AveragePool" else {}
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": [*before, *after]}
    g.add((*x.shape[:2], *sizes), op, [x], **attrs, **extra)
    return True


def cumulative(g: Generator) -> bool:
    x = g.value(min_rank=1)
    if x is None:
        return False
    axis = g.axis(x)
    y = g.add(x.shape, "CumSum", [x, g.m.constant(axis, np.int64)], exclusive=int(g.chance(0.5)))
    g.add(x.shape, "Div", [y, g.number(float(x.shape[axis]))])
    return True


RULES: tuple[Rule, ...] = (
    *(unary,) * 4,
    *(binary,) * 5,
    where,
    integers,
    *(matmul,) * 3,
    gemm,
    *(conv,) * 4,
    conv_transpose,
    *(reduce,) * 2,
    *(softmax,) * 2,
    *(norm,) * 2,
    *(pool,) * 2,
    cumulative,
    *ORDERED,
    *MOVEMENT,
)

# Few of all kinds of loops, so that most models have one next to another.
CHAINS: tuple[Rule, ...] = (
    *ORDERED,
    *(recurrent, largest),
    *(conv, pool, reduce) * 2,
    *(softmax, cumulative, unary, matmul, concat, transpose),
)
