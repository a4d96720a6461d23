"""Categories: labels to labels, labels to numbers and back, labels to columns (domain ai.onnx.ml)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_ML = "ai.onnx.ml"
_WHY = "the host looks up labels"
_KINDS = {"int64s": np.dtype(np.int64), "strings": np.dtype(object), "floats": np.dtype(np.float32)}


@dataclass(frozen=True, slots=True, eq=False)
class LabelEncoder(HostOp):
    """Every element is looked up; what is not there becomes `default`. NaN is a label too."""

    onnx = ("ai.onnx.ml.LabelEncoder",)
    why = _WHY
    table: Mapping[Any, Any]
    default: Any
    dtype: np.dtype[Any]
    back: "LabelEncoder | None" = None  # the other direction, before opset 2: for inputs that are numbers

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        if node.opset < 2:
            names = list(node.attrs.get("classes_strings") or [])
            numbers, number, text = list(range(len(names))), *_classic_defaults(node)
            back = cls(_table(numbers, names), text, _KINDS["strings"])
            return cls(_table(names, numbers), number, _KINDS["int64s"], back)
        keys, _ = _given(node, "keys")
        values, kind = _given(node, "values")
        if len(keys) != len(values):
            raise UserError(f"{len(keys)} keys have {len(values)} values")
        default = node.attrs.get("default_tensor")
        if default is None:
            wanted = {"i": ("default_int64", -1), "O": ("default_string", "_Unused")}
            name, otherwise = wanted.get(kind.kind, ("default_float", -0.0))
            default = np.array(node.attrs.get(name, otherwise), kind)
        return cls(_table(keys, values), np.asarray(default).reshape(-1)[0], kind)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        if self.back is not None and x.dtype.kind != "O":
            return self.back.run(inputs, bodies)
        found = [self.table.get(v if v == v else None, self.default) for v in x.reshape(-1).tolist()]
        return (np.array(found, self.dtype).reshape(x.shape),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        def sample(x: Array, version: int, **attrs: Any) -> HostSample:
            return HostSample("LabelEncoder", (x,), attrs, domain=_ML, version=version)

        words = np.array([["a", "b"], ["", "c"]], object)
        numbers = np.array([[1, 2], [-5, 3]], np.int64)
        reals = np.array([1.5, np.nan, 0.1], np.float32)
        yield sample(words, 1, classes_strings=["a", "c"])
        yield sample(numbers, 1, classes_strings=["a", "b", "c"], default_string="none")
        yield sample(words, 2, keys_strings=["c", "a"], values_int64s=[7, 8])
        yield sample(words, 2, keys_strings=["c", "a"], values_floats=[0.5, 2.5], default_float=9.0)
        yield sample(numbers, 2, keys_int64s=[3, 1, 3], values_strings=["three", "one", "again"])
        yield sample(numbers, 2, keys_int64s=[3, 1], values_floats=[0.5, 2.5])
        yield sample(reals, 2, keys_floats=[0.1, 1.5], values_strings=["tenth", "more"])
        yield sample(reals, 4, keys_floats=[float("nan"), 1.5], values_int64s=[4, 5], default_int64=-7)
        yield sample(
            words, 4,
            keys_tensor=np.array(["a", "b"], object),
            values_tensor=np.array([1, 2], np.int16),
            default_tensor=np.array([42], np.int16),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class CategoryMapper(HostOp):
    """Strings to numbers, or numbers to strings, whichever the input has."""

    onnx = ("ai.onnx.ml.CategoryMapper",)
    why = _WHY
    numbers: LabelEncoder
    names: LabelEncoder

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        names = list(node.attrs.get("cats_strings") or [])
        numbers = list(node.attrs.get("cats_int64s") or [])
        if len(names) != len(numbers):
            raise UserError(f"{len(names)} names of {len(numbers)} categories")
        number, text = _classic_defaults(node)
        return cls(
            LabelEncoder(_table(names, numbers), number, _KINDS["int64s"]),
            LabelEncoder(_table(numbers, names), text, _KINDS["strings"]),
        )

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        is_text = tensor(inputs[0], "input 0").dtype.kind == "O"
        return (self.numbers if is_text else self.names).run(inputs, bodies)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        cats: dict[str, Any] = {"cats_strings": ["a", "b"], "cats_int64s": [5, -6]}
        for x in (np.array([["b"], ["c"]], object), np.array([-6, 5, 0])):
            yield HostSample("CategoryMapper", (x,), cats, domain=_ML)
            given = {**cats, "default_string": "?", "default_int64": 77}
            yield HostSample("CategoryMapper", (x,), given, domain=_ML)


@dataclass(frozen=True, slots=True, eq=False)
class OneHotEncoder(HostOp):
    """A column for each category, 1 where the element is that one."""

    onnx = ("ai.onnx.ml.OneHotEncoder",)
    why = _WHY
    columns: Mapping[Any, int]
    allows_others: bool
    are_strings: bool

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        strings = node.attrs.get("cats_strings")
        cats = list(strings or node.attrs.get("cats_int64s") or [])
        if not cats:
            raise UserError("there are no categories")
        columns = {c: i for i, c in enumerate(cats)}
        return cls(columns, bool(node.integer("zeros", 1)), bool(strings))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        if self.are_strings != (x.dtype.kind == "O"):
            raise UserError(f"elements of type {x.dtype} have no such categories")
        # A category is a whole number; a fraction is dropped.
        values = x.reshape(-1).tolist() if self.are_strings else x.reshape(-1).astype(np.int64).tolist()
        places = np.array([self.columns.get(v, -1) for v in values], np.int64)
        if not self.allows_others and (places < 0).any():
            raise UserError("an element is none of the categories")
        out = np.zeros((len(places), len(self.columns)), np.float32)
        rows = np.flatnonzero(places >= 0)
        out[rows, places[rows]] = 1
        return (out.reshape(*x.shape, len(self.columns)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        words = np.array([["a", "b"], ["c", "a"]], object)
        yield HostSample("OneHotEncoder", (words,), {"cats_strings": ["a", "b"]}, domain=_ML)
        for dtype in (np.int64, np.int32, np.float32, np.float64):
            x = np.array([3, 1, 2], dtype)
            yield HostSample("OneHotEncoder", (x,), {"cats_int64s": [1, 3, 2], "zeros": 0}, domain=_ML)
            yield HostSample("OneHotEncoder", (x,), {"cats_int64s": [1, 2]}, domain=_ML)


def _table(keys: Iterable[Any], values: Iterable[Any]) -> dict[Any, Any]:
    """Of equal keys the first counts; NaN, which is not even equal to itself, is kept as None."""
    out: dict[Any, Any] = {}
    for k, v in zip(keys, values, strict=True):
        out.setdefault(k if k == k else None, v)
    return out


def _given(node: OnnxNode, what: str) -> tuple[list[Any], np.dtype[Any]]:
    """The keys or values of an encoder, and their type."""
    array = node.attrs.get(f"{what}_tensor")
    if array is not None:
        return array.reshape(-1).tolist(), array.dtype
    for kind, dtype in _KINDS.items():
        if f"{what}_{kind}" in node.attrs:
            return list(node.attrs[f"{what}_{kind}"]), dtype
    raise UserError(f"there are no {what}")


def _classic_defaults(node: OnnxNode) -> tuple[int, str]:
    return node.integer("default_int64", -1), node.text("default_string", "_Unused")
