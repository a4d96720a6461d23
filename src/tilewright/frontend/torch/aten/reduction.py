"""Sums, extremes and their like, along axes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.frontend.torch.element_types import is_bool, is_float
from tilewright.frontend.torch.emitter import NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator

_Axes = int | Sequence[int] | None


def _reduce(op: str, e: NodeEmitter, x: Tensor, dim: _Axes = None, keepdim: bool = False, **_: Any) -> str:
    """In the type of the result: sums of small integers are int64."""
    return _reduced(op, e, x, dim, keepdim, e.out.dtype)


def _reduced(op: str, e: NodeEmitter, x: Tensor, dim: _Axes, keep: bool, dtype: str) -> str:
    name = e.to(x, dtype)
    if x.rank == 0:
        return e.op("Identity", name)
    return e.op(op, name, e.integers(*x.axes(dim)), keepdims=int(keep))


def _whole(op: str, e: NodeEmitter, x: Tensor, **_: Any) -> str:
    return _reduced(op, e, x, None, False, e.out.dtype)


def _extreme(op: str, e: NodeEmitter, x: Tensor, dim: _Axes = None, keepdim: bool = False) -> str:
    if is_bool(x.dtype):
        made = _reduced(op, e, x, dim, keepdim, "torch.int32")
        return e.cast(made, "torch.int32", x.dtype)
    return _reduced(op, e, x, dim, keepdim, x.dtype)


def _any(op: str, e: NodeEmitter, x: Tensor, dim: _Axes = None, keepdim: bool = False) -> str:
    truth = x.name if is_bool(x.dtype) else e.op("Not", e.op("Equal", x, e.number(0, x.dtype)))
    if x.rank == 0:
        return e.op("Identity", truth)
    numbers = e.cast(truth, "torch.bool", "torch.int32")
    made = e.op(op, numbers, e.integers(*x.axes(dim)), keepdims=int(keepdim))
    return e.cast(made, "torch.int32", e.out.dtype)


def _arg(op: str, e: NodeEmitter, x: Tensor, dim: int | None = None, keepdim: bool = False) -> str:
    if dim is None:
        if keepdim:
            raise UnsupportedOperator("a place in the whole tensor that keeps its axes")
        flat = e.op("Reshape", x, e.integers(-1))
        return e.op(op, flat, axis=0, keepdims=0)
    if x.rank == 0:
        return e.number(0, "torch.int64")
    return e.op(op, x, axis=x.axis(dim), keepdims=int(keepdim))


def _extreme_at(
    op: str, arg: str, e: NodeEmitter, x: Tensor, dim: int, keepdim: bool = False
) -> tuple[str, str]:
    return _extreme(op, e, x, dim, keepdim), _arg(arg, e, x, dim, keepdim)


def _variance(
    e: NodeEmitter, x: Tensor, dim: _Axes = None, *, correction: float | None = 1, keepdim: bool = False
) -> str:
    return _moments(e, x, dim, correction, keepdim)[0]


def _variance_flag(
    e: NodeEmitter, x: Tensor, dim: _Axes = None, unbiased: bool = True, keepdim: bool = False
) -> str:
    return _moments(e, x, dim, int(unbiased), keepdim)[0]


def _deviation(
    e: NodeEmitter, x: Tensor, dim: _Axes = None, *, correction: float | None = 1, keepdim: bool = False
) -> str:
    return e.op("Sqrt", _moments(e, x, dim, correction, keepdim)[0])


def _variance_mean(
    e: NodeEmitter, x: Tensor, dim: _Axes = None, *, correction: float | None = 1, keepdim: bool = False
) -> tuple[str, str]:
    return _moments(e, x, dim, correction, keepdim)


def _moments(e: NodeEmitter, x: Tensor, dim: _Axes, correction: float | None, keep: bool) -> tuple[str, str]:
    axes = x.axes(dim)
    count = 1
    for a in axes:
        count *= x.extent(a)
    mean = e.op("ReduceMean", x, e.integers(*axes), keepdims=1)
    apart = e.op("Sub", x, mean)
    variance = e.op("ReduceMean", e.op("Mul", apart, apart), e.integers(*axes), keepdims=int(keep))
    less = 1 if correction is None else correction
    if less:
        if count - less <= 0:
            raise UnsupportedOperator("a variance of too few elements")
        variance = e.op("Mul", variance, e.number(count / (count - less), x.dtype))
    return variance, mean if keep else e.op("Squeeze", mean, e.integers(*axes))


def _norm(e: NodeEmitter, x: Tensor, p: float = 2, dim: _Axes = None, keepdim: bool = False, **_: Any) -> str:
    known = {1: "ReduceL1", 2: "ReduceL2"}
    if p in known:
        return _reduced(known[int(p)], e, x, dim, keepdim, e.out.dtype)
    if p in (float("inf"), float("-inf")):
        name = e.op("Abs", x)
        op = "ReduceMax" if p > 0 else "ReduceMin"
        return e.op(op, name, e.integers(*x.axes(dim)), keepdims=int(keepdim))
    raise UnsupportedOperator(f"a norm of order {p}")


def _scalar_norm(e: NodeEmitter, x: Tensor, p: float = 2) -> str:
    return _norm(e, x, p)


def _logsumexp(e: NodeEmitter, x: Tensor, dim: _Axes, keepdim: bool = False) -> str:
    return _reduced("ReduceLogSumExp", e, x, dim, keepdim, e.out.dtype)


def _cumsum(e: NodeEmitter, x: Tensor, dim: int, **_: Any) -> str:
    name = e.to(x, e.out.dtype)
    return e.op("Identity", name) if x.rank == 0 else e.op("CumSum", name, e.integers(x.axis(dim)))


def _mean(e: NodeEmitter, x: Tensor, dim: _Axes = None, keepdim: bool = False, **_: Any) -> str:
    if not is_float(e.out.dtype):
        raise UnsupportedOperator("a mean of integers")
    return _reduced("ReduceMean", e, x, dim, keepdim, e.out.dtype)


ENTRIES: Mapping[str, Callable[..., Any]] = {
    "aten.sum.default": partial(_whole, "ReduceSum"),
    "aten.sum.dim_IntList": partial(_reduce, "ReduceSum"),
    "aten.prod.default": partial(_whole, "ReduceProd"),
    "aten.prod.dim_int": partial(_reduce, "ReduceProd"),
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.amax.default": partial(_extreme, "ReduceMax"),
    "aten.amin.default": partial(_extreme, "ReduceMin"),
    "aten.max.default": partial(_extreme, "ReduceMax"),
    "aten.min.default": partial(_extreme, "ReduceMin"),
    "aten.max.dim": partial(_extreme_at, "ReduceMax", "ArgMax"),
    "aten.min.dim": partial(_extreme_at, "ReduceMin", "ArgMin"),
    "aten.argmax.default": partial(_arg, "ArgMax"),
    "aten.argmin.default": partial(_arg, "ArgMin"),
    "aten.any.default": partial(_any, "ReduceMax"),
    "aten.any.dim": partial(_any, "ReduceMax"),
    "aten.any.dims": partial(_any, "ReduceMax"),
    "aten.all.default": partial(_any, "ReduceMin"),
    "aten.all.dim": partial(_any, "ReduceMin"),
    "aten.all.dims": partial(_any, "ReduceMin"),
    "aten.var.correction": _variance,
    "aten.var.dim": _variance_flag,
    "aten.std.correction": _deviation,
    "aten.var_mean.correction": _variance_mean,
    "aten.linalg_vector_norm.default": _norm,
    "aten.norm.ScalarOpt_dim": _norm,
    "aten.norm.Scalar": _scalar_norm,
    "aten.logsumexp.default": _logsumexp,
    "aten.cumsum.default": _cumsum,
}
