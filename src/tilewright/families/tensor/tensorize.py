"""Automatic tensorization: the best way to compute a block with the tensor intrinsics of a target.

    s = Schedule(func)
    t = auto_tensorize(s, "C", "native")       # takes the steps, if there is a mapping
    print(t.explain())                         # what was chosen, what the others would have cost, what does not fit

All intrinsics and all their mappings are ranked by a closed form (`mapping_terms`); then the cheapest is built. A
mapping that a step refuses is passed over and reported. `docs/tensorization.md` explains the method and the text.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.families.tensor.cost import RoleCycles, mapping_terms
from tilewright.families.tensor.mapping import Mapping, MappingChoice, NoMapping, mappings
from tilewright.families.tensor.materialize import apply_mapping
from tilewright.families.tensor.operand_plan import is_in_place
from tilewright.ir.expr import Expr, Load, loads
from tilewright.schedule.find import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.intrinsics import intrinsics_of
from tilewright.target.names import resolve_target
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block

_SHOWN = 5  # candidates in an explanation that are not taken; bound


@dataclass(frozen=True, slots=True)
class TensorizeCandidate:
    """An intrinsic, a mapping, and what is predicted of it."""

    intrinsic: Intrinsic
    mapping: Mapping
    parts: tuple[tuple[str, float], ...]  # of the time, in seconds
    copied: tuple[str, ...]  # operands that are copied first

    @property
    def seconds(self) -> float:
        return sum(t for _, t in self.parts)

    def __str__(self) -> str:
        return f"{self.intrinsic.name}: {self.mapping}"


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best candidates of a block, the cheapest first, and the best of each intrinsic among them; how many there
    are; what does not fit, and why.
    """

    candidates: tuple[TensorizeCandidate, ...]
    count: int
    unfit: tuple[tuple[Intrinsic, str], ...]


def tensorize_candidates(
    func: Func, block: str, target: Target, *, constants: frozenset[str] = frozenset(), limit: int = 64
) -> list[TensorizeCandidate]:
    """The `limit` cheapest mappings of a block to any intrinsic of the target, the cheapest first."""
    ranking = rank(find_block(func, block), intrinsics_of(target), target, constants, limit)
    return list(ranking.candidates[:limit])


def rank(
    block: Block,
    intrinsics: Sequence[Intrinsic],
    target: Target,
    constants: frozenset[str] = frozenset(),
    limit: int = 64,
) -> Ranking:
    """Rank all mappings of a block to these intrinsics. Copies of `constants` cost nothing when the program runs."""
    best: list[tuple[float, Intrinsic, MappingChoice, tuple[int, ...], RoleCycles]] = []
    unfit: list[tuple[Intrinsic, str]] = []
    count = 0
    for intrinsic in intrinsics:
        found = mappings(block, intrinsic)
        if isinstance(found, NoMapping):
            unfit.append((intrinsic, found.reason))
            continue
        for choice in found.choices:
            terms = mapping_terms(choice, intrinsic, target, constants)
            seconds = terms.seconds
            count += seconds.size
            for n in np.argsort(seconds, axis=None, kind="stable")[:limit]:
                at = tuple(int(i) for i in np.unravel_index(int(n), seconds.shape))
                best.append((float(seconds[at]), intrinsic, choice, at, terms))
    best.sort(key=lambda b: b[0])
    first = {b[1].name: n for n, b in reversed(list(enumerate(best)))}
    kept = [b for n, b in enumerate(best) if n < limit or first[b[1].name] == n]
    made = tuple(_candidate(block, i, choice, at, terms) for _, i, choice, at, terms in kept)
    return Ranking(made, count, tuple(unfit))


def _candidate(
    block: Block, intrinsic: Intrinsic, choice: MappingChoice, at: tuple[int, ...], terms: RoleCycles
) -> TensorizeCandidate:
    mapping = choice.mapping(at)
    names = [_named(e) for e in mapping.operands]
    parts = [
        ("work", terms.compute),
        ("padding", terms.waste),
        ("waiting", terms.far),
        ("calls", terms.calls),
        ("stores", terms.stores),
    ]
    parts += [(f"copying {n}", c) for n, c in zip(names, terms.copies, strict=True) if c[at] > 0]
    copied = [n for p, n in enumerate(names) if p and not is_in_place(p, mapping, intrinsic, block)]
    return TensorizeCandidate(
        intrinsic, mapping, tuple((n, float(t[at]) / terms.hertz) for n, t in parts), tuple(copied)
    )


# ------------------------------------------------------------------------------------------------- the chosen one


