"""Problems of one of many labels for each of many variables: drawn at random, and the layouts of models."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeAlias

from onnx import ModelProto

from benchmarks.fingerprint import find_models
from examples.models import Net, resnet18
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.passes.fold_natively import without_values
from tilewright.ops.accuracy import DEFAULT
from tilewright.search.labelling import PairCosts, UnaryCosts
from tilewright.search.layout_choice import LayoutProblem
from tilewright.search.layout_terms import layout_terms
from tilewright.search.layouts import find_images
from tilewright.target.names import resolve_target

Edges: TypeAlias = list[tuple[int, int]]
Tables: TypeAlias = dict[tuple[int, int], list[list[float]]]

_MS = 1e-3  # seconds


@dataclass(frozen=True, slots=True)
class Labelling:
    """What a set of problems is called, and one of them."""

    kind: str
    alone: UnaryCosts
    pairs: PairCosts


# -------------------------------------------------------------------------------------------------------------- graphs


def chain_edges(r: Random, count: int) -> Edges:
    return [(v, v + 1) for v in range(count - 1)]


def tree_edges(r: Random, count: int) -> Edges:
    return [(r.randrange(v), v) for v in range(1, count)]


def grid_edges(r: Random, count: int) -> Edges:
    width = math.isqrt(count)
    across = [(v, v + 1) for v in range(count - 1) if (v + 1) % width]
    return across + [(v, v + width) for v in range(count - width)]


def residual_edges(r: Random, count: int) -> Edges:
    """A chain, with what goes around two or three of its edges."""
    skips = [(v, v + r.choice((2, 3))) for v in range(0, count - 3, 3)]
    return [*chain_edges(r, count), *skips]


def skip_edges(r: Random, count: int) -> Edges:
    """A chain down and up again, which meet at every third variable."""
    return [*chain_edges(r, count), *((v, count - 1 - v) for v in range(0, count // 2 - 1, 3))]


def dense_edges(r: Random, count: int, layers: int = 12) -> Edges:
    """Blocks in which every variable meets all before it; the last of one is the first of the next."""
    edges: Edges = []
    for first in range(0, count - 1, layers - 1):
        last = min(first + layers, count)
        edges += [(u, v) for u in range(first, last) for v in range(u + 1, last)]
    return edges


GRAPHS: dict[str, Callable[[Random, int], Edges]] = {
    "chains": chain_edges,
    "trees": tree_edges,
    "residuals": residual_edges,
    "skips": skip_edges,
    "grids": grid_edges,
    "dense blocks": dense_edges,
}


# --------------------------------------------------------------------------------------------------------------- costs


def any_costs(r: Random, edges: Sequence[tuple[int, int]], count: int, labels: int) -> Labelling:
    """Nothing is like anything else: the hardest."""
    alone = [[r.random() * _MS for _ in range(labels)] for _ in range(count)]
    return Labelling("any", alone, {e: _random_rows(r, labels) for e in edges})


def distance_costs(r: Random, edges: Sequence[tuple[int, int]], count: int, labels: int) -> Labelling:
    """Labels are points; a pair costs how far its labels are from each other, times a weight."""
    alone = [[r.random() * _MS for _ in range(labels)] for _ in range(count)]
    apart = _distances(r, labels)
    return Labelling("distances", alone, {e: _scaled(apart, r.random()) for e in edges})


def layout_costs(r: Random, edges: Sequence[tuple[int, int]], count: int, labels: int) -> Labelling:
    """As of layouts: most pairs are kernels that cost what suits them for each layout that they read and write, the
    others copy from one layout to another or must agree; the first and last variables are given, and some cannot have
    all labels.
    """
    apart = _distances(r, labels)
    sizes = [math.exp(r.uniform(-2.0, 0.0)) for _ in range(count)]
    alone = [[0.0 if r.random() < 0.5 else s * r.random() * _MS for _ in range(labels)] for s in sizes]
    for v, costs in enumerate(alone):
        if v in (0, count - 1):
            costs[1:] = [math.inf] * (labels - 1)
        elif r.random() < 0.1:
            costs[r.randrange(1, labels)] = math.inf
    pairs: Tables = {}
    for u, v in edges:
        size, kind = max(sizes[u], sizes[v]), r.random()
        if kind < 0.5:  # a kernel
            reads, writes = ([r.uniform(1.0, 1.6) for _ in range(labels)] for _ in range(2))
            pairs[u, v] = [[size * a * b * r.uniform(1.0, 1.1) * _MS for b in writes] for a in reads]
        elif kind < 0.9:  # a copy
            pairs[u, v] = _scaled(apart, size)
        else:
            rows = [[0.0 if x == y else math.inf for y in range(labels)] for x in range(labels)]
            pairs[u, v] = _scaled(apart, size) if {u, v} & {0, count - 1} else rows
    return Labelling("layouts", alone, pairs)


COSTS: tuple[Callable[[Random, Sequence[tuple[int, int]], int, int], Labelling], ...] = (
    any_costs,
    distance_costs,
    layout_costs,
)


def _random_rows(r: Random, labels: int) -> list[list[float]]:
    return [[r.random() * _MS for _ in range(labels)] for _ in range(labels)]


def _distances(r: Random, labels: int) -> list[list[float]]:
    at = [(r.random(), r.random()) for _ in range(labels)]
    return [[0.0 if p is q else 0.2 + abs(p[0] - q[0]) + abs(p[1] - q[1]) for q in at] for p in at]


def _scaled(rows: Sequence[Sequence[float]], by: float) -> list[list[float]]:
    return [[d * by * _MS for d in row] for row in rows]


# -------------------------------------------------------------------------------------------------------------- models


def dense_network() -> ModelProto:
    """Blocks of convolutions that each read all results before them, as in DenseNet."""
    net = Net(0)
    value, channels = net.op("Relu", _conv(net, "image", 3, 64, 3)), 64
    for layers in (6, 12):
        for _ in range(layers):
            inner = net.op("Relu", _conv(net, value, channels, 128, 1))
            value = net.op("Concat", value, _conv(net, inner, 128, 32, 3), axis=1)
            channels += 32
        value, channels = _conv(net, net.op("Relu", value), channels, channels // 2, 1), channels // 2
        value = net.op("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2])
    net.op("GlobalAveragePool", value)
    return net.model("dense", {"image": (1, 3, 56, 56)}, {"y": (1, channels, 1, 1)})


def _conv(net: Net, x: str, read: int, made: int, kernel: int) -> str:
    weight = net.normal("weight", (made, read, kernel, kernel), 0.05)
    return net.op("Conv", x, weight, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)


def model_problems(names: Sequence[str]) -> dict[str, LayoutProblem]:
    """The layouts of the models of the examples, and of those named of the benchmark suite that are there."""
    models: dict[str, ModelProto | Path] = {"resnet18, examples": resnet18(), "dense blocks": dense_network()}
    models |= {p.stem: p for p in find_models(tuple(names))}
    return {name: _layout_problem(model) for name, model in models.items()}


def _layout_problem(model: ModelProto | Path) -> LayoutProblem:
    context = PassContext(resolve_target("x86-64-v3"), DEFAULT.allows, run_constants=without_values)
    module = run_passes(ProgramState(load_graph(model)), context, until="joins").current
    images = find_images(module)
    return LayoutProblem(tuple(images), layout_terms(module, images, context.one_core))
