"""Branches and loops. The host decides; the bodies are programs of their own.

A branch whose condition is known when the model is imported never gets here: it is inlined.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.axes import normal_axis
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, sequence, tensor
from tilewright.ops.opdef import OnnxNode
from tilewright.ops.spec import BodySpec, NodeSpec, OpenType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_WHY = "the host runs branches and loops; their bodies are compiled"
_MOST = 1 << 40  # iterations of a loop that only its condition ends


@dataclass(frozen=True, slots=True)
class If(HostOp):
    onnx = ("If",)
    why = _WHY

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        condition = tensor(inputs[0], "the condition")
        if condition.size != 1:
            raise UserError(f"a condition of {condition.size} elements")
        return tuple(bodies["then_branch" if condition.reshape(()) else "else_branch"]())

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        then = _graph([("Constant", [], ["t"], {"value_floats": [1.0, 2.0]})], {}, ["t"])
        other = _graph([("Constant", [], ["e"], {"value_floats": [3.0]})], {}, ["e"])
        for c in (True, False):
            yield HostSample("If", (np.array(c),), {"then_branch": then, "else_branch": other})


@dataclass(frozen=True, slots=True)
class Loop(HostOp):
    """A body takes the number of the iteration, the condition and what is carried on; it gives the condition, what is
    carried on, and what is collected.
    """

    onnx = ("Loop",)
    why = _WHY
    outputs: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.outputs)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        body = bodies["body"]
        times = _MOST if inputs[0] is None else int(tensor(inputs[0], "the trip count").item())
        goes_on = len(inputs) < 2 or inputs[1] is None or bool(tensor(inputs[1], "the condition").item())
        carried = list(inputs[2:])
        if not len(carried) <= body.results - 1 == self.outputs:
            raise UserError(
                f"{len(carried)} values are carried and {self.outputs} come out of a loop"
                f" whose body gives {body.results}"
            )
        collected: list[list[Array]] = [[] for _ in range(self.outputs - len(carried))]
        n = 0
        while goes_on and n < times:
            condition, *results = body(np.array(n, np.int64), np.array(goes_on), *carried)
            carried, rest = results[: len(carried)], results[len(carried) :]
            for pieces, piece in zip(collected, rest, strict=True):
                pieces.append(tensor(piece, "a scan output"))
            goes_on = bool(tensor(condition, "the condition").item())
            n += 1
        if n:
            return (*carried, *(np.stack(p) for p in collected))
        first = (np.array(0, np.int64), np.array(goes_on), *carried)
        return (*carried, *(body.none_of(1 + i, *first) for i in range(len(carried), self.outputs)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        body = _graph(
            [
                ("Add", ["carried", "carried"], ["doubled"], {}),
                ("Identity", ["doubled"], ["seen"], {}),
                ("ReduceSum", ["doubled"], ["sum"], {"keepdims": 0}),
                ("Constant", [], ["limit"], {"value_float": 50.0}),
                ("Less", ["sum", "limit"], ["on"], {}),
            ],
            {
                "n": OpenType(DType.I64, ()),
                "c": OpenType(DType.BOOL, ()),
                "carried": OpenType(DType.F32, (2,)),
            },
            ["on", "doubled", "seen"],
        )
        x = np.array([1.0, 2.0], np.float32)
        yield HostSample("Loop", (np.array(3), np.array(True), x), {"body": body}, outputs=2)
        yield HostSample("Loop", (None, np.array(True), x), {"body": body}, outputs=2)
        yield HostSample("Loop", (np.array(9), None, x), {"body": body}, outputs=2)


@dataclass(frozen=True, slots=True)
class Scan(HostOp):
    """A loop over the slices of tensors. Before opset 9 it had a batch axis, and optional lengths of sequences."""

    onnx = ("Scan",)
    why = _WHY
    scanned: int
    outputs: int
    has_batch: bool
    input_axes: tuple[int, ...] = ()
    input_reversed: tuple[int, ...] = ()
    output_axes: tuple[int, ...] = ()
    output_reversed: tuple[int, ...] = ()

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(
            node.integer("num_scan_inputs", 0),
            node.outputs,
            node.opset < 9,
            node.integers("scan_input_axes") or (),
            node.integers("scan_input_directions" if node.opset > 8 else "directions") or (),
            node.integers("scan_output_axes") or (),
            node.integers("scan_output_directions") or (),
        )

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        if not self.has_batch:
            return self._scan(list(inputs), bodies["body"])
        given = [tensor(v, "an input") for v in inputs[1:]]
        if len({len(v) for v in given}) != 1 or not 0 < self.scanned <= len(given):
            raise UserError(f"{self.scanned} of {len(given)} inputs are to be scanned, in a batch")
        count = len(given) - self.scanned
        longest = given[-1].shape[1]
        lengths = [longest] * len(given[0])
        if inputs[0] is not None:
            lengths = tensor(inputs[0], "the lengths").reshape(-1).tolist()
            if len(lengths) != len(given[0]) or not all(0 < n <= longest for n in lengths):
                raise UserError(f"sequences of {lengths[:10]} of {longest} slices")
        each = [
            self._scan([v[b] if i < count else v[b, :n] for i, v in enumerate(given)], bodies["body"])
            for b, n in enumerate(lengths)
        ]
        columns = [[tensor(v, "an output") for v in column] for column in zip(*each, strict=True)]
        return tuple(
            np.stack(c if i < count else [_filled(v, longest) for v in c]) for i, c in enumerate(columns)
        )

    def _scan(self, inputs: list[HostValue], body: Subgraph) -> tuple[HostValue, ...]:
        if not 0 < self.scanned <= len(inputs):
            raise UserError(f"{self.scanned} of {len(inputs)} inputs are to be scanned")
        states, given = inputs[: -self.scanned], inputs[-self.scanned :]
        if not len(states) <= body.results == self.outputs:
            raise UserError(
                f"{len(states)} states and {self.outputs} outputs of a scan whose body gives {body.results}"
            )
        slices = [
            self._slices(tensor(v, "an input"), _at(self.input_axes, i), _at(self.input_reversed, i))
            for i, v in enumerate(given)
        ]
        if len({len(s) for s in slices}) != 1:
            raise UserError(f"the scanned inputs have {[len(s) for s in slices]} slices")
        collected: list[list[Array]] = [[] for _ in range(self.outputs - len(states))]
        for step in zip(*slices, strict=True):
            results = body(*states, *step)
            states = results[: len(states)]
            for pieces, piece in zip(collected, results[len(states) :], strict=True):
                pieces.append(tensor(piece, "a scan output"))
        if not slices[0]:
            first = [
                self._slice_type(tensor(v, "an input"), _at(self.input_axes, i)) for i, v in enumerate(given)
            ]
            places = range(len(states), self.outputs)
            return (
                *states,
                *(self._with_axis(i, body.none_of(p, *states, *first)) for i, p in enumerate(places)),
            )
        return (*states, *(self._joined(i, pieces) for i, pieces in enumerate(collected)))

    def _slices(self, x: Array, axis: int, is_reversed: int) -> list[Array]:
        moved = np.moveaxis(x, normal_axis(axis, x.ndim), 0)
        return [np.ascontiguousarray(s).reshape(s.shape) for s in (moved[::-1] if is_reversed else moved)]

    def _slice_type(self, x: Array, axis: int) -> Array:
        """A slice of zeros."""
        axis = normal_axis(axis, x.ndim)
        return np.zeros(x.shape[:axis] + x.shape[axis + 1 :], x.dtype)

    def _joined(self, i: int, pieces: list[Array]) -> Array:
        return self._with_axis(i, np.stack(pieces[::-1] if _at(self.output_reversed, i) else pieces))

    def _with_axis(self, i: int, stacked: Array) -> Array:
        axis = normal_axis(_at(self.output_axes, i), stacked.ndim)
        return np.ascontiguousarray(np.moveaxis(stacked, 0, axis))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.arange(6, dtype=np.float32).reshape(3, 2)
        body = _graph(
            [("Add", ["state", "piece"], ["sum"], {}), ("Identity", ["sum"], ["seen"], {})],
            {"state": OpenType(DType.F32, (2,)), "piece": OpenType(DType.F32, (2,))},
            ["sum", "seen"],
        )
        start = np.zeros(2, np.float32)
        yield HostSample("Scan", (start, x), {"body": body, "num_scan_inputs": 1}, outputs=2)
        transposed: dict[str, Any] = {
            "scan_input_directions": [1],
            "scan_input_axes": [1],
            "scan_output_axes": [1],
        }
        yield HostSample(
            "Scan", (start, x.T.copy()), {"body": body, "num_scan_inputs": 1, **transposed}, outputs=2
        )
        batch = (np.stack([start, start + 1]), np.stack([x, x * 10]))
        for lengths in (None, np.array([2, 3])):
            attrs = {"body": body, "num_scan_inputs": 1}
            yield HostSample("Scan", (lengths, *batch), attrs, outputs=2, opset=8)


@dataclass(frozen=True, slots=True)
class SequenceMap(HostOp):
    """The body for every element of a sequence; further sequences go along, tensors are given every time."""

    onnx = ("SequenceMap",)
    why = _WHY
    outputs: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.outputs)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        first, body = sequence(inputs[0], "input 0"), bodies["body"]
        if body.results != self.outputs:
            raise UserError(f"{self.outputs} outputs of a map whose body gives {body.results}")
        if any(isinstance(v, list) and len(v) != len(first) for v in inputs):
            raise UserError("the sequences have different lengths")
        rows = [body(*(v[i] if isinstance(v, list) else v for v in inputs)) for i in range(len(first))]
        return tuple([row[k] for row in rows] for k in range(self.outputs))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        body = _graph(
            [("Add", ["a", "b"], ["sum"], {})],
            {"a": OpenType(DType.F32), "b": OpenType(DType.F32)},
            ["sum"],
        )
        pieces = [np.ones((n,), np.float32) for n in (1, 3)]
        yield HostSample("SequenceMap", (pieces, [p + 1 for p in pieces]), {"body": body})
        yield HostSample("SequenceMap", (pieces, np.array([4.0], np.float32)), {"body": body})


def _filled(x: Array, length: int) -> Array:
    """With zeros after its slices."""
    return np.pad(x, [(0, length - len(x)), *[(0, 0)] * (x.ndim - 1)])


def _at(values: Sequence[int], i: int) -> int:
    return values[i] if i < len(values) else 0


def _graph(
    nodes: Sequence[tuple[str, list[str], list[str], dict[str, Any]]],
    inputs: Mapping[str, OpenType],
    outputs: Sequence[str],
) -> BodySpec:
    """A body for samples."""
    specs = tuple(NodeSpec(op, tuple(ins), tuple(outs), attrs) for op, ins, outs, attrs in nodes)
    return BodySpec("body", specs, tuple(inputs), tuple(outputs), inputs)
