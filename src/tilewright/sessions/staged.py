"""Runs a model stage by stage: native programs, and between them nodes of the host.

A stage is planned when the types of the values it starts from are first seen, and kept for the next time; so the
stages of a model are a tree, of which a run follows one path. Nothing is compiled again while the types that the host's
nodes give stay the same.

Where they change all the time (a loop whose values grow, a choice of elements by their values), compiling for each
would cost more than it brings: from some number of programs on, a small stage is interpreted, and compiled only for
types that keep coming.

Runs may happen in several threads at once. What they share is changed under a lock, and found without it.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Protocol, TypeAlias, cast

import numpy as np
from onnx import ValueInfoProto

from tilewright.frontend.onnx.file import HOST_TYPES
from tilewright.frontend.onnx.host import is_native
from tilewright.frontend.onnx.importer import StageImporter
from tilewright.frontend.onnx.names import free_names, subgraphs
from tilewright.frontend.onnx.nodes import NONSENSE, NodeSite, nonsense_error
from tilewright.frontend.onnx.scope import ModelScope, graph_scope
from tilewright.frontend.onnx.stage import OPAQUE, Given, HostCall, ModelStage
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret_graph
from tilewright.ops.hostop import HostValue, Subgraph
from tilewright.ops.opdef import ONNX_DTYPES, TensorType
from tilewright.ops.outside import Outside
from tilewright.runtime.session import Session
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.indices import examine_outputs

_log = logging.getLogger("tilewright")

Build: TypeAlias = Callable[[Graph], Session]
StageKey: TypeAlias = tuple[object, ...]

_VARIANTS = 8  # programs of one stage
_PLANS = 256  # of one stage, interpreted ones included; the least recently used goes
_WARM = 32  # runs after which an interpreted stage is compiled
_SMALL = 1 << 24  # bytes of all values of a graph that is interpreted

_NO_BODIES: Mapping[str, Subgraph] = MappingProxyType({})
_clock = count()  # when a plan was last used: taking a number is atomic


def given(value: HostValue) -> Given:
    """What is known of a value without looking at its elements."""
    return TensorType.of(value) if is_native(value) else OPAQUE


def _key(value: HostValue) -> object:
    return (value.dtype, value.shape) if is_native(value) else None


class StageProgram(Protocol):
    """A stage's graph made ready to run: a session, or an interpreter."""

    def call(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of the graph, given its inputs, in order. Their types are those of the graph."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Interpreter:
    """Each op's numpy reference, in order."""

    graph: Graph

    def call(self, inputs: Sequence[Array]) -> list[Array]:
        names = [v.name for v in self.graph.inputs]
        with np.errstate(all="ignore"):
            results = interpret_graph(self.graph, dict(zip(names, inputs, strict=True)))
        found = list(results.values())
        checks = self.graph.checks or ()
        if checks:
            examine_outputs(checks, found[-2 * len(checks) :])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PlannedCall:
    """A node of the host, with its names at hand and its subgraphs ready."""

    call: HostCall
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bodies: "tuple[tuple[str, Staged], ...]"


@dataclass(slots=True, eq=False)
class StagePlan:
    """A stage with its program; `known` is what its values are known to be: types, or arrays."""

    stage: ModelStage
    program: StageProgram | None
    known: Mapping[str, Given | Array]
    calls: tuple[PlannedCall, ...]
    feeds: tuple[str, ...]  # what the program takes
    made: tuple[tuple[str, int], ...]  # names of what it gives, and the numbers of its outputs
    decisive: tuple[str, ...]  # values whose types decide what the next stage is
    siblings: "Variants"  # that it is one of
    after: "Variants" = field(default_factory=lambda: Variants(may_interpret=True))
    used: int = 0
    runs: int = 0

    @property
    def is_compiled(self) -> bool:
        return self.program is not None and not isinstance(self.program, Interpreter)


@dataclass(slots=True, eq=False)
class Variants:
    """The plans of one stage, by the types of the values that it starts from."""

    may_interpret: bool
    plans: dict[StageKey, StagePlan] = field(default_factory=dict[StageKey, StagePlan])

    @property
    def is_full(self) -> bool:
        return sum(p.is_compiled for p in self.plans.values()) >= _VARIANTS

    def add(self, key: StageKey, plan: StagePlan) -> None:
        self.plans[key] = plan
        plan.used = next(_clock)
        if self.may_interpret and not plan.is_compiled and plan.program is not None:
            _log.info("a stage has %d programs: for further types it is interpreted", _VARIANTS)
        self.trim()

    def trim(self) -> None:
        """Drop what was not used for longest. Sessions are not closed: a run may be about to use one."""
        for limit, group in (
            (_VARIANTS, [k for k, p in self.plans.items() if p.is_compiled]),
            (_PLANS, list(self.plans)),
        ):
            if len(group) > limit:
                del self.plans[min(group, key=lambda k: self.plans[k].used)]
                _log.info("a stage has over %d variants: one is dropped", limit)


class Staged:
    """The stages of a graph, or of the body of a loop or a branch. `fixed` are values known when it is made."""

    def __init__(
        self,
        scope: ModelScope,
        build: Build,
        fixed: Mapping[str, Array] | None = None,
        *,
        is_body: bool = False,
    ) -> None:
        self.scope, self._build = scope, build
        self._fixed: dict[str, Array] = dict(fixed or {})
        self._captured = tuple(n for n in scope.captured if n not in self._fixed)
        self._taken = (*scope.inputs, *self._captured)  # their types decide what the first stage is
        self._first = Variants(may_interpret=is_body)
        self._lock = threading.RLock()

    def prepare(self, types: Mapping[str, Given]) -> StagePlan:
        """The first stage for these types of inputs; what is not there only the host can hold."""
        known = {n: types.get(n, OPAQUE) for n in self._taken}
        key = tuple((t.dtype.numpy, t.shape) if isinstance(t, TensorType) else None for t in known.values())
        return self._first.plans.get(key) or self._start(key, known)

    def run(self, values: Mapping[str, HostValue]) -> list[HostValue]:
        """The outputs, given what the graph takes."""
        env: dict[str, HostValue] = {n: values[n] for n in self._taken}
        key = tuple([_key(v) for v in env.values()])
        if self._fixed:
            env.update(self._fixed)
        return self.follow(self.start(key, env), env)

    def within(self, values: Mapping[str, HostValue]) -> "StagedBody":
        """The graph, as it is to be called while the values around it are these."""
        around: dict[str, HostValue] = {n: values[n] for n in self._captured}
        key = tuple(_key(v) for v in around.values())
        return StagedBody(self, {**around, **self._fixed}, key)

    def start(self, key: StageKey, env: Mapping[str, HostValue]) -> StagePlan:
        """The first stage for values whose types have this key."""
        found = self._first.plans.get(key)
        if found is not None:
            return found
        return self._start(key, {n: given(env[n]) for n in self._taken})

    def follow(self, plan: StagePlan, env: dict[str, HostValue]) -> list[HostValue]:
        """Run stage after stage; all values end up in `env`."""
        self._run_stage(plan, env)
        while plan.stage.rest:
            key = tuple(_key(env[n]) for n in plan.decisive)
            plan = plan.after.plans.get(key) or self._next(plan, key, env)
            self._run_stage(plan, env)
        return [env[name] if name in env else self.scope.read(name) for name in self.scope.outputs]

    # ------------------------------------------------------------------------------------------------ planning

    def _start(self, key: StageKey, known: Mapping[str, Given]) -> StagePlan:
        return self._planned(self._first, key, self.scope.steps, {**known, **self._fixed})

    def _next(self, plan: StagePlan, key: StageKey, env: Mapping[str, HostValue]) -> StagePlan:
        rest = plan.stage.rest
        needed = {n for s in rest for n in (*s.node.input, *free_names(s.node))} | {*self.scope.outputs}
        known = {**plan.known, **{n: given(env[n]) for n in plan.decisive}}
        return self._planned(plan.after, key, rest, {n: v for n, v in known.items() if n in needed})

    def _planned(
        self, variants: Variants, key: StageKey, steps: Sequence[NodeSite], known: Mapping[str, Given | Array]
    ) -> StagePlan:
        with self._lock:
            found = variants.plans.get(key)  # another thread may have been quicker
            if found is None:
                found = self._plan(steps, known, variants)
                variants.add(key, found)
            return found

    def _plan(
        self, steps: Sequence[NodeSite], known: Mapping[str, Given | Array], siblings: Variants
    ) -> StagePlan:
        importer = StageImporter(self.scope, known)
        importer.import_steps(steps)
        stage = importer.stage(self.scope.outputs)
        for value in stage.known.values():
            _freeze(value)
        program: StageProgram | None = None
        if stage.made:
            is_cheap = siblings.may_interpret and siblings.is_full and _is_interpretable(stage.graph)
            program = Interpreter(stage.graph) if is_cheap else self._build(stage.graph)
        after: dict[str, Given | Array] = dict(known)
        after.update((n, v if is_native(v) else OPAQUE) for n, v in stage.known.items())
        after.update((n, stage.graph.outputs[i].type) for n, i in stage.made.items())
        after.update((n, known[source]) for n, source in stage.aliases.items())
        after.update((n, OPAQUE) for n in stage.lists)
        calls = tuple(
            PlannedCall(h, tuple(h.inputs), tuple(h.outputs), tuple(self._bodies(h, after).items()))
            for h in stage.hosts
        )
        feeds = tuple(v.name for v in stage.graph.inputs)
        decisive = tuple(n for c in calls for n in c.outputs if n)
        return StagePlan(stage, program, after, calls, feeds, tuple(stage.made.items()), decisive, siblings)

    def _bodies(self, call: HostCall, known: Mapping[str, Given | Array]) -> "dict[str, Staged]":
        if call.plugin:
            return {}
        fixed = {n: v for n in call.captured if isinstance(v := known.get(n), np.ndarray)}
        scopes = {
            name: graph_scope(self.scope.source, graph, call.step.opsets, self.scope)
            for name, graph in subgraphs(call.step.node).items()
        }
        return {n: Staged(s, self._build, _only(fixed, s), is_body=True) for n, s in scopes.items()}

    def _compile_after_all(self, plan: StagePlan) -> None:
        with self._lock:
            if not plan.is_compiled:
                plan.program = self._build(plan.stage.graph)
                plan.siblings.trim()

    # ------------------------------------------------------------------------------------------------- running

    def _run_stage(self, plan: StagePlan, env: dict[str, HostValue]) -> None:
        plan.used = next(_clock)
        if isinstance(plan.program, Interpreter):
            plan.runs += 1  # several threads may lose count, which does no harm
            if plan.runs > _WARM:
                self._compile_after_all(plan)
        stage, program = plan.stage, plan.program
        if stage.known:
            env.update(stage.known)
        if stage.aliases:
            for name, source in stage.aliases.items():
                env[name] = env[source]
        if program is not None:
            inputs = cast("list[Array]", [env[n] for n in plan.feeds])  # their types are what the plan is for
            results = program.call(inputs)
            for name, i in plan.made:
                env[name] = results[i]
        if stage.lists:
            for name, pieces in stage.lists.items():
                env[name] = [env[p] for p in pieces]
        for planned in plan.calls:
            if planned.call.moves_only:
                self._run_call(planned, env)
            else:
                with np.errstate(all="ignore"):
                    self._run_call(planned, env)

    def _run_call(self, planned: PlannedCall, env: dict[str, HostValue]) -> None:
        bodies = (
            {name: staged.within(env) for name, staged in planned.bodies} if planned.bodies else _NO_BODIES
        )
        inputs = [env[n] if n else None for n in planned.inputs]
        step = planned.call.step
        try:
            outputs = planned.call.run(inputs, bodies)
        except UserError as e:
            raise step.error(e, []) from e
        except NONSENSE as e:
            raise step.error(nonsense_error(step, e), []) from e
        for name, value in zip(planned.outputs, outputs, strict=False):
            if name:
                env[name] = value


@dataclass(frozen=True, slots=True, eq=False)
class StagedBody:
    """A graph with what it uses of the values around it."""

    staged: Staged
    around: Mapping[str, HostValue]
    key: StageKey  # of the types of what is around and not fixed

    @property
    def arity(self) -> int:
        return len(self.staged.scope.inputs)

    @property
    def results(self) -> int:
        return len(self.staged.scope.outputs)

    def __call__(self, *inputs: HostValue) -> list[HostValue]:
        plan, env = self._started(inputs)
        return self.staged.follow(plan, env)

    def none_of(self, output: int, *inputs: HostValue) -> Array:
        """No results of output number `output`, stacked; they would have been of its type, given such inputs."""
        plan, _ = self._started(inputs)
        scope = self.staged.scope
        known = plan.known.get(scope.outputs[output])
        if isinstance(known, TensorType):
            return np.zeros((0, *known.shape), known.dtype.numpy)
        if isinstance(known, np.ndarray):
            return np.zeros((0, *known.shape), known.dtype)
        return _none_declared(scope.declared[output])

    def _started(self, inputs: Sequence[HostValue]) -> tuple[StagePlan, dict[str, HostValue]]:
        names = self.staged.scope.inputs
        if len(inputs) != len(names):
            raise UserError(f"a subgraph takes {len(names)} inputs and was given {len(inputs)}")
        env = dict(self.around)
        env.update(zip(names, inputs, strict=True))
        return self.staged.start((*map(_key, inputs), *self.key), env), env


def _none_declared(info: ValueInfoProto) -> Array:
    """Open dimensions count as 0, and what has no type as f32."""
    declared = info.type.tensor_type
    native = ONNX_DTYPES.get(declared.elem_type)
    dtype = HOST_TYPES.get(declared.elem_type, np.dtype(np.float32)) if native is None else native.numpy
    return np.zeros((0, *(max(d.dim_value, 0) for d in declared.shape.dim)), dtype)


def _freeze(value: HostValue) -> None:
    """Runs share it, so nobody may write to it, nor to a part of it."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, list):
        for v in value:
            _freeze(v)


def _is_interpretable(graph: Graph) -> bool:
    """Is it small, and does everybody know what its nodes mean?"""
    return _bytes(graph) <= _SMALL and not any(isinstance(n.op, Outside) for n in graph.nodes)


def _bytes(graph: Graph) -> int:
    made = [v for n in graph.nodes for v in n.outputs]
    return sum(v.bytes for v in (*graph.inputs, *graph.constants, *made))


def _only(fixed: Mapping[str, Array], scope: ModelScope) -> dict[str, Array]:
    return {n: v for n, v in fixed.items() if n in scope.captured}
