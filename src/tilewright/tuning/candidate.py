"""A process that makes candidates: `python -m tilewright.tuning.candidate`.

It receives each task once (a Func as text, the target, which params are constants, where its design spaces come from),
and then one point after the other: the name of a rule and its decisions. It schedules the Func, lowers it, makes
LLVM IR and object code, and answers with the candidate and its trace, or with the reason why there is none. Neither
Python nor LLVM runs twice at once in one process, and both take their share: that is why all of it happens here.
"""

import gc
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

from tilewright.codegen.kernel import kernel_ir, parts
from tilewright.codegen.legalize import legalize
from tilewright.codegen.objects import compile_object
from tilewright.driver.native_kernel import Compiled, NativeKernel, constant_kernels
from tilewright.driver.worker import target_from_json, target_to_json
from tilewright.families.space import KnobValues, Space
from tilewright.ir.expr import Buffer
from tilewright.schedule.decisions import OpenDecision
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import Trace, parse_trace, print_trace
from tilewright.search.default import Refine, Spaces, as_stated, find_space, schedule_func
from tilewright.search.grain import build_with_grain
from tilewright.search.trace_space import TraceSpace
from tilewright.support.answering import answer_requests
from tilewright.support.artifact import KernelCall, Place, Slot, TensorSpec
from tilewright.support.compiling import compiling
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.extensions import load_extensions
from tilewright.support.frames import pack
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.memory_plan import plan_memory
from tilewright.tir.parser import parse_func
from tilewright.tir.pipeline import PhaseMemo, lower_func
from tilewright.tir.printer import print_func
from tilewright.tuning.open_settings import func_dims, sizes_to_time
from tilewright.tuning.trial import Candidate, TrialStatus

DEFAULT = "default"  # the rule that stands for what an untuned compilation does
PLAIN = "plain"  # no step at all: the Func as it is written, which is what it means

_MEMORY_BYTES = 8 << 30  # of address space for the process: LLVM maps a lot and uses little
_KNOWN_MAKERS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A Func to tune. `trace` (as text) is a trace with sampling steps: the ways to decide them are its space then, and
    the decisions that it has are the default.
    """

    key: str
    func: Func
    constants: frozenset[str]  # names of params
    target: Target
    spaces: Spaces
    trace: str | None = None
    threads: int = 1  # that candidates run on, and are ranked for

    def design_spaces(self, refine: Refine = as_stated) -> Sequence[Space]:
        if self.trace is None:
            target = self.target.for_threads(self.threads)
            found = self.spaces(self.func, target, self.constants)
            return tuple(refine(s, self.func, target, self.constants) for s in found)
        steps = parse_trace(self.trace)
        undecided = tuple(replace(s, decision=None) if isinstance(s, OpenDecision) else s for s in steps)
        return (TraceSpace(self.func, undecided, self.target, self.constants),)

    def find_space(self, family: str) -> Space | None:
        """That of a family, without looking for others."""
        if self.trace is None:
            target = self.target.for_threads(self.threads)
            return find_space(self.func, target, self.constants, family, self.spaces)
        return next((s for s in self.design_spaces() if s.family == family), None)

    def default(self) -> Schedule:
        """What it is scheduled by without tuning."""
        if self.trace is None:
            return schedule_func(self.func, self.target, self.constants)
        s = Schedule(self.func)
        for step in parse_trace(self.trace):
            s.apply(step)
        return s

    def packet(self) -> bytes:
        head = {
            "key": self.key,
            "constants": sorted(self.constants),
            "spaces": f"{self.spaces.__module__}:{self.spaces.__qualname__}",
            "trace": self.trace,
            "threads": self.threads,
        }
        return pack(head, (print_func(self.func).encode(), target_to_json(self.target)))

    @staticmethod
    def of(head: dict[str, Any], blobs: Sequence[bytes]) -> "Task":
        text, target = blobs
        module, name = head["spaces"].split(":")
        return Task(
            head["key"],
            parse_func(text.decode()),
            frozenset(head["constants"]),
            target_from_json(target),
            getattr(import_module(module), name),
            head["trace"],
            head["threads"],
        )


class Maker:
    """Makes the candidates of one task; its spaces are found once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._passes, self._phases = legalize(task.target), PhaseMemo()
        self._spaces: dict[str, Space | None] = {}

    def schedule(self, rule: str, decisions: KnobValues) -> tuple[Func, Trace]:
        """ScheduleError where a step refuses the point, UserError where the rule is not one of this Func's."""
        task = self.task
        if rule == PLAIN:
            return task.func, ()
        if rule == DEFAULT:
            schedule = task.default()
        else:
            if rule not in self._spaces:
                self._spaces[rule] = task.find_space(rule)
            space = self._spaces[rule]
            if space is None:
                raise UserError(f"the rule {rule!r} does not fit this Func")
            schedule = build_with_grain(space, decisions)
        return schedule.module.funcs[0], schedule.trace

    def make(self, rule: str, decisions: KnobValues) -> tuple[Candidate, Trace]:
        func, trace = self.schedule(rule, decisions)
        return self.compile(func, trace), trace

    def compile(self, scheduled: Func, trace: Trace = ()) -> Candidate:
        phases, shared = lower_func(scheduled, self._passes, self._phases)
        kernels = tuple([_kernel(p.func, f"kernel{n}", self.task.target) for n, p in enumerate(phases)])
        return _candidate(Compiled(self.task.func, scheduled, trace, kernels, shared), self.task.constants)


