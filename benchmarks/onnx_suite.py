"""ONNX's own operator suite: how many of its node cases pass.

    python -m benchmarks.onnx_suite [--filter PATTERN] [--list-failures] [--json]

Every case counts, and one that is skipped, crashes or takes too long has failed. Cases run in worker processes, which
may be killed. Objects are cached in a folder that is empty at the start: what was compiled before has no say.
"""

import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

import click

from benchmarks.onnx_node_cases import load_cases, op_of, pack_case
from benchmarks.results import write
from tilewright.cli.output import progress_bar
from tilewright.support.pool import Pool, PoolRequest, ProcessLate, module_command

WORKER = "benchmarks.onnx_node_worker"
WORKERS = 2
SECONDS = 120.0  # for a case
ENOUGH = 0.9  # of the cases
METHOD = """All node cases of `onnx.backend.test`, each compiled and run on its own and compared as ONNX's runner does:
shape, element type, and values within the case's tolerance. Skipped, crashed and late (120 s) is failed."""

NOTES = """What is known of cases that fail:

- Bernoulli: the expected values are one engine's random numbers.
- Inverse DFT: the expected values hold numpy's rounding noise (1.9e-7) where the exact one is 0.
- Resize with aligned corners and scales: the expected values use the fractional extent before it is rounded down; ours
  are those of ONNX Runtime.
- Loop over an optional sequence: ONNX's runner cannot compare a scalar inside of a sequence.
- Attention in half precision: off by up to two units in the last place, as ONNX Runtime is, too."""


@dataclass(frozen=True, slots=True)
class Failure:
    name: str
    op: str
    reason: str


def run_cases(
    cases: Iterable[tuple[str, bytes]],
    workers: int = WORKERS,
    seconds: float = SECONDS,
    module: str = WORKER,
) -> Iterator[tuple[str, str]]:
    """The name of each case with what is wrong with its result (empty if nothing is), as they get done."""
    waiting = iter(cases)
    at_work: dict[PoolRequest, str] = {}
    with Pool(module_command(module), workers) as pool:
        while True:
            for name, body in islice(waiting, 2 * workers - len(at_work)):
                at_work[pool.submit(body, seconds)] = name
            if not at_work:
                return
            for request in pool.serve(inf):
                yield at_work.pop(request), _found(request)


def _found(request: PoolRequest) -> str:
    if isinstance(request.failure, ProcessLate):
        return f"no result after {request.failure.seconds:g} s"
    return str(request.failure) if request.answer is None else request.answer[0]


def failures_table(failures: Sequence[Failure], cases: Mapping[str, int]) -> str:
    """Markdown: operator, failed cases, of how many, the reason; alike ones together."""
    counts = Counter((f.op, f.reason) for f in failures)
    rows = [[op, str(n), str(cases[op]), reason] for (op, reason), n in sorted(counts.items())]
    lines = [["operator", "failed", "of", "reason"], ["---", "---:", "---:", "---"], *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


@click.command()
@click.option(
    "--filter", "pattern", metavar="PATTERN", help="Only cases in whose name this regular expression occurs."
)
@click.option("--list-failures", is_flag=True, help="Print every case that failed, with the reason.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--workers", default=WORKERS, show_default=True, type=click.IntRange(1))
@click.option(
    "--save/--no-save",
    default=True,
    show_default=True,
    help="Write docs/results/onnx-suite.md, of all cases.",
)
def main(pattern: str | None, list_failures: bool, as_json: bool, workers: int, save: bool) -> None:
    """Run ONNX's node cases. The exit status is 0 if at least 90 % pass."""
    cases = load_cases()
    names = [n for n in cases if pattern is None or re.search(pattern, n)]
    if not names:
        raise click.UsageError(f"no case has {pattern!r} in its name")
    ops = {n: op_of(n, cases) for n in names}
    failures: list[Failure] = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="onnx-suite-") as folder, progress_bar() as progress:
        os.environ |= {"TILEWRIGHT_CACHE": folder, "TILEWRIGHT_DB": "off"}
        packed = ((n, pack_case(cases[n])) for n in names)
        for done, (name, reason) in enumerate(run_cases(packed, workers), 1):
            if reason:
                failures.append(Failure(name, ops[name], reason))
            if progress is not None:
                progress("node cases", done, len(names))
    seconds = time.perf_counter() - start
    failures.sort(key=lambda f: f.name)
    passed = len(names) - len(failures)
    summary = f"{passed} of {len(names)}"
    if as_json:
        found = [{"name": f.name, "op": f.op, "reason": f.reason} for f in failures]
        report = {"passed": passed, "total": len(names), "seconds": seconds, "failures": found}
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        for f in failures if list_failures else ():
            click.echo(f"{f.name}: {f.reason}")
        click.echo(summary)
    if save and pattern is None:
        shows = f"**{summary}** cases of ONNX's own operator suite pass ({passed / len(names):.1%})."
        parts = [failures_table(failures, Counter(ops.values())), NOTES] if failures else []
        method = f"{METHOD} It took {seconds:.0f} s with {workers} processes."
        path = write("onnx-suite", "ONNX's operator suite", shows, method, *parts)
        click.echo(f"written to {path}", err=True)
    sys.exit(0 if passed >= ENOUGH * len(names) else 1)


if __name__ == "__main__":
    main()
