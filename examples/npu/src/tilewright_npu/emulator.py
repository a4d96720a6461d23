"""What instructions do: the memories, and each operation on them as a whole, by numpy.

Instructions take effect in the order of the program; `timeline` says when they would. A program whose result would
depend on that (one unit uses memory that another has not finished with) is wrong, and is stopped: tokens are missing
in it. So is one that leaves a memory. Errors name the instruction.
"""

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright_npu.isa import Fill, Instruction, Load, Matmul, Scale, Store, Table, Vector
from tilewright_npu.machine import Machine
from tilewright_npu.timeline import ENTRY, Deadlock, Timeline

Array: TypeAlias = NDArray[Any]

# Of a channel: what is added to its sums, by what they become int8 (times multiplier, shifted right, rounded), by what
# a residual becomes such a sum, and by what sums become float32.
Entry = np.dtype(
    [
        ("bias", "<i4"),
        ("multiplier", "<i4"),
        ("shift", "<i4"),
        ("residual_multiplier", "<i4"),
        ("residual_shift", "<i4"),
        ("scale", "<f4"),
    ]
)
assert Entry.itemsize == ENTRY
_LINE = 64  # bytes or words of a memory that are watched as one
_EXACT = 1024  # products of two int8 that a float32 sums without rounding


class EmulatorError(RuntimeError):
    """The program does what the machine cannot."""


