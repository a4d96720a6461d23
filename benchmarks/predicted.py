"""How well costs predict times: of every distinct kernel of the benchmark models, by family.

    python -m benchmarks.predicted                        # all models; writes docs/results/predicted.md
    python -m benchmarks.predicted resnet18 --no-write    # some models only, to the screen
    python -m benchmarks.predicted --measured FILE        # code that was measured before is not measured again

Costs of families are compared with each other to choose the default schedule, so they must be seconds, not only an
order. The models are those of `fingerprint.py`.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil, log
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.fingerprint import find_models
from benchmarks.results import table, write
from benchmarks.suite_results import geometric_mean
from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import compile_object
from tilewright.driver.passes import task_key
from tilewright.lowered import lowered
from tilewright.runtime.program import RunContext
from tilewright.search.default import ChosenSchedule, choose_schedule, spaces
from tilewright.target.names import resolve_target
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tuning.candidate import Maker, Task, tensor_spec
from tilewright.tuning.trial import Bench, Candidate

SHOWS = """How well costs in closed form predict what kernels take, family by family."""

METHOD = """Every distinct Func of the benchmark models (networks, operators, transformers) is scheduled by default,
compiled and run alone with one thread, on random inputs, with warm caches. *Measured* is the CPU time of a run, the
least of {samples} samples of at least {sample:.0f} ms: CPU time, because others may use the machine. *Predicted* is
what the cost of the chosen family says. Kernels below {least:.0f} µs are not counted: there it is the call that is
measured. *weighted* is the sum of predicted over the sum of measured times."""

_SAMPLES = 12
_SAMPLE_SECONDS = 1e-3
_LEAST_SECONDS = 2e-6
_LOW, _HIGH = 0.7, 1.4  # predictions in between are good
_WORST = 20  # kernels that are listed
_SEED = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    model: str
    func: str
    family: str
    predicted: float  # seconds; nan for fallbacks, which have no cost
    measured: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


class Measurements:
    """Seconds by code, in a file if one is given."""

    def __init__(self, path: Path | None, target: Target) -> None:
        self._path = path
        self._known: dict[str, float] = json.loads(path.read_text()) if path and path.exists() else {}
        self._driver = compile_object(driver_ir(target), target)

    def seconds(self, func: Func, candidate: Candidate) -> float:
        h = hashlib.sha256(json.dumps(candidate.head()).encode())
        for code in candidate.objects:
            h.update(code)
        key = h.hexdigest()
        if key not in self._known:
            self._known[key] = self._measure(func, candidate)
        return self._known[key]

    def save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self._known, indent=0))

    def _measure(self, func: Func, candidate: Candidate) -> float:
        inputs = [tensor_spec(p) for p in func.params if p not in func.outputs]
        outputs = [tensor_spec(p) for p in func.outputs]
        specs = [[[s.name, s.dtype, s.shape] for s in side] for side in (inputs, outputs)]
        head = {"inputs": specs[0], "outputs": specs[1], "tolerance": 0.0, "threads": 1, "seed": _SEED}
        (context,) = Bench(head, [self._driver]).load(candidate)  # one size: nothing is open here
        context.run()
        repeats = max(1, ceil(_SAMPLE_SECONDS / max(_cpu_seconds(context, 1), 1e-7)))
        return min(_cpu_seconds(context, repeats) for _ in range(_SAMPLES))


def _cpu_seconds(context: RunContext, repeats: int) -> float:
    clock, run = time.thread_time, context.run
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


def funcs_of(models: Iterable[Path], target: Target) -> Iterator[tuple[str, str, Func, frozenset[str]]]:
    """Each distinct Func once, with the model that has it first, its key and its constants."""
    seen: set[str] = set()
    for path in models:
        module = lowered(path, target=target)
        constants = frozenset(c.buffer for c in module.constants)
        for func in module.funcs:
            key = task_key(func, constants)
            if key not in seen:
                seen.add(key)
                yield path.stem, key, func, frozenset(b.name for b in constants if b in func.params)


def predicted_seconds(chosen: ChosenSchedule, func: Func, target: Target, constants: frozenset[str]) -> float:
    for space in spaces(func, target, constants):
        if space.family == chosen.family:
            point = np.array([[chosen.decisions[k.name] for k in space.knobs]], np.int64)
            return float(space.cost(point)[0])
    return float("nan")


def measure(models: Sequence[Path], target: Target, known: Measurements, console: Console) -> list[Kernel]:
    found: list[Kernel] = []
    every = list(track(funcs_of(models, target), "lowering", console=console, transient=True))
    for model, key, func, constants in track(every, "kernels", console=console, transient=True):
        chosen = choose_schedule(func, target, constants)
        maker = Maker(Task(key, func, constants, target, spaces))
        taken = known.seconds(func, maker.compile(chosen.draft.func))
        cost = predicted_seconds(chosen, func, target, constants)
        found.append(Kernel(model, func.name, chosen.family, cost, taken))
        known.save()
    return found


def summary(kernels: Sequence[Kernel]) -> str:
    families: dict[str, list[Kernel]] = defaultdict(list)
    for k in kernels:
        if k.measured >= _LEAST_SECONDS:
            families[k.family].append(k)
    rows = [_row(name, some) for name, some in sorted(families.items(), key=lambda f: -len(f[1]))]
    rows.append(_row("**all**", [k for some in families.values() for k in some]))
    inside = f"within {_LOW} to {_HIGH}"
    return table(["family", "kernels", "geometric mean", "10 %", "90 %", inside, "weighted"], rows)


def _row(name: str, kernels: Sequence[Kernel]) -> list[str]:
    ratios = np.array([k.ratio for k in kernels if np.isfinite(k.ratio)])
    if not len(ratios):
        return [name, str(len(kernels)), *[""] * 5]
    low, high = np.quantile(ratios, [0.1, 0.9])
    good = float(np.mean((ratios >= _LOW) & (ratios <= _HIGH)))
    known = [k for k in kernels if np.isfinite(k.ratio)]
    weighted = sum(k.predicted for k in known) / sum(k.measured for k in known)
    figures = (geometric_mean(ratios.tolist()), low, high)
    return [name, str(len(kernels)), *(f"{v:.2f}" for v in figures), f"{good:.0%}", f"{weighted:.2f}"]


def worst(kernels: Sequence[Kernel]) -> str:
    """Those whose misprediction is the largest, in factors."""
    counted = [k for k in kernels if k.measured >= _LEAST_SECONDS and np.isfinite(k.ratio)]
    rows = [
        [f"{k.model}: {k.func[:60]}", k.family, f"{k.measured * 1e6:.1f}", f"{k.ratio:.2f}"]
        for k in sorted(counted, key=lambda k: -abs(log(k.ratio)))[:_WORST]
    ]
    return table(["kernel", "family", "measured µs", "predicted over measured"], rows)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("names", nargs=-1)
@click.option("--no-write", is_flag=True, help="Print the tables only.")
@click.option("--measured", type=click.Path(path_type=Path), help="A file that keeps measurements by code.")
@click.option(
    "--json", "as_json", type=click.Path(path_type=Path), help="A file for the figures of each kernel."
)
def main(names: tuple[str, ...], no_write: bool, measured: Path | None, as_json: Path | None) -> None:
    target = resolve_target("native")
    models = list(find_models(names))
    if not models:
        raise click.ClickException("there are no such models in $BENCH_HOME")
    kernels = measure(models, target, Measurements(measured, target), Console(stderr=True))
    if as_json is not None:
        as_json.write_text(json.dumps([asdict(k) for k in kernels], indent=1))
    tables = summary(kernels), f"The largest mispredictions:\n\n{worst(kernels)}"
    if no_write:
        print(*tables, sep="\n\n")
        return
    method = METHOD.format(samples=_SAMPLES, sample=_SAMPLE_SECONDS * 1e3, least=_LEAST_SECONDS * 1e6)
    write("predicted", "Predicted and measured times", SHOWS, method, *tables)


if __name__ == "__main__":
    main()
