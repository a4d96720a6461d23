"""A compiled program with its *sites*: the calls of Funcs in it, at which other kernels can be put.

A site knows which kernel calls of the program are its own, and where the Func's params are in memory. So a candidate
for the Func runs there in place of them: on the tensors of the program, with weights and caches as the kernels before
it leave them. Constants that the Func reads are kept as the model has them: candidates lay them out for themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler import Compilation, CompiledModel
from tilewright.driver.kernels import Item
from tilewright.driver.passes import task_key
from tilewright.driver.trace import ProgramTrace
from tilewright.ir.expr import Buffer
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import Artifact, Place, Slot
from tilewright.support.program import leaves
from tilewright.tir.func import Call, Func


@dataclass(frozen=True, slots=True)
class ProgramSite:
    """A call of `func`, which is the Func of the key `task`. Its kernel calls are `count` of the program's, from
    `first` on. `args` are its params.
    """

    func: str
    task: str
    first: int
    count: int
    args: tuple[Slot, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SitedProgram:
    """`artifact` runs as it is, and has besides the constants that candidates need. `funcs` has one Func for each task,
    with the names of those of its params that are constants.
    """

    artifact: Artifact
    sites: tuple[ProgramSite, ...]
    funcs: Mapping[str, tuple[Func, frozenset[str]]]
    trace: ProgramTrace

    def calls_of(self, task: str) -> list[int]:
        """The sites of a task, by number."""
        return [n for n, s in enumerate(self.sites) if s.task == task]


def sited(compilation: Compilation, made: CompiledModel) -> SitedProgram:
    """The sites of what was compiled: static, and native code alone, in which no calls stand beside each other."""
    state = compilation.state
    assert state is not None
    module, slots = state.current, dict(compilation.slots)
    raw = {c.buffer: c.value for c in module.constants}
    arrays: list[OpaqueArray] = list(made.artifact.constants)

    def slot(b: Buffer) -> Slot:
        if b not in slots:
            slots[b] = Slot(Place.CONSTANT, len(arrays))
            arrays.append(np.asarray(raw[b], order="C"))
        return slots[b]

    constants = frozenset(raw)
    funcs: dict[str, tuple[Func, frozenset[str]]] = {}
    sites: list[ProgramSite] = []
    items = [n.func for n in leaves(compilation.nodes) if isinstance(n, Item)]
    first = 0
    for call in leaves(module.program):
        assert isinstance(call, Call)
        count = 0
        while first + count < len(items) and items[first + count] == call.func:
            count += 1
        func = module.func(call.func)
        key = task_key(func, constants)
        funcs.setdefault(key, (func, frozenset(p.name for p in func.params if p in constants)))
        if count:
            sites.append(ProgramSite(call.func, key, first, count, tuple(map(slot, call.args))))
        first += count
    assert first == len(items), "kernel calls that no call of a Func has made"
    assert len({s.func for s in sites}) == len(sites), "a Func is called twice"
    artifact = replace(made.artifact, constants=tuple(arrays), digests=())
    return SitedProgram(artifact, tuple(sites), funcs, made.trace)
