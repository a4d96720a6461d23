"""The program of a Module: a small tree that says in which order kernels run.

Native segments are made of its maximal runs of Calls.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tilewright.ir.expr import Buffer


@dataclass(frozen=True, slots=True)
class Call:
    """Run the Func of this name on `args`, in the order of its params."""

    func: str
    args: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class External:
    """Run code that is not ours. `key` names it in the table that the runtime is handed; it ends a native segment."""

    key: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    steps: "tuple[Program, ...]"


@dataclass(frozen=True, slots=True)
class Branch:
    """Runs `then` if the one-element bool buffer holds true, else `otherwise`."""

    cond: Buffer
    then: "Program"
    otherwise: "Program"


@dataclass(frozen=True, slots=True)
class While:
    """Runs `body` as long as the one-element bool buffer holds true; the body writes it."""

    cond: Buffer
    body: "Program"


Program: TypeAlias = Call | External | Sequence | Branch | While
