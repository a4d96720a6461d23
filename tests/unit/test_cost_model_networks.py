"""Networks over graphs of kernels: one definition for numpy, torch and ONNX; and what training makes of it."""

from dataclasses import replace

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.unit.cost_samples import made_samples
from tilewright.learned.analytical import AnalyticalModel
from tilewright.learned.candidates import CostModel, KernelGraph
from tilewright.learned.graph_network import (
    GraphBatch,
    NetworkShape,
    NumpyOps,
    Scaling,
    forward,
    graph_batch,
    new_weights,
)
from tilewright.learned.kernel_graph import NODE_FEATURES
from tilewright.support.arrays import FloatArray
from tilewright.training.evaluate import predict
from tilewright.training.export_network import network_model
from tilewright.training.metrics import kernel_taus
from tilewright.training.samples import KernelSamples
from tilewright.training.torch_network import NetworkSettings, train_network

SAMPLES = made_samples(programs=10, kernels=4, schedules=16, with_graphs=True)
SHAPES = [
    NetworkShape("late", "columns", 16),
    NetworkShape("late", "attention", 16),
    NetworkShape("early", "columns", 16),
    NetworkShape("early", "attention", 16),
    NetworkShape(width=16, is_blind=True),
]


def graph_of(samples: KernelSamples) -> KernelGraph:
    assert samples.candidates.graph is not None
    return samples.candidates.graph


def batch_of(samples: list[KernelSamples]) -> GraphBatch:
    graphs = [graph_of(s) for s in samples]
    return graph_batch(
        graphs,
        [s.candidates.features for s in samples],
        Scaling.of(np.concatenate([g.nodes for g in graphs])),
        Scaling.of(np.concatenate([s.candidates.features for s in samples])),
    )


def weights_of(shape: NetworkShape) -> dict[str, FloatArray]:
    made = new_weights(shape, seed=0)
    return made | {"last": np.random.default_rng(1).normal(0.0, 0.3, made["last"].shape)}


def padded(batch: GraphBatch, nodes: int, rows: int) -> GraphBatch:
    """With more nodes and schedules, which are not there."""
    more = nodes - batch.mask.shape[1]

    def wide(array: FloatArray, *axes: int) -> FloatArray:
        return np.pad(array, [(0, more if n in axes else 0) for n in range(array.ndim)])

    features = np.pad(batch.features, [(0, 0), (0, rows - batch.features.shape[1]), (0, 0)])
    return GraphBatch(
        wide(batch.codes, 1),
        wide(batch.nodes, 1),
        wide(batch.reads, 1, 2),
        wide(batch.read_by, 1, 2),
        wide(batch.mask, 1),
        features,
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_padding_changes_nothing(shape: NetworkShape) -> None:
    weights = weights_of(shape)
    batch = batch_of(SAMPLES[:3])
    wanted = forward(NumpyOps(), shape, weights, batch)
    assert wanted.shape == (3, 16) and np.ptp(wanted) > 0.1
    wide = forward(NumpyOps(), shape, weights, padded(batch, 30, 20))
    assert wide[:, :16] == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_graph_that_is_written_computes_the_same(shape: NetworkShape) -> None:
    weights = weights_of(shape)
    batch = padded(batch_of(SAMPLES[:1]), 12, 16)
    wanted = forward(NumpyOps(), shape, weights, batch)
    model = network_model(shape, weights, nodes=12, rows=16)
    names = {i.name for i in model.graph.input}
    feeds = {
        f"given_{n}": getattr(batch, n) for n in ("codes", "nodes", "reads", "read_by", "mask", "features")
    }
    feeds = {n: a if a.dtype == np.int64 else a.astype(np.float32) for n, a in feeds.items() if n in names}
    (by_reference,) = ReferenceEvaluator(model).run(None, feeds)
    assert by_reference == pytest.approx(wanted, abs=1e-4)
    if shape in (SHAPES[1], SHAPES[2]):
        with tilewright.load(model, threads=1) as session:
            assert session.run(feeds)["scores"] == pytest.approx(wanted, abs=1e-4)


def test_messages_pass_along_edges() -> None:
    """What a node says reaches its neighbours: the same nodes with other edges are another kernel."""
    one = SAMPLES[0]
    graph = graph_of(one)
    other = KernelGraph(graph.opcodes, graph.nodes, graph.edges[::2])
    alone = replace(one, candidates=replace(one.candidates, graph=other))
    weights = weights_of(SHAPES[0])
    scores = [forward(NumpyOps(), SHAPES[0], weights, batch_of([s])) for s in (one, alone)]
    assert np.abs(scores[0] - scores[1]).max() > 1e-3


def test_scaling_puts_what_is_absent_below_what_is_least() -> None:
    rows = np.array([[1.0, 5.0], [3.0, 5.0], [-64.0, 5.0]])
    scaled = Scaling.of(rows)(rows)
    assert scaled[2, 0] < scaled[0, 0] < scaled[1, 0] and not scaled[:, 1].any()
    assert np.abs(Scaling.of(rows)(np.array([[1e9, 5.0]]))).max() == 6.0
    assert len(NODE_FEATURES) == graph_of(SAMPLES[0]).nodes.shape[1]


def tau(model: CostModel, samples: list[KernelSamples]) -> float:
    return float(np.nanmean(kernel_taus(samples, predict(model, samples))))


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]], ids=str)
def test_a_trained_network_ranks_other_programs_better_than_costs_do(shape: NetworkShape) -> None:
    pytest.importorskip("torch")
    settings = NetworkSettings(replace(shape, width=16), epochs=12, rate=8e-3)
    model = train_network(SAMPLES[:32], settings, seed=0)
    stated = tau(AnalyticalModel(), SAMPLES[32:])
    assert tau(model, SAMPLES[32:]) > stated + 0.1
