"""Models with open dimensions: one program for all sizes, against static programs and other engines that are given the
same files: docs/results/open-shapes.md.

    python -m benchmarks.open_shapes                            # all parts; writes the page
    python -m benchmarks.open_shapes lengths --threads 1 --calls 1000 --keep RESULTS.json
    python -m benchmarks.open_shapes memory --memory-calls 10000
    python -m benchmarks.open_shapes --from RESULTS.json        # what was measured before; may be repeated

`benchmarks/export_open_models.py` writes the models. What takes longest is to compile the static programs, which are
kept in the cache for the next time.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.open_shape_cases import DECODERS, IMAGES, TEXTS, OpenCase
from benchmarks.open_shape_measure import (
    STATIC,
    Found,
    measure_memory,
    measure_random,
    measure_sample,
    measure_tokens,
    open_race,
)
from benchmarks.open_shape_tables import sections, summary
from benchmarks.options import PageOptions, page_options, parse_thread_counts, results_option
from benchmarks.suite_results import OURS
from benchmarks.weight_reads import read_seconds, weight_bytes
from tilewright.cli.output import note

SHOWS = """Below: what one program for all sizes costs against a static program for each size, and how it compares with
other engines that are given the same model with its dimensions open."""

METHOD = """float32, random weights, batch 1, untuned. Each engine runs in a process of its own, pinned to as many
cores as threads; all take turns, and all get the same inputs in the same order. A call takes arrays and gives arrays,
as sizes change with it; nothing is bound before. *open* is one program for the whole range, *static* one that is
compiled for the size. Times are medians in milliseconds. *ort / open* is how many times longer ONNX Runtime takes,
with its 95 % interval over rounds: above 1 ours is quicker. Compiled is what was compiled by the end, counted by the
compiler itself. Memory is what the process has resident. *limit* is a loop that reads as many bytes as the matrices
of the model have, again and again, with as many threads."""

PARTS = ("lengths", "memory", "images", "decoding")
Measured = dict[str, dict[str, Found]]  # by case and number of threads


def measure(
    parts: Sequence[str],
    thread_counts: Sequence[int],
    rounds: int,
    calls: int,
    memory_calls: int,
    tokens: int,
    folder: Path,
) -> Measured:
    os.environ["TILEWRIGHT_DB"] = "off"
    peers = ("ort", "openvino")
    measured: Measured = {}
    for threads in thread_counts:

        def keep(case: OpenCase, found: Found, threads: int = threads) -> None:
            measured.setdefault(case.name, {})[str(threads)] = found

        for case in _there(TEXTS if "lengths" in parts or "memory" in parts else ()):
            others = (STATIC, *peers) if "lengths" in parts else ()
            with open_race(case, (OURS, *others), threads, folder) as race:
                if "lengths" in parts:
                    measure_sample(race, rounds)
                    race.drop(STATIC)
                    measure_random(race, calls)
                if "memory" in parts:
                    measure_memory(race, memory_calls)
                keep(case, race.found)
        for case in _there(IMAGES if "images" in parts else ()):
            with open_race(case, (OURS, STATIC, *peers), threads, folder) as race:
                measure_sample(race, rounds)
                keep(case, race.found)
        for case in _there(DECODERS if "decoding" in parts else ()):
            with open_race(case, (OURS, *peers), threads, folder) as race:
                measure_tokens(race, tokens, rounds)
                nbytes = weight_bytes(case.model)
                limit = {"bytes": nbytes, "ms": 1e3 * read_seconds(nbytes, threads)}
                keep(case, {**race.found, "limit": limit})
    return measured


def _there(cases: Sequence[OpenCase]) -> list[OpenCase]:
    for case in cases:
        if not case.model.exists():
            note(f"{case.name} is not in $BENCH_HOME/open_models, and is left out")
    return [c for c in cases if c.model.exists()]


def read_measured(paths: Sequence[Path]) -> Measured:
    """All files together; where two have the same engine in a part, the later file counts."""
    found: Measured = {}
    for path in paths:
        given: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
        for case, by_threads in given.items():
            for threads, parts in by_threads.items():
                own = found.setdefault(case, {}).setdefault(threads, {})
                for part, by_engine in parts.items():
                    own.setdefault(part, {}).update(by_engine)
    return found


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(PARTS), metavar="[PART]...")
@results_option("--from", "sources", "Render these results instead of measuring; may be repeated.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Of the sampled sizes.")
@click.option("--calls", default=400, show_default=True, type=click.IntRange(1), help="In random order.")
@click.option("--memory-calls", default=1000, show_default=True, type=click.IntRange(1000))
@click.option("--tokens", default=256, show_default=True, type=click.IntRange(3, 256))
@click.option(
    "--threads",
    "thread_counts",
    multiple=True,
    type=click.IntRange(1),
    callback=parse_thread_counts,
    help="May be repeated [1 and 2].",
)
@page_options("open-shapes")
def main(
    parts: tuple[str, ...],
    sources: tuple[Path, ...],
    rounds: int,
    calls: int,
    memory_calls: int,
    tokens: int,
    thread_counts: tuple[int, ...],
    page: PageOptions,
) -> None:
    """Measure these PARTS (lengths, memory, images, decoding: all unless given), or render --from."""
    measured_at = page.measured_at(bool(sources))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not sources:
            found = measure(parts or PARTS, thread_counts, rounds, calls, memory_calls, tokens, folder)
            sources = (page.stored(found, folder / "open-shapes.json"),)
        results = read_measured(sources)
    shows = "\n\n".join((*summary(results), SHOWS))
    page.publish("open-shapes", "Open shapes", shows, METHOD, sections(results), measured_at)


if __name__ == "__main__":
    main()
