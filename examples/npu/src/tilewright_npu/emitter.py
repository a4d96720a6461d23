"""Instructions in the order in which they are meant, and the tokens that keep units from overtaking each other.

Who emits says what each instruction reads and writes, as slots of memory. An instruction waits for the last one of each
other unit that wrote what it reads, or used what it writes. The token is sent right after that one, so a unit runs as
far ahead as its slots allow: two slots for inputs, and LOAD fills one while ARRAY works on the other.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright_npu.isa import Instruction, Scale, Signal, Wait
from tilewright_npu.machine import Unit


@dataclass(slots=True, eq=False)
class Slot:
    """A part of a memory. Which instruction of each unit was the last to read and to write it?"""

    at: int
    readers: dict[Unit, int] = field(default_factory=dict[Unit, int])
    writers: dict[Unit, int] = field(default_factory=dict[Unit, int])


class Emitter:
    def __init__(self) -> None:
        self._code: list[Instruction] = []
        self._needs: list[dict[Unit, int]] = []
        self._last: dict[Unit, int] = {}
        self._tensors: dict[int, Slot] = {}
        self._scale: tuple[float, int] | None = None

    def scale(self, factor: float, zero: int) -> None:
        """How wide elements are quantized from now on."""
        if self._scale != (factor, zero):
            self._scale = factor, zero
            self.emit(Scale(factor, zero))

    def slot(self, at: int) -> Slot:
        """A new use of memory that anything before may have used otherwise."""
        return Slot(at, dict(self._last))

    def tensor(self, dram: int) -> Slot:
        """A tensor in DRAM, which has its place for good."""
        return self._tensors.setdefault(dram, Slot(dram))

    def emit(self, i: Instruction, reads: Iterable[Slot] = (), writes: Iterable[Slot] = ()) -> None:
        number, needs = len(self._code), dict[Unit, int]()
        written = tuple(writes)
        for slot in reads:
            _later(needs, slot.writers)
            slot.readers[i.unit] = number
        for slot in written:
            _later(needs, slot.writers)
            _later(needs, {u: n for u, n in slot.readers.items() if n != number})
            slot.readers, slot.writers = {}, {i.unit: number}
        self._code.append(i)
        self._needs.append(needs)
        self._last[i.unit] = number

    def code(self) -> list[Instruction]:
        """All of it, with tokens. Those from one unit to another are taken in the order in which they are sent: what
        a unit waits for comes later each time.
        """
        known: dict[tuple[Unit, Unit], int] = {}
        sent: dict[int, list[Instruction]] = {}
        taken: dict[int, list[Instruction]] = {}
        for number, (i, needs) in enumerate(zip(self._code, self._needs, strict=True)):
            for source, needed in needs.items():
                pair = source, i.unit
                if source is not i.unit and known.get(pair, -1) < needed:
                    known[pair] = needed
                    sent.setdefault(needed, []).append(Signal(source.value, i.unit.value))
                    taken.setdefault(number, []).append(Wait(source.value, i.unit.value))
        out: list[Instruction] = []
        for number, i in enumerate(self._code):
            out += [*taken.get(number, ()), i, *sent.get(number, ())]
        return out


def _later(needs: dict[Unit, int], others: dict[Unit, int]) -> None:
    for unit, number in others.items():
        needs[unit] = max(needs.get(unit, -1), number)
