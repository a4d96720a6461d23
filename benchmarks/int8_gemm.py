"""A GEMM of bytes, u8 · s8 → s32, scheduled step by step around a tensor instruction, against our float32 GEMM.

The schedule is that of a float32 GEMM: tiles of 6 × 16 accumulators in registers. The difference is the innermost
step, where `x86.i16.dot2_8` (vpmaddwd and vpaddd) takes two steps of the reduction at once for eight columns, and the
layouts that it asks for: both operands are widened to 16 bits, which is exact, and B lies in panels [N/16, K/2, 16, 2].
"""

import ctypes
from collections.abc import Callable, Sequence

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.interleave import interleave
from benchmarks.results import table, write
from tilewright.codegen.kernel import kernel_ir, parts
from tilewright.codegen.legalize import legalize
from tilewright.codegen.objects import compile_object
from tilewright.families.gemm.tiles import row_tiles
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Scope, cast
from tilewright.ir.layout import Layout, ReorderDims, SplitDim
from tilewright.runtime.loader import Code
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.distribute import Distribute
from tilewright.search.default import schedule_func
from tilewright.support.affinity import pinned
from tilewright.support.turns import speedup
from tilewright.target.target import Target, native
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.pipeline import lower_func

METHOD = """u8 · s8 → s32 of {size} x {size} x {size} on one core, both operands inputs and both packed in every call,
against our own float32 GEMM of the same size (untuned, B packed in every call). The two take turns in {rounds}
rounds; the results of the byte GEMM equal those of numpy in int32, with values at the ends of their ranges among the
inputs."""

ROWS, COLUMNS, LANES = 6, 16, 8
BLOCK = 128  # columns of B that stay in L2 while A streams past


def int8_gemm(m: int, n: int, k: int) -> Func:
    """The GEMM as it is written down: operands widened, then a sum of products."""
    b = FuncBuilder("int8_gemm")
    x, y = b.param("A", (m, k), DType.U8), b.param("B", (k, n), DType.I8)

    def widened(of: Buffer) -> Callable[[Expr, Expr], Expr]:
        return lambda i, k: cast(DType.I16, of[i, k])

    wide_x = b.compute("A16", (m, k), widened(x), axes=("i", "k"))
    wide_y = b.compute("B16", (k, n), widened(y), axes=("k", "j"))

    def term(i: Expr, j: Expr, k: Expr) -> Expr:
        return cast(DType.I32, wide_x[i, k]) * cast(DType.I32, wide_y[k, j])

    return b.finish(b.reduce("C", (m, n), (k,), term))


