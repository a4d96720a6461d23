"""From a model to a program: the one file that sees all parts.

regions = place(graph)                    what plugins run
state = run_passes(graph)                 decides, and schedules each distinct kernel (`driver/passes.py`)
kernels = lower, emit, compile            while others are still being scheduled
artifact = kernels + constants + a memory plan + the program + the trace of what was decided
"""

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from tilewright.driver.assembly import Assembly, assembled, buffers_by_call, placed, with_scheduled
from tilewright.driver.call_items import CallItems, RangeKernels
from tilewright.driver.decisions import Narrower
from tilewright.driver.kernels import Compiled, Item, KernelCompiler
from tilewright.driver.keys import compiler_digest, model_digest, target_digest
from tilewright.driver.manifest import manifest_of
from tilewright.driver.narrower import RangeFacts, narrower_programs, united
from tilewright.driver.passes import PassContext, ProgramState, Scheduled, run_passes, task_key
from tilewright.driver.shipped_model import SCHEDULES_MODEL, ModelSlot, refiner
from tilewright.driver.trace import ProgramTrace
from tilewright.driver.tuned import Tuned, as_tuned, tuned_digest
from tilewright.driver.workers import Workers
from tilewright.frontend.onnx.dim_ranges import DimRange, check_ranges_alone, dims_of
from tilewright.frontend.onnx.held_model import Model
from tilewright.frontend.onnx.load import OnnxModel, load_graph
from tilewright.frontend.onnx.open_import import following, import_at_most, import_open
from tilewright.graph.external import Plugin
from tilewright.graph.graph import Graph
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.externalise import externalise, outside_regions
from tilewright.graph.passes.fold_natively import RunGraph as RunConstants
from tilewright.ir.expr import Buffer
from tilewright.ops.accuracy import DEFAULT, Accuracy, AccuracyLike
from tilewright.placement.estimate import Estimated
from tilewright.placement.measured import Assignment
from tilewright.placement.native_region import native_or_plugin
from tilewright.placement.observed import Observed
from tilewright.placement.options import NATIVE, CalibrationSample, PluginOptions
from tilewright.placement.place import NOTHING_PLACED, Placement, Placing, RegionLost, place, region_codes
from tilewright.placement.policies import decide_placement, for_ranges
from tilewright.placement.timer import PlacementTimer
from tilewright.plugins.registry import find_plugins
from tilewright.runtime import file
from tilewright.runtime.cache import NO_CACHE, Cache, default_cache
from tilewright.runtime.machine import check_threads, default_threads, runs_here
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.runtime.weights import digests_of
from tilewright.search.database import RecordScope, default_database
from tilewright.search.default import Refine, Spaces, as_stated, spaces
from tilewright.search.narrower import narrowed_dims
from tilewright.support.arrays import OpaqueArray, Shapes
from tilewright.support.artifact import Artifact, Place, SizeBox, Slot
from tilewright.support.compiling import compiling
from tilewright.support.errors import UserError
from tilewright.support.indices import are_checked
from tilewright.support.policy import Policy
from tilewright.support.program import leaves
from tilewright.support.progress import OnProgress
from tilewright.support.sizes import Dim, Guard
from tilewright.target.names import resolve_target
from tilewright.target.target import Target
from tilewright.tir.func import Module
from tilewright.tir.memory_plan import plan_memory

_log = logging.getLogger("tilewright")

SPACES: Spaces = spaces  # in which choices of the database are points


@dataclass(frozen=True, slots=True, eq=False)
class CompiledModel:
    """A program, the seconds of each stage of its compilation, and the files with external data that it was made from
    (paths from the model's folder).
    """

    artifact: Artifact
    seconds: dict[str, float]
    external_files: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  # keys of its Funcs in the database of tuning
    tuned: str = ""  # digest of the choices from there
    trace: ProgramTrace = field(default_factory=ProgramTrace)  # what was decided

    def save(self, path: str | Path) -> None:
        """Write a `.tw` file. It is native code: load it only where you would run a program of that origin."""
        file.save(self.artifact, path)

    def session(self, threads: int | None = None, *, strict: bool = False) -> Session | OpenSession:
        make = open_session_of if self.artifact.manifest.dims else session_of
        return make(self.artifact, threads, strict=strict)


