"""The model of traffic: what finds room in a cache comes once, and what does not comes again."""

from dataclasses import replace

import pytest

from tilewright.cost.traffic import LEVELS, Traffic, must_move, traffic_of
from tilewright.target.machine import SHIPPED
from tilewright.tir.parser import parse_func

VECTOR = 32  # bytes

PRODUCT = """\
@func
def product(A: f32[64, 256], B: f32[256, 512], C: out(f32[64, 512])):
    for i in range(64):
        for j in range(512):
            for k in range(256):
                C[i, j] = C[i, j] + A[i, k] * B[k, j]
"""
TWO_PASSES = """\
@func
def two_passes(X: f32[{rows}, 4096], S: out(f32[{rows}]), Y: out(f32[{rows}, 4096])):
    for i in range({rows}):
        for j in range(4096):
            S[i] = S[i] + X[i, j]
        for j in range(4096):
            Y[i, j] = X[i, j] / S[i]
"""
COLUMNS = """\
@func
def columns(X: f32[512, 4096], Y: out(f32[4096, 512])):
    for i in range(4096):
        for j in range(512):
            Y[i, j] = X[j, i]
"""
LANES = """\
@func
def lanes(X: f32[64], W: f32[1], Y: out(f32[64])):
    for i in range(8):
        for l in vectorized(8):
            Y[i * 8 + l] = fma(X[i * 8 + l], W[0], X[i * 8 + l])
"""


def traffic(text: str, **sizes: int) -> Traffic:
    return traffic_of(parse_func(text), replace(SHIPPED, **sizes), VECTOR)


def moved(found: Traffic) -> dict[str, float]:
    return dict(zip(LEVELS, found.moved, strict=True))


def test_an_operand_without_room_comes_for_every_row() -> None:
    a, b, c = 64 * 256 * 4, 256 * 512 * 4, 64 * 512 * 4
    found = moved(traffic(PRODUCT, l1_bytes=64 << 10, l2_bytes=256 << 10, l3_bytes=512 << 10))
    assert found["L2"] == found["L3"] == a + 64 * b + 2 * c
    assert moved(traffic(PRODUCT, l2_bytes=860 << 10, l3_bytes=1 << 20))["L3"] == a + b + 2 * c


def test_a_row_that_stays_near_comes_once() -> None:
    func = TWO_PASSES.format(rows=4096)
    near, far = (moved(traffic(func, l1_bytes=n))["L2"] for n in (128 << 10, 8 << 10))
    row = 4096 * 4096 * 4
    assert near == pytest.approx(2 * row, rel=0.01)
    assert far == pytest.approx(3 * row, rel=0.05)


def test_lines_of_a_column_are_shared_if_they_stay() -> None:
    size = 512 * 4096 * 4
    found = moved(traffic(COLUMNS, l1_bytes=16 << 10, l2_bytes=1 << 20, l3_bytes=1 << 20))
    assert found["L2"] == 16 * size + size  # every element brings a line of sixteen
    assert found["L3"] == 2 * size


def test_straight_code_loads_an_element_once() -> None:
    assert moved(traffic(LANES))["L1"] == 8 * (32 + 4 + 32)
    assert traffic(LANES).vectors == 8


def test_what_a_cache_holds_comes_from_no_further() -> None:
    func = parse_func(LANES)
    x = func.params[0]
    assert traffic_of(func, SHIPPED, VECTOR).moved[1:] == (0, 0, 0)
    assert traffic_of(func, SHIPPED, VECTOR, cold=[x]).moved[1:] == (256, 256, 256)


@pytest.mark.parametrize(
    "text", [PRODUCT, TWO_PASSES.format(rows=64), COLUMNS], ids=["product", "passes", "columns"]
)
def test_a_larger_cache_moves_no_more(text: str) -> None:
    sizes = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
    found = [moved(traffic(text, l1_bytes=n))["L2"] for n in sizes]
    assert found == sorted(found, reverse=True)
    assert found[-1] in (0, pytest.approx(must_move(parse_func(text)), rel=0.01))


def test_blocks_are_counted_as_their_loops_are() -> None:
    text = """\
@func
def blocked(X: f32[64, 64], Y: out(f32[64, 64])):
    for i in range(64):
        for j in range(64):
            with block("Y"):
                v = spatial(64, i)
                u = spatial(64, j)
                Y[v, u] = X[v, u] * f32(2.0)
"""
    plain = text[: text.index("            with")] + "            Y[i, j] = X[i, j] * f32(2.0)\n"
    sizes = {"l1_bytes": 1 << 10, "l2_bytes": 4 << 10, "l3_bytes": 8 << 10}
    assert traffic(text, **sizes) == traffic(plain, **sizes)


def test_each_level_takes_its_time() -> None:
    seconds = Traffic(0, (1e6, 1e6, 1e6, 1e6), 0.0).seconds(SHIPPED, VECTOR)
    assert seconds["L1"] < seconds["L2"] < seconds["L3"] < seconds["memory"]
    shared = Traffic(0, (1e6, 1e6, 1e6, 1e6), 0.0).seconds(SHIPPED.for_threads(2), VECTOR)
    assert all(shared[level] < seconds[level] for level in LEVELS)
