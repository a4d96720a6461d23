"""From Funcs to native kernels: scheduled, lowered and compiled, each distinct one once.

Two calls whose Funcs are equal up to renaming share their kernels; an object is looked up by the digest of
its LLVM IR before it is compiled. Kernels that read only constants run here, at compile time.
"""

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.codegen.driver import driver_ir
from tilewright.codegen.kernel import kernel_ir, parts
from tilewright.codegen.legalize import legalize
from tilewright.codegen.objects import LLVM_VERSION, compile_object
from tilewright.ir.expr import Buffer
from tilewright.runtime.cache import Cache
from tilewright.runtime.loader import Code
from tilewright.runtime.memory import empty_aligned
from tilewright.schedule.recipes.default import schedule_func
from tilewright.schedule.trace import Trace
from tilewright.target.target import Target
from tilewright.tir.digest import digest
from tilewright.tir.func import Func
from tilewright.tir.pipeline import lower

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A native function and what it was made from."""

    name: str
    func: Func  # lowered
    parts: int
    llvm: str
    object: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A Func as kernels to run in order, over its params and the buffers they share."""

    func: Func  # as given
    scheduled: Func
    trace: Trace
    kernels: tuple[Kernel, ...]
    shared: tuple[Buffer, ...]


class KernelCompiler:
    """Compiles Funcs for one target; remembers what it has compiled."""

    def __init__(self, target: Target, cache: Cache) -> None:
        self.target, self._cache = target, cache
        self._done: dict[str, Compiled] = {}
        self._kernels: dict[tuple[str, int], Kernel] = {}
        self._passes = legalize(target)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(self._kernels.values())

    def driver(self) -> bytes:
        """The object that runs the program's calls on a team of threads."""
        return self._object(driver_ir(self.target))

    def compile(self, func: Func, constants: frozenset[Buffer]) -> Compiled:
        key = digest(func, [f"constant {n}" for n, p in enumerate(func.params) if p in constants])
        done = self._done.get(key)
        if done is None:
            names = frozenset(b.name for b in constants)
            draft = schedule_func(func, self.target, names)
            phases, shared = lower(draft.func, self._passes)
            kernels = tuple(self._kernel(p.func) for p in phases)
            done = Compiled(func, draft.func, draft.trace, kernels, shared)
            self._done[key] = done
        return done

    def _kernel(self, func: Func) -> Kernel:
        """Named after its code, so that equal kernels of different Funcs are one."""
        text = kernel_ir(replace(func, name="kernel"))
        name = f"{func.name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        # How many parts there are is not in the code: the caller counts them.
        key = (text, parts(func))
        known = self._kernels.get(key)
        if known is None:
            ir = text.replace("@kernel(", f"@{name}(", 1)
            known = Kernel(name, func, parts(func), ir, self._object(ir))
            self._kernels[key] = known
        return replace(known, func=func)

    def _object(self, ir: str) -> bytes:
        features = ",".join(sorted(self.target.features))
        facts = "\n".join(("object", LLVM_VERSION, self.target.triple, self.target.cpu, features, ir))
        key = hashlib.sha256(facts.encode()).hexdigest()
        cached = self._cache.get(key)
        if cached is None:
            cached = compile_object(ir, self.target)
            self._cache.put(key, cached)
        return cached


def run_now(kernel: Kernel, arrays: Mapping[Buffer, Array]) -> None:
    """Run all parts of a kernel here, on these arrays."""
    code = Code((kernel.object,))
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address(kernel.name))
    args = (ctypes.c_void_p * len(kernel.func.params))(*(arrays[p].ctypes.data for p in kernel.func.params))
    for part in range(kernel.parts):
        call(ctypes.addressof(args), part)


def fold_kernels(
    compiled: Compiled, values: Mapping[Buffer, Array], run: Callable[[Kernel, Mapping[Buffer, Array]], None]
) -> tuple[tuple[Kernel, ...], dict[Buffer, Array]]:
    """Run the kernels whose inputs are all in `values`: (those left for run time, what the others have
    made).
    """
    early = _constant_kernels(compiled, values)
    known = dict(values)
    for k in early:
        for p in k.func.outputs:
            if p not in known:  # the parts of a partitioned loop fill one buffer in turn
                known[p] = empty_aligned(p.shape, p.dtype.numpy)
        run(k, known)
    left = tuple(k for k in compiled.kernels if k not in early)
    return left, {b: a for b, a in known.items() if b not in values}


def _constant_kernels(compiled: Compiled, values: Mapping[Buffer, Array]) -> list[Kernel]:
    """The kernels that need nothing but `values`. What one of them writes, none of the others does."""
    early = list(compiled.kernels)
    while True:
        late = {p for k in compiled.kernels if k not in early for p in k.func.outputs}
        made = {p for k in early for p in k.func.outputs}
        kept = [
            k
            for k in early
            if _is_constant(k, compiled.shared, values, made) and late.isdisjoint(k.func.outputs)
        ]
        if len(kept) == len(early):
            return kept
        early = kept


def _is_constant(
    kernel: Kernel, shared: tuple[Buffer, ...], values: Mapping[Buffer, Array], made: set[Buffer]
) -> bool:
    outputs = kernel.func.outputs
    reads = [p for p in kernel.func.params if p not in outputs]
    return bool(reads) and all(p in shared for p in outputs) and all(p in values or p in made for p in reads)
