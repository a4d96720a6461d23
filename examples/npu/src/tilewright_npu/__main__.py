"""`python -m tilewright_npu MODEL.onnx`: a model with and without the NPU, what the NPU took, and what int8 cost.

The model runs natively and with all that the NPU takes, on the same random inputs, which are others than those that it
was calibrated with. Errors are of the model's outputs: the root of the mean square of the difference, relative to that
of the outputs; and how often the largest along the last axis is the same.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import tilewright as tw
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.external import Region
from tilewright.graph.graph import Graph
from tilewright.plugins.registry import register_plugin
from tilewright.support.errors import UserError
from tilewright_npu.plugin import Npu
from tilewright_npu.report import Report, forget_reports, report_table, reports, total

Feeds: TypeAlias = dict[str, NDArray[Any]]


class Eager(Npu):
    """Says that it takes no time, and so gets all that it takes: the study is of the machine, not of what pays."""

    def seconds(self, region: Region, threads: int) -> float | None:
        return 0.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    error: float
    agreement: float
    runs: int


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tilewright_npu", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--calibrate", default="8", metavar="N|FILE.npz", help="random samples, or a file with one (8)"
    )
    parser.add_argument("--runs", type=int, default=16, help="random inputs that are compared (16)")
    parser.add_argument("--percentile", type=float, default=Npu.percentile, help="of values within the scale")
    parser.add_argument(
        "--paying", action="store_true", help="leave to native code what that is quicker with"
    )
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args(arguments)
    try:
        _show(said.model, said.calibrate, said.runs, said.percentile, said.paying, said.json)
    except (UserError, OSError) as e:
        sys.exit(f"error: {e}")


def _show(
    model: Path, calibrate: str, runs: int, percentile: float, only_paying: bool, as_json: bool
) -> None:
    graph = load_graph(model)
    kind = Npu if only_paying else Eager
    register_plugin(kind(percentile) if percentile != Npu.percentile else kind())
    samples = list(_samples(graph, calibrate))
    forget_reports()
    accuracy = compare(model, samples, [random_feeds(graph, 1000 + n) for n in range(runs)])
    taken = reports()
    if as_json:
        report: dict[str, Any] = {
            "model": model.name,
            "calibration_samples": len(samples),
            "relative_error": accuracy.error,
            "top1_agreement": accuracy.agreement,
            "runs": accuracy.runs,
            "regions": [r.as_json() for r in taken],
        }
        print(json.dumps(report, indent=2))
        return
    print(_text(model.name, taken, accuracy, len(samples)))


def _text(name: str, taken: Sequence[Report], accuracy: Accuracy, samples: int) -> str:
    if not taken:
        return f"{name}: the NPU takes nothing of it"
    whole = total(taken)
    return (
        f"{name}: {len(taken)} regions on the NPU, {whole.milliseconds:.2f} ms at {whole.machine.hertz / 1e9:g} GHz\n\n"
        f"{report_table(taken)}\n\n"
        f"against native float32, {accuracy.runs} random inputs, calibrated with {samples}: "
        f"relative error {accuracy.error:.4f}, the same top-1 in {accuracy.agreement:.1%}"
    )


def compare(model: Path, samples: Sequence[Feeds], inputs: Sequence[Feeds]) -> Accuracy:
    """The model with the NPU against the model without."""
    native = tw.load(model)
    quantized = tw.load(
        model, plugins=["npu"], placement="greedy", calibration=samples, strict=True, cache=False
    )
    difference = size = 0.0
    same: list[bool] = []
    for feeds in inputs:
        want, got = native.run(feeds), quantized.run(feeds)
        for name, array in want.items():
            difference += float(np.square(np.subtract(got[name], array, dtype=np.float64)).sum())
            size += float(np.square(array.astype(np.float64)).sum())
        first = next(iter(want))
        same += (got[first].argmax(-1) == want[first].argmax(-1)).reshape(-1).tolist()
    return Accuracy((difference / max(size, 1e-300)) ** 0.5, float(np.mean(same)), len(inputs))


def _samples(graph: Graph, calibrate: str) -> Iterator[Feeds]:
    if calibrate.isdigit():
        yield from (random_feeds(graph, n) for n in range(int(calibrate)))
    else:
        with np.load(calibrate, allow_pickle=False) as found:
            yield _named(graph, dict(found))


def _named(graph: Graph, arrays: Mapping[str, NDArray[Any]]) -> Feeds:
    """By the names of inputs; a file may also number them, as in0, in1, …"""
    out: Feeds = {}
    for n, v in enumerate(graph.inputs):
        array = arrays.get(v.name, arrays.get(f"in{n}"))
        if array is None:
            raise UserError(f"the file has no value for the input {v.name!r}")
        out[v.name] = array
    return out


def random_feeds(graph: Graph, seed: int) -> Feeds:
    """Normal floats, and integers that are indices into anything worth indexing."""
    rng = np.random.default_rng(seed)
    out: Feeds = {}
    for v in graph.inputs:
        dtype = v.type.dtype.numpy
        is_whole = v.type.dtype.is_int
        made = (
            rng.integers(0, 2 if "mask" in v.name else 1000, v.shape)
            if is_whole
            else rng.standard_normal(v.shape)
        )
        out[v.name] = made.astype(dtype)
    return out


if __name__ == "__main__":
    main()
