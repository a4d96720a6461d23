"""Programs of layers: as integers say, to the bit, under any tiling; within the memories; in sensible time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_programs import SMALL, case, conv, program, run, with_numbers
from tilewright_npu.isa import Load, Matmul, Store
from tilewright_npu.machine import NPU, Machine, Unit
from tilewright_npu.tiler import choose, cycles, estimate, tilings
from tilewright_npu.tiling import Numbers, Tiling, Work, smallest
from tilewright_npu.timeline import ENTRY

LAYERS = {
    "matmul": conv((1, 1, 13, 21), 10),
    "batched matmul": conv((3, 1, 5, 8), 9),
    "one row": conv((1, 1, 1, 40), 17),
    "3x3": conv((1, 7, 9, 5), 6, (3, 3), before=(1, 1), after=(1, 1), numbers=Numbers(zero=-7)),
    "strided": conv((2, 9, 7, 6), 5, (3, 3), (2, 2), (1, 1), (1, 1), numbers=Numbers(zero=11)),
    "uneven padding": conv((1, 6, 5, 3), 4, (2, 3), (1, 2), (1, 0), (0, 2), numbers=Numbers(zero=3)),
    "7x7": conv((1, 11, 12, 3), 5, (7, 7), (2, 2), (3, 3), (3, 3), numbers=Numbers(zero=-128)),
    "1x1 strided": conv((1, 8, 8, 12), 8, (1, 1), (2, 2)),
    "only padding": conv((1, 2, 2, 4), 4, (2, 2), (3, 3), (3, 3), (3, 3), numbers=Numbers(zero=5)),
    "residual": conv((1, 6, 6, 8), 8, (3, 3), before=(1, 1), after=(1, 1), residual=True),
    "both results": conv((1, 5, 5, 8), 7, (3, 3), residual=True, wide=True),
    "float input": conv((1, 5, 6, 4), 6, (3, 3), wide_input=True, numbers=Numbers(factor=4.0, zero=9)),
}
NUMBERS = {"residual_zero": 4, "out_zero": -20, "low": -20, "high": 120}


def check(work: Work, tiling: Tiling, machine: Machine, seed: int = 0) -> None:
    one = case(work, seed)
    found, _ = run(one, tiling, machine)
    np.testing.assert_array_equal(found[0], one.narrow())
    for array in found[1:]:
        np.testing.assert_array_equal(array, one.expected().astype(np.float32) * one.entries["scale"])


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("machine", [SMALL, NPU], ids=["small", "npu"])
def test_a_layer_is_what_integers_say(name: str, machine: Machine) -> None:
    work = with_numbers(LAYERS[name], **NUMBERS)
    check(work, choose(work, machine).tiling, machine)


@pytest.mark.parametrize("name", LAYERS)
def test_so_it_is_under_other_tilings(name: str) -> None:
    work = LAYERS[name]
    fitting = list(tilings(work, SMALL))
    for tiling in {smallest(work, SMALL), *fitting[:: max(1, len(fitting) // 5)]}:
        check(work, tiling, SMALL)


@st.composite
def layers(draw: st.DrawFn) -> Work:
    kernel = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    before = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    height, width = (
        draw(st.integers(max(1, k - b - a), 9)) for k, b, a in zip(kernel, before, after, strict=True)
    )
    return conv(
        (draw(st.integers(1, 2)), height, width, draw(st.integers(1, 20))),
        draw(st.integers(1, 20)),
        kernel,
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        before,
        after,
        residual=draw(st.booleans()),
        wide=draw(st.booleans()),
        wide_input=draw(st.booleans()),
        numbers=Numbers(factor=2.0, zero=draw(st.integers(-128, 127))),
    )


@settings(max_examples=60, deadline=None)
@given(layers(), st.integers(0, 1 << 30), st.data())
def test_any_layer_in_any_tiling(work: Work, seed: int, data: st.DataObject) -> None:
    """Exact, within the memories, and without races: the emulator stops a program that is not."""
    best = choose(work, SMALL).tiling
    assert best.fits(work, SMALL)
    tiling = data.draw(st.sampled_from([best, smallest(work, SMALL), *list(tilings(work, SMALL))[:40]]))
    areas = tiling.areas(work)
    for i in program(work, tiling):
        if isinstance(i, Load):
            assert i.at + i.rows * i.pixels * i.channels <= SMALL.scratchpad
    assert sum(n * size for n, size in areas.values()) <= SMALL.scratchpad
    check(work, tiling, SMALL, seed)


@pytest.mark.parametrize("name", LAYERS)
def test_everything_crosses_the_bus_at_least_once(name: str) -> None:
    work = LAYERS[name]
    _, timeline = run(case(work), choose(work, NPU).tiling, NPU)
    elements = work.images * work.rows * work.columns * work.outputs
    seen = min(work.rows * work.strides[0], work.height) * min(work.columns * work.strides[1], work.width)
    if name != "only padding" and work.strides <= work.kernel:
        least = work.images * seen * work.channels * (4 if work.x.wide else 1)
        least += work.weight_bytes + work.outputs * ENTRY + (elements if work.residual else 0)
        assert timeline.bytes_in >= least
    assert timeline.bytes_out == sum(elements * (4 if p.wide else 1) for p in work.results)
    assert timeline.multiplications == elements * work.channels * work.kernel[0] * work.kernel[1]


def test_a_layer_that_fits_is_loaded_once() -> None:
    work = conv((1, 14, 14, 64), 64, (3, 3), before=(1, 1), after=(1, 1))
    _, timeline = run(case(work), choose(work, NPU).tiling, NPU)
    once = 14 * 14 * 64 + work.weight_bytes + 64 * ENTRY
    assert once <= timeline.bytes_in <= 1.3 * once


def test_more_work_takes_more_cycles() -> None:
    sizes = [
        choose(conv((1, 1, 64, k), n), NPU).cycles for k, n in ((64, 64), (128, 64), (128, 128), (256, 256))
    ]
    assert sizes == sorted(sizes) and len(set(sizes)) == len(sizes)
    images = [choose(conv((n, 14, 14, 32), 32, (3, 3)), NPU).cycles for n in (1, 2, 4)]
    assert images[0] < images[1] < images[2] < 5 * images[0]


def test_loading_hides_behind_computing() -> None:
    """A layer with much to compute per byte keeps the array busy."""
    work = conv((1, 28, 28, 128), 128, (3, 3), before=(1, 1), after=(1, 1))
    _, timeline = run(case(work), choose(work, NPU).tiling, NPU)
    assert timeline.busy[Unit.ARRAY] > 0.85 * timeline.cycles
    assert timeline.cycles < sum(timeline.busy.values())
    assert timeline.multiplications > 0.8 * NPU.peak * timeline.cycles


def test_the_chosen_tiling_is_among_the_best() -> None:
    work = conv((1, 14, 14, 48), 40, (3, 3), before=(1, 1), after=(1, 1))
    small = Machine(scratchpad=16384, accumulators=2048)
    chosen = choose(work, small)
    assert chosen.cycles == cycles(chosen.tiling, work, small)
    others = list(tilings(work, small))[::7]
    assert chosen.cycles <= 1.05 * min(cycles(t, work, small) for t in others)
    assert estimate(chosen.tiling, work, small) < 2 * chosen.cycles


def test_a_smaller_scratchpad_moves_more() -> None:
    work = conv((1, 14, 14, 64), 64, (3, 3), before=(1, 1), after=(1, 1))
    moved = [
        run(case(work), choose(work, m).tiling, m)[1].bytes_in
        for m in (NPU, Machine(scratchpad=32768), Machine(scratchpad=8192, accumulators=1024))
    ]
    assert moved == sorted(moved) and moved[0] < moved[-1]


def test_stores_come_after_products() -> None:
    code = program(LAYERS["3x3"], choose(LAYERS["3x3"], NPU).tiling)
    kinds = [type(i) for i in code if isinstance(i, Matmul | Store)]
    assert kinds == [Matmul, Matmul, Matmul, Store]
