"""The machine as data: four units that work side by side, and the memories between them.

    DRAM --LOAD--> scratchpad --ARRAY--> accumulators --VECTOR--> scratchpad or accumulators --STORE--> DRAM

The array holds a tile of weights, `side` × `side` of them, while rows of inputs stream through; the next tile moves in
behind the rows of the last. Each unit takes its instructions in order; units wait for each other by tokens
(`timeline`). Sizes are those of accelerators for phones and cameras.
"""

from dataclasses import dataclass
from enum import Enum, unique


@unique
class Unit(Enum):
    LOAD = 0
    ARRAY = 1
    VECTOR = 2
    STORE = 3


@dataclass(frozen=True, slots=True)
class Machine:
    side: int = 16  # of the array; also the lanes of the vector unit
    scratchpad: int = 256 << 10  # bytes
    accumulators: int = 16 << 10  # words of four bytes
    table: int = 1024  # channels whose constants the vector unit holds
    beat: int = 16  # bytes that cross the memory bus in a cycle, in each direction
    latency: int = 100  # cycles until the first of them is there
    setup: int = 8  # cycles to start an instruction of LOAD, VECTOR or STORE
    hertz: float = 1e9

    @property
    def peak(self) -> int:
        """Multiplications in a cycle."""
        return self.side * self.side


NPU = Machine()
