"""Statements of a tensor program.

Meaning
- `For` runs its body for var = 0 … extent-1, or below its `limit` if that is less: a number that is known when the
  program runs, where a dimension is open. SERIAL runs in order. PARALLEL and VECTORIZED promise that iterations
  are independent, so any order gives the same result; UNROLLED means the same as SERIAL. The axes of a GPU's grid
  (BLOCK_X … VTHREAD) promise it too: `tir/thread_axes.py` has their limits.
- `Block` is a named unit of computation. Its iterators take the values of the bindings, and where the predicate holds
  the body runs; `init` runs before the body when every REDUCE iterator is 0. The body mentions only the block's
  own iterators, never loop variables, so a block can be moved, inlined and re-tiled without looking inside.
- `Repeat` runs its body as long as its condition holds, which it reads before each time; what ends it is written in the
  body. Its number of iterations depends on data, so it is inside of a block: steps schedule what is around it.
- `Emit` means its body. It names a tensor intrinsic whose instructions the code generator may write instead, and where
  the intrinsic's operands are; nothing else looks at those.
- `Alloc` gives a LOCAL or REGISTER buffer its extent; it appears only after `place_allocations`.
- Annotations of loops and blocks are remarks for steps, the search and tools. They mean nothing. Code generation sees
  four of them, on loops: `prefetch` = n asks for what vectors read n iterations later to be brought near, and
  `prefetch_row` = 1, on a loop inside of that one, for what its vectors read n iterations later of the outer one;
  `prefetch_panel` = n for the panel of n elements behind the one that its vectors read, a piece in each iteration;
  `stream` = 1 lets whole vectors that are stored go to memory past the caches, where nobody reads them soon.
- Statements are frozen and compared by value where a test needs it; they are not interned.

Names: loop variables and block iterators are unique within a Module, block names too. Steps refer to them by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, TypeAlias, assert_never

from tilewright.ir.expr import TRUE, Buffer, Expr, Indices, Load, Var
from tilewright.support.errors import InternalError


@unique
class LoopKind(Enum):
    SERIAL = "range"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    BLOCK_X = "block_x"
    BLOCK_Y = "block_y"
    BLOCK_Z = "block_z"
    THREAD_X = "thread_x"
    THREAD_Y = "thread_y"
    THREAD_Z = "thread_z"
    VTHREAD = "vthread"

    __hash__ = object.__hash__

    @property
    def is_thread_axis(self) -> bool:
        return self in _THREAD_AXES

    @property
    def is_at_once(self) -> bool:
        """Are the iterations promised to be independent?"""
        return self in _AT_ONCE


_THREAD_AXES = frozenset(
    {
        LoopKind.BLOCK_X,
        LoopKind.BLOCK_Y,
        LoopKind.BLOCK_Z,
        LoopKind.THREAD_X,
        LoopKind.THREAD_Y,
        LoopKind.THREAD_Z,
        LoopKind.VTHREAD,
    }
)
_AT_ONCE = _THREAD_AXES | {LoopKind.PARALLEL, LoopKind.VECTORIZED}


@unique
class IterKind(Enum):
    SPATIAL = "spatial"
    REDUCE = "reduce"

    __hash__ = object.__hash__


class Compound:
    """What holds statements remembers what these declare (`tir/declared.py`) and touch (`tir/touched.py`)."""

    __slots__ = ("known_below", "known_touched")
    known_below: Any
    known_touched: Any


AnnotationValue: TypeAlias = str | int | float | bool
Annotations: TypeAlias = tuple[tuple[str, AnnotationValue], ...]  # sorted by key, each key once
PREFETCH = "prefetch"
PREFETCH_ROW = "prefetch_row"
PREFETCH_ELEMENTS = "prefetch_elements"
PREFETCH_PANEL = "prefetch_panel"
STREAM = "stream"


@dataclass(frozen=True, slots=True)
class For(Compound):
    var: Var
    extent: int
    body: "Stmt"
    kind: LoopKind = LoopKind.SERIAL
    annotations: Annotations = ()
    limit: Expr | None = None


@dataclass(frozen=True, slots=True)
class Iter:
    """A block iterator with domain 0 … extent-1. A REDUCE iterator over an open dimension has a `size`: the block does
    nothing where it is not below. SPATIAL ones have one where the block stores elsewhere than at its iterators; others
    need none (see `Buffer.sizes`).
    """

    var: Var
    extent: int
    kind: IterKind = IterKind.SPATIAL
    size: Expr | None = None


@dataclass(frozen=True, slots=True)
class Block(Compound):
    name: str
    iters: tuple[Iter, ...]
    bindings: tuple[
        Expr, ...
    ]  # one per iterator, over loop variables (and the iterators of enclosing blocks)
    body: "Stmt"
    init: "Stmt | None" = None
    predicate: Expr = TRUE  # over loop variables, like the bindings
    annotations: Annotations = ()

    @property
    def is_reduction(self) -> bool:
        return any(it.kind is IterKind.REDUCE for it in self.iters)

    @property
    def try_store(self) -> "Store | None":
        """The block's body, if it is a single store (that of a sequential block, such as a sort, is not)."""
        return self.body if isinstance(self.body, Store) else None

    @property
    def store(self) -> "Store":
        """The block's body, which must be a single store: for callers that have matched or made the block."""
        if isinstance(self.body, Store):
            return self.body
        raise InternalError(f"the body of block {self.name} is not a single store")


