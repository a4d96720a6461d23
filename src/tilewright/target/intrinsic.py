"""A tensor intrinsic as data: what an instruction (or a register tile of them) computes, and what it asks for.

The meaning is a Func with one nest of loops around one block that is one store; its params are the operands. Every
index is one of the loops, or 0. Loops in `free` stand for any extent (a register tile takes reductions of any length).

An intrinsic becomes code in one of two ways. Where plain loops in the right order, unrolled and vectorized, make LLVM
select the instructions, `body` lists those loops; it is the meaning by construction. Where they do not, `emitter`
writes the instructions; tests hold it to the meaning, to the bit.

`state` writes a meaning down:

    i, j, k = Var("i"), Var("j"), Var("k")
    state("tile", (c, a, b), {i: 6, j: 16}, {k: 4}, c[i, j], Fma(a[i, k], b[k, j], c[i, j]))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

from tilewright.ir.expr import Buffer, Expr, Load, Scope, Var, loads
from tilewright.ir.rewrite import substitute
from tilewright.tir.func import Func
from tilewright.tir.rewrite import bound_store
from tilewright.tir.stmt import Block, For, Iter, IterKind, LoopKind, Stmt, Store

MEMORY = frozenset({Scope.GLOBAL, Scope.LOCAL})
REGISTERS = frozenset({Scope.REGISTER})
ANYWHERE = MEMORY | REGISTERS


@dataclass(frozen=True, slots=True)
class Operand:
    """What is asked of one param of the meaning. Its last `contiguous` dimensions lie side by side in memory. Its
    values are known to lie `within` two numbers: with others the instruction is not what is meant.
    """

    name: str
    scopes: frozenset[Scope]
    contiguous: int = 0
    within: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class BodyLoop:
    """A loop of the body: a loop of the meaning, or one of the parts it is split into, from the outermost in.

    All parts but the first have an `extent`. SERIAL loops may also be unrolled: they ask for nothing.
    """

    loop: str
    kind: LoopKind = LoopKind.SERIAL
    extent: int | None = None


class EmitContext(Protocol):
    """What an emitter sees of the code generator. Values are names of LLVM values.

    Elements of an operand are numbered in the row-major order of the meaning's param, wherever they really are.
    """

    def op(self, text: str) -> str:
        """Append `%new = text`; returns %new."""
        ...

    def call(self, function: str, type: str, *args: tuple[str, str]) -> str:
        """Call an LLVM intrinsic that returns `type` on (type, value) pairs. It gets declared."""
        ...

    def run(self, function: str, *args: tuple[str, str]) -> None:
        """The same, of one that returns nothing."""
        ...

    def splat(self, type: str, value: str, lanes: int) -> str:
        """A vector with a scalar of LLVM type `type` in every lane."""
        ...

    def get(self, operand: int, start: int, lanes: int) -> str:
        """`lanes` elements of an operand, from its element number `start` on, as one vector (a scalar if 1)."""
        ...

    def put(self, operand: int, start: int, lanes: int, value: str) -> None:
        """Write what `get` reads."""
        ...

    def vector(self, operand: int, number: int) -> str:
        """One of the vectors that an operand in registers is (`Intrinsic.vectors`)."""
        ...

    def set_vector(self, operand: int, number: int, value: str) -> None:
        """Write what `vector` reads."""
        ...

    def pointer(self, operand: int) -> str:
        """The address of an operand's first element. It is not for operands in registers."""
        ...

    def stride(self, operand: int, dim: int) -> int:
        """How many elements apart neighbours along a dimension of an operand are; 0 if it has one element there."""
        ...


Emitter: TypeAlias = Callable[[EmitContext], None]
TileRegisters: TypeAlias = tuple[tuple[int, int, int], ...]  # number, rows, and bytes of a row


@dataclass(frozen=True, eq=False)
class Intrinsic:
    name: str  # family first: "x86.f32.tile_6x16"
    meaning: Func
    operands: tuple[Operand, ...]  # in the order of the meaning's params; the output is the first
    features: frozenset[str]  # of the target, in LLVM's spelling
    free: frozenset[str] = frozenset()  # loops of the meaning that stand for any extent
    body: tuple[BodyLoop, ...] | None = None
    emitter: Emitter | None = None
    steps: float = 1.0  # multiply-adds of a vector that take as long as one that an emitter writes
    # Registers for matrices that it uses: their shapes are set before. Operands in registers are in these alone, and
    # only intrinsics that use them touch such operands.
    tiles: TileRegisters = ()
    # How many vectors, of how many elements, an operand in registers is, where these hold its elements in an order of
    # their own: only intrinsics that know it touch such operands.
    vectors: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        assert (self.body is None) != (self.emitter is None), f"{self.name} has a body or an emitter"
        assert self.emitter is None or not self.free, f"{self.name}: an emitter knows its extents"
        assert [o.name for o in self.operands] == [p.name for p in self.meaning.params], self.name

    @cached_property
    def loops(self) -> tuple[For, ...]:
        """The loops of the meaning, outermost first."""
        out: list[For] = []
        s = self.meaning.body
        while isinstance(s, For):
            out.append(s)
            s = s.body
        return tuple(out)

    @cached_property
    def store(self) -> Store:
        """What one iteration of the meaning does, over its loop variables."""
        block = self.loops[-1].body
        assert isinstance(block, Block), self.name
        return bound_store(block)

    @cached_property
    def dims(self) -> tuple[tuple[Var | None, ...], ...]:
        """The loop of the meaning that each dimension of each operand is indexed by."""
        places: dict[Buffer, Load] = {self.store.buffer: Load(self.store.buffer, self.store.indices)}
        for access in loads(self.store.value):
            assert places.setdefault(access.buffer, access) is access, (
                f"{self.name}: {access.buffer} is used twice"
            )
        return tuple(
            tuple(i if isinstance(i, Var) else None for i in places[p].indices) for p in self.meaning.params
        )


def state(
    name: str,
    params: tuple[Buffer, ...],
    spatial: Mapping[Var, int],
    reduce: Mapping[Var, int],
    place: Load,
    value: Expr,
) -> Func:
    """The Func that stores `value` to `place` for all values of the variables: the loops have their names, the
    iterators of the one block a "v" in front.
    """
    iters = [Iter(Var(f"v{v.name}"), n) for v, n in spatial.items()]
    iters += [Iter(Var(f"v{v.name}"), n, IterKind.REDUCE) for v, n in reduce.items()]
    variables = (*spatial, *reduce)
    inside = {v: it.var for v, it in zip(variables, iters, strict=True)}
    indices = tuple(substitute(i, inside) for i in place.indices)
    store = Store(place.buffer, indices, substitute(value, inside))
    nest: Stmt = Block(name, tuple(iters), variables, store)
    for v, n in reversed([*spatial.items(), *reduce.items()]):
        nest = For(v, n, nest)
    return Func(name, params, (), nest, (place.buffer,))
