"""What a program is made of beside loops: other algorithms, joins and layouts; and the best of several, mixed.

A *structure* is a trace that decides groups, algorithms, joins and layouts. Those that differ from the compiler's own
in many places at once are timed as whole programs, site by site. Then each part of the program can have the structure
that was the quickest there: the parts are segments that no structure computes together with others, what they cost was
measured, and where two that hand on a buffer have it in different layouts there is the cost of converting it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tilewright.cost.stream import pass_seconds
from tilewright.driver.decisions import Algorithm, BufferLayout, ChannelsLast, Decision, Join
from tilewright.driver.passes import ProgramState, layout_decisions
from tilewright.driver.trace import ProgramTrace
from tilewright.ir.expr import Buffer
from tilewright.ir.layout import Layout
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.search.algorithms import Allows, algorithm_seconds
from tilewright.search.join import join_all
from tilewright.search.labelling import assign
from tilewright.search.layout_labels import channel_blocks, column_blocks, padded_rows
from tilewright.search.layouts import channels_last, find_images, lay_out
from tilewright.support.program import leaves
from tilewright.target.target import Target
from tilewright.tir.digest import func_digest
from tilewright.tir.func import Call, Func, Module

D = TypeVar("D", bound=Decision)

_DOUBT = 1.03  # times, given: the least of several measurements is too small by about as much
_VECTORS = (2, 4)  # of blocks of channels or columns, given: register tiles are as wide
_BYTES = 4  # of an element that blocks are counted in, given: most are f32
_RANKS = 3  # other algorithms of a Func that are tried; bound
_HOPELESS = (
    2.0  # times the estimate of the best algorithm, given: nobody tries what is estimated to take longer
)


@dataclass(frozen=True, slots=True)
class Structure:
    """`why` says in which way it differs from the compiler's own."""

    why: str
    trace: ProgramTrace


# -------------------------------------------------------------------------------------------------- other structures


def other_algorithms(
    grouped: ProgramState, own: ProgramTrace, target: Target, allows: Allows
) -> Iterator[Structure]:
    """Structures in which all Funcs that can be computed in several ways are computed in the next best, the one after
    that, … by estimate.
    """
    module = grouped.current
    now = {f: d.name for d in _of(Algorithm, own) for f in d.funcs}
    ranked: dict[str, list[str]] = {}
    options: dict[str, list[str]] = {}
    for f in module.funcs:
        if not f.alternatives:
            continue
        key = func_digest(replace(f, alternatives=()))
        if key not in ranked:
            ranked[key] = _ranked(f, target, allows)
        options[f.name] = [n for n in ranked[key] if n != now.get(f.name, "")]
    for n in range(_RANKS):
        if not any(len(found) > n for found in options.values()):
            return
        chosen = {f.name: now.get(f.name, "") for f in module.funcs}
        chosen |= {f: found[n] for f, found in options.items() if len(found) > n}
        trace = ProgramTrace().with_section("groups", own.sections["groups"])
        yield Structure(f"algorithms of rank {n + 2}", trace.with_section("algorithms", _algorithms(chosen)))


def _ranked(func: Func, target: Target, allows: Allows) -> list[str]:
    """The algorithms of a Func by estimate; what is written is ''."""
    plain = replace(func, alternatives=())
    seconds = {"": algorithm_seconds(plain, target)}
    for a in func.alternatives:
        if allows(a.error()):
            seconds[a.name] = algorithm_seconds(a.make(), target)
    best = min(seconds.values())
    return sorted((n for n, s in seconds.items() if s < _HOPELESS * best), key=lambda n: seconds[n])


def _algorithms(chosen: Mapping[str, str]) -> tuple[Algorithm, ...]:
    names = dict.fromkeys(n for n in chosen.values() if n)
    return tuple(Algorithm(n, tuple(f for f, m in chosen.items() if m == n)) for n in names)


def other_joins(chosen: ProgramState, own: ProgramTrace, target: Target) -> Iterator[Structure]:
    """No Funcs joined, and all that can be: a schedule may still leave their kernels apart."""
    base = _with(own, "groups", "algorithms")
    mine = tuple(own.sections["joins"])
    every = tuple(Join(s.first, s.second) for s in join_all(chosen.current, target))
    for why, joins in (("no joins", ()), ("all joins", every)):
        if joins != mine:
            yield Structure(why, base.with_section("joins", joins))


