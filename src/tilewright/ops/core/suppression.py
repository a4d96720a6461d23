"""NonMaxSuppression: of boxes that overlap, only the one with the best score.

Each class of each batch is a row of its own: its candidates are sorted by score, and each is compared with the boxes
that stay so far, in vectors, until one of them clashes. How many stay is data, so native code gives as many places as
there may be and says how many it has filled; the host cuts off the rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, as_index, cast, const, equal, maximum, minimum, select
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.order_key import order_key
from tilewright.ops.core.row_program import RowArray, RowCell, RowProgram
from tilewright.ops.core.row_sort import MOST_RANKED, RANKED_TOGETHER, rank_each, sort_digits
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.stmt import If, Stmt, Store, seq

_F32 = DType.F32
_CHUNK = 32  # scores that are looked at together
_COMPARED = 16  # boxes that one is compared with at once


class NonMaxSuppression(Composite):
    """For each class of each batch: boxes by falling score, without those that overlap a better one by more than a
    threshold. A box is two opposite corners (y, x), or its centre and its size (x, y) if it says `center_point_box`.
    """

    onnx = ("NonMaxSuppression",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        boxes = node.input(0).shape
        if len(boxes) != 3:
            raise UserError(f"boxes have the shape {list(boxes)}, which is not batch, number and 4")
        known = node.constant(2) if node.has(2) else np.zeros(1, np.int64)  # none, if it does not say
        room = boxes[1] if known is None else max(0, min(int(known.item()), boxes[1]))
        if not room:
            return (body.constant(np.zeros((0, 3), np.int64)),)
        overlap, least = (body.get(i) for i in (3, 4))
        found, count = body.ops(
            "tilewright.BestBoxes",
            2,
            body.cast(body[0], _F32),
            body.cast(body[1], _F32),
            body.reshape(body[2], 1),
            body.constant(np.zeros(1, np.float32)) if overlap is None else _number(body, overlap),
            None if least is None else _number(body, least),
            dtype=INDEX,
            room=room,
            center_point_box=node.integer("center_point_box", 0),
        )
        return (body.op("tilewright.FirstRows", found, count),)

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


def _number(body: CompositeBody, x: Term) -> Term:
    return body.cast(body.reshape(x, 1), _F32)


@dataclass(frozen=True, slots=True)
class FirstRows(HostOp):
    """The first slices along the first axis, as many as data says."""

    onnx = ("tilewright.FirstRows",)
    why = "the shape of its result depends on data"
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        return (tensor(inputs[0], "input 0")[: int(tensor(inputs[1], "the number of rows").item())],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("FirstRows", (np.arange(6).reshape(3, 2), np.array([2])), domain="tilewright")


@dataclass(frozen=True, slots=True)
class BestBoxes(Op):
    """Batch, class and number of the boxes that stay, and how many these are; what comes after them is zero. Inputs are
    boxes, scores, how many may stay in a class (and not more than `room`), the overlap that is too much, and the score
    that is too little, if there is one.
    """

    onnx = ("tilewright.BestBoxes",)
    kind = Kind.REDUCTION
    room: int
    has_centres: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.integer("room", 0), bool(node.integer("center_point_box", 0))), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if len(inputs) not in (4, 5):
            raise self.misfit(inputs, "takes boxes, scores, a number and one or two thresholds")
        boxes, scores, *limits = inputs
        if boxes.rank != 3 or boxes.shape[-1] != 4 or scores.rank != 3:
            raise self.misfit(inputs, "takes boxes of four numbers, and scores by batch and class")
        if boxes.shape[0] != scores.shape[0] or boxes.shape[1] != scores.shape[2]:
            raise self.misfit(inputs, "the scores are not those of the boxes")
        if any(t.dtype is not _F32 for t in (boxes, scores, *limits[1:])) or limits[0].dtype is not INDEX:
            raise self.misfit(inputs, "takes f32, and an i64 number of boxes")
        if any(t.shape != (1,) for t in limits) or not 0 <= self.room <= boxes.shape[1]:
            raise self.misfit(inputs, "takes single numbers, and has room for the boxes there are")
        rows = scores.shape[0] * scores.shape[1] * self.room
        return TensorType(INDEX, (rows, 3)), TensorType(INDEX, (1,))

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        scores = inputs[1]
        shape = scores.shape[:2]
        stay = b.ahead(f"{name}_stay", (*shape, self.room), INDEX)
        counts = b.ahead(f"{name}_counts", shape, INDEX)

        def row(*i: Expr) -> Stmt:
            p = RowProgram(b, name, shape, i[:2])
            suppress = _Suppression(p, inputs, i[:2], self.room, self.has_centres)
            return suppress.run(RowArray(stay, i[:2]), lambda n: Store(counts, i[:2], n))

        b.update(f"{name}_rows", (*shape, 1), (2,), row)
        return self._packed(b, name, shape, stay, counts)

    def _packed(
        self, b: FuncBuilder, name: str, shape: tuple[int, ...], stay: Buffer, counts: Buffer
    ) -> tuple[Buffer, ...]:
        """The boxes that stay in all rows, one after the other."""
        found = b.ahead(name, (shape[0] * shape[1] * self.room, 3), INDEX)
        total = b.ahead(f"{name}_1", (1,), INDEX)
        b.compute(f"{name}_clear", found.shape, lambda *_: const(0), out=found)
        b.compute(f"{name}_none", (1,), lambda *_: const(0), out=total)

        def pack(n: Expr, c: Expr) -> Stmt:
            p = RowProgram(b, f"{name}_pack", (1,), (as_index(0),))

            def one(j: Expr) -> Stmt:
                at = total[0] + j
                return seq(*(Store(found, (at, as_index(d)), v) for d, v in enumerate((n, c, stay[n, c, j]))))

            return seq(
                p.count("copied", counts[n, c], one),
                Store(total, (as_index(0),), total[0] + counts[n, c]),
            )

        b.update(f"{name}_pack", shape, (0, 1), pack, axes=("n", "c"))
        return found, total

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        boxes, scores, most, overlap = inputs[:4]
        found = [np.zeros((0, 3), np.int64)]
        for n in range(boxes.shape[0]):
            corners = _corners(boxes[n], self.has_centres)
            for c in range(scores.shape[1]):
                of_class = scores[n, c]
                good = np.ones(len(of_class), bool) if len(inputs) < 5 else of_class > inputs[4]
                order = np.flatnonzero(good)
                order = order[np.argsort(-of_class[order], kind="stable")]
                kept = order[_apart(corners[order], overlap[0], min(int(most[0]), self.room))]
                found.append(np.stack([np.full_like(kept, n), np.full_like(kept, c), kept], axis=1))
        all_found = np.concatenate(found)
        out = np.zeros((scores.shape[0] * scores.shape[1] * self.room, 3), np.int64)
        out[: len(all_found)] = all_found
        return out, np.array([len(all_found)])

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        centres = rng.integers(0, 8, size=(2, 40, 2))
        sizes = rng.integers(-1, 4, size=(2, 40, 2))
        corners = np.concatenate([centres, centres + sizes], axis=2).astype(np.float32)
        scores = (rng.integers(0, 12, size=(2, 2, 40)) / 10).astype(np.float32)
        scores[0, 0, 3] = np.nan
        corners[1, 7] = np.nan
        limits = np.array([30]), np.array([0.2], np.float32), np.array([0.3], np.float32)
        for has_centres in (False, True):
            yield Sample(cls(30, has_centres), (corners, scores, *limits))
            yield Sample(cls(40, has_centres), (corners, scores, *limits[:2]))
        yield Sample(cls(3), (corners, scores, *limits))
        yield Sample(cls(30), (corners, scores, np.array([2]), *limits[1:]))
        yield Sample(cls(30), (corners, scores, *limits[:2], np.array([np.nan], np.float32)))


def _corners(boxes: Array, has_centres: bool) -> Array:
    """The lower and the upper corner of each box."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if has_centres:
        half = second / np.float32(2)
        return np.concatenate([first - half, first + half], axis=1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


def _apart(corners: Array, overlap: np.float32, most: int) -> list[int]:
    """Which boxes, best first, stay if each one drops those after it that it overlaps too much: `most` of them."""
    kept: list[int] = []
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    for i, box in enumerate(corners):
        if len(kept) >= most:
            break
        others = corners[kept]
        high = np.minimum(others[:, 2:], box[2:]) - np.maximum(others[:, :2], box[:2])
        shared = np.maximum(high[:, 0], 0) * np.maximum(high[:, 1], 0)
        covered = areas[kept] + areas[i] - shared
        # A box without an area overlaps nothing. The quotient decides, rounded as it is.
        quotient = np.divide(shared, covered, out=np.zeros_like(shared), where=covered > 0)
        if not (quotient > overlap).any():
            kept.append(i)
    return kept


class _Suppression:
    """The program of one class of one batch."""

    def __init__(
        self, p: RowProgram, inputs: Sequence[Buffer], row: tuple[Expr, ...], room: int, has_centres: bool
    ) -> None:
        self._p, self._room, self._has_centres = p, room, has_centres
        self._boxes = RowArray(inputs[0], row[:1])
        self._scores = RowArray(inputs[1], row)
        self._most, self._overlap = inputs[2][0], inputs[3][0]
        self._least = inputs[4][0] if len(inputs) == 5 else None
        self._length = n = inputs[1].shape[2]
        self._keys = p.array("candidates", (n + RANKED_TOGETHER,), DType.I32)
        self._places = p.array("candidate_places", (n + 1,), DType.I32)
        self._order = p.array("order", (n,), DType.I32)
        self._count = p.cell("candidate_count")
        self._kept_count = p.cell("kept_count")
        self._kept = [p.array(f"kept_{d}", (room + _COMPARED,), _F32) for d in range(5)]  # corners and area

    def run(self, stay: RowArray, finish: Callable[[Expr], Stmt]) -> Stmt:
        return seq(
            self._kept_count.put(0),
            *([] if not self._room else [self._find(), self._sort(), self._suppress(stay)]),
            finish(self._kept_count.value),
        )

    # ------------------------------------------------------------------------------------------------- candidates

    def _find(self) -> Stmt:
        p, whole = self._p, self._length // _CHUNK

        def look(c: Expr) -> Stmt:
            all_of_them = p.loop("append", _CHUNK, lambda e: self._append(c * _CHUNK + e))
            if self._least is None:
                return all_of_them
            # The negative of the greatest, which NaN is not: those are no candidates, but hide none.
            least = self._least
            best, found = p.least("best", _CHUNK, DType.I32, lambda e: self._key(c * _CHUNK + e))
            return seq(found, If(best.value <= order_key(-least, False), all_of_them))

        rest = self._length - whole * _CHUNK
        return seq(
            self._count.put(0),
            p.loop("look", whole, look),
            p.loop("rest", rest, lambda e: self._append(e + whole * _CHUNK)),
        )

    def _key(self, i: Expr) -> Expr:
        """The best score comes first, and NaN last."""
        return order_key(-self._scores[i], False)

    def _append(self, i: Expr) -> Stmt:
        """Stored in any case, and counted if it is a candidate."""
        at = self._count.value
        more = as_index(1) if self._least is None else cast(INDEX, self._least < self._scores[i])
        return seq(
            self._keys.put(at, self._key(i)),
            self._places.put(at, cast(DType.I32, i)),
            self._count.put(at + more),
        )

    def _sort(self) -> Stmt:
        p, count = self._p, self._count.value

        def put(place: Expr, rank: Expr) -> Stmt:
            return self._order.put(rank, self._places[place])

        ranked = rank_each(p, self._keys, count, put)
        if self._length <= MOST_RANKED:
            return ranked
        many = sort_digits(p, count, self._length, DType.I32, lambda i: self._keys[i], put)
        return seq(If(count <= MOST_RANKED, ranked), If(as_index(MOST_RANKED) < count, many))

    # ------------------------------------------------------------------------------------------------- suppression

    def _suppress(self, stay: RowArray) -> Stmt:
        p, kept = self._p, self._kept_count
        sides = [p.cell(f"side_{d}", _F32) for d in range(5)]
        is_free = p.cell("is_free", DType.I32)
        one = const(1, DType.I32)

        def compare(start: Expr) -> Stmt:
            least, found = p.least(
                "free", _COMPARED, _F32, lambda j: self._free(sides, [k[start + j] for k in self._kept])
            )
            return seq(found, is_free.array.put(0, cast(DType.I32, least.value)))

        def candidate(i: Expr) -> Stmt:
            box = cast(INDEX, self._order[i])
            return seq(
                *self._read(box, sides),
                is_free.array.put(0, one),
                p.count(
                    "compare",
                    kept.value,
                    compare,
                    step=_COMPARED,
                    start=as_index(0),
                    also=equal(is_free.value, one),
                ),
                If(equal(is_free.value, one), self._keep(box, sides, stay)),
            )

        going_on = logical_and(kept.value < self._room, kept.value < self._most)
        return p.count("candidate", self._count.value, candidate, also=going_on)

    def _read(self, box: Expr, sides: Sequence[RowCell]) -> Iterable[Stmt]:
        y, x, v, u = (self._boxes[box, d] for d in range(4))
        if self._has_centres:
            low = [y - v / 2.0, x - u / 2.0]
            high = [y + v / 2.0, x + u / 2.0]
        else:
            low = [minimum(y, v), minimum(x, u)]
            high = [maximum(y, v), maximum(x, u)]
        for cell, value in zip(sides, (*low, *high), strict=False):
            yield cell.array.put(0, value)
        yield sides[4].array.put(0, (sides[2].value - sides[0].value) * (sides[3].value - sides[1].value))

    def _free(self, box: Sequence[RowCell], other: Sequence[Expr]) -> Expr:
        """1 if the boxes do not overlap too much, and 0 if they do. A box without an area overlaps nothing, and the
        quotient decides, rounded as it is.
        """
        a, b, zero = [s.value for s in box], other, const(0.0, _F32)
        height, width = (minimum(a[d + 2], b[d + 2]) - maximum(a[d], b[d]) for d in (0, 1))
        shared = maximum(height, 0.0) * maximum(width, 0.0)
        covered = b[4] + a[4] - shared
        quotient = select(zero < covered, shared / covered, zero)
        return select(self._overlap < quotient, zero, const(1.0, _F32))

    def _keep(self, box: Expr, sides: Sequence[RowCell], stay: RowArray) -> Stmt:
        at = self._kept_count.value

        def none(d: int) -> Stmt:
            # What boxes are compared with beyond the last that stays: it has no area.
            return self._p.vectors(
                "none", _COMPARED, _F32, lambda j: self._kept[d].put(at + j, const(0.0, _F32))
            )

        return seq(
            If(equal(at % _COMPARED, 0), seq(*(none(d) for d in range(5)))),
            *(self._kept[d].put(at, sides[d].value) for d in range(5)),
            stay.put(at, box),
            self._kept_count.put(at + 1),
        )
