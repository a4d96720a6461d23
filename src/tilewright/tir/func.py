"""Kernels, and the program that calls them.

A `Func` computes over buffers: its parameters (shared with the rest of the Module) and its locals. A `Module` owns
the shared buffers, so a layout is decided once for all kernels that touch a buffer. `Module.program` says in which
order kernels run; native segments are made of its maximal runs of Calls.

While scheduling, a Func names Module buffers directly and is called once, so a step may change a buffer together
with all its readers and writers. Funcs that are equal up to renaming later become one kernel (`driver/kernels.py`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
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
class _Index:
    """The Funcs of a Module by what they have. A step changes few of them, so the next Module's is made of this one."""

    funcs: dict[str, Func]
    blocks: dict[str, str]  # the Func of a block
    buffers: dict[str, Buffer]
    users: dict[Buffer, tuple[str, ...]]  # the Funcs that have it among their params or locals
    outside: frozenset[Buffer]  # what conditions and external code use: no step changes that

    @classmethod
    def of(cls, module: "Module") -> "_Index":
        return cls({}, {}, {}, {}, outside_kernels(module.program)).changed((), module.funcs)

    def changed(self, gone: Iterable[Func], new: Iterable[Func]) -> "_Index":
        copies = self.funcs.copy(), self.blocks.copy(), self.buffers.copy(), self.users.copy()
        made = _Index(*copies, self.outside)
        for f in gone:
            made._remove(f)
        for f in new:
            made._add(f)
        return made

    def _remove(self, f: Func) -> None:
        del self.funcs[f.name]
        for block in f.names.blocks:
            self.blocks.pop(block, None)
        for b in dict.fromkeys((*f.params, *f.locals)):
            left = tuple([name for name in self.users[b] if name != f.name])
            if left:
                self.users[b] = left
            else:
                del self.users[b], self.buffers[b.name]

    def _add(self, f: Func) -> None:
        self.funcs[f.name] = f
        self.blocks.update(dict.fromkeys(f.names.blocks, f.name))
        for b in dict.fromkeys((*f.params, *f.locals)):
            self.users[b] = (*self.users.get(b, ()), f.name)
            self.buffers[b.name] = b


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """`temps` are the buffers that live between kernels; the memory plan places them in the arena."""

    funcs: tuple[Func, ...]
    program: Program
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    constants: tuple[Constant, ...] = ()
    temps: tuple[Buffer, ...] = ()
    known_index: _Index | None = field(default=None, init=False, repr=False)

    @property
    def _index(self) -> _Index:
        found = self.known_index
        if found is None:
            found = _Index.of(self)
            object.__setattr__(self, "known_index", found)
        return found

    def func(self, name: str) -> Func:
        return self._index.funcs[name]

    def with_func(self, new: Func) -> "Module":
        """Replace the Func of the same name; the others keep their identity."""
        return self.with_funcs({new.name: new})

    def with_funcs(
        self,
        new: Mapping[str, Func],
        *,
        without: Collection[str] = (),
        program: Program | None = None,
        constants: tuple[Constant, ...] | None = None,
        temps: tuple[Buffer, ...] | None = None,
    ) -> "Module":
        """Replace the Funcs of these names, and leave those of the names `without` out."""
        single = len(self.funcs) == len(new) == 1
        names = {f.name: f for f in self.funcs} if single else self._index.funcs
        changed = {names[name]: f for name, f in new.items()}
        gone = [names[name] for name in without]
        made = Module(
            self._replaced(changed, gone),
            self.program if program is None else program,
            self.inputs,
            self.outputs,
            self.constants if constants is None else constants,
            self.temps if temps is None else temps,
        )
        if not single:
            object.__setattr__(made, "known_index", self._index.changed((*changed, *gone), new.values()))
        return made

    def _replaced(self, changed: Mapping[Func, Func], gone: Collection[Func]) -> tuple[Func, ...]:
        """A step changes few of many: only these are looked at."""
        funcs = list(self.funcs)
        for old, new in changed.items():
            funcs[funcs.index(old)] = new
        for old in gone:
            funcs.remove(old)
        return tuple(funcs)

    def __str__(self) -> str:
        return print_module(self)

    def users(self, buffer: Buffer) -> tuple[Func, ...]:
        """The Funcs that have the buffer among their params or locals."""
        names = self._index.users.get(buffer, ())
        return tuple([self._index.funcs[name] for name in names])

    @property
    def outside(self) -> frozenset[Buffer]:
        """The buffers that conditions and external code use."""
        return self._index.outside

    def buffer(self, name: str) -> Buffer | None:
        """The buffer of this name that some Func uses."""
        return self._index.buffers.get(name)

    def func_of_block(self, block: str) -> Func | None:
        if len(self.funcs) == 1:
            return self.funcs[0] if self.funcs[0].block(block) is not None else None
        name = self._index.blocks.get(block)
        return None if name is None else self._index.funcs[name]

    def func_of_loop(self, loop: str) -> Func | None:
        return next((f for f in self.funcs if f.loop(loop) is not None), None)


def outside_kernels(program: Program) -> frozenset[Buffer]:
    """The buffers that conditions and external code use."""
    calls = [c for c in leaves(program) if isinstance(c, External)]
    return frozenset((*conditions(program), *(b for c in calls for b in (*c.inputs, *c.outputs))))


def single(func: Func, constants: tuple[Constant, ...] = ()) -> Module:
    """A Module that calls one Func: what a researcher schedules, and what tests use."""
    known = {c.buffer for c in constants}
    outputs = func.outputs
    inputs = tuple(b for b in func.params if b not in outputs and b not in known)
    return Module((func,), (Call(func.name, func.params),), inputs, outputs, constants)
