"""Kernels, and the program that calls them.

A `Func` computes over buffers: its parameters (shared with the rest of the Module) and its locals. A `Module` owns
the shared buffers, so a layout is decided once for all kernels that touch a buffer. `Module.program` says in which
order kernels run; native segments are made of its maximal runs of Calls.

While scheduling, a Func names Module buffers directly and is called once, so a step may change a buffer together
with all its readers and writers. Funcs that are equal up to renaming later become one kernel (`driver/kernels.py`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.expr import Buffer
from tilewright.support.layered_dict import LayeredDict
from tilewright.support.program import conditions, is_sequence, leaves, map_program
from tilewright.tir.declared import Declared, declared
from tilewright.tir.printer import print_func, print_module
from tilewright.tir.program import Call, External, Program, ProgramPart
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

T = TypeVar("T")


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

    funcs: LayeredDict[str, Func]
    calls: LayeredDict[str, Call]  # of a Func
    blocks: LayeredDict[str, str]  # the Func of a block
    buffers: LayeredDict[str, Buffer]
    users: LayeredDict[Buffer, tuple[str, ...]]  # the Funcs that have it among their params or locals
    # No step changes these:
    outside: frozenset[Buffer]  # what conditions and external code use
    is_sequence: bool

    @classmethod
    def of(cls, module: "Module") -> "_Index":
        calls = [c for c in leaves(module.program) if isinstance(c, Call)]
        users: dict[Buffer, tuple[str, ...]] = {}
        for f in module.funcs:
            for b in _buffers(f):
                users[b] = (*users.get(b, ()), f.name)
        return cls(
            LayeredDict({f.name: f for f in module.funcs}),
            LayeredDict({c.func: c for c in calls}),
            LayeredDict({block: f.name for f in module.funcs for block in f.names.blocks}),
            LayeredDict({b.name: b for b in users}),
            LayeredDict(users),
            outside_kernels(module.program),
            is_sequence(module.program),
        )

    def changed(self, gone: Collection[Func], new: Collection[Func], calls: Collection[Call]) -> "_Index":
        """Without some Funcs, and with others, which these calls call."""
        users: dict[Buffer, tuple[str, ...]] = {}
        for f in gone:
            for b in _buffers(f):
                users[b] = tuple([name for name in users.get(b, self.users[b]) if name != f.name])
        for f in new:
            for b in _buffers(f):
                users[b] = (*(users[b] if b in users else self.users.get(b) or ()), f.name)
        used = {b: names for b, names in users.items() if names}
        unused = [b for b in users if b not in used]
        names = [f.name for f in gone]
        return _Index(
            self.funcs.changed(names, {f.name: f for f in new}),
            self.calls.changed(names, {c.func: c for c in calls}),
            self.blocks.changed(
                [block for f in gone for block in f.names.blocks],
                {block: f.name for f in new for block in f.names.blocks},
            ),
            self.buffers.changed([b.name for b in unused], {b.name: b for b in used}),
            self.users.changed(unused, used),
            self.outside,
            self.is_sequence,
        )


def _buffers(f: Func) -> Iterable[Buffer]:
    return dict.fromkeys((*f.params, *f.locals))


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
        constants: tuple[Constant, ...] | None = None,
        temps: "Mapping[Buffer, Buffer | None] | None" = None,
    ) -> "Module":
        """Replace the Funcs of these names, and leave those of the names `without` out; and their calls likewise.
        `temps`: the buffers between kernels that are others now, or none.
        """
        single = len(self.funcs) == len(new) == 1
        old = {f.name: f for f in self.funcs} if single else self._index.funcs
        changed = {old[name]: f for name, f in new.items()}
        gone = [old[name] for name in without]
        calls = {f.name: Call(g.name, g.params) for f, g in changed.items() if _is_called_otherwise(f, g)}
        made = Module(
            _replaced(self.funcs, {**changed, **dict.fromkeys(gone)}),
            self._calling(calls, without),
            self.inputs,
            self.outputs,
            self.constants if constants is None else constants,
            _replaced(self.temps, temps or {}),
        )
        if not single:
            known = [self._index.calls.get(f.name) for f in changed if f.name not in calls]
            kept = [c for c in known if c is not None]
            index = self._index.changed((*changed, *gone), new.values(), (*kept, *calls.values()))
            object.__setattr__(made, "known_index", index)
        return made

    def _calling(self, new: Mapping[str, Call], without: Collection[str]) -> Program:
        """The program with other calls of some Funcs, and none of some."""
        if not new and not without:
            return self.program
        if self._index.is_sequence:
            known = self._index.calls
            changed: dict[ProgramPart, ProgramPart | None]
            changed = {known[name]: new.get(name) for name in (*new, *without)}
            return _replaced(self.program, changed)

        def updated(run: list[Call | External]) -> list[Call | External]:
            kept = [c for c in run if isinstance(c, External) or c.func not in without]
            return [new.get(c.func, c) if isinstance(c, Call) else c for c in kept]

        return map_program(self.program, updated, lambda cond: cond)

    def __str__(self) -> str:
        return print_module(self)

    def users(self, buffer: Buffer) -> tuple[Func, ...]:
        """The Funcs that have the buffer among their params or locals."""
        names = self._index.users.get(buffer) or ()
        return tuple([self._index.funcs[name] for name in names])

    @property
    def is_sequence(self) -> bool:
        """Has the program neither branches nor loops?"""
        return self._index.is_sequence

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


def _is_called_otherwise(old: Func, new: Func) -> bool:
    return new.name != old.name or new.params != old.params


def _replaced(items: tuple[T, ...], changed: Mapping[T, T | None]) -> tuple[T, ...]:
    """The items with some of them others, or gone."""
    if 8 * len(changed) > len(items):
        return tuple([new for i in items if (new := changed.get(i, i)) is not None])
    left = list(items)  # a step changes few of many: only these are looked at
    for old, new in changed.items():
        if old in left:
            at = left.index(old)
            left[at : at + 1] = [] if new is None else [new]
    return tuple(left)


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
