"""How many parts of a kernel have something to do, as sizes that the runtime evaluates."""

from collections.abc import Callable, Mapping

from tilewright.codegen.kernel import parts, parts_in_use
from tilewright.ir.expr import Binary, BinaryOp, Const, DimSize, Expr, Load
from tilewright.support.errors import InternalError
from tilewright.support.sizes import Dim, DimUnits, SizeExpr
from tilewright.tir.func import Func
from tilewright.tir.passes.place_sizes import size_name

_APPLIED: dict[BinaryOp, Callable[[SizeExpr, SizeExpr], SizeExpr]] = {
    BinaryOp.ADD: SizeExpr.__add__,
    BinaryOp.SUB: SizeExpr.__sub__,
    BinaryOp.MUL: SizeExpr.__mul__,
    BinaryOp.FLOORDIV: SizeExpr.__floordiv__,
}


def sizes_in_use(func: Func, dims: Mapping[str, Dim]) -> tuple[SizeExpr, ...]:
    """The number of parts in use is at most the largest of these; none: all are. It may be larger than that of all
    parts.
    """
    limit = parts_in_use(func)
    if limit is None or parts(func) == 1:
        return ()
    return tuple(dict.fromkeys(_largest(limit, dims) or ()))


def _largest(e: Expr, dims: Mapping[str, Dim]) -> list[SizeExpr] | None:
    """The largest of these is at least `e`: a minimum is at most either of what it is made of. None if there are none
    that the runtime could evaluate.
    """
    match e:
        case Binary(op=BinaryOp.MAX):
            a, b = _largest(e.a, dims), _largest(e.b, dims)
            return None if a is None or b is None else [*a, *b]
        case Binary(op=BinaryOp.MIN):  # what clamps it to a number is left to the runtime
            a = _largest(e.a, dims)
            return a if a is not None and any(s.constant is None for s in a) else _largest(e.b, dims)
        case Binary(op=BinaryOp.ADD | BinaryOp.MUL | BinaryOp.FLOORDIV, b=Const(value=n)) if n > 0:
            a = _largest(e.a, dims)  # what grows with `a` is largest where that is
            return None if a is None else [_APPLIED[e.op](s, SizeExpr.of(int(n))) for s in a]
        case _:
            found = _size(e, dims)
            return None if found is None else [found]


def size_in_use(e: Expr, dims: Mapping[str, Dim]) -> SizeExpr:
    """What a buffer says of the size of one of its dimensions."""
    found = _size(e, dims)
    if found is None:
        raise InternalError(f"{e} is no size of open dimensions")
    return found


def _size(e: Expr, dims: Mapping[str, Dim]) -> SizeExpr | None:
    match e:
        case Const():
            return SizeExpr.of(int(e.value))
        case DimSize():
            return SizeExpr((((DimUnits(dims[e.name]),), 1),)) if e.name in dims else None
        case Load():
            dim = dims.get(size_name(e.buffer) or "")
            return None if dim is None else SizeExpr((((DimUnits(dim),), 1),))
        case Binary():
            a, b = _size(e.a, dims), _size(e.b, dims)
            if a is None or b is None:
                return None
            is_known = e.op in _APPLIED and (e.op is not BinaryOp.FLOORDIV or b.constant is not None)
            return _APPLIED[e.op](a, b) if is_known else None
        case _:
            return None
