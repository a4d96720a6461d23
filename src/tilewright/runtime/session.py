"""Runs a compiled program.

`Session.run` may be called from several Python threads at once. Each call borrows a context (an arena and call tables)
from a bounded pool, and the team of threads if it is free; results do not depend on how many threads took part.

`Session.bind` fixes the arrays. A `Bound` owns its context, so that a run is one native call.
"""

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tilewright.runtime.dtypes import numpy_dtype
from tilewright.runtime.feeds import Buffers, Feeds, Signature
from tilewright.runtime.loader import Code
from tilewright.runtime.machine import check_machine, check_threads, default_threads
from tilewright.runtime.memory import Constants
from tilewright.runtime.program import ExecutionPlan, RunContext
from tilewright.runtime.team import shared_team
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import Artifact, ExternalCode, Manifest, TensorSpec
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.support.indices import IndexCheck, examine_outputs

_NO_EXTERNALS: Mapping[str, ExternalCode] = MappingProxyType({})


class Session(Closing):
    """A loaded program.

    `threads`: how many threads a run may use, the caller's included; one for each physical core that this process may
    use unless given. `externals`: the code of the program's external calls. `weights_in_place`: use the constants where
    they are (a mapped file) instead of copying them into huge pages.
    """

    def __init__(
        self,
        artifact: Artifact,
        threads: int | None = None,
        externals: Mapping[str, ExternalCode] = _NO_EXTERNALS,
        *,
        weights_in_place: bool = False,
    ) -> None:
        self.threads = default_threads() if threads is None else check_threads(threads)
        check_machine(artifact.manifest)  # an instruction that does not exist would end the process
        self._signature = Signature(artifact.manifest.inputs, artifact.manifest.outputs)
        constants = Constants(artifact.constants, artifact.digests, in_place=weights_in_place)
        team = shared_team(artifact.driver, self.threads)
        plan = ExecutionPlan(artifact, Code(artifact.objects), constants, externals, team)
        if plan.is_parallel:
            team.start()
        self.inputs: tuple[TensorSpec, ...] = plan.inputs
        self.outputs: tuple[TensorSpec, ...] = artifact.manifest.outputs
        self._checks = artifact.manifest.checks
        self._pool = ContextPool(plan, max(2, default_threads() + 1))
        calls = [c for s in plan.segments for c in s.calls]
        self._facts = (
            f"{_count(len({c.kernel for c in calls}), 'kernel')} in {_count(len(calls), 'call')}",
            f"an arena of {plan.arena_bytes:,} bytes",
            _target(artifact.manifest),
        )

    def __repr__(self) -> str:
        """Inputs and outputs, and the threads, kernels and memory that a run uses."""
        state = ["closed"] * self._pool.is_closed
        facts = "; ".join((_count(self.threads, "thread"), *self._facts, *state))
        return f"<Session {self._signature}; {facts}>"

    def run(self, feeds: Feeds, outputs: Buffers | None = None) -> dict[str, OpaqueArray]:
        """Run once. The caller owns the arrays returned; those given in `outputs` are written to and returned."""
        inputs, results = self._signature.arrays(feeds, outputs)
        self._run(inputs, results)
        return dict(zip(self._signature.output_names, results, strict=True))

    def call(self, inputs: Sequence[OpaqueArray]) -> list[OpaqueArray]:
        """Run once on arrays of the program's types, in its order; nothing is looked up or checked. Results are new."""
        arrays = [a if (f := a.flags).c_contiguous and f.aligned else _required(a) for a in inputs]
        results = self._signature.new_outputs()
        self._run(arrays, results)
        return results

    def _run(self, inputs: list[OpaqueArray], results: list[OpaqueArray]) -> None:
        extremes = _extremes(self._checks) if self._checks else None
        pool = self._pool
        context = pool.take()
        try:
            context.attach(inputs, results if extremes is None else [*results, *extremes])
            context.run()
        finally:
            context.detach()
            pool.give(context)
        if extremes is not None:
            examine_outputs(self._checks, extremes)

    def bind(self, feeds: Feeds, outputs: Buffers | None = None) -> "Bound":
        """Fix the arrays that runs read from and write to."""
        inputs, results = self._signature.arrays(feeds, outputs)
        extremes = _extremes(self._checks)
        context = self._pool.take_away()
        context.attach(inputs, [*results, *extremes])
        named = (
            dict(zip(self._signature.input_names, inputs, strict=True)),
            dict(zip(self._signature.output_names, results, strict=True)),
        )
        return CheckedBound(context, *named, self._checks, extremes) if extremes else Bound(context, *named)

    def close(self) -> None:
        """Free arenas, and end the team if nobody else uses it. Runs in progress finish; later ones are refused.

        A `Bound` holds what it needs, and goes on working until it is dropped.
        """
        self._pool.close()


