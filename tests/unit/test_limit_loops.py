"""Loops over open dimensions stop where these end, in the interpreter and in native code."""

import re
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver.parts_in_use import sizes_in_use
from tilewright.ir.expr import DimSize, Load, Var, as_index, maximum, minimum
from tilewright.ir.layout import Layout, SplitDim
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.stream_rows import StreamRows
from tilewright.search.default import schedule_func
from tilewright.support.sizes import Dim
from tilewright.target.target import AVX2
from tilewright.tir.func import Func, single
from tilewright.tir.interp import interpret_func
from tilewright.tir.parser import parse_func
from tilewright.tir.passes import tile_heights
from tilewright.tir.passes.limit_loops import limit_loops
from tilewright.tir.passes.place_sizes import size_buffer
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import For, If, LoopKind, Seq, walk_stmts

GEMM = parse_func("""
@func
def gemm(A: open(f32[64, 8], size("n", 1, 64), None), B: f32[8, 16], Y: out(open(f32[64, 16], size("n", 1, 64), None))):
    for i in range(64):
        for j in range(16):
            for k in range(8):
                with block("Y"):
                    vi = spatial(64, i)
                    vj = spatial(16, j)
                    vk = reduce(8, k)
                    with init():
                        Y[vi, vj] = f32(0.0)
                    Y[vi, vj] = fma(A[vi, vk], B[vk, vj], Y[vi, vj])
""")

DOT = parse_func("""
@func
def dot(A: open(f32[4, 64], None, size("n", 1, 64)), B: open(f32[64], size("n", 1, 64)), Y: out(f32[4])):
    for i in range(4):
        for k in range(64):
            with block("Y"):
                vi = spatial(4, i)
                vk = reduce(64, k, size("n", 1, 64))
                with init():
                    Y[vi] = f32(0.0)
                Y[vi] = fma(A[vi, vk], B[vk], Y[vi])
""")


SCAN = """
@func
def scan(A: open(f32[4, 64], None, size("n", 1, 64)), Y: out(open(f32[4, 64], None, size("n", 1, 64))), S: out(f32[4])):
    c = alloc(f32[1], "register")
    t = alloc(f32[1], "register")
    for i in range(4):
        c[0] = f32(0.0)
        for k in range(64):
            t[0] = A[i, k]
            c[0] = c[0] + t[0]
            Y[i, k] = c[0]
        S[i] = f32(0.0)
"""


def plain(s: Schedule) -> None:
    pass


def tiled(s: Schedule) -> None:
    s.split("i", (None, 6))


def in_registers(s: Schedule) -> None:
    s.split("i", (None, 8))
    s.reorder("i_0", "j", "k", "i_1")
    s.unroll("i_1")


def shared(s: Schedule) -> None:
    s.split("i", (None, 8))
    s.parallel("i_0")


def shared_registers(s: Schedule) -> None:
    in_registers(s)
    s.parallel("i_0")


def shared_tiles(s: Schedule) -> None:
    """Columns outside, and rows inside; a part is a tile."""
    s.split("i", (None, 8))
    s.split("j", (None, 8))
    s.reorder("j_0", "i_0", "k", "i_1", "j_1")
    s.unroll("i_1")
    s.parallel(s.fuse("j_0", "i_0"))


def shared_tiles_of_rows(s: Schedule) -> None:
    s.split("i", (None, 8))
    s.split("j", (None, 4))
    s.reorder("i_0", "j_0", "k", "i_1", "j_1")
    s.unroll("i_1")
    s.parallel(s.fuse("i_0", "j_0"))


def fused(s: Schedule) -> None:
    s.fuse("i", "j")


def chunks(s: Schedule) -> None:
    s.split("k", (None, 8))


def unrolled(s: Schedule) -> None:
    s.split("k", (None, 4))
    s.unroll("k_1")


def factored(s: Schedule) -> None:
    s.split("k", (None, 8))
    s.rfactor("Y", "k_1")


def lowered_runs(func: Func, inputs: dict[str, np.ndarray], n: int) -> np.ndarray:
    """What the kernels of a Func give in the interpreter."""
    phases, shared_buffers = lower_func(func)
    memory = {b.name: np.full(b.shape, np.nan, b.dtype.numpy) for b in (*func.params, *shared_buffers)}
    memory |= inputs | {size_buffer("n").name: np.array([n])}
    for p in phases:
        interpret_func(p.func, {b: memory[b.name] for b in p.func.params})
    return memory["Y"]


