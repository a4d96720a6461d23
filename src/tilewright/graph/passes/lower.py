"""Lower a graph to a tir.Module: one Func per group, over buffers that the groups share.

Names are unique in the Module and valid in Python. A Func is named after the value that its group makes, so that
another grouping elsewhere leaves it alone; its blocks, loops and buffers begin with `<func>__`. Inputs and constants
keep the model's names as far as these are identifiers. No name that comes from the model has two underscores in a row,
so none meets one of ours. Literals (constants of one element)
become part of the expressions that read them. Module inputs and outputs stand in the order of the graph's; an output
that is an input, a constant or another output is copied.
"""

import keyword
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from tilewright.graph.appends import find_appends
from tilewright.graph.external import ExternalRegion
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.passes.group import FusionGroup, Grouped, group
from tilewright.ir.expr import Buffer, Const, Expr, Load, Scope, const, loads, size_expr
from tilewright.ops.core.pieces import Concat
from tilewright.ops.opdef import Compute, OpAlternative
from tilewright.support.errors import UserError
from tilewright.support.sizes import SizeError, SymInt, size_of, strict
from tilewright.tir.build import FuncBuilder, at_capacity
from tilewright.tir.func import Alternative, Call, Constant, External, Func, Module
from tilewright.tir.names import short_name
from tilewright.tir.passes.place_sizes import size_name
from tilewright.tir.rewrite import map_loads
from tilewright.tir.stmt import IterKind, Seq, Stmt, Store, blocks, seq, stmt_exprs, walk_stmts

_PLAIN: Mapping[int, Compute] = MappingProxyType({})
_LOCAL_BYTES = 1 << 36


def lower_graph(graph: Graph, regions: Sequence[ExternalRegion] = ()) -> Module:
    """The Module that computes `graph`, grouped by rules. `regions` are left to external code."""
    return lower_groups(graph, group(graph, regions))[0]


def lower_groups(graph: Graph, groups: Grouped) -> tuple[Module, tuple[str, ...]]:
    """The Module that computes `graph`, and the Func of each group: "" for a region, or where nothing is computed."""
    appends = _appends_in_place(graph, groups)
    _check_empty(graph, appends)
    state = _Lowering(graph, appends)
    names: list[str] = []
    for part in groups:
        names.append("")
        if all(v.size == 0 for v in part.outputs):
            for v in part.outputs:  # nothing to compute, but somebody may want the empty array
                state.buffers[v] = state.new_buffer(v)
        elif isinstance(part, ExternalRegion):
            state.add_external(part)
        else:
            names[-1] = state.add_group(part)
    return state.finish(), tuple(names)


def lower_alone(graph: Graph, part: FusionGroup) -> Module:
    """The Module of one group, as if it were all of the graph: to see what becomes of it."""
    constants = {v: graph.constants[v] for v in part.inputs if v in graph.constants}
    inputs = tuple(v for v in part.inputs if v not in constants)
    return lower_groups(Graph(graph.name, inputs, part.outputs, part.nodes, constants), (part,))[0]