@dataclass(frozen=True, slots=True)
class Tensorization:
    """What automatic tensorization did with a block."""

    block: str
    chosen: TensorizeCandidate | None
    ranking: Ranking
    refused: tuple[
        tuple[TensorizeCandidate, str], ...
    ]  # cheaper than the chosen one, and what a step said to them

    def explain(self) -> str:
        """What was chosen, why the others lost, and why what is not among them does not fit."""
        return (
            "\n".join(itertools.chain(self._choice(), self._losers(), self._refusals(), self._unfit())) + "\n"
        )

    def _choice(self) -> Iterator[str]:
        if self.chosen is None:
            yield f"{self.block} is not tensorized: no intrinsic fits."
            return
        c = self.chosen
        yield f"{self.block} is computed by {c}"
        yield f"  {_time(c.seconds)} predicted: " + ", ".join(f"{n} {_time(t)}" for n, t in c.parts if t > 0)
        names = [_named(e) for e in c.mapping.operands[1:]]
        yield "  " + "; ".join(
            f"{n} is {'copied first' if n in c.copied else 'read in place'}" for n in names
        )
        yield f"  the best of {self.ranking.count} mappings"

    def _losers(self) -> Iterator[str]:
        """The best mapping of each other intrinsic, and other mappings of the chosen one."""
        if self.chosen is None:
            return
        same = others = equal = 0
        seen = {self.chosen.intrinsic.name}
        for c in self.ranking.candidates:
            if c is self.chosen or any(c is r for r, _ in self.refused):
                continue
            if c.intrinsic.name == self.chosen.intrinsic.name:
                is_equal = _is_equal(c, self.chosen)
                equal += is_equal
                same += not is_equal
                is_shown = not is_equal and same <= _SHOWN
            else:
                is_shown = c.intrinsic.name not in seen and others < _SHOWN
                others += is_shown
                seen.add(c.intrinsic.name)
            if is_shown:
                yield f"  +{_time(c.seconds - self.chosen.seconds)} {c}: {_difference(c, self.chosen)}"
        if equal:
            yield f"  {equal} or more other mappings to this intrinsic should take about as long"

    def _refusals(self) -> Iterator[str]:
        for c, reason in self.refused:
            yield f"  refused {c}: {reason}"

    def _unfit(self) -> Iterator[str]:
        same: dict[str, list[str]] = {}
        for i, reason in self.ranking.unfit:
            same.setdefault(reason.replace(i.name, "it"), []).append(i.name)
        for reason, names in same.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"  not {names[0]}{more}: {reason}"


def auto_tensorize(
    schedule: Schedule,
    block: str,
    target: str | Target = "native",
    *,
    constants: frozenset[str] = frozenset(),
    intrinsics: Sequence[Intrinsic] | None = None,
) -> Tensorization:
    """Compute `block` with the intrinsic and the mapping that are predicted to be the quickest.

    The block is still alone under plain loops. If nothing fits, the schedule stays as it is; `explain` says why.
    `constants` are the names of buffers whose copies are made at compile time; `intrinsics` restricts the choice.
    """
    machine = resolve_target(target) if isinstance(target, str) else target
    func = schedule.module.func_of_block(block)
    if func is None:
        raise ScheduleError(f"no block is named {block!r}", hint="print the module to see its names")
    allowed = intrinsics_of(machine) if intrinsics is None else intrinsics
    ranking = rank(find_block(func, block), allowed, machine, constants)
    refused: list[tuple[TensorizeCandidate, str]] = []
    for candidate in ranking.candidates:
        try:
            apply_mapping(schedule, block, candidate.mapping, candidate.intrinsic)
        except ScheduleError as e:
            refused.append((candidate, e.message))
            continue
        return Tensorization(block, candidate, ranking, tuple(refused))
    return Tensorization(block, None, ranking, tuple(refused))


# ----------------------------------------------------------------------------------------------------------- words


def _is_equal(a: TensorizeCandidate, b: TensorizeCandidate) -> bool:
    return abs(a.seconds - b.seconds) < 0.01 * b.seconds


def _difference(loser: TensorizeCandidate, winner: TensorizeCandidate) -> str:
    """What the loser spends more on, the most first."""
    theirs = dict(winner.parts)
    more = sorted(((t - theirs.get(n, 0.0), n) for n, t in loser.parts), reverse=True)
    gap = loser.seconds - winner.seconds
    if _is_equal(loser, winner):
        return "about the same"
    return ", ".join(f"{n} +{_time(t)}" for t, n in more[:2] if t > 0.1 * gap)


def _named(e: Expr) -> str:
    if isinstance(e, Load):
        return e.buffer.name
    return " with ".join(sorted({ld.buffer.name for ld in loads(e)}))


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
