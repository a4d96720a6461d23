"""A tensor intrinsic as data: what an instruction (or a register tile of them) computes, and what it asks for.

The meaning is a Func with one nest of loops around one block: its params are the operands. Loops in `free` stand for
any extent (a register tile takes reductions of any length). Where plain loops in the right order, unrolled and
vectorized, make LLVM select the instruction, `body` is that program over the same params; where they do not, `emitter`
writes the instructions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tilewright.ir.expr import Scope
from tilewright.tir.func import Func


@dataclass(frozen=True, slots=True)
class Operand:
    """What is asked of one param of the meaning. Its last `contiguous` dimensions lie side by side in memory."""

    name: str
    scopes: frozenset[Scope]
    contiguous: int = 0


class EmitContext(Protocol):
    """What an emitter sees of the code generator. Values are names of LLVM values."""

    def op(self, text: str, type: str) -> str:
        """Append `%new = text`; `type` is the LLVM type of the result, which is returned."""
        ...

    def call(self, intrinsic: str, type: str, *args: tuple[str, str]) -> str:
        """Call an LLVM intrinsic on (type, value) pairs; it is declared at the end of the module."""
        ...

    def pointer(self, operand: int) -> str:
        """The address of an operand's first element. It is not for operands in registers."""
        ...

    def stride(self, operand: int, dim: int) -> int:
        """How many elements apart neighbours along a dimension of an operand are."""
        ...

    def get(self, operand: int, start: int, lanes: int) -> str:
        """`lanes` elements of an operand in registers, from its element number `start`, as one vector."""
        ...

    def put(self, operand: int, start: int, lanes: int, value: str) -> None: ...


Emitter: TypeAlias = Callable[[EmitContext], None]


@dataclass(frozen=True, slots=True, eq=False)
class Intrinsic:
    name: str  # family first: "x86.f32.tile_6x16"
    meaning: Func
    operands: tuple[Operand, ...]  # in the order of the meaning's params; the output is the first
    features: frozenset[str]  # of the target, in LLVM's spelling
    free: frozenset[str] = frozenset()  # loops of the meaning that stand for any extent
    body: Func | None = None
    emitter: Emitter | None = None
