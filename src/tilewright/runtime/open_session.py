"""Runs programs whose dimensions are open.

A program is made for the largest sizes, and so is its memory (`runtime/range_program.py`). What is in use is told to
the kernels as numbers, one for each dimension. A size that was not seen before costs the evaluation of a few sums; one
that was, a look into a table. There may be narrower programs, which run where sizes are within their ranges.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tilewright.runtime.feeds import Buffers, Feeds, as_array, check_by_name, signature_text
from tilewright.runtime.machine import check_machine, check_threads, default_threads
from tilewright.runtime.open_sizes import Sized
from tilewright.runtime.open_state import State, find_pairs
from tilewright.runtime.program import dtype_of
from tilewright.runtime.range_program import OpenBound, RangeProgram
from tilewright.runtime.recycled import RecycledMemory
from tilewright.runtime.team import shared_team
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import Artifact, SizedCode, TensorSpec
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError

_KNOWN_SHAPES = 4096  # whose program is kept


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
        self._states = manifest.states
        team = shared_team(artifact.driver, self.threads)
        self._whole = RangeProgram(artifact, team, externals)
        self._programs = (*(RangeProgram(a, team) for a in artifact.narrower), self._whole)
        if any(p.is_parallel for p in self._programs):
            team.start()
        self._known: dict[tuple[tuple[int, ...], ...], tuple[RangeProgram, Sized]] = {}
        self.inputs, self.outputs = self._whole.sizes.inputs, self._whole.sizes.outputs
        self._names = [s.name for s in self.inputs]
        self._memory = RecycledMemory()
        self.capacity_bytes = sum(p.capacity_bytes for p in self._programs)  # of runs at the largest sizes

    def __repr__(self) -> str:
        """Inputs and outputs, and the open dimensions with their ranges."""
        sides = [
            signature_text([(s.name, _type_text(s)) for s in side]) for side in (self.inputs, self.outputs)
        ]
        others = len(self._programs) - 1
        more = f"; {others} more for smaller ranges" if others else ""
        return f"<OpenSession {' -> '.join(sides)}; {'; '.join(map(str, self.dims))}{more}>"

    def run(self, feeds: Feeds, outputs: Buffers | None = None) -> dict[str, OpaqueArray]:
        """Run once, for the sizes of the feeds. The caller owns the arrays returned; those given in `outputs` are
        written to and returned.
        """
        arrays = self._arrays(feeds, outputs)
        program, sized = self._program_for([a.shape for a in arrays])
        views = program.run(arrays, sized, self._memory)
        for name, array in (outputs or {}).items():
            np.copyto(array, views[name])
            views[name] = array
        return views

    def call(
        self, inputs: Sequence[OpaqueArray], outputs: Sequence[OpaqueArray], sizes: Mapping[str, int]
    ) -> None:
        """Run once where dimensions have these sizes, which inputs need not tell. Arrays are in the program's order."""
        values = {d.name: sizes[d.name] for d in self.dims}
        sized = self._whole.sizes.at(values, {i: a.shape for i, a in enumerate(inputs)})
        results = self._whole.run(inputs, sized, self._memory)
        for have, want in zip(results.values(), outputs, strict=True):
            np.copyto(want, have)

    def bind(self, feeds: Feeds, outputs: Buffers | None = None) -> "OpenBound":
        """Fix the arrays that runs read from and write to, and with them the sizes."""
        arrays = self._arrays(feeds, outputs)
        program, sized = self._program_for([a.shape for a in arrays])
        return program.bind(arrays, sized, outputs or {})

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
        whole = self._whole  # arrays of narrower programs have other pitches, and a state grows
        found = find_pairs(self.inputs, self.outputs, whole.in_place, self._states, pairs)
        return State(whole.sizes, whole.pool, found, whole.in_place, start or {}, window)

    def close(self) -> None:
        """Free arenas, and end the team if nobody else uses it."""
        for program in self._programs:
            program.pool.close()
        self._memory.clear()

    def _program_for(self, shapes: Sequence[tuple[int, ...]]) -> tuple[RangeProgram, Sized]:
        """The narrowest program that is made for inputs of these shapes. UserError if there is none."""
        key = tuple(shapes)
        found = self._known.get(key)
        if found is None:
            found = self._narrowest(shapes)
            if len(self._known) >= _KNOWN_SHAPES:
                self._known.clear()
            self._known[key] = found
        return found

    def _narrowest(self, shapes: Sequence[tuple[int, ...]]) -> tuple[RangeProgram, Sized]:
        sized = self._whole.sizes.of(shapes)
        for program in self._programs[:-1]:
            if program.manifest.fits(sized.values, self._whole.manifest):
                return program, program.sizes.of(shapes)
        return self._whole, sized

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
            self._whole.sizes.of(given)
        except UserError as e:
            return e.message
        return None


def _type_text(spec: TensorSpec) -> str:
    sizes = spec.sizes or (None,) * len(spec.shape)
    return f"{spec.dtype}[{', '.join(str(n if s is None else s) for n, s in zip(spec.shape, sizes, strict=True))}]"
