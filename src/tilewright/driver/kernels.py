"""From Funcs to native kernels: scheduled, lowered and compiled, each distinct one once.

Two calls whose Funcs are equal up to renaming share their kernels; an object is looked up by the digest of
its LLVM IR before it is compiled, by worker processes. Kernels that read only constants run here, at compile time.
"""

import ctypes
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from tilewright.codegen.driver import driver_ir
from tilewright.codegen.kernel import kernel_ir, parts
from tilewright.codegen.legalize import legalize
from tilewright.codegen.objects import LLVM_VERSION
from tilewright.driver.keys import source_digest
from tilewright.driver.native_kernel import Compiled, NativeKernel, constant_kernels
from tilewright.driver.passes import Scheduled
from tilewright.driver.workers import CodegenJob, Workers
from tilewright.ir.expr import Buffer
from tilewright.runtime.cache import Cache
from tilewright.runtime.loader import Code
from tilewright.runtime.memory import Shelf
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import Trace
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import KernelCall, Place, SizeBox, Slot
from tilewright.support.errors import InternalError
from tilewright.support.sizes import Dim
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.pipeline import lower_func

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Code:
    """The LLVM IR of a kernel, while its object is made."""

    name: str
    parts: int
    llvm: str
    job: CodegenJob


@dataclass(frozen=True, slots=True, eq=False)
class _Started:
    """A Func whose kernels are being compiled: of each the lowered Func and its code."""

    func: Func
    scheduled: Func
    trace: Trace
    kernels: tuple[tuple[Func, _Code], ...]
    shared: tuple[Buffer, ...]


class KernelCompiler:
    """Compiles Funcs for one target; remembers what it has compiled.

    `start` makes LLVM IR of a Func and hands it to the workers, `finish` waits for its objects: start all Funcs before
    the first is finished. `seconds` has the time that each stage took here.
    """

    def __init__(self, target: Target, cache: Cache, workers: Workers) -> None:
        self.target, self.cache, self._workers = target, cache, workers
        self.seconds = {"lower": 0.0, "emit": 0.0, "llvm": 0.0}
        self._started: dict[str, _Started] = {}
        self._done: dict[str, Compiled] = {}
        self._codes: dict[tuple[str, int], _Code] = {}
        self._kernels: dict[_Code, NativeKernel] = {}
        self._passes = legalize(target)
        self._object_facts = (
            "object",
            LLVM_VERSION,
            source_digest("codegen/objects.py"),  # which passes of LLVM run
            target.triple,
            target.cpu,
            ",".join(sorted(target.features)),
        )
        self._driver = self._request(driver_ir(target))

    @property
    def kernels(self) -> tuple[NativeKernel, ...]:
        """All that are finished."""
        return tuple(self._kernels.values())

    @property
    def compiled(self) -> tuple[Compiled, ...]:
        """The Funcs that are finished, each distinct one once."""
        return tuple(self._done.values())

    def driver(self) -> bytes:
        """The object that runs the program's calls on a team of threads."""
        return self._object(self._driver)

    def start(self, scheduled: Scheduled) -> None:
        """Its key is to `finish` with."""
        func = scheduled.func
        try:
            started = self._emit(func, scheduled.schedule)
        except InternalError as e:  # a defect of ours: a slow program is better than none
            _log.warning(
                "%s runs without a schedule: the one it was given cannot be compiled. Please report this: %s",
                func.name,
                e,
            )
            started = self._emit(func, Schedule(single(func)))
        self._started[scheduled.key] = started

    def _emit(self, func: Func, schedule: Schedule) -> _Started:
        begin = time.perf_counter()
        result = schedule.module.funcs[0]
        phases, shared = lower_func(result, self._passes)
        lowered = time.perf_counter()
        kernels = tuple((p.func, self._code(p.func)) for p in phases)
        self.seconds["lower"] += lowered - begin
        self.seconds["emit"] += time.perf_counter() - lowered
        return _Started(func, result, schedule.trace, kernels, shared)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The keys of all that were started."""
        return tuple(self._started)

    def finish(self, key: str) -> Compiled:
        """Wait for the kernels of a Func that was started."""
        done = self._done.get(key)
        if done is None:
            s = self._started[key]
            kernels = tuple(self._kernel(func, code) for func, code in s.kernels)
            done = self._done[key] = Compiled(s.func, s.scheduled, s.trace, kernels, s.shared)
        return done

    def _code(self, func: Func) -> _Code:
        """Named after its text, so that equal kernels of different Funcs are one."""
        text = kernel_ir(replace(func, name="kernel"))
        # How many parts there are is not in the text: the caller counts them.
        key = (text, parts(func))
        known = self._codes.get(key)
        if known is None:
            name = f"{func.name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
            ir = text.replace("@kernel(", f"@{name}(", 1)
            known = self._codes[key] = _Code(name, parts(func), ir, self._request(ir))
        return known

    def _kernel(self, func: Func, code: _Code) -> NativeKernel:
        known = self._kernels.get(code)
        if known is None:
            known = NativeKernel(code.name, func, code.parts, code.llvm, self._object(code.job))
            self._kernels[code] = known
        return replace(known, func=func)

    # ------------------------------------------------------------------------------------------------- objects

    def _request(self, ir: str) -> CodegenJob:
        cached = self.cache.get(self._object_key(ir))
        return self._workers.submit(ir) if cached is None else CodegenJob(ir, cached, is_new=False)

    def _object(self, job: CodegenJob) -> bytes:
        begin = time.perf_counter()
        found = self._workers.result(job)
        self.seconds["llvm"] += time.perf_counter() - begin
        if job.is_new:
            job.is_new = False
            self.cache.put(self._object_key(job.ir), found, sync=False)
        return found

    def _object_key(self, ir: str) -> str:
        return hashlib.sha256("\n".join((*self._object_facts, ir)).encode()).hexdigest()


# -------------------------------------------------------------------------------------------------------------- calls

_Span: TypeAlias = tuple[Place, int, int]  # where memory is: from, to


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A kernel call before its buffers have places; of those that a call of `func` makes. `beside`: a team may share it
    and the one before, as parts of one call. It is made `only` where sizes are within a box, if there is one, and not
    where they are within others.
    """

    kernel: NativeKernel
    buffers: tuple[Buffer, ...]
    func: str = ""
    beside: bool = False
    only: SizeBox = ()
    unless: tuple[SizeBox, ...] = ()


