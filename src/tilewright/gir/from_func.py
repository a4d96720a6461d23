"""The graph of a Func whose blocks only move and combine elements.

Blocks have iterators of their own. Where one reads what another makes, element by element, the two go over the same
elements, and their iterators become one axis; so the store and the loads of a buffer between them cancel, wherever
it will be kept. A block that reads what another makes at a part of an axis (a group of channels, say) has that axis
split first, so that unequal tilings meet.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tilewright.gir.flow_graph import COMBINATIONS, FlowGraph, FlowNode
from tilewright.gir.from_scan import reads_own, scan_of
from tilewright.gir.plan import sweeping
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Fma,
    Indices,
    Load,
    Var,
    as_index,
    binary,
    free_vars,
    loads,
    select,
    walk,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.open_reductions import mask_of
from tilewright.tir.build import identity
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, IterKind, LoopKind, Seq, Stmt, Store


class OwnBlock(NamedTuple):
    """A block over its own iterators. `over`, `combine` and `where` are those of a `FlowNode`."""

    name: str
    out: Buffer
    indices: Indices
    extents: dict[Var, int]
    over: tuple[Var, ...]
    value: Expr
    combine: BinaryOp
    where: Expr = TRUE
    along: Var | None = None  # of a scan
    exclusive: bool = False
    reverse: bool = False


def flow_graph_of(func: Func) -> FlowGraph:
    """ScheduleError if it is no graph."""
    return graph_of_blocks(func, own_blocks(func))


def own_blocks(func: Func) -> list[OwnBlock]:
    """ScheduleError if some nest is not one block over all of its domain."""
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    found = [_own_block(nest) for nest in nests]
    made = [o.out for o in found]
    if len(set(made)) < len(made):
        raise ScheduleError(f"{func.name}: several blocks write one buffer")
    return found


def graph_of_blocks(func: Func, blocks: Sequence[OwnBlock]) -> FlowGraph:
    """Of blocks that do what `func` does."""
    graph, _ = joined_graph(func.name, func.params, blocks)
    check_rows(graph)
    if not graph.nodes:
        raise ScheduleError(f"nothing that {func.name} needs is in these blocks")
    return graph if any(n.is_fold or n.is_scan for n in graph.nodes) else sweeping(graph)


def joined_graph(
    name: str, params: tuple[Buffer, ...], blocks: Sequence[OwnBlock]
) -> tuple[FlowGraph, dict[Var, Var]]:
    """The graph of any blocks, contractions among them, and the axis that each iterator of theirs became; none, if it
    was split or has one value.
    """
    found = _refined(blocks)
    axes = _Axes(found)
    nodes = tuple(_node(o, axes) for o in found)
    extents = {axes.of(v): e for o in found for v, e in o.extents.items()}
    graph = _without_unit_axes(FlowGraph(name, params, extents, nodes))
    return graph, {v: axes.of(v) for o in found for v in o.extents if axes.of(v) in graph.extents}


def _own_block(nest: Stmt) -> OwnBlock:
    block, around = nest, dict[Expr, int]()
    while isinstance(block, For) and block.kind is LoopKind.SERIAL:
        around[block.var] = block.extent
        block = block.body
    if not isinstance(block, Block):
        raise ScheduleError("a nest is not one block under plain loops")
    domain = {b: it.extent for it, b in zip(block.iters, block.bindings, strict=True)}
    if domain != around or block.try_store is None or block.predicate is not TRUE:
        raise ScheduleError(f"{block.name} is not one store over all of its domain")
    return own_block(block)


def own_block(block: Block) -> OwnBlock:
    """The block over all of its domain, whatever its loops are."""
    store = block.try_store
    if store is None:
        raise ScheduleError(f"{block.name} is not one store")
    extents = {it.var: it.extent for it in block.iters}
    simplify = Simplifier({v: Interval(0, e - 1) for v, e in extents.items()})
    over = tuple(it.var for it in block.iters if it.kind is IterKind.REDUCE)
    if not over and reads_own(store):
        return _own_scan(block, extents)
    if not over:
        return OwnBlock(
            block.name, store.buffer, store.indices, extents, (), simplify(store.value), BinaryOp.ADD
        )
    combine, value = folded_value(block)
    for _, below in mask_of(block):
        value = select(below, value, identity(COMBINATIONS[combine], store.buffer.dtype))
    return OwnBlock(block.name, store.buffer, store.indices, extents, over, simplify(value), combine)


def _own_scan(block: Block, extents: dict[Var, int]) -> OwnBlock:
    s = scan_of(block)
    own = OwnBlock(block.name, block.store.buffer, s.indices, extents, (), s.value, BinaryOp.ADD)
    if s.combine is None:
        return own
    return own._replace(combine=s.combine, along=s.along, exclusive=s.exclusive, reverse=s.reverse)


def folded_value(block: Block) -> tuple[BinaryOp, Expr]:
    """How a reduction combines, and what."""
    store, init = block.store, block.init
    so_far = Load(store.buffer, store.indices)
    if not isinstance(init, Store) or init.indices != store.indices:
        raise ScheduleError(f"{block.name} goes on from what others have made")
    match store.value:
        case Fma(a=a, b=b, c=c) if c is so_far:
            op, value = BinaryOp.ADD, binary(BinaryOp.MUL, a, b)
        case Binary(op=op, a=a, b=b) if (a is so_far) != (b is so_far):
            value = b if a is so_far else a
        case _:
            raise ScheduleError(f"{block.name} does not combine values")
    if op not in COMBINATIONS or init.value is not identity(COMBINATIONS[op], store.buffer.dtype):
        raise ScheduleError(f"{block.name} is no sum, product, maximum or minimum from the start")
    if any(ld.buffer is store.buffer for ld in loads(value)):
        raise ScheduleError(f"{block.name} reads what it makes")
    return op, value


# ---------------------------------------------------------------------------------------------------------- refinement


def _refined(found: Sequence[OwnBlock]) -> list[OwnBlock]:
    """With iterators split where a block reads at quotients of them, and where what it reads at several of its own is
    one of the block that makes it: then both go over tiles of the same size.
    """
    out = list(found)
    while True:
        cut = next((c for n, o in enumerate(out) if (c := _cut(n, o, out)) is not None), None)
        if cut is None:
            return out
        n, var, factor = cut
        out[n] = _split(out[n], var, factor)


def _cut(n: int, o: OwnBlock, found: Sequence[OwnBlock]) -> tuple[int, Var, int] | None:
    """The number of a block, an iterator of it and a factor to split it by."""
    numbers = {other.out: k for k, other in enumerate(found)}
    simplify = Simplifier({v: Interval(0, e - 1) for v, e in o.extents.items()})
    for ld in loads(o.value):
        for dim, index in enumerate(ld.indices):
            for e in walk(index):
                match e:
                    case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD, a=Var() as v, b=Const(value=k)) if (
                        v in o.extents and 1 < k < o.extents[v] and o.extents[v] % k == 0
                    ):
                        return n, v, int(k)
                    case _:
                        pass
            if ld.buffer not in numbers:
                continue
            maker = found[numbers[ld.buffer]]
            at, steps = maker.indices[dim], sorted(k for _, k in simplify.linear(index).terms)
            # Of terms with rising steps the second is the size of what the first goes over.
            if isinstance(at, Var) and len(steps) > 1 and _divides(steps[:2], maker.extents[at]):
                return numbers[ld.buffer], at, steps[1]
            # Who reads at one iterator what is made at several, because others read it so, goes over these too.
            made = sorted(k for _, k in simplify.linear(at).terms)
            if isinstance(index, Var) and len(made) > 1 and _divides(made[:2], o.extents.get(index, 0)):
                return n, index, made[1]
    return None


def _divides(steps: Sequence[int], extent: int) -> bool:
    return 1 == steps[0] < steps[1] < extent and extent % steps[1] == 0


def _split(o: OwnBlock, var: Var, factor: int) -> OwnBlock:
    if var is o.along:
        raise ScheduleError(f"{o.name} is a scan along an axis that others read in parts")
    high, low = Var(f"{var.name}_q"), Var(f"{var.name}_r")
    extents = dict[Var, int]()
    for v, e in o.extents.items():
        extents |= {high: e // factor, low: factor} if v is var else {v: e}
    simplify = Simplifier({v: Interval(0, e - 1) for v, e in extents.items()})
    values: dict[Var, Expr] = {var: high * factor + low}
    return o._replace(
        extents=extents,
        indices=tuple(simplify(substitute(i, values)) for i in o.indices),
        over=tuple(v for u in o.over for v in ((high, low) if u is var else (u,))),
        value=simplify(substitute(o.value, values)),
        where=simplify(substitute(o.where, values)),
    )


# ---------------------------------------------------------------------------------------------------------------- axes


class _Axes:
    """Which iterators go over the same elements."""

    def __init__(self, found: Sequence[OwnBlock]) -> None:
        self._parent: dict[Var, Var] = {v: v for o in found for v in o.extents}
        self._extents = {v: e for o in found for v, e in o.extents.items()}
        self._simplify = Simplifier({v: Interval(0, e - 1) for v, e in self._extents.items()})
        made = {o.out: o for o in found}
        for o in found:
            for ld in loads(o.value):
                if ld.buffer in made:
                    self._meet(made[ld.buffer], ld, o)
        self._share_reads(found, set(made))

    def of(self, v: Var) -> Var:
        while self._parent[v] is not v:
            v = self._parent[v]
        return v

    def _share_reads(self, found: Sequence[OwnBlock], made: set[Buffer]) -> None:
        """Blocks that read one buffer in the same order go over the same elements, if nothing speaks against it."""
        first: dict[Buffer, Load] = {}
        for o in found:
            for ld in loads(o.value):
                if ld.buffer in made:
                    continue
                known = first.setdefault(ld.buffer, ld)
                for i, j in zip(known.indices, ld.indices, strict=True):
                    for a, b in self._corresponding(i, j):
                        self._try_join(found, self.of(a), self.of(b))

    def _corresponding(self, i: Expr, j: Expr) -> list[tuple[Var, Var]]:
        """The iterators that move two indices equally far."""
        p, q = ({k: v for v, k in self._simplify.linear(e).terms} for e in (i, j))
        both = [(p[k], q[k]) for k in p if k in q]
        return [(a, b) for a, b in both if isinstance(a, Var) and isinstance(b, Var)]

    def _try_join(self, found: Sequence[OwnBlock], a: Var, b: Var) -> None:
        if a is b or self._extents.get(a) != self._extents.get(b):
            return
        if not any({a, b} <= {self.of(v) for v in o.extents} for o in found):
            self._parent[a] = b

    def _meet(self, maker: OwnBlock, read: Load, reader: OwnBlock) -> None:
        for at, index in zip(maker.indices, read.indices, strict=True):
            p, q = self._simplify.linear(at), self._simplify.linear(index)
            mine = {k: v for v, k in p.terms if not isinstance(v, Var) or self._extents[v] > 1}
            theirs = {k: v for v, k in q.terms}
            if p.const != q.const or mine.keys() != theirs.keys() or len(theirs) < len(q.terms):
                raise ScheduleError(f"{reader.name} reads {read.buffer.name} at other elements than its own")
            for k, v in mine.items():
                self._join(v, theirs[k], reader, read)

    def _join(self, of_maker: Expr, of_reader: Expr, reader: OwnBlock, read: Load) -> None:
        if not isinstance(of_maker, Var) or not isinstance(of_reader, Var) or of_reader not in reader.extents:
            raise ScheduleError(f"{reader.name} reads {read.buffer.name} at other elements than its own")
        a, b = self.of(of_maker), self.of(of_reader)
        if self._extents[a] != self._extents[b]:
            raise ScheduleError(f"{reader.name} reads a part of {read.buffer.name}")
        self._parent[a] = b


def _node(o: OwnBlock, axes: _Axes) -> FlowNode:
    values: dict[Var, Expr] = {v: axes.of(v) for v in o.extents}
    own = [axes.of(v) for v in o.extents]
    if len(set(own)) < len(own):
        raise ScheduleError(f"{o.name} has one axis in two roles")
    over = tuple(axes.of(v) for v in o.over)
    indices = tuple(substitute(i, values) for i in o.indices)
    spatial = tuple(a for a in own if a not in over)
    value, where = substitute(o.value, values), substitute(o.where, values)
    along = None if o.along is None else axes.of(o.along)
    return FlowNode(
        o.name, o.out, indices, spatial, value, over, o.combine, where, along, o.exclusive, o.reverse
    )


def check_rows(graph: FlowGraph) -> None:
    """ScheduleError unless all folds go over the same axes, those that are not of rows."""
    inner = set(graph.inner)
    scans = [n for n in graph.nodes if n.is_scan]
    if any({n.along} != inner for n in scans) or len({n.reverse for n in scans}) > 1:
        raise ScheduleError(f"{graph.name} scans several axes, or one both ways")
    for n in graph.nodes:
        if n.is_fold and (set(n.over) != inner or set(n.axes) & inner):
            raise ScheduleError(f"{n.name} reduces other axes than the rest")
        stored = {a for i in n.indices for a in free_vars(i)} - graph.around.keys()
        if n.out not in graph.params and stored != set(n.axes):
            raise ScheduleError(f"{n.name} stores one element several times")
        if n.out in graph.params and not n.is_fold and not graph.is_scalar(n) and inner - set(n.axes):
            raise ScheduleError(f"{n.name} has some of the inner axes, not all")
    if prod(graph.extents.values()) == 0:
        raise ScheduleError(f"{graph.name} has no elements")


def _without_unit_axes(graph: FlowGraph) -> FlowGraph:
    """The graph with axes of one value gone."""
    zero: dict[Var, Expr] = {a: as_index(0) for a, e in graph.extents.items() if e == 1}

    def kept(axes: Sequence[Var]) -> tuple[Var, ...]:
        return tuple(a for a in axes if a not in zero)

    nodes = tuple(
        replace(
            n,
            indices=tuple(substitute(i, zero) for i in n.indices),
            axes=kept(n.axes),
            over=kept(n.over),
            # A fold of one value combines nothing.
            combine=n.combine if kept(n.over) or n.is_scan else BinaryOp.ADD,
            value=substitute(n.value, zero),
            where=substitute(n.where, zero),
        )
        for n in graph.nodes
    )
    return replace(graph, extents={a: e for a, e in graph.extents.items() if e > 1}, nodes=nodes)
