"""The page of results: figures of all splits, of kinds, of seconds and of ablations, as Markdown with drawings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.training.charts import scatter_chart
from tilewright.training.evaluate import Evaluation

# What was asked for: the mean regret of each split, in percent; then what is the same for all.
WANTED_APE: Mapping[str, float] = {"random": 3.5, "manual": 5.0, "family": 6.0}
WANTED_TOP10 = 1.0
WANTED_TENTH = 2.0
WANTED_MAPE, WANTED_FUSION_TAU = 8.0, 0.9
_WANTED_TAUS: Mapping[str, float] = {"stem": 0.8}
_WANTED_TAU = 0.85  # of all other kinds

_INTRODUCTION = """How well cost models choose schedules of kernels that they were not trained on. *APE* is what
choosing by a model costs: of a program, how much longer its kernels take with the schedules that the model likes best
than with the best that was timed, in percent. *Best of 10* is the same with the quickest of the ten that it likes best,
*best of a tenth* with that of a tenth of all schedules that were timed; *beyond noise*, a choice counts only where it
is slower than the best by more than their noise. *τ* is Kendall's rank correlation of the schedules of a kernel; pairs
whose times differ by less than their noise do not count. [What the model is](../learned-model.md)."""


@dataclass(frozen=True, slots=True, eq=False)
class ResultPage:
    text: str
    drawings: Mapping[str, str]  # by the name of the file, beside the page


def result_page(
    name: str,
    models: Mapping[str, Evaluation],
    ablations: Mapping[str, Evaluation],
    corpus: str,
    provenance: Sequence[str],
) -> ResultPage:
    """`models` are by name, the default first; `name` is that of the page's file, without its ending."""
    first = next(iter(models.values()))
    drawings = {
        f"{name}-seconds.svg": scatter_chart(
            "Seconds of held-out kernels, by the model", "measured, s", "predicted, s", first.points
        ),
        f"{name}-closed-form.svg": scatter_chart(
            "Seconds of held-out kernels, by the closed form",
            "measured, s",
            "predicted, s",
            first.stated_points,
        ),
    }
    parts = ["# Learned performance model", _INTRODUCTION]
    for title, found in models.items():
        parts += [f"## {title}, {found.seeds} seeds", _splits(found.as_json()), _sparing(found.as_json())]
        parts += ["### Kinds held out", _families(found.as_json())]
        parts += ["### τ by kind", _kinds(found.as_json())]
    fused = {title: f.as_json()["fusion"] for title, f in models.items() if f.fusion.errors}
    if fused:
        parts += ["## Seconds of kernels, random split", _fusion(fused)]
        parts += [f"![{file}]({file})" for file in drawings]
    if ablations:
        seeds = next(iter(ablations.values())).seeds
        parts += [f"## Ablations, {seeds} seeds", _ablations(ablations)]
    parts += ["## How this was measured", corpus, "\n".join(provenance)]
    return ResultPage("\n\n".join(parts) + "\n", drawings if fused else {})


def _splits(found: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            _percent(r["ape_mean"]),
            f"≤ {WANTED_APE[name]:g} %, below the closed form",
            _percent(r["analytical_ape_mean"]),
            _percent(r["ape_worst"]),
            _percent(r["top5_regret"]),
            _percent(r["top10_regret"]),
            _percent(r["analytical_top10_regret"]),
            _tau(r["tau"]),
            _tau(r["analytical_tau"]),
        ]
        for name, r in found["splits"].items()
    ]
    columns = (
        *("split", "APE", "wanted", "closed form", "worst program", "best of 5"),
        *(f"best of 10 (≤ {WANTED_TOP10:g} %)", "closed form", "τ", "closed form"),
    )
    return markdown_table(columns, rows)


def _sparing(found: Mapping[str, Any]) -> str:
    keys = "tenth_regret", "analytical_tenth_regret", "ape_beyond_noise", "analytical_ape_beyond_noise"
    rows = [[name, *(_percent(r[k]) for k in keys)] for name, r in found["splits"].items()]
    wanted = f"best of a tenth (≤ {WANTED_TENTH:g} %)"
    return markdown_table(("split", wanted, "closed form", "APE beyond noise", "closed form"), rows)


def _families(found: Mapping[str, Any]) -> str:
    keys = ("ape_mean", "analytical_ape_mean", "ape_worst", "top10_regret")
    rows = [
        [name, *(_percent(r[k]) for k in keys), _tau(r["tau"]), _tau(r["analytical_tau"])]
        for name, r in found["families"].items()
    ]
    columns = ("held out", "APE", "closed form", "worst program", "best of 10", "τ", "closed form")
    return markdown_table(columns, rows)


def _kinds(found: Mapping[str, Any]) -> str:
    splits: Mapping[str, Any] = found["splits"]
    kinds = sorted({k for r in splits.values() for k in r["tau_by_kind"]})
    rows = [
        [
            kind,
            f"≥ {_WANTED_TAUS.get(kind, _WANTED_TAU):g}",
            *(_tau(r["tau_by_kind"].get(kind)) for r in splits.values()),
        ]
        for kind in kinds
    ]
    return markdown_table(("kind", "wanted", *splits), rows)


def _fusion(found: Mapping[str, Any]) -> str:
    first = next(iter(found.values()))
    rows = [
        [title, _percent(r["mape"]), _percent(r["mape_all_schedules"]), _tau(r["tau"])]
        for title, r in found.items()
    ]
    rows.append(["closed form", _percent(first["analytical_mape"]), "-", _tau(first["analytical_tau"])])
    columns = (
        *("model", f"error of chosen schedules (≤ {WANTED_MAPE:g} %)", "of all schedules"),
        f"τ over kernels (≥ {WANTED_FUSION_TAU:g})",
    )
    return markdown_table(columns, rows)


def _ablations(found: Mapping[str, Evaluation]) -> str:
    rows: list[list[str]] = []
    for title, result in found.items():
        splits = result.as_json()["splits"]
        row = [title]
        for r in splits.values():
            row += [_percent(r["ape_mean"]), _percent(r["top10_regret"]), _tau(r["tau"])]
        rows.append(row)
    columns = ["trees"]
    for name in next(iter(found.values())).splits:
        columns += [name, "best of 10", "τ"]
    return markdown_table(columns, rows)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} %"


def _tau(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
