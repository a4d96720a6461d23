"""`build`: a tensor program as a native function over numpy arrays, exactly as it is scheduled.

    run = tw.build(matmul)              # the loops as written
    run = tw.build(schedule)            # after the steps of a schedule, and no others
    c = run(a, b)
    run.time(a, b).best                 # seconds

Nothing is chosen here: no recipe is applied, no cache is asked. Kernels run through the same driver and team of threads
as a compiled model, so a time here is a time there. `interpret` runs the same program in the interpreter, which says
what it means.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias, cast

import numpy as np

from tilewright.codegen.driver import driver_ir
from tilewright.codegen.kernel import kernel_ir, parts
from tilewright.codegen.legalize import legalize
from tilewright.codegen.objects import LLVM_VERSION, compile_assembly, compile_object
from tilewright.driver.kernels import NativeKernel
from tilewright.ir.expr import Buffer
from tilewright.runtime.memory import empty_aligned
from tilewright.runtime.session import Bound, Session
from tilewright.schedule.schedule import Schedule
from tilewright.support.arrays import Array
from tilewright.support.artifact import (
    FORMAT_VERSION,
    Artifact,
    Manifest,
    Place,
    Segment,
    Slot,
    TensorSpec,
)
from tilewright.support.errors import UserError
from tilewright.target.names import resolve_target
from tilewright.target.target import Target
from tilewright.tir.func import Func, Module
from tilewright.tir.interp import interpret_func as run_interpreter
from tilewright.tir.interp import poisoned_array
from tilewright.tir.memory_plan import plan_memory
from tilewright.tir.pipeline import lower_func
from tilewright.version import __version__

TensorProgram: TypeAlias = Func | Module | Schedule

_MAX_CALLS = 1 << 14  # kernel calls in one measurement


def build(
    program: TensorProgram, target: str | Target = "native", threads: int | None = None
) -> "Executable":
    """Compile a Func, or a Schedule as it stands, for `target` ("native", "x86-64", "x86-64-v3", "x86-64-v4", or a
    Target).

    `threads` run the parallel loops, the caller's included; one for each physical core unless given.
    """
    func = _func(program)
    machine = resolve_target(target)
    phases, shared = lower_func(func, legalize(machine))
    kernels: list[NativeKernel] = []
    for n, phase in enumerate(phases):
        name = func.name if len(phases) == 1 else f"{func.name}_{n}"
        text = kernel_ir(_named(phase.func, "kernel")).replace("@kernel(", f"@{_symbol(name)}(", 1)
        kernels.append(
            NativeKernel(_symbol(name), phase.func, parts(phase.func), text, compile_object(text, machine))
        )
    return Executable(func, machine, threads, tuple(kernels), shared)


def interpret(program: TensorProgram, *inputs: Array, out: Array | Sequence[Array] | None = None) -> Any:
    """What the program computes from these inputs: the output, or a tuple of them if there are several."""
    func = _func(program)
    given, results = _arrays(func, inputs, out)
    arrays = dict(zip(_inputs(func), given, strict=True)) | dict(zip(func.outputs, results, strict=True))
    run_interpreter(func, arrays)
    return results[0] if len(results) == 1 else tuple(results)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one run, from `measurements` of `runs` runs each."""

    best: float
    median: float
    runs: int
    measurements: int

    def gflops(self, operations: int) -> float:
        """Billions of operations a second in the best measurement, where a run does this many `operations`."""
        return operations / self.best / 1e9

    def __str__(self) -> str:
        return f"{self.best * 1e6:.1f} µs (median {self.median * 1e6:.1f} µs)"