# One row, all of them, and those around the heights of tiles; those between in long runs.
ROWS = [
    pytest.param(n, marks=() if n in (1, 5, 6, 7, 8, 9, 64) else pytest.mark.slow)
    for n in (1, 2, 3, 5, 6, 7, 8, 9, 10, 17, 63, 64)
]


@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("most_instructions", [10**6, 100])
@pytest.mark.parametrize(
    "how", [plain, tiled, in_registers, shared, shared_registers, shared_tiles, shared_tiles_of_rows, fused]
)
def test_rows_in_use_are_computed(
    how: "object", n: int, most_instructions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_heights, "_MOST_INSTRUCTIONS", most_instructions)
    rng = np.random.default_rng(n)
    a, b = np.full((64, 8), np.nan, np.float32), rng.standard_normal((8, 16), np.float32)
    a[:n] = rng.standard_normal((n, 8), np.float32)
    s = Schedule(GEMM)
    how(s)  # type: ignore[operator]
    y = lowered_runs(s.func, {"A": a, "B": b}, n)
    np.testing.assert_allclose(y[:n], a[:n] @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 9, 33, 64])
@pytest.mark.parametrize("how", [plain, chunks, unrolled, factored])
def test_a_reduction_takes_nothing_up_that_is_not_in_use(how: "object", n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = np.full((4, 64), np.nan, np.float32), np.full(64, np.nan, np.float32)
    a[:, :n], b[:n] = rng.standard_normal((4, n), np.float32), rng.standard_normal(n, np.float32)
    s = Schedule(DOT)
    how(s)  # type: ignore[operator]
    y = lowered_runs(s.func, {"A": a, "B": b}, n)
    np.testing.assert_allclose(y, a[:, :n] @ b[:n], rtol=1e-5, atol=1e-5)


def text_of(how: "object", func: Func = GEMM) -> str:
    s = Schedule(func)
    how(s)  # type: ignore[operator]
    return str(lower_func(s.func)[0][0].func)


def test_whole_tiles_are_counted() -> None:
    assert "in range(11, (size__n[0] + 5) // 6)" in text_of(tiled)


@pytest.mark.parametrize(
    ("old", "new", "is_limited"),
    [
        ("", "", True),
        ("S[i] = f32(0.0)", "S[i] = c[0]", False),  # what the last iteration passes on is read
        ("f32[1]", "f32[2]", False),  # not all of it begins anew
    ],
)
def test_a_loop_that_passes_a_value_on_to_itself_alone_is_limited(
    old: str, new: str, is_limited: bool
) -> None:
    text = str(lower_func(parse_func(SCAN.replace(old, new, 1)))[0][0].func)
    assert ("in range(64, size__n[0])" in text) == is_limited


def test_parts_are_counted() -> None:
    assert "in parallel(8, (size__n[0] + 7) // 8)" in text_of(shared)


def test_parts_in_use_are_at_most_what_a_minimum_is_of() -> None:
    """The runtime counts parts by sums and quotients: of a minimum it takes what it has these for."""
    dim = Dim("n", 1, 64)
    n = Load(size_buffer("n"), (as_index(0),))
    half, most = (n + 1) // 2, minimum(n, as_index(9))
    loop = For(
        Var("p"), 32, Seq(()), LoopKind.PARALLEL, limit=maximum(minimum(minimum(half, n % 7), n), most)
    )
    func = Func("f", (size_buffer("n"),), (), loop)
    found = sizes_in_use(func, {"n": dim})
    assert [max(e.evaluate({"n": v}) for e in found) for v in (1, 10, 64)] == [1, 10, 64]
    unknown = replace(loop, limit=n % 7)
    assert sizes_in_use(replace(func, body=unknown), {"n": dim}) == ()


def test_parts_of_a_loop_that_is_cut_are_counted_too() -> None:
    """A minimum inside of a sum and a quotient: tiles of 6 rows, of which another nest has those from 108 on."""
    n = Load(size_buffer("n"), (as_index(0),))
    limit = (minimum(n, as_index(108)) + 5) // 6
    func = Func("f", (size_buffer("n"),), (), For(Var("p"), 18, Seq(()), LoopKind.PARALLEL, limit=limit))
    (found,) = sizes_in_use(func, {"n": Dim("n", 1, 128)})
    assert [found.evaluate({"n": v}) for v in (1, 6, 7, 108)] == [1, 1, 2, 18]


def heights_in(text: str) -> list[int]:
    return [h for h in range(1, 9) if f"_h{h}" in text]


@pytest.mark.parametrize("how", [in_registers, shared_registers, shared_tiles, shared_tiles_of_rows])
def test_register_tiles_come_in_heights_that_differ_by_one(how: "object") -> None:
    assert heights_in(text_of(how)) == [1, 2, 4, 5, 6, 7, 8]


def test_tiles_of_much_code_come_in_few_heights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_heights, "_MOST_INSTRUCTIONS", 100)
    assert heights_in(text_of(in_registers)) == [1, 2, 4, 8]


