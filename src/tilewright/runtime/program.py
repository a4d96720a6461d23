"""A program made ready to run: tables of native calls, and what Python does between them.

`ExecutionPlan` is made once for a session and never changes. `RunContext` is what one run needs for itself: an arena,
and call tables whose argument pointers lead into that arena, to the constants, and to the inputs and outputs of the
moment. Where dimensions are open and calls have others in their place for small sizes, there is a table for each
choice of calls that was needed.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, assert_never

import numpy as np

from tilewright.runtime.dtypes import numpy_dtype
from tilewright.runtime.loader import Code
from tilewright.runtime.memory import Constants, MemoryRegion, address_of
from tilewright.runtime.sized_views import SizedViews, copied_bytes
from tilewright.runtime.team import Team
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import (
    Artifact,
    ExternalCall,
    ExternalCode,
    KernelCall,
    Place,
    Segment,
    SizeChoice,
    SizedCode,
    Slot,
    TensorSpec,
)
from tilewright.support.driver_abi import MAX_CALLS, CallRow, Job
from tilewright.support.errors import Hint, UserError
from tilewright.support.program import Branch, ProgramTree, While, leaves, map_program


def dtype_of(spec: TensorSpec) -> np.dtype[np.generic]:
    return numpy_dtype(spec.dtype)


def nbytes_of(spec: TensorSpec) -> int:
    return dtype_of(spec).itemsize * prod(spec.shape)


@dataclass(frozen=True, slots=True)
class NativeSegment:
    """Segment `index` of the context's tables."""

    index: int


PlanProgram: TypeAlias = ProgramTree[NativeSegment | ExternalCall, Slot]


class CallStep(NamedTuple):
    """A step of a call: `parts` of its parts, from `first` on. If `is_each`, these are not parts of one call but this
    call and those beside it.
    """

    call: int
    first: int
    parts: int
    barrier: bool
    is_each: bool = False


_MOST_CLAIMS = 1024  # of a call: more are no better balanced, and that many parts are short


def rows(calls: Sequence[KernelCall]) -> list[CallStep]:
    """The steps of all calls. There is a barrier after each but the last of a call, and after that if it says so."""
    found: list[CallStep] = []
    for n, call in enumerate(calls):
        if n and call.beside:  # the last of them says whether there is a barrier
            first = found[-1].call
            found[-1] = CallStep(first, 0, n + 1 - first, call.barrier, is_each=True)
            continue
        parts = call.parts // call.steps
        found += [CallStep(n, i * parts, parts, True) for i in range(call.steps - 1)]
        found.append(CallStep(n, (call.steps - 1) * parts, parts, call.barrier))
    return found


def merge_barriers(calls: Sequence[KernelCall | CallStep]) -> list[bool]:
    """After which calls the workers must really meet.

    Calls of one part run on worker 0, in order, so the barriers between them are put off until a parallel call follows;
    and the end of a segment is a meeting anyway.
    """
    meet: list[bool] = []
    is_serial, is_due = True, False  # since the last barrier: only single parts; one was asked for
    for call, following in zip(calls, [*calls[1:], None], strict=True):
        is_serial = is_serial and call.parts <= 1
        is_due = is_due or call.barrier
        emit = is_due and following is not None and not (is_serial and following.parts <= 1)
        meet.append(emit)
        if emit:
            is_serial, is_due = True, False
    return meet


def call_rows(calls: Sequence[KernelCall], functions: Sequence[int], args: Sequence[int]) -> list[CallRow]:
    """Rows for the driver, of calls none of which is beside another: where their functions and arguments are."""
    steps = rows(calls)
    found: list[CallRow] = []
    for step, meet in zip(steps, merge_barriers(steps), strict=True):
        row = CallRow()
        row.fn, row.args = functions[step.call], args[step.call]
        row.first, row.barrier = step.first, meet
        _set_parts(row, step.parts)
        found.append(row)
    return found


def is_shared(calls: Sequence[KernelCall]) -> bool:
    """Is there something for several workers to do?"""
    return any(call.parts > call.steps or (n and call.beside) for n, call in enumerate(calls))


_NO_SIZES: Mapping[str, int] = MappingProxyType({})
_NO_CODE: Mapping[str, SizedCode] = MappingProxyType({})


