"""Runs a program whose dimensions are open.

The program is made for the largest sizes, and so is its memory: an open dimension always lies in it with the pitch of
its capacity. What is in use is told to the kernels as numbers, one for each dimension. Inputs are copied into memory of
that pitch, unless they have it; results are views of such memory. A size that was not seen before costs the evaluation
of a few sums; one that was, a look into a table.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tilewright.runtime.feeds import Buffers, Feeds, as_array, check_by_name, signature_text
from tilewright.runtime.loader import Code
from tilewright.runtime.machine import check_machine, check_threads, default_threads
from tilewright.runtime.memory import Constants, empty_aligned
from tilewright.runtime.open_sizes import OpenSizes, Sized, number_arrays
from tilewright.runtime.open_state import State, find_pairs
from tilewright.runtime.program import ExecutionPlan, RunContext, dtype_of, nbytes_of
from tilewright.runtime.recycled import RecycledMemory
from tilewright.runtime.session import ContextPool
from tilewright.runtime.team import shared_team
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import Artifact, SizedCode, TensorSpec
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError


class OpenSession(Closing):
    """A loaded program for all sizes of its dimensions. `run` may be called from several Python threads at once.
    `externals`: the code of the program's external calls.
    """

    def __init__(
        self,
        artifact: Artifact,
        threads: int | None = None,
        externals: Mapping[str, SizedCode] = MappingProxyType({}),
    ) -> None:
        manifest = artifact.manifest
        self.threads = default_threads() if threads is None else check_threads(threads)
        check_machine(manifest)
        self.dims = manifest.dims
        self._in_place = dict(manifest.in_place)
        self._states = manifest.states
        team = shared_team(artifact.driver, self.threads)
        constants = Constants(artifact.constants, artifact.digests)
        plan = ExecutionPlan(artifact, Code(artifact.objects), constants, {}, team, externals)
        if plan.is_parallel:
            team.start()
        self._sizes = OpenSizes(manifest, [c for s in plan.segments for c in s.calls])
        self.inputs, self.outputs = self._sizes.inputs, self._sizes.outputs
        self._names = [s.name for s in self.inputs]
        self._memory = RecycledMemory()
        self._staged: dict[int, list[OpaqueArray]] = {}
        self._pool = ContextPool(plan, max(2, default_threads() + 1))
        tensors = (*self.inputs, *self.outputs)
        # of a run at the largest sizes; and copies for external code, which nearly the largest need
        self.capacity_bytes = plan.arena_bytes + plan.copied_bytes + sum(map(nbytes_of, tensors))

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
        sized = self._sizes.of([a.shape for a in arrays])
        results = self._run(arrays, sized)
        views = {s.name: r[at] for s, r, at in zip(self.outputs, results, sized.outputs, strict=True)}
        for name, array in (outputs or {}).items():
            np.copyto(array, views[name])
            views[name] = array
        return views

    def call(
        self, inputs: Sequence[OpaqueArray], outputs: Sequence[OpaqueArray], sizes: Mapping[str, int]
    ) -> None:
        """Run once where dimensions have these sizes, which inputs need not tell. Arrays are in the program's order."""
        values = {d.name: sizes[d.name] for d in self.dims}
        sized = self._sizes.at(values, {i: a.shape for i, a in enumerate(inputs)})
        for have, want, at in zip(self._run(list(inputs), sized), outputs, sized.outputs, strict=True):
            np.copyto(want, have[at])

    def _run(self, arrays: list[OpaqueArray], sized: Sized) -> list[OpaqueArray]:
        """The results, with the pitch of the capacity."""
        results = [self._memory.empty(s.shape, dtype_of(s)) for s in self.outputs]
        pool = self._pool
        context = pool.take()
        try:
            inputs = self._staged_inputs(context, arrays, sized, results)
            context.use(sized.choice, sized.parts, sized.values)
            context.attach([*inputs, *number_arrays(sized)], results)
            context.run()
        finally:
            context.detach()
            pool.give(context)
        return results

    def bind(self, feeds: Feeds, outputs: Buffers | None = None) -> "OpenBound":
        """Fix the arrays that runs read from and write to, and with them the sizes."""
        arrays = self._arrays(feeds, outputs)
        sized = self._sizes.of([a.shape for a in arrays])
        context = self._pool.take_away()
        context.use(sized.choice, sized.parts, sized.values)
        results = [empty_aligned(s.shape, dtype_of(s)) for s in self.outputs]
        stages = self._new_stages()
        inputs = self._stage(arrays, stages, sized, results)
        context.attach([*inputs, *number_arrays(sized)], results)
        views = {s.name: r[at] for s, r, at in zip(self.outputs, results, sized.outputs, strict=True)}
        copies = [(c[at], a) for c, a, at in zip(inputs, arrays, sized.inputs, strict=True) if c is not a]
        return OpenBound(context, dict(zip(self._names, arrays, strict=True)), views, copies, outputs or {})

    def state(
        self,
        start: Feeds | None = None,
        *,
        pairs: Mapping[str, str] | None = None,
        window: int | None = None,
    ) -> State:
        """What one run leaves to the next (`docs/dynamic.md`). There may be any number of states at a time.

        `pairs` are outputs, each with the input of the next run that it is; by default those that append to an input,
        that are its state after a recurrence, or that have its name but for `present` in place of `past`. `start` are
        arrays of such inputs; the others begin empty, or with zeros. With a `window`, that many of the last elements
        are kept where a range ends.
        """
        found = find_pairs(self.inputs, self.outputs, self._in_place, self._states, pairs)
        return State(self._sizes, self._pool, found, self._in_place, start or {}, window)

    def close(self) -> None:
        """Free arenas, and end the team if nobody else uses it."""
        self._pool.close()
        self._memory.clear()

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

    def covers(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Is the program made for inputs of these shapes?"""
        return self.why_not(shapes) is None

    def why_not(self, shapes: Mapping[str, Sequence[int]]) -> str | None:
        """Why the program is not made for inputs of these shapes; None if it is."""
        given = [tuple(shapes[s.name]) for s in self.inputs]
        if any(len(g) != len(s.shape) for g, s in zip(given, self.inputs, strict=True)):
            return "the ranks of the inputs are others"
        try:
            self._sizes.of(given)
        except UserError as e:
            return e.message
        return None

    def _staged_inputs(
        self,
        context: RunContext,
        arrays: list[OpaqueArray],
        sized: Sized,
        results: list[OpaqueArray],
    ) -> list[OpaqueArray]:
        """The inputs with the pitch of the capacity: in memory of the context, unless they have it already."""
        own = self._staged.get(id(context))
        if own is None:
            own = self._staged[id(context)] = self._new_stages()
        return self._stage(arrays, own, sized, results)

    def _stage(
        self,
        arrays: list[OpaqueArray],
        stages: list[OpaqueArray],
        sized: Sized,
        results: list[OpaqueArray],
    ) -> list[OpaqueArray]:
        """The arrays with the pitch of the capacity: where results begin with them, or in `stages`, or as they are."""
        out: list[OpaqueArray] = []
        for i, (spec, array, stage, at) in enumerate(
            zip(self.inputs, arrays, stages, sized.inputs, strict=True)
        ):
            if i in self._in_place:
                results[self._in_place[i]][at] = array
                out.append(results[self._in_place[i]])
            elif array.shape == spec.shape and array.flags.c_contiguous and array.flags.aligned:
                out.append(array)
            elif spec.sizes:
                stage[at] = array
                out.append(stage)
            else:
                out.append(np.require(array, requirements=("C", "A")))
        return out

    def _new_stages(self) -> list[OpaqueArray]:
        return [
            np.zeros(s.shape if s.sizes and i not in self._in_place else (0,), dtype_of(s))
            for i, s in enumerate(self.inputs)
        ]


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


def _type_text(spec: TensorSpec) -> str:
    sizes = spec.sizes or (None,) * len(spec.shape)
    return f"{spec.dtype}[{', '.join(str(n if s is None else s) for n, s in zip(spec.shape, sizes, strict=True))}]"
