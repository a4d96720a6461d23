"""The rule for long reductions with few results, of which a team would have too few parts: their steps are divided.

GEMMs of few rows and columns, a softmax of one long row; what one sweep over memory sums is divided by `stream`. The
sums of chunks, and the sum of these, are Funcs of their own as far as schedules are concerned: the rules that know one
reduction apply to each. There is such a space only where it pays: teams gain much, and one core loses next to nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, prod
from typing import NamedTuple

import numpy as np

from tilewright.cost.parallel import ENOUGH_PARTS, few_parts, shared_seconds, team_seconds
from tilewright.cost.stream import stream_seconds, stream_term
from tilewright.cost.terms import Amounts, Ledger, Terms, only, scaled, scaled_to, stacked_terms, with_team
from tilewright.cost.work import block_seconds, domain
from tilewright.families.elementwise.cost import around_seconds
from tilewright.families.extract import extract_nests
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.space import gemm_space
from tilewright.families.parallel import parts_of
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.split_k.recipe import divide_reduction, divided_iter
from tilewright.families.stream.match import try_flow_graph, try_row_products
from tilewright.families.stream.space import stream_space
from tilewright.families.window.space import window_space
from tilewright.ir.expr import loads
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, IterKind, blocks

_FAMILIES = (gemm_space, window_space, stream_space)
# Bound: what is tried.
_MOST_RESULTS = 2048  # results: more of them are enough parts
_LEAST_SECONDS = 3e-6  # of reductions that are looked at
_CHUNKS = (4, 8, 16, 32, 64)  # chunks, about
_LEAST_STEPS = 16  # steps of a chunk
_WHOLE = 32  # steps: a few vectors, where it is these that are summed
_MOST_ALONE = 1.03  # of what one core needs for the whole
_MOST_SHARED = 0.85  # of what teams need for the whole


class _Sum(NamedTuple):
    """A reduction, and the iterator to divide."""

    block: Block
    over: Iter

    @property
    def results(self) -> int:
        return prod(it.extent for it in self.block.iters if it.kind is IterKind.SPATIAL)

    def chunks(self, wanted: int) -> int:
        """A number of equal chunks near to what is wanted, if there is one of whole vectors; 1 if there is none."""
        extent = self.over.extent
        most = min(extent // _LEAST_STEPS, 2 * wanted)
        found = [n for n in range(wanted // 2, most + 1) if n > 1 and extent % n == 0]
        return min(found, key=lambda n: (extent // n % _WHOLE > 0, abs(n - wanted)), default=1)


class _Time(NamedTuple):
    alone: float  # seconds on one core
    shared: float  # what teams need on average
    parts: int

    @property
    def weighed(self) -> float:
        """One core's time, as other costs have it: too few parts are a little worse."""
        return self.alone * few_parts(self.parts)

    def pays(self, whole: "_Time") -> bool:
        """It does not matter which threads the program is for: it may run with others."""
        return self.alone <= _MOST_ALONE * whole.alone and self.shared <= _MOST_SHARED * whole.shared


class _Whole(NamedTuple):
    """The Func as it is, by the family that is the best for it."""

    time: _Time
    seconds: float  # what it costs by that family