def compile(
    model: Model,
    *,
    shapes: Shapes | None = None,
    threads: int | None = None,
    target: str | Target = "native",
    accuracy: AccuracyLike | None = None,
    check_indices: bool | None = None,
    plugins: Iterable[str] = (),
    placement: str = "measured",
    strict: bool = False,
    calibration: Iterable[CalibrationSample] = (),
    progress: OnProgress | None = None,
    trace: "ProgramTrace | str | Path | None" = None,
    dims: Mapping[str, DimRange] | None = None,
) -> CompiledModel:
    """Compile a model for `target`: "native", "x86-64" (any), "x86-64-v3" (AVX2 and FMA), "x86-64-v4" (and AVX-512), or
    a Target. Kernels are ranked by one core's time; with `threads`, by the time of that many: the program still runs
    with any number. What `trace`, or the file of that name, decides is not decided again. The rest is as for `load`;
    with `dims` the program, and its file, are for all sizes in these ranges.
    """
    cache = default_cache()
    digest, bound = model_digest(model, cache), Accuracy.of(accuracy)
    options = PluginOptions.of(plugins, placement, strict, calibration=calibration)
    given = ProgramTrace.load(trace) if isinstance(trace, str | Path) else trace
    machine, checked = resolve_target(target), are_checked(check_indices)
    machine = machine if threads is None else machine.for_threads(check_threads(threads))
    if dims:
        check_ranges_alone(shapes)
        with OnnxModel(model, custom_ops=find_plugins(options.plugins), check_indices=checked) as found:
            ranges = dims_of(found.specs, dims)
            return compile_open(machine, found, ranges, digest, bound, cache, progress, options, given)
    options_of = (bound, cache, progress, None, options, checked)
    compiled = partial(compile_for, machine, model, digest, shapes, *options_of)
    if given is not None or options.plugins or checked:
        return compiled(given)
    return as_tuned(machine, digest, shapes, bound, threads, compiled)


@compiling()
def compile_for(
    target: Target,
    model: Model,
    digest: str,
    shapes: Shapes | None = None,
    accuracy: Accuracy = DEFAULT,
    cache: Cache = NO_CACHE,
    progress: OnProgress | None = None,
    workers: int | None = None,
    plugin_options: PluginOptions = NATIVE,
    check_indices: bool = False,
    trace: ProgramTrace | None = None,
) -> CompiledModel:
    """Compile the model of this digest, with objects from the cache. The program is not put there: `api.load` does."""
    with Workers(target, workers) as pool:
        made = compilation(target, accuracy, cache, pool, progress, plugin_options)
        made.given = trace
        return made.run(model, digest, shapes, check_indices)


@compiling()
def compile_open(
    target: Target,
    model: OnnxModel,
    dims: Mapping[str, Dim],
    digest: str = "",
    accuracy: Accuracy = DEFAULT,
    cache: Cache = NO_CACHE,
    progress: OnProgress | None = None,
    plugin_options: PluginOptions = NATIVE,
    trace: ProgramTrace | None = None,
    *,
    is_alone: bool = False,
) -> CompiledModel:
    """One program for all sizes of these dimensions; unless it `is_alone`, with others for parts of the ranges where
    these are better off (`search/narrower.py`). NotFollowed if shapes or plugins do not allow it.
    """
    with Workers(target) as pool:
        made = compilation(target, accuracy, cache, pool, progress, plugin_options)
        made.given = trace
        made.read_open(model, dims)
        whole = made.run_read(model, digest)
        return whole if is_alone else made.with_narrower(whole, model, dims, digest)


@compiling()
def compile_graph(
    target: Target,
    graph: Graph,
    accuracy: Accuracy = DEFAULT,
    cache: Cache = NO_CACHE,
    progress: OnProgress | None = None,
    plugin_options: PluginOptions = NATIVE,
    assignment: Assignment | None = None,
    placing: Placing | None = None,
    pool: Workers | None = None,
    is_run_once: bool = False,
) -> CompiledModel:
    """Compile a part of a model (nodes between those that the host runs, a region that a plugin gave up). If placement
    is decided already, `assignment` is the result and `placing` what it was decided with. `pool` compiles, if the
    caller has one. For a graph that `is_run_once` no constants are folded, and schedules have the closed forms' rank.
    """
    with Workers(target) if pool is None else nullcontext(pool) as workers:
        made = compilation(target, accuracy, cache, workers, progress, plugin_options)
        made.assignment, made.placing, made.is_run_once = assignment, placing, is_run_once
        return made.run_graph(graph, "")


