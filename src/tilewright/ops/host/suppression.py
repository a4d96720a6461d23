"""NonMaxSuppression: of boxes that overlap, only the one with the best score."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_TOGETHER = 128  # boxes that are compared with each other at once


@dataclass(frozen=True, slots=True)
class NonMaxSuppression(HostOp):
    """For each class of each batch: boxes by falling score, without those that overlap a better one by more than a
    threshold. A box is two opposite corners (y, x), or its centre and its size (x, y) if `has_centres`.
    """

    onnx = ("NonMaxSuppression",)
    why = "the number of boxes that are left depends on data"
    has_centres: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(bool(node.integer("center_point_box", 0)))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        boxes, scores = tensor(inputs[0], "the boxes"), tensor(inputs[1], "the scores")
        if boxes.ndim != 3 or boxes.shape[-1] != 4 or scores.ndim != 3:
            raise UserError(f"boxes have the shape {list(boxes.shape)} and scores {list(scores.shape)}")
        if boxes.shape[0] != scores.shape[0] or boxes.shape[1] != scores.shape[2]:
            raise UserError(f"{list(scores.shape)} are not the scores of {list(boxes.shape)} boxes")
        most, overlap, least = (_number(inputs, i) for i in (2, 3, 4))
        found = [np.zeros((0, 3), np.int64)]
        for n in range(boxes.shape[0] if most else 0):
            corners = self._corners(boxes[n])
            for c in range(scores.shape[1]):
                of_class = scores[n, c]
                order = np.arange(len(of_class)) if least is None else np.flatnonzero(of_class > least)
                order = order[np.argsort(-of_class[order], kind="stable")]
                kept = order[best_apart(corners[order], overlap or 0.0, int(most or 0))]
                found.append(np.stack([np.full_like(kept, n), np.full_like(kept, c), kept], axis=1))
        return (np.concatenate(found),)

    def _corners(self, boxes: Array) -> Array:
        """The lower and the upper corner of each box."""
        first, second = boxes[:, :2], boxes[:, 2:]
        if self.has_centres:
            return np.concatenate([first - second / 2, first + second / 2], axis=1)
        return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        centres = rng.uniform(0, 4, size=(2, 400, 2))
        sizes = rng.uniform(0.2, 1, size=(2, 400, 2))
        corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=2).astype(np.float32)
        around = np.concatenate([centres, sizes], axis=2).astype(np.float32)
        scores = rng.uniform(size=(2, 3, 400)).astype(np.float32)
        most, overlap, least = np.array([50]), np.array([0.3], np.float32), np.array([0.4], np.float32)
        yield HostSample("NonMaxSuppression", (corners, scores, most, overlap, least))
        yield HostSample("NonMaxSuppression", (corners[..., [2, 1, 0, 3]], scores, np.array([400]), overlap))
        yield HostSample("NonMaxSuppression", (around, scores, most, overlap, least), {"center_point_box": 1})
        yield HostSample("NonMaxSuppression", (corners, scores, most, None, least))
        yield HostSample("NonMaxSuppression", (corners, scores, most, overlap, np.array([2], np.float32)))
        yield HostSample("NonMaxSuppression", (corners, scores))


def best_apart(corners: Array, overlap: float, most: int) -> Array:
    """Which boxes, best first, stay if each one drops those after it that it overlaps too much: `most` of them.

    They are taken a hundred or so at a time: without those that clash with boxes that stay already, and then compared
    with each other. What comes after the last box that stays is never looked at.
    """
    sides = np.ascontiguousarray(corners.T)
    kept = np.zeros(0, np.int64)
    for start in range(0, len(corners), _TOGETHER):
        new = np.arange(start, min(start + _TOGETHER, len(corners)))
        if len(kept):
            new = new[~_clashes(sides[:, kept], sides[:, new], overlap).any(axis=0)]
        new = new[_stay(_clashes(sides[:, new], sides[:, new], overlap))]
        kept = np.concatenate([kept, new])[:most]
        if len(kept) == most:
            break
    return kept


def _stay(clashes: Array) -> list[int]:
    """The rows that no row before them, which stays itself, clashes with."""
    rows = [int.from_bytes(r.tobytes(), "little") for r in np.packbits(clashes, axis=1, bitorder="little")]
    out: list[int] = []
    dropped = 0  # a bit for each row
    for i, row in enumerate(rows):
        if not dropped >> i & 1:
            out.append(i)
            dropped |= row
    return out


def _clashes(a: Array, b: Array, overlap: float) -> Array:
    """For all boxes of `a` and `b`, by their sides: is what both share more than `overlap` of what they cover?"""
    heights, widths = (np.minimum.outer(a[d + 2], b[d + 2]) - np.maximum.outer(a[d], b[d]) for d in (0, 1))
    shared = np.maximum(heights, 0) * np.maximum(widths, 0)
    areas = [(x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)]
    covered = np.add.outer(areas[0], areas[1]) - shared
    # A box without an area overlaps nothing. The quotient decides, rounded as it is.
    quotient = np.divide(shared, covered, out=np.zeros_like(shared), where=covered > 0)
    return quotient > shared.dtype.type(overlap)


def _number(inputs: Sequence[HostValue], i: int) -> float | None:
    given = inputs[i] if i < len(inputs) else None
    return None if given is None else float(tensor(given, f"input {i}").item())