def _required(array: OpaqueArray) -> OpaqueArray:
    return np.require(array, requirements=("C", "A"))


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _target(manifest: Manifest) -> str:
    features = ", ".join(manifest.features)
    return f"for {manifest.triple}{f' with {features}' if features else ''}"


class Bound:
    """A program with its arrays fixed, for the shortest call. Use it from one Python thread at a time.

    Each run reads `inputs` as they are then, and overwrites `outputs`: copy what you want to keep. An array that was
    passed in is `inputs[name]` itself if it was contiguous and of the right dtype; otherwise that is our own copy, and
    changes of the original are not seen: write to `inputs[name]` instead.
    """

    __slots__ = ("_context", "_job", "_run_job", "inputs", "outputs")

    def __init__(
        self, context: RunContext, inputs: dict[str, OpaqueArray], outputs: dict[str, OpaqueArray]
    ) -> None:
        self._context = context
        self._job = context.only_job
        self._run_job = context.run_job
        self.inputs = inputs
        self.outputs = outputs

    def run(self) -> dict[str, OpaqueArray]:
        """Run once more; returns `outputs`."""
        if not self._job:
            self._context.run()
        elif self._run_job(self._job):
            self._context.revive()
        return self.outputs


class CheckedBound(Bound):
    """A bound program whose indices are checked after each run."""

    __slots__ = ("_checks", "_extremes")

    def __init__(
        self,
        context: RunContext,
        inputs: dict[str, OpaqueArray],
        outputs: dict[str, OpaqueArray],
        checks: Sequence[IndexCheck],
        extremes: list[OpaqueArray],
    ) -> None:
        super().__init__(context, inputs, outputs)
        self._checks, self._extremes = checks, extremes

    def run(self) -> dict[str, OpaqueArray]:
        """Run once more; returns `outputs`. UserError if an index was out of range."""
        found = super().run()
        examine_outputs(self._checks, self._extremes)
        return found


def _extremes(checks: Sequence[IndexCheck]) -> list[OpaqueArray]:
    """Where a program writes the least and the greatest indices of each check."""
    return [np.empty(c.shape, numpy_dtype(c.dtype)) for c in checks for _ in range(2)]


class ContextPool:
    """At most `limit` contexts in use; more callers wait. All but the first are made when needed, and kept.

    Taking and giving back need no lock unless somebody has to wait: list operations are atomic.
    """

    def __init__(self, plan: ExecutionPlan, limit: int) -> None:
        self._plan: ExecutionPlan | None = plan
        self._limit = limit
        self._free: list[RunContext] = []
        # weak: a context that an interrupt made its borrower lose is not counted for ever
        self._all: weakref.WeakSet[RunContext] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._waiting = 0
        _pools.add(self)
        self.give(self._add())  # so that not the first run pays for it

    def _add(self) -> RunContext:
        if self._plan is None:
            raise UserError("the session is closed", hint="load the program again")
        context = RunContext(self._plan)
        self._all.add(context)
        return context

    def take_away(self) -> RunContext:
        """A context that does not come back."""
        with self._changed:
            context = self._free.pop() if self._free else self._add()
            self._all.discard(context)
            return context

    def take(self) -> RunContext:
        try:
            return self._free.pop()
        except IndexError:
            pass
        with self._changed:
            self._waiting += 1
            try:
                while not self._free and self._plan is not None and len(self._all) >= self._limit:
                    self._changed.wait(0.1)  # now and then, to find out about lost contexts
            finally:
                self._waiting -= 1
            try:
                return self._free.pop()
            except IndexError:
                return self._add()

    def give(self, context: RunContext) -> None:
        self._free.append(context)
        if self._waiting or self._plan is None:
            with self._changed:
                if self._plan is None:
                    self._free.clear()
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._plan = None
            self._free.clear()
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._plan is None

    def forget(self) -> None:
        """In a forked child: contexts that other threads had borrowed are nobody's now, and nobody holds the lock."""
        self._changed = threading.Condition()
        self._waiting = 0
        self._all = weakref.WeakSet(self._free)


_pools: "weakref.WeakSet[ContextPool]" = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_after_fork)
