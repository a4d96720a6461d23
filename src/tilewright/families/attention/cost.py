"""The time of two contractions of which the second takes up rows made from the first, in closed form.

    cycles = both contractions, block of rows by block of rows
           + copying the columns of either into panels, once
           + what happens to rows in between, from where they are kept
           + what happens to each row once more for every block of keys, where these are taken up in blocks

`contraction_seconds` has the first. A block of rows that is kept near costs less to come back to, and one of few rows
reads the columns more often.
"""

from dataclasses import dataclass

import numpy as np

from tilewright.cost.caches import from_l2, per_byte
from tilewright.cost.layouts import COPIED, copy_cycles
from tilewright.target.machine import Machine
from tilewright.target.target import Target

# Swept (docs/results/constants.md).
_ROW_CYCLES = (
    16.0  # cycles for a vector of a row, counted: its maximum, its power of 16 instructions, its sum
)
_PASSES = 5.0  # times that a row is written or read, from the first GEMM to the last; counted
_STREAMED = 16.0  # times what a byte costs a register tile: from afar, where there is little else to do
_KERNELS_START = (
    60000.0  # cycles to start and to end the three more kernels that there are without blocks, cold
)
_SCALE_CYCLES = (
    100.0  # cycles for a row: the largest score of a block of keys, by what the row is scaled then, its sum
)
_TRANSPOSE = 0.7  # cycles to copy an element transposed, as copies of `benchmarks.predicted` take


@dataclass(frozen=True, slots=True)
class Between:
    """The rows between the contractions: their elements, and how many bytes of them there are at a time."""

    elements: int
    bytes_each: int
    kept_bytes: int
    is_apart: bool  # in kernels of their own

    def seconds(self, target: Target) -> float:
        m, lanes = target.machine, target.lanes(self.bytes_each)
        # What comes row by row from the second cache comes in time.
        again = _STREAMED * max(per_byte(m, np.array([float(self.kept_bytes)]))[0] - from_l2(m), 0.0)
        cycles = self.elements * (_ROW_CYCLES / lanes + _PASSES * self.bytes_each * again)
        return (cycles + self.is_apart * _KERNELS_START) / m.hertz


def panels_seconds(elements: int, bytes_each: int, is_transposed: bool, m: Machine) -> float:
    """Copying the columns of a contraction into panels."""
    return copy_cycles(elements, bytes_each, m, _TRANSPOSE if is_transposed else COPIED) / m.hertz


def scaling_seconds(rows: int, blocks: int, m: Machine) -> float:
    """What is done once for each block of keys to every row, where keys are taken up in blocks."""
    return rows * blocks * _SCALE_CYCLES / m.hertz


# Cycles that a byte of values costs more where strips of columns go over more rows than the second cache holds.
# Measured on 8 heads with 8 rows, 4096 keys and 128 columns: strips took 1.95 ms of CPU time, and 1.77 ms in chunks of
# 512 keys, while costs without this said 0.78 and 0.90 ms.
_STRIPS = 0.05


def strips_seconds(nbytes: int, m: Machine) -> float:
    return nbytes * _STRIPS / m.hertz
