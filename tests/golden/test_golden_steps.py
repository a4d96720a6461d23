"""What steps make of a program, in full: bindings, inits and conditions, not only the nest of loops.

Run with `--bless` to write the texts anew, and read the difference before it is committed.
"""

from collections.abc import Callable

import pytest

from tilewright.ir import layout
from tilewright.ir.dtype import DType
from tilewright.ir.expr import maximum
from tilewright.schedule.steps import (
    Annotate,
    Bind,
    Blockize,
    ComputeAt,
    Merge,
    Reorder,
    ReverseComputeAt,
    Split,
    TransformBlockLayout,
)
from tilewright.schedule.trace import Trace, replay
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, single
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.verify import verify_func


def scaled_gemm() -> Func:
    b = FuncBuilder("gemm")
    x, w = b.param("X", (18, 16), DType.F32), b.param("W", (16, 24), DType.F32)
    a = b.compute("A", (18, 16), lambda i, k: x[i, k] * 2.0)
    c = b.reduce("C", (18, 24), (16,), lambda i, j, k: (a[i, k], w[k, j]))
    return b.finish(b.compute("D", (18, 24), lambda i, j: maximum(c[i, j], 0.0)))


TILE: Trace = (
    Split("C_i", (None, 4)),
    Split("C_j", (None, 8)),
    Split("C_k", (None, 4)),
    Reorder(("C_i_0", "C_j_0", "C_k_0", "C_i_1", "C_j_1", "C_k_1")),
)
TRACES: dict[str, Trace] = {
    "annotated": (Annotate("C_i", "cost", 3), Annotate("C", "tile.size", "4x8")),
    "bound": (
        ReverseComputeAt("D", "C_i"),
        Bind("C_i", "block_x"),
        Bind("C_j", "thread_x"),
        Bind("D_1", "thread_x"),
    ),
    "merged": (Merge(("C_j", "D_j")),),
    "blockized": (*TILE, Blockize("C_i_1"), Reorder(("C_j_0", "C_i_0")), ComputeAt("A", "C_k_0")),
    "blockized_twice": (*TILE, Blockize("C_k_1"), Blockize("C_i_1", "tile")),
    "block_layout": (
        TransformBlockLayout(
            "C", layout.Layout((layout.FuseDims(0, 2), layout.SplitDim(1, 4), layout.ReorderDims((1, 0, 2))))
        ),
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_steps(name: str, golden: Callable[[str, str], None]) -> None:
    func = replay(single(scaled_gemm()), TRACES[name]).funcs[0]
    verify_func(func)
    text = print_func(func)
    assert same_func(parse_func(text), func)
    golden(f"step_{name}.tir", text)
