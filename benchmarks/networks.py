"""Whole networks against other engines: docs/results/networks.md.

The networks are the ONNX files of the benchmark suite, in `$BENCH_HOME/models`, or those given. `--from` renders what
the suite has measured (`versus.sh models …`).
"""

import os
import tempfile
from pathlib import Path

import click

from benchmarks.batched import write_batched
from benchmarks.network_tables import METHOD, pages, shows
from benchmarks.options import PageOptions, Turns, page_options, results_option, turn_options
from benchmarks.results import FOLDER
from benchmarks.suite_measure import measure_all
from benchmarks.suite_results import read_results
from benchmarks.suite_tables import versions_text
from tilewright.cli.output import note

NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenetv2",
    "yolo",
    "unet",
    "bert_base",
    "minilm",
    "vit_b16",
    "gpt2",
    "lstm",
    "gru",
    "mlp",
)
BATCHED = ("resnet50", "mobilenetv2")
BATCH = 8


def suite_models(folder: Path) -> list[Path]:
    """The networks of the suite that there are, and batches of some of them."""
    home = os.environ.get("BENCH_HOME")
    if home is None:
        return []
    models = [p for n in NETWORKS if (p := Path(home) / "models" / f"{n}.onnx").exists()]
    for path in [p for p in models if p.stem in BATCHED]:
        batched = folder / f"{path.stem}_batch{BATCH}.onnx"
        write_batched(path, BATCH, batched)
        models.append(batched)
    return models


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@results_option(
    "--from",
    "sources",
    "Render these results of the suite (JSON) instead of measuring; may be repeated, and FILES are more of them.",
)
@click.option(
    "--against", default="ort,openvino,mnn,ncnn,inductor", show_default=True, help="Engines to compare with."
)
@turn_options(rounds=9, seconds=0.4)
@page_options("networks")
def main(
    files: tuple[Path, ...],
    sources: tuple[Path, ...],
    against: str,
    turns: Turns,
    page: PageOptions,
) -> None:
    """Measure FILES (ONNX; the networks of the suite in $BENCH_HOME unless given), or render --from."""
    measured_at = page.measured_at(bool(sources))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not sources:
            models = list(files) or suite_models(folder)
            if not models:
                note("nothing to measure: set BENCH_HOME to the suite's folder, or name ONNX files")
                return
            measured = measure_all(models, against.split(","), turns, folder)
            sources, files = (page.stored(measured, folder / "networks.json"),), ()
        results = read_results((*sources, *files))
    parts, charts = pages(results)
    parts.insert(0, versions_text((results,)))
    for file, text in charts.items() if page.save else ():
        (FOLDER / file).write_text(text, encoding="utf-8")
    page.publish("networks", "Networks against other engines", shows(results), METHOD, parts, measured_at)


if __name__ == "__main__":
    main()