class ExecutionPlan:
    """The parts of a program that all runs share. The code of its external calls is in `externals`, or in `sized` if
    it has open dimensions.
    """

    def __init__(
        self,
        artifact: Artifact,
        code: Code,
        constants: Constants,
        externals: Mapping[str, ExternalCode],
        team: Team,
        sized: Mapping[str, SizedCode] = _NO_CODE,
    ) -> None:
        self.code = code
        self.team = team
        self.constants = constants
        self.externals = dict(externals)
        self.sized = dict(sized)
        self.arena_bytes = artifact.arena_bytes
        self.is_open = bool(
            artifact.manifest.dims
        )  # few runs use all of the arena: it is not touched beforehand
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.written
        self.segments: list[Segment] = []
        self.program = map_program(artifact.program, self._plan, self._condition)
        self.is_parallel = team.threads > 1 and any(is_shared(s.calls) for s in self.segments)
        calls = [s for s in leaves(self.program) if isinstance(s, ExternalCall)]
        self.copied_bytes = max(map(copied_bytes, calls), default=0)  # of what external code needs contiguous
        self._check_externals(calls)

    def _plan(self, run: list[Segment | ExternalCall]) -> Iterator[NativeSegment | ExternalCall]:
        for step in run:
            match step:
                case Segment(calls):
                    for call in calls:
                        self._check_call(call)
                    if any(b.beside and not a.parts == b.parts == 1 for a, b in pairwise(calls)):
                        raise UserError(
                            "the program has calls of several parts beside each other",
                            hint="compile it again",
                        )
                    if sum(call.steps for call in calls) > MAX_CALLS:
                        raise UserError("the program has too many calls", hint="compile it again")
                    if calls:
                        self.segments.append(step)
                        yield NativeSegment(len(self.segments) - 1)
                case ExternalCall():
                    for slot, spec in (*step.inputs, *step.outputs):
                        self._check_view(slot, spec, f"external call {step.key!r}")
                    yield step
                case _:
                    assert_never(step)

    def _condition(self, slot: Slot) -> Slot:
        self._check_view(slot, None, "condition")
        return slot

    def _check_call(self, call: KernelCall) -> None:
        self.code.address(call.kernel)
        if call.parts < 1 or call.steps < 1 or call.parts % call.steps:
            steps = "" if call.steps == 1 else f" in {call.steps} steps"
            raise UserError(
                f"the program calls {call.kernel!r} with {call.parts} parts{steps}", hint="compile it again"
            )
        for slot in call.args:
            self._check_slot(slot, f"call of {call.kernel!r}")

    def _check_slot(self, slot: Slot, where: str) -> None:
        limits = {
            Place.INPUT: len(self.inputs),
            Place.OUTPUT: len(self.outputs),
            Place.CONSTANT: len(self.constants.arrays),
            Place.ARENA: self.arena_bytes + 1,  # an empty buffer may be at the very end
        }
        if not 0 <= slot.at < limits[slot.place]:
            raise UserError(
                f"the program has no {slot.place.value} {slot.at}", where=where, hint="compile it again"
            )

    def _check_view(self, slot: Slot, spec: TensorSpec | None, where: str) -> None:
        """Python may look at the slot as the spec says; None: as a condition."""
        self._check_slot(slot, where)
        if spec is not None and any(
            s is not None and s.bounds[1] > n for s, n in zip(spec.sizes, spec.shape, strict=False)
        ):
            raise UserError(
                f"{spec.name} may be larger than its memory", where=where, hint="compile it again"
            )
        match slot.place:
            case Place.ARENA:
                is_right = slot.at + (1 if spec is None else nbytes_of(spec)) <= self.arena_bytes
            case Place.CONSTANT:
                array = self.constants.arrays[slot.at]
                is_right = _describes(spec, array.dtype, array.shape)
            case Place.INPUT | Place.OUTPUT:
                tensor = (self.inputs if slot.place is Place.INPUT else self.outputs)[slot.at]
                is_right = _describes(spec, dtype_of(tensor), tensor.shape)
            case _:
                assert_never(slot.place)
        if not is_right:
            raise UserError(
                f"{slot.place.value} {slot.at} is not {'one bool' if spec is None else spec}",
                where=where,
                hint="compile it again",
            )

    def _check_externals(self, calls: Sequence[ExternalCall]) -> None:
        given = self.sized.keys() if self.is_open else self.externals.keys()
        missing = sorted({step.key for step in calls} - given)
        if missing:
            raise UserError(
                f"the program needs external code that was not given: {', '.join(map(repr, missing))}",
                hint=Hint(
                    "pass `externals={key: function}`, or load the plugin that compiled these parts",
                    command="install the plugin that compiled these parts",
                ),
            )


