"""Dropout: nothing at inference; in training, which elements are dropped is drawn by the host."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, const
from tilewright.ops.axes import FLOATS
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.movement import Identity
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import Kind, OnHost, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Dropout(Op):
    """x as it is, and a mask that keeps all of it."""

    onnx = ("Dropout",)
    kind = Kind.MOVEMENT
    mask: DType = DType.BOOL

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Op, tuple[int, ...]]:
        if node.has(2) and node.value(2, "the training mode").any():
            raise OnHost("in training, dropped elements are drawn at random")
        if node.outputs < 2:
            return Identity(), (0,)
        return cls(node.input(0).dtype if node.opset < 10 else DType.BOOL), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in FLOATS:
            raise self.misfit(inputs, "only floats")
        return x, TensorType(self.mask, x.shape)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        kept = const(True if self.mask is DType.BOOL else 1, self.mask)
        return (
            b.compute(name, x.shape, lambda *i: x[i]),
            b.compute(f"{name}_1", x.shape, lambda *i: kept),
        )

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return inputs[0], np.ones(inputs[0].shape, self.mask.numpy)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, ratio, inference = normal(rng, 2, 3), np.array(0.5, np.float32), np.asarray(False)
        yield cls.sample(x, ratio, opset=13)
        yield cls.sample(x, ratio, inference, opset=13, outputs=2)
        yield Sample(
            cls.sample(x, opset=10, outputs=2, ratio=0.25).op, (x,)
        )  # onnxruntime's mask keeps nothing
        yield Sample(cls(DType.F32), (x,))


@dataclass(frozen=True, slots=True)
class DropoutInTraining(HostOp):
    """Elements are dropped with a probability; the others grow, so that the expected value stays."""

    onnx = ("Dropout",)
    why = "in training, dropped elements are drawn at random"
    is_pure = False
    seed: int | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.integer("seed", 0) % (1 << 32) if "seed" in node.attrs else None)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, ratio, training = (*inputs, None, None)[:3]
        x = tensor(x, "input 0")
        probability = 0.5 if ratio is None else float(tensor(ratio, "the ratio").item())
        if not 0 <= probability < 1:
            raise UserError(f"a ratio of {probability} is not in [0, 1)")
        if training is None or not tensor(training, "the training mode").any() or probability == 0:
            return x, np.ones(x.shape, bool)
        kept = np.random.RandomState(self.seed).uniform(0, 1, x.shape) >= probability
        grown = x.astype(np.float64) / (1 - probability)
        return np.where(kept, grown, 0).astype(x.dtype), kept

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, training = normal(rng, 2, 3), np.asarray(True)
        yield HostSample("Dropout", (x, np.array(0.0, np.float32), training), outputs=2)
        yield HostSample("Dropout", (x, None, np.asarray(False)), outputs=2)