def schedule_int8_gemm(func: Func) -> Schedule:
    """Register tiles of vpmaddwd. Columns come in multiples of 16 and the reduction in pairs."""
    s = Schedule(single(func))
    _pack(s)
    out = s.cache_write("C", "C", Scope.REGISTER)
    m, n = func.outputs[0].shape
    outer, j, col = s.split("C_j", (None, BLOCK // COLUMNS if n % BLOCK == 0 else 1, COLUMNS))
    s.reorder(outer, "C_i", j, col, "C_k")
    s.reverse_compute_at(out, col)
    sizes = row_tiles(m, ROWS)
    ends = [sum(size * count for size, count in list(sizes.items())[: p + 1]) for p in range(len(sizes))]
    if len(sizes) > 1:
        s.loop_partition("C_i", ends[:-1])
    for part, rows in enumerate(sizes):
        _tile(s, f"_p{part}" if len(sizes) > 1 else "", rows, j, col)
    return s


def _pack(s: Schedule) -> None:
    """A keeps its layout, in which pairs lie side by side; B goes from [K, N] to [N/16, K/2, 16, 2]."""
    s.vectorize(s.split("A16_k", (None, 16))[1])
    s.transform_layout("B16", Layout((SplitDim(1, COLUMNS), SplitDim(0, 2), ReorderDims((2, 0, 3, 1)))))
    k, pair = s.split("B16_k", (None, 2))
    j, lane = s.split("B16_j", (None, COLUMNS))
    s.reorder(j, k, lane, pair)


def _tile(s: Schedule, part: str, rows: int, j: str, col: str) -> None:
    """One part of the rows as tiles: rows x 2 accumulators of 8 lanes through the whole reduction."""
    _, row = s.split(f"C_i{part}", (None, rows))
    j, col = j + part, col + part
    s.reorder(j, row, col)
    store_col = s.apply(Distribute(col)).part(1)
    store_row = s.apply(Distribute(row)).part(1)
    k, pair = s.split(f"C_k{part}", (None, 2))
    vector, lane = s.split(col, (None, LANES))
    s.reorder(k, row, vector, lane, pair)
    s.unroll(row)
    s.unroll(vector)
    s.decompose_reduction(f"C{part}", k)
    s.vectorize(f"{lane}_init")
    s.tensorize(lane, "x86.i16.dot2_8")
    s.unroll(store_row)
    store_vector, store_lane = s.split(store_col, (None, LANES))
    s.unroll(store_vector)
    s.vectorize(store_lane)


def float_gemm(size: int) -> Func:
    b = FuncBuilder("float_gemm")
    x, y = b.param("A", (size, size), DType.F32), b.param("B", (size, size), DType.F32)

    def factors(i: Expr, j: Expr, k: Expr) -> tuple[Expr, Expr]:
        return x[i, k], y[k, j]

    return b.finish(b.reduce("C", (size, size), (size,), factors))


class Native:
    """A scheduled Func on one core, as a function over arrays that stay where they are."""

    def __init__(self, func: Func, target: Target, inputs: Sequence[NDArray[np.generic]]) -> None:
        phases, shared = lower_func(func, legalize(target))
        given = [p for p in func.params if p not in func.outputs]
        self.arrays: dict[Buffer, NDArray[np.generic]] = dict(zip(given, inputs, strict=True))
        self.arrays |= {b: np.empty(b.shape, b.dtype.numpy) for b in (*func.outputs, *shared)}
        self.output = self.arrays[func.outputs[0]]
        self._code = [Code((compile_object(kernel_ir(p.func), target),)) for p in phases]
        self._calls = [
            (
                ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address(p.func.name)),
                (ctypes.c_void_p * len(p.func.params))(*(self.arrays[b].ctypes.data for b in p.func.params)),
                parts(p.func),
            )
            for code, p in zip(self._code, phases, strict=True)
        ]

    def run(self) -> None:
        for call, args, count in self._calls:
            for part in range(count):
                call(ctypes.addressof(args), part)


def operands(m: int, n: int, k: int) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    """Random bytes; the first rows and columns are at the ends of the ranges."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (m, k), np.uint8)
    b = rng.integers(-128, 128, (k, n), np.int8)
    a[:2], b[:, 0], b[:, 1] = 255, -128, 127
    return a, b


@click.command()
@click.option("--size", default=1024, show_default=True)
@click.option("--rounds", default=21, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=0.1, show_default=True, help="Of each turn.")
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/int8_gemm.md.")
def main(size: int, rounds: int, seconds: float, save: bool) -> None:
    """Measure the byte GEMM against the float32 GEMM."""
    target = native()
    a, b = operands(size, size, size)
    with pinned(1):
        ours = Native(schedule_int8_gemm(int8_gemm(size, size, size)).module.funcs[0], target, (a, b))
        floats = (a.astype(np.float32), b.astype(np.float32))
        other = Native(schedule_func(float_gemm(size), target, frozenset()).func, target, floats)
        ours.run()
        if not np.array_equal(ours.output, a.astype(np.int32) @ b.astype(np.int32)):
            raise SystemExit("the byte GEMM is wrong")
        measured = interleave({"int8": ours.run, "float32": other.run}, rounds=rounds, seconds=seconds)
    operations = 2 * size**3
    rows = [
        [
            name,
            f"{min(t.round_bests) * 1e3:.2f}",
            f"{operations / min(t.round_bests) / 1e9:.1f}",
            f"{operations / t.median / 1e9:.1f}",
        ]
        for name, t in measured.items()
    ]
    text = table(["GEMM", "best, ms", "best, Gop/s", "median, Gop/s"], rows)
    best = min(measured["float32"].round_bests) / min(measured["int8"].round_bests)
    ratio = f"int8 over float32: {best:.2f} at their best, {speedup(measured['int8'], measured['float32'])} by rounds."
    click.echo(f"{text}\n\n{ratio}")
    if save:
        write("int8_gemm", "A GEMM of bytes", ratio, METHOD.format(size=size, rounds=rounds), text)


if __name__ == "__main__":
    main()
