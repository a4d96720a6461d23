"""Which nodes become one kernel, as moves of tuning: other boundaries where estimates are near to each other.

The compiler fuses where one kernel is estimated to take no longer than two. Here it is asked again: with a learned
model of seconds instead of closed forms, if there is one, and with more and with less eagerness to fuse. The groups
that differ then are those that estimates are in doubt about. All of them are timed at once, in a program each, and of
each part of the graph the quickest is taken. A *part* is the least set of nodes that no program groups, or joins, with
others.
"""

from collections.abc import Callable, Iterator, Sequence

from tilewright.driver.decisions import Decision, Group, Join
from tilewright.driver.trace import ProgramTrace
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.search.default import Refine, as_stated
from tilewright.tuning.structures import MeasuredStructure, Structure

# Times as long that a kernel may be estimated to take as those that it stands for, given: nine of ten estimates are
# right within a fifth (docs/results/predicted.md), so that ratios of two are within about a third.
_EAGERNESS = {"fused more": 1.35, "fused less": 0.75}
_DOUBT = 1.03  # times, given: the least of several measurements is too small by about as much

# The trace of the groups that an eagerness makes, by the seconds that these costs say.
GroupsWith = Callable[[float, Refine], ProgramTrace]


def other_groups(
    own: ProgramTrace, groups_with: GroupsWith, seconds_model: Refine = as_stated
) -> Iterator[Structure]:
    """Structures whose groups differ from the compiler's own; the rest is for the compiler to decide."""
    seen = [frozenset(own.sections["groups"])]
    asked = {why: (eagerness, as_stated) for why, eagerness in _EAGERNESS.items()}
    if seconds_model is not as_stated:
        asked = {"fused by the model": (1.0, seconds_model), **asked}
    for why, (eagerness, refine) in asked.items():
        section = groups_with(eagerness, refine).sections["groups"]
        if frozenset(section) not in seen:
            seen.append(frozenset(section))
            yield Structure(why, ProgramTrace().with_section("groups", section))


def mixed_groups(found: Sequence[MeasuredStructure]) -> ProgramTrace | None:
    """The groups of the structure that is quickest in each part; None if that is the first in all of them."""
    parts = _parts([s.trace for s in found])
    seconds = [_seconds_by_part(s, parts) for s in found]
    best: dict[str, int] = {}
    for part in set(parts.values()):
        doubted = [s.get(part, 0.0) * (1.0 if n == 0 else _DOUBT) for n, s in enumerate(seconds)]
        best[part] = min(range(len(found)), key=doubted.__getitem__)
    if not any(best.values()):
        return None
    section: list[Decision] = []
    for n, s in enumerate(found):
        section += [d for d in _groups(s.trace) if best[parts[d.values[0]]] == n]
    return ProgramTrace().with_section("groups", tuple(section))


def _groups(trace: ProgramTrace) -> list[Group]:
    return [d for d in trace.sections["groups"] if isinstance(d, Group)]


def _units(trace: ProgramTrace) -> dict[str, set[str]]:
    """The values that each Func makes, after all joins."""
    units = {d.func: {*d.values, *d.repeated} for d in _groups(trace)}
    for d in trace.sections.get("joins", ()):
        if isinstance(d, Join):
            units[JoinFuncs(d.first, d.second).name] = units.pop(d.first) | units.pop(d.second)
    return units


def _parts(traces: Sequence[ProgramTrace]) -> dict[str, str]:
    """A value that stands for its part, by value."""
    root: dict[str, str] = {}

    def find(v: str) -> str:
        while root.setdefault(v, v) != v:
            v = root[v]
        return v

    for trace in traces:
        for values in _units(trace).values():
            first = find(min(values))
            for other in values:
                root[find(other)] = first
    return {v: find(v) for v in list(root)}


def _seconds_by_part(structure: MeasuredStructure, parts: dict[str, str]) -> dict[str, float]:
    units = _units(structure.trace)
    out: dict[str, float] = {}
    for func, seconds in structure.seconds.items():
        part = parts[min(units[func])]
        out[part] = out.get(part, 0.0) + seconds
    return out
