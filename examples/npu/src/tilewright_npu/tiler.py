"""The choice of a tiling: all that fit the memories are ranked by a closed form; the cycle model then times the
programs of the best few, and the quickest is taken.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tilewright_npu.emitter import Emitter
from tilewright_npu.layer_code import emit_layer
from tilewright_npu.machine import Machine
from tilewright_npu.tiling import Tiling, Work
from tilewright_npu.timeline import Timeline, matmul_cycles

_TIMED = 4  # tilings that are timed
_PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 112, 128, 192, 224, 256)


@dataclass(frozen=True, slots=True)
class Choice:
    tiling: Tiling
    cycles: int  # of the layer alone


def choose(work: Work, machine: Machine) -> Choice:
    """The quickest tiling; ValueError if none fits."""
    return _choose(work.shape_only, machine)


@lru_cache(maxsize=1024)
def _choose(work: Work, machine: Machine) -> Choice:
    ranked = heapq.nsmallest(_TIMED, tilings(work, machine), key=lambda t: estimate(t, work, machine))
    if not ranked:
        raise ValueError(f"no part of {work} fits the scratchpad")
    return min((Choice(t, cycles(t, work, machine)) for t in ranked), key=lambda c: c.cycles)


def cycles(tiling: Tiling, work: Work, machine: Machine) -> int:
    """What the cycle model says of the layer's program."""
    out = Emitter()
    emit_layer(out, work, tiling)
    return Timeline(machine).play(out.code())


def tilings(work: Work, machine: Machine) -> Iterator[Tiling]:
    """All that fit, among those of equal parts."""
    for outputs in _sizes(work.outputs, machine.side):
        for rows in _sizes(work.rows, 1):
            for columns in _sizes(work.columns, 1):
                if rows * columns * outputs > machine.accumulators:
                    continue
                if rows > 1 and columns < work.columns:
                    continue  # whole rows first: halves of them are loaded twice at their seams
                for channels in _sizes(work.channels, machine.side):
                    for weights_first in (False, True):
                        tiling = Tiling(rows, columns, outputs, channels, weights_first)
                        if tiling.fits(work, machine):
                            yield tiling


def estimate(tiling: Tiling, work: Work, machine: Machine) -> float:
    """Cycles, if units never wait for each other but at the beginning and the end."""
    tiles, blocks, chunks = tiling.counts(work)
    steps = tiles * blocks * chunks
    rows, pixels = tiling.window(work)
    x_size = rows * pixels * tiling.channels * (4 if work.x.wide else 1)
    w_size = math.prod(work.kernel) * tiling.channels * tiling.outputs
    x_loads = tiles * chunks if not tiling.weights_first and chunks <= 2 else steps
    if tiles * chunks <= 2:
        x_loads = tiles * chunks
    w_loads = blocks * chunks if (tiling.weights_first and chunks <= 2) or blocks * chunks <= 2 else steps
    points = tiling.rows * tiling.columns
    array = (
        steps
        * work.kernel[0]
        * matmul_cycles(points, work.kernel[1] * tiling.channels, tiling.outputs, machine)
    )
    load = (x_loads * x_size + w_loads * w_size) / machine.beat + (x_loads + w_loads) * machine.setup
    out = tiles * blocks * points * tiling.outputs
    if work.residual is not None:
        load += out * (4 if work.residual.wide else 1) / machine.beat
    store = sum(out * (4 if p.wide else 1) for p in work.results) / machine.beat
    vector = len(work.results) * out / machine.side
    ends = (x_size + w_size) / machine.beat + store / (tiles * blocks)
    return max(array, load, store, vector) + ends


def _sizes(n: int, grain: int) -> list[int]:
    """Parts of about equal size, of whole grains."""
    return sorted({min(n, _ceil(_ceil(n, p), grain) * grain) for p in (*_PARTS, n) if p <= n})


def _ceil(n: int, by: int) -> int:
    return -(-n // by)
