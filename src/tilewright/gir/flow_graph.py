"""Flow graphs: what memory-bound blocks compute, as one dataflow graph over common axes.

    r, j = axes(1024, 1024)
    m[r]: f32[1024] = max[j](x[r, j])
    e[r, j]: f32[1024, 1024] = exp(x[r, j] - m[r])
    s[r]: f32[1024] = sum[j](e[r, j])
    y[r, j] = e[r, j] / s[r]

A `FlowNode` makes one element for each point of its axes: a map of what it reads, a fold (a reduction) of it over
further axes, or a scan of it, which has all prefixes of a fold along one of its axes: `c[r, j] = cumsum[j](x[r, j])`.
What it reads of other nodes it reads at its own axes, so nothing says where values are kept or in which order elements
are computed: that is a `Plan` (`gir/plan.py`). What it reads of memory it may read anywhere, at indices over axes:
reshapes, transposes and slices of memory are such indices, and cost nothing.

    t[r, q]: f32[16, 20] = max[k](x[r + k - 2, q - 2], where=2 <= r + k and r + k < 18 and 2 <= q and q < 18)
    y[r, j] = max[l](t[r, j + l])

A fold may move a *window* over what it reads, memory or another node: it reads at `j * stride + l * dilation`, of a
position and an axis that it folds. `where` is a predicate: what it takes up, and a fold of nothing is the neutral
element; so what lies outside of an image is never read. Graphs with either are lowered in stages (`gir/stages.py`).

Nodes stand in an order in which each is made before it is read. Axes have one value of a name each: two nodes that
go over the same elements share an axis. A graph of what happens inside of loops has the values that they have `around`
it: it is computed once for each of them. The text is that of `gir/printer.py`, and is read back (`gir/parser.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from tilewright.gir.printer import print_flow_graph, print_flow_node
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Buffer,
    Expr,
    Fma,
    Indices,
    Load,
    Var,
    binary,
    loads,
    select,
)
from tilewright.tir.build import identity

COMBINATIONS = {BinaryOp.ADD: "sum", BinaryOp.MAX: "max", BinaryOp.MIN: "min", BinaryOp.MUL: "prod"}


@dataclass(frozen=True, slots=True, eq=False)
class FlowNode:
    """`out[indices] = value`, for all points of its axes; a fold combines the values over the axes `over`. A scan
    combines at each element those up to it in the order of the axis `along`, or from it on if `reverse`; its own
    value is not among them if `exclusive`.
    """

    name: str
    out: Buffer
    indices: Indices  # over `axes`: distinct ones, and literals
    axes: tuple[Var, ...]
    value: Expr  # over `axes` and `over`
    over: tuple[Var, ...] = ()
    combine: BinaryOp = BinaryOp.ADD  # what a fold or a scan does
    where: Expr = TRUE  # over `axes` and `over`: what a fold takes up
    along: Var | None = None  # one of `axes`, if it is a scan
    exclusive: bool = False
    reverse: bool = False

    @property
    def is_fold(self) -> bool:
        return bool(self.over)

    @property
    def is_scan(self) -> bool:
        return self.along is not None

    @property
    def start(self) -> Expr:
        """What a fold of nothing is, and a scan before its first element."""
        return identity(COMBINATIONS[self.combine], self.out.dtype)

    @property
    def combination(self) -> str:
        """The word for what a fold or a scan does."""
        return f"{'cum' if self.is_scan else ''}{COMBINATIONS[self.combine]}"

    def __str__(self) -> str:
        return print_flow_node(self)

    def combined(self, so_far: Expr, value: Expr) -> Expr:
        """A fold, or a scan so far, that takes up one value more, whatever `where` says. A product is added with one
        rounding, as contractions do.
        """
        if self.combine is BinaryOp.ADD and value.dtype.is_float:
            match value:
                case Binary(op=BinaryOp.MUL):
                    return Fma(value.a, value.b, so_far)
                case _:
                    pass
        return binary(self.combine, so_far, value)

    def taken_up(self, so_far: Expr) -> Expr:
        """A fold that takes up its value, where it does."""
        taken = self.combined(so_far, self.value)
        return taken if self.where is TRUE else select(self.where, taken, so_far)


@dataclass(frozen=True, eq=False)
class FlowGraph:
    name: str
    params: tuple[Buffer, ...]  # memory: what is read and written
    extents: Mapping[Var, int]  # of the axes
    nodes: tuple[FlowNode, ...]
    swept: tuple[Var, ...] = ()  # axes that are inner ones though no fold has them, where there is none
    around: Mapping[Var, int] = field(
        default_factory=dict[Var, int]
    )  # values of loops around it, and their extents

    @cached_property
    def makers(self) -> dict[Buffer, FlowNode]:
        return {n.out: n for n in self.nodes}

    @cached_property
    def outputs(self) -> tuple[FlowNode, ...]:
        """The nodes whose values go to memory."""
        return tuple(n for n in self.nodes if n.out in self.params)

    def reads(self, node: FlowNode) -> tuple[Load, ...]:
        """What a node reads of memory."""
        return tuple(ld for ld in loads(node.value) if ld.buffer not in self.makers)

    def inner_reads(self, node: FlowNode) -> tuple[FlowNode, ...]:
        """The nodes that a node reads."""
        found = dict.fromkeys(ld.buffer for ld in loads(node.value) if ld.buffer in self.makers)
        return tuple(self.makers[b] for b in found)

    def size(self, axes: Iterable[Var]) -> int:
        return prod(self.extents[a] for a in axes)

    @cached_property
    def rows(self) -> tuple[Var, ...]:
        """The axes along which all nodes have a value each: what happens at one point of them is independent of the
        others. In the order of the last node's memory.
        """
        every = [set(n.axes) - {n.along} for n in self.nodes]
        return tuple(
            a for a in self.nodes[-1].axes if a not in self.swept and all(a in axes for axes in every)
        )

    @cached_property
    def inner(self) -> tuple[Var, ...]:
        """The other axes, in the order in which nodes have them."""
        found = dict.fromkeys(a for n in self.nodes for a in (*n.axes, *n.over))
        return tuple(a for a in found if a not in self.rows)

    @cached_property
    def sweeps(self) -> dict[FlowNode, int]:
        """The number of the sweep over a row that computes a node. What has one value for each row is there before
        that sweep.
        """
        found: dict[FlowNode, int] = {}
        for n in self.nodes:
            found[n] = max((found[r] + r.is_fold for r in self.inner_reads(n)), default=0)
        return found

    @cached_property
    def read_later(self) -> tuple[FlowNode, ...]:
        """The maps and scans that a later sweep than their own evaluates, unless they are kept."""
        last: dict[FlowNode, int] = {}  # maps are evaluated by those that read them
        for n in reversed(self.nodes):
            if n.is_fold or n in self.outputs:
                last[n] = self.sweeps[n]
            for r in self.inner_reads(n):
                last[r] = max(last.get(r, 0), last.get(n, 0))
        maps = [n for n in self.nodes if not n.is_fold and not self.is_scalar(n) and n not in self.outputs]
        return tuple(n for n in maps if last.get(n, 0) > self.sweeps[n])

    def is_scalar(self, node: FlowNode) -> bool:
        """Has it one value for each row?"""
        return not node.is_fold and not set(node.axes) & set(self.inner)

    def __str__(self) -> str:
        return print_flow_graph(self)
