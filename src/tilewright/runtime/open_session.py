"""Runs a program whose dimensions are open.

The program is made for the largest sizes, and so is its memory: an open dimension always lies in it with the pitch of
its capacity. What is in use is told to the kernels as numbers, one for each dimension. Inputs are copied into memory of
that pitch, unless they have it; results are views of such memory. A size that was not seen before costs the evaluation
of a few sums; one that was, a look into a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.feeds import Buffers, Feeds, as_array, check_by_name, signature_text
from tilewright.runtime.loader import Code
from tilewright.runtime.machine import check_machine, check_threads, default_threads
from tilewright.runtime.memory import Constants, empty_aligned
from tilewright.runtime.program import ExecutionPlan, RunContext, dtype_of, nbytes_of
from tilewright.runtime.session import ContextPool
from tilewright.runtime.team import shared_team
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import SIZE_INPUT, Artifact, TensorSpec
from tilewright.support.closing import Closing
from tilewright.support.errors import Hint, UserError
from tilewright.support.sizes import Dim, SizeExpr

_KNOWN_SIZES = 4096  # whose tables are kept


class OutOfRange(UserError):
    """Sizes that the program is not made for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sized:
    """What follows from the sizes of the open dimensions."""

    values: dict[str, int]
    numbers: tuple[OpaqueArray, ...]  # what kernels read
    parts: tuple[int, ...]
    inputs: tuple[tuple[slice, ...], ...]  # what is in use of each
    outputs: tuple[tuple[slice, ...], ...]


