"""When instructions run: the cycle model, which the emulator and the tiler share.

Each unit runs its own instructions in their order, and starts the next as soon as it is free; how far ahead of the
others it gets is limited by WAIT alone. What LOAD and STORE move is there a latency after the bus was busy with it, and
the bus is free for the next one meanwhile.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright_npu.isa import Fill, Instruction, Load, Matmul, Scale, Signal, Store, Table, Vector, Wait
from tilewright_npu.machine import Machine, Unit

ENTRY = 24  # bytes of a channel in the vector unit's table


class Deadlock(RuntimeError):
    """A unit waits for a token that nobody has sent."""


@dataclass(slots=True)
class Timeline:
    machine: Machine
    free: dict[Unit, int] = field(default_factory=lambda: dict.fromkeys(Unit, 0))
    done: dict[Unit, int] = field(default_factory=lambda: dict.fromkeys(Unit, 0))
    busy: dict[Unit, int] = field(default_factory=lambda: dict.fromkeys(Unit, 0))
    bytes_in: int = 0
    bytes_out: int = 0
    multiplications: int = 0
    _tokens: dict[tuple[int, int], deque[int]] = field(default_factory=dict[tuple[int, int], deque[int]])

    @property
    def cycles(self) -> int:
        return max(self.done.values())

    def play(self, code: Iterable[Instruction]) -> int:
        """Run all; how many cycles have gone by."""
        for i in code:
            self.issue(i)
        return self.cycles

    def issue(self, i: Instruction) -> tuple[int, int, int]:
        """When the instruction starts, when its unit is free again, and when its results are there."""
        match i:
            case Signal():
                tokens = self._tokens.setdefault((i.source, i.target), deque())
                tokens.append(self.done[Unit(i.source)])
                return (0, 0, 0)
            case Wait():
                tokens = self._tokens.get((i.source, i.target))
                if not tokens:
                    raise Deadlock(
                        f"{Unit(i.target).name} waits for {Unit(i.source).name}, which has sent nothing"
                    )
                target = Unit(i.target)
                self.free[target] = max(self.free[target], tokens.popleft())
                return (0, 0, 0)
            case _:
                pass
        busy, latency = cost(i, self.machine)
        start = self.free[i.unit]
        self.free[i.unit] = start + busy
        self.busy[i.unit] += busy
        self.done[i.unit] = max(self.done[i.unit], start + busy + latency)
        match i:
            case Load():
                self.bytes_in += i.bytes
            case Table():
                self.bytes_in += i.count * ENTRY
            case Store():
                self.bytes_out += i.bytes
            case Matmul():
                self.multiplications += i.rows * i.pixels * i.depth * i.columns
            case _:
                pass
        return start, start + busy, start + busy + latency


def cost(i: Instruction, machine: Machine) -> tuple[int, int]:
    """For how many cycles an instruction keeps its unit busy, and how many later its results are there."""
    match i:
        case Load() | Store():
            return machine.setup + _beats(i, machine.beat), machine.latency
        case Table():
            return machine.setup + _ceil(i.count * ENTRY, machine.beat), machine.latency
        case Fill():
            return machine.setup + _ceil(i.bytes, 4 * machine.beat), 0  # the bus is not in the way
        case Matmul():
            return matmul_cycles(i.rows * i.pixels, i.depth, i.columns, machine), 0
        case Vector():
            return machine.setup + i.rows * _ceil(i.columns, machine.side), 0
        case Scale():
            return 1, 0
        case _:
            return 0, 0


def matmul_cycles(rows: int, depth: int, columns: int, machine: Machine) -> int:
    """The first tile of weights moves in; then the rows stream through it while the next one does; the last rows leave
    along both sides of the array.
    """
    side = machine.side
    tiles = _ceil(depth, side) * _ceil(columns, side)
    return side + tiles * max(rows, side) + 2 * side - 1


def _beats(i: Load | Store, beat: int) -> int:
    """Cycles on the bus. What lies side by side in DRAM goes together, along whichever axis that is: the engine turns
    tiles on their way.
    """
    size = 4 if i.wide else 1
    axes = [(n, step) for n, step in ((i.channels, i.channel), (i.pixels, i.pixel), (i.rows, i.row)) if n > 1]
    run, left = 1, i.rows * i.pixels * i.channels
    found = True
    while found:  # the axis that goes on where the run ends
        found = False
        for n, step in axes:
            if step == run:
                axes.remove((n, step))
                run, left, found = run * n, left // n, True
                break
    return left * _ceil(run * size, beat)


def _ceil(n: int, by: int) -> int:
    return -(-n // by)
