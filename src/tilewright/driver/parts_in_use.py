"""How many parts of a kernel have something to do, as sizes that the runtime evaluates."""

from collections.abc import Mapping

from tilewright.codegen.kernel import parts, parts_in_use
from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Load
from tilewright.support.sizes import Dim, DimUnits, SizeExpr
from tilewright.tir.func import Func
from tilewright.tir.passes.place_sizes import size_name


def sizes_in_use(func: Func, dims: Mapping[str, Dim]) -> tuple[SizeExpr, ...]:
    """The number of parts in use is the largest of these; none: all are. It may be larger than that of all parts."""
    limit = parts_in_use(func)
    if limit is None or parts(func) == 1:
        return ()
    found = [_size(e, dims) for e in _largest(limit)]
    sizes = tuple(e for e in found if e is not None)
    return sizes if len(sizes) == len(found) else ()


def _largest(e: Expr) -> list[Expr]:
    """Those that `e` is the maximum of. What clamps it to a number is left to the runtime."""
    if isinstance(e, Binary) and e.op is BinaryOp.MAX:
        return [*_largest(e.a), *_largest(e.b)]
    if isinstance(e, Binary) and e.op is BinaryOp.MIN and isinstance(e.b, Const):
        return _largest(e.a)
    return [e]


def _size(e: Expr, dims: Mapping[str, Dim]) -> SizeExpr | None:
    match e:
        case Const():
            return SizeExpr.of(int(e.value))
        case Load():
            dim = dims.get(size_name(e.buffer) or "")
            return None if dim is None else SizeExpr((((DimUnits(dim),), 1),))
        case Binary():
            a, b = _size(e.a, dims), _size(e.b, dims)
            if a is None or b is None:
                return None
            match e.op:
                case BinaryOp.ADD:
                    return a + b
                case BinaryOp.SUB:
                    return a - b
                case BinaryOp.MUL:
                    return a * b
                case BinaryOp.FLOORDIV if b.constant is not None:
                    return a // b
                case _:
                    return None
        case _:
            return None
