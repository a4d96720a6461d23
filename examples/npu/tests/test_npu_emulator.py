"""Single instructions: what they do, what they take, and what they are stopped for."""

import numpy as np
import pytest

from npu_programs import SMALL
from tilewright_npu.emulator import Emulator, EmulatorError, Entry
from tilewright_npu.isa import (
    Fill,
    Instruction,
    Load,
    Matmul,
    Scale,
    Signal,
    Store,
    Table,
    Vector,
    Wait,
)
from tilewright_npu.machine import NPU, Unit
from tilewright_npu.timeline import Timeline, cost, matmul_cycles

RNG = np.random.default_rng(5)
WHOLE: dict[str, int] = {"rows": 1, "pixels": 1}


def machine(dram: int = 4096) -> Emulator:
    return Emulator(SMALL, RNG.integers(0, 256, dram).astype(np.uint8))


def test_load_moves_a_box_with_strides() -> None:
    m = machine()
    m.run(
        [
            Load(
                dram=5,
                row=100,
                pixel=10,
                channel=2,
                at=32,
                row_pitch=64,
                pixel_pitch=8,
                rows=2,
                pixels=3,
                channels=4,
            )
        ]
    )
    for r, p, c in np.ndindex(2, 3, 4):
        assert m.scratchpad[32 + 64 * r + 8 * p + c] == m.dram[5 + 100 * r + 10 * p + 2 * c].astype(np.int8)


def test_load_quantizes_floats() -> None:
    real = np.array([0.0, 0.26, -0.24, 0.75, 1e9, -1e9, np.inf, np.nan], np.float32)
    m = Emulator(SMALL, real.view(np.uint8).copy())
    m.run([Scale(2.0, 3), Load(channel=1, rows=1, pixels=1, channels=8, wide=1)])
    assert m.scratchpad[:8].tolist() == [3, 4, 3, 5, 127, -128, 127, 3]  # 1.5 is rounded to 2: to even


def test_store_is_the_way_back() -> None:
    m = machine()
    before = m.dram[:24].copy()
    load = Load(row=12, pixel=4, channel=1, at=64, row_pitch=12, pixel_pitch=4, rows=2, pixels=3, channels=4)
    store = Store(1024, 12, 4, 1, 64, 12, 4, 2, 3, 4)
    m.run([load, Signal(Unit.LOAD.value, Unit.STORE.value), Wait(Unit.LOAD.value, Unit.STORE.value), store])
    assert (m.dram[1024:1048] == before).all()


@pytest.mark.parametrize("depth", [3, 16, 1500])
def test_matmul_is_exact(depth: int) -> None:
    m = Emulator(NPU, np.zeros(0, np.uint8))
    x = np.full((2, 3, depth), -128, np.int8)
    w = np.where(RNG.random((depth, 5)) < 0.9, -128, 127).astype(np.int8)
    m.scratchpad[: x.size] = x.reshape(-1)
    m.scratchpad[x.size : x.size + w.size] = w.reshape(-1)
    once = Matmul(0, 3 * depth, depth, 2, 3, depth, 5, x.size, 64, 0)
    twice = Matmul(0, 3 * depth, depth, 2, 3, depth, 5, x.size, 64, 1)
    m.run([once, twice])
    want = 2 * (x.astype(np.int64) @ w.astype(np.int64)).reshape(-1)
    assert (m.accumulators[64 : 64 + want.size] == want).all()


def test_a_window_row_is_one_vector() -> None:
    """Windows of three pixels that step by one overlap in the scratchpad."""
    m = machine()
    m.scratchpad[:10] = np.arange(10)
    m.scratchpad[64:70] = 1
    m.run([Matmul(at=0, pixel_pitch=2, rows=1, pixels=3, depth=6, columns=1, weights=64)])
    assert m.accumulators[:3].tolist() == [15, 27, 39]


def test_vector_scales_adds_and_clamps() -> None:
    m = machine()
    m.table[:2] = np.array([(10, 2**30, 31, 2**30, 29, 0.5), (-10, 2**30, 30, 2**30, 30, 0.25)], Entry)
    m.accumulators[:4] = [100, 100, -300, 7]
    m.scratchpad[:4] = [1, 2, 3, 4]
    plain = Vector(acc=0, rows=2, columns=2, at=64, zero=1, low=-128, high=60)
    m.run([plain])
    assert m.scratchpad[64:68].tolist() == [56, 60, -128, -2]  # 55 + 1; 91 clamped; -145 + 1 clamped; -3 + 1
    added = Vector(acc=0, rows=2, columns=2, residual=0, residual_zero=-1, has_residual=1, wide=1, relu=1)
    m.run([added])
    real = m.accumulators[:4].view(np.float32)
    assert real.tolist() == [(100 + 10 + 4) * 0.5, (100 - 10 + 3) * 0.25, 0.0, (7 - 10 + 5) * 0.25]


