"""Runs a model stage by stage: native programs, and between them nodes of the host.

A stage is compiled when the types of the values it starts from are first seen, and kept for the next time; so the
stages of a model are a tree, of which a run follows one path. Nothing is recompiled while the types that the host's
nodes give stay the same.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tilewright.frontend.onnx_host import is_native
from tilewright.frontend.onnx_names import free_names, subgraphs
from tilewright.frontend.onnx_nodes import Step, nonsense
from tilewright.frontend.onnx_scope import Scope, graph_scope
from tilewright.frontend.onnx_stage import OPAQUE, Given, HostCall, Stage, StageImporter
from tilewright.graph.graph import Graph
from tilewright.ops.hostop import Body, HostValue
from tilewright.ops.opdef import Array, TensorType
from tilewright.runtime.session import Session
from tilewright.support.errors import UserError

_log = logging.getLogger("tilewright")

Build: TypeAlias = Callable[[Graph], Session]

_VARIANTS = 8  # of one stage; the least recently used is dropped


def given(value: HostValue) -> Given:
    """What is known of a value without looking at its elements."""
    return TensorType.of(value) if is_native(value) else OPAQUE


def _key(values: Sequence[HostValue]) -> tuple[object, ...]:
    return tuple((v.dtype, v.shape) if is_native(v) else None for v in values)


@dataclass(slots=True, eq=False)
class Plan:
    """A stage with its program; `known` is what its values are known to be: types, or arrays."""

    stage: Stage
    session: Session | None
    known: Mapping[str, Given | Array]
    bodies: Mapping[HostCall, Mapping[str, "Staged"]]
    after: "OrderedDict[tuple[object, ...], Plan]" = field(default_factory=OrderedDict)


class Staged:
    """The stages of a graph, or of the body of a loop or a branch. `fixed` are values known when it is made."""

    def __init__(self, scope: Scope, build: Build, fixed: Mapping[str, Array] | None = None) -> None:
        self.scope, self._build = scope, build
        self._fixed = dict(fixed or {})
        self.takes = tuple(dict.fromkeys((*scope.inputs, *scope.captured)))
        self._open = tuple(n for n in self.takes if n not in self._fixed)
        self._first: OrderedDict[tuple[object, ...], Plan] = OrderedDict()
        self._lock = threading.RLock()

    def prepare(self, types: Mapping[str, Given]) -> Plan:
        """The first stage for these types of inputs; what is not there only the host can hold."""
        known = {n: types.get(n, OPAQUE) for n in self._open}
        key = tuple((t.dtype.numpy, t.shape) if isinstance(t, TensorType) else None for t in known.values())
        return self._found(self._first, key, lambda: self._plan(self.scope.steps, {**known, **self._fixed}))

    def run(self, values: Mapping[str, HostValue]) -> list[HostValue]:
        """The outputs, given what the graph takes."""
        env: dict[str, HostValue] = {**values, **self._fixed}
        plan = self.prepare({n: given(env[n]) for n in self._open})
        while True:
            self._run_stage(plan, env)
            if not plan.stage.rest:
                return [self._output(env, name) for name in self.scope.outputs]
            names = [n for h in plan.stage.hosts for n in h.outputs if n]
            key = _key([env[n] for n in names])
            plan = self._found(plan.after, key, lambda p=plan, ns=names: self._next(p, ns, env))

    def _output(self, env: Mapping[str, HostValue], name: str) -> HostValue:
        return env[name] if name in env else self.scope.read(name)

    def _found(
        self,
        plans: "OrderedDict[tuple[object, ...], Plan]",
        key: tuple[object, ...],
        make: Callable[[], Plan],
    ) -> Plan:
        with self._lock:
            found = plans.get(key)
            if found is None:
                found = plans[key] = make()
                if len(plans) > _VARIANTS:
                    _, dropped = plans.popitem(last=False)
                    _log.info(
                        "a stage of %s has over %d variants: one is dropped", self.scope.name, _VARIANTS
                    )
                    if dropped.session is not None:
                        dropped.session.close()
            else:
                plans.move_to_end(key)
            return found

    def _plan(self, steps: Sequence[Step], known: Mapping[str, Given | Array]) -> Plan:
        importer = StageImporter(self.scope, known)
        importer.import_steps(steps)
        stage = importer.stage(self.scope.outputs)
        session = self._build(stage.graph) if stage.made else None
        after: dict[str, Given | Array] = dict(known)
        after.update((n, v if is_native(v) else OPAQUE) for n, v in stage.known.items())
        after.update((n, stage.graph.outputs[i].type) for n, i in stage.made.items())
        after.update((n, known[source]) for n, source in stage.aliases.items())
        after.update((n, OPAQUE) for n in stage.lists)
        bodies = {h: self._bodies(h, after) for h in stage.hosts}
        return Plan(stage, session, after, bodies)

    def _bodies(self, call: HostCall, known: Mapping[str, Given | Array]) -> "dict[str, Staged]":
        fixed = {n: v for n in call.captured if isinstance(v := known.get(n), np.ndarray)}
        scopes = {
            name: graph_scope(self.scope.source, graph, call.step.opsets, self.scope)
            for name, graph in subgraphs(call.step.node).items()
        }
        return {name: Staged(scope, self._build, _only(fixed, scope)) for name, scope in scopes.items()}

    def _next(self, plan: Plan, names: Sequence[str], env: Mapping[str, HostValue]) -> Plan:
        rest = plan.stage.rest
        needed = {n for s in rest for n in (*s.node.input, *free_names(s.node))} | {*self.scope.outputs}
        known = {**plan.known, **{n: given(env[n]) for n in names}}
        return self._plan(rest, {n: v for n, v in known.items() if n in needed})

    def _run_stage(self, plan: Plan, env: dict[str, HostValue]) -> None:
        stage = plan.stage
        env.update(stage.known)
        env.update((n, env[source]) for n, source in stage.aliases.items())
        if plan.session is not None:
            feeds = {v.name: env[v.name] for v in stage.graph.inputs}
            results = list(plan.session.run(feeds).values())  # pyright: ignore
            env.update((n, results[i]) for n, i in stage.made.items())
        env.update((n, [env[p] for p in pieces]) for n, pieces in stage.lists.items())
        for call in stage.hosts:
            bodies: dict[str, Body] = {name: _Body(staged, env) for name, staged in plan.bodies[call].items()}
            try:
                with nonsense(call.step):
                    results = call.run([env[n] if n else None for n in call.inputs], bodies)
            except UserError as e:
                raise call.step.error(e, []) from e
            env.update((n, v) for n, v in zip(call.outputs, results, strict=False) if n)


@dataclass(frozen=True, slots=True, eq=False)
class _Body:
    """A subgraph with what it uses of the values around it."""

    staged: Staged
    env: Mapping[str, HostValue]

    @property
    def arity(self) -> int:
        return len(self.staged.scope.inputs)

    def __call__(self, *inputs: HostValue) -> list[HostValue]:
        names = self.staged.scope.inputs
        if len(inputs) != len(names):
            raise UserError(f"a subgraph takes {len(names)} inputs and was given {len(inputs)}")
        captured = {n: self.env[n] for n in self.staged.takes if n not in names}
        return self.staged.run({**captured, **dict(zip(names, inputs, strict=True))})


def _only(fixed: Mapping[str, Array], scope: Scope) -> dict[str, Array]:
    return {n: v for n, v in fixed.items() if n in scope.captured}