def other_layouts(joined: ProgramState, own: ProgramTrace, target: Target) -> Iterator[Structure]:
    """All images as the model states them, and all with their channels last; and as they are, but with longer rows, or
    in blocks of a few vectors, wherever that may be of use.
    """
    base = _with(own, "groups", "algorithms", "joins")
    module = joined.current
    images = find_images(module)
    names = {n for d in _of(ChannelsLast, own) for n in d.names}
    given = {d.buffer: d.layout for d in _of(BufferLayout, own)}
    now = {b: channels_last(len(b.shape), at) for b, at in images.items() if b.name in names}
    now |= {b: given[b.name] for b in _buffers(module) if b.name in given}
    mine = _layout_section(images, now)
    for why, layouts in (
        ("rows padded", now | _padded(module, now)),
        ("channels last", {b: channels_last(len(b.shape), at) for b, at in images.items()}),
        ("layouts as stated", {}),
        *((f"blocks of {n}", now | _in_blocks(module, images, now, n)) for n in _block_factors(target)),
    ):
        section = _layout_section(images, layouts)
        if frozenset(section) != frozenset(mine):
            yield Structure(why, base.with_section("layouts", section))


def _block_factors(target: Target) -> tuple[int, ...]:
    """Elements of blocks: as wide as register tiles are."""
    lanes = target.lanes(_BYTES)
    return tuple(n * lanes for n in _VECTORS)


def _padded(module: Module, now: Mapping[Buffer, Layout]) -> dict[Buffer, Layout]:
    laid_out, _ = lay_out(module, {}, now)
    found = padded_rows(laid_out)
    return {b: now.get(b, Layout()) + found[b.name] for b in _buffers(module) if b.name in found}


def _in_blocks(
    module: Module, images: Mapping[Buffer, int], now: Mapping[Buffer, Layout], factor: int
) -> dict[Buffer, Layout]:
    """Images whose channels are last, and matrices as they are stated."""
    last = {b: at for b, at in images.items() if now.get(b) == channels_last(len(b.shape), at)}
    matrices = column_blocks(module, factor)
    return channel_blocks(module, last, factor) | {b: x for b, x in matrices.items() if b not in now}


def _buffers(module: Module) -> list[Buffer]:
    """All of it, each once."""
    return list(dict.fromkeys(b for f in module.funcs for b in (*f.params, *f.locals)))


def _layout_section(images: Mapping[Buffer, int], layouts: Mapping[Buffer, Layout]) -> tuple[Decision, ...]:
    """With the short form where it says the same."""
    last = [b for b, at in images.items() if layouts.get(b) == channels_last(len(b.shape), at)]
    short = set(last)
    return layout_decisions(last, {b: layout for b, layout in layouts.items() if b not in short})


def _with(trace: ProgramTrace, *names: str) -> ProgramTrace:
    return ProgramTrace({n: trace.sections[n] for n in names}, trace.machine)


def _of(kind: type[D], trace: ProgramTrace) -> list[D]:
    return [d for section in trace.sections.values() for d in section if isinstance(d, kind)]


# --------------------------------------------------------------------------------------------------------- the best


@dataclass(frozen=True, slots=True)
class MeasuredStructure:
    """A structure with all its decisions, and the seconds of each of its Funcs in a run."""

    trace: ProgramTrace
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def mixed(found: Sequence[MeasuredStructure], grouped: Module, target: Target) -> tuple[ProgramTrace, float]:
    """Of each segment the decisions of the structure that is best there; and the seconds that they take together. The
    first is left where another is better by more than luck.
    `grouped` has the Funcs before algorithms are chosen and any are joined.
    """
    segments = _segments(found, [f.name for f in grouped.funcs])
    numbers = {name: n for n, segment in enumerate(segments) for name in segment}
    alone = [[0.0] * len(found) for _ in segments]
    for label, structure in enumerate(found):
        units = _units(structure.trace, numbers)
        for func, seconds in structure.seconds.items():
            alone[numbers[min(units.get(func, {func}))]][label] += seconds
    pairs = _conversions(found, grouped, numbers, target)
    doubted = [[s if n == 0 else s * _DOUBT for n, s in enumerate(costs)] for costs in alone]
    labels = assign(doubted, pairs, [0] * len(segments))
    total = sum(alone[n][x] for n, x in enumerate(labels))
    total += sum(table[labels[u]][labels[v]] for (u, v), table in pairs.items())
    return _mixed_trace(found, {f: labels[n] for f, n in numbers.items()}), total


