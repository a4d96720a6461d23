"""Random numbers. They are drawn on the host, by numpy's generator.

A `seed` makes the stream of a node the same every time the model is loaded; runs of one session continue it. Which
numbers a seed gives is not specified by ONNX, so no two engines agree.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.axes import narrow
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import ONNX_DTYPES, OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_WHY = "random numbers are drawn by the host"
_MOST = 1 << 31  # numbers drawn at once: a shape may be any integers of the file


def _stream(node: OnnxNode) -> np.random.Generator:
    """Seeded, if the node says so. The seed is a float, of which all bits count."""
    seed = node.attrs.get("seed")
    return np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))


def _given_dtype(node: OnnxNode) -> DType | None:
    number = node.attrs.get("dtype")
    if number is None:
        return None
    if number not in ONNX_DTYPES:
        raise UserError(f"{node.op_type} of ONNX element type {number}, which has no type here")
    return ONNX_DTYPES[number]


def _drawn_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if any(n < 0 for n in shape) or math.prod(shape) > _MOST:
        raise UserError(f"a tensor of shape {list(shape)} cannot be drawn")
    return tuple(shape)


class RandomFill(HostOp):
    """Fills a tensor of its `shape`, or of its input's; of type `dtype`, or its input's."""

    __slots__ = ()
    why = _WHY
    is_pure = False
    shape: tuple[int, ...] | None
    dtype: DType | None

    @abstractmethod
    def draw(self, shape: tuple[int, ...]) -> Array:
        """Numbers as float64."""

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        like = tensor(inputs[0], "input 0") if self.shape is None else None
        shape = _drawn_shape(self.shape or () if like is None else like.shape)
        dtype = self.dtype or (DType.F32 if like is None else DType.of(like.dtype))
        if not dtype.is_float:
            raise UserError(f"random numbers of type {dtype.value}", hint="dtype has to be a float type")
        return (narrow(self.draw(shape), dtype),)


@dataclass(frozen=True, slots=True)
class RandomNormal(RandomFill):
    onnx = ("RandomNormal", "RandomNormalLike")
    shape: tuple[int, ...] | None
    dtype: DType | None
    mean: float
    scale: float
    stream: np.random.Generator = field(compare=False, repr=False)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        mean, scale = node.real("mean", 0.0), node.real("scale", 1.0)
        return cls(node.integers("shape"), _given_dtype(node), mean, scale, _stream(node))

    def draw(self, shape: tuple[int, ...]) -> Array:
        return self.mean + self.scale * np.asarray(self.stream.standard_normal(shape))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        # Only what does not depend on chance can be compared.
        fixed: dict[str, Any] = {"mean": 3.5, "scale": 0.0}
        yield HostSample("RandomNormal", (), {"shape": [2, 3], **fixed})
        yield HostSample("RandomNormal", (), {"shape": [2], "dtype": 11, "seed": 2.0, **fixed})
        yield HostSample("RandomNormalLike", (np.zeros((2, 2), np.float32),), fixed)
        yield HostSample("RandomNormalLike", (np.zeros((2, 2), np.int32),), {"dtype": 1, **fixed})


@dataclass(frozen=True, slots=True)
class RandomUniform(RandomFill):
    """From `low` up to, and without, `high`."""

    onnx = ("RandomUniform", "RandomUniformLike")
    shape: tuple[int, ...] | None
    dtype: DType | None
    low: float
    high: float
    stream: np.random.Generator = field(compare=False, repr=False)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        low, high = node.real("low", 0.0), node.real("high", 1.0)
        return cls(node.integers("shape"), _given_dtype(node), low, high, _stream(node))

    def draw(self, shape: tuple[int, ...]) -> Array:
        return self.low + (self.high - self.low) * np.asarray(self.stream.random(shape))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        fixed: dict[str, Any] = {"low": 2.5, "high": 2.5}
        yield HostSample("RandomUniform", (), {"shape": [2, 3], **fixed})
        yield HostSample("RandomUniform", (), {"shape": [0, 3], "dtype": 11, "seed": 2.0, **fixed})
        yield HostSample("RandomUniformLike", (np.zeros((2, 2), np.float64),), fixed)
        yield HostSample("RandomUniformLike", (np.zeros((2, 2), np.int32),), {"dtype": 1, **fixed})


@dataclass(frozen=True, slots=True)
class Bernoulli(HostOp):
    """1 with the probability that the input says, else 0."""

    onnx = ("Bernoulli",)
    why = _WHY
    is_pure = False
    dtype: DType | None
    stream: np.random.Generator = field(compare=False, repr=False)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(_given_dtype(node), _stream(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        p = tensor(inputs[0], "input 0")
        hits = np.asarray(self.stream.random(p.shape)) < p.astype(np.float64)
        return (hits.astype(p.dtype if self.dtype is None else self.dtype.numpy),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        sure = np.array([[0, 1, 0], [1, 1, 0]], np.float32)
        yield HostSample("Bernoulli", (sure,))
        yield HostSample("Bernoulli", (sure.astype(np.float64),), {"dtype": 7, "seed": 1.0})


@dataclass(frozen=True, slots=True)
class Multinomial(HostOp):
    """For each row, `count` classes, drawn independently; the row has the logarithms of their weights."""

    onnx = ("Multinomial",)
    why = _WHY
    is_pure = False
    dtype: DType
    count: int
    stream: np.random.Generator = field(compare=False, repr=False)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        dtype = _given_dtype(node) or DType.I32
        if dtype not in (DType.I32, DType.I64):
            raise UserError(
                f"Multinomial: classes of type {dtype.value}", hint="dtype has to be int32 or int64"
            )
        return cls(dtype, node.integer("sample_size", 1), _stream(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0").astype(np.float64)
        if x.ndim != 2 or not x.shape[1]:
            raise UserError(f"Multinomial of {list(x.shape)}: takes rows of one class or more")
        shape = _drawn_shape((x.shape[0], self.count))
        with np.errstate(all="ignore"):
            upto = np.exp(x - x.max(1, keepdims=True)).cumsum(1)
        if not (upto[:, -1] > 0).all():
            raise UserError("Multinomial: a row has no class of positive weight, or has NaN")
        # The class of a number below the sum of weights is the first one that reaches beyond it.
        numbers = np.asarray(self.stream.random(shape)) * upto[:, -1:]
        classes = np.zeros(shape, self.dtype.numpy)
        for row, number, reach in zip(classes, numbers, upto, strict=True):
            row[:] = np.minimum(reach.searchsorted(number, side="right"), x.shape[1] - 1)
        return (classes,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        sure = np.array([[-1e4, 0, -1e4], [5, -1e4, -1e4]], np.float32)
        yield HostSample("Multinomial", (sure,), {"sample_size": 4}, opset=18)
        yield HostSample("Multinomial", (sure,), {"sample_size": 2, "dtype": 7, "seed": 3.0}, opset=18)
