"""What a step of a register tile takes: its multiply-adds, its loads, or the chain of its sums."""

import numpy as np

from tilewright.support.arrays import FloatArray, IntArray
from tilewright.target.machine import Machine

UNROLL = 64  # multiply-adds that a step of a register tile's loop has written out; bound
# Swept (docs/results/constants.md).
_NOT_OVERLAPPED = 0.12  # of the time of loads: they and multiply-adds do not overlap perfectly
_FARTHER = 0.1  # cycles for a vector of B, which comes from farther than an element of A
_LOOP_UOPS = 2.0  # instructions of a step of the loop, beside; counted: the counter, the jump


def tile_step(
    m: Machine, rows: IntArray | int, vectors: IntArray | int, written_out: IntArray | int = 8
) -> FloatArray:
    """Cycles of one reduction step of a register tile, whose loop has `written_out` iterations written out."""
    work = np.multiply(rows, vectors)
    loads = np.add(rows, vectors) / m.loads_per_cycle
    uops = (work + rows + vectors + _LOOP_UOPS / np.asarray(written_out)) / m.uops_per_cycle
    busy = np.maximum(np.maximum(work / m.fma_per_cycle, loads), uops)
    # A dependent chain cannot be overlapped at all.
    return np.maximum(busy + _NOT_OVERLAPPED * loads + _FARTHER * np.asarray(vectors), m.fma_latency)