@dataclass(slots=True)
class _Lowering:
    graph: Graph
    appends: frozenset[Node]  # whose result is stored behind their first input, in its buffer
    buffers: dict[Value, Buffer] = field(default_factory=dict[Value, Buffer])
    literals: dict[Buffer, Const] = field(default_factory=dict[Buffer, Const])
    funcs: list[Func] = field(default_factory=list[Func])
    steps: list[Call | External] = field(default_factory=list[Call | External])
    names: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        made = {n.inputs[0] for n in self.appends}
        for v in (*self.graph.inputs, *self.graph.constants):
            if v not in made:
                self.buffers[v] = self.new_buffer(v)
        for v, array in self.graph.constants.items():
            if array.size == 1:
                self.literals[self.buffers[v]] = const(array.item(), v.type.dtype)

    def new_buffer(self, value: Value) -> Buffer:
        """A buffer of the Module, named after a value of the model."""
        return Buffer(self._unique(_identifier(value.name)), value.shape, value.type.dtype, Scope.GLOBAL)

    def _unique(self, name: str) -> str:
        unique, n = name, 1
        while unique in self.names:
            unique, n = f"{name}_{n}", n + 1
        self.names.add(unique)
        return unique

    def builder(self, name: str) -> FuncBuilder:
        """For a Func of this name, or of one like it."""
        name = self._unique(name)
        return FuncBuilder(name, f"{name}__")

    def add_group(self, part: FusionGroup) -> str:
        """The name of its Func."""
        titles = [type(n.op).__name__.lower() for n in part.nodes]
        b = self.builder(func_name(part.value))
        func, made = self._compute(part, b, titles)
        self.buffers.update(made)
        func = _finished(func, self.literals)
        self.add_func(replace(func, alternatives=tuple(self._alternatives(part, func, titles))))
        return func.name

    def _compute(
        self, part: FusionGroup, b: FuncBuilder, titles: Sequence[str], chosen: Mapping[int, Compute] = _PLAIN
    ) -> tuple[Func, dict[Value, Buffer]]:
        """The Func of a group, and the buffers of its outputs. `chosen` has other algorithms for some of its nodes."""
        known = [v for v in part.inputs if v in self.buffers]  # but for what is appended to
        local: dict[Value, Buffer] = {v: b.use(self.buffers[v]) for v in known}
        for i, (n, title) in enumerate(zip(part.nodes, titles, strict=True)):
            # A block's name has no underscore, so `name_<what>` of one op never meets the name of another.
            with strict():
                if n in self.appends:
                    pieces = [local[v] for v in n.inputs[1:]]
                    local[n.outputs[0]] = _append(b, n, pieces, f"{title}{i}")
                    continue
                made = chosen.get(i, n.op.compute)(b, [local[v] for v in n.inputs], f"{title}{i}")
            local.update(zip(n.outputs, made, strict=True))
        given = {self.buffers[v] for v in known}
        outputs: dict[Value, Buffer] = {}
        results: list[Buffer] = []
        for v in part.outputs:
            out = local[v]
            if v.size == 0:  # the others are computed; nothing stores to this one
                outputs[v] = self.new_buffer(v)
                continue
            if out in given or out in results:  # an op that does nothing hands its input on
                out = _copy(b, out, f"copy{len(part.nodes) + len(results)}")
            results.append(out)
            outputs[v] = out
        return b.finish(*results), outputs

    def _alternatives(self, part: FusionGroup, func: Func, titles: Sequence[str]) -> Iterator[Alternative]:
        """The Func by other algorithms, if one node of the group has some."""
        able = {i: n.op.alternatives([v.type for v in n.inputs]) for i, n in enumerate(part.nodes)}
        able = {i: found for i, found in able.items() if found}
        if len(able) != 1 or any(v.size == 0 for v in part.outputs):
            return
        ((i, algorithms),) = able.items()
        known = [self.graph.constants.get(v) for v in part.nodes[i].inputs]

        def make(a: OpAlternative) -> Func:
            made, _ = self._compute(part, FuncBuilder(func.name, f"{func.name}__"), titles, {i: a.compute})
            made = _finished(made, self.literals)
            _check_locals(made)
            assert set(made.params) == set(func.params), "algorithms read the same inputs"
            return replace(made, params=func.params, algorithm=a.name)

        for a in algorithms:
            yield Alternative(a.name, partial(make, a), partial(a.error, known))

    def add_external(self, region: ExternalRegion) -> None:
        for v in region.outputs:
            self.buffers[v] = self.new_buffer(v)
        inputs, outputs = (
            tuple(at_capacity(self.buffers[v]) for v in vs) for vs in (region.inputs, region.outputs)
        )
        self.steps.append(External(region.key, inputs, outputs))

    def add_func(self, func: Func) -> None:
        _check_reductions(func)
        _check_locals(func)
        self.funcs.append(func)
        self.steps.append(Call(func.name, func.params))

    def finish(self) -> Module:
        for n in self.appends:
            self.buffers[n.inputs[0]] = self.buffers[n.outputs[0]]
        in_place = {n.outputs[0] for n in self.appends}
        taken = {self.buffers[v] for v in (*self.graph.inputs, *self.graph.constants)}
        outputs: list[Buffer] = []
        for v in self.graph.outputs:
            out = self.buffers[v]
            if out in taken and v not in in_place:
                b = self.builder(f"{func_name(v)}_copy")
                out = _copy(b, b.use(out), "copy")
                if out.size:
                    self.add_func(_finished(b.finish(out), self.literals))
            taken.add(out)
            outputs.append(at_capacity(out))
        inputs = tuple(at_capacity(self.buffers[v]) for v in self.graph.inputs)
        used = dict.fromkeys(b for s in self.steps for b in _touched(s))
        inputs += tuple(sorted((b for b in used if size_name(b) is not None), key=lambda b: b.name))
        constants = tuple(
            Constant(self.buffers[v], array)
            for v, array in self.graph.constants.items()
            if self.buffers[v] in used
        )
        placed = {*inputs, *outputs, *(c.buffer for c in constants)}
        temps = tuple(b for b in used if b not in placed)
        return Module(tuple(self.funcs), tuple(self.steps), inputs, tuple(outputs), constants, temps)


def _appends_in_place(graph: Graph, groups: Grouped) -> frozenset[Node]:
    """What is appended to inputs by one of the groups, in which nobody reads it: such a reader could be moved to where
    not all of it is there.
    """
    parts = [g for g in groups if isinstance(g, FusionGroup)]
    held = Counter(n for g in parts for n in g.nodes)
    read_inside = {v for g in parts for v in _read_inside(g)}
    return frozenset(n for n in find_appends(graph) if held[n] == 1 and n.outputs[0] not in read_inside)


def _check_empty(graph: Graph, appends: Collection[Node]) -> None:
    """SizeError if a kernel meets a dimension that may be 0: loops run at least once. What is appended to may be empty,
    as nobody reads it.
    """
    unread = {n.inputs[0] for n in appends}
    for v in (*graph.inputs, *(v for n in graph.nodes for v in n.outputs)):
        for n in v.shape if v not in unread else ():
            if isinstance(n, SymInt) and n.size.bounds[0] < 1 and any(d.least == 0 for d in n.size.dims):
                raise SizeError(f"{v.name} is {n} long, and that may be 0")


