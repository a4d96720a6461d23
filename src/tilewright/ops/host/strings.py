"""Tensors of strings, which are numpy arrays of Python's."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_WHY = "strings are held by the host"
_MOST_FEATURES = 1 << 26  # of one row: more than any vocabulary has


@dataclass(frozen=True, slots=True)
class StringConcat(HostOp):
    """One string after the other, element by element; shapes are broadcast."""

    onnx = ("StringConcat",)
    why = _WHY

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        a, b = np.broadcast_arrays(texts(inputs[0], "input 0"), texts(inputs[1], "input 1"))
        return (np.asarray(a + b, object),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        a = _strings(["ab", "ü", ""])
        yield HostSample("StringConcat", (a, _strings(["c", "d", "e"])))
        yield HostSample("StringConcat", (a.reshape(3, 1), _strings([["x", "y"]])))
        yield HostSample("StringConcat", (_strings("x"), _strings("y")))
        yield HostSample("StringConcat", (_strings([]), _strings("y")))


@dataclass(frozen=True, slots=True)
class StringSplit(HostOp):
    """The pieces of every string, filled up with empty strings to as many as the longest has; and how many there are.
    Without a delimiter, blanks of any length part the pieces.
    """

    onnx = ("StringSplit",)
    why = _WHY
    delimiter: str | None
    most: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.text("delimiter", "") or None, node.integer("maxsplit", -1))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = texts(inputs[0], "input 0")
        pieces = [t.split(self.delimiter, self.most) for t in x.reshape(-1)]
        counts = np.array([len(p) for p in pieces], np.int64)
        width = int(counts.max(initial=0))
        out = np.full((len(pieces), width), "", object)
        for row, p in zip(out, pieces, strict=True):
            row[: len(p)] = p
        return (out.reshape(*x.shape, width), counts.reshape(x.shape))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        # onnxruntime departs from ONNX: an empty string has no pieces, and blanks at the end of the last are dropped.
        x = _strings([["a.b", "c"], [".", "d..e."]])
        yield HostSample("StringSplit", (x,), {"delimiter": "."}, outputs=2)
        yield HostSample("StringSplit", (x,), {"delimiter": ".", "maxsplit": 1}, outputs=2)
        yield HostSample("StringSplit", (x,), {"delimiter": "none of them"}, outputs=2)
        blanks = _strings(["a b", "  c   d e", "", " "])
        yield HostSample("StringSplit", (blanks,), outputs=2)
        yield HostSample("StringSplit", (blanks,), {"delimiter": "", "maxsplit": 1}, outputs=2)


@dataclass(frozen=True, slots=True)
class StringNormalizer(HostOp):
    """Leaves out stop words and changes the case. What has no words left is one empty string."""

    onnx = ("StringNormalizer",)
    why = _WHY
    case: str
    is_case_sensitive: bool
    stops: frozenset[str]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        case = node.text("case_change_action", "NONE")
        if case not in ("NONE", "LOWER", "UPPER"):
            raise UserError(f"case_change_action is {case!r}", hint="it should be NONE, LOWER or UPPER")
        is_sensitive = bool(node.integer("is_case_sensitive", 0))
        stops: list[str] = node.attrs.get("stopwords") or []
        return cls(case, is_sensitive, frozenset(s if is_sensitive else s.lower() for s in stops))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = texts(inputs[0], "input 0")
        if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
            raise UserError(f"strings of shape {list(x.shape)}: they should be [C] or [1, C]")
        stays = [t for t in x.reshape(-1) if (t if self.is_case_sensitive else t.lower()) not in self.stops]
        change: Callable[[str], str] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[self.case]
        out = _strings([change(t) for t in stays] or [""])
        return (out.reshape(1, -1) if x.ndim == 2 else out,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = _strings(["Monday", "tuesday", "MONDAY", "friday"])
        for case in ("NONE", "LOWER", "UPPER"):
            for sensitive in (0, 1):
                attrs: dict[str, Any] = {
                    "case_change_action": case,
                    "is_case_sensitive": sensitive,
                    "stopwords": ["monday", "tuesday"],
                    "locale": "C",
                }
                yield HostSample("StringNormalizer", (x,), attrs)
        yield HostSample(
            "StringNormalizer", (x.reshape(1, 4),), {"case_change_action": "UPPER", "locale": "C"}
        )
        gone: dict[str, Any] = {"stopwords": list(x), "is_case_sensitive": 1, "locale": "C"}
        yield HostSample("StringNormalizer", (x,), gone)
        yield HostSample("StringNormalizer", (x.reshape(1, 4),), gone)


@dataclass(frozen=True, slots=True)
class RegexFullMatch(HostOp):
    """Does the whole string match? The pattern has RE2's syntax; what Python's differs in is refused."""

    onnx = ("RegexFullMatch",)
    why = _WHY
    pattern: re.Pattern[str]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(compile_pattern(node.text("pattern", "")))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = texts(inputs[0], "input 0")
        found = [self.pattern.fullmatch(t) is not None for t in x.reshape(-1)]
        return (np.array(found, bool).reshape(x.shape),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = _strings([["www.google.com", "account@gmail.com"], ["", "not email\n"]])
        for pattern in (
            r"www\.[\w.-]+\.\bcom\b",
            r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)",
            r"(?i)ACCOUNT@(?:gmail|x)\.com\z",
            r"(?s).*",
            r"[^]a-f]*?|n(?P<rest>.+)\s",
        ):
            yield HostSample("RegexFullMatch", (x,), {"pattern": pattern})


@dataclass(frozen=True, slots=True, eq=False)
class TfIdfVectorizer(HostOp):
    """How often each n-gram of a pool occurs in a row, weighted. Up to `skips` elements may be left out between two of
    its own, as many each time.
    """

    onnx = ("TfIdfVectorizer",)
    why = "the host looks up n-grams"
    columns: Mapping[tuple[Any, ...], int]  # of each n-gram
    width: int
    skips: int
    mode: str
    weights: Array | None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        mode = node.text("mode", "TF")
        if mode not in ("TF", "IDF", "TFIDF"):
            raise UserError(f"mode is {mode!r}", hint="it should be TF, IDF or TFIDF")
        pool: list[Any] = node.attrs.get("pool_strings") or node.attrs.get("pool_int64s") or []
        indexes = node.integers("ngram_indexes") or ()
        width = max(indexes, default=-1) + 1
        if min(indexes, default=0) < 0 or width > _MOST_FEATURES:
            raise UserError(f"ngram_indexes are from {min(indexes)} to {max(indexes)}")
        least, most = node.integer("min_gram_length", 1), node.integer("max_gram_length", 1)
        grams = list(_grams(pool, node.integers("ngram_counts") or ()))
        if len(grams) != len(indexes):
            raise UserError(f"{len(indexes)} ngram_indexes for {len(grams)} n-grams")
        columns = {g: i for g, i in zip(grams, indexes, strict=True) if least <= len(g) <= most}
        weights = node.attrs.get("weights")
        if weights and len(weights) != len(indexes):
            raise UserError(f"{len(weights)} weights for {len(indexes)} n-grams")
        ordered = np.zeros(width, np.float32)
        if weights:
            ordered[list(indexes)] = weights
        return cls(columns, width, node.integer("max_skip_count", 0), mode, ordered if weights else None)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        if x.ndim not in (1, 2):
            raise UserError(f"the input has {x.ndim} axes: it should have 1 or 2")
        rows = np.atleast_2d(x).tolist()
        counts = np.zeros((len(rows), self.width), np.float32)
        lengths = sorted({len(g) for g in self.columns})
        for row, out in zip(rows, counts, strict=True):
            seen = Counter(g for n in lengths for g in self._windows(row, n))
            for gram, times in seen.items():
                column = self.columns.get(gram)
                if column is not None:
                    out[column] += times
        scores = (counts > 0).astype(np.float32) if self.mode == "IDF" else counts
        if self.mode != "TF" and self.weights is not None:
            scores = scores * self.weights
        return (scores.reshape(*x.shape[:-1], self.width),)

    def _windows(self, row: Sequence[Any], n: int) -> Iterator[tuple[Any, ...]]:
        """All n elements at equal distances; the single ones only once."""
        most = 1 if n == 1 else min(self.skips + 1, len(row))
        for step in range(1, most + 1):
            span = step * (n - 1) + 1
            for start in range(len(row) - span + 1):
                yield tuple(row[start : start + span : step])

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        pool: dict[str, Any] = {
            "min_gram_length": 1,
            "max_gram_length": 2,
            "max_skip_count": 2,
            "ngram_counts": [0, 3],
            "ngram_indexes": [6, 1, 0, 3, 4, 5],
        }
        numbers = {**pool, "pool_int64s": [2, 3, 5, 5, 6, 7, 8, 6, 7]}
        x = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int32)
        weights = [0.5, 2.0, 3.0, 0.25, 5.0, 7.0]
        for mode in ("TF", "IDF", "TFIDF"):
            yield HostSample("TfIdfVectorizer", (x,), {**numbers, "mode": mode})
        words = {
            **pool,
            "pool_strings": ["two", "three", "five", "five", "six", "seven", "eight", "six", "seven"],
        }
        texts = _strings(["one", "three", "five", "six", "six", "seven"])
        yield HostSample("TfIdfVectorizer", (texts,), {**words, "mode": "TF"})
        ordered = {**numbers, "ngram_indexes": [0, 1, 2, 3, 4, 5], "weights": weights}
        for mode in ("IDF", "TFIDF"):
            yield HostSample("TfIdfVectorizer", (x.astype(np.int64),), {**ordered, "mode": mode})
        pairs = {**numbers, "min_gram_length": 2, "max_skip_count": 0}
        yield HostSample("TfIdfVectorizer", (x,), {**pairs, "mode": "TF"})


def texts(value: HostValue, what: str) -> Array:
    """The value, which has to be a tensor of strings."""
    array = tensor(value, what)
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind != "O":
        raise UserError(f"{what} has elements of type {array.dtype}, not strings")
    return array


# Escapes that mean the same to RE2 and to Python, and what may follow "(?".
_ESCAPES = frozenset("AbBdDsSwWafnrtvx0")
_GROUP = re.compile(r"\(\?(?::|P<\w+>|[ims]*(?:-[ims]+)?[:)])")
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|\(\?|[*+?]|\{\d*,?\d*\}|.", re.DOTALL)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern in RE2's syntax, as one of Python's that means the same."""
    out: list[str] = []
    before = ""
    for token in _TOKEN.finditer(pattern):
        text = token.group()
        escapes = re.findall(r"\\(.)", text, re.DOTALL)
        if any(e.isalnum() and e not in _ESCAPES and e != "z" for e in escapes):
            raise UserError(f"the pattern {pattern!r} has an escape that is not supported: {text!r}")
        if text.startswith("[") and "[:" in text:
            raise UserError(
                f"the pattern {pattern!r} has a named class of characters, which is not supported"
            )
        if text == "(?" and _GROUP.match(pattern, token.start()) is None:
            raise UserError(f"the pattern {pattern!r} has a kind of group that is not supported")
        if text == "+" and (before in ("*", "+", "?") or before.startswith("{")):
            raise UserError(f"the pattern {pattern!r} repeats a repetition")
        out.append(r"\Z" if text == r"\z" else text)
        before = text
    # Classes such as \w are ASCII in RE2, but letters of all alphabets have a case.
    flags = re.NOFLAG if re.match(r"\(\?[ms]*i", pattern) else re.ASCII
    try:
        return re.compile("".join(out), flags)
    except re.error as e:
        raise UserError(f"the pattern {pattern!r} is no regular expression: {e}") from e


def _grams(pool: Sequence[Any], starts: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """The n-grams of the pool, which has first the single elements, then the pairs, and so on."""
    ends = [*starts[1:], len(pool)]
    for n, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % n:
            raise UserError(f"ngram_counts {list(starts)} do not divide a pool of {len(pool)} elements")
        yield from (tuple(pool[i : i + n]) for i in range(start, end, n))


def _strings(values: Any) -> Array:
    return np.array(values, object)
