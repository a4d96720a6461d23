"""`make demo`: a ResNet-18 from ONNX file to answer, checked against ONNX Runtime and timed side by side with it.

The weights are random, the shapes are real. Nothing is downloaded and your own cache is left alone. The exit status is
not 0 if the answers differ.
"""

import os
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.probe import run_probe
from examples.models import resnet18
from tilewright.cli.catalogue import ORT
from tilewright.cli.defaults import TOLERANCE
from tilewright.cli.machine import machine, versions
from tilewright.cli.measure import measure
from tilewright.cli.output import milliseconds, print_table, progress_bar
from tilewright.cli.status import ExitStatus


@click.command()
@click.option(
    "--threads", type=click.IntRange(1), help="Of both engines [default: cores this process may use]."
)
@click.option("--size", default=224, show_default=True, help="Width and height of the image.")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="Turns of each engine.")
@click.option("--seconds", default=0.5, show_default=True, help="Of each turn.")
def demo(threads: int | None, size: int, rounds: int, seconds: float) -> None:
    """Compile a ResNet-18, run it, and compare it with ONNX Runtime."""
    here = machine()
    threads = threads or here.threads
    packages = versions()
    click.echo(f"ResNet-18, 1x3x{size}x{size}, float32, {threads} thread(s) on {here.summary()}")
    click.echo(
        f"tilewright {packages['tilewright']}, LLVM {packages['llvm']}; ONNX Runtime {packages['onnxruntime']}\n"
    )
    with tempfile.TemporaryDirectory(prefix="tilewright-demo-") as folder:
        path = Path(folder) / "resnet18.onnx"
        path.write_bytes(resnet18(size=size).SerializeToString())
        with progress_bar() as progress:
            report = measure(
                path, threads=threads, against=(ORT.name,), rounds=rounds, seconds=seconds, progress=progress
            )
        if absent := report.absent.get(ORT.name):
            raise click.ClickException(f"{ORT.title}: {absent}")
        env = {**os.environ, "TILEWRIGHT_CACHE": str(Path(folder) / "cache")}
        cold, warm = (run_probe(path, engine="tilewright", threads=threads, env=env) for _ in range(2))
        peer = run_probe(path, engine="ort", threads=threads, env=env)
    ours, theirs = report.ours.series, report.engines[ORT.name].series
    name, ratio = ORT.title, report.speedup[ORT.name]
    assert report.error is not None
    print_table(
        ("", "tilewright", name),
        [
            ("one inference, median", milliseconds(ours.median), milliseconds(theirs.median)),
            (
                "  90 % are quicker than",
                milliseconds(ours.percentile(90)),
                milliseconds(theirs.percentile(90)),
            ),
            ("  noise between rounds", f"{100 * ours.spread:.0f} %", f"{100 * theirs.spread:.0f} %"),
            ("compile", milliseconds(report.ours.start_up["compile"]), "-"),
            ("load, nothing cached", milliseconds(cold.load_seconds), milliseconds(peer.load_seconds)),
            ("load, compiled before", milliseconds(warm.load_seconds), "-"),
            ("first inference", milliseconds(warm.first_run_seconds), milliseconds(peer.first_run_seconds)),
            ("memory after loading", f"{warm.load_mb:.0f} MiB", f"{peer.load_mb:.0f} MiB"),
            ("memory at its peak", f"{warm.peak_mb:.0f} MiB", f"{peer.peak_mb:.0f} MiB"),
        ],
    )
    click.echo(f"\nspeed against {name}: {ratio} (95 % interval over {rounds} interleaved rounds)")
    agree = report.error <= TOLERANCE
    click.echo(
        f"largest difference of the answers: {report.error:.1e} of the largest value: {'ok' if agree else 'WRONG'}"
    )
    click.echo("Load times and memory are those of fresh processes, libraries imported.")
    sys.exit(ExitStatus.OK if agree else ExitStatus.MISMATCH)


if __name__ == "__main__":
    demo()
