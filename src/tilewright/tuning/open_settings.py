"""At which sizes candidates run, where a Func has open dimensions.

One schedule serves all sizes of a range, so a candidate is run at a few of them: the largest, the least, and their
geometric mean. Its time is the geometric mean of these: what is twice as quick for one row and twice as slow for many
is no better. All dimensions go along together.
"""

import math
from collections.abc import Mapping

from tilewright.ir.expr import Buffer, Const, DimSize, Expr, as_index, walk
from tilewright.ir.rewrite import transform_where
from tilewright.ir.traits import SIZES
from tilewright.support.sizes import Dim
from tilewright.tir.func import Func
from tilewright.tir.passes.place_sizes import size_name, sizes_in


def func_dims(func: Func) -> dict[str, Dim]:
    """The open dimensions of a Func, counted in their multiples."""
    found = {e.name: e for e in sizes_in(func.body)}
    for b in (*func.params, *func.locals):
        for size in b.sizes:
            if size is not None:
                found |= {e.name: e for e in walk(size) if isinstance(e, DimSize)}
    return {name: Dim(name, e.least, e.most) for name, e in sorted(found.items())}


def sizes_to_time(func: Func) -> tuple[dict[str, int], ...]:
    """The sizes of each run of a candidate; one, of nothing, if no dimension is open."""
    dims = func_dims(func).values()
    if not dims:
        return ({},)
    least = {d.name: max(1, d.least) for d in dims}
    ends = [{d.name: d.most for d in dims}, least]
    middle = {d.name: math.isqrt(least[d.name] * d.most) for d in dims}
    return tuple(at for n, at in enumerate((ends[0], middle, ends[1])) if n != 1 or at not in ends)


def sizes_read(func: Func, sizes: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """The params but for outputs that are sizes, by their numbers, with their values."""
    given = [p for p in func.params if p not in func.outputs]
    named = ((n, size_name(p)) for n, p in enumerate(given))
    return tuple((n, sizes[name]) for n, name in named if name is not None)


def shape_at(buffer: Buffer, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """What is in use of it."""
    found = buffer.sizes or (None,) * len(buffer.shape)
    return tuple(n if s is None else _value(s, sizes) for n, s in zip(buffer.shape, found, strict=True))


def _value(size: Expr, sizes: Mapping[str, int]) -> int:
    def known(e: Expr) -> Expr | None:
        return as_index(sizes[e.name]) if isinstance(e, DimSize) else None

    value = transform_where(size, SIZES, known, {})
    assert isinstance(value, Const), "sizes are sums of products"
    return max(0, int(value.value))