def test_parts_that_are_register_tiles_are_counted() -> None:
    assert "in parallel(8, (size__n[0] + 7) // 8)" in text_of(shared_registers)


@pytest.mark.parametrize("func", [GEMM, DOT])
def test_text_says_what_is_open(func: Func) -> None:
    assert str(parse_func(str(func))) == str(func)


@pytest.mark.parametrize("step", ["fuse_iters", "transform_block_layout"])
def test_a_step_that_would_lose_how_far_a_reduction_goes_refuses(step: str) -> None:
    with pytest.raises(tw.ScheduleError, match="reduces an open dimension"):
        if step == "fuse_iters":
            Schedule(DOT).fuse_iters("Y", ("vi", "vk"))
        else:
            Schedule(DOT).transform_block_layout("Y", Layout((SplitDim(1, 8),)))


TAIL = """
@func
def tail(A: open(f32[4, 20], None, size("n", 1, 20)), Y: out(open(f32[4, 22], None, size("n", 1, 20) + 2))):
    for i in range(4):
        for j in range(2):
            for r in unrolled(7):
                with block("Y"):
                    vi = spatial(4, i)
                    vj = spatial(20, j * 7 + r)
                    Y[vi, vj + 1] = A[vi, vj]
        for t in unrolled(6):
            with block("Y_tail"):
                wi = spatial(4, i)
                wj = spatial(20, t + 14)
                Y[wi, wj + 1] = A[wi, wj]
"""


def test_the_last_tile_is_skipped_where_it_begins_beyond_the_size() -> None:
    """And what a border adds to a buffer is nothing to compute."""
    limited = limit_loops(parse_func(TAIL))
    conditions = {str(s.cond) for s in walk_stmts(limited.body) if isinstance(s, If)}
    beyond = as_index(14) < DimSize("n", 1, 20)
    assert str(Simplifier({})(beyond)) in conditions


FILL = """
@func
def fill(Y: out(open(f32[ROWS, 1600, 32], FIRST, size("n", 1, 1600), None))):
    for i in range(ROWS):
        for j in range(1600):
            for k in range(32):
                with block("Y"):
                    vi = spatial(ROWS, i)
                    vj = spatial(1600, j)
                    vk = spatial(32, k)
                    Y[vi, vj, vk] = f32(0.0)
"""


@pytest.mark.parametrize(
    ("rows", "first", "loops_in_use"),
    [
        (2, "None", ["in parallel(8, (size__n[0] + 199) // 200)", "in range(2)"]),
        (64, "None", ["in parallel(64)", "in range(6400, size__n[0] * 4"]),
        (64, 'size("m", 1, 64)', ["in parallel(64, size__m[0])", "in range(6400, size__n[0] * 4"]),
    ],
)
def test_elements_are_not_fused_across_an_open_dimension(
    rows: int, first: str, loops_in_use: list[str]
) -> None:
    func = parse_func(FILL.replace("ROWS", str(rows)).replace("FIRST", first))
    text = str(lower_func(schedule_func(func, AVX2).func)[0][0].func)
    assert all(loop in text for loop in loops_in_use), text
    assert "% 1600" not in text


FLAT = """
@func
def flat(X: open(f32[24, 12, 40], None, HEIGHT, N), Y: out(open(f32[24, 480], None, HEIGHT * N))):
    for i in range(24):
        for j in range(480):
            with block("Y"):
                vi = spatial(24, i)
                vj = spatial(480, j)
                Y[vi, vj] = X[vi, min(vj // N, 11), vj % N] * f32(2.0)
"""
JOINED = """
@func
def f(A: open(f32[9, 40], None, N), B: open(f32[9, 120], None, N * 3), Y: out(open(f32[9, 160], None, N * 4))):
    for i in range(9):
        for j in range(160):
            with block("Y"):
                vi = spatial(9, i)
                vj = spatial(160, j)
                Y[vi, vj] = select(vj < N, A[vi, vj], B[vi, min(vj - N, 119)])
"""