def runner(target: Target, accuracy: Accuracy, cache: Cache, pool: Workers | None = None) -> RunConstants:
    """Runs a part of a graph once; if code for the target does not run here, its results are unknown."""

    def run(part: Graph, feeds: Mapping[str, OpaqueArray]) -> Mapping[str, OpaqueArray]:
        made = compile_graph(target, part, accuracy, cache, pool=pool, is_run_once=True)
        with session_of(made.artifact) as session:
            return session.run(feeds)

    return run


def session_of(artifact: Artifact, threads: int | None = None, *, strict: bool = False) -> Session:
    """A session of a program, with its plugins. What a plugin gives up is compiled for the target of the program."""
    return Session(artifact, threads, native_or_plugin(artifact, threads, _compiled_here, strict=strict))


def open_session_of(artifact: Artifact, threads: int | None = None, *, strict: bool = False) -> OpenSession:
    """The same of a program with open dimensions."""
    return OpenSession(artifact, threads, native_or_plugin(artifact, threads, _compiled_here, strict=strict))


def _compiled_here(graph: Graph, accuracy: Accuracy) -> Artifact:
    return compile_graph(resolve_target("native"), graph, accuracy, default_cache()).artifact


def learned_refiner(slot: ModelSlot, cache: Cache) -> Refine:
    """Costs by the learned model that is in use for this, if there is one."""
    return refiner(slot, cache, _scorer)


def _scorer(path: Path, target: Target) -> Artifact:
    return compile_graph(target, load_graph(path, None), is_run_once=True).artifact


def compilation(
    target: Target,
    accuracy: Accuracy,
    cache: Cache,
    pool: Workers,
    progress: OnProgress | None,
    plugin_options: PluginOptions = NATIVE,
) -> "Compilation":
    return Compilation(
        target, accuracy, KernelCompiler(target, cache, pool), Tuned(target), pool, progress, plugin_options
    )