class SplitKSpace(Space):
    """Points are in the order of what teams need, as for one core all are about the same. The best costs as much less
    than the whole as it takes less time, by the cost that the family of the whole gives for that.
    """

    family = "split_k"

    def __init__(
        self,
        start: Draft,
        sums: Sequence[_Sum],
        times: dict[int, _Time],
        whole: _Whole,
        request: ScheduleRequest,
        estimate: "_Estimate",
    ) -> None:
        self._whole, self._estimate = whole, estimate
        self._start, self._sums, self._target = start, sums, request.target
        self._times, self._alone = times, request.alone
        self.knobs = (Knob("chunks", tuple(times)),)

    def points(self) -> Points:
        return np.array(list(self._times), dtype=np.int64)[:, None]

    def cost(self, points: Points) -> Costs:
        m = self._target.machine
        times = [self._times.get(int(n)) for (n,) in points]
        if m.threads > 1:
            return np.array(
                [inf if t is None else shared_seconds(t.alone, t.parts, m.threads, m) for t in times]
            )
        shared = np.array([inf if t is None else t.shared for t in times])
        best = min(self._times.values(), key=lambda t: t.shared)
        level = self._whole.seconds * best.weighed / self._whole.time.weighed
        return shared / best.shared * level

    def terms(self, points: Points) -> Terms:
        costs = self.cost(points)
        return stacked_terms(
            [self._point_terms(int(n), float(c)) for (n,), c in zip(points, costs, strict=True)]
        )

    def _point_terms(self, chunks: int, seconds: float) -> Amounts:
        time, told, threads = self._times.get(chunks), Ledger(), self._target.machine.threads
        if time is None:
            return {}
        self._estimate.divided(chunks, told)
        if threads == 1:
            return only(scaled_to(told.terms, seconds))
        share = -(-time.parts // threads) / time.parts
        return only(with_team(scaled(told.terms, share), seconds))

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        names = {b.name for b in blocks(s.func.body)}
        for one in self._sums:
            part = divide_reduction(s, one.block.name, one.over, one.chunks(decisions["chunks"]))
            for run in ({part}, _with_followers(s.func, one.block.name)):
                for step in self._alone(extract_nests(s.func, run)).trace:
                    s.apply(step)
        schedule_rest(s, names, self._target)
        return s


def _with_followers(func: Func, name: str) -> set[str]:
    """A sum of chunks, and the blocks after it that are as small."""
    order = list(blocks(func.body))
    at = next(n for n, b in enumerate(order) if b.name == name)
    run, most = {name}, domain(order[at])
    for b in order[at + 1 :]:
        if b.is_reduction or domain(b) > most:
            break
        run.add(b.name)
    return run


def split_k_space(request: ScheduleRequest) -> Space | None:
    """The space of a Func whose reductions all have few results, if it pays."""
    start = request.plain
    if start is None:
        return None
    sums: list[_Sum] = []
    for b in blocks(start.func.body):
        over = divided_iter(b) if b.is_reduction else None
        if over is not None:
            sums.append(_Sum(b, over))
        if b.is_reduction and (over is None or sums[-1].results > _MOST_RESULTS):
            return None
    if not sums or (len(sums) > 1 and min(one.results for one in sums) >= ENOUGH_PARTS):
        return None  # several are computed row by row, and a row is a part
    if len(sums) == 1 and (try_flow_graph(start.func) or try_row_products(start.func)) is not None:
        return None  # the family `stream` divides it itself
    ask = _Estimate(start, sums, request)
    if ask.roughly < _LEAST_SECONDS:
        return None
    whole = ask.whole()
    if whole is None:
        return None
    times = {n: ask.divided(n) for n in _CHUNKS if all(one.chunks(n) > 1 for one in sums)}
    paying = {n: t for n, t in times.items() if t is not None and t.pays(whole.time)}
    return SplitKSpace(start, sums, paying, whole, request, ask) if paying else None


class _Estimate:
    def __init__(self, start: Draft, sums: Sequence[_Sum], request: ScheduleRequest) -> None:
        self._start, self._sums = start, sums
        self._machine, self._lanes = request.target.machine, request.target.lanes(4)
        self._request = replace(
            request, target=request.target.for_threads(1)
        )  # families say what one core needs
        every = list(blocks(start.func.body))
        self._others = (
            around_seconds(start.func, sums[0].block.name, request.target, request.constants)
            if len(sums) == 1
            else sum(self._roughly(b) for b in every if not b.is_reduction)
        )
        self.roughly = sum(self._roughly(one.block) for one in sums)

    def _roughly(self, block: Block) -> float:
        return block_seconds(block, self._lanes, self._machine)

    def whole(self) -> _Whole | None:
        """None if no rule has a schedule, or if that has enough parts."""
        for space, decisions, seconds in self._cheapest(self._request):
            try:
                built = space.build(decisions).func
            except ScheduleError:
                continue
            parts = max(1, min(parts_of(built, one.block.name) for one in self._sums))
            if parts >= ENOUGH_PARTS:
                return None
            many = len(self._sums) > 1
            alone = self._others + self.roughly if many else self._alone(self._sums[0], seconds, parts)
            return _Whole(_Time(alone, team_seconds(alone, parts, self._machine), parts), seconds)
        return None

    def divided(self, wanted: int, told: Ledger | None = None) -> _Time | None:
        """`told` is told what its time on one core is made of."""
        total = _Time(self._others, team_seconds(self._others, ENOUGH_PARTS, self._machine), ENOUGH_PARTS)
        if told is not None:
            told.add("beside", self._others)
        for one in self._sums:
            found = self._one(one, one.chunks(wanted), told)
            if found is None:
                return None
            alone, shared = total.alone + found.alone, total.shared + found.shared
            total = _Time(alone, shared, min(total.parts, found.parts))
        return total

    def _one(self, one: _Sum, chunks: int, told: Ledger | None) -> _Time | None:
        s = self._start.branch()
        try:
            name = divide_reduction(s, one.block.name, one.over, chunks)
        except ScheduleError:
            return None
        after = self._roughly(find_block(s.func, one.block.name))
        for space, decisions, seconds in self._cheapest(
            replace(self._request, func=extract_nests(s.func, {name}))
        ):
            # Reductions in lanes take several chunks into one tile.
            parts = -(-chunks // (decisions["rows"] if space.family == "window" else 1))
            alone = self._roughly(one.block) if len(self._sums) > 1 else self._alone(one, seconds, parts)
            m = self._machine
            shared = team_seconds(alone, parts, m) + m.meeting_seconds
            if told is not None:
                self._tell(told, one, space, decisions, alone, seconds / few_parts(parts))
                told.add("team", parts * m.part_seconds + after)  # sums are added up for the sake of teams
            return _Time(alone + parts * m.part_seconds + after, shared + after, parts)
        return None

    def _tell(
        self, told: Ledger, one: _Sum, space: Space, decisions: KnobValues, alone: float, computed: float
    ) -> None:
        """Of chunks that take so long `alone`: what a family says of them, unless it takes longer to read them."""
        if len(self._sums) > 1:
            told.add("arithmetic", alone)
        elif alone > computed:
            told.add(stream_term(self._read_bytes(one), self._machine), alone)
        else:
            point = np.array([[decisions[k.name] for k in space.knobs]], np.int64)
            told.add_all(scaled_to(only(space.terms(point)), alone))

    def _cheapest(self, request: ScheduleRequest) -> Iterator[tuple[Space, KnobValues, float]]:
        """Of each family that has a schedule, with its cost."""
        for family in _FAMILIES:
            space = family(request)
            if space is not None:
                points, costs = space.ranked()
                if len(points):
                    yield space, space.decisions(points[0]), float(costs[0])

    def _alone(self, one: _Sum, seconds: float, parts: int) -> float:
        """What one core needs, by a rule that also counts how well teams can share. What is read takes its time, which
        not all rules count.
        """
        nbytes = self._read_bytes(one)
        return max(seconds / few_parts(parts), stream_seconds(nbytes, nbytes, self._machine))

    def _read_bytes(self, one: _Sum) -> int:
        return sum(b.bytes for b in {ld.buffer for ld in loads(one.block.store.value)})
