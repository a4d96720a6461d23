"""A network over the graph of a kernel and the features of its schedules: GraphSAGE, a reduction, a small perceptron.

What it computes is written once, over the operations that it needs (`Ops`): numpy runs it, torch trains it
(`training/torch_network.py`), and an ONNX graph is what a third kind of operations leaves behind
(`training/export_network.py`). Arrays have kernels along their first axis, and then

    codes      [kernels, nodes]              an opcode each; nodes of smaller graphs are padded, and their mask is 0
    nodes      [kernels, nodes, columns]     `NODE_FEATURES`
    reads      [kernels, nodes, nodes]       the mean over what a node reads; `read_by`: over who reads it
    mask       [kernels, nodes, 1]
    features   [kernels, schedules, columns] `FEATURES`
    result     [kernels, schedules]

With an *early* join, nodes know the schedule before messages are passed, and each schedule has a graph of its own;
with a *late* one the kernel is summed up once, and its schedules meet that summary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from tilewright.learned.candidates import KernelGraph
from tilewright.learned.features import ABSENT, FEATURES
from tilewright.learned.kernel_graph import NODE_FEATURES, OPCODES
from tilewright.support.arrays import Array, FloatArray, IntArray

JoinAt: TypeAlias = Literal["early", "late"]
NodeSummary: TypeAlias = Literal["columns", "attention"]
NetworkWeights: TypeAlias = Mapping[str, Any]

_LAYERS = 3
_HEADS = 4
_SMALL = 1e-6
_HIDDEN = -1e4  # added to what padding says, so that no maximum and no attention takes it; given
_FAR = 6.0  # spreads, given: what is further from the mean is as if it was this far


class Ops(Protocol):
    """Operations on arrays of some kind."""

    def matmul(self, a: Any, b: Any) -> Any: ...
    def add(self, a: Any, b: Any) -> Any: ...
    def multiply(self, a: Any, b: Any) -> Any: ...
    def leaky_relu(self, a: Any) -> Any: ...
    def sqrt(self, a: Any) -> Any: ...
    def divide(self, a: Any, b: Any) -> Any: ...
    def gather(self, table: Any, numbers: Any) -> Any: ...
    def sum(self, a: Any, axis: int) -> Any:
        """The axis stays, with one element."""
        ...

    def maximum(self, a: Any, axis: int) -> Any: ...
    def softmax(self, a: Any) -> Any: ...
    def transpose(self, a: Any) -> Any:
        """With the last two axes exchanged."""
        ...

    def concat(self, parts: Sequence[Any]) -> Any:
        """Along the last axis."""
        ...

    def unsqueeze(self, a: Any, axis: int) -> Any:
        """With another axis of one element."""
        ...

    def squeeze(self, a: Any, axis: int) -> Any:
        """Without this axis, which has one element."""
        ...

    def constant(self, value: float) -> Any: ...


@dataclass(frozen=True, slots=True)
class NetworkShape:
    join: JoinAt = "late"
    reduction: NodeSummary = "columns"
    width: int = 64
    is_blind: bool = False  # without the graph: an ablation


@dataclass(frozen=True, slots=True, eq=False)
class GraphBatch:
    """Inputs of a network, as its docstring has them."""

    codes: Any
    nodes: Any
    reads: Any
    read_by: Any
    mask: Any
    features: Any


def new_weights(shape: NetworkShape, seed: int) -> dict[str, FloatArray]:
    """At random, so that layers keep the spread of what passes; the last layer says 0, so that a correction starts with
    none.
    """
    rng = np.random.default_rng(seed)
    c = shape.width

    def made(rows: int, columns: int) -> FloatArray:
        return rng.normal(0.0, math.sqrt(2.0 / rows), (rows, columns))

    found: dict[str, FloatArray] = {
        "opcodes": rng.normal(0.0, 1.0, (len(OPCODES), c)),
        "nodes": made(len(NODE_FEATURES), c),
        "nodes_bias": np.zeros(c),
    }
    if shape.join == "early":
        found["early"] = made(len(FEATURES), c)
    for n in range(_LAYERS):
        found |= {f"own{n}": made(c, c), f"reads{n}": made(c, c), f"read_by{n}": made(c, c)}
        found |= {f"sent{n}": made(c, c), f"bias{n}": np.zeros(c)}
    if shape.reduction == "attention":
        for head in range(_HEADS):
            found |= {f"{name}{head}": made(c, c // _HEADS) for name in ("query", "key", "value")}
        found |= {"attended": made(c, c), "forward": made(c, 2 * c), "forward_bias": np.zeros(2 * c)}
        found["back"] = made(2 * c, c)
    found |= {"kernel": made(3 * c, c), "schedule": made(len(FEATURES), c), "hidden_bias": np.zeros(c)}
    found |= {"second": made(c, c), "second_bias": np.zeros(c), "last": np.zeros((c, 1))}
    return found


def forward(ops: Ops, shape: NetworkShape, w: NetworkWeights, batch: GraphBatch) -> Any:
    """The scores of all schedules of all kernels of a batch."""
    schedules = ops.matmul(batch.features, w["schedule"])
    if shape.is_blind:
        hidden = ops.leaky_relu(ops.add(schedules, w["hidden_bias"]))
        return _head(ops, w, hidden)
    mask, reads, read_by = batch.mask, batch.reads, batch.read_by
    h = ops.add(ops.gather(w["opcodes"], batch.codes), ops.matmul(batch.nodes, w["nodes"]))
    h = ops.add(h, w["nodes_bias"])
    if shape.join == "early":  # a graph for each schedule: another axis behind that of kernels
        mask, reads, read_by = (ops.unsqueeze(a, 1) for a in (mask, reads, read_by))
        h = ops.add(ops.unsqueeze(h, 1), ops.unsqueeze(ops.matmul(batch.features, w["early"]), 2))
    h = ops.multiply(ops.leaky_relu(h), mask)
    for n in range(_LAYERS):
        sent = ops.leaky_relu(ops.matmul(h, w[f"sent{n}"]))
        own = ops.add(ops.matmul(h, w[f"own{n}"]), w[f"bias{n}"])
        got = ops.add(
            ops.matmul(ops.matmul(reads, sent), w[f"reads{n}"]),
            ops.matmul(ops.matmul(read_by, sent), w[f"read_by{n}"]),
        )
        h = ops.leaky_relu(ops.add(own, got))
        length = ops.sqrt(ops.add(ops.sum(ops.multiply(h, h), -1), ops.constant(_SMALL)))
        h = ops.multiply(ops.divide(h, length), mask)
    hidden_mask = ops.multiply(ops.add(mask, ops.constant(-1.0)), ops.constant(-_HIDDEN))
    if shape.reduction == "attention":
        h = _attended(ops, w, h, hidden_mask, mask)
    kernel = ops.matmul(_reduced(ops, h, mask, hidden_mask), w["kernel"])
    if shape.join == "early":
        kernel = ops.squeeze(kernel, 2)
    return _head(ops, w, ops.leaky_relu(ops.add(ops.add(schedules, kernel), w["hidden_bias"])))


def _head(ops: Ops, w: NetworkWeights, hidden: Any) -> Any:
    hidden = ops.leaky_relu(ops.add(ops.matmul(hidden, w["second"]), w["second_bias"]))
    return ops.squeeze(ops.matmul(hidden, w["last"]), -1)


def _reduced(ops: Ops, h: Any, mask: Any, hidden_mask: Any) -> Any:
    """Mean, maximum and sum of each column over nodes; sums are scaled down, as graphs have tens of nodes."""
    total = ops.sum(h, -2)
    mean = ops.divide(total, ops.sum(mask, -2))
    largest = ops.maximum(ops.add(h, hidden_mask), -2)
    return ops.concat([mean, largest, ops.multiply(total, ops.constant(0.1))])


def _attended(ops: Ops, w: NetworkWeights, h: Any, hidden_mask: Any, mask: Any) -> Any:
    """A layer of a transformer's encoder over the nodes, without normalization: rows have length 1 already."""
    unseen = ops.transpose(hidden_mask)
    heads: list[Any] = []
    for n in range(_HEADS):
        query, key, value = (ops.matmul(h, w[f"{name}{n}"]) for name in ("query", "key", "value"))
        said = ops.softmax(ops.add(ops.matmul(query, ops.transpose(key)), unseen))
        heads.append(ops.matmul(said, value))
    h = ops.add(h, ops.matmul(ops.concat(heads), w["attended"]))
    wide = ops.leaky_relu(ops.add(ops.matmul(h, w["forward"]), w["forward_bias"]))
    return ops.multiply(ops.add(h, ops.matmul(wide, w["back"])), mask)