def _sized(text: str) -> str:
    return re.sub(r"\bN\b", 'size("n", 1, 40)', text.replace("HEIGHT", 'size("h", 1, 12)'))


@pytest.mark.parametrize("n", [1, 7, 16, 39, 40])
def test_flattened_images_are_gone_over_row_by_row(n: int) -> None:
    func = schedule_func(parse_func(_sized(FLAT)), AVX2).func
    text = "".join(str(p.func) for p in lower_func(func)[0])
    assert "// size__n[0]" not in text and "% size__n[0]" not in text
    x = np.random.default_rng(n).standard_normal((24, 12, 40)).astype(np.float32)
    got = lowered_runs(func, {"X": x, size_buffer("h").name: np.array([5])}, n)
    np.testing.assert_array_equal(got[:, : 5 * n], x[:, :5, :n].reshape(24, -1) * 2)


@pytest.mark.parametrize("n", [1, 7, 16, 39, 40])
def test_parts_that_end_at_an_open_size_are_loops_of_their_own(n: int) -> None:
    func = schedule_func(parse_func(_sized(JOINED)), AVX2).func
    assert "select" not in "".join(str(p.func) for p in lower_func(func)[0])
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal((9, c)).astype(np.float32) for c in (40, 120))
    got = lowered_runs(func, {"A": a, "B": b}, n)
    np.testing.assert_array_equal(got[:, : 4 * n], np.concatenate([a[:, :n], b[:, : 3 * n]], 1))


def test_values_that_wait_in_scratch_are_made_as_far_as_a_row_is_in_use() -> None:
    """The exponentials of a softmax, which its sum and its results need."""
    softmax = parse_func("""
@func
def softmax(A: open(f32[64, 512], None, size("n", 1, 512)), Y: out(open(f32[64, 512], None, size("n", 1, 512)))):
    S = alloc(f32[64])
    E = alloc(open(f32[64, 512], None, size("n", 1, 512)))
    for i in range(64):
        for j in range(512):
            with block("E"):
                vi = spatial(64, i)
                vj = spatial(512, j)
                E[vi, vj] = exp(A[vi, vj])
    for i2 in range(64):
        for k in range(512):
            with block("S"):
                wi = spatial(64, i2)
                vk = reduce(512, k)
                with init():
                    S[wi] = f32(0.0)
                S[wi] = S[wi] + select(vk < size("n", 1, 512), E[wi, vk], f32(0.0))
    for i3 in range(64):
        for j3 in range(512):
            with block("Y"):
                yi = spatial(64, i3)
                yj = spatial(512, j3)
                Y[yi, yj] = E[yi, yj] / S[yi]
""")
    s = Schedule(single(softmax))
    s.apply(StreamRows(("E", "S", "Y"), 16, 4, ("E",)))
    steps = re.findall(r"for \w+_step\d+ in range\((.*)\):", str(lower_func(s.func)[0][0].func))
    assert len(steps) == 2 and all(", (size__n[0] + 15) // 16" in step for step in steps)


def test_rows_along_an_open_axis_are_outside_of_others() -> None:
    """Of a loop over heads and rows the first iterations are in use then: a row of each head, not rows of the first."""
    total = parse_func("""
@func
def total(X: open(f32[6, 64, 32], None, size("n", 1, 64), None), S: out(open(f32[6, 64], None, size("n", 1, 64)))):
    for h in range(6):
        for r in range(64):
            for k in range(32):
                with block("S"):
                    vh = spatial(6, h)
                    vr = spatial(64, r)
                    vk = reduce(32, k)
                    with init():
                        S[vh, vr] = f32(0.0)
                    S[vh, vr] = S[vh, vr] + X[vh, vr, vk]
""")
    s = Schedule(single(total))
    s.apply(StreamRows(("S",), 16, 384))
    (lowered,) = lower_func(s.func)[0]
    (rows,) = re.findall(r"for \w+_row\d+ in range\((.*)\):", str(lowered.func))
    assert rows == "384, size__n[0] * 6"
    x, size = np.arange(6 * 64 * 32, dtype=np.float32).reshape(6, 64, 32), 3
    made = np.full((6, 64), -1, np.float32)
    arrays = {"X": x, "S": made, "size__n": np.array([size])}
    interpret_func(lowered.func, {b: arrays[b.name] for b in lowered.func.params})
    np.testing.assert_array_equal(made[:, :size], x.sum(axis=2)[:, :size])
