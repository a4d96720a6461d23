"""Vectors whose elements are a few places apart in memory: whole vectors are loaded, and shuffled together.

    lanes 0 … 7 of x[2 · lane]      ──>      a = x[0 … 7], b = x[7 … 14], elements 0 2 4 6 of a and 1 3 5 7 of b

What is read reaches from the first lane's element to the last lane's, and never beyond.
"""

from tilewright.codegen.builder import TextBuilder
from tilewright.codegen.values import Val, memory_type
from tilewright.ir.dtype import DType

MAX_STEP = 4  # beyond, most of what is loaded would be thrown away


def can_shuffle(dtype: DType, lanes: int, step: int) -> bool:
    """Is a load of `lanes` elements `step` apart better made of whole vectors than element by element?"""
    return 2 <= step <= MAX_STEP and lanes >= 4 and dtype is not DType.BOOL


def load_strided(b: TextBuilder, dtype: DType, pointer: Val, lanes: int, step: int) -> Val:
    """The elements 0, step, 2·step … from `pointer` on."""
    span = (lanes - 1) * step + 1
    t, element = memory_type(dtype, lanes), memory_type(dtype)
    done = Val("poison", dtype, lanes)
    first = 0  # lanes before it are in place
    while first < lanes:
        # From the next lane's element on, but not beyond the last lane's.
        start = min(first * step, span - lanes)
        at = pointer
        if start:
            at = b.op(f"getelementptr {element}, ptr {pointer.name}, i64 {start}", DType.I64)
        part = b.op(f"load {t}, ptr {at.name}, align {dtype.bytes}", dtype, lanes)
        picks = [
            lanes + n * step - start if first <= n and n * step - start < lanes else n for n in range(lanes)
        ]
        mask = ", ".join(f"i32 {p}" for p in picks)
        done = b.op(f"shufflevector {done}, {part}, <{lanes} x i32> <{mask}>", dtype, lanes)
        first = sum(1 for n in range(lanes) if n * step - start < lanes)
    return done
