"""Nests around several blocks in which a loop depends on its own earlier iterations, and how they can be divided."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.cost.work import domain
from tilewright.families.parallel import is_worth_sharing
from tilewright.ir.expr import Var
from tilewright.schedule.find import chain, loops_above, top_level
from tilewright.target.machine import SHIPPED
from tilewright.target.target import Target
from tilewright.tir.analysis.independence import dependence
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, IterKind, Seq, blocks

_COLUMN_VECTORS = (
    4  # vectors of a part, at least; counted: fewer sums than the latency of one in cycles wait for it
)


def recurrent_nests(func: Func) -> list[For]:
    """The nests around several blocks in which a loop depends on its own earlier iterations, or has a single one: so
    much does a recurrent network in which every step is a call of its own have of its loop.
    """
    found = [n for n in top_level(func) if isinstance(n, For) and isinstance(chain(n)[-1].body, Seq)]
    return [n for n in found if any(_is_recurrent(func, loop) for loop in chain(n))]


def _is_recurrent(func: Func, loop: For) -> bool:
    return loop.extent == 1 or dependence(func, loop) is not None


@dataclass(frozen=True, eq=False)
class RecurrentNest:
    """One of them."""

    func: Func
    nest: For
    target: Target

    @cached_property
    def every(self) -> tuple[Block, ...]:
        return tuple(blocks(self.nest))

    @cached_property
    def shared(self) -> tuple[For, ...]:
        """The loops around all blocks; the last is the one that has the dependence."""
        return tuple(chain(self.nest))

    @cached_property
    def outer_parts(self) -> int:
        """How many parts there are already: iterations of loops around the dependence."""
        count = 1
        for loop in self.shared[:-1]:
            count *= loop.extent
        return count

    @property
    def iterations(self) -> int:
        return self.outer_parts * self.shared[-1].extent

    @cached_property
    def is_long(self) -> bool:
        return is_worth_sharing(self.target.lanes(4), *self.every)

    @cached_property
    def rows(self) -> tuple[For, ...]:
        """The first own loop of each block, if they are equally long; parts of it may be moved outside."""
        first = [loops[0] for b in self.every if (loops := self._own(b))]
        if len(first) < len(self.every) or len({loop.extent for loop in first}) > 1:
            return ()
        return tuple(first)

    @cached_property
    def row_sizes(self) -> tuple[int, ...]:
        """Rows of a part."""
        if not self.is_long or not self.rows:
            return ()
        return _divisors(self.rows[0].extent, 1, 1)

    @cached_property
    def columns(self) -> tuple[For, ...]:
        """For each block its loop over columns. Those of the last block count; others may have several times as many
        (the gates of a cell).
        """
        found = [self._column_loop(b) for b in self.every]
        loops = tuple(loop for loop in found if loop is not None)
        if len(self.every) < 2 or len(loops) < len(self.every):
            return ()
        return () if any(loop.extent % loops[-1].extent for loop in loops) else loops

    @cached_property
    def column_sizes(self) -> tuple[int, ...]:
        """Columns of a part: enough for it to be worth a meeting in every iteration. None where there are parts that
        need no meeting.
        """
        if not self.is_long or not self.columns or self.outer_parts > 1:
            return ()
        columns, lanes = self.columns[-1].extent, self.target.lanes(4)
        work = sum(domain(b) for b in self.every if b.is_reduction) // self.iterations
        sizes = _divisors(columns, _COLUMN_VECTORS * lanes, lanes)
        met = SHIPPED.meeting_seconds * SHIPPED.hertz * SHIPPED.fma_per_cycle * lanes  # in multiply-adds
        return tuple(n for n in sizes if work * n // columns >= met)

    def _column_loop(self, block: Block) -> For | None:
        """The loop of the block's last iterator that is no reduction, if that is one loop of its own."""
        iters = zip(block.iters, block.bindings, strict=True)
        *_, last = [binding for it, binding in iters if it.kind is IterKind.SPATIAL]
        return next((n for n in self._own(block) if isinstance(last, Var) and n.var is last), None)

    def _own(self, block: Block) -> Sequence[For]:
        """The loops of a block that it does not share."""
        return [n for n in loops_above(self.func, block) if n not in self.shared]


def _divisors(extent: int, least: int, step: int) -> tuple[int, ...]:
    return tuple(n for n in range(least, extent // 2 + 1, step) if extent % n == 0)
