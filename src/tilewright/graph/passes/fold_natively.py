"""Compute at compile time what saves more in a run than its bytes cost, with native code.

    e = LayerNormalization(embeddings)
    k = MatMul(e, wk)                          s = MatMul(q, k')
    s = MatMul(q, k)                     →     where the constant k' holds the result

`fold_constants` computes with numpy what is small. What it leaves over is compiled and run once, like any other graph:
that takes as long as it would have taken in every run. Which nodes this is about: `graph.constant_part`.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from tilewright.graph.constant_part import constant_part, with_constants
from tilewright.graph.graph import Graph
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.support.arrays import Array

# The outputs of a graph from its inputs, by name.
RunGraph: TypeAlias = Callable[[Graph, Mapping[str, Array]], Mapping[str, Array]]


def without_values(part: Graph, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """Zeros for results, for those who only want to know what the graph looks like."""
    return {v.name: np.zeros(v.shape, v.type.dtype.numpy) for v in part.outputs}


def fold_natively(graph: Graph, run: RunGraph) -> Graph:
    graph = fold_constants(graph)
    part = constant_part(graph)
    if part is None:
        return graph
    results = run(part, {v.name: graph.constants[v] for v in part.inputs})
    return with_constants(graph, {v: results[v.name] for v in part.outputs})
