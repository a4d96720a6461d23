"""What a mapping costs, in a closed form over all mappings of a match at once.

    seconds = work in whole tiles · time of a step          (what is padding of that is `waste`)
            + waiting for operands that are read in place and lie far apart
            + calls · what a call costs                     (short reductions, and loops left outside)
            + copies of operands that are not in place
            + stores of results, one by one where the columns are not contiguous

The groups of the roles are chosen independently of one another, so a term is an array over the groups of the roles that
it depends on, with one axis per role, and numpy's broadcasting makes the sum over all combinations. Nothing is built.
The figures are those of one core (`target/machine.py`) that finds everything in its caches but what is copied.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.caches import LINE_BYTES, PREFETCHED_BYTES, per_byte
from tilewright.cost.register_tile import tile_step
from tilewright.cost.terms import Amount, Ledger, TermName, scaled
from tilewright.families.tensor.mapping import IterGroup, MappingChoice, Role
from tilewright.families.tensor.operand_plan import (
    Steps,
    operand_strides,
    role_extents,
    run_length,
    tile_steps,
)
from tilewright.ir.expr import Load, free_vars, loads
from tilewright.support.arrays import FloatArray
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, IterKind

Flags: TypeAlias = NDArray[np.bool_]

# Swept (docs/results/constants.md).
_CALL = 6.0  # cycles to come to a tile: addresses, loop counters
_ELEMENT = 1.6  # cycles to move one element by itself
_DIVISION = 3.0  # cycles to find out where an element of a fused group is
_OVERLAP = 0.4  # of a step: what rows that read the same elements push out of the registers
_VECTOR = 0.7  # cycles to move a vector
_MASKED = 2.1  # or one that is cut off at an edge
_MAX_ROWS, _SPILL = 8, 1.15  # rows of a tile, and times what a step of more takes: LLVM spills accumulators
BEST_TILE = 6, 2  # rows and vectors; counted: 12 sums, 2 vectors of B and an element of A in 16 registers
_REPEATED = (4, 2)  # rows and vectors of single instructions; counted likewise
# Of a step: rows of vectors that are farther apart than that; elements in lines of their own. Swept, likewise.
_FAR_ROWS, _LOOSE_LINES = 0.4, 0.05
# Of a step: tiles are entered in the order of the loops outside,
# with no chunks and no prefetch. Measured against the gemm family they took 1.03 to 1.1 times as long as counted on
# convolutions of many channels, and 1.1 to 1.9 times where tiles are few or results scattered.
_UNPLANNED = 1.3


@dataclass(frozen=True, slots=True)
class RoleCycles:
    """Cycles of every combination of groups, one axis per role."""

    compute: FloatArray  # useful work
    waste: FloatArray  # work on padding
    far: FloatArray  # waiting for operands in place that lie far apart
    calls: FloatArray
    copies: tuple[FloatArray, ...]  # of each operand; 0 for the output, and where it is in place or constant
    stores: FloatArray
    hertz: float

    @property
    def seconds(self) -> FloatArray:
        total = sum((self.waste, self.far, self.calls, self.stores, *self.copies), self.compute)
        return np.asarray(total, np.float64) / self.hertz

    def at(self, where: tuple[NDArray[np.int64], ...]) -> dict[TermName, Amount]:
        """What these seconds are made of, of some combinations."""
        told = Ledger()
        told.add("arithmetic", self.compute[where] + self.waste[where])
        told.add("near", self.far[where])
        told.add("edges", self.calls[where] + self.stores[where])
        for copy in self.copies:
            told.add("copies", copy[where])
        return scaled(told.terms, 1.0 / self.hertz)


def mapping_terms(
    choice: MappingChoice, intrinsic: Intrinsic, target: Target, constants: frozenset[str] = frozenset()
) -> RoleCycles:
    """The cost of every mapping of `choice`. Copies of `constants` are made at compile time, for nothing."""
    return _Form(choice, intrinsic, target, constants).terms()


def floor_seconds(block: Block, intrinsic: Intrinsic, target: Target) -> float:
    """What an intrinsic needs at least for a block, if it can compute it: steps of the best register tile, nothing
    else.
    """
    m, sizes = target.machine, [p.dtype.bytes for p in intrinsic.meaning.params]
    each = target.lanes(sizes[0]) * max(1, sizes[0] // min(sizes))
    rows, vectors = BEST_TILE
    steps = math.prod(it.extent for it in block.iters) / (rows * vectors * each)
    step = tile_step(m, rows, vectors) * _UNPLANNED * intrinsic.steps
    return float(steps * step) / m.hertz


class _Form:
    def __init__(
        self, choice: MappingChoice, intrinsic: Intrinsic, target: Target, constants: frozenset[str]
    ) -> None:
        self._choice, self._intrinsic, self._target, self._constants = choice, intrinsic, target, constants
        self._machine = target.machine
        self._roles = [options[0].role for options in choice.groups]
        self._shape = tuple(len(options) for options in choice.groups)
        output, *inputs = choice.match.operands
        self._lanes = max(1, target.lanes(output.dtype.bytes))
        # A lane of a dot product holds as many narrow factors as fit the wide sum.
        self._factors = max(1, output.dtype.bytes // min(e.dtype.bytes for e in inputs))
        self._steps = [operand_strides(e, choice.block) for e in choice.match.operands]
        self._places: dict[int, Flags] = {}  # `_in_place` of each operand

    def terms(self) -> RoleCycles:
        points = math.prod(it.extent for it in self._choice.block.iters)
        whole = self._product(range(len(self._roles)), lambda g: g.padded / g.extent)
        rows, vectors = self._tile()
        # LLVM brings the elements of A of many rows forward until accumulators spill.
        spill = _SPILL if rows > _MAX_ROWS else 1.0
        spill *= _UNPLANNED * self._intrinsic.steps
        step = (
            spill * tile_step(self._machine, rows, vectors) / (rows * vectors * self._lanes * self._factors)
        )
        useful = np.full(self._shape, points * step)
        far = self._far_rows() + self._overlap()
        copies = tuple(self._copy(p) for p in range(len(self._choice.match.operands)))
        return RoleCycles(
            useful,
            useful * (whole - 1),
            useful * whole * far,
            self._calls(points) * _CALL + self._tiles(points) * rows * vectors,
            copies,
            self._stores(),
            self._machine.hertz,
        )

    def _tile(self) -> tuple[int, int]:
        """The intrinsic's tile of the output: rows, and vectors of columns."""
        spatial = [r for r in self._roles if r.kind is IterKind.SPATIAL]
        columns = self._columns().tile
        rows = math.prod(r.tile for r in spatial if r is not self._columns())
        vectors = max(1, -(-columns // self._lanes))
        if self._intrinsic.emitter is not None:
            # A single instruction is repeated on several accumulators where extents allow it; most do.
            return max(rows, _REPEATED[0]), max(vectors, _REPEATED[1])
        return max(1, rows), vectors

    def _columns(self) -> Role:
        """The role that indexes the last dimension of the output."""
        last = self._intrinsic.dims[0][-1]
        return next(r for r in self._roles if any(n.var is last for n in r.loops))

    # ------------------------------------------------------------------------------------------ terms per operand

    def _copy(self, operand: int) -> FloatArray:
        e = self._choice.match.operands[operand]
        if operand == 0 or all(ld.buffer.name in self._constants for ld in loads(e)):
            return np.zeros(self._shape)
        used = free_vars(e)
        size = math.prod(it.extent for it in self._choice.block.iters if it.var in used)
        mine = [n for n, r in enumerate(self._roles) if r.character[operand]]
        elements = size * self._product(mine, lambda g: g.padded / g.extent)
        last = next(v for v in reversed(self._intrinsic.dims[operand]) if v is not None)
        inner = next(n for n in mine if any(x.var is last for x in self._roles[n].loops))
        steps = self._steps[operand]

        def per_element(g: IterGroup) -> float:
            lanes = min(self._target.lanes(e.dtype.bytes), g.extent)
            run = 1 if steps is None else run_length(g, steps)
            if g.extent == g.padded and run % lanes == 0:
                return _VECTOR / lanes
            if run == g.extent > 1:
                return _MASKED / lanes
            return _ELEMENT + (_DIVISION if len(g.iters) > 1 else 0.0)

        cycles = elements * self._vector(inner, per_element)
        moved = 2 * elements * e.dtype.bytes
        cycles = cycles + moved * per_byte(self._machine, moved)
        return np.where(self._in_place(operand), 0.0, cycles)

    def _in_place(self, operand: int) -> Flags:
        """Of every combination of groups: can the operand be read where it is?"""
        if operand not in self._places:
            self._places[operand] = self._found_in_place(operand)
        return self._places[operand]

    def _found_in_place(self, operand: int) -> Flags:
        e, steps = self._choice.match.operands[operand], self._steps[operand]
        asked = self._intrinsic.operands[operand]
        if steps is None or not isinstance(e, Load) or e.buffer.scope not in asked.scopes:
            return np.zeros(self._shape, np.bool_)
        ok = np.ones(self._shape, np.bool_)
        tiles: dict[int, list[Steps | None]] = {}  # of the groups of each role
        for n, role in enumerate(self._roles):
            if role.character[operand]:
                tiles[n] = [tile_steps(g, steps) for g in self._choice.groups[n]]
                ok = ok & (self._along(n, [t is not None for t in tiles[n]]) > 0)
        dims = self._intrinsic.dims[operand]
        expected = np.ones(self._shape)
        for v in reversed(dims[len(dims) - asked.contiguous :]):
            if v is not None:
                n = next(n for n, r in enumerate(self._roles) if any(x.var is v for x in r.loops))
                extent = self._vector(n, lambda g, v=v: role_extents(g)[v])
                step = self._along(n, [(t or {}).get(v, 0) for t in tiles[n]])
                ok = ok & ((extent == 1) | (step == expected))
                expected = expected * extent
        return ok

    def _far_rows(self) -> FloatArray:
        """How much longer a step takes because of where operands that are read in place are.

        Each row of vectors may be farther from the last than is prefetched; single elements may each be on a cache line
        of their own.
        """
        out = np.zeros(self._shape)
        for operand, asked in enumerate(self._intrinsic.operands):
            share, bytes_apart = (
                (_FAR_ROWS, PREFETCHED_BYTES) if asked.contiguous else (_LOOSE_LINES, LINE_BYTES)
            )
            for n, role in enumerate(self._roles):
                if operand and role.kind is IterKind.REDUCE and role.character[operand]:
                    far = share * self._is_far(operand, n, bytes_apart)
                    out = out + np.where(self._in_place(operand), far, 0.0)
        return out

    def _is_far(self, operand: int, role: int, bytes_apart: int) -> FloatArray:
        steps, size = self._steps[operand] or {}, self._choice.match.operands[operand].dtype.bytes
        return self._vector(role, lambda g: float(abs(steps.get(g.iters[-1].var, 0)) * size >= bytes_apart))

    def _overlap(self) -> FloatArray:
        """How much longer a step takes because neighbouring rows read the same elements in neighbouring steps.

        Their loads are merged when steps are unrolled, live long, and push accumulators out of the registers.
        """
        out = np.zeros(self._shape)
        reduce = [n for n, r in enumerate(self._roles) if r.kind is IterKind.REDUCE and r.free]
        rows = [
            n for n, r in enumerate(self._roles) if r.kind is IterKind.SPATIAL and r is not self._columns()
        ]
        for operand, asked in enumerate(self._intrinsic.operands):
            steps = self._steps[operand]
            if not operand or asked.contiguous or steps is None:
                continue
            for i, k in itertools.product(rows, reduce):
                if not (self._roles[i].character[operand] and self._roles[k].character[operand]):
                    continue
                row = self._vector(i, functools.partial(_step, steps))
                step, extent = self._vector(k, functools.partial(_step, steps)), self._vector(k, _extent)
                shared = (row > 0) & (row < step * extent) & (row % np.maximum(step, 1) == 0)
                out = out + np.where(shared & self._in_place(operand), _OVERLAP, 0.0)
        return out

    def _stores(self) -> FloatArray:
        """Results leave the registers once, a vector at a time where columns are contiguous in the output."""
        size = self._choice.match.output.buffer.size
        steps = self._steps[0]

        def per_element(g: IterGroup) -> float:
            together = steps is not None and steps.get(g.iters[-1].var) == 1
            return _VECTOR / self._lanes if together and g.iters[-1].extent >= self._lanes else _ELEMENT

        return size * self._vector(self._roles.index(self._columns()), per_element) + np.zeros(self._shape)

    # ----------------------------------------------------------------------------------------------- whole tiles

    def _tiles(self, points: int) -> FloatArray:
        """How many tiles of the output there are."""
        spatial = [n for n, r in enumerate(self._roles) if r.kind is IterKind.SPATIAL]
        reduce = math.prod(it.extent for it in self._choice.block.iters if it.kind is IterKind.REDUCE)
        return points / reduce * self._product(spatial, lambda g: g.padded / g.extent / g.role.tile)

    def _calls(self, points: int) -> FloatArray:
        """How often the intrinsic is entered: tiles, times the loops of the reduction that are left outside."""

        repeated = self._intrinsic.emitter is not None

        def steps(g: IterGroup) -> float:
            # Single instructions follow one another in a loop of ours, as the steps of a tile do in its own.
            steps_inside = g.role.free or (repeated and g.role.kind is IterKind.REDUCE)
            done = g.padded if steps_inside else g.role.tile
            return g.padded / g.extent / done

        return points * self._product(range(len(self._roles)), steps)

    # -------------------------------------------------------------------------------------------------- one axis

    def _vector(self, role: int, value: Callable[[IterGroup], float]) -> FloatArray:
        """A value of each group of a role, on the role's axis."""
        return self._along(role, [value(g) for g in self._choice.groups[role]])

    def _along(self, role: int, values: Sequence[float]) -> FloatArray:
        shape = [1] * len(self._roles)
        shape[role] = -1
        return np.array(values, np.float64).reshape(shape)

    def _product(self, which: Iterable[int], value: Callable[[IterGroup], float]) -> FloatArray:
        return functools.reduce(lambda a, n: a * self._vector(n, value), which, np.ones(self._shape))


def _step(steps: Steps, g: IterGroup) -> float:
    """How far the last iterator of a group moves an operand."""
    return float(abs(steps.get(g.iters[-1].var, 0)))


def _extent(g: IterGroup) -> float:
    return float(g.iters[-1].extent)
