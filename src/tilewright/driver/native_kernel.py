"""Native kernels, and a Func that was compiled to some: no more than that, so that a process that builds candidates has
little to import before its first.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tilewright.codegen.kernel import steps
from tilewright.driver.parts_in_use import sizes_in_use
from tilewright.ir.expr import Buffer
from tilewright.schedule.trace import Trace
from tilewright.support.artifact import KernelCall, Slot
from tilewright.support.sizes import Dim
from tilewright.tir.func import Func


@dataclass(frozen=True, slots=True, eq=False)
class NativeKernel:
    """A native function and what it was made from."""

    name: str
    func: Func  # lowered
    parts: int
    llvm: str
    object: bytes

    def call(self, args: tuple[Slot, ...], dims: Mapping[str, Dim] = MappingProxyType({})) -> KernelCall:
        in_use = sizes_in_use(self.func, dims) if dims else ()
        return KernelCall(self.name, self.parts, args, steps=steps(self.func), in_use=in_use)


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A Func as kernels to run in order, over its params and the buffers they share."""

    func: Func  # as given
    scheduled: Func
    trace: Trace
    kernels: tuple[NativeKernel, ...]
    shared: tuple[Buffer, ...]


def constant_kernels(compiled: Compiled, known: Container[Buffer]) -> list[NativeKernel]:
    """The kernels that need nothing but `known`. What one of them writes, none of the others does."""
    early = list(compiled.kernels)
    while True:
        late = {p for k in compiled.kernels if k not in early for p in k.func.outputs}
        made = {p for k in early for p in k.func.outputs}
        kept = [
            k
            for k in early
            if _is_constant(k, compiled.shared, known, made) and late.isdisjoint(k.func.outputs)
        ]
        if len(kept) == len(early):
            return kept
        early = kept


def _is_constant(
    kernel: NativeKernel, shared: tuple[Buffer, ...], known: Container[Buffer], made: set[Buffer]
) -> bool:
    outputs = kernel.func.outputs
    reads = [p for p in kernel.func.params if p not in outputs]
    return bool(reads) and all(p in shared for p in outputs) and all(p in known or p in made for p in reads)
