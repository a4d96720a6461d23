"""Columns of numbers, made ready for a model: scaled, normalised, imputed, joined (domain ai.onnx.ml)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_ML = "ai.onnx.ml"
_WHY = "it is part of classic models, which the host runs"
_MOST_FEATURES = 1 << 26  # of one row


@dataclass(frozen=True, slots=True)
class ArrayFeatureExtractor(HostOp):
    """Columns of the last axis, by their numbers."""

    onnx = ("ai.onnx.ml.ArrayFeatureExtractor",)
    why = _WHY

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, columns = tensor(inputs[0], "input 0"), tensor(inputs[1], "the columns").reshape(-1)
        if x.ndim == 0 or not columns.size:
            raise UserError("there are no columns to take")
        if columns.min() < 0 or columns.max() >= x.shape[-1]:
            raise UserError(f"columns {columns.min()} to {columns.max()} of {x.shape[-1]}")
        taken = np.take(x, columns, -1)
        return (taken.reshape(1, -1) if x.ndim == 1 else taken,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        for columns in ([1], [3, 0, 3], [[2], [1]]):
            yield HostSample("ArrayFeatureExtractor", (x, np.array(columns)), domain=_ML)
        yield HostSample("ArrayFeatureExtractor", (x[0].astype(np.int64), np.array([2])), domain=_ML)
        words = np.array([["a", "b"], ["c", "d"]], object)
        yield HostSample("ArrayFeatureExtractor", (words, np.array([1])), domain=_ML)


@dataclass(frozen=True, slots=True)
class Binarizer(HostOp):
    """1 where an element is above the threshold, otherwise 0."""

    onnx = ("ai.onnx.ml.Binarizer",)
    why = _WHY
    threshold: float

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.real("threshold", 0.0))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        return ((x > self.threshold).astype(x.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.array([[0.5, -1.0], [np.nan, 2.0]], np.float32)
        yield HostSample("Binarizer", (x,), domain=_ML)
        yield HostSample("Binarizer", (x,), {"threshold": 0.5}, domain=_ML)


@dataclass(frozen=True, slots=True, eq=False)
class Scaler(HostOp):
    """(x - offset) * scale, with one of them for each column, or one for all."""

    onnx = ("ai.onnx.ml.Scaler",)
    why = _WHY
    offset: Array
    scale: Array

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(_reals(node, "offset"), _reals(node, "scale"))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        for values in (self.offset, self.scale):
            if values.size not in (1, x.shape[-1] if x.ndim else 1):
                raise UserError(f"{values.size} values for rows of shape {list(x.shape)}")
        return (((x - self.offset) * self.scale).astype(np.float32),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        attrs: dict[str, Any] = {"offset": [1.0, -2.0, 0.5], "scale": [2.0, 3.0, 0.25]}
        for dtype in (np.float32, np.float64, np.int32, np.int64):
            x = (rng.standard_normal((2, 3)) * 9).astype(dtype)
            yield HostSample("Scaler", (x,), attrs, domain=_ML)
        yield HostSample("Scaler", (x,), {"offset": [3.0], "scale": [2.0]}, domain=_ML)


@dataclass(frozen=True, slots=True)
class Normalizer(HostOp):
    """Every row, divided by its norm, unless that is 0. Rows are along axis 1, or all of a vector."""

    onnx = ("ai.onnx.ml.Normalizer",)
    why = _WHY
    norm: str

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        norm = node.text("norm", "MAX")
        if norm not in ("MAX", "L1", "L2"):
            raise UserError(f"norm is {norm!r}", hint="it should be MAX, L1 or L2")
        return cls(norm)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0").astype(np.float32)
        axis = 1 if x.ndim > 1 else 0
        match self.norm:
            case "L1":
                size = np.abs(x).sum(axis, keepdims=True)
            case "L2":
                size = np.sqrt(np.square(x).sum(axis, keepdims=True))
            case _:
                size = x.max(axis, keepdims=True)
        return (x / np.where(size == 0, np.float32(1), size),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = rng.standard_normal((3, 4))
        x[1] = 0
        for norm in ("MAX", "L1", "L2"):
            yield HostSample("Normalizer", (x.astype(np.float32),), {"norm": norm}, domain=_ML)
            yield HostSample("Normalizer", ((x * 9).astype(np.int64),), {"norm": norm}, domain=_ML)
            yield HostSample("Normalizer", (x[0],), {"norm": norm}, domain=_ML)


@dataclass(frozen=True, slots=True, eq=False)
class Imputer(HostOp):
    """Puts a value, one for each column or one for all, where an element is the one that stands for a missing one."""

    onnx = ("ai.onnx.ml.Imputer",)
    why = _WHY
    reals: Array
    integers: Array
    missing_real: float
    missing_integer: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        integers = np.array(node.attrs.get("imputed_value_int64s") or [], np.int64)
        missing = node.real("replaced_value_float", 0.0), node.integer("replaced_value_int64", 0)
        return cls(_reals(node, "imputed_value_floats"), integers, *missing)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        is_real = x.dtype.kind == "f"
        values = self.reals if is_real else self.integers
        if values.size not in (1, x.shape[-1] if x.ndim else 1):
            raise UserError(f"{values.size} values to impute in rows of shape {list(x.shape)}")
        if is_real and np.isnan(self.missing_real):
            is_missing = np.isnan(x)
        else:
            is_missing = x == (self.missing_real if is_real else self.missing_integer)
        return (np.where(is_missing, values.astype(x.dtype), x),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.array([[1.0, np.nan], [-5.0, 0.0]], np.float32)
        each = {"imputed_value_floats": [7.0, 8.0], "replaced_value_float": float("nan")}
        yield HostSample("Imputer", (x,), each, domain=_ML)
        yield HostSample("Imputer", (x,), {"imputed_value_floats": [7.0]}, domain=_ML)
        whole: dict[str, Any] = {"imputed_value_int64s": [7], "replaced_value_int64": -5}
        yield HostSample("Imputer", (np.array([[1, -5], [-5, 0]]),), whole, domain=_ML)


@dataclass(frozen=True, slots=True)
class FeatureVectorizer(HostOp):
    """The columns of all inputs side by side; of each as many as it is said to have, filled up with zeros."""

    onnx = ("ai.onnx.ml.FeatureVectorizer",)
    why = _WHY
    widths: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        widths = node.integers("inputdimensions") or ()
        if min(widths, default=0) < 0 or sum(widths) > _MOST_FEATURES:
            raise UserError(f"inputdimensions are {list(widths[:10])}")
        return cls(widths)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        if len(inputs) != len(self.widths):
            raise UserError(f"{len(self.widths)} inputdimensions for {len(inputs)} inputs")
        columns: list[Array] = []
        for value, width in zip(inputs, self.widths, strict=True):
            x = np.atleast_2d(tensor(value, "an input"))
            x = x.reshape(x.shape[0], -1)[:, :width].astype(np.float32)
            columns.append(np.pad(x, ((0, 0), (0, width - x.shape[1]))))
        return (np.concatenate(columns, 1),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        a = rng.standard_normal((2, 3)).astype(np.float32)
        b = rng.standard_normal((2, 2)).astype(np.float32)
        yield HostSample("FeatureVectorizer", (a, b), {"inputdimensions": [3, 2]}, domain=_ML)
        yield HostSample("FeatureVectorizer", (a.astype(np.int64),), {"inputdimensions": [4]}, domain=_ML)


@dataclass(frozen=True, slots=True, eq=False)
class DictVectorizer(HostOp):
    """A map as a row: the values of the vocabulary's words, and 0 for those that the map does not have."""

    onnx = ("ai.onnx.ml.DictVectorizer",)
    why = _WHY
    words: tuple[Any, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(tuple(node.attrs.get("string_vocabulary") or node.attrs.get("int64_vocabulary") or ()))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        given = inputs[0]
        if not isinstance(given, dict):
            raise TypeError("input 0 is not a map")
        example = next(iter(given.values()), 0.0)
        dtype = _value_type(example)
        nothing = "" if dtype.kind == "O" else 0
        return (np.array([[given.get(w, nothing) for w in self.words]], dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        words = {"string_vocabulary": ["a", "c", "b", "z"]}
        yield HostSample("DictVectorizer", ({"a": 4.0, "b": 8.0, "x": 1.0},), words, domain=_ML)
        numbers = {"int64_vocabulary": [3, 9]}
        yield HostSample("DictVectorizer", ({9: 4.5, 1: 8.0},), numbers, domain=_ML)


@dataclass(frozen=True, slots=True)
class CastMap(HostOp):
    """The values of a map, in the order of its keys: side by side, or each at the place that its key numbers."""

    onnx = ("ai.onnx.ml.CastMap",)
    why = "maps are held by the host"
    dtype: np.dtype[Any]
    width: int | None  # none: no gaps

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        kinds = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}
        kind, form = node.text("cast_to", "TO_FLOAT"), node.text("map_form", "DENSE")
        width = node.integer("max_map", 1)
        if kind not in kinds or form not in ("DENSE", "SPARSE") or not 0 < width <= _MOST_FEATURES:
            raise UserError(f"cast_to is {kind!r}, map_form {form!r}, max_map {width}")
        return cls(np.dtype(kinds[kind]), width if form == "SPARSE" else None)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        given = inputs[0]
        if not isinstance(given, dict):
            raise TypeError("input 0 is not a map")
        to = {"f": float, "i": int, "O": str}[self.dtype.kind]
        keys = sorted(given)
        width = len(keys) if self.width is None else self.width
        out = np.full((1, width), to(), self.dtype)
        for place, key in enumerate(keys):
            at = place if self.width is None else key
            if not 0 <= at < width:
                raise UserError(f"a key of {at} in a map of {width} values")
            out[0, at] = to(given[key])
        return (out,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        given = {2: 4.5, 0: -8.0}
        yield HostSample("CastMap", (given,), domain=_ML)
        yield HostSample("CastMap", (given,), {"cast_to": "TO_INT64"}, domain=_ML)
        yield HostSample("CastMap", (given,), {"map_form": "SPARSE", "max_map": 4}, domain=_ML)


@dataclass(frozen=True, slots=True)
class ZipMap(HostOp):
    """Every row as a map from labels to values."""

    onnx = ("ai.onnx.ml.ZipMap",)
    why = "maps are held by the host"
    labels: tuple[Any, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(tuple(node.attrs.get("classlabels_strings") or node.attrs.get("classlabels_int64s") or ()))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = np.atleast_2d(tensor(inputs[0], "input 0"))
        if x.ndim != 2 or x.shape[1] != len(self.labels):
            raise UserError(f"{len(self.labels)} labels for rows of shape {list(x.shape)}")
        return ([dict(zip(self.labels, row, strict=True)) for row in x.tolist()],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = rng.standard_normal((2, 3)).astype(np.float32)
        yield HostSample("ZipMap", (x,), {"classlabels_strings": ["a", "b", "c"]}, domain=_ML)
        yield HostSample("ZipMap", (x,), {"classlabels_int64s": [4, 5, 6]}, domain=_ML)
        yield HostSample("ZipMap", (x[0],), {"classlabels_int64s": [4, 5, 6]}, domain=_ML)


def _reals(node: OnnxNode, name: str) -> Array:
    return np.array(node.attrs.get(name) or [], np.float32)


def _value_type(example: Any) -> np.dtype[Any]:
    """The element type of a map's values; Python's floats are ONNX's."""
    if isinstance(example, str):
        return np.dtype(object)
    if isinstance(example, int | np.integer):
        return np.dtype(np.int64)
    return np.dtype(np.float64 if isinstance(example, np.float64) else np.float32)