def _read_inside(part: FusionGroup) -> set[Value]:
    made = {v for n in part.nodes for v in n.outputs}
    return {v for n in part.nodes for v in n.inputs if v in made}


def _append(b: FuncBuilder, node: Node, pieces: Sequence[Buffer], name: str) -> Buffer:
    """A buffer of the node's result, in which what the first input has is there already: the others are stored behind
    it.
    """
    assert isinstance(node.op, Concat)
    axis, result = node.op.axis, node.outputs[0]
    out = b.ahead(name, result.shape, result.type.dtype)
    start = node.inputs[0].shape[axis]
    for k, x in enumerate(pieces):
        first = size_expr(size_of(start))

        def stored(*i: Expr, x: Buffer = x, first: Expr = first) -> Store:
            return Store(out, (*i[:axis], i[axis] + first, *i[axis + 1 :]), x[i])

        b.update(f"{name}_{k}", x.shape, (), stored, axes=[f"i{d}" for d in range(len(x.shape))])
        start = start + x.shape[axis]
    return out


def func_name(value: Value) -> str:
    """What the Func that makes this value is called, as far as no other name is the same."""
    return short_name(
        _identifier(re.sub(r"_output_0$", "", value.name))
    )  # an exporter's word for the only result


def _identifier(name: str) -> str:
    """Letters, digits and single underscores."""
    plain = re.sub(r"(\W|_)+", "_", name, flags=re.ASCII).strip("_") or "v"
    return f"v_{plain}" if plain[0].isdigit() or keyword.iskeyword(plain) else plain


def _finished(func: Func, literals: Mapping[Buffer, Const]) -> Func:
    return _reductions_last(_drop_dead(_with_literals(func, literals)))


def _touched(step: Call | External) -> tuple[Buffer, ...]:
    return step.args if isinstance(step, Call) else (*step.inputs, *step.outputs)


def _copy(b: FuncBuilder, source: Buffer, name: str) -> Buffer:
    return b.compute(
        name, source.shape, lambda *i: source[i], axes=[f"i{d}" for d in range(len(source.shape))]
    )


def _with_literals(func: Func, literals: Mapping[Buffer, Const]) -> Func:
    """Replace reads of one-element constants by their values; they are no parameters any more."""
    present = {p: literals[p] for p in func.params if p in literals}
    if not present:
        return func
    body = map_loads(func.body, present, lambda n: present[n.buffer])
    return replace(func, body=body, params=tuple(p for p in func.params if p not in present))


def _drop_dead(func: Func) -> Func:
    """Remove nests whose results nobody reads, such as the unused outputs of a repeated split."""
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    needed: set[Buffer] = set(func.outputs)
    kept: list[Stmt] = []
    for nest in reversed(nests):
        stores = {s.buffer for s in walk_stmts(nest) if isinstance(s, Store)}
        if stores & needed:
            # What it stores besides has to be somewhere, even if nobody reads it: the places of a sort.
            needed |= stores | {e.buffer for e in _loads(nest)}
            kept.append(nest)
    if len(kept) == len(nests):
        return func
    params = tuple(p for p in func.params if p in needed or size_name(p) is not None)
    return replace(
        func, params=params, locals=tuple(b for b in func.locals if b in needed), body=seq(*reversed(kept))
    )


def _reductions_last(func: Func) -> Func:
    """Nests that need no reduction first: then what a reduction is followed by can run where it does."""
    if not isinstance(func.body, Seq):
        return func
    late: set[Buffer] = set()
    first: list[Stmt] = []
    rest: list[Stmt] = []
    for nest in func.body.stmts:
        if any(b.is_reduction for b in blocks(nest)) or any(e.buffer in late for e in _loads(nest)):
            late |= {s.buffer for s in walk_stmts(nest) if isinstance(s, Store)}
            rest.append(nest)
        else:
            first.append(nest)
    return func.with_body(seq(*first, *rest))


def _loads(stmt: Stmt) -> Iterable[Load]:
    return (e for s in walk_stmts(stmt) for root in stmt_exprs(s) for e in loads(root))


def _check_reductions(func: Func) -> None:
    """A reduction over nothing would never run its init."""
    for block in blocks(func.body):
        extents = [it.extent for it in block.iters]
        spatial = [e for it, e in zip(block.iters, extents, strict=True) if it.kind is IterKind.SPATIAL]
        if 0 in extents and 0 not in spatial:
            raise UserError(f"{block.name} reduces an axis without elements, which is not supported")


def _check_locals(func: Func) -> None:
    """Padding may ask for far more memory than the values around it."""
    for b in func.locals:
        if b.bytes > _LOCAL_BYTES:
            raise UserError(f"{func.name} needs {b.bytes} bytes for {b}: the limit is {_LOCAL_BYTES}")
