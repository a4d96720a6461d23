"""What a tuning that is killed loses: docs/results/tuner-kills.md.

python -m benchmarks.tuner_kills                           # 50 kills
python -m benchmarks.tuner_kills --kills 10 --keep k.json  # in pieces: each adds to the file
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import click
from onnx import ModelProto

from benchmarks.killed_tuning import KilledTuning
from benchmarks.results import ROOT, table, write
from examples.models import Net
from tilewright.cli.output import note

SHOWS = """What is lost when `tilewright tune` is killed (`kill -9`) at a random moment, and whether it goes on."""

METHOD = """A small convolutional network (four convolutions, one of them depthwise) is tuned as a whole program: all
that one run of the program has measured is written in one transaction. The process is killed (SIGKILL): one in five
within its first three seconds, the others at an even choice of moments in the {latest:g} s after it has begun to write
measurements. After each kill `PRAGMA integrity_check` is asked, and rows are held against what the process has noted on
the side (when a run was measured, when rows were begun and written). The next process is started with `--resume`,
unless the first was killed before it had begun a tuning. In the end a last process makes two more trials and ends by
itself. *lost* counts measurements that were made and are in no row; *the largest run* is how many are at once."""


def small_network() -> ModelProto:
    """It compiles in a second, and its candidates are timed inside of the program."""
    net = Net(0)
    y, channels = "x", 8
    for kernel, c_out, stride, groups in ((3, 16, 1, 1), (1, 32, 1, 1), (3, 32, 2, 32), (3, 32, 1, 1)):
        weight = net.normal("weight", (c_out, channels // groups, kernel, kernel), 0.1)
        bias = net.normal("bias", (c_out,), 0.1)
        pads = [kernel // 2] * 4
        y = net.op("Conv", y, weight, bias, strides=[stride] * 2, pads=pads, group=groups)
        y = net.op("Relu", y)
        channels = c_out
    return net.model("small", {"x": (1, 8, 28, 28)}, {"y": (1, 32, 14, 14)})


def kill_again_and_again(kills: int, latest: float, seed: int) -> list[dict[str, Any]]:
    """The record of each kill, and at the end that of the last process."""
    with tempfile.TemporaryDirectory() as folder:
        killed = KilledTuning(Path(folder), small_network(), seed, latest)
        found: list[dict[str, Any]] = []
        for n in range(kills):
            found.append(killed.kill_one().as_json())
            last = found[-1]
            note(f"kill {n + 1}: {last['measured']} measured, {last['lost']} lost {last['problems'] or ''}")
        found[-1]["problems"] = [*found[-1]["problems"], *killed.end()]
        return found


def summary(pieces: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Of all kills, in all pieces."""
    kills = [k for piece in pieces for k in piece]
    lost = [k["lost"] for k in kills]
    rows = [
        ["kills", str(len(kills))],
        ["of them while the process started", str(sum(k["is_early"] for k in kills))],
        ["tunings, each with a database of its own", str(len(pieces))],
        ["processes that went on with the last one's tuning", str(sum(k["is_resumed"] for k in kills))],
        ["measurements", str(sum(piece[-1]["measured"] for piece in pieces))],
        ["measurements lost", str(sum(lost))],
        ["lost in a kill, on the average", f"{mean(lost):.2f}"],
        ["lost in a kill, at most", str(max(lost))],
        ["the largest run", str(max(k["largest_run"] for k in kills))],
        ["kills after which something was wrong", str(sum(bool(k["problems"]) for k in kills))],
    ]
    return table(("", "count"), rows)


def problems_text(pieces: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """What was wrong, if anything was."""
    found = dict.fromkeys(p for piece in pieces for k in piece for p in k["problems"])
    return ["What was wrong:\n\n" + "\n".join(f"- {p}" for p in found)] if found else []


@click.command()
@click.option("--kills", default=50, show_default=True, type=click.IntRange(1))
@click.option("--latest", default=2.5, show_default=True, help="Seconds of measuring in which it is killed.")
@click.option("--keep", type=click.Path(path_type=Path), help="A file with results, which is added to.")
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/tuner-kills.md.")
def main(kills: int, latest: float, keep: Path | None, save: bool) -> None:
    """Kill a tuning again and again."""
    pieces: list[list[dict[str, Any]]] = []
    if keep is not None and keep.exists():
        pieces = json.loads(keep.read_text())
    pieces.append(kill_again_and_again(kills, latest, seed=len(pieces)))
    if keep is not None:
        keep.write_text(json.dumps(pieces))
    text = [summary(pieces), *problems_text(pieces)]
    click.echo("\n\n".join(text))
    if save:
        path = write("tuner-kills", "Killed tunings", SHOWS, METHOD.format(latest=latest), *text)
        click.echo(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