def _units(trace: ProgramTrace, known: Iterable[str]) -> dict[str, set[str]]:
    """The Funcs that each Func is made of, after all joins."""
    units = {f: {f} for f in known}
    for d in _of(Join, trace):
        units[JoinFuncs(d.first, d.second).name] = units.pop(d.first) | units.pop(d.second)
    return units


def _segments(found: Sequence[MeasuredStructure], funcs: Sequence[str]) -> list[list[str]]:
    """Funcs that some structure joins are in one."""
    root = {f: f for f in funcs}

    def find(f: str) -> str:
        while root[f] != f:
            f = root[f]
        return f

    for structure in found:
        for units in _units(structure.trace, funcs).values():
            first, *others = (find(u) for u in units)
            for other in others:
                root[find(other)] = find(first)
    out: dict[str, list[str]] = {}
    for f in funcs:
        out.setdefault(find(f), []).append(f)
    return list(out.values())


def _conversions(
    found: Sequence[MeasuredStructure], grouped: Module, numbers: Mapping[str, int], target: Target
) -> dict[tuple[int, int], list[list[float]]]:
    """What it costs that segments have a buffer between them in different layouts: to read and write it once more."""
    layouts = [_layouts_by_name(s.trace) for s in found]
    made: dict[str, str] = {}
    pairs: dict[tuple[int, int], list[list[float]]] = {}
    for call in (c for c in leaves(grouped.program) if isinstance(c, Call)):
        func = grouped.func(call.func)
        for p, b in zip(func.params, call.args, strict=True):
            if p in func.outputs:
                made[b.name] = call.func
                continue
            u, v = numbers.get(made.get(b.name, ""), -1), numbers[call.func]
            if u in (-1, v):
                continue
            seconds = pass_seconds(2 * b.bytes, target.machine)
            at, other = (u, v) if u < v else (v, u)
            table = pairs.setdefault((at, other), [[0.0] * len(found) for _ in found])
            for x, one in enumerate(layouts):
                for y, two in enumerate(layouts):
                    table[x][y] += seconds if one.get(b.name) != two.get(b.name) else 0.0
    return pairs


def _layouts_by_name(trace: ProgramTrace) -> dict[str, str]:
    """What tells the layouts of a buffer apart; those that are not named are as stated."""
    short = {n: ChannelsLast.__name__ for d in _of(ChannelsLast, trace) for n in d.names}
    return short | {d.buffer: str(d.layout) for d in _of(BufferLayout, trace)}


def _mixed_trace(found: Sequence[MeasuredStructure], labels: Mapping[str, int]) -> ProgramTrace:
    groups = found[0].trace.sections["groups"]
    algorithms: dict[str, str] = {}
    joins: list[Join] = []
    layouts: list[ChannelsLast | BufferLayout] = []
    for label, s in enumerate(found):
        own = {f for f, n in labels.items() if n == label}
        algorithms |= {f: d.name for d in _of(Algorithm, s.trace) for f in d.funcs if f in own}
        units = {f: {f} for f in labels}
        for d in _of(Join, s.trace):
            both = units[d.first] | units[d.second]
            units[JoinFuncs(d.first, d.second).name] = both
            if both <= own:
                joins.append(d)
        layouts += [d for d in _of(ChannelsLast, s.trace) if d.group in own]
        layouts += [d for d in _of(BufferLayout, s.trace) if d.group in own]
    sections: dict[str, tuple[Decision, ...]] = {
        "groups": groups,
        "algorithms": _algorithms(algorithms),
        "joins": tuple(joins),
        "layouts": tuple(layouts),
    }
    return ProgramTrace(sections, found[0].trace.machine)
