"""What constants of costs are worth: programs and their times with other values of each.

    python -m benchmarks.constants families.gemm.cost._TILE_START       # 0, half and twice the value, timed
    python -m benchmarks.constants cost families --keep FILE            # all below: what they change, not timed yet
    python -m benchmarks.constants --times FILE --save                  # timed; writes docs/results/constants.md

Every value decides the programs of the models of `fingerprint.py` anew (algorithms, joins, layouts and kernels), in a
process of its own. Kernels that the value of today does not have are timed, each alone, by one thread, like those of
`predicted.py`; a model takes as long as its kernels together.
"""

import ast
import multiprocessing
import pickle
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, cast

import click

from benchmarks.fingerprint import find_models
from benchmarks.predicted import Measurements
from benchmarks.results import ROOT, table, write
from benchmarks.suite_results import geometric_mean
from tilewright.driver.passes import PassContext, ProgramState, run_passes, task_key
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.graph import Graph
from tilewright.graph.passes import prepare
from tilewright.graph.passes.fold_natively import without_values
from tilewright.ir.expr import Buffer
from tilewright.ops.accuracy import DEFAULT
from tilewright.search.default import choose_schedule, spaces
from tilewright.target.names import resolve_target
from tilewright.tir.func import Func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tuning.candidate import Maker, Task
from tilewright.tuning.trial import Candidate

SHOWS = """Half and twice the value of a constant make the same programs in most cases, or others that are nearly as
fast: choices do not hang on the exact value. What a term is worth shows where it is left out (*none*)."""

METHOD = """Each value decides the programs of the models anew: algorithms, joins, layouts and kernels, for the target
`x86-64-v3` with the figures that are shipped. Kernels that are not those of today are compiled and timed alone, by one
thread on random inputs, with warm caches: CPU time, as others may use the machine, the least of {rounds} rounds of 12
samples of at least 1 ms. A model takes as long as its kernels together. A cell is how many times faster the models are
whose programs differ, on the geometric mean [least, most]: below 1, today's value is better. *Same*: no program
differs. *None* in a cell: there is no program. Differences of 1 % are noise; with warm caches prefetches do not pay.
Each table is of the models in its first line (a file of `--keep`)."""

_PACKAGE = ROOT / "src" / "tilewright"
_FACTORS = (0.0, 0.5, 2.0)
_ROUNDS = 5  # over all kernels; the least counts


@dataclass(frozen=True, slots=True)
class Trial:
    """A constant with another value: `value` None is the program of today."""

    name: str = ""  # module below the package, and the name in it
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """What is made of the models: kernels by a digest, with how often a run of the model calls each."""

    calls: dict[str, Counter[str]]
    code: dict[str, tuple[str, Candidate]]  # of kernels: the Func as text, its code


@dataclass(slots=True)
class Kept:
    made: dict[Trial, Made] = field(default_factory=dict[Trial, Made])
    failed: dict[Trial, str] = field(default_factory=dict[Trial, str])


