"""Layers on random bytes: in the machine's memory, and as integers by numpy."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright_npu.constants import packed
from tilewright_npu.emitter import Emitter
from tilewright_npu.emulator import Emulator, Entry
from tilewright_npu.isa import Instruction, decode, encode
from tilewright_npu.layer_code import emit_layer
from tilewright_npu.machine import Machine
from tilewright_npu.tiling import Numbers, Place, Tiling, Work
from tilewright_npu.timeline import Timeline

SMALL = Machine(side=4, scratchpad=4096, accumulators=512, table=128, latency=20)


def conv(
    shape: tuple[int, int, int, int],
    outputs: int,
    kernel: tuple[int, int] = (1, 1),
    strides: tuple[int, int] = (1, 1),
    before: tuple[int, int] = (0, 0),
    after: tuple[int, int] = (0, 0),
    *,
    residual: bool = False,
    wide: bool = False,
    wide_input: bool = False,
    numbers: Numbers = Numbers(),  # noqa: B008
) -> Work:
    """With channels last everywhere; one tensor after the other in memory."""
    images, height, width, channels = shape
    rows, columns = (
        (n + b + a - k) // s + 1
        for n, b, a, k, s in zip((height, width), before, after, kernel, strides, strict=True)
    )
    top = 0

    def place(extents: tuple[int, ...], is_wide: bool) -> Place:
        nonlocal top
        at, top = top, (top + prod(extents) * (4 if is_wide else 1) + 63) // 64 * 64
        _, h, w, c = extents
        return Place(at, (h * w * c, w * c, c, 1), is_wide)

    out = (images, rows, columns, outputs)
    x = place(shape, wide_input)
    added = place(out, False) if residual else None
    results = (place(out, False), place(out, True)) if wide else (place(out, False),)
    weights = top
    table = (top + prod(kernel) * channels * outputs + 63) // 64 * 64
    return Work(
        *(images, height, width, channels, rows, columns, outputs, kernel, strides, before),
        *(x, added, results, weights, table, numbers),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    work: Work
    x: NDArray[np.int8]
    weights: NDArray[np.int8]
    entries: NDArray[Any]
    residual: NDArray[np.int8]

    def memory(self, tiling: Tiling) -> NDArray[np.uint8]:
        work = self.work
        dram = np.zeros(work.table + self.entries.nbytes, np.uint8)
        if work.x.wide:
            real = (self.x.astype(np.float32) - work.numbers.zero) / np.float32(work.numbers.factor)
            write(dram, work.x.at, real)
        else:
            write(dram, work.x.at, self.x)
        if work.residual is not None:
            write(dram, work.residual.at, self.residual)
        write(dram, work.weights, packed(self.weights, tiling.outputs, tiling.channels))
        write(dram, work.table, self.entries)
        return dram

    def expected(self) -> NDArray[np.int64]:
        """The sums with bias and residual, by definition."""
        w = self.work
        low, high = w.before, [max(0, (o - 1) * s + k - b - n) for o, s, k, b, n in self._axes()]
        padded = np.pad(
            self.x.astype(np.int64),
            ((0, 0), (low[0], high[0]), (low[1], high[1]), (0, 0)),
            constant_values=w.numbers.zero,
        )
        total = np.zeros((w.images, w.rows, w.columns, w.outputs), np.int64)
        for dy in range(w.kernel[0]):
            for dx in range(w.kernel[1]):
                part = padded[:, dy :: w.strides[0], dx :: w.strides[1]][:, : w.rows, : w.columns]
                total += part @ self.weights[dy, dx].astype(np.int64)
        total += self.entries["bias"]
        if w.residual is not None:
            shifted = self.residual.astype(np.int64) - w.numbers.residual_zero
            total += rounded(shifted, self.entries["residual_multiplier"], self.entries["residual_shift"])
        return total

    def narrow(self) -> NDArray[np.int8]:
        scaled = rounded(self.expected(), self.entries["multiplier"], self.entries["shift"])
        n = self.work.numbers
        return np.clip(scaled + n.out_zero, n.low, n.high).astype(np.int8)

    def _axes(self) -> list[tuple[int, int, int, int, int]]:
        w = self.work
        return list(zip((w.rows, w.columns), w.strides, w.kernel, w.before, (w.height, w.width), strict=True))


def rounded(x: NDArray[np.int64], multiplier: NDArray[Any], shift: NDArray[Any]) -> NDArray[np.int64]:
    """x · multiplier / 2^shift to the nearest integer, in exact arithmetic."""
    product = x.astype(object) * multiplier.astype(object)
    divisor = 2 ** shift.astype(object)
    return np.asarray((2 * product + divisor) // (2 * divisor), np.int64)


def case(work: Work, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    entries = np.zeros(work.outputs, Entry)
    entries["bias"] = rng.integers(-9999, 9999, work.outputs)
    entries["multiplier"] = rng.integers(2**30, 2**31 - 1, work.outputs)
    entries["shift"] = rng.integers(36, 42, work.outputs)
    entries["residual_multiplier"] = rng.integers(2**30, 2**31 - 1, work.outputs)
    entries["residual_shift"] = rng.integers(22, 28, work.outputs)
    entries["scale"] = rng.random(work.outputs)

    def some(*shape: int) -> NDArray[np.int8]:
        return rng.integers(-128, 128, shape).astype(np.int8)

    return Case(
        work,
        some(work.images, work.height, work.width, work.channels),
        some(*work.kernel, work.channels, work.outputs),
        entries,
        some(work.images, work.rows, work.columns, work.outputs),
    )


def program(work: Work, tiling: Tiling) -> list[Instruction]:
    out = Emitter()
    emit_layer(out, work, tiling)
    return decode(encode(out.code()))


def run(one: Case, tiling: Tiling, machine: Machine) -> tuple[list[NDArray[Any]], Timeline]:
    """What the machine makes of it: each of its results."""
    dram = one.memory(tiling)
    timeline = Emulator(machine, dram).run(program(one.work, tiling))
    w = one.work
    shape = (w.images, w.rows, w.columns, w.outputs)
    found = [np.ndarray(shape, np.float32 if p.wide else np.int8, dram, p.at) for p in w.results]
    return found, timeline


def write(dram: NDArray[np.uint8], at: int, array: NDArray[Any]) -> None:
    dram[at : at + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)


def with_numbers(work: Work, **given: Any) -> Work:
    return replace(work, numbers=replace(work.numbers, **given))