def bundled(items: Iterable[Item]) -> list[list[Item]]:
    """The items in order, those beside each other together."""
    out: list[list[Item]] = []
    for item in items:
        if item.beside and out:
            out[-1].append(item)
        else:
            out.append([item])
    return out


def calls_of(
    items: Iterable[Item], slots: Mapping[Buffer, Slot], dims: Mapping[str, Dim] = MappingProxyType({})
) -> tuple[KernelCall, ...]:
    """Calls of kernels, in order. Workers meet where a call touches what one since the last meeting writes, or writes
    what one touches.
    """
    calls: list[KernelCall] = []
    touched, written = list[_Span](), list[_Span]()
    for together in bundled(items):
        here, stores = list[_Span](), list[_Span]()
        for item in together:
            spans = [_span(b, slots[b]) for b in item.buffers]
            func = item.kernel.func
            own = [s for s, p in zip(spans, func.params, strict=True) if p in func.outputs]
            if _overlap(spans, stores) or _overlap(own, here):
                raise InternalError(f"{item.kernel.name} depends on what runs beside it")
            here += spans
            stores += own
        if _overlap(here, written) or _overlap(stores, touched):
            calls[-1] = replace(calls[-1], barrier=True)
            touched, written = [], []
        touched += here
        written += stores
        for n, item in enumerate(together):
            call = item.kernel.call(tuple(slots[b] for b in item.buffers), dims)
            calls.append(replace(call, barrier=False, beside=n > 0, only=item.only, unless=item.unless))
    return tuple(calls)


def _span(b: Buffer, slot: Slot) -> _Span:
    match slot.place:
        case Place.ARENA:
            return slot.place, slot.at, slot.at + b.bytes
        case (
            Place.INPUT | Place.OUTPUT | Place.CONSTANT
        ):  # arrays of their own: `runtime/feeds.py` sees to it
            return slot.place, slot.at, slot.at + 1


def _overlap(some: Sequence[_Span], others: Sequence[_Span]) -> bool:
    return any(a[0] is b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


class ConstantFolder:
    """Runs kernels over constants, here and now. What was made by the same kernels of the same arrays is not made
    again: schedules for several ranges of sizes share it.
    """

    def __init__(self) -> None:
        self._shelf = Shelf()
        # With the arrays that they were made of, so that these are the only ones with their identity.
        self._made: dict[tuple[tuple[str | int, ...], ...], tuple[list[OpaqueArray], list[OpaqueArray]]] = {}
        self._loaded: dict[str, tuple[Code, Callable[[int, int], None]]] = {}

    def fold(
        self, compiled: Compiled, values: Mapping[Buffer, OpaqueArray]
    ) -> tuple[tuple[NativeKernel, ...], dict[Buffer, OpaqueArray]]:
        """Run the kernels whose inputs are all in `values`: (those left for run time, what the others have
        made).
        """
        early = constant_kernels(compiled, values)
        left = tuple(k for k in compiled.kernels if k not in early)
        outputs = list(dict.fromkeys(p for k in early for p in k.func.outputs))
        used = [values[p] for k in early for p in k.func.params if p in values]
        number = {p: n for n, p in enumerate(outputs)}
        key = tuple(
            (k.name, *(id(values[p]) if p in values else number[p] for p in k.func.params)) for k in early
        )
        before = self._made.get(key)
        if before is not None:
            return left, dict(zip(outputs, before[1], strict=True))
        known = dict(values)
        for k in early:
            for p in k.func.outputs:
                if p not in known:  # the parts of a partitioned loop fill one buffer in turn
                    known[p] = self._shelf.empty(p.shape, p.dtype.numpy)
            self._run(k, known)
        self._made[key] = used, [known[p] for p in outputs]
        return left, {p: known[p] for p in outputs}

    def _run(self, kernel: NativeKernel, arrays: Mapping[Buffer, OpaqueArray]) -> None:
        """Run all parts of a kernel."""
        if kernel.name not in self._loaded:
            code = Code((kernel.object,))
            native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address(kernel.name))
            self._loaded[kernel.name] = code, native
        _, call = self._loaded[kernel.name]
        params = kernel.func.params
        args = (ctypes.c_void_p * len(params))(*(arrays[p].ctypes.data for p in params))
        for part in range(kernel.parts):
            call(ctypes.addressof(args), part)
