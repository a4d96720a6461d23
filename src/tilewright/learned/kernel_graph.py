"""A kernel as a graph: what a network of graphs sees of it.

Nodes are the buffers of a Func and the operations of its blocks; edges go from what is read to who reads it, and from a
block to what it stores. A node of an operation has the extents of its block, one of a buffer its shape; loads say
whether they move by an element along the innermost iterator, and how often an element is read.
"""

import math
from collections.abc import Sequence

import numpy as np

from tilewright.ir.expr import Binary, BinaryOp, Buffer, Expr, Fma, Load, Select, Unary, UnaryOp, walk
from tilewright.learned.candidates import KernelGraph
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, IterKind, Store, blocks, walk_stmts

_DIMS = 4  # extents that a node has, the innermost first; bound
OPCODES: tuple[str, ...] = (
    *("param", "constant", "output", "local", "block", "reduction", "load", "fma", "select", "other"),
    *(f"unary_{op.name.lower()}" for op in UnaryOp),
    *(f"binary_{op.name.lower()}" for op in BinaryOp),
)
_CODES = {name: n for n, name in enumerate(OPCODES)}
NODE_FEATURES: tuple[str, ...] = (
    *("element_bytes", "elements", "dimensions"),
    *(f"extent_{n}" for n in range(_DIMS)),
    *("extents_sum", "extents_product"),
    *(f"reduce_{n}" for n in range(_DIMS)),
    *("reduce_sum", "reduce_product"),
    *("is_unit_stride", "is_repeated", "reuse"),
)


class _Nodes:
    """Nodes and edges as they are found."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.rows: list[list[float]] = []
        self.edges: list[tuple[int, int]] = []

    def add(
        self,
        name: str,
        element_bytes: float = 0.0,
        extents: Sequence[int] = (),
        reduced: Sequence[int] = (),
        stride: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> int:
        self.codes.append(_CODES.get(name, _CODES["other"]))
        elements = math.prod(extents)
        self.rows.append(
            [
                element_bytes,
                math.log2(max(elements, 1)),
                float(len(extents)),
                *_listed(extents),
                *_listed(reduced),
                *stride,
            ]
        )
        return len(self.codes) - 1


def _listed(extents: Sequence[int]) -> list[float]:
    """A list of fixed length, with its sum and product, as logarithms."""
    last = [math.log2(max(e, 1)) for e in reversed(extents[-_DIMS:])]
    total, product = (math.log2(max(v, 1)) for v in (sum(extents), math.prod(extents)))
    return [*last, *[0.0] * (_DIMS - len(last)), total, product]


def kernel_graph(func: Func, constants: frozenset[str]) -> KernelGraph:
    """The graph of a Func before it is scheduled; `constants` names the params whose values are known."""
    nodes = _Nodes()
    buffers = {b: nodes.add(_role(b, func, constants), b.dtype.bytes, b.shape) for b in _buffers(func)}
    for block in blocks(func.body):
        space = [i.extent for i in block.iters if i.kind is IterKind.SPATIAL]
        reduced = [i.extent for i in block.iters if i.kind is IterKind.REDUCE]
        at = nodes.add("reduction" if block.is_reduction else "block", 0.0, space, reduced)
        for store in (s for s in walk_stmts(block.body) if isinstance(s, Store)):
            _add_value(nodes, store.value, at, block, buffers)
            if store.buffer in buffers:
                nodes.edges.append((at, buffers[store.buffer]))
    edges = np.array(sorted(set(nodes.edges)), np.int64).reshape(-1, 2)
    return KernelGraph(np.array(nodes.codes, np.int64), np.array(nodes.rows, np.float64), edges)


def _buffers(func: Func) -> list[Buffer]:
    return list(dict.fromkeys((*func.params, *func.locals)))


def _role(b: Buffer, func: Func, constants: frozenset[str]) -> str:
    if b in func.outputs:
        return "output"
    if b not in func.params:
        return "local"
    return "constant" if b.name in constants else "param"


def _add_value(nodes: _Nodes, value: Expr, block_node: int, block: Block, buffers: dict[Buffer, int]) -> None:
    """The operations of a value, each once, and what they load."""
    elements = [i.extent for i in block.iters]
    for e in walk(value):
        if isinstance(e, Load):
            if e.buffer in buffers:
                at = nodes.add("load", e.buffer.dtype.bytes, elements, (), _strides(e, block))
                nodes.edges += [(buffers[e.buffer], at), (at, block_node)]
            continue
        name = _operation(e)
        if name:
            nodes.edges.append((nodes.add(name, e.dtype.bytes, elements), block_node))


def _operation(e: Expr) -> str:
    match e:
        case Unary(op=op):
            return f"unary_{op.name.lower()}"
        case Binary(op=op):
            return f"binary_{op.name.lower()}" if e.dtype.is_float else ""
        case Fma():
            return "fma"
        case Select():
            return "select"
        case _:
            return ""


def _strides(load: Load, block: Block) -> tuple[float, float, float]:
    """Does it move by an element along the innermost iterator that moves it; along how many iterators does it stand
    still; and how often is an element read?
    """
    iters = [i for i in block.iters if i.extent > 1]
    moving = [i for i in iters if any(i.var is v for index in load.indices for v in walk(index))]
    still = len(iters) - len(moving)
    last = load.indices[-1] if load.indices else None
    is_unit = bool(moving) and last is not None and any(moving[-1].var is v for v in walk(last))
    times = math.prod(i.extent for i in iters) / max(load.buffer.size, 1)
    return float(is_unit), float(still), math.log2(max(times, 1.0))
