"""The program of a Module: in which order kernels run. Native segments are made of its maximal runs of Calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.ir.expr import Buffer
from tilewright.support import program


@dataclass(frozen=True, slots=True, eq=False)
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


ProgramPart: TypeAlias = program.ProgramStep[
    Call | External, Buffer
]  # conditions are one-element bool buffers
Program: TypeAlias = tuple[ProgramPart, ...]


def rename_calls(tree: Program, names: Mapping[str, str]) -> Program:
    """The program that calls the Func `names[f]` where this one calls f."""

    def call(leaf: Call | External) -> Call | External:
        return Call(names[leaf.func], leaf.args) if isinstance(leaf, Call) else leaf

    return program.map_program(tree, lambda run: map(call, run), lambda cond: cond)
