"""What happens between an imported graph and kernels, as one list.

Compiler, tuner, estimator and `inspect` all run this list, or a part of it. A pass either brings the program into a
normal form, or takes the decisions of its section: those of a trace that it is given, or its own. What it decides is
kept: replaying the trace makes the same program.
"""

import logging
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, TypeVar

from tilewright.driver.decisions import (
    Algorithm,
    Beside,
    BufferLayout,
    ChannelsLast,
    Decision,
    Group,
    Join,
    Kernel,
    RangeKernel,
)
from tilewright.driver.few_bits import few_bits_of
from tilewright.driver.trace import SECTIONS, ProgramTrace
from tilewright.graph import passes as graph_passes
from tilewright.graph.external import ExternalRegion
from tilewright.graph.graph import Graph, Node
from tilewright.graph.passes.boundaries import search_boundaries
from tilewright.graph.passes.fold_natively import RunGraph as RunConstants
from tilewright.graph.passes.fold_natively import fold_natively
from tilewright.graph.passes.group import FusionGroup, Grouped, Grouping
from tilewright.graph.passes.lower import lower_alone, lower_groups
from tilewright.ir.expr import Buffer
from tilewright.ir.layout import Layout
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.search.algorithms import Allows, choose_algorithms, drop_alternatives, take_algorithm
from tilewright.search.beside import find_beside, is_one_part, part_seconds, put_beside
from tilewright.search.database import Choice
from tilewright.search.default import Refine, Spaces, as_stated, choose_schedule, schedule_as, spaces
from tilewright.search.fused_seconds import try_fused_seconds
from tilewright.search.join import join_funcs
from tilewright.search.layout_choice import Component, choose_layouts
from tilewright.search.layouts import find_images, lay_out
from tilewright.search.ranges import RangeTask, SchedulePoint, find_range_schedules
from tilewright.support.artifact import SizeBox
from tilewright.support.errors import UserError
from tilewright.support.sizes import dims_in
from tilewright.target.target import Target
from tilewright.tir.digest import func_digest
from tilewright.tir.func import Func, Module
from tilewright.tir.narrow import narrowed

_log = logging.getLogger(__name__)

D = TypeVar("D", Group, Algorithm, Join, ChannelsLast, Kernel, RangeKernel, Beside)
Decisions: TypeAlias = tuple[Decision, ...]
FindTuned: TypeAlias = Callable[[str], Choice | None]  # what tuning found for the Func of a key
FindRegions: TypeAlias = Callable[[Graph], Sequence[ExternalRegion]]
OnKernel: TypeAlias = Callable[["Scheduled"], None]