class OpenSession(Closing):
    """A loaded program for all sizes of its dimensions. `run` may be called from several Python threads at once."""

    def __init__(self, artifact: Artifact, threads: int | None = None) -> None:
        manifest = artifact.manifest
        self.threads = default_threads() if threads is None else check_threads(threads)
        check_machine(manifest)
        self.dims = manifest.dims
        self._guards = manifest.guards
        self.inputs = manifest.given
        sizes = manifest.inputs[len(self.inputs) :]
        self.outputs = manifest.outputs
        self._read = tuple(
            s.name.removeprefix(SIZE_INPUT) for s in sizes
        )  # dimensions whose sizes kernels read
        self._names = [s.name for s in self.inputs]
        team = shared_team(artifact.driver, self.threads)
        constants = Constants(artifact.constants, artifact.digests)
        plan = ExecutionPlan(artifact, Code(artifact.objects), constants, {}, team)
        if plan.is_parallel:
            team.start()
        self._calls = [c for s in plan.segments for c in s.calls for _ in range(c.steps) if c.in_use]
        self._where = {d.name: _place_of(d, self.inputs) for d in self.dims}
        self._known: dict[tuple[int, ...], _Sized] = {}
        self._staged: dict[int, list[OpaqueArray]] = {}
        self._used: dict[int, _Sized] = {}
        self._pool = ContextPool(plan, max(2, default_threads() + 1))
        tensors = (*self.inputs, *self.outputs)
        self.capacity_bytes = plan.arena_bytes + sum(map(nbytes_of, tensors))  # of a run at the largest sizes

    def __repr__(self) -> str:
        """Inputs and outputs, and the open dimensions with their ranges."""
        sides = [
            signature_text([(s.name, _type_text(s)) for s in side]) for side in (self.inputs, self.outputs)
        ]
        return f"<OpenSession {' -> '.join(sides)}; {'; '.join(map(str, self.dims))}>"

    def run(self, feeds: Feeds, outputs: Buffers | None = None) -> dict[str, OpaqueArray]:
        """Run once, for the sizes of the feeds. The caller owns the arrays returned; those given in `outputs` are
        written to and returned.
        """
        arrays = self._arrays(feeds, outputs)
        sized = self._sized(arrays)
        results = [empty_aligned(s.shape, dtype_of(s)) for s in self.outputs]
        pool = self._pool
        context = pool.take()
        try:
            inputs = self._staged_inputs(context, arrays, sized)
            if self._used.get(id(context)) is not sized:
                context.use_parts(sized.parts)
                self._used[id(context)] = sized
            context.attach([*inputs, *sized.numbers], results)
            context.run()
        finally:
            context.detach()
            pool.give(context)
        views = {s.name: r[at] for s, r, at in zip(self.outputs, results, sized.outputs, strict=True)}
        for name, array in (outputs or {}).items():
            np.copyto(array, views[name])
            views[name] = array
        return views

    def bind(self, feeds: Feeds, outputs: Buffers | None = None) -> "OpenBound":
        """Fix the arrays that runs read from and write to, and with them the sizes."""
        arrays = self._arrays(feeds, outputs)
        sized = self._sized(arrays)
        context = self._pool.take_away()
        context.use_parts(sized.parts)
        results = [empty_aligned(s.shape, dtype_of(s)) for s in self.outputs]
        stages = self._new_stages()
        inputs = _staged(self.inputs, arrays, stages, sized.inputs)
        context.attach([*inputs, *sized.numbers], results)
        views = {s.name: r[at] for s, r, at in zip(self.outputs, results, sized.outputs, strict=True)}
        copies = [(c[at], a) for c, a, at in zip(inputs, arrays, sized.inputs, strict=True) if c is not a]
        return OpenBound(context, dict(zip(self._names, arrays, strict=True)), views, copies, outputs or {})

    def close(self) -> None:
        """Free arenas, and end the team if nobody else uses it."""
        self._pool.close()

    # ------------------------------------------------------------------------------------------------------- feeds

    def _arrays(self, feeds: Feeds, outputs: Buffers | None) -> list[OpaqueArray]:
        check_by_name(feeds, outputs, self._names)
        faults = [f"{n}: there is no such input" for n in sorted(map(str, feeds.keys() - set(self._names)))]
        arrays: list[OpaqueArray] = []
        for spec in self.inputs:
            if spec.name not in feeds:
                faults.append(f"{spec.name}: missing, should be {_type_text(spec)}")
                continue
            array = as_array(feeds[spec.name], dtype_of(spec))
            if isinstance(array, str):
                faults.append(f"{spec.name}: {array}")
            elif array.dtype != dtype_of(spec) or array.ndim != len(spec.shape):
                faults.append(
                    f"{spec.name}: is {array.dtype}{list(array.shape)}, should be {_type_text(spec)}"
                )
            else:
                arrays.append(array)
        if faults:
            takes = ", ".join(f"{s.name}: {_type_text(s)}" for s in self.inputs) or "no inputs"
            raise UserError(
                "the feeds do not fit the model:" + "".join(f"\n  {f}" for f in faults),
                hint=f"it takes {takes}",
            )
        return arrays

    def _sized(self, arrays: list[OpaqueArray]) -> _Sized:
        key = tuple(n for a in arrays for n in a.shape)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KNOWN_SIZES:
                self._known.clear()
            found = self._known[key] = self._measure(arrays)
        return found

    def covers(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Is the program made for inputs of these shapes?"""
        return self.why_not(shapes) is None

    def why_not(self, shapes: Mapping[str, Sequence[int]]) -> str | None:
        """Why the program is not made for inputs of these shapes; None if it is."""
        given = [tuple(shapes[s.name]) for s in self.inputs]
        if any(len(g) != len(s.shape) for g, s in zip(given, self.inputs, strict=True)):
            return "the ranks of the inputs are others"
        try:
            self._values(given)
        except UserError as e:
            return e.message
        return None

    def _values(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The sizes of the open dimensions where the inputs have these shapes. UserError if there is no program."""
        values = {name: shapes[i][d] for name, (i, d) in self._where.items()}
        for dim in self.dims:
            if not dim.allows(values[dim.name]):
                raise OutOfRange(
                    f"{dim.name} is {values[dim.name]}, and the program is made for {dim}",
                    hint=Hint(
                        f"load the model with a wider range: dims={{{dim.name!r}: (…, …)}}",
                        command=f"give a wider range: --dim {dim.name}=LEAST..MOST",
                    ),
                )
        for spec, shape in zip(self.inputs, shapes, strict=True):
            if shape != spec.shape_at(values):
                raise UserError(
                    f"the feeds do not fit each other: {spec.name} is {list(shape)}, and should be "
                    f"{list(spec.shape_at(values))} where {', '.join(f'{n} is {v}' for n, v in values.items())}"
                )
        wrong = next((g for g in self._guards if not g.holds(values)), None)
        if wrong is not None:
            raise OutOfRange(f"the program is made for sizes with {wrong}")
        return values

    def _measure(self, arrays: list[OpaqueArray]) -> _Sized:
        values = self._values([a.shape for a in arrays])
        by_name = {d.name: d for d in self.dims}
        numbers = [np.array([values[n] // by_name[n].multiple], np.int64) for n in self._read]
        return _Sized(
            values,
            tuple(numbers),
            tuple(c.parts_at(values) // c.steps for c in self._calls),
            tuple(_used(s, values) for s in self.inputs),
            tuple(_used(s, values) for s in self.outputs),
        )

    def _staged_inputs(
        self, context: RunContext, arrays: list[OpaqueArray], sized: _Sized
    ) -> list[OpaqueArray]:
        """The inputs with the pitch of the capacity: in memory of the context, unless they have it already."""
        own = self._staged.get(id(context))
        if own is None:
            own = self._staged[id(context)] = self._new_stages()
        return _staged(self.inputs, arrays, own, sized.inputs)

    def _new_stages(self) -> list[OpaqueArray]:
        return [np.zeros(s.shape if s.sizes else (0,), dtype_of(s)) for s in self.inputs]


class OpenBound:
    """A program with its arrays fixed. Use it from one Python thread at a time.

    Each run reads `inputs` as they are then, and overwrites `outputs`: copy what you want to keep.
    """

    def __init__(
        self,
        context: RunContext,
        inputs: dict[str, OpaqueArray],
        outputs: dict[str, OpaqueArray],
        copies: list[tuple[OpaqueArray, OpaqueArray]],
        given: Buffers,
    ) -> None:
        self._context, self._copies, self._given = context, copies, given
        self._results = outputs
        self.inputs = inputs
        self.outputs = {**outputs, **given}

    def run(self) -> dict[str, OpaqueArray]:
        """Run once more; returns `outputs`."""
        for stage, array in self._copies:
            np.copyto(stage, array)
        self._context.run()
        for name, array in self._given.items():
            np.copyto(array, self._results[name])
        return self.outputs


def _staged(
    specs: tuple[TensorSpec, ...],
    arrays: list[OpaqueArray],
    stages: list[OpaqueArray],
    used: tuple[tuple[slice, ...], ...],
) -> list[OpaqueArray]:
    """The arrays with the pitch of the capacity: copied to `stages`, unless they have it already."""
    out: list[OpaqueArray] = []
    for spec, array, stage, at in zip(specs, arrays, stages, used, strict=True):
        if array.shape == spec.shape and array.flags.c_contiguous and array.flags.aligned:
            out.append(array)
        elif spec.sizes:
            stage[at] = array
            out.append(stage)
        else:
            out.append(np.require(array, requirements=("C", "A")))
    return out


def _place_of(dim: Dim, inputs: tuple[TensorSpec, ...]) -> tuple[int, int]:
    """An input, and its axis, which have the size of the dimension."""
    whole = SizeExpr.of_dim(dim)
    for i, spec in enumerate(inputs):
        for d, size in enumerate(spec.sizes):
            if size == whole:
                return i, d
    raise UserError(f"no input has the dimension {dim.name}", hint="compile the program again")


def _used(spec: TensorSpec, values: Mapping[str, int]) -> tuple[slice, ...]:
    return tuple(slice(n) for n in spec.shape_at(values))


def _type_text(spec: TensorSpec) -> str:
    sizes = spec.sizes or (None,) * len(spec.shape)
    return f"{spec.dtype}[{', '.join(str(n if s is None else s) for n, s in zip(spec.shape, sizes, strict=True))}]"
