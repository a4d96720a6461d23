"""`tilewright cost`: train models of how long schedules take, judge them, and see why they say what they say."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilewright.cli.command import check_exists
from tilewright.cli.machine import machine, versions
from tilewright.cli.output import milliseconds, note, print_json, print_table, write_drawing
from tilewright.driver.passes import task_key
from tilewright.driver.shipped_model import SCHEDULES_MODEL
from tilewright.learned.model_file import StoredTrees, read_trees
from tilewright.lowered import lowered
from tilewright.support.errors import UserError
from tilewright.target.target import Target, native
from tilewright.tir.func import Func
from tilewright.tir.parser import parse_func
from tilewright.training.ablations import ABLATIONS, NETWORK_ABLATIONS
from tilewright.training.corpus import Corpus
from tilewright.training.dataset import LeftOut, samples
from tilewright.training.evaluate import Evaluation, Train, judge_models
from tilewright.training.explain import ExplainedKernel, ExplainedSchedule, explain_kernel
from tilewright.training.export import write_trees
from tilewright.training.export_network import write_network
from tilewright.training.page import result_page
from tilewright.training.samples import KernelSamples
from tilewright.training.torch_network import (
    NETWORK_SCHEDULES,
    NETWORK_SECONDS,
    NetworkSettings,
    train_network,
)
from tilewright.training.trees import SCHEDULES, SECONDS, TreeSettings, train_trees


def train_model(corpus: Path, output: Path, network: str, task: str, seed: int, as_json: bool) -> None:
    found = _samples(corpus, with_graphs=network == "gnn")
    started = time.perf_counter()
    about: dict[str, Any] = {
        "task": task,
        "seed": seed,
        "rows": sum(map(len, found)),
        "kernels": len(found),
        "programs": len({s.program for s in found}),
    }
    if network == "gnn":
        size = write_network(output, train_network(found, _NETWORKS[task], seed), about)
    else:
        trained = train_trees(found, SCHEDULES if task == "schedules" else SECONDS, seed)
        stored = StoredTrees(trained.ensemble, trained.settings.is_residual, trained.guard, about)
        size = write_trees(output, stored)
    elapsed = time.perf_counter() - started
    if as_json:
        print_json(
            {"file": str(output), "bytes": size, "model": network, **about, "elapsed_seconds": elapsed}
        )
    else:
        click.echo(
            f"{output}: {network} from {about['rows']} schedules of {about['kernels']} kernels"
            f" of {about['programs']} programs, {size / 1e6:.2f} MB, in {elapsed:.0f} s"
        )


_NETWORKS = {"schedules": NETWORK_SCHEDULES, "seconds": NETWORK_SECONDS}


def evaluate_models(
    corpus: Path, seeds: int, gnn: int, page: Path | None, ablation_seeds: int, as_json: bool
) -> None:
    found = _samples(corpus, with_graphs=gnn > 0)
    models = {"Trees": judge_models(found, _trainer(SCHEDULES), _trainer(SECONDS), seeds, note)}
    if gnn:
        note("networks over graphs")
        ranking, seconds = (_network_trainer(_NETWORKS[task]) for task in ("schedules", "seconds"))
        models["Network over graphs"] = judge_models(found, ranking, seconds, gnn, note)
    if page is not None:
        ablations: dict[str, Evaluation] = {}
        for name, settings in ABLATIONS.items() if ablation_seeds else ():
            note(f"ablation: {name}")
            ablations[name] = judge_models(found, _trainer(settings), None, ablation_seeds)
        for name, settings in NETWORK_ABLATIONS.items() if ablation_seeds and gnn else ():
            note(f"ablation: {name}")
            ablations[name] = judge_models(found, _network_trainer(settings), None, 1)
        _write_page(page, models, ablations, found)
    result = models["Trees"].as_json()
    if gnn:
        result["gnn"] = models["Network over graphs"].as_json()
    if as_json:
        print_json(result)
        return
    columns = ("split", "APE", "worst", "closed form", "best of 5", "best of 10", "τ", "closed form")
    keys = (
        *("ape_mean", "ape_worst", "analytical_ape_mean", "top5_regret", "top10_regret"),
        *("tau", "analytical_tau"),
    )
    rows = {**result["splits"], **{f"without {n}": r for n, r in result["families"].items()}}
    print_table(columns, [(name, *(_figure(r[k], k) for k in keys)) for name, r in rows.items()])
    fusion = result["fusion"]
    click.echo()
    click.echo(
        f"seconds of kernels: error {_figure(fusion['mape'], 'mape')}"
        f" (closed form {_figure(fusion['analytical_mape'], 'mape')}), τ {_figure(fusion['tau'], 'tau')}"
    )


def _trainer(settings: TreeSettings) -> Train:
    return lambda some, seed: train_trees(some, settings, seed).model


def _network_trainer(settings: NetworkSettings) -> Train:
    return lambda some, seed: train_network(some, settings, seed)


def _write_page(
    page: Path,
    models: Mapping[str, Evaluation],
    ablations: Mapping[str, Evaluation],
    found: Sequence[KernelSamples],
) -> None:
    kernels, programs = len({s.key for s in found}), len({s.program for s in found})
    noise = float(np.median(np.concatenate([s.noise for s in found])))
    corpus = (
        f"{sum(map(len, found))} timed schedules of {kernels} distinct kernels of {programs} programs; the median"
        f" noise of a time is {100.0 * noise:.1f} %."
    )
    packages = ", ".join(f"{k} {v}" for k, v in versions().items() if v is not None)
    provenance = [
        f"- command: `tilewright cost eval CORPUS --seeds {next(iter(models.values())).seeds} --page {page.name}`",
        f"- date: {datetime.now(UTC):%Y-%m-%d}",
        f"- machine: {machine().summary()}",
        f"- versions: {packages}",
    ]
    made = result_page(page.stem, models, ablations, corpus, provenance)
    write_drawing(page, made.text)
    for name, text in made.drawings.items():
        write_drawing(page.with_name(name), text)


def _figure(value: float | None, key: str) -> str:
    return "-" if value is None else f"{value:.2f}" if key.endswith("tau") else f"{value:.2f} %"


def _samples(folder: Path, *, with_graphs: bool = False) -> list[KernelSamples]:
    corpus = Corpus(folder)
    corpus.check_exists()
    left_out = LeftOut()
    found = samples(corpus, native(), with_graphs=with_graphs, left_out=left_out)
    missing = {
        "failed": left_out.failed,
        "gone": left_out.gone,
        "unreadable": left_out.unreadable,
        "past the caches": left_out.handed_on,
    }
    rows = sum(map(len, found))
    note(
        f"{rows} schedules of {len(found)} kernels; left out: {', '.join(f'{n} {k}' for k, n in missing.items())}"
    )
    return found


# ------------------------------------------------------------------------------------------------------------- explain


def explain_schedules(
    what: str,
    corpus: Path | None,
    cost_model: Path | None,
    kernel: str | None,
    count: int,
    svg: Path | None,
    threads: int,
    shapes: Mapping[str, tuple[int, ...]],
    as_json: bool,
) -> None:
    if svg is not None and kernel is None and corpus is None:
        raise UserError("a drawing is of one kernel", hint="name it with --kernel")
    path = cost_model or SCHEDULES_MODEL.path
    if path is None:
        raise UserError("there is no cost model", hint="name one with --with FILE")
    stored = read_trees(path)
    target = native().for_threads(threads)
    funcs = _network_funcs(Path(what), shapes, target) if corpus is None else _corpus_funcs(corpus, what)
    found = [
        explain_kernel(func.name, func, target, constants, stored)
        for func, constants in funcs
        if kernel is None or kernel in func.name
    ]
    if not found:
        raise UserError(f"no kernel has {kernel!r} in its name", hint="without --kernel, all are listed")
    if as_json:
        print_json({"cost_model": str(path), "kernels": [_as_json(k, count) for k in found]})
    elif kernel is None and corpus is None:
        _list(found)
    else:
        for one in found:
            _tell(one, count)
    if svg is not None:
        write_drawing(svg, found[0].svg())


def _network_funcs(
    model: Path, shapes: Mapping[str, tuple[int, ...]], target: Target
) -> Iterator[tuple[Func, frozenset[str]]]:
    """Each distinct Func once, with its constants."""
    check_exists(model)
    module = lowered(model, shapes or None, target=target)
    constants = frozenset(c.buffer for c in module.constants)
    seen: set[str] = set()
    for func in module.funcs:
        key = task_key(func, constants)
        if key not in seen:
            seen.add(key)
            yield func, frozenset(b.name for b in constants if b in func.params)


def _corpus_funcs(folder: Path, start: str) -> Iterator[tuple[Func, frozenset[str]]]:
    """The kernels whose keys begin so."""
    corpus = Corpus(folder)
    corpus.check_exists()
    found = [row for key, row in corpus.kernels().items() if key.startswith(start)]
    if not found:
        raise UserError(f"the corpus has no kernel {start}", where=str(folder))
    for row in found:
        yield parse_func(row.text), frozenset(row.constants)


def _list(kernels: list[ExplainedKernel]) -> None:
    columns = ("kernel", "chosen", "predicted", "closed form", "gain", "trust", "moved most by")
    rows: list[tuple[str, ...]] = []
    for k in kernels:
        gain = "same" if k.is_same else f"{100.0 * (k.gain - 1.0):.1f} %"
        moved = ", ".join(f"{words} ({value:+.1f} %)" for words, value in k.moved(1))
        times = milliseconds(k.best.seconds), milliseconds(k.best.cost)
        rows.append((k.name, k.best.describe(), *times, gain, f"{k.trust:.2f}", moved))
    print_table(columns, rows)


def _tell(k: ExplainedKernel, count: int) -> None:
    best, stated = k.best, k.stated
    click.echo(f"{k.name}: {k.schedules} schedules, trust {k.trust:.2f}")
    click.echo(f"\nchosen: {best.describe()}")
    click.echo(_prediction(best))
    click.echo(f"  {k.usual:+6.1f} %  whatever the schedule")
    click.echo(f"  {k.doubt:+6.1f} %  for doubt: how far the members of the model disagree")
    for words, value in k.moved(count):
        click.echo(f"  {value:+6.1f} %  {words}")
    if k.is_same:
        click.echo("\nThe closed form chooses the same.")
        return
    click.echo(f"\nthe closed form's choice: {stated.describe()}")
    click.echo(f"{_prediction(stated)}, {100.0 * (k.gain - 1.0):.1f} % slower; what decides:")
    for words, value in k.decided(count):
        click.echo(f"  {value:+6.1f} %  {words}")


def _prediction(s: ExplainedSchedule) -> str:
    change = 100.0 * (s.seconds / s.cost - 1.0)
    return (
        f"the closed form says {milliseconds(s.cost)}, the model {milliseconds(s.seconds)} ({change:+.1f} %)"
    )


def _as_json(k: ExplainedKernel, count: int) -> dict[str, Any]:
    def schedule(s: ExplainedSchedule) -> dict[str, Any]:
        return {
            "family": s.family,
            "decisions": dict(s.decisions),
            "closed_form_seconds": s.cost,
            "predicted_seconds": s.seconds,
        }

    return {
        "kernel": k.name,
        "schedules": k.schedules,
        "trust": k.trust,
        "chosen": schedule(k.best),
        "closed_form_choice": schedule(k.stated),
        "usual_percent": k.usual,
        "doubt_percent": k.doubt,
        "moved": [{"feature": words, "percent": value} for words, value in k.moved(count)],
        "decided": [{"feature": words, "percent": value} for words, value in k.decided(count)],
    }