@lru_cache(maxsize=256)
def _kernel(func: Func, name: str, target: Target) -> NativeKernel:
    """A Func is one that was lowered before only if it is the same object."""
    ir = kernel_ir(replace(func, name=name))
    return NativeKernel(name, func, parts(func), ir, _object(ir, target))


@lru_cache(maxsize=256)
def _object(ir: str, target: Target) -> bytes:
    """Kernels that lay constants out are the same in many candidates."""
    return compile_object(ir, target)


def _candidate(compiled: Compiled, constants: frozenset[str]) -> Candidate:
    """Buffers in their places: as a compiled program has them, but that constant params are inputs."""
    func = compiled.func
    early = constant_kernels(compiled, {p for p in func.params if p.name in constants})
    late = [k for k in compiled.kernels if k not in early]
    made = tuple(dict.fromkeys(b for k in early for b in k.func.outputs))
    plan = plan_memory([k.func.params for k in late], [b for b in compiled.shared if b not in made])
    slots = {b: Slot(Place.INPUT, n) for n, b in enumerate(p for p in func.params if p not in func.outputs)}
    slots |= {b: Slot(Place.OUTPUT, n) for n, b in enumerate(func.outputs)}
    slots |= {b: Slot(Place.CONSTANT, n) for n, b in enumerate(made)}
    slots |= {b: Slot(Place.ARENA, at) for b, at in plan.offsets.items()}

    dims = func_dims(func)

    def call(k: NativeKernel) -> KernelCall:
        return k.call(tuple(slots[p] for p in k.func.params), dims)

    calls = tuple(map(call, late))
    rows = [c for c in calls for _ in range(c.steps) if c.in_use]
    sizes = sizes_to_time(func)
    return Candidate(
        tuple(k.object for k in compiled.kernels),
        tuple(map(call, early)),
        calls,
        tuple(map(tensor_spec, made)),
        plan.bytes,
        tuple(tuple(c.parts_at(at) // c.steps for c in rows) for at in sizes) if rows else (),
    )


def tensor_spec(b: Buffer) -> TensorSpec:
    return TensorSpec(b.name, b.dtype.numpy.name, b.shape)


class CandidateServer:
    """Tasks are not answered, so they are not read before they are needed."""

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[Any, list[bytes]]] = {}
        self._makers: dict[str, Maker] = {}

    def answer(self, head: Any, blobs: list[bytes]) -> bytes | None:
        if "key" in head:
            self._tasks[head["key"]] = head, blobs
            return None
        if len(self._makers) > _KNOWN_MAKERS:
            self._makers.clear()
        try:
            candidate, trace = self._maker(head["task"]).make(head["rule"], head["decisions"])
        except MemoryError:
            return pack({"status": TrialStatus.OOM.value, "message": "no memory to build it"})
        except Exception as e:  # whatever it is: one candidate less
            message = e.args[0] if isinstance(e, TilewrightError) and e.args else f"{type(e).__name__}: {e}"
            return pack({"status": TrialStatus.BUILD_ERROR.value, "message": str(message)})
        said = {"status": TrialStatus.OK.value, "candidate": candidate.head(), "trace": print_trace(trace)}
        return pack(said, candidate.objects)

    def _maker(self, key: str) -> Maker:
        if key not in self._makers:
            self._makers[key] = Maker(Task.of(*self._tasks[key]))
        return self._makers[key]


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))
    load_extensions()
    gc.freeze()
    with compiling():
        answer_requests(CandidateServer().answer)


if __name__ == "__main__":
    main()
