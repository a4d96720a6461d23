"""Arithmetic, comparisons and functions of single elements."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.frontend.torch.element_types import is_bool, is_float
from tilewright.frontend.torch.emitter import DynamicSize, NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator

_Operand = Tensor | DynamicSize | bool | int | float


def _binary(op: str, e: NodeEmitter, a: _Operand, b: _Operand) -> str:
    (x, y), dtype = e.common(a, b)
    if op == "Mul" and is_bool(dtype):
        return e.op("And", x, y)
    return e.cast(e.op(op, x, y), dtype, e.out.dtype)


def _add(e: NodeEmitter, a: _Operand, b: _Operand, alpha: float = 1) -> str:
    return _scaled("Add", e, a, b, alpha)


def _sub(e: NodeEmitter, a: _Operand, b: _Operand, alpha: float = 1) -> str:
    return _scaled("Sub", e, a, b, alpha)


def _rsub(e: NodeEmitter, a: _Operand, b: _Operand, alpha: float = 1) -> str:
    return _scaled("Sub", e, b, a, alpha)


def _scaled(op: str, e: NodeEmitter, a: _Operand, b: _Operand, alpha: float) -> str:
    (x, y), dtype = e.common(a, b)
    if is_bool(dtype):
        if op != "Add":
            raise UnsupportedOperator("a difference of booleans")
        return e.op("Or", x, y)
    if alpha != 1:
        y = e.op("Mul", y, e.number(alpha, dtype))
    return e.cast(e.op(op, x, y), dtype, e.out.dtype)


def _div(e: NodeEmitter, a: _Operand, b: _Operand, rounding_mode: str | None = None) -> str:
    (x, y), dtype = e.common(a, b)
    if rounding_mode is None:
        target = e.out.dtype
        return e.op("Div", e.cast(x, dtype, target), e.cast(y, dtype, target))
    if is_float(dtype):
        quotient = e.op("Div", x, y)
        if rounding_mode == "floor":
            return e.cast(e.op("Floor", quotient), dtype, e.out.dtype)
        down, up = e.op("Floor", quotient), e.op("Ceil", quotient)
        return e.op("Where", e.op("Less", quotient, e.number(0, dtype)), up, down)
    quotient = e.op("Div", x, y)
    if rounding_mode == "floor":  # ONNX divides integers towards zero
        rest = e.op("Sub", x, e.op("Mul", quotient, y))
        zero = e.number(0, dtype)
        differs = e.op("Xor", e.op("Less", rest, zero), e.op("Less", y, zero))
        is_below = e.op("And", differs, e.op("Not", e.op("Equal", rest, zero)))
        quotient = e.op("Where", is_below, e.op("Sub", quotient, e.number(1, dtype)), quotient)
    return e.cast(quotient, dtype, e.out.dtype)


def _floor_divide(e: NodeEmitter, a: _Operand, b: _Operand) -> str:
    return _div(e, a, b, "floor")


def _remainder(e: NodeEmitter, a: _Operand, b: _Operand) -> str:
    (x, y), dtype = e.common(a, b)
    if is_float(dtype):
        return e.op("Sub", x, e.op("Mul", e.op("Floor", e.op("Div", x, y)), y))
    return e.op("Mod", x, y)


def _fmod(e: NodeEmitter, a: _Operand, b: _Operand) -> str:
    (x, y), _ = e.common(a, b)
    return e.op("Mod", x, y, fmod=1)


def _pow(e: NodeEmitter, a: _Operand, b: _Operand) -> str:
    target = e.out.dtype
    x = e.operand(a, target)
    if b == 2:
        return e.op("Mul", x, x)
    if b == 1:
        return e.op("Identity", x)
    if is_float(target):
        if b == 0.5:
            return e.op("Sqrt", x)
        if b == -0.5:
            return e.op("Reciprocal", e.op("Sqrt", x))
        if b == -1:
            return e.op("Reciprocal", x)
    return e.op("Pow", x, e.operand(b, target))


def _compare(op: str, e: NodeEmitter, a: _Operand, b: _Operand) -> str:
    (x, y), dtype = e.common(a, b)
    if is_bool(dtype) and op != "Equal":
        x, y = (e.cast(v, dtype, "torch.int32") for v in (x, y))
    return e.op(op, x, y)


def _ne(e: NodeEmitter, a: _Operand, b: _Operand) -> str:
    return e.op("Not", _compare("Equal", e, a, b))


def _logical(op: str, e: NodeEmitter, *operands: Tensor) -> str:
    return e.op(op, *(_truth(e, x) for x in operands))


def _truth(e: NodeEmitter, x: Tensor) -> str:
    if is_bool(x.dtype):
        return x.name
    return e.op("Not", e.op("Equal", x, e.number(0, x.dtype)))


def _bitwise(boolean: str, op: str, e: NodeEmitter, *operands: _Operand) -> str:
    names, dtype = e.common(*operands)
    return e.op(boolean if is_bool(dtype) else op, *names)


def _shift(left: bool, e: NodeEmitter, a: _Operand, b: _Operand) -> str:
    (x, y), dtype = e.common(a, b)
    if not dtype.startswith("torch.uint"):
        raise UnsupportedOperator("shifts of signed integers")
    return e.op("BitShift", x, y, direction="LEFT" if left else "RIGHT")


def _where(e: NodeEmitter, condition: Tensor, a: _Operand, b: _Operand) -> str:
    (x, y), dtype = e.common(a, b)
    return e.cast(e.op("Where", _truth(e, condition), x, y), dtype, e.out.dtype)


def _masked_fill(e: NodeEmitter, x: Tensor, mask: Tensor, value: _Operand) -> str:
    return e.op("Where", mask, e.operand(value, x.dtype), x)


def _function(op: str, e: NodeEmitter, x: Tensor) -> str:
    """Of floats; integers become those first."""
    return e.op(op, e.floating(x)[0])


def _kept(op: str, e: NodeEmitter, x: Tensor) -> str:
    """Of any numbers."""
    return e.op(op, x)


def _rounded(op: str, e: NodeEmitter, x: Tensor) -> str:
    return e.op(op, x) if is_float(x.dtype) else e.op("Identity", x)


def _round_decimals(e: NodeEmitter, x: Tensor, *, decimals: int = 0) -> str:
    if decimals == 0:
        return _rounded("Round", e, x)
    power = e.number(10.0**decimals, x.dtype)
    return e.op("Div", e.op("Round", e.op("Mul", x, power)), power)


def _trunc(e: NodeEmitter, x: Tensor) -> str:
    if not is_float(x.dtype):
        return e.op("Identity", x)
    return e.op("Where", e.op("Less", x, e.number(0, x.dtype)), e.op("Ceil", x), e.op("Floor", x))


def _rsqrt(e: NodeEmitter, x: Tensor) -> str:
    return e.op("Reciprocal", e.op("Sqrt", e.floating(x)[0]))


def _expm1(e: NodeEmitter, x: Tensor) -> str:
    """By tanh(x / 2), which does not cancel near 0: expm1(x) = t · (exp(x) + 1)."""
    name, dtype = e.floating(x)
    one, half = e.number(1, dtype), e.number(0.5, dtype)
    small = e.op("Mul", e.op("Tanh", e.op("Mul", name, half)), e.op("Add", e.op("Exp", name), one))
    is_small = e.op("Less", e.op("Abs", name), one)
    return e.op("Where", is_small, small, e.op("Sub", e.op("Exp", name), one))


def _log1p(e: NodeEmitter, x: Tensor) -> str:
    """By atanh(x / (2 + x)) near 0, where the sum would lose the digits of x."""
    name, dtype = e.floating(x)
    one, two = e.number(1, dtype), e.number(2, dtype)
    small = e.op("Mul", two, e.op("Atanh", e.op("Div", name, e.op("Add", name, two))))
    is_small = e.op("Less", e.op("Abs", name), e.number(0.5, dtype))
    return e.op("Where", is_small, small, e.op("Log", e.op("Add", name, one)))


def _log_base(base: float, e: NodeEmitter, x: Tensor) -> str:
    name, dtype = e.floating(x)
    return e.op("Mul", e.op("Log", name), e.number(1 / math.log(base), dtype))


def _exp2(e: NodeEmitter, x: Tensor) -> str:
    name, dtype = e.floating(x)
    return e.op("Exp", e.op("Mul", name, e.number(math.log(2), dtype)))


def _erfc(e: NodeEmitter, x: Tensor) -> str:
    name, dtype = e.floating(x)
    return e.op("Sub", e.number(1, dtype), e.op("Erf", name))


def _atan2(e: NodeEmitter, a: Tensor, b: Tensor) -> str:
    (y, x), dtype = e.common(a, b)
    zero, pi = e.number(0, dtype), e.number(math.pi, dtype)
    turned = e.op("Where", e.op("Less", y, zero), e.op("Neg", pi), pi)
    angle = e.op("Atan", e.op("Div", y, x))
    left = e.op("Where", e.op("Less", x, zero), e.op("Add", angle, turned), angle)
    both = e.op("And", e.op("Equal", x, zero), e.op("Equal", y, zero))
    return e.op("Where", both, zero, left)


def _clamp(e: NodeEmitter, x: Tensor, low: "_Operand | None" = None, high: "_Operand | None" = None) -> str:
    target = e.out.dtype
    name = e.to(x, target)
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        if low is not None:
            name = e.op("Max", name, e.operand(low, target))
        return name if high is None else e.op("Min", name, e.operand(high, target))
    bounds = [None if v is None else e.operand(v, target) for v in (low, high)]
    return e.op("Clip", name, *bounds)


def _clamp_min(e: NodeEmitter, x: Tensor, low: _Operand) -> str:
    return _clamp(e, x, low, None)


def _clamp_max(e: NodeEmitter, x: Tensor, high: _Operand) -> str:
    return _clamp(e, x, None, high)


def _addcmul(e: NodeEmitter, x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> str:
    return _add_scaled(e, x, _binary("Mul", e, a, b), value)


def _addcdiv(e: NodeEmitter, x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> str:
    return _add_scaled(e, x, _binary("Div", e, a, b), value)


def _add_scaled(e: NodeEmitter, x: Tensor, other: str, value: float) -> str:
    if value != 1:
        other = e.op("Mul", other, e.number(value, e.out.dtype))
    return e.op("Add", e.to(x, e.out.dtype), other)


def _lerp(e: NodeEmitter, a: Tensor, b: Tensor, weight: _Operand) -> str:
    return e.op("Add", a, e.op("Mul", e.operand(weight, a.dtype), e.op("Sub", b, a)))


def _isfinite(e: NodeEmitter, x: Tensor) -> str:
    if not is_float(x.dtype):
        return e.op("Equal", x, x)
    return e.op("Not", e.op("Or", e.op("IsNaN", x), e.op("IsInf", x)))


def _float_test(op: str, e: NodeEmitter, x: Tensor) -> str:
    if not is_float(x.dtype):
        return e.op("Not", e.op("Equal", x, x))
    return e.op(op, x)


def _nan_to_num(
    e: NodeEmitter,
    x: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> str:
    limits = {"torch.float32": 3.4028234663852886e38, "torch.float64": 1.7976931348623157e308}
    if not is_float(x.dtype):
        return e.op("Identity", x)
    if x.dtype not in limits and (posinf is None or neginf is None):
        raise UnsupportedOperator(f"the largest number of {x.dtype}")
    most = limits.get(x.dtype, 0.0)
    high, low = most if posinf is None else posinf, -most if neginf is None else neginf
    name = e.op("Where", e.op("IsNaN", x), e.number(nan or 0.0, x.dtype), x)
    name = e.op("Where", e.op("IsInf", name, detect_negative=0), e.number(high, x.dtype), name)
    return e.op("Where", e.op("IsInf", name, detect_positive=0), e.number(low, x.dtype), name)


def _to_copy(e: NodeEmitter, x: Tensor, **_: Any) -> str:
    """Another element type, or none; device and layout are those of the CPU."""
    return _cast(e, x, e.out.dtype)


def _convert(e: NodeEmitter, x: Tensor, dtype: object) -> str:
    return _cast(e, x, dtype)


def _cast(e: NodeEmitter, x: Tensor, dtype: object) -> str:
    return e.op("Identity", x) if x.dtype == str(dtype) else e.to(x, dtype)


def _same(e: NodeEmitter, x: Tensor, **_: Any) -> str:
    return e.op("Identity", x)


def _named(names: str, write: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {f"aten.{n}": write for n in names.split()}


_FUNCTIONS = {
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "erf": "Erf",
    "reciprocal": "Reciprocal",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}

ENTRIES: Mapping[str, Callable[..., Any]] = {
    **_named("add.Tensor add.Scalar", _add),
    **_named("sub.Tensor sub.Scalar", _sub),
    **_named("rsub.Tensor rsub.Scalar", _rsub),
    **_named("mul.Tensor mul.Scalar", partial(_binary, "Mul")),
    **_named("div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode true_divide.Tensor", _div),
    **_named("floor_divide.default floor_divide.Scalar", _floor_divide),
    **_named("remainder.Tensor remainder.Scalar", _remainder),
    **_named("fmod.Tensor fmod.Scalar", _fmod),
    **_named("pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar", _pow),
    **_named("maximum.default max.other", partial(_binary, "Max")),
    **_named("minimum.default min.other", partial(_binary, "Min")),
    **_named("eq.Tensor eq.Scalar", partial(_compare, "Equal")),
    **_named("ne.Tensor ne.Scalar", _ne),
    **_named("lt.Tensor lt.Scalar", partial(_compare, "Less")),
    **_named("le.Tensor le.Scalar", partial(_compare, "LessOrEqual")),
    **_named("gt.Tensor gt.Scalar", partial(_compare, "Greater")),
    **_named("ge.Tensor ge.Scalar", partial(_compare, "GreaterOrEqual")),
    **_named("logical_and.default", partial(_logical, "And")),
    **_named("logical_or.default", partial(_logical, "Or")),
    **_named("logical_xor.default", partial(_logical, "Xor")),
    **_named("logical_not.default", partial(_logical, "Not")),
    **_named("bitwise_and.Tensor bitwise_and.Scalar __and__.Tensor", partial(_bitwise, "And", "BitwiseAnd")),
    **_named("bitwise_or.Tensor bitwise_or.Scalar __or__.Tensor", partial(_bitwise, "Or", "BitwiseOr")),
    **_named("bitwise_xor.Tensor bitwise_xor.Scalar", partial(_bitwise, "Xor", "BitwiseXor")),
    **_named("bitwise_not.default", partial(_bitwise, "Not", "BitwiseNot")),
    **_named("bitwise_left_shift.Tensor", partial(_shift, True)),
    **_named("bitwise_right_shift.Tensor", partial(_shift, False)),
    **_named("where.self where.ScalarSelf where.ScalarOther where.Scalar", _where),
    **_named("masked_fill.Scalar masked_fill.Tensor", _masked_fill),
    **{f"aten.{name}.default": partial(_function, op) for name, op in _FUNCTIONS.items()},
    **_named("abs.default", partial(_kept, "Abs")),
    **_named("neg.default", partial(_kept, "Neg")),
    **_named("sign.default sgn.default", partial(_kept, "Sign")),
    **_named("floor.default", partial(_rounded, "Floor")),
    **_named("ceil.default", partial(_rounded, "Ceil")),
    **_named("round.default", partial(_rounded, "Round")),
    **_named("round.decimals", _round_decimals),
    **_named("trunc.default", _trunc),
    **_named("rsqrt.default", _rsqrt),
    **_named("expm1.default", _expm1),
    **_named("log1p.default", _log1p),
    **_named("log2.default", partial(_log_base, 2)),
    **_named("log10.default", partial(_log_base, 10)),
    **_named("exp2.default", _exp2),
    **_named("erfc.default", _erfc),
    **_named("atan2.default", _atan2),
    **_named("clamp.default clamp.Tensor", _clamp),
    **_named("clamp_min.default clamp_min.Tensor", _clamp_min),
    **_named("clamp_max.default clamp_max.Tensor", _clamp_max),
    **_named("addcmul.default", _addcmul),
    **_named("addcdiv.default", _addcdiv),
    **_named("lerp.Scalar lerp.Tensor", _lerp),
    **_named("isfinite.default", _isfinite),
    **_named("isnan.default", partial(_float_test, "IsNaN")),
    **_named("isinf.default", partial(_float_test, "IsInf")),
    **_named("nan_to_num.default", _nan_to_num),
    **_named("_to_copy.default", _to_copy),
    "prims.convert_element_type.default": _convert,
    **_named("clone.default alias.default detach.default lift_fresh_copy.default lift_fresh.default", _same),
    **_named("contiguous.default positive.default", _same),
}