class Executable:
    """A native program. `kernels` run one after the other, each divided among the threads where it is parallel."""

    def __init__(
        self,
        func: Func,
        target: Target,
        threads: int | None,
        kernels: tuple[NativeKernel, ...],
        shared: tuple[Buffer, ...],
    ) -> None:
        self.func, self.target, self.kernels = func, target, kernels
        self._threads, self._shared = threads, shared

    def __call__(self, *inputs: Array, out: Array | Sequence[Array] | None = None) -> Any:
        """Run on the inputs, in the order of the parameters; returns the output, or a tuple if there are several.

        `out`: arrays to write to. What a program does not write keeps its value there; in an array made here it is NaN
        or the largest integer.
        """
        given, results = _arrays(self.func, inputs, out)
        self._session.run(self._feeds(given), self._results(results))
        return results[0] if len(results) == 1 else tuple(results)

    def bind(self, *inputs: Array, out: Array | Sequence[Array] | None = None) -> Bound:
        """The program with its arrays fixed (random ones if none are given): `run` then skips their checks."""
        given, results = _arrays(self.func, inputs or self._random(), out)
        return self._session.bind(self._feeds(given), self._results(results))

    def time(self, *inputs: Array, repeat: int = 7, seconds: float = 0.02) -> Timing:
        """How long a run takes. Each of `repeat` measurements is one native call that makes as many runs as take about
        `seconds`: Python has no part in it. Without inputs, on random ones.
        """
        if repeat < 1:
            raise UserError(f"repeat is {repeat}", hint="measure at least once")
        given, results = _arrays(self.func, inputs or self._random(), None)
        feeds, outputs = self._feeds(given), self._results(results)
        bound = self._session.bind(feeds, outputs)
        first = _seconds(bound)  # a long run needs no other to warm up, and counts
        runs = 1
        if first < seconds:
            limit = max(1, _MAX_CALLS // max(1, len(self.kernels)))
            runs = max(1, min(limit, round(seconds / max(_seconds(bound), 1e-9))))
            bound = Session(self._artifact(runs), self._threads).bind(feeds, outputs)
            first = _seconds(bound)
        taken = [t / runs for t in (first, *(_seconds(bound) for _ in range(repeat - 1)))]
        return Timing(min(taken), statistics.median(taken), runs, repeat)

    def llvm(self) -> str:
        """The LLVM IR of all kernels."""
        return "\n".join(k.llvm for k in self.kernels)

    def asm(self) -> str:
        """The assembly of all kernels."""
        return "\n".join(compile_assembly(k.llvm, self.target) for k in self.kernels)

    def __repr__(self) -> str:
        return f"<{self.func.name} for {self.target.triple}: {len(self.kernels)} kernels>"

    # -------------------------------------------------------------------------------------------------- running

    @cached_property
    def _session(self) -> Session:
        """Made when it is first needed: code for another machine can be looked at, though not run."""
        return Session(self._artifact(1), self._threads)

    def _feeds(self, given: list[Array]) -> dict[str, Array]:
        return {b.name: x for b, x in zip(_inputs(self.func), given, strict=True)}

    def _results(self, results: list[Array]) -> dict[str, Array]:
        return {b.name: x for b, x in zip(self.func.outputs, results, strict=True)}

    def _random(self) -> list[Array]:
        rng = np.random.default_rng(0)
        made: list[Array] = []
        for b in _inputs(self.func):
            array = empty_aligned(b.shape, b.dtype.numpy)
            if b.dtype.is_float:
                array[...] = rng.standard_normal(b.shape, np.float32)
            else:
                array[...] = rng.integers(0, 2, b.shape)
            made.append(array)
        return made

    def _artifact(self, runs: int) -> Artifact:
        """The program that runs all kernels `runs` times."""
        touched = [k.func.params for k in self.kernels]
        # All of a run's buffers are alive at once where it is repeated: the next run writes them again.
        plan = plan_memory(touched if runs == 1 else [[b for t in touched for b in t]], self._shared)
        slots = {b: Slot(Place.ARENA, at) for b, at in plan.offsets.items()}
        slots |= {b: Slot(Place.INPUT, n) for n, b in enumerate(_inputs(self.func))}
        slots |= {b: Slot(Place.OUTPUT, n) for n, b in enumerate(self.func.outputs)}
        calls = [k.call(tuple(slots[p] for p in k.func.params)) for k in self.kernels]
        manifest = Manifest(
            FORMAT_VERSION,
            __version__,
            LLVM_VERSION,
            {},
            "",
            self.target.triple,
            tuple(sorted(self.target.features)),
            _specs(_inputs(self.func)),
            _specs(self.func.outputs),
        )
        objects = tuple(k.object for k in self.kernels)
        program = (Segment(tuple(calls * runs)),)
        return Artifact(manifest, _driver(self.target), objects, (), plan.bytes, program)


def _seconds(bound: Bound) -> float:
    start = time.perf_counter()
    bound.run()
    return time.perf_counter() - start


@lru_cache(maxsize=8)
def _driver(target: Target) -> bytes:
    return compile_object(driver_ir(target), target)


def _func(program: TensorProgram) -> Func:
    if isinstance(program, Schedule):
        return program.func
    return Schedule(program).func if isinstance(program, Module) else _checked(program)


def _checked(program: object) -> Func:
    if not isinstance(program, Func):
        raise UserError(
            f"a {type(program).__name__} is not a tensor program",
            hint="give what @tw.func made, or a tw.Schedule",
        )
    return program


def _inputs(func: Func) -> list[Buffer]:
    return [p for p in func.params if p not in func.outputs]


def _specs(buffers: Sequence[Buffer]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(b.name, b.dtype.numpy.name, b.shape) for b in buffers)


def _arrays(
    func: Func, inputs: Sequence[Array], out: Array | Sequence[Array] | None
) -> tuple[list[Array], list[Array]]:
    """Inputs and outputs, checked: nothing is converted or copied behind the caller's back."""
    wanted = _inputs(func)
    if len(inputs) != len(wanted):
        raise UserError(
            f"{func.name} takes {len(wanted)} inputs, {len(inputs)} were given",
            hint=f"they are: {', '.join(map(repr, wanted)) or 'none'}",
        )
    for b, x in zip(wanted, inputs, strict=True):
        _check(func, b, x)
    if out is None:
        return list(inputs), [poisoned_array(b) for b in func.outputs]
    results = [out] if isinstance(out, np.ndarray) else list(out)
    if len(results) != len(func.outputs):
        raise UserError(
            f"{func.name} has {len(func.outputs)} outputs, {len(results)} arrays were given for them",
            hint=f"they are: {', '.join(map(repr, func.outputs))}",
        )
    for b, x in zip(func.outputs, results, strict=True):
        _check(func, b, x)
        if not x.flags.writeable:
            raise UserError(f"{func.name}: the array for {b} cannot be written to")
        if any(np.may_share_memory(x, y) for y in (*inputs, *(r for r in results if r is not x))):
            raise UserError(
                f"{func.name}: the array for {b} shares memory with another", hint="copy one of them"
            )
    return list(inputs), results


def _check(func: Func, b: Buffer, x: object) -> None:
    if not isinstance(x, np.ndarray):
        raise UserError(f"{func.name}: {b} is given a {type(x).__name__}", hint="give a numpy array")
    array = cast(Array, x)
    if array.dtype != b.dtype.numpy or array.shape != b.shape:
        raise UserError(
            f"{func.name}: {b} is given an array of {array.dtype} and shape {list(array.shape)}",
            hint=f"convert it, for instance with x.astype(np.{b.dtype.numpy.name})"
            if array.shape == b.shape
            else "the shapes of a tensor program are fixed",
        )
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise UserError(
            f"{func.name}: the array for {b} is not contiguous", hint="pass np.ascontiguousarray(x)"
        )


def _named(func: Func, name: str) -> Func:
    return Func(name, func.params, func.locals, func.body, func.outputs)


def _symbol(name: str) -> str:
    """A name that LLVM takes without quotes."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
