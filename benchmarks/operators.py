"""Single operators against other engines and against the machine's multiply-add peak: docs/results/operators.md.

Operators are those of `benchmarks.operator_cases`, untuned. `--from` and `--tuned` render what the suite has measured
of its own (`versus.sh ops …`), the latter after `tilewright tune`.
"""

import tempfile
from pathlib import Path

import click

from benchmarks.catalogue import ENGINES
from benchmarks.operator_cases import CASES
from benchmarks.operator_tables import METHOD, SHOWS, pages
from benchmarks.options import PageOptions, Turns, page_options, results_option, turn_options
from benchmarks.peak_engine import GFLOP, PEAK
from benchmarks.suite_measure import Cells, measure_all
from benchmarks.suite_results import read_results
from benchmarks.suite_tables import versions_text


def measure_cases(
    names: tuple[str, ...], peers: list[str], turns: Turns, folder: Path
) -> dict[str, dict[str, Cells]]:
    """In the form of the suite, with the operations that each engine does."""
    models: list[Path] = []
    for name in names:
        models.append(folder / f"{name}.onnx")
        models[-1].write_bytes(CASES[name].build().SerializeToString())
    engines = [*peers, PEAK.name]
    catalogue = {**ENGINES, PEAK.name: PEAK}
    found = measure_all(models, engines, turns, folder, catalogue)
    for name, by_threads in found.items():
        for threads, cells in by_threads.items():
            for engine, cell in cells.items():
                cell["gflop"] = GFLOP * int(threads) if engine == PEAK.name else CASES[name].flops / 1e9
    return found


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@results_option("--from", "sources", "Render these untuned results of the suite; may be repeated.")
@results_option("--tuned", "tuned", "Render these tuned ones too; may be repeated.")
@click.option("--against", default="ort", show_default=True, help="Engines to compare with.")
@turn_options(rounds=9, seconds=0.05)
@page_options("operators")
def main(
    names: tuple[str, ...],
    sources: tuple[Path, ...],
    tuned: tuple[Path, ...],
    against: str,
    turns: Turns,
    page: PageOptions,
) -> None:
    """Measure NAMES (all unless given) untuned, or render --from and --tuned."""
    measured_at = page.measured_at(bool(sources or tuned))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not (sources or tuned):
            chosen = names or tuple(CASES)
            measured = measure_cases(chosen, against.split(","), turns, folder)
            sources = (page.stored(measured, folder / "operators.json"),)
        results = read_results(sources), read_results(tuned)
    parts = [versions_text(results), *pages(*results)]
    page.publish("operators", "Operators against other engines", SHOWS, METHOD, parts, measured_at)


if __name__ == "__main__":
    main()
