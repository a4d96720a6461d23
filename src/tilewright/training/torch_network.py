"""Training networks over graphs of kernels: torch, and the only module that touches it.

It is an extra: what it trains is a table of weights, which numpy runs, or Tilewright as an ONNX model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np

from tilewright.learned.analytical import log_costs
from tilewright.learned.candidates import KernelCandidates, KernelGraph
from tilewright.learned.graph_network import (
    ArrayOps,
    GraphBatch,
    NetworkShape,
    NumpyOps,
    Scaling,
    forward,
    graph_batch,
    new_weights,
)
from tilewright.learned.guard import TrustGuard
from tilewright.support.arrays import FloatArray
from tilewright.support.errors import InternalError, UserError
from tilewright.training.pairs import TEMPERATURE
from tilewright.training.samples import KernelSamples
from tilewright.training.table import known_noise, usable
from tilewright.training.trees import guard_of

_LEAST_SHARED = 5000  # rows; given
NetworkLoss: TypeAlias = Literal["rank", "absolute"]


_SHAPE = NetworkShape()


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Sizes and rates are those of the public descendants of the TPU paper, but for what its text does not tell."""

    shape: NetworkShape = _SHAPE
    loss: NetworkLoss = "rank"
    epochs: int = 60
    kernels: int = 8  # of a step
    schedules: int = 32  # of a kernel in a step
    rate: float = 2e-3
    decay: float = 1e-4
    anchor: float = 0.05  # of squared errors beside pairs
    is_guarded: bool = True


NETWORK_SCHEDULES = NetworkSettings()
NETWORK_SECONDS = NetworkSettings(shape=NetworkShape("late", "attention"), loss="absolute")


@dataclass(frozen=True, slots=True, eq=False)
class GraphModel:
    """A cost model. Candidates must have their graph."""

    shape: NetworkShape
    weights: dict[str, FloatArray]
    node_scaling: Scaling
    scaling: Scaling
    guard: TrustGuard | None

    @property
    def name(self) -> str:
        return "gnn"

    def log_seconds(self, candidates: KernelCandidates) -> FloatArray:
        batch = graph_batch(
            [_graph(candidates.graph)], [candidates.features], self.node_scaling, self.scaling
        )
        scores: FloatArray = forward(NumpyOps(), self.shape, self.weights, batch)[0]
        trust = 1.0 if self.guard is None else self.guard.trust(candidates.features)
        return log_costs(candidates) + trust * scores


def _graph(graph: KernelGraph | None) -> KernelGraph:
    if graph is None:
        raise InternalError("samples were made without graphs")
    return graph


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """Some kernels with some of their schedules."""

    batch: GraphBatch
    log_costs: FloatArray  # [kernels, schedules]; padded with 0
    log_seconds: FloatArray
    noise: FloatArray
    mask: FloatArray

    @classmethod
    def of(
        cls,
        samples: Sequence[KernelSamples],
        most: int,
        rng: np.random.Generator,
        node_scaling: Scaling,
        scaling: Scaling,
    ) -> "_Step":
        taken = [rng.permutation(len(s))[:most] for s in samples]
        features = [s.candidates.features[t] for s, t in zip(samples, taken, strict=True)]
        graphs = [_graph(s.candidates.graph) for s in samples]
        batch = graph_batch(graphs, features, node_scaling, scaling)
        shape = len(samples), max(map(len, taken))
        arrays = [np.zeros(shape) for _ in range(4)]
        for n, (s, t) in enumerate(zip(samples, taken, strict=True)):
            rows = log_costs(s.candidates)[t], np.log(s.seconds[t]), known_noise(s.noise[t]), np.ones(len(t))
            for array, values in zip(arrays, rows, strict=True):
                array[n, : len(t)] = values
        return cls(batch, *arrays)


def train_network(samples: Sequence[KernelSamples], settings: NetworkSettings, seed: int) -> GraphModel:
    """A network that corrects the closed form."""
    torch = _torch()
    some = [s for s in map(usable, samples) if len(s) > 1 or (len(s) and settings.loss == "absolute")]
    if not some:
        raise UserError("there is nothing to train on", hint="build a corpus with `tilewright corpus build`")
    threads = torch.get_num_threads()
    # Of few rows, threads would wait for each other longer than they work.
    torch.set_num_threads(min(threads, 1 if sum(map(len, some)) < _LEAST_SHARED else 2))
    try:
        return _trained(torch, some, settings, seed)
    finally:
        torch.set_num_threads(threads)


