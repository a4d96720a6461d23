"""How good labels are that are found by elimination and by moves: against an integer programme, solved by HiGHS.

python -m benchmarks.labelling                # drawn problems, and layouts of models; writes docs/results/labelling.md
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from random import Random
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.labelling_cases import COSTS, GRAPHS, Labelling, layout_costs, model_problems
from benchmarks.results import table, write
from tilewright.search.cut import cheapest
from tilewright.search.labelling import assign, by_moves, total, try_exact
from tilewright.search.layout_terms import MUST

_MODELS = ("resnet18", "resnet50", "mobilenetv2", "yolo", "unet")
_SAME = 1e-6  # of the cost: what an integer programme is solved to

_COLUMNS = (
    "graph, costs",
    "problems",
    "eliminated, %",
    "cuts: gap, %",
    "worst",
    "optimal, %",
    "assign: gap, %",
    "worst",
    "optimal, %",
    "elimination, ms",
    "cuts, ms",
    "assign, ms",
    "programme, ms",
    "open",
)
_MODEL_COLUMNS = (
    "model",
    "variables",
    "pairs",
    "one cut: gap, %",
    "cuts: gap, %",
    "assign: gap, %",
    "one cut, ms",
    "cuts, ms",
    "assign, ms",
    "programme, ms",
)

METHOD = """Each problem is solved four ways. *Elimination*: `try_exact`, if no table is too large for it. *Cuts*:
`by_moves`, α-expansion alone. *Assign*: `assign`, which is elimination where that is quick, else cuts in turns with
elimination of a part. *Programme*: an integer programme (a variable for each label, one for each pair of labels of a
pair, whose sums are those of the labels), SciPy {scipy}, HiGHS, for at most {limit:g} s on the clock. A gap is by how
much labels cost more than the cheapest: proved so by the programme or by elimination (where both do they agree, or
this stops). *Open* says how often neither did; these problems are in no gap. *Optimal*: a gap of less than a
millionth. Times are CPU time, means over problems. Drawn problems have {count} variables, and the same seeds each
time: *any* costs are random; *distances* are those of random points, times a weight; *layouts* are kernels, copies and
what must agree, with labels that cannot be."""


@dataclass(frozen=True, slots=True)
class Solved:
    """What a way to find labels found: what they cost, and how long it took."""

    cost: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Proof:
    """Labels, and what no labels cost less than."""

    labels: Solved
    least: float

    @property
    def is_closed(self) -> bool:
        return self.labels.cost == self.least


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: str
    variables: int
    least: float  # that no labels cost less than, or the cheapest known if it is open
    proof: Proof  # by the programme
    exact: Solved | None
    cuts: Solved
    assigned: Solved

    def gap(self, found: Solved) -> float:
        return found.cost / self.least - 1.0

    @property
    def is_open(self) -> bool:
        return self.exact is None and not self.proof.is_closed


def solved(find: Callable[..., list[int] | None], p: Labelling) -> Solved | None:
    begun = time.process_time()
    x = find(p.alone, p.pairs)
    seconds = time.process_time() - begun
    return None if x is None else Solved(total(x, p.alone, p.pairs), seconds)


def programme(p: Labelling, limit: float) -> Proof:
    """The cheapest labels by integer programming."""
    optimize: Any = import_module("scipy.optimize")
    sparse: Any = import_module("scipy.sparse")
    first = np.cumsum([0, *(len(costs) for costs in p.alone)]).tolist()
    costs = [c for own in p.alone for c in own]
    entries: list[tuple[int, int, float]] = []  # row, column, factor
    sums: list[float] = []

    def add(ones: Sequence[int], minus: Sequence[int], equals: float) -> None:
        entries.extend((len(sums), at, 1.0) for at in ones)
        entries.extend((len(sums), at, -1.0) for at in minus)
        sums.append(equals)

    for v in range(len(p.alone)):
        add(range(first[v], first[v + 1]), (), 1.0)
    for (u, v), rows in p.pairs.items():
        at = np.arange(len(costs), len(costs) + len(rows) * len(rows[0])).reshape(len(rows), -1)
        costs += [c for row in rows for c in row]
        for x in range(len(rows)):
            add(at[x].tolist(), [first[u] + x], 0.0)
        for y in range(len(rows[0])):
            add(at[:, y].tolist(), [first[v] + y], 0.0)
    cost = np.array(costs)
    can = cost < MUST
    unit = float(cost[can].max())
    row, column, factor = zip(*entries, strict=True)
    begun = time.process_time()
    found = optimize.milp(
        np.where(can, cost, 0.0) / unit,
        integrality=np.arange(len(costs)) < first[-1],
        bounds=optimize.Bounds(0.0, can.astype(float)),
        constraints=optimize.LinearConstraint(
            sparse.csr_array((factor, (row, column)), shape=(len(sums), len(costs))), sums, sums
        ),
        options={"time_limit": limit, "mip_rel_gap": 0.0},
    )
    seconds = time.process_time() - begun
    lower = float(found.mip_dual_bound or 0.0) * unit
    if found.x is None:
        return Proof(Solved(math.inf, seconds), lower)
    x = [int(np.argmax(found.x[first[v] : first[v + 1]])) for v in range(len(p.alone))]
    labels = Solved(total(x, p.alone, p.pairs), seconds)
    return Proof(labels, labels.cost if found.status == 0 else lower)


def compared(p: Labelling, limit: float) -> Outcome:
    proof = programme(p, limit)
    exact, cuts, assigned = solved(try_exact, p), solved(by_moves, p), solved(assign, p)
    assert cuts is not None and assigned is not None
    if exact is not None and proof.is_closed and abs(exact.cost - proof.least) > _SAME * proof.least:
        raise AssertionError(f"{p.kind}: {exact.cost} by elimination, {proof.least} by the programme")
    least = min(proof.labels.cost, cuts.cost, assigned.cost)
    if least < proof.least * (1.0 - _SAME):
        raise AssertionError(
            f"{p.kind}: labels that cost {least}, though {proof.least} is proved to be the least"
        )
    return Outcome(p.kind, len(p.alone), least, proof, exact, cuts, assigned)


def drawn(count: int, labels: Sequence[int], repeats: int) -> list[Labelling]:
    found: list[Labelling] = []
    for graph, edges in GRAPHS.items():
        for costs in COSTS:
            for k in labels:
                for n in range(repeats):
                    r = Random(f"{graph} {k} {n}")
                    p = costs(r, edges(r, count), count, k)
                    found.append(Labelling(f"{graph}, {p.kind}", p.alone, p.pairs))
    return found


def _percent(share: float) -> str:
    return "0" if share < _SAME else f"{100 * share:.2g}"


def _gaps(of: Sequence[float]) -> list[str]:
    if not of:
        return ["", "", ""]
    optimal = sum(gap < _SAME for gap in of) / len(of)
    return [_percent(statistics.fmean(of)), _percent(max(of)), f"{100 * optimal:.0f}"]


def _ms(of: Sequence[float]) -> str:
    return f"{1e3 * statistics.fmean(of):.3g}" if of else ""


def drawn_table(outcomes: Sequence[Outcome]) -> str:
    kinds: dict[str, list[Outcome]] = {}
    for o in outcomes:
        kinds.setdefault(o.kind, []).append(o)
    rows = [_row(kind, found) for kind, found in kinds.items()]
    return table(_COLUMNS, [*rows, _row("all", outcomes)])


def _row(kind: str, found: Sequence[Outcome]) -> list[str]:
    return [
        kind,
        str(len(found)),
        f"{100 * sum(o.exact is not None for o in found) / len(found):.0f}",
        *_gaps([o.gap(o.cuts) for o in found if not o.is_open]),
        *_gaps([o.gap(o.assigned) for o in found if not o.is_open]),
        _ms([o.exact.seconds for o in found if o.exact is not None]),
        _ms([o.cuts.seconds for o in found]),
        _ms([o.assigned.seconds for o in found]),
        _ms([o.proof.labels.seconds for o in found]),
        str(sum(o.is_open for o in found) or ""),
    ]


def _shown(outcomes: Sequence[Outcome], of_models: Sequence[Outcome]) -> str:
    proved, is_open = [o for o in outcomes if not o.is_open], [o for o in outcomes if o.is_open]
    by_cuts = [o.gap(o.cuts) for o in proved]
    by_assign = [o.gap(o.assigned) for o in proved if o.exact is None]
    sentences = [
        f"Of {len(outcomes)} drawn problems, {sum(o.exact is not None for o in outcomes)} are solved exactly by "
        f"elimination, and of {len(of_models)} with the graphs of models "
        f"{sum(o.exact is not None for o in of_models)}.",
        f"Cuts alone are {_percent(statistics.fmean(by_cuts))} % above the optimum on average, and "
        f"{_percent(max(by_cuts))} % at worst.",
    ]
    if by_assign:
        sentences.append(
            f"What is not eliminated is {_percent(statistics.fmean(by_assign))} % above it by cuts and elimination "
            f"in turns, and {_percent(max(by_assign))} % at worst ({len(by_assign)} problems)."
        )
    if is_open:
        ratios = [o.assigned.cost / o.proof.labels.cost for o in is_open]
        sentences.append(
            f"Of {len(is_open)} more the optimum is not known: when the time of the programme was up, its labels were "
            f"worse than these in {sum(r < 1.0 - _SAME for r in ratios)} and better in "
            f"{sum(r > 1.0 + _SAME for r in ratios)}, by at most {_percent(max(0.0, max(ratios) - 1.0))} %."
        )
    return " ".join(sentences)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("names", nargs=-1)
@click.option(
    "--count", default=100, show_default=True, help="Variables of a drawn problem.", type=click.IntRange(4)
)
@click.option("--repeats", default=3, show_default=True, help="Problems of a kind.", type=click.IntRange(1))
@click.option("--limit", default=20.0, show_default=True, help="Seconds of an integer programme.")
def main(names: tuple[str, ...], count: int, repeats: int, limit: float) -> None:
    try:
        scipy = version("scipy")
    except ModuleNotFoundError as error:
        raise click.ClickException("SciPy is not installed: it comes with tilewright[dev]") from error
    console = Console(stderr=True)

    def run(problems: Sequence[Labelling], what: str) -> list[Outcome]:
        return [compared(p, limit) for p in track(problems, what, console=console, transient=True)]

    outcomes = run(drawn(count, (2, 4, 6), repeats), "drawn")
    real = model_problems(names or _MODELS)
    stated = run([Labelling(name, p.alone, p.pairs) for name, p in real.items()], "layouts")
    more = run(
        [
            Labelling(f"{name}, {k} labels", q.alone, q.pairs)
            for name, p in real.items()
            for k in (4, 6)
            for n in range(repeats)
            for q in [layout_costs(Random(f"{name} {k} {n}"), list(p.pairs), len(p.alone), k)]
        ],
        "layouts of more kinds",
    )
    by_cut = [solved(cheapest, Labelling(name, p.alone, p.pairs)) for name, p in real.items()]
    models = table(
        _MODEL_COLUMNS,
        [
            [
                o.kind,
                str(o.variables),
                str(len(p.pairs)),
                *(_percent(o.gap(s)) for s in (c, o.cuts, o.assigned)),
                *(f"{1e3 * s.seconds:.3g}" for s in (c, o.cuts, o.assigned, o.proof.labels)),
            ]
            for o, p, c in zip(stated, real.values(), by_cut, strict=True)
            if c is not None
        ],
    )
    text, drawn_more = drawn_table(outcomes), drawn_table(more)
    click.echo("\n\n".join((text, models, drawn_more)))
    shows = _shown(outcomes, (*stated, *more))
    parts = (
        "## Drawn problems\n\nWith 2, 4 and 6 labels.",
        text,
        "## Layouts of models\n\nAs stated, or channels last. *One cut* is what chooses them today.",
        models,
        "## Models with more labels\n\nThe same variables and pairs, with *layouts* costs that are drawn.",
        drawn_more,
    )
    method = METHOD.format(scipy=scipy, limit=limit, count=count)
    click.echo(f"written to {write('labelling', 'Labels of many variables', shows, method, *parts)}")


if __name__ == "__main__":
    main()
