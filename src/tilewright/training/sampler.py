"""A process that computes the features of timed schedules: `python -m tilewright.training.sampler`.

A request is a kernel with the schedules that were timed; the answer says which of them there still are, and has their
features and costs. To find the spaces of a kernel takes a tenth of a second and more, and kernels are many: that is why
several processes do it (`training/dataset.py`).
"""

import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.driver.worker import target_from_json, target_to_json
from tilewright.families.space import Points, Space
from tilewright.learned.candidates import KernelCandidates, KernelGraph
from tilewright.learned.features import FEATURES, SpaceFeatures, kernel_features
from tilewright.learned.kernel_graph import kernel_graph
from tilewright.search.default import spaces
from tilewright.search.grain import GRAIN, OWN, without_grain
from tilewright.support.answering import answer_requests
from tilewright.support.arrays import FloatArray, IntArray
from tilewright.support.compiling import compiling
from tilewright.support.errors import TilewrightError
from tilewright.support.extensions import load_extensions
from tilewright.support.frames import pack
from tilewright.target.target import Target
from tilewright.tir.parser import parse_func
from tilewright.training.kinds import kernel_kind
from tilewright.training.rows import KernelRow

_GRAIN_AT = FEATURES.index(f"knob_{GRAIN}")


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """`kept` are the numbers of the schedules that there still are; candidates are these."""

    kind: str
    kept: IntArray
    candidates: KernelCandidates


def grained_rows(features: SpaceFeatures, points: Points, costs: FloatArray, grains: IntArray) -> FloatArray:
    """Features of points that have a grain besides. A family's own is as if there was none, which is how schedules
    are ranked that nobody tunes.
    """
    rows = features.rows(points, costs)
    chosen = grains != OWN
    rows[chosen, _GRAIN_AT] = np.log2(2.0 + np.maximum(grains[chosen], -1))
    return rows


def sample(
    kernel: KernelRow, schedules: Sequence[tuple[str, Mapping[str, int]]], target: Target, *, with_graph: bool
) -> Sampled:
    """`target` is for the threads that they ran on."""
    func, constants = parse_func(kernel.text), frozenset(kernel.constants)
    found = spaces(func, target, constants)
    own = kernel_features(func, target, constants)
    features = np.zeros((len(schedules), len(FEATURES)))
    costs = np.full(len(schedules), np.inf)
    for space in found:
        at = [n for n, (family, decisions) in enumerate(schedules) if _is_of(space, family, decisions)]
        if not at:
            continue
        completed = [space.completed(without_grain(schedules[n][1])) for n in at]
        points = np.array([[d[k.name] for k in space.knobs] for d in completed], np.int64)
        points = points.reshape(len(at), len(space.knobs))
        grains = np.array([schedules[n][1].get(GRAIN, OWN) for n in at], np.int64)
        costs[at] = space.cost(points)
        features[at] = grained_rows(SpaceFeatures(own, space), points, costs[at], grains)
    kept = np.flatnonzero(np.isfinite(costs))
    graph = kernel_graph(func, constants) if with_graph else None
    kind = kernel_kind(func, {s.family for s in found})
    return Sampled(kind, kept, KernelCandidates(features[kept], costs[kept], graph))


def _is_of(space: Space, family: str, decisions: Mapping[str, int]) -> bool:
    """Is this a point of the space?"""
    if space.family != family:
        return False
    chosen = space.completed(without_grain(decisions))
    choices = {k.name: k.choices for k in space.knobs}
    return choices.keys() == chosen.keys() and all(v in choices[name] for name, v in chosen.items())


# ------------------------------------------------------------------------------------------------------------- packets


def request_packet(
    kernel: KernelRow, schedules: Sequence[tuple[str, str]], target: Target, *, with_graph: bool
) -> bytes:
    """`schedules` are families and decisions as rows have them."""
    head = {
        "key": kernel.key,
        "constants": kernel.constants,
        "program": kernel.program,
        "source": kernel.source,
        "schedules": schedules,
        "with_graph": with_graph,
    }
    return pack(head, (kernel.text.encode(), target_to_json(target)))


def answer(head: Any, blobs: Sequence[bytes]) -> bytes:
    text, target = blobs
    kernel = KernelRow(head["key"], text.decode(), tuple(head["constants"]), head["program"], head["source"])
    schedules = [(family, json.loads(decisions)) for family, decisions in head["schedules"]]
    try:
        with compiling():
            made = sample(kernel, schedules, target_from_json(target), with_graph=head["with_graph"])
    except TilewrightError as e:  # its text is of another version
        return pack({"problem": str(e)})
    graph = made.candidates.graph
    arrays = [made.kept, made.candidates.features, made.candidates.costs]
    arrays += [] if graph is None else [graph.opcodes, graph.nodes, graph.edges]
    table = [[a.dtype.str, a.shape] for a in arrays]
    return pack({"problem": "", "kind": made.kind, "arrays": table}, [a.tobytes() for a in arrays])


def read_answer(head: Any, blobs: Sequence[bytes]) -> Sampled | str:
    """What was computed, or why it could not be."""
    if head["problem"]:
        return str(head["problem"])
    arrays: list[Any] = [
        np.frombuffer(b, np.dtype(dtype)).reshape(shape)
        for (dtype, shape), b in zip(head["arrays"], blobs, strict=True)
    ]
    kept, features, costs, *graph = arrays
    return Sampled(
        head["kind"], kept, KernelCandidates(features, costs, KernelGraph(*graph) if graph else None)
    )


def main() -> None:
    load_extensions()
    gc.freeze()
    answer_requests(answer)


if __name__ == "__main__":
    main()
