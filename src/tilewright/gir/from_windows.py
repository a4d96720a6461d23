"""The graph of a Func that moves windows over an image, with or without a padding around it.

    pad[c, p, q] = select(1 <= p and …, x[c, p - 1, q - 1], -inf)
    y[c, h, w] = max over k, l of pad[c, h + k, w + l]
                    ──>    y[c, h, w] = max[k, l](x[c, h + k - 1, w + l - 1], where=1 <= h + k and …)

What only moves elements to where a window finds them is read through. Where a fold would take up its neutral element it
takes up nothing: that is its predicate.
"""

from collections.abc import Sequence

from tilewright.gir.flow_graph import COMBINATIONS, FlowGraph
from tilewright.gir.from_func import OwnBlock, graph_of_blocks, own_blocks
from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Select,
    Unary,
    Var,
    cast,
    const,
    loads,
    walk,
)
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import identity
from tilewright.tir.func import Func


def window_graph_of(func: Func) -> FlowGraph:
    """ScheduleError if it is no graph."""
    own = own_blocks(func)
    if any(o.along is not None for o in own):
        raise ScheduleError(f"{func.name} has a scan, which is no stage")
    found = [_predicated(o) for o in _read_through(own, func.params)]
    graph = graph_of_blocks(func, found)
    if not graph.outputs:
        raise ScheduleError(f"nobody reads what {func.name} makes")
    folds = [n for n in graph.nodes if n.is_fold]
    if len(folds) != 1 or not folds[0].axes:
        raise ScheduleError(f"{func.name} has not one fold with several results")
    return graph


def _read_through(blocks: Sequence[OwnBlock], params: Sequence[Buffer]) -> list[OwnBlock]:
    """Without blocks that only move elements: who reads them reads what these do."""
    moved = {o.out: o for o in blocks if o.out not in params and _only_moves(o)}

    def source(ld: Load) -> Expr | None:
        maker = moved.get(ld.buffer)
        if maker is None:
            return None
        values = {v: i for v, i in zip(maker.indices, ld.indices, strict=True) if isinstance(v, Var)}
        return replace_loads(substitute(maker.value, values), source, {})

    found: list[OwnBlock] = []
    for o in blocks:
        if o.out not in moved:
            simplify = Simplifier({v: Interval(0, e - 1) for v, e in o.extents.items()})
            found.append(o._replace(value=simplify(replace_loads(o.value, source, {}))))
    return found


def _only_moves(o: OwnBlock) -> bool:
    """Is each element one that is read, or a constant?"""
    at = [i for i in o.indices if not isinstance(i, Const)]
    computes = any(
        isinstance(e, Unary | Fma) or (isinstance(e, Binary) and e.dtype.is_float) for e in walk(o.value)
    )
    return not o.over and not computes and all(isinstance(i, Var) for i in at) and len(set(at)) == len(at)


def _predicated(o: OwnBlock) -> OwnBlock:
    """With a predicate for what is the neutral element otherwise."""
    if not o.over or not loads(o.value):
        return o
    neutral = identity(COMBINATIONS[o.combine], o.out.dtype)
    value = o.value
    match value:
        case Cast(a=Select(cond=cond, a=a, b=Const(value=b))):
            value = Select(cond, cast(o.out.dtype, a), const(b, o.out.dtype))
        case _:
            pass
    match value:
        case Select(cond=cond, a=a, b=b) if b is neutral:
            return o._replace(value=a, where=logical_and(o.where, cond))
        case _:
            return o
