"""The time of a tiled contraction, in closed form over arrays of candidates.

    cycles = steps of the register tiles (arithmetic, loads, latency; edges count as what they are)
           + bytes that come from farther than the first-level cache
           + packing what is not packed at compile time
           + starting and storing each tile

`Form` has what is the same for all candidates that fuse the same iterators; `Choices` are arrays with an entry per
candidate. Infinite where there is no such schedule.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.caches import (
    LINE_BYTES,
    PREFETCHED_BYTES,
    SET_BYTES,
    from_l3,
    from_memory,
    l2_cycles,
    l2_room,
    l3_room,
    per_byte,
)
from tilewright.cost.layouts import COPIED, copy_cycles
from tilewright.cost.parallel import ENOUGH_PARTS, ranked_seconds, ranked_terms
from tilewright.cost.register_tile import tile_step
from tilewright.cost.terms import Amount, Ledger, TermName, scaled
from tilewright.support.arrays import FloatArray, IntArray
from tilewright.target.machine import Machine
from tilewright.target.target import Target

# Swept (docs/results/constants.md).
TILE_START = 14.0  # cycles to set up addresses of a tile and to leave its loop
_TILE_VECTOR = 0.5  # cycles to clear a vector of a tile, and for each operand of its epilogue
_MASKED = 2.0  # times what packing takes if panels are not full: lane by lane, with a mask
_GATHERED = 1.6  # cycles to pack an element that is not beside the last one
_SCATTERED_STORE = 1.2  # cycles to store one lane of a vector
_TRANSPOSED_STORE = 5.0  # cycles for a vector of a tile whose rows become columns in registers
_SCATTERED_ROWS = 0.2  # cycles for a vector of a row whose neighbours are stored much later
_LEAST_TRANSPOSED = 4  # rows that such a tile has; counted: four are transposed at once
# Of what a byte takes to be read in order from the second-level cache. Swept, likewise.
_LOOSE_LINES = 0.3545  # of lines of which little is used
_LOOSE_IN_ONE_SET = 5 * _LOOSE_LINES  # if these all fall into one set of the first-level cache
_FAR_ROWS = 1.241  # of rows that are farther apart than the prefetcher follows
_FAR_IN_ONE_SET = 2 * _FAR_ROWS  # likewise
_NEAR_ROWS = 0.1182  # of rows at that distance, and less for nearer ones: they share sets of a cache
# Cycles to find a row of A that is neither near the last one nor in the caches. Measured in turns with none on a Zen 3:
# ViT 1.04, ResNet-50 1.02, a GEMM of 1024 1.01, MobileNetV2 0.99 times as fast.
_ROW_START = 30.0
_PASSING = 1.5  # of its size a cache needs for what passes through it in order, and again
_FETCHED = 0.4  # of the cost of a byte that was asked for ahead of time
_ASK = 0.085  # cycles to ask for a line
# Of what columns cost that come from afar, if they were asked for a panel before. Judged: it is preferred, and all else
# is chosen as before. Measured on a Zen 4 with one thread, all products asking so in turns with none: ResNet-18 1.09,
# ResNet-50 1.04, MiniLM 1.02, BERT 1.015 times as fast; 1.01 of it with requests some steps ahead as well.
_ASKED_BEFORE = 0.9
# Times what weights of one row take that are asked for although they come in order. Measured on a Zen 3, one and two
# threads: 1.17 and 1.10 on MiniLM, 1.16 and 1.12 on GPT-2. With three rows and more it is 0.7 to 0.95.
ASKED_IN_ORDER = 1.13
# Likewise of narrower ones: more instructions for a line, so fewer reads are under way. Measured on a Zen 5, one
# thread: BERT with one row in bfloat16 takes 0.83 of it.
_NARROW_ASKED_IN_ORDER = 0.85
_LONG = 4  # bytes of an element that is not narrow; given
BEHIND_READS = (
    0.1  # of the arithmetic beside such reads, what is not hidden; judged: enough to prefer the least
)


@dataclass(frozen=True, slots=True)
class Form:
    """A contraction by numbers. Steps are in elements, None where an address does not move linearly."""

    batch: int  # iterations outside of rows and columns
    other_rows: int  # rows that are not part of a tile's row
    rows: int
    cols: int
    k: int
    k_inner: int  # extent of the innermost reduction loop
    a_row_step: int | None
    a_k_step: int  # the smallest along any reduction loop
    b_col_step: int | None
    b_k_step: int  # the largest along the inner reduction loops
    out_col_step: int | None
    out_row_step: int | None
    a_constant: bool
    b_constant: bool
    a_elements: int
    b_elements: int
    bytes_each: int = 4  # of an element of the operands
    epilogue_loads: int = 0
    lane_bytes: int = 4  # of an element of the sum
    group: int = 1  # products that a lane adds up at a time
    step_times: float = 1.0  # multiply-adds of a vector that this takes
    widening: float = 0.0  # operations that each vector of B needs before
    needs_rows: bool = False  # are rows read from a copy, wherever they are?


@dataclass(frozen=True, slots=True)
class Choices:
    rows: IntArray
    vectors: IntArray
    pack_a: NDArray[np.bool_]
    pack_b: NDArray[np.bool_]
    columns_outside: NDArray[np.bool_]
    chunk: IntArray
    unroll: IntArray
    prefetch: IntArray | int = 0  # steps ahead of which columns are asked for
    next_panel: NDArray[np.bool_] | bool = False  # are columns asked for while those before them are used?


@dataclass(frozen=True, slots=True)
class _Tiles:
    """How a chunk is cut: some tiles of each of two heights and three widths, in rows and vectors."""

    chunks: IntArray
    n_rows: IntArray
    n_cols: IntArray
    width: IntArray  # of a full tile, in elements
    kinds: tuple[tuple[IntArray, IntArray, IntArray], ...]  # height, vectors, how many


def _tiles(f: Form, c: Choices, lanes: int) -> _Tiles:
    rows_in, cols_in = _chunk(f, c)
    n_rows = -(-rows_in // c.rows)
    low, more = rows_in // n_rows, rows_in % n_rows
    width = c.vectors * lanes
    full, rest = cols_in // width, cols_in % width
    whole, part = rest // lanes, (rest % lanes > 0).astype(np.int64)
    is_whole = (whole > 0).astype(np.int64)
    kinds = tuple(
        (height, vectors, n_high * n_wide)
        for height, n_high in ((low + 1, more), (low, n_rows - more))
        for vectors, n_wide in ((c.vectors, full), (whole, is_whole), (np.ones_like(part), part))
    )
    # A chunk larger than what it is cut from is not possible; its time is infinite, whatever it is computed from.
    chunks = np.maximum((f.rows // rows_in) * (f.cols // cols_in), 1)
    return _Tiles(chunks, n_rows, full + is_whole + part, width, kinds)


def _chunk(f: Form, c: Choices) -> tuple[IntArray, IntArray]:
    """Rows and columns of a chunk."""
    rows = np.where(c.columns_outside & (c.chunk > 0), c.chunk, f.rows)
    cols = np.where(~c.columns_outside & (c.chunk > 0), c.chunk, f.cols)
    return rows, cols


def vector_operations(f: Form, c: Choices, target: Target) -> IntArray:
    """How many multiply-adds of a vector there are; a part of a vector counts as one."""
    tiles = _tiles(f, c, target.lanes(f.lane_bytes))
    per_chunk = sum(height * vectors * n for height, vectors, n in tiles.kinds)
    return f.batch * f.other_rows * (f.k // f.group) * tiles.chunks * per_chunk


def contraction_seconds(
    f: Form, c: Choices, target: Target, *, is_whole: bool = False, is_cut: bool = False
) -> FloatArray:
    """On one core, with a little more for too few parts; if it `is_whole`, all that there is to do, on the threads that
    the program is for. If it `is_cut`, choices were made for more rows or columns, and are cut to those that there are.
    """
    if is_cut:
        most = np.where(c.columns_outside, f.rows, f.cols)
        c = replace(c, rows=np.minimum(c.rows, f.rows), chunk=np.minimum(c.chunk, most))
    m, lanes = target.machine, target.lanes(f.lane_bytes)
    tiles = _tiles(f, c, lanes)
    cycles = _cycles(f, c, target, tiles)
    if not is_cut:
        cycles = np.where(_is_possible(f, c, target.vector_registers, lanes), cycles, np.inf)
    machine = m if is_whole else m.for_threads(1)
    return ranked_seconds(cycles / m.hertz, _parts(f, c, tiles, machine), machine)


def contraction_terms(
    f: Form, c: Choices, target: Target, *, is_whole: bool = False
) -> dict[TermName, Amount]:
    """What these seconds are made of, whether or not there is such a schedule."""
    m, tiles, told = target.machine, _tiles(f, c, target.lanes(f.lane_bytes)), Ledger()
    _cycles(f, c, target, tiles, told)
    machine = m if is_whole else m.for_threads(1)
    return ranked_terms(scaled(told.terms, 1.0 / m.hertz), _parts(f, c, tiles, machine), machine)


def _cycles(f: Form, c: Choices, target: Target, t: _Tiles, told: Ledger | None = None) -> FloatArray:
    """Of one core."""
    m, lanes = target.machine, target.lanes(f.lane_bytes)
    times = np.float64(f.batch * f.other_rows) * t.chunks
    cycles = np.zeros(len(c.rows))
    for height, vectors, n in t.kinds:
        step = f.step_times * _step(height, vectors, c, f, target) + f.widening * vectors / m.fma_per_cycle
        steps = f.k / f.group * step
        edges = _edges(height, vectors, lanes, f)
        scattered = n * height * vectors * c.columns_outside * _SCATTERED_ROWS
        cycles += n * (steps + edges)
        cycles += scattered
        if told is not None:
            told.add("arithmetic", times * n * steps)
            told.add("edges", times * (n * edges + scattered))
    cycles *= times
    cycles += _traffic(f, c, m, t, told)
    packing = _packing(f, c, lanes, m)
    if told is not None:
        told.add("copies", packing)
    cycles += packing
    return cycles


def is_one_row(f: Form, m: Machine) -> bool:
    """Are weights read once, from memory?"""
    return f.rows == 1 and f.b_constant and f.bytes_each * f.k * f.cols * f.batch > l2_room(m)


def one_row_seconds(f: Form, c: Choices, m: Machine, seconds: FloatArray) -> FloatArray:
    """What reading such weights takes, where the tile would take these `seconds`: it waits for them whatever it does,
    and is not helped by asking, since they come in order.
    """
    return one_row_reads(f, c, m) + BEHIND_READS * seconds


def one_row_reads(f: Form, c: Choices, m: Machine) -> FloatArray:
    """Of it, the weights alone."""
    reads = f.bytes_each * f.k * f.cols * f.batch / m.memory_rate
    asked = ASKED_IN_ORDER if f.bytes_each >= _LONG else _NARROW_ASKED_IN_ORDER
    return reads * np.where(_is_fetched(f, c), asked, 1.0)


def _step(height: IntArray, vectors: IntArray, c: Choices, f: Form, target: Target) -> FloatArray:
    """Cycles of one reduction step of a tile."""
    written_out = np.clip(c.unroll // np.maximum(height * vectors, 1), 1, f.k_inner // f.group)
    lines = vectors * (target.vector_bytes / LINE_BYTES)
    return tile_step(target.machine, height, vectors, written_out) + _is_fetched(f, c) * _ASK * lines


def _is_fetched(f: Form, c: Choices) -> NDArray[np.bool_]:
    """Are columns asked for ahead of time? A reduction that is shorter than that asks for nothing."""
    return np.greater(c.prefetch, 0) & np.less(c.prefetch, f.k)


def _edges(height: IntArray, vectors: IntArray, lanes: int, f: Form) -> FloatArray:
    """Cycles to start and to store a tile."""
    work = np.float64(1) * height * vectors
    store = np.ones(len(height))
    if f.out_col_step != 1:  # stored lane by lane, or transposed in registers first
        transposed = (height >= _LEAST_TRANSPOSED) & (f.out_row_step == 1)
        store = np.where(transposed, _TRANSPOSED_STORE, _SCATTERED_STORE * lanes)
    return TILE_START + work * (_TILE_VECTOR + store + _TILE_VECTOR * f.epilogue_loads)


def _traffic(f: Form, c: Choices, m: Machine, t: _Tiles, told: Ledger | None) -> FloatArray:
    """Cycles for what does not come from the first-level cache."""
    each = np.float64(f.bytes_each)
    panel, panel_floor = _panel_bytes(f, c, m, t.width)
    band, band_floor = _band_bytes(f, c, m)
    all_a, all_b = f.a_elements * each, f.k * f.cols * each * f.batch
    inside_a, inside_b = band * t.n_rows, panel * t.n_cols
    outer = np.float64(f.batch * f.other_rows) * t.chunks
    # The outer operand of the two stays while the inner one passes by.
    b_again = per_byte(m, np.where(c.columns_outside, panel + 2 * band, _PASSING * inside_b + band))
    # Rows that are not part of a tile's row pass a panel too, but where chunks of rows are outside of all.
    passing = np.where((c.chunk > 0) | (t.n_cols == 1), inside_a, inside_a * f.other_rows)
    a_again = per_byte(m, np.where(c.columns_outside, passing + panel, band + 2 * panel))
    are_far = b_again >= from_memory(m), a_again >= from_memory(m)
    a_far = per_byte(m, np.full_like(band, all_a))
    if f.a_row_step is not None and f.a_row_step * each > PREFETCHED_BYTES:
        start = _ROW_START / (f.k * each)
        a_again = np.where(a_again >= from_l3(m), a_again + start, a_again)
        a_far = np.where(a_far >= from_l3(m), a_far + start, a_far)
    b_again, a_again = np.maximum(b_again, panel_floor), np.maximum(a_again, band_floor)
    b_new = np.maximum(per_byte(m, np.full_like(panel, all_b)) - b_again, 0.0)
    a_new = np.maximum(a_far - a_again, 0.0)
    # Requests for rows that are far apart would push each other out of the cache. Near ones that come from afar, with
    # nothing between them but other columns, are as good as panels.
    is_near = f.b_col_step == 1 and f.b_k_step == f.cols and f.b_k_step * f.bytes_each <= PREFETCHED_BYTES
    is_asked = c.pack_b | (is_near and all_b > l2_room(m))
    fetched = np.where(_is_fetched(f, c) & is_asked, _FETCHED, 1.0)
    again = outer * t.n_rows * t.n_cols
    b_moved, a_moved = panel * b_again * fetched, band * a_again
    # The first time both come from farther away: what is outside in each chunk, what is inside once.
    b_times = np.where(c.columns_outside & (c.chunk > 0), outer, np.float64(f.batch))
    b_first = np.where(c.columns_outside, b_times * t.n_cols * panel, all_b)
    a_first = np.where(c.columns_outside, all_a, outer * t.n_rows * band)
    # Weights that are not small have left the caches since the last run: other layers have theirs.
    is_cold = f.b_constant and all_b > l2_room(m)
    cold = from_memory(m) - per_byte(m, np.full_like(panel, all_b))
    weights = all_b * cold * fetched if is_cold else 0.0
    first = b_first * b_new * fetched + weights
    first = np.where(c.next_panel, _ASKED_BEFORE * first, first)
    if told is not None:
        told.add_moved(again * b_moved, are_far[0])
        told.add_moved(again * a_moved, are_far[1])
        told.add_moved(first, np.bool_(is_cold or all_b > l3_room(m)))
        told.add_moved(a_first * a_new, np.bool_(all_a > l3_room(m)))
    return again * (b_moved + a_moved) + first + a_first * a_new


def _panel_bytes(f: Form, c: Choices, m: Machine, width: IntArray) -> tuple[FloatArray, FloatArray]:
    """Bytes that come with the columns of B for a tile, and what each costs at least."""
    panel = np.float64(f.k * f.bytes_each) * width
    step = f.b_k_step * f.bytes_each
    near = np.where(step > width * f.bytes_each, _NEAR_ROWS * step / PREFETCHED_BYTES, 0.0)
    floor = near if step <= PREFETCHED_BYTES else _FAR_ROWS if step % SET_BYTES else _FAR_IN_ONE_SET
    return panel, np.where(c.pack_b, 0.0, floor * l2_cycles(m))


def _band_bytes(f: Form, c: Choices, m: Machine) -> tuple[FloatArray, FloatArray]:
    """Bytes that come with the rows of A for a tile, and what each costs at least. They are whole lines if k is not
    along them.
    """
    packed = np.float64(f.k * f.bytes_each) * c.rows
    if f.a_k_step * f.bytes_each < LINE_BYTES or f.k == 1:
        return packed, np.zeros(len(c.rows))
    lines = -(-c.rows * f.bytes_each // LINE_BYTES) if f.a_row_step == 1 else c.rows
    floor = _LOOSE_IN_ONE_SET if f.a_k_step * f.bytes_each % SET_BYTES == 0 else _LOOSE_LINES
    loose = np.float64(f.k * LINE_BYTES) * lines
    return np.where(c.pack_a, packed, loose), np.where(c.pack_a, 0.0, floor * l2_cycles(m))


def _packing(f: Form, c: Choices, lanes: int, m: Machine) -> FloatArray:
    """Cycles to copy the operands that are packed, where that is done at run time."""
    b_elements, a_elements = f.batch * f.k * f.cols, f.batch * f.other_rows * f.rows * f.k
    # A panel that is not full is copied lane by lane, with a mask.
    masked = np.where(f.cols % (c.vectors * lanes) == 0, 1.0, _MASKED)
    b = masked * (0.0 if f.b_constant else _copy(b_elements, f.b_col_step == 1, f.bytes_each, m))
    a = 0.0 if f.a_constant else _copy(a_elements, f.a_k_step == 1, f.bytes_each, m)
    return c.pack_b * b + c.pack_a * a


def _copy(elements: int, is_contiguous: bool, each: int, m: Machine) -> float:
    return copy_cycles(float(elements), each, m, COPIED if is_contiguous else _GATHERED)


def _is_possible(f: Form, c: Choices, registers: int, lanes: int) -> NDArray[np.bool_]:
    rows_in, cols_in = _chunk(f, c)
    work = c.rows * c.vectors
    # Weights of a single row are used once, as operands from memory.
    fits = work + np.where(c.rows == 1, 1, c.vectors) + 1 <= registers
    sized = (
        (c.rows <= f.rows)
        & (rows_in * (f.rows // rows_in) == f.rows)
        & (cols_in * (f.cols // cols_in) == f.cols)
    )
    chunked = (c.chunk == 0) | (c.chunk < np.where(c.columns_outside, f.rows, f.cols))
    readable = c.pack_b | (f.b_col_step == 1 and f.group == 1)
    readable &= c.pack_a | (not f.needs_rows)
    # A panel that follows another, which is used more than once.
    panels = c.pack_b & (c.columns_outside | ((c.chunk > 0) & (c.chunk % (c.vectors * lanes) == 0)))
    followed = ~np.asarray(c.next_panel) | (panels & (f.rows > 1))
    return fits & sized & chunked & readable & followed


def _parts(f: Form, c: Choices, t: _Tiles, m: Machine) -> FloatArray:
    """How many a team can share. More than enough are put together, if it is known who shares them."""
    outer = np.float64(f.batch * f.other_rows) * np.where(c.chunk > 0, t.chunks, 1.0)
    tops = np.where(c.chunk > 0, outer, outer * np.where(c.columns_outside, t.n_cols, t.n_rows))
    return tops if m.threads == 1 else np.minimum(tops, ENOUGH_PARTS * m.threads)
