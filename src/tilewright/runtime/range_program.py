"""A loaded program for ranges of sizes: its contexts, and arrays with the pitch of its capacity.

An open dimension always lies in memory with the pitch of its largest size. Inputs are copied into memory of that pitch,
unless they have it; results are views of such memory.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tilewright.runtime.feeds import Buffers
from tilewright.runtime.loader import Code
from tilewright.runtime.machine import default_threads
from tilewright.runtime.memory import Constants, empty_aligned
from tilewright.runtime.open_sizes import OpenSizes, Sized, in_use, number_arrays
from tilewright.runtime.program import ExecutionPlan, RunContext, dtype_of, nbytes_of
from tilewright.runtime.recycled import RecycledMemory
from tilewright.runtime.session import ContextPool
from tilewright.runtime.team import Team
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import Artifact, SizedCode


class RangeProgram:
    """`sizes` says what follows from the shapes of inputs. `run` may be called from several Python threads at once.
    `externals`: the code of the program's external calls.
    """

    def __init__(
        self, artifact: Artifact, team: Team, externals: Mapping[str, SizedCode] = MappingProxyType({})
    ) -> None:
        self.manifest = manifest = artifact.manifest
        self.in_place = dict(manifest.in_place)
        constants = Constants(artifact.constants, artifact.digests)
        plan = ExecutionPlan(artifact, Code(artifact.objects), constants, {}, team, externals)
        self.is_parallel = plan.is_parallel
        self.sizes = OpenSizes(manifest, [c for s in plan.segments for c in s.calls])
        self.pool = ContextPool(plan, max(2, default_threads() + 1))
        self._staged: dict[int, list[OpaqueArray]] = {}
        tensors = (*self.sizes.inputs, *self.sizes.outputs)
        # Of a run at the largest sizes; and copies for external code, which nearly the largest need.
        self.capacity_bytes = plan.arena_bytes + plan.copied_bytes + sum(map(nbytes_of, tensors))

    def run(
        self, arrays: Sequence[OpaqueArray], sized: Sized, memory: RecycledMemory
    ) -> dict[str, OpaqueArray]:
        """Run once, into arrays of `memory`."""
        outputs = self.sizes.outputs
        results = [memory.empty(s.shape, dtype_of(s)) for s in outputs]
        context = self.pool.take()
        try:
            inputs = self._staged_inputs(context, arrays, sized, results)
            context.use(sized.choice, sized.parts, sized.values)
            context.attach([*inputs, *number_arrays(sized)], results)
            context.run()
        finally:
            context.detach()
            self.pool.give(context)
        return {s.name: in_use(r, at) for s, r, at in zip(outputs, results, sized.outputs, strict=True)}

    def bind(self, arrays: Sequence[OpaqueArray], sized: Sized, outputs: Buffers) -> "OpenBound":
        """Fix the arrays that runs read from and write to, and with them the sizes."""
        context = self.pool.take_away()
        context.use(sized.choice, sized.parts, sized.values)
        results = [empty_aligned(s.shape, dtype_of(s)) for s in self.sizes.outputs]
        inputs = self._stage(arrays, self._new_stages(), sized, results)
        context.attach([*inputs, *number_arrays(sized)], results)
        made = zip(self.sizes.outputs, results, sized.outputs, strict=True)
        views = {s.name: in_use(r, at) for s, r, at in made}
        copies = [
            (in_use(c, at), a) for c, a, at in zip(inputs, arrays, sized.inputs, strict=True) if c is not a
        ]
        names = [s.name for s in self.sizes.inputs]
        return OpenBound(context, dict(zip(names, arrays, strict=True)), views, copies, outputs)

    def _staged_inputs(
        self,
        context: RunContext,
        arrays: Sequence[OpaqueArray],
        sized: Sized,
        results: Sequence[OpaqueArray],
    ) -> list[OpaqueArray]:
        """The inputs with the pitch of the capacity: in memory of the context, unless they have it already."""
        own = self._staged.get(id(context))
        if own is None:
            own = self._staged[id(context)] = self._new_stages()
        return self._stage(arrays, own, sized, results)

    def _stage(
        self,
        arrays: Sequence[OpaqueArray],
        stages: Sequence[OpaqueArray],
        sized: Sized,
        results: Sequence[OpaqueArray],
    ) -> list[OpaqueArray]:
        """The arrays with the pitch of the capacity: where results begin with them, or in `stages`, or as they are."""
        out: list[OpaqueArray] = []
        for i, (spec, array, stage, at) in enumerate(
            zip(self.sizes.inputs, arrays, stages, sized.inputs, strict=True)
        ):
            if i in self.in_place:
                results[self.in_place[i]][at] = array
                out.append(results[self.in_place[i]])
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
            np.zeros(s.shape if s.sizes and i not in self.in_place else (0,), dtype_of(s))
            for i, s in enumerate(self.sizes.inputs)
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
