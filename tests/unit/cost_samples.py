"""Made-up timed schedules: kernels whose times differ from their costs in a way that features explain."""

from collections.abc import Sequence

import numpy as np

from tilewright.learned.candidates import KernelCandidates, KernelGraph
from tilewright.learned.features import ABSENT, FEATURES
from tilewright.learned.kernel_graph import NODE_FEATURES, OPCODES
from tilewright.training.rows import KernelKey
from tilewright.training.samples import KernelSamples

AT = {name: n for n, name in enumerate(FEATURES)}
KINDS = ("gemm", "convolution", "attention", "memory-bound")


def made_samples(
    programs: int = 12,
    kernels: int = 4,
    schedules: int = 24,
    seed: int = 0,
    noise: float = 0.01,
    names: Sequence[str] = (),
    with_graphs: bool = False,
) -> list[KernelSamples]:
    """Tiles of many rows take longer than their costs say, and the more so the larger the kernel."""
    rng = np.random.default_rng(seed)
    found: list[KernelSamples] = []
    for p in range(programs):
        for k in range(kernels):
            kind = KINDS[int(rng.integers(len(KINDS)))]
            size = rng.uniform(14.0, 24.0)
            features = np.full((schedules, len(FEATURES)), ABSENT)
            features[:, AT["work"]] = size
            features[:, AT["threads"]] = 1.0
            features[:, AT["is_apart"] : AT["is_winograd"] + 1] = 0.0
            features[:, AT["is_gemm"]] = 1.0
            rows = rng.integers(1, 9, schedules)
            features[:, AT["knob_rows"]] = np.log2(2.0 + rows)
            far = rng.uniform(-6.0, 0.0, schedules)
            features[:, AT["term_far"]] = far
            costs = 2.0 ** (size - 30.0) * np.exp(rng.normal(0.0, 0.25, schedules))
            features[:, AT["cost"]] = np.log2(costs)
            features[:, AT["over_cheapest"]] = np.log2(costs / costs.min())
            wrong = 0.1 * (rows - 4) * (size - 14.0) / 10.0 + np.where(far > -2.0, 0.3, 0.0)
            seconds = costs * np.exp(wrong + rng.normal(0.0, noise, schedules))
            found.append(
                KernelSamples(
                    KernelKey(f"{p}.{k}"),
                    names[p] if p < len(names) else f"program{p}",
                    "network",
                    kind,
                    1,
                    KernelCandidates(features, costs, made_graph(rng, size) if with_graphs else None),
                    seconds,
                    np.full(schedules, noise),
                )
            )
    return found


def made_graph(rng: np.random.Generator, size: float) -> KernelGraph:
    """A chain of a few nodes with another beside it, as large as the kernel."""
    count = int(rng.integers(4, 9))
    nodes = np.zeros((count, len(NODE_FEATURES)))
    nodes[:, NODE_FEATURES.index("elements")] = size
    edges = [(n, n + 1) for n in range(count - 1)] + [(0, count - 1)]
    return KernelGraph(rng.integers(0, len(OPCODES), count), nodes, np.array(edges, np.int64))
