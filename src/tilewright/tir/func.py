"""Kernels, and the program that calls them.

A `Func` computes over buffers: its parameters (shared with the rest of the Module) and its locals. A `Module` owns
the shared buffers, so a layout is decided once for all kernels that touch a buffer. `Module.program` says in which
order kernels run; native segments are made of its maximal runs of Calls.

While scheduling, a Func names Module buffers directly and is called once, so a step may change a buffer together
with all its readers and writers. `outline_kernels` later makes Funcs that are equal up to renaming one kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.expr import Buffer
from tilewright.support.program import conditions, leaves
from tilewright.tir.declared import Declared, declared
from tilewright.tir.printer import print_func, print_module
from tilewright.tir.program import Call, External, Program
from tilewright.tir.stmt import Block, For, Stmt

__all__ = [
    "Alternative",
    "Call",
    "Constant",
    "External",
    "Func",
    "Module",
    "Program",
    "outside_kernels",
    "single",
]


@dataclass(frozen=True, slots=True, eq=False)
class Func:
    """`params` are read or written in place; `locals` exist only during a call. Names of all are unique in the
    Module. `alternatives` are there until one is chosen, and `algorithm` says which then.
    """

    name: str
    params: tuple[Buffer, ...]
    locals: tuple[Buffer, ...]
    body: Stmt
    outputs: tuple[Buffer, ...] = ()  # the params that the body writes
    alternatives: tuple["Alternative", ...] = ()
    algorithm: str = ""
    known_names: "Declared | None" = field(default=None, init=False, repr=False)

    @property
    def names(self) -> Declared:
        """The loops and blocks by name. A Func remembers them: every step asks for some."""
        found = self.known_names
        if found is None:
            found = declared(self.body)
            object.__setattr__(self, "known_names", found)
        return found

    def loop(self, name: str) -> For | None:
        """The loop of this name."""
        return self.names.loops.get(name)

    def block(self, name: str) -> Block | None:
        """The block of this name."""
        return self.names.blocks.get(name)

    def with_body(self, body: Stmt) -> "Func":
        return self if body is self.body else replace(self, body=body)

    def __str__(self) -> str:
        return print_func(self)


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """Another algorithm for a Func: the same over the same params, up to rounding. Made when it is asked for."""

    name: str
    make: Callable[[], Func]
    error: Callable[[], float]  # the largest, relative to the largest magnitude of the result, as measured


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A weight: a buffer and its value. A layout change of the buffer is applied to the value at compile time."""

    buffer: Buffer
    value: NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """`temps` are the buffers that live between kernels; the memory plan places them in the arena."""

    funcs: tuple[Func, ...]
    program: Program
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    constants: tuple[Constant, ...] = ()
    temps: tuple[Buffer, ...] = ()

    def func(self, name: str) -> Func:
        for f in self.funcs:
            if f.name == name:
                return f
        raise KeyError(name)

    def with_func(self, new: Func) -> "Module":
        """Replace the Func of the same name; the others keep their identity."""
        return replace(self, funcs=tuple(new if f.name == new.name else f for f in self.funcs))

    def __str__(self) -> str:
        return print_module(self)

    def func_of_block(self, block: str) -> Func | None:
        return next((f for f in self.funcs if f.block(block) is not None), None)

    def func_of_loop(self, loop: str) -> Func | None:
        return next((f for f in self.funcs if f.loop(loop) is not None), None)


def outside_kernels(program: Program) -> set[Buffer]:
    """The buffers that conditions and external code use."""
    calls = [c for c in leaves(program) if isinstance(c, External)]
    return {*conditions(program), *(b for c in calls for b in (*c.inputs, *c.outputs))}


def single(func: Func, constants: tuple[Constant, ...] = ()) -> Module:
    """A Module that calls one Func: what a researcher schedules, and what tests use."""
    known = {c.buffer for c in constants}
    outputs = func.outputs
    inputs = tuple(b for b in func.params if b not in outputs and b not in known)
    return Module((func,), (Call(func.name, func.params),), inputs, outputs, constants)