def _trained(torch: Any, some: Sequence[KernelSamples], settings: NetworkSettings, seed: int) -> GraphModel:
    rng = np.random.default_rng(seed)
    node_scaling = Scaling.of(np.concatenate([_graph(s.candidates.graph).nodes for s in some]))
    scaling = Scaling.of(np.concatenate([s.candidates.features for s in some]))
    weights = {
        name: torch.nn.Parameter(torch.tensor(array, dtype=torch.float32))
        for name, array in new_weights(settings.shape, seed).items()
    }
    steps = settings.epochs * math.ceil(len(some) / settings.kernels)
    optimizer = torch.optim.AdamW(list(weights.values()), lr=settings.rate, weight_decay=settings.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=settings.rate, total_steps=steps, pct_start=0.1
    )
    ops = TorchOps(torch)
    for _ in range(settings.epochs):
        for kernels in _shuffled(some, settings.kernels, rng):
            step = _Step.of(kernels, settings.schedules, rng, node_scaling, scaling)
            optimizer.zero_grad()
            scores = forward(ops, settings.shape, weights, _tensors(torch, step.batch))
            _loss(torch, step, scores, settings).backward()
            torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
            optimizer.step()
            schedule.step()
    trained = {name: w.detach().numpy().astype(np.float64) for name, w in weights.items()}
    guard = guard_of(some) if settings.is_guarded else None
    return GraphModel(settings.shape, trained, node_scaling, scaling, guard)


def _shuffled(
    samples: Sequence[KernelSamples], count: int, rng: np.random.Generator
) -> list[list[KernelSamples]]:
    """In groups whose graphs are about as large, so that little is padded; groups in any order."""
    sizes = np.array([len(_graph(s.candidates.graph).opcodes) for s in samples])
    order = np.argsort(sizes + rng.uniform(0.0, 8.0, len(sizes)), kind="stable")
    groups = [[samples[int(n)] for n in order[at : at + count]] for at in range(0, len(order), count)]
    return [groups[int(n)] for n in rng.permutation(len(groups))]


def _loss(torch: Any, step: _Step, scores: Any, settings: NetworkSettings) -> Any:
    """As in `training/pairs.py`: soft pairs within kernels, and squared errors beside them."""
    costs, seconds, noise, mask = (
        torch.tensor(a, dtype=torch.float32)
        for a in (step.log_costs, step.log_seconds, step.noise, step.mask)
    )
    said = costs + scores
    sure = mask / (1.0 + (noise / TEMPERATURE) ** 2)
    error = ((said - seconds) ** 2 * sure).sum() / mask.sum()
    if settings.loss == "absolute":
        return error
    gaps = seconds[:, None, :] - seconds[:, :, None]
    pair_noise = torch.hypot(noise[:, None, :], noise[:, :, None])
    counts = (gaps > pair_noise) * mask[:, None, :] * mask[:, :, None]
    sure = counts / (1.0 + (pair_noise / TEMPERATURE) ** 2)
    margins = (said[:, None, :] - said[:, :, None]) / TEMPERATURE
    targets = torch.sigmoid(gaps / TEMPERATURE)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(margins, targets, reduction="none")
    pairs = counts.sum(dim=(1, 2))
    each = (losses * sure).sum(dim=(1, 2)) / pairs.clamp(min=1.0)
    return each.sum() / (pairs > 0).sum().clamp(min=1) + settings.anchor * error


def _tensors(torch: Any, batch: GraphBatch) -> GraphBatch:
    def single(array: Any) -> Any:
        return torch.tensor(array, dtype=torch.float32)

    return GraphBatch(
        torch.tensor(batch.codes),
        *(single(a) for a in (batch.nodes, batch.reads, batch.read_by, batch.mask, batch.features)),
    )


class TorchOps(ArrayOps):
    """What is trained."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def leaky_relu(self, a: Any) -> Any:
        return self._torch.nn.functional.leaky_relu(a, 0.01)

    def sqrt(self, a: Any) -> Any:
        return a.sqrt()

    def sum(self, a: Any, axis: int) -> Any:
        return a.sum(dim=axis, keepdim=True)

    def maximum(self, a: Any, axis: int) -> Any:
        return a.amax(dim=axis, keepdim=True)

    def softmax(self, a: Any) -> Any:
        return a.softmax(dim=-1)

    def transpose(self, a: Any) -> Any:
        return a.transpose(-1, -2)

    def concat(self, parts: Sequence[Any]) -> Any:
        return self._torch.cat(list(parts), dim=-1)

    def unsqueeze(self, a: Any, axis: int) -> Any:
        return a.unsqueeze(axis)

    def squeeze(self, a: Any, axis: int) -> Any:
        return a.squeeze(axis)


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as e:
        raise UserError(
            "PyTorch, which trains networks, is not installed", hint="pip install 'tilewright[torch]'"
        ) from e
