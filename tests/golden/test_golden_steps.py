"""What steps make of programs, as text. Run with `--bless` to write the texts anew, and read the difference."""

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Var, as_index, const, logical_and, select
from tilewright.schedule.decisions import decide
from tilewright.schedule.steps import (
    ComputeAt,
    DecomposePadding,
    PadEinsum,
    Reorder,
    RollingBuffer,
    SampleCategorical,
    SampleComputeLocation,
    SamplePerfectTile,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import Trace, parse_trace, print_trace, replay
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.printer import print_func
from tilewright.tir.verify import verify_func

F32 = DType.F32


def product() -> Func:
    b = FuncBuilder("product")
    x, y = b.param("A", (7, 5), F32), b.param("B", (5, 6), F32)
    return b.finish(b.reduce("C", (7, 6), (5,), lambda i, j, k: (x[i, k], y[k, j])))


def border() -> Func:
    b = FuncBuilder("border")
    x = b.param("X", (5, 6), F32)

    def pad(h: Var, w: Var) -> Expr:
        inside = logical_and(as_index(1) <= h, h < 6, as_index(1) <= w, w < 7)
        return select(inside, x[h - 1, w - 1], const(0.0, F32))

    return b.finish(b.compute("P", (7, 8), pad))


def blur() -> Func:
    b = FuncBuilder("blur")
    x = b.param("X", (12, 6), F32)
    t = b.compute("T", (12, 6), lambda i, j: x[i, j] * 3.0)
    return b.finish(b.compute("D", (10, 6), lambda i, j: t[i, j] + t[i + 1, j] + t[i + 2, j]))


CASES: dict[str, tuple[Callable[[], Func], Trace]] = {
    "pad_einsum": (product, (PadEinsum("C", (4, 8, 4)),)),
    "decompose_padding": (border, (DecomposePadding("P", "P_w"),)),
    "rolling_buffer": (blur, (ComputeAt("T", "D_i"), RollingBuffer("T", "T"))),
    "sample_perfect_tile": (product, (SamplePerfectTile("C_j", 3, 2, (3, 1, 2)),)),
    "sample_categorical": (product, (SampleCategorical(((), (Unroll("C_k"),)), 1),)),
    "sample_compute_location": (blur, (SampleComputeLocation("T", "D_j"),)),
}


@pytest.mark.parametrize("name", CASES)
def test_step(name: str, golden: Callable[[str, str], None]) -> None:
    make, trace = CASES[name]
    func = replay(single(make()), trace).funcs[0]
    verify_func(func)
    golden(f"{name}.tir", _text(trace, func))


def _text(trace: Trace, func: Func) -> str:
    remarks = "".join(f"# {line}\n" for line in print_trace(trace).splitlines())
    return remarks + print_func(func)


def test_decided_trace(golden: Callable[[str, str], None]) -> None:
    """A change here means that what a generator draws for a trace has changed."""
    trace: Trace = (
        SamplePerfectTile("D_i", 2, 5),
        SamplePerfectTile("D_j", 2, 3),
        Reorder(("D_i_0", "D_j_0", "D_i_1", "D_j_1")),
        SampleComputeLocation("T"),
        SampleCategorical(((), (Vectorize("D_j_1"),), (Unroll("D_j_1"),))),
    )
    drawn = decide(single(blur()), trace, np.random.default_rng(7))
    assert parse_trace(print_trace(drawn)) == drawn
    golden("decided.trace", print_trace(drawn))
