"""The best elements of a row, in order.

If few are wanted, most elements need no more than a look: one that is worse than as many others as are wanted cannot be
one of them. Such a bound is known from the best of groups of elements, for each of them is an element itself; it is
lowered whenever enough candidates have been found.
"""

from collections.abc import Callable

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Expr, as_index, cast, const, equal, minimum
from tilewright.ops.core.order_key import key_dtype, worst_key
from tilewright.ops.core.row_program import RowProgram
from tilewright.ops.core.row_sort import MOST_RANKED, RANKED_TOGETHER, Ranked, rank_each, sort_digits
from tilewright.support.sizes import capacity
from tilewright.tir.stmt import If, Stmt, seq

_MOST_FILTERED = 64  # wanted elements: of more there are too many candidates to rank
_GROUPS = 3  # for each wanted element: so the bound lets about a fifth more elements pass than are wanted
_SAMPLE = 16  # elements of a group, at most: what a better bound saves is less than it costs
_CHUNK = 32  # elements that are looked at together


def best_of_row(
    p: RowProgram, length: int, k: int, dtype: DType, key: Callable[[Expr], Expr], each: Ranked
) -> Stmt:
    """`each` for the `k` best of `length` elements of this type, and maybe for others with a rank behind them."""
    to, most = key_dtype(dtype), capacity(length)
    count = length if most is length else as_index(length)
    if most > MOST_RANKED:
        if count is length and 0 < k <= _MOST_FILTERED:
            return _Filter(p, length, k, to, key).run(each)
        return sort_digits(p, count, most, to, key, each)
    keys = p.array("keys", (most + RANKED_TOGETHER,), to)
    return seq(p.count("keys", count, lambda i: keys.put(i, key(i))), rank_each(p, keys, count, each))


class _Filter:
    """Candidates are what is not worse than the bound, in the order of the row but for those that were ranked before:
    of equal ones, the first still stands first.
    """

    def __init__(self, p: RowProgram, length: int, k: int, dtype: DType, key: Callable[[Expr], Expr]) -> None:
        self._p, self._length, self._k, self._dtype, self._key = p, length, k, dtype, key
        self._room = max(4 * _CHUNK, 2 * k + 2 * _CHUNK)
        self._keys = p.array("candidates", (self._room + RANKED_TOGETHER,), dtype)
        self._places = p.array("candidate_places", (self._room,), DType.I32)
        self._count = p.cell("candidate_count")
        self._bound = p.cell("bound", dtype)

    def run(self, each: Ranked) -> Stmt:
        p, whole = self._p, self._length // _CHUNK

        def look(c: Expr) -> Stmt:
            best, found = p.least("best", _CHUNK, self._dtype, lambda e: self._key(c * _CHUNK + e))
            return seq(
                found,
                If(
                    best.value <= self._bound.value,
                    seq(
                        p.loop("append", _CHUNK, lambda e: self._append(c * _CHUNK + e)),
                        If(as_index(self._room - _CHUNK) < self._count.value, self._drop()),
                    ),
                ),
            )

        rest = self._length - whole * _CHUNK
        return seq(
            self._first_bound(),
            self._count.put(0),
            p.loop("look", whole, look),
            *([p.loop("rest", rest, lambda e: self._append(e + whole * _CHUNK))] if rest else []),
            rank_each(
                p,
                self._keys,
                self._count.value,
                lambda place, rank: each(cast(INDEX, self._places[place]), rank),
            ),
        )

    def _first_bound(self) -> Stmt:
        """The k-th best of the best of some groups."""
        p, size = self._p, RANKED_TOGETHER
        groups = -(-_GROUPS * self._k // size) * size
        per_group = min(_SAMPLE, self._length // groups)
        if per_group < 2:  # the row is too short to learn much from a part of it
            return self._bound.array.put(0, worst_key(self._dtype))
        bests = p.array("group_bests", (groups + size,), self._dtype)
        best = p.registers("group_best", (size,), self._dtype)

        def some(g: Expr) -> Stmt:
            def more(r: Expr) -> Stmt:
                def one(i: Expr) -> Stmt:
                    return best.put(i, minimum(best[i], self._key((r + 1) * groups + g * size + i)))

                return p.vectors("group_lanes", size, self._dtype, one)

            return seq(
                p.vectors("group_first", size, self._dtype, lambda i: best.put(i, self._key(g * size + i))),
                p.loop("group_more", per_group - 1, more),
                p.vectors("group_keep", size, self._dtype, lambda i: bests.put(g * size + i, best[i])),
            )

        def keep(place: Expr, rank: Expr) -> Stmt:
            return If(equal(rank, self._k - 1), self._bound.array.put(0, bests[place]))

        return seq(p.loop("groups", groups // size, some), rank_each(p, bests, groups, keep))

    def _append(self, i: Expr) -> Stmt:
        """Stored in any case, and counted if it is a candidate."""
        at, key = self._count.value, self._key(i)
        return seq(
            self._keys.put(at, key),
            self._places.put(at, cast(DType.I32, i)),
            self._count.put(at + cast(INDEX, key <= self._bound.value)),
        )

    def _drop(self) -> Stmt:
        """Keep the best candidates, in order. What comes later has to be better than the last of them."""
        p, k = self._p, self._k
        keys = p.array("kept", (self._room,), self._dtype)
        places = p.array("kept_places", (self._room,), DType.I32)

        def keep(place: Expr, rank: Expr) -> Stmt:
            return If(rank < k, seq(keys.put(rank, self._keys[place]), places.put(rank, self._places[place])))

        return seq(
            rank_each(p, self._keys, self._count.value, keep),
            p.loop("kept", k, lambda i: seq(self._keys.put(i, keys[i]), self._places.put(i, places[i]))),
            self._count.put(k),
            # The least key has none below it; then the bound lets all pass, and ranking sorts them out.
            self._bound.array.put(0, keys[k - 1] - const(1, self._dtype)),
        )