def _describes(spec: TensorSpec | None, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bool:
    if spec is None:
        return dtype == np.bool_ and all(extent == 1 for extent in shape)
    return dtype == dtype_of(spec) and shape == spec.shape


def _set_parts(row: CallRow, parts: int) -> None:
    row.parts = parts
    row.chunk = -(-parts // _MOST_CLAIMS)
    row.claims = -(-parts // row.chunk)


class _CallTable:
    """The calls of all segments that are made for one choice, as the driver reads them."""

    __slots__ = ("addresses", "memory", "now", "open_rows")

    def __init__(self, plan: ExecutionPlan, choice: SizeChoice, arguments: Sequence[Sequence[int]]) -> None:
        made = [s.calls_at(choice) for s in plan.segments]
        every = [c for calls in made for _, c in calls]
        calls = (CallRow * max(1, sum(c.steps for c in every)))()
        each = (CallRow * max(1, 2 * sum(c.beside for c in every)))()  # calls that are parts of a row
        jobs = (Job * max(1, len(made)))()
        self.memory = calls, each, jobs
        self.open_rows: list[CallRow] = []
        self.now: list[int] = []  # parts that each of them has
        n_rows = n_each = 0
        for numbered, own, job in zip(made, arguments, jobs, strict=False):
            here = [c for _, c in numbered]
            args = [own[n] for n, _ in numbered]
            steps = rows(here)
            job.calls = ctypes.addressof(calls) + n_rows * ctypes.sizeof(CallRow)
            job.n = len(steps)
            job.team = plan.team.address if plan.is_parallel and is_shared(here) else 0
            functions = [plan.code.address(c.kernel) for c in here]
            for step, meet in zip(steps, merge_barriers(steps), strict=True):
                row = calls[n_rows]
                if step.is_each:
                    row.fn, row.args = plan.team.each, ctypes.addressof(each[n_each])
                    for n in range(step.call, step.call + step.parts):
                        each[n_each].fn, each[n_each].args = functions[n], args[n]
                        n_each += 1
                else:
                    row.fn, row.args = functions[step.call], args[step.call]
                row.first, row.barrier = step.first, meet
                _set_parts(row, step.parts)
                if not step.is_each and here[step.call].in_use:
                    self.open_rows.append(row)
                    self.now.append(step.parts)
                n_rows += 1
        self.addresses = [ctypes.addressof(job) for job in jobs]

    def use_parts(self, parts: Sequence[int]) -> None:
        now = self.now
        for i, n in enumerate(parts):
            if now[i] != n:
                now[i] = n
                _set_parts(self.open_rows[i], n)


_WHOLE: SizeChoice = frozenset()


class RunContext:
    """Memory and tables of one run at a time. Keeps code, constants and team alive.

    `only_job` is the address of the job that is the whole program, or 0 if Python has a part in it.
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self.run_job = plan.team.run_job
        self._arena = MemoryRegion(plan.arena_bytes, zeroed=not plan.is_open)
        self._inputs: Sequence[OpaqueArray] = ()
        self._outputs: Sequence[OpaqueArray] = ()
        self._sized = SizedViews(plan.copied_bytes)
        calls = [c for s in plan.segments for c in s.calls]
        self._pointers = (ctypes.c_uint64 * max(1, sum(len(c.args) for c in calls)))()
        # where in `_pointers` the address of each input and output goes
        self._input_uses: list[list[int]] = [[] for _ in plan.inputs]
        self._output_uses: list[list[int]] = [[] for _ in plan.outputs]
        self.attached: object = None  # whose arrays the tables lead to, if it wants to know
        self._arguments = self._fill()
        self._is_native = len(plan.program) == 1 and isinstance(plan.program[0], NativeSegment)
        self._tables: dict[SizeChoice, _CallTable] = {}
        self._choice = _WHOLE
        self._take(_WHOLE)

    def _fill(self) -> list[list[int]]:
        """Where the arguments of each call are, by segment."""
        found: list[list[int]] = []
        n_pointers = 0
        for segment in self._plan.segments:
            found.append([])
            for call in segment.calls:
                found[-1].append(ctypes.addressof(self._pointers) + 8 * n_pointers)
                for slot in call.args:
                    match slot.place:
                        case Place.INPUT:
                            self._input_uses[slot.at].append(n_pointers)
                        case Place.OUTPUT:
                            self._output_uses[slot.at].append(n_pointers)
                        case Place.CONSTANT:
                            self._pointers[n_pointers] = self._plan.constants.addresses[slot.at]
                        case Place.ARENA:
                            self._pointers[n_pointers] = self._arena.address + slot.at
                        case _:
                            assert_never(slot.place)
                    n_pointers += 1
        return found

    def _take(self, choice: SizeChoice) -> None:
        table = self._tables.get(choice)
        if table is None:
            table = self._tables[choice] = _CallTable(self._plan, choice, self._arguments)
        self._choice, self._table = choice, table
        self.only_job = table.addresses[0] if self._is_native else 0

    def use(self, choice: SizeChoice, parts: Sequence[int], sizes: Mapping[str, int] = _NO_SIZES) -> None:
        """Make the calls of this choice; and run as many parts of those in which that depends on open dimensions, in
        their order. External code gets arrays of these `sizes`.
        """
        if choice != self._choice:
            self._take(choice)
        self._table.use_parts(parts)
        self._sized.use(sizes)

    def attach(self, inputs: Sequence[OpaqueArray], outputs: Sequence[OpaqueArray]) -> None:
        """Read from and write to these arrays, which were checked, from now on."""
        pointers = self._pointers
        # enumerate, because a strict zip costs as much as the rest of the loop
        for n, array in enumerate(inputs):
            address = address_of(array)
            for i in self._input_uses[n]:
                pointers[i] = address
        for n, array in enumerate(outputs):
            address = address_of(array)
            for i in self._output_uses[n]:
                pointers[i] = address
        self._inputs, self._outputs = inputs, outputs
        self.attached = None

    @property
    def jobs(self) -> Sequence[int]:
        """The addresses of the jobs of all segments, in the order of the program."""
        return self._table.addresses

    def detach(self) -> None:
        """Let go of the arrays. The tables still hold their addresses, and are not used before the next `attach`."""
        self._inputs = self._outputs = ()
        if not self._is_native:  # external code is given the arrays themselves
            self.attached = None

    def run(self) -> None:
        if not self.only_job:
            self._run(self._plan.program)
        elif self.run_job(self.only_job):
            self.revive()

    def _run(self, program: PlanProgram) -> None:
        for step in program:
            match step:
                case NativeSegment(index):
                    if self.run_job(self._table.addresses[index]):
                        self.revive()
                case ExternalCall():
                    if self._plan.is_open:
                        self._call_sized(step)
                    else:
                        self._call(step)
                case Branch(cond, then, otherwise):
                    self._run(then if self._is_true(cond) else otherwise)
                case While(cond, body):
                    while self._is_true(cond):
                        self._run(body)
                case _:
                    assert_never(step)

    def revive(self) -> None:
        """The driver found no workers: the process has forked, or the team was closed."""
        self._plan.team.start()

    def _call(self, step: ExternalCall) -> None:
        inputs = tuple(self._view(slot, spec) for slot, spec in step.inputs)
        outputs = tuple(self._view(slot, spec) for slot, spec in step.outputs)
        for array in inputs:
            array.flags.writeable = False
        try:
            self._plan.externals[step.key](inputs, outputs)
        except Exception as error:
            error.add_note(_where(step))
            raise

    def _call_sized(self, step: ExternalCall) -> None:
        sized = self._sized
        try:
            inputs = tuple([sized.input(self._view(slot, spec), spec) for slot, spec in step.inputs])
            outputs = tuple([sized.output(self._view(slot, spec), spec) for slot, spec in step.outputs])
            self._plan.sized[step.key](inputs, outputs, sized.sizes)
            sized.finish()
        except Exception as error:
            error.add_note(_where(step))
            raise
        finally:
            sized.forget()

    def _view(self, slot: Slot, spec: TensorSpec) -> OpaqueArray:
        match slot.place:
            case Place.INPUT:
                return self._inputs[slot.at].view()
            case Place.OUTPUT:
                return self._outputs[slot.at].view()
            case Place.CONSTANT:
                return self._plan.constants.arrays[slot.at].view()
            case Place.ARENA:
                memory = self._arena.array[slot.at : slot.at + nbytes_of(spec)]
                return memory.view(dtype_of(spec)).reshape(spec.shape)
            case _:
                assert_never(slot.place)

    def _is_true(self, cond: Slot) -> bool:
        return bool(self._view(cond, _FLAG).reshape(-1)[0])


def _where(step: ExternalCall) -> str:
    return f"in the external call {step.key!r} of a compiled program"


_FLAG = TensorSpec("condition", "bool", ())