def test_fill_and_table() -> None:
    m = machine()
    m.run([Fill(100, 20, -7), Table(48, 3, 2)])
    assert (m.scratchpad[100:120] == -7).all() and m.scratchpad[99] == m.scratchpad[120] == 0
    assert m.table[3:5].tobytes() == m.dram[48:96].tobytes()


# ------------------------------------------------------------------------------------------------- what is stopped


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        (Load(at=4090, channel=1, channels=7, **WHOLE), "reaches 4097 of the scratchpad, which ends at 4096"),
        (Load(dram=4090, channel=1, channels=7, **WHOLE), "reaches 4097 of the DRAM"),
        (Store(dram=4000, channel=1, channels=25, wide=1, **WHOLE), "reaches 4100 of the DRAM"),
        (Store(at=511, channel=1, channels=2, wide=1, **WHOLE), "reaches 513 of the accumulators"),
        (Fill(4096, 1, 0), "reaches 4097 of the scratchpad"),
        (Table(0, 127, 2), "reaches 129 of the table"),
        (Matmul(at=4095, depth=2, columns=1, **WHOLE), "reaches 4097 of the scratchpad"),
        (Matmul(weights=4095, depth=1, columns=2, **WHOLE), "reaches 4097 of the scratchpad"),
        (Matmul(acc=512, depth=1, columns=1, **WHOLE), "reaches 513 of the accumulators"),
        (Vector(acc=0, rows=1, columns=2, at=4095), "reaches 4097 of the scratchpad"),
        (Vector(acc=0, rows=1, columns=2, table=127), "reaches 129 of the table"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Instruction) else "",
)
def test_an_instruction_that_leaves_a_memory_is_named(instruction: Instruction, why: str) -> None:
    with pytest.raises(EmulatorError, match=f"instruction 1 .{type(instruction).__name__.upper()} .*{why}"):
        machine().run([Scale(1.0), instruction])


def test_a_missing_token_is_noticed() -> None:
    load = Load(channel=1, channels=8, **WHOLE)
    matmul = Matmul(depth=8, columns=1, weights=64, **WHOLE)
    token = [Signal(Unit.LOAD.value, Unit.ARRAY.value), Wait(Unit.LOAD.value, Unit.ARRAY.value)]
    machine().run([load, *token, matmul])
    with pytest.raises(
        EmulatorError, match=r"instruction 1 .MATMUL.*still being written.*a token is missing"
    ):
        machine().run([load, matmul])
    with pytest.raises(EmulatorError, match=r"instruction 4 .FILL.*not done yet"):
        machine().run([load, *token, matmul, Fill(0, 8, 0)])


def test_a_token_that_nobody_sent() -> None:
    with pytest.raises(EmulatorError, match=r"instruction 0 .WAIT.*ARRAY waits for LOAD"):
        machine().run([Wait(Unit.LOAD.value, Unit.ARRAY.value)])


# --------------------------------------------------------------------------------------------------------- cycles


def test_units_work_side_by_side() -> None:
    load, matmul = Load(channel=1, channels=1600, **WHOLE), Matmul(rows=1, pixels=500, depth=4, columns=4)
    alone = [Timeline(NPU).play([i]) for i in (load, matmul)]
    assert Timeline(NPU).play([load, matmul]) == max(alone)
    token = [Signal(Unit.LOAD.value, Unit.ARRAY.value), Wait(Unit.LOAD.value, Unit.ARRAY.value)]
    assert Timeline(NPU).play([load, *token, matmul]) == sum(alone)


def test_loads_hide_each_others_latency() -> None:
    load = Load(channel=1, channels=160, **WHOLE)
    one, two = (Timeline(NPU).play([load] * n) for n in (1, 2))
    assert two - one == cost(load, NPU)[0] == NPU.setup + 10


@pytest.mark.parametrize(
    ("strides", "beats"),
    [
        ((96, 24, 1), 12),
        ((100, 24, 1), 2 * 6),
        ((100, 25, 1), 8 * 2),
        ((96, 1, 4), 12),
        ((99, 1, 5), 48),
        ((500, 50, 5), 192),
    ],
)
def test_what_lies_side_by_side_is_moved_together(strides: tuple[int, int, int], beats: int) -> None:
    """Two rows of four pixels of 24 channels; the bus takes 16 bytes in a cycle."""
    row, pixel, channel = strides
    load = Load(row=row, pixel=pixel, channel=channel, rows=2, pixels=4, channels=24)
    assert cost(load, NPU)[0] == NPU.setup + beats


def test_the_array_is_busy_with_whole_tiles() -> None:
    assert matmul_cycles(100, 16, 16, NPU) == 16 + 100 + 31
    assert matmul_cycles(100, 17, 16, NPU) == 16 + 200 + 31
    assert matmul_cycles(1, 32, 32, NPU) == 16 + 4 * 16 + 31  # moving weights in takes longer than one row