class ArrayOps:
    """What arrays of numpy and of torch write alike."""

    def matmul(self, a: Any, b: Any) -> Any:
        return a @ b

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def multiply(self, a: Any, b: Any) -> Any:
        return a * b

    def divide(self, a: Any, b: Any) -> Any:
        return a / b

    def gather(self, table: Any, numbers: Any) -> Any:
        return table[numbers]

    def constant(self, value: float) -> Any:
        return value


class NumpyOps(ArrayOps):
    """What is run without torch."""

    def leaky_relu(self, a: Any) -> Any:
        return np.maximum(a, 0.01 * a)

    def sqrt(self, a: Any) -> Any:
        return np.sqrt(a)

    def sum(self, a: Any, axis: int) -> Any:
        return a.sum(axis=axis, keepdims=True)

    def maximum(self, a: Any, axis: int) -> Any:
        return a.max(axis=axis, keepdims=True)

    def softmax(self, a: Any) -> Any:
        e = np.exp(a - a.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def transpose(self, a: Any) -> Any:
        return np.swapaxes(a, -1, -2)

    def concat(self, parts: Sequence[Any]) -> Any:
        return np.concatenate(parts, axis=-1)

    def unsqueeze(self, a: Any, axis: int) -> Any:
        return np.expand_dims(a, axis)

    def squeeze(self, a: Any, axis: int) -> Any:
        return np.squeeze(a, axis)


# ------------------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """Columns to what networks like: around 0, a few units wide. What is absent is a unit below what is least."""

    centre: FloatArray
    spread: FloatArray
    absent: FloatArray

    @classmethod
    def of(cls, rows: FloatArray) -> "Scaling":
        least = np.where(rows == ABSENT, np.inf, rows).min(axis=0)
        absent = np.where(np.isfinite(least), least, 0.0) - 1.0
        filled = np.where(rows == ABSENT, absent, rows)
        spread = filled.std(axis=0)
        return cls(filled.mean(axis=0), np.where(spread > _SMALL, spread, 1.0), absent)

    def __call__(self, rows: FloatArray) -> FloatArray:
        filled = np.where(rows == ABSENT, self.absent, rows)
        return np.clip((filled - self.centre) / self.spread, -_FAR, _FAR)


def graph_batch(
    graphs: Sequence[KernelGraph], features: Sequence[FloatArray], node_scaling: Scaling, scaling: Scaling
) -> GraphBatch:
    """Padded to the largest graph, and to as many schedules as one of them has."""
    count, most = len(graphs), max(len(g.opcodes) for g in graphs)
    schedules = max(map(len, features))
    codes: IntArray = np.zeros((count, most), np.int64)
    nodes = np.zeros((count, most, len(NODE_FEATURES)))
    reads, read_by = np.zeros((count, most, most)), np.zeros((count, most, most))
    mask = np.zeros((count, most, 1))
    rows = np.zeros((count, schedules, len(FEATURES)))
    for n, (graph, some) in enumerate(zip(graphs, features, strict=True)):
        size = len(graph.opcodes)
        codes[n, :size], mask[n, :size] = graph.opcodes, 1.0
        nodes[n, :size] = node_scaling(graph.nodes)
        if len(graph.edges):
            reads[n, graph.edges[:, 1], graph.edges[:, 0]] = 1.0
            read_by[n, graph.edges[:, 0], graph.edges[:, 1]] = 1.0
        rows[n, : len(some)] = scaling(some)
    return GraphBatch(codes, nodes, _means(reads), _means(read_by), mask, rows)


def _means(adjacent: Array) -> Array:
    return adjacent / np.maximum(adjacent.sum(axis=-1, keepdims=True), 1.0)