@dataclass(frozen=True, slots=True)
class PassContext:
    """What decides beside the program itself. `on_kernel` is called with each schedule as soon as there is one."""

    target: Target
    allows: Allows
    tuned: FindTuned = lambda key: None
    spaces: Spaces = spaces  # that points of the trace and of tuning are of
    run_constants: RunConstants | None = None  # with native code; None: what is large stays as it is
    regions: FindRegions = lambda graph: ()  # what is left to plugins
    on_kernel: OnKernel = lambda scheduled: None
    refine: Refine = as_stated  # ranks points of schedules better than their closed form does
    eagerness: float = 1.0  # to fuse (`graph/passes/boundaries.py`)
    refine_fusion: Refine = as_stated  # has seconds of kernels, which fusion adds up

    @property
    def one_core(self) -> Target:
        """For what is decided of whole kernels, which teams share alike: kernels alone are ranked for threads."""
        return self.target.for_threads(1)


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A Func with its schedule, which is that of all Funcs that are equal to it up to renaming."""

    key: str
    func: Func
    schedule: Schedule
    is_tuned: bool = False
    box: SizeBox = ()  # the sizes that it is for, if not for all


@dataclass(frozen=True, slots=True, eq=False)
class ProgramState:
    """A program on its way through the passes."""

    graph: Graph
    groups: Grouped = ()
    owners: Mapping[str, int] = field(default_factory=dict[str, int])  # Funcs as lowered, to their group
    lowered: Module | None = None  # Funcs with their algorithms, before they are joined and laid out
    module: Module | None = None
    layouts: tuple[Component, ...] = ()  # why layouts were chosen, if they were chosen here
    kernels: tuple[Scheduled, ...] = ()
    ranges: tuple[
        tuple[tuple[str, ...], Scheduled], ...
    ] = ()  # calls, and what they run where sizes are small
    beside: tuple[tuple[str, ...], ...] = ()  # calls that a team shares together; they follow each other
    trace: ProgramTrace = field(default_factory=ProgramTrace)

    @property
    def current(self) -> Module:
        assert self.module is not None, "the graph is not lowered yet"
        return self.module


# A pass takes the decisions that it is given, or its own if there are none; it returns those taken.
PassResult: TypeAlias = tuple[ProgramState, Decisions]
RunPass: TypeAlias = Callable[[ProgramState, Decisions | None, PassContext], PassResult]


@dataclass(frozen=True, slots=True)
class Pass:
    name: str  # of its section in the trace, if it decides anything
    run: RunPass
    is_always_told: bool = True  # or only if it has decided anything


def run_passes(
    state: ProgramState,
    context: PassContext,
    given: ProgramTrace | None = None,
    *,
    until: str = "",
    after: Callable[[str], None] = lambda name: None,
) -> ProgramState:
    """Run the passes in order, up to and with `until` if it is named."""
    wanted = ProgramTrace() if given is None else given
    state = replace(state, trace=replace(state.trace, machine=str(context.target.machine)))
    for p in PASSES:
        state, taken = p.run(state, wanted.sections.get(p.name), context)
        if p.name in SECTIONS and (taken or p.is_always_told or p.name in wanted.sections):
            state = replace(state, trace=state.trace.with_section(p.name, taken))
        after(p.name)
        if p.name == until:
            break
    return state


# ------------------------------------------------------------------------------------------------------ the passes


def contract_few_bits(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """Layers of few bits as the target computes them."""
    return replace(state, graph=few_bits_of(state.graph, context.target)), ()


def fold_large(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """Constants that are worth their bytes, computed by native code."""
    run = context.run_constants
    return state if run is None else replace(state, graph=fold_natively(state.graph, run)), ()


def prepare_graph(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """Constants folded, patterns recognised, no-ops gone: the list in `graph/passes`."""
    return replace(state, graph=graph_passes.prepare(state.graph)), ()


def group_nodes(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """Nodes that become one Func."""
    graph, regions = state.graph, context.regions(state.graph)
    if given is None:
        seconds = partial(_group_seconds, graph, context.one_core, context.refine_fusion)
        several = partial(seconds, several=True)
        groups = search_boundaries(graph, regions, seconds, several, eagerness=context.eagerness)
    else:
        groups = _grouped_as(graph, regions, _only(Group, given))
    module, names = lower_groups(graph, groups)
    taken = tuple(
        Group(name, *(tuple(n.outputs[0].name for n in nodes) for nodes in (g.own, g.repeated)))
        for g, name in zip(groups, names, strict=True)
        if name and not isinstance(g, ExternalRegion)
    )
    made = {frozenset(d.values): d.func for d in taken}
    for d in _only(Group, given or ()):
        name = made.get(frozenset(d.values), "nothing that is needed")
        if name != d.func:
            raise _refused(d, f"these nodes make {name}")
    owners = {name: at for at, name in enumerate(names) if name}
    return replace(state, groups=groups, owners=owners, lowered=module, module=module), taken


def _group_seconds(
    graph: Graph, target: Target, refine: Refine, part: FusionGroup, *, several: bool = False
) -> float | None:
    """Of its kernel, if it becomes one that memory bounds; or of all of them, if it may become `several`."""
    module = lower_alone(graph, part)
    if len(module.funcs) != 1:
        return None
    constants = frozenset(c.buffer.name for c in module.constants)
    return try_fused_seconds(module.funcs[0], target, constants, several=several, refine=refine)


def _grouped_as(graph: Graph, regions: Sequence[ExternalRegion], given: Sequence[Group]) -> Grouped:
    made = {n.outputs[0].name: n for n in graph.nodes}
    wanted: list[list[Node]] = []
    for d in given:
        unknown = next((v for v in (*d.values, *d.repeated) if v not in made), None)
        if unknown is not None:
            raise _refused(d, f"no node of this model makes {unknown!r}")
        wanted.append([made[v] for v in d.values])
    grouping = Grouping(graph, regions)
    grouping.repeat(made[v] for d in given for v in d.repeated)
    for d, nodes in zip(given, wanted, strict=True):
        with _naming(d):
            grouping.take(nodes)
    return grouping.finish()


def pick_algorithms(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """How Funcs compute that may in several ways."""
    module = state.current
    if given is None:
        module, chosen = choose_algorithms(module, context.one_core, context.allows)
        names = dict.fromkeys(chosen.values())
        taken = tuple(Algorithm(n, tuple(f for f, m in chosen.items() if m == n)) for n in names)
    else:
        taken = _only(Algorithm, given)
        for d in taken:
            with _naming(d):
                for func in d.funcs:
                    module = take_algorithm(module, func, d.name, context.allows)
        module = drop_alternatives(module)
    return replace(state, lowered=module, module=module), taken


def join_kernels(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """Funcs whose blocks a schedule brings together."""
    module = state.current
    if given is None:
        module, steps = join_funcs(module, context.one_core)
        return replace(state, module=module), tuple(Join(s.first, s.second) for s in steps)
    for d in _only(Join, given):
        with _naming(d):
            module = JoinFuncs(d.first, d.second).apply(module)
    return replace(state, module=module), given


def lay_out_buffers(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """Layouts of what is between kernels, and what follows from them for copies and borders."""
    module = state.current
    images = find_images(module)
    why: tuple[Component, ...] = ()
    others: dict[Buffer, Layout] = {}
    if given is None:
        last, why = choose_layouts(module, images, context.one_core)
    else:
        last, others = _layouts_as(module, images, given)
    module, _ = lay_out(module, last, others)
    return replace(state, module=module, layouts=why), layout_decisions(last, others)


def _layouts_as(
    module: Module, images: Mapping[Buffer, int], given: Decisions
) -> tuple[dict[Buffer, int], dict[Buffer, Layout]]:
    """The images that have their channels last, and other layouts, as they are given."""
    known = {b.name: b for b in images}
    wanted: set[str] = set()
    others: dict[Buffer, Layout] = {}
    for d in given:
        match d:
            case ChannelsLast():
                names = d.names
                unknown = next((n for n in names if n not in known), None)
                if unknown is not None:
                    raise _refused(d, f"{unknown} is no buffer that may have its channels last")
            case BufferLayout():
                names = (d.buffer,)
                step = TransformLayout(d.buffer, d.layout)
                with _naming(d):
                    buffer = step.find(module)
                    if not d.layout.is_one_to_one:
                        step.apply(module)  # it depends on who reads what
                others[buffer] = d.layout
            case _:
                raise _refused(d, "it stands among decisions of layouts")
        twice = next((n for n in names if n in wanted), None)
        if twice is not None:
            raise _refused(d, f"there is another decision for {twice}")
        wanted.update(names)
    last = {b: at for b, at in images.items() if b.name in wanted and b not in others}
    return last, others


def layout_decisions(
    last: Iterable[Buffer], others: Mapping[Buffer, Layout]
) -> tuple[ChannelsLast | BufferLayout, ...]:
    """Channels last by the groups that make the buffers, then all others."""
    found: dict[str, list[str]] = {}
    for b in last:
        group, _, name = b.name.rpartition("__")
        found.setdefault(group, []).append(name)
    short = (ChannelsLast(group, tuple(names)) for group, names in found.items())
    return *short, *(BufferLayout(b.name, layout) for b, layout in others.items())


def schedule_kernels(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """The schedule of each distinct Func."""
    module = state.current
    constants = frozenset(c.buffer for c in module.constants)
    names = frozenset(b.name for b in constants)
    keys = {f.name: task_key(f, constants) for f in module.funcs}
    calls: dict[str, list[str]] = {}
    for f in module.funcs:
        calls.setdefault(keys[f.name], []).append(f.name)
    wanted = _kernels_by_key(_only(Kernel, given or ()), keys)
    kernels: list[Scheduled] = []
    taken: list[Kernel] = []
    for key, sites in calls.items():
        d = wanted.get(key)
        if d is None:
            found, d = _chosen(key, module.func(sites[0]), names, context)
        else:
            with _naming(d):
                func = module.func(d.calls[0])
                schedule = schedule_as(func, context.target, names, d.family, dict(d.knobs), context.spaces)
                for step in d.steps:
                    schedule.apply(step)
                found = Scheduled(key, func, schedule)
        found = replace(found, schedule=found.schedule.settled())
        # The first call stays the first: steps have the names of its loops.
        taken.append(replace(d, calls=tuple(dict.fromkeys((found.func.name, *sites)))))
        kernels.append(found)
        context.on_kernel(found)
    return replace(state, kernels=tuple(kernels)), tuple(taken)


def _chosen(
    key: str, func: Func, constants: frozenset[str], context: PassContext
) -> tuple[Scheduled, Kernel]:
    tuned = context.tuned(key)
    if tuned is not None:
        try:
            schedule = schedule_as(
                func, context.target, constants, tuned.rule, tuned.decisions, context.spaces
            )
            found = Kernel((func.name,), tuned.rule, tuple(tuned.decisions.items()))
            return Scheduled(key, func, schedule, is_tuned=True), found
        except UserError as e:
            _log.debug("%s: what tuning found does not apply: %s", func.name, e)
    chosen = choose_schedule(func, context.target, constants, context.refine)
    found = Kernel((func.name,), chosen.family, tuple(chosen.decisions.items()))
    return Scheduled(key, func, chosen.draft), found


def _kernels_by_key(given: Sequence[Kernel], keys: Mapping[str, str]) -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    for d in given:
        unknown = next((c for c in d.calls if c not in keys), None)
        if unknown is not None:
            raise _refused(d, f"the program has no kernel {unknown}")
        key = keys[d.calls[0]]
        other = next((c for c in d.calls if keys[c] != key), None)
        if other is not None:
            raise _refused(d, f"{other} is another kernel than {d.calls[0]}")
        if key in found:
            raise _refused(d, f"there is another decision for {d.calls[0]}: {found[key]}")
        found[key] = d
    return found


def schedule_ranges(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """Other schedules for some of the sizes that Funcs may have."""
    dims = {d.name: d for v in state.graph.inputs for d in dims_in(v.shape)}
    if not dims and not given:
        return state, ()
    names = frozenset(c.buffer.name for c in state.current.constants)
    kernels = dict(zip(_only(Kernel, state.trace.sections["kernels"]), state.kernels, strict=True))
    made: list[tuple[RangeKernel, Func, Schedule]] = []
    if given is None:
        tasks = [
            RangeTask(k.func, d.calls, SchedulePoint(d.family, dict(d.knobs))) for d, k in kernels.items()
        ]
        steps = {name: d.multiple for name, d in dims.items()}
        find_range_schedules(tasks, context.target, names, steps)
        for t in tasks:
            for s in t.found:
                most, knobs = s.most * dims[s.dim].multiple, tuple(s.point.decisions.items())
                made.append((RangeKernel(t.calls, s.dim, most, s.point.family, knobs), s.func, s.draft))
    for r in _only(RangeKernel, given or ()):
        with _naming(r):
            whole = next((k for d, k in kernels.items() if set(d.calls) == set(r.calls)), None)
            if whole is None or r.dim not in dims:
                raise _refused(r, f"{r.dim} is not open, or these are not all calls of a kernel")
            func = narrowed(whole.func, {r.dim: r.most // dims[r.dim].multiple})
            schedule = schedule_as(func, context.target, names, r.family, dict(r.knobs), context.spaces)
            for step in r.steps:
                schedule.apply(step)
            made.append((r, func, schedule))
    found: list[tuple[tuple[str, ...], Scheduled]] = []
    for r, func, schedule in made:
        key = f"{task_key(func, frozenset(c.buffer for c in state.current.constants))} of {r.dim}"
        found.append((r.calls, Scheduled(key, func, schedule.settled(), box=((r.dim, r.most),))))
        context.on_kernel(found[-1][1])
    return replace(state, ranges=tuple(found)), tuple(r for r, _, _ in made)


def share_together(state: ProgramState, given: Decisions | None, context: PassContext) -> PassResult:
    """Kernels of one part that have nothing to do with each other."""
    module = state.current
    varied = {name for calls, _ in state.ranges for name in calls}
    parts = {
        name: k.func
        for k, d in zip(state.kernels, _only(Kernel, state.trace.sections["kernels"]), strict=True)
        if is_one_part(k.schedule.func)
        for name in d.calls
        if name not in varied
    }
    if given is None:
        target = context.one_core
        seconds = {func: part_seconds(func, target) for func in dict.fromkeys(parts.values())}
        short = {name: seconds[func] for name, func in parts.items()}
        taken = tuple(map(Beside, find_beside(module, short, target)))
    else:
        taken = _only(Beside, given)
    for d in taken:
        with _naming(d):
            wrong = next((name for name in d.calls if name not in parts), None)
            if wrong is not None:
                raise _refused(d, f"{wrong} is no kernel of one part")
            module = put_beside(module, d.calls)
    return replace(state, module=module, beside=tuple(d.calls for d in taken)), taken


def task_key(func: Func, constants: Container[Buffer]) -> str:
    """The same for Funcs that are equal up to renaming and have the same params constant."""
    return func_digest(func, [f"constant {n}" for n, p in enumerate(func.params) if p in constants])


PASSES: tuple[Pass, ...] = (
    Pass("integers", contract_few_bits),  # before constants are folded: weights would be floats
    Pass("fold", fold_large),
    Pass("prepare", prepare_graph),  # a normal form: nothing to decide
    Pass("groups", group_nodes),  # nodes -> Funcs
    Pass("algorithms", pick_algorithms),  # before joining and layouts, which depend on them
    Pass("joins", join_kernels),  # before layouts: what stays inside a Func needs none
    Pass("layouts", lay_out_buffers),  # of all buffers between kernels, together
    Pass("kernels", schedule_kernels),  # each distinct Func once
    Pass("ranges", schedule_ranges, is_always_told=False),  # where dimensions are open: for few rows, say
    Pass("beside", share_together),  # once it is known which kernels have one part
)


# ------------------------------------------------------------------------------------------------------- refusals


def _only(kind: type[D], given: Decisions) -> tuple[D, ...]:
    """The decisions of a section, which are of one kind."""
    wrong = next((d for d in given if not isinstance(d, kind)), None)
    if wrong is not None:
        raise _refused(wrong, f"it stands among {kind.__name__} decisions")
    return tuple(d for d in given if isinstance(d, kind))


@contextmanager
def _naming(decision: Decision) -> Generator[None]:
    """Errors inside are the decision's."""
    try:
        yield
    except UserError as e:
        raise _refused(decision, e.message, e.hint) from None


def _refused(decision: Decision, why: str, hint: str | None = None) -> UserError:
    return UserError(
        f"the trace does not fit this program: {why}",
        where=str(decision),
        hint=hint
        or "a trace is of one model: `tilewright inspect MODEL --trace` prints what would be decided",
    )
