"""What a core does in a cycle, as far as the cost of a schedule depends on it.

Figures are per core and approximate: they rank schedules, they do not predict clocks. Caches count as a little smaller
than they are, since other data passes through them too.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.target.target import Target

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Machine:
    lanes: int  # 32-bit elements of a vector
    registers: int
    hertz: float = 3.3e9
    fma_per_cycle: float = 2.0
    loads_per_cycle: float = 2.0
    uops_per_cycle: float = 5.5
    fma_latency: float = 4.0
    operations_in_flight: int = 256  # that are begun before the oldest of them has ended
    l1_bytes: float = 24 * 1024
    l2_bytes: float = 400 * 1024
    l3_bytes: float = 8 * 1024 * 1024
    far_bytes: float = 16 * 1024 * 1024  # what the last cache holds for a kernel that runs alone
    # Cycles a byte costs beyond a load that hits the first-level cache, by where it comes from.
    from_l2: float = 0.0015
    from_l3: float = 0.004
    from_memory: float = 0.02

    def tile_step(self, rows: Ints | int, vectors: Ints | int, written_out: Ints | int = 8) -> Array:
        """Cycles of one reduction step of a register tile, whose loop is written out so many times."""
        work = np.multiply(rows, vectors)
        loads = np.add(rows, vectors) / self.loads_per_cycle
        uops = (work + rows + vectors + 2.0 / np.asarray(written_out)) / self.uops_per_cycle
        busy = np.maximum(np.maximum(work / self.fma_per_cycle, loads), uops)
        # Loads and multiply-adds do not overlap perfectly; a dependent chain cannot be overlapped at all.
        # A vector of B comes from farther than an element of A.
        return np.maximum(busy + 0.12 * loads + 0.1 * np.asarray(vectors), self.fma_latency)

    def per_byte(self, footprint: Array) -> Array:
        """Cycles per byte for data that is read again after `footprint` bytes of other data."""
        return np.where(
            footprint <= self.l1_bytes,
            0.0,
            np.where(
                footprint <= self.l2_bytes,
                self.from_l2,
                np.where(footprint <= self.l3_bytes, self.from_l3, self.from_memory),
            ),
        )


def machine_of(target: Target) -> Machine:
    return Machine(
        lanes=target.lanes(4),
        registers=target.vector_registers,
        l1_bytes=0.75 * target.l1_bytes,
        l2_bytes=0.8 * target.l2_bytes,
        # A shared cache is shared with neighbours that cannot be seen: half, and no more than a few MiB.
        l3_bytes=min(0.5 * target.l3_bytes, 6 * 1024 * 1024),
        far_bytes=0.5 * target.l3_bytes,
    )