def find_constants(names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Numbers that have a name: those named, and all of the modules and packages named."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(_PACKAGE).with_suffix("").parts)
        if not any(f"{module}.".startswith(f"{n}.") or n.startswith(f"{module}.") for n in names):
            continue
        for statement in ast.parse(path.read_text()).body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            found = (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            for short in filter(_is_constant, found):
                value = getattr(import_module(f"tilewright.{module}"), short)
                fields = getattr(value, "_fields", ())
                for name in [f"{module}.{short}.{f}" for f in fields] or [f"{module}.{short}"]:
                    value = _value(name)
                    if any(f"{name}.".startswith(f"{n}.") for n in names) and isinstance(value, int | float):
                        yield name, value


def set_constant(trial: Trial) -> None:
    """In its module, and wherever it was imported."""
    module, name, of = _parts(trial.name)
    known = getattr(sys.modules[f"tilewright.{module}"], name)
    value = round(trial.value or 0) if isinstance(known, int) else trial.value
    value = cast("Any", known)._replace(**{of: value}) if of else value
    for other in [m for n, m in sys.modules.items() if n.startswith("tilewright.")]:
        if getattr(other, name, None) is known:
            setattr(other, name, value)


class Programs:
    """Decides the programs of models; what does not depend on costs is done once."""

    def __init__(self, models: Sequence[Path]) -> None:
        self._target = resolve_target("x86-64-v3")
        self._graphs: dict[str, Graph] = {p.stem: prepare(load_graph(p)) for p in models}

    def make(self, trial: Trial, known: frozenset[str] = frozenset()) -> Made:
        """With the code of kernels that are not `known`."""
        if trial.name:
            set_constant(trial)
        context = PassContext(self._target, DEFAULT.allows, run_constants=without_values)
        made = Made({}, {})
        for model, graph in self._graphs.items():
            module = run_passes(ProgramState(graph), context, until="layouts").current
            constants = frozenset(c.buffer for c in module.constants)
            funcs = {task_key(f, constants): f for f in module.funcs}
            names = {k: self._cheapest(k, f, constants) for k, f in funcs.items()}
            made.calls[model] = Counter(names[task_key(f, constants)] for f in module.funcs)
            for key, func in funcs.items():
                name = names[key]
                if name not in known and name not in made.code:
                    own = frozenset(b.name for b in constants)
                    chosen = choose_schedule(func, self._target, own)
                    task = Task(key, func, own, self._target, spaces)
                    made.code[name] = print_func(func), Maker(task).compile(chosen.draft.func)
        return made

    def _cheapest(self, key: str, func: Func, constants: frozenset[Buffer]) -> str:
        """The kernel that has the least cost, as text."""
        found: list[tuple[float, str]] = []
        for space in spaces(func, self._target, frozenset(b.name for b in constants)):
            points, costs = space.ranked()
            if len(points):
                found.append((float(costs[0]), f"{space.family} {space.decisions(points[0])}"))
        return f"{key} {min(found)[1] if found else ''}"


_programs: list[Programs] = []  # of the parent, as forked processes find it


def _make(job: tuple[Trial, frozenset[str]]) -> Made | str:
    try:
        return _programs[0].make(*job)
    except Exception as e:  # a value may make no sense
        return f"{type(e).__name__}: {e}"


def choose(kept: Kept, wanted: Sequence[Trial], models: Sequence[Path], workers: int) -> None:
    """What is kept is not decided again."""
    _programs[:] = [Programs(models)]
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool:
        known: frozenset[str] = frozenset()
        for some in ([Trial()], wanted):
            jobs = [(t, known) for t in some if t not in kept.made and t not in kept.failed]
            for (trial, _), made in zip(jobs, pool.imap(_make, jobs), strict=True):
                if isinstance(made, Made):
                    kept.made[trial] = made
                else:
                    kept.failed[trial] = made
            known = frozenset(kept.made[Trial()].code)


def time_kernels(kept: Kept) -> dict[str, float]:
    """Seconds of those kernels that some value changes, and of all of today."""
    target = resolve_target("native")
    code = {k: c for made in kept.made.values() for k, c in made.code.items()}
    found = dict.fromkeys(code, float("inf"))
    for _ in range(_ROUNDS):
        measurements = Measurements(None, target)
        for kernel, (text, candidate) in code.items():
            found[kernel] = min(found[kernel], measurements.seconds(parse_func(text), candidate))
    return found


def report(kept: Kept, seconds: Mapping[str, float] | None) -> str:
    """A row for each constant, a column for each factor: how many times faster models are whose programs differ, on the
    geometric mean, with the least and the most; without times, how many kernels are new.
    """
    today = kept.made[Trial()]
    cells: dict[str, dict[float, str]] = {}
    for trial, made in kept.made.items():
        if trial.name and trial.value is not None:
            changed = [m for m in made.calls if made.calls[m] != today.calls[m]]
            text = str(len(made.code)) if changed else "same"
            if seconds is not None and changed:
                speeds = [_total(today.calls[m], seconds) / _total(made.calls[m], seconds) for m in changed]
                text = f"{geometric_mean(speeds):.3f} [{min(speeds):.3f}, {max(speeds):.3f}]"
            cells.setdefault(trial.name, {})[trial.value] = text
    for trial in kept.failed:
        cells.setdefault(trial.name, {})[trial.value or 0.0] = "none"
    rows = [
        [f"`{name}`", f"{value:g}", *(cells[name].get(value * f, "") for f in _FACTORS)]
        for name, value in ((n, _value(n)) for n in cells)
        if isinstance(value, int | float)
    ]
    head = f"{', '.join(today.calls)}: {sum(len(c) for c in today.calls.values())} kernels."
    return f"{head}\n\n{table(('constant', 'value', 'none', 'half', 'twice'), rows)}"


def _is_constant(name: str) -> bool:
    return name.strip("_").isupper()


def _parts(name: str) -> tuple[str, str, str]:
    """Module, name in it, and field if it is a tuple with names."""
    parts = name.split(".")
    at = next(n for n, part in enumerate(parts) if _is_constant(part))
    return ".".join(parts[:at]), parts[at], ".".join(parts[at + 1 :])


def _value(name: str) -> object:
    module, short, of = _parts(name)
    value = getattr(import_module(f"tilewright.{module}"), short)
    return getattr(value, of) if of else value


def _total(calls: Counter[str], seconds: Mapping[str, float]) -> float:
    return sum(n * seconds[k] for k, n in calls.items())


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("names", nargs=-1)
@click.option("--model", "models", multiple=True, help="By name [default: all].")
@click.option("--workers", default=2, show_default=True, help="Processes that decide programs.")
@click.option("--keep", type=click.Path(path_type=Path), help="Add programs to this file; nothing is timed.")
@click.option(
    "--times", multiple=True, type=click.Path(path_type=Path), help="Time the programs of this file."
)
@click.option("--save", is_flag=True, help="Write docs/results/constants.md.")
def main(
    names: tuple[str, ...],
    models: tuple[str, ...],
    workers: int,
    keep: Path | None,
    times: tuple[Path, ...],
    save: bool,
) -> None:
    if times:
        tables = [_timed(pickle.loads(path.read_bytes())) for path in times]
    else:
        kept: Kept = pickle.loads(keep.read_bytes()) if keep is not None and keep.exists() else Kept()
        wanted = [Trial(n, v * f) for (n, v), f in product(find_constants(names), _FACTORS)]
        choose(kept, wanted, list(find_models(models)), workers)
        if keep is not None:
            keep.write_bytes(pickle.dumps(kept))
        tables = [_timed(kept) if keep is None else report(kept, None)]
    print(*tables, sep="\n\n")
    if save:
        write("constants", "What constants of costs are worth", SHOWS, METHOD.format(rounds=_ROUNDS), *tables)


def _timed(kept: Kept) -> str:
    return report(kept, time_kernels(kept))


if __name__ == "__main__":
    main()