@dataclass(slots=True)
class Compilation:
    target: Target
    accuracy: Accuracy
    compiler: KernelCompiler
    tuned: Tuned
    pool: Workers
    progress: OnProgress | None
    plugin_options: PluginOptions = NATIVE
    assignment: Assignment | None = None
    placing: Placing | None = None
    is_run_once: bool = False
    given: ProgramTrace | None = None
    guards: tuple[Guard, ...] = ()
    imported: Graph | None = None  # with open sizes
    largest: Graph | None = None  # as it is for the largest sizes, if placement has to be decided
    placement: Placement = NOTHING_PLACED
    state: ProgramState | None = None
    scheduled: Module | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    items: CallItems = field(default_factory=lambda: CallItems({}))
    nodes: Assembly = ()
    slots: dict[Buffer, Slot] = field(default_factory=dict[Buffer, Slot])

    def run(self, model: Model, digest: str, shapes: Shapes | None, check_indices: bool) -> CompiledModel:
        start = time.perf_counter()
        self._tell("import", 0, 1)
        opened: list[str] = []
        others = find_plugins(self.plugin_options.plugins)
        graph = load_graph(model, shapes, opened=opened, custom_ops=others, check_indices=check_indices)
        self.seconds["import"] = time.perf_counter() - start
        return replace(self.run_graph(graph, digest), external_files=tuple(sorted(opened)))

    def read_open(self, model: OnnxModel, dims: Mapping[str, Dim]) -> None:
        """Import for these ranges."""
        self.plugin_options = for_ranges(self.plugin_options)
        start = time.perf_counter()
        self._tell("import", 0, 1)
        found = import_open(model, dims)
        if self.plugin_options.plugins and self.plugin_options.policy is not Policy.GREEDY:
            self.largest = import_at_most(model, dims)
        self.seconds["import"], self.guards = time.perf_counter() - start, found.guards
        self.imported = eliminate_dead(found.graph) if self.plugin_options.plugins else found.graph

    def run_read(self, model: OnnxModel, digest: str) -> CompiledModel:
        """Compile what was imported."""
        assert self.imported is not None
        with following(self.guards):
            made = self.run_graph(self.imported, digest)
        return replace(made, external_files=tuple(sorted(model.opened)))

    def narrower(self, dims: Mapping[str, Dim]) -> tuple[tuple[Narrower, ProgramTrace], ...]:
        """The programs for parts of these ranges that what was imported shall have. Plugins compile for all sizes."""
        assert self.imported is not None
        has_plugins = bool(self.plugin_options.plugins)
        return () if has_plugins else narrower_programs(self.imported, dims, self.given)

    def with_narrower(
        self, whole: CompiledModel, model: OnnxModel, dims: Mapping[str, Dim], digest: str
    ) -> CompiledModel:
        """The program for all sizes, and with it those for parts of the ranges."""
        others = self.narrower(dims)
        if not others and (self.given is None or self.given.narrower is None):
            return whole
        parts = [whole]
        for box, trace in others:
            part = compilation(self.target, self.accuracy, self.compiler.cache, self.pool, self.progress)
            part.given = trace
            part.read_open(model, narrowed_dims(dims, box.box))
            parts.append(part.run_read(model, digest))
        facts = [RangeFacts(p.artifact, p.trace, p.tasks, p.seconds) for p in parts]
        every = united(facts[0], [box for box, _ in others], facts[1:])
        return replace(whole, **every._asdict(), tuned=tuned_digest(self.target, every.tasks))

    def run_graph(self, graph: Graph, digest: str) -> CompiledModel:
        start = time.perf_counter()

        def stage(name: str) -> None:
            nonlocal start
            now = time.perf_counter()
            self.seconds[name], start = now - start, now

        if self.plugin_options.plugins:
            self._tell("plugins", 0, 1)
            self.placement = self._placed(graph)
            graph = externalise(graph, [p.region for p in self.placement.regions])
            stage("plugins")
        state = self.state = self._planned(graph)
        module = state.current
        self.items = CallItems({c.buffer: c.value for c in module.constants})
        compiled = self._finished(module)
        self.scheduled = with_scheduled(module, {name: c.scheduled for name, c in compiled.items()})
        self.seconds |= self.compiler.seconds
        start = time.perf_counter()
        ranges = self._ranges(state)
        self.nodes = assembled(
            module.program,
            lambda call: self.items.of(call, compiled[call.func], ranges.get(call.func, ())),
            state.beside,
        )
        stage("constants")
        artifact = self._artifact(state, self.nodes, digest)
        stage("link")
        self.tuned.close()
        tuned = sum(k.is_tuned for k in state.kernels)
        if tuned:
            _log.info("tuned: %d kernels from the database", tuned)
        return CompiledModel(artifact, self.seconds, (), self.compiler.tasks, self.tuned.digest, state.trace)

    def _planned(self, graph: Graph) -> ProgramState:
        """The program after all passes. Kernels are being compiled by then."""
        keys = {p.region.key for p in self.placement.regions}
        done = 0
        start = time.perf_counter()

        def started(kernel: Scheduled) -> None:
            nonlocal done
            self.compiler.start(kernel)
            done += 1
            self._tell("kernels", done, done + 1)

        def after(name: str) -> None:
            nonlocal start
            now = time.perf_counter()
            self.seconds[name], start = now - start, now
            self._tell(name, 1, 1)

        can_fold = not self.is_run_once and runs_here(self.target.triple, self.target.features)
        context = PassContext(
            self.target,
            self.accuracy.allows,
            self.tuned.choice,
            SPACES,
            runner(self.target, self.accuracy, self.compiler.cache, self.pool) if can_fold else None,
            lambda graph: outside_regions(graph, keys),
            started,
            as_stated if self.is_run_once else learned_refiner(SCHEDULES_MODEL, self.compiler.cache),
        )
        state = run_passes(ProgramState(graph), context, self.given, after=after)
        self.seconds["kernels"] -= self.compiler.seconds["lower"] + self.compiler.seconds["emit"]
        return state

    def _finished(self, module: Module) -> dict[str, Compiled]:
        constants = frozenset(self.items.values)
        return {f.name: self.compiler.finish(task_key(f, constants)) for f in module.funcs}

    def _ranges(self, state: ProgramState) -> dict[str, RangeKernels]:
        """What Funcs run where sizes are small."""
        found: dict[str, list[tuple[SizeBox, Compiled]]] = {}
        for names, scheduled in state.ranges:
            for name in names:
                found.setdefault(name, []).append((scheduled.box, self.compiler.finish(scheduled.key)))
        return {**found}

    def _placed(self, graph: Graph) -> Placement:
        plugins, options = self._plugins(), self.plugin_options
        if self.placing is not None:
            return place(graph, plugins, options, self.placing, self.assignment)
        threads = default_threads() if options.threads is None else options.threads

        def placing_of(graph: Graph) -> Placing:
            native = Estimated(graph, self.target.for_threads(1), threads, self.accuracy)
            seen = Observed(graph, options.calibration, self._native) if options.calibration else None
            return stack.enter_context(Placing(options, threads, native, seen))

        versions = {p.name: p.version for p in plugins}
        scope = RecordScope(target_digest(self.target), compiler_digest())
        with ExitStack() as stack:
            placing = placing_of(graph)
            at_most = None if self.largest is None else (self.largest, placing_of(self.largest))
            build = partial(self._tried, placing if at_most is None else at_most[1])
            tell = partial(self._tell, "plugins")
            bench = PlacementTimer(build, default_database(), scope, threads, versions, strict=options.strict)
            return decide_placement(graph, plugins, options, placing, bench, tell, at_most)

    def _plugins(self) -> list[Plugin]:
        """Those that the user asked for, and that take models of this kind."""
        found = find_plugins(self.plugin_options.plugins)
        able = [p for p in found if p.capabilities.dynamic_shapes or not self.plugin_options.is_open]
        for p in found:
            if p not in able:
                _log.warning("%s gets nothing: it does not compile for shapes that are left open", p.name)
        return able

    def _native(self, graph: Graph) -> Session | OpenSession:
        return compile_graph(self.target, graph, self.accuracy, self.compiler.cache).session()

    def _tried(self, placing: Placing, graph: Graph, assignment: Assignment) -> Session | None:
        """A session of a graph, to be timed; None if plugins take nothing of what is assigned to them. A plugin that
        fails must not be timed as what native code does in its place.
        """
        plugin_options = self.plugin_options if assignment else NATIVE
        try:
            made = compile_graph(
                self.target,
                replace(graph, checks=None),  # numbers that are made up may make wrong indices
                self.accuracy,
                self.compiler.cache,
                plugin_options=plugin_options,
                assignment=assignment,
                placing=placing,
                pool=self.pool,
            )
        except RegionLost:
            raise
        except UserError:  # an operator that is left to native code, which does not know it
            return None
        is_of_use = made.artifact.regions or not assignment
        return session_of(made.artifact, placing.threads, strict=True) if is_of_use else None

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    # ------------------------------------------------------------------------------------------- the program

    def _artifact(self, state: ProgramState, nodes: Assembly, digest: str) -> Artifact:
        module = state.current
        in_place = {p.region.key for p in self.placement.regions if p.plugin.capabilities.in_place}
        times = buffers_by_call(nodes, in_place)
        used = dict.fromkeys(b for t in times for b in t)
        constants = [b for b in used if b in self.items.values]
        plan = plan_memory(
            times, (*module.temps, *(b for b in self.items.shared if b not in self.items.values))
        )
        slots = self.slots = {b: Slot(Place.ARENA, at) for b, at in plan.offsets.items()}
        for where, group in (
            (Place.INPUT, module.inputs),
            (Place.OUTPUT, module.outputs),
            (Place.CONSTANT, constants),
        ):
            slots.update((b, Slot(where, n)) for n, b in enumerate(group))
        manifest = manifest_of(state, self.target, self.accuracy, digest, self.guards)
        called = {i.kernel.name: i.kernel.object for i in leaves(nodes) if isinstance(i, Item)}
        arrays = [np.asarray(self.items.values[b], order="C") for b in constants]  # also of rank 0
        regions = region_codes(self.placement, arrays)
        return Artifact(
            *(manifest, self.compiler.driver(), tuple(called.values()), tuple(arrays), plan.bytes),
            placed(nodes, slots, manifest.dims),
            regions,
            () if self.is_run_once else digests_of(arrays),
        )