@dataclass(frozen=True, slots=True)
class Seq(Compound):
    stmts: "tuple[Stmt, ...]"


@dataclass(frozen=True, slots=True)
class Store:
    buffer: Buffer
    indices: Indices
    value: Expr


@dataclass(frozen=True, slots=True)
class If(Compound):
    cond: Expr
    then: "Stmt"


@dataclass(frozen=True, slots=True)
class Repeat(Compound):
    cond: Expr
    body: "Stmt"


@dataclass(frozen=True, slots=True)
class Alloc(Compound):
    buffer: Buffer
    body: "Stmt"


@dataclass(frozen=True, slots=True)
class Emit(Compound):
    """`operands` has, for each operand of the intrinsic in the order of its params, the element where it starts, and
    that element's neighbour along each of the operand's dimensions: the differences are its strides.
    """

    intrinsic: str
    operands: tuple[tuple[Load, ...], ...]
    body: "Stmt"


Stmt: TypeAlias = For | Block | Seq | Store | If | Repeat | Alloc | Emit


def seq(*stmts: Stmt) -> Stmt:
    """One statement out of many; nested sequences are flattened."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Seq) else (s,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def children(s: Stmt) -> tuple[Stmt, ...]:
    match s:
        case For() | Alloc() | Emit() | Repeat():
            return (s.body,)
        case Block():
            return (s.body,) if s.init is None else (s.init, s.body)
        case Seq():
            return s.stmts
        case If():
            return (s.then,)
        case Store():
            return ()
        case _:
            assert_never(s)


def walk_stmts(s: Stmt) -> Iterator[Stmt]:
    """Every statement below and including `s`, in program order, parents first."""
    stack = [s]
    push = stack.append
    while stack:
        node = stack.pop()
        yield node
        # As `children`, without making tuples: every step walks the program many times.
        if isinstance(node, Store):
            continue
        if isinstance(node, Seq):
            stack.extend(reversed(node.stmts))
        elif isinstance(node, If):
            push(node.then)
        else:
            push(node.body)
            if isinstance(node, Block) and node.init is not None:
                push(node.init)


def stmt_exprs(s: Stmt) -> tuple[Expr, ...]:
    """The expressions directly in `s`, not those of its children."""
    match s:
        case Store():
            return (*s.indices, s.value)
        case If() | Repeat():
            return (s.cond,)
        case Block():
            sizes = [it.size for it in s.iters if it.size is not None]
            return (*s.bindings, s.predicate, *sizes) if sizes else (*s.bindings, s.predicate)
        case For():
            return () if s.limit is None else (s.limit,)
        case Seq() | Alloc() | Emit():
            return ()
        case _:
            assert_never(s)


def blocks(s: Stmt) -> Iterator[Block]:
    return (n for n in walk_stmts(s) if isinstance(n, Block))


def store_blocks(s: Stmt) -> Iterator[tuple[Block, Store]]:
    """The blocks that are a single store, with it. The others are skipped."""
    return ((b, b.body) for b in blocks(s) if isinstance(b.body, Store))


def loops(s: Stmt) -> Iterator[For]:
    return (n for n in walk_stmts(s) if isinstance(n, For))