class _Memory:
    """Remembers until when each line is written or read."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.written = np.zeros(size // _LINE + 1, np.int64)
        self.read = np.zeros(size // _LINE + 1, np.int64)


class Emulator:
    def __init__(self, machine: Machine, dram: NDArray[np.uint8]) -> None:
        self.machine, self.dram = machine, dram
        self.scratchpad = np.zeros(machine.scratchpad, np.int8)
        self.accumulators = np.zeros(machine.accumulators, np.int32)
        self.table = np.zeros(machine.table, Entry)
        self.timeline = Timeline(machine)
        self._factor, self._zero = np.float32(1), 0
        self._memories = {
            "DRAM": _Memory("DRAM", dram.size),
            "scratchpad": _Memory("scratchpad", machine.scratchpad),
            "accumulators": _Memory("accumulators", machine.accumulators),
            "table": _Memory("table", machine.table),
        }
        self._now: tuple[int, int, int] = (0, 0, 0)
        self._place = ""

    def run(self, code: Sequence[Instruction]) -> Timeline:
        for n, i in enumerate(code):
            self._place = f"instruction {n} ({i})"
            try:
                self._now = self.timeline.issue(i)
            except Deadlock as e:
                self._fail(str(e))
            match i:
                case Load():
                    self._load(i)
                case Store():
                    self._store(i)
                case Scale():
                    self._factor, self._zero = np.float32(i.factor), i.zero
                case Fill():
                    self._writes("scratchpad", i.at, i.bytes)
                    self.scratchpad[i.at : i.at + i.bytes] = i.value
                case Table():
                    self._reads("DRAM", i.dram, i.count * ENTRY)
                    self._writes("table", i.at, i.count)
                    self.table[i.at : i.at + i.count] = np.ndarray((i.count,), Entry, self.dram, i.dram)
                case Matmul():
                    self._matmul(i)
                case Vector():
                    self._vector(i)
                case _:
                    pass
        return self.timeline

    # ------------------------------------------------------------------------------------------------- operations

    def _load(self, i: Load) -> None:
        source = self._in_dram(i, np.float32 if i.wide else np.int8)
        self._reads("DRAM", i.dram, _reach(i, (i.row, i.pixel, i.channel), 4 if i.wide else 1))
        self._writes("scratchpad", i.at, _reach(i, (i.row_pitch, i.pixel_pitch, 1), 1))
        if i.wide:
            with np.errstate(all="ignore"):
                wide = np.rint(source * self._factor) + self._zero
            source = np.clip(np.nan_to_num(wide, copy=False, nan=self._zero), -128, 127)
        shape, strides = (i.rows, i.pixels, i.channels), (i.row_pitch, i.pixel_pitch, 1)
        np.ndarray(shape, np.int8, self.scratchpad, i.at, strides)[...] = source

    def _store(self, i: Store) -> None:
        shape, size = (i.rows, i.pixels, i.channels), 4 if i.wide else 1
        self._reads(
            "accumulators" if i.wide else "scratchpad", i.at, _reach(i, (i.row_pitch, i.pixel_pitch, 1), 1)
        )
        self._writes("DRAM", i.dram, _reach(i, (i.row, i.pixel, i.channel), size))
        strides = (i.row_pitch * size, i.pixel_pitch * size, size)
        memory, dtype = (self.accumulators, np.float32) if i.wide else (self.scratchpad, np.int8)
        self._in_dram(i, dtype)[...] = np.ndarray(shape, dtype, memory, i.at * size, strides)

    def _in_dram(self, i: Load | Store, dtype: type[np.generic]) -> Array:
        size = 4 if i.wide else 1
        self._within("DRAM", i.dram, _reach(i, (i.row, i.pixel, i.channel), size))
        strides = (i.row * size, i.pixel * size, i.channel * size)
        return np.ndarray((i.rows, i.pixels, i.channels), dtype, self.dram, i.dram, strides)

    def _matmul(self, i: Matmul) -> None:
        rows = i.rows * i.pixels
        self._reads(
            "scratchpad",
            i.at,
            (i.rows - 1) * i.row_pitch + (i.pixels - 1) * i.pixel_pitch + i.depth,
        )
        self._reads("scratchpad", i.weights, i.depth * i.columns)
        self._writes("accumulators", i.acc, rows * i.columns)
        shape, strides = (i.rows, i.pixels, i.depth), (i.row_pitch, i.pixel_pitch, 1)
        x = (
            np.ndarray(shape, np.int8, self.scratchpad, i.at, strides)
            .astype(np.float32)
            .reshape(rows, i.depth)
        )
        w = self.scratchpad[i.weights : i.weights + i.depth * i.columns].astype(np.float32)
        w = w.reshape(i.depth, i.columns)
        sums = self.accumulators[i.acc : i.acc + rows * i.columns].reshape(rows, i.columns)
        if not i.accumulate:
            sums[...] = 0
        for k in range(0, i.depth, _EXACT):
            sums += (x[:, k : k + _EXACT] @ w[k : k + _EXACT]).astype(np.int32)

    def _vector(self, i: Vector) -> None:
        count = i.rows * i.columns
        (self._writes if i.wide else self._reads)("accumulators", i.acc, count)
        self._reads("table", i.table, i.columns)
        of = self.table[i.table : i.table + i.columns]
        sums = self.accumulators[i.acc : i.acc + count].reshape(i.rows, i.columns)
        wide = sums.astype(np.int64) + of["bias"]
        if i.has_residual:
            self._reads("scratchpad", i.residual, count)
            residual = self.scratchpad[i.residual : i.residual + count].reshape(i.rows, i.columns)
            wide += scaled(
                residual.astype(np.int64) - i.residual_zero, of["residual_multiplier"], of["residual_shift"]
            )
        np.clip(wide, -(2**31), 2**31 - 1, out=wide)
        if i.wide:
            real = wide.astype(np.float32) * of["scale"]
            sums.view(np.float32)[...] = np.maximum(real, np.float32(0)) if i.relu else real
        else:
            self._writes("scratchpad", i.at, count)
            narrow = np.clip(scaled(wide, of["multiplier"], of["shift"]) + i.zero, i.low, i.high)
            self.scratchpad[i.at : i.at + count] = narrow.reshape(-1)

    # ---------------------------------------------------------------------------------------------------- the rules

    def _reads(self, memory: str, start: int, count: int) -> None:
        m = self._within(memory, start, count)
        begin, end, _ = self._now
        lines = slice(start // _LINE, (start + count - 1) // _LINE + 1)
        if m.written[lines].max(initial=0) > begin:
            self._fail(f"reads from the {memory} what is still being written there: a token is missing")
        m.read[lines] = np.maximum(m.read[lines], end)

    def _writes(self, memory: str, start: int, count: int) -> None:
        m = self._within(memory, start, count)
        begin, _, there = self._now
        lines = slice(start // _LINE, (start + count - 1) // _LINE + 1)
        # Of DRAM only the part that is read again matters, and that is a later matter: neighbours may share a line.
        is_written = memory != "DRAM" and m.written[lines].max(initial=0) > begin
        if is_written or m.read[lines].max(initial=0) > begin:
            self._fail(f"writes to the {memory} where another unit is not done yet: a token is missing")
        m.written[lines] = np.maximum(m.written[lines], there)

    def _within(self, memory: str, start: int, count: int) -> _Memory:
        m = self._memories[memory]
        if start + count > m.size:
            self._fail(f"reaches {start + count} of the {memory}, which ends at {m.size}")
        return m

    def _fail(self, why: str) -> NoReturn:
        raise EmulatorError(f"{self._place}: {why}")


def scaled(x: NDArray[np.int64], multiplier: Array, shift: Array) -> NDArray[np.int64]:
    """x · multiplier / 2^shift, rounded to nearest, halves up."""
    shifts = shift.astype(np.int64)
    return (x * multiplier.astype(np.int64) + (np.int64(1) << (shifts - 1))) >> shifts


def _reach(i: Load | Store, strides: tuple[int, int, int], size: int) -> int:
    """From the first element of a box to behind its last."""
    steps = zip((i.rows, i.pixels, i.channels), strides, strict=True)
    return (sum((n - 1) * s for n, s in steps) + 1) * size
