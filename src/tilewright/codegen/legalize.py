"""What a target has no instruction for becomes what it has.

The passes below run last on each kernel. All are rewrites of expressions, which the interpreter runs like any
other, so it and native code agree to the bit on what comes out.
"""

from functools import partial

from tilewright.codegen.expand_intrinsics import expand_intrinsics
from tilewright.target.target import Target
from tilewright.tir.passes.expand_halves import expand_half_casts, widen_halves
from tilewright.tir.passes.expand_math import expand_math
from tilewright.tir.passes.expand_rounding import expand_rounding
from tilewright.tir.passes.split_fma import without_fma
from tilewright.tir.pipeline import FuncPass


def legalize(target: Target) -> tuple[FuncPass, ...]:
    """The last passes of kernels for `target`."""
    passes: list[FuncPass] = [partial(expand_intrinsics, target=target), expand_math, widen_halves]
    if not target.has_fma:
        passes.append(without_fma)
    if not target.has_rounding:
        passes.append(expand_rounding)
    passes.append(partial(expand_half_casts, has_f16=target.has_f16))
    return tuple(passes)
