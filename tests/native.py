"""Running native code in tests: kernels of a Func, one after the other, in this process.

`run_native` goes the whole way from a scheduled Func; `run_kernel` takes one that is lowered already. Objects are
loaded by the runtime's own loader, which refuses undefined symbols: a call of libm or of a compiler's helper function
is found here.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import pytest

from tilewright.codegen.kernel import kernel_ir, parts
from tilewright.codegen.legalize import legalize
from tilewright.codegen.objects import compile_object
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer
from tilewright.runtime.loader import Code
from tilewright.support.arrays import Array
from tilewright.support.processor import cpu_features
from tilewright.target.target import AVX2, AVX512, BASELINE, X86_V3, X86_V4, Target
from tilewright.tir.func import Func
from tilewright.tir.interp import interpret_func, poisoned_array
from tilewright.tir.parser import parse_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.verify import verify_func

HAS_AVX2 = cpu_features() >= X86_V3
HAS_AVX512 = cpu_features() >= X86_V4
TARGETS = [t for t, present in ((AVX2, HAS_AVX2), (AVX512, HAS_AVX512), (BASELINE, True)) if present]
BEST = TARGETS[0]


def target_name(target: Target) -> str:
    return {64: "avx512", 32: "avx2", 16: "baseline"}[target.vector_bytes]


every_target = pytest.mark.parametrize("target", TARGETS, ids=target_name)
# Where it is long and a shorter test has all targets: the others in long runs only.
best_target = pytest.mark.parametrize(
    "target",
    [pytest.param(t, marks=() if t is BEST else pytest.mark.slow, id=target_name(t)) for t in TARGETS],
)


@lru_cache(maxsize=256)
def load(ir: str, name: str, target: Target) -> tuple[Code, Callable[[int, int], None]]:
    """The kernel as a function; the code must be kept as long as that is."""
    code = Code((compile_object(ir, target),))
    return code, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address(name))


def run_kernel(func: Func, arrays: Mapping[Buffer, Array], target: Target = BEST) -> None:
    """Run a lowered Func natively on `arrays`, in place."""
    _, call = load(kernel_ir(func), func.name, target)
    args = (ctypes.c_void_p * max(len(func.params), 1))(*(arrays[p].ctypes.data for p in func.params))
    for part in range(parts(func)):
        call(ctypes.addressof(args), part)


@lru_cache(maxsize=16)
def kernels_of(func: Func, target: Target = BEST) -> tuple[list[Func], tuple[Buffer, ...]]:
    """The lowered kernels of a scheduled Func, and the buffers between them."""
    phases, shared = lower_func(func, legalize(target))
    return [p.func for p in phases], shared


def run_native(func: Func, inputs: Sequence[Array], target: Target = BEST) -> list[Array]:
    """The outputs of a scheduled Func."""
    kernels, shared = kernels_of(func, target)
    given = [p for p in func.params if p not in func.outputs]
    arrays = {p: np.ascontiguousarray(x) for p, x in zip(given, inputs, strict=True)}
    arrays |= {b: poisoned_array(b) for b in (*func.outputs, *shared)}
    for kernel in kernels:
        run_kernel(kernel, arrays, target)
    return [arrays[o] for o in func.outputs]


def bits(a: Array) -> Array:
    """The array as integers, with one NaN for all: which NaN an operation gives is not specified."""
    if a.dtype.kind in "iub":
        return a
    whole = a.view(np.dtype(f"u{a.dtype.itemsize}")).copy()
    with np.errstate(invalid="ignore"):  # a signalling NaN
        whole[np.asarray(a != a)] = np.iinfo(whole.dtype).max
    return whole


def check_same_bits(func: Func, arrays: Mapping[Buffer, Array], target: Target = BEST) -> dict[Buffer, Array]:
    """Interpreter and native code give the same bits on a lowered Func; returns what they gave."""
    expected = {b: a.copy() for b, a in arrays.items()}
    actual = {b: a.copy() for b, a in arrays.items()}
    interpret_func(func, expected)
    run_kernel(func, actual, target)
    for b in func.params:
        np.testing.assert_array_equal(bits(actual[b]), bits(expected[b]), err_msg=f"{func.name}: {b}")
    return actual


# ---------------------------------------------------------------------------------------------- lowered programs


def program(text: str) -> Func:
    func = parse_func("@func\n" + text)
    verify_func(func, lowered=True)
    return func


def zero_of(dtype: str) -> str:
    return "False" if dtype == "bool" else f"{dtype}(0)"


def legal(func: Func, target: Target) -> Func:
    """As the last passes of `target` leave a lowered Func."""
    for p in legalize(target):
        func = p(func)
    return func


def values(buffer: Buffer, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if buffer.dtype is DType.BOOL:
        return rng.random(buffer.shape) < 0.5
    if buffer.dtype.is_float:
        return rng.standard_normal(buffer.shape).astype(buffer.dtype.numpy)
    info = np.iinfo(buffer.dtype.numpy)
    return rng.integers(info.min, info.max, buffer.shape, buffer.dtype.numpy, endpoint=True)


def arrays_of(func: Func, **given: object) -> dict[Buffer, Array]:
    made = {p: poisoned_array(p) if p in func.outputs else values(p, n) for n, p in enumerate(func.params)}
    for p in func.params:
        if p.name in given:
            made[p] = np.asarray(given[p.name], p.dtype.numpy).reshape(p.shape)
    return made


def check(func: Func, target: Target, **given: object) -> dict[str, Array]:
    """Interpreter = native to the bit, before and after the last passes; returns the arrays by name."""
    arrays = arrays_of(func, **given)
    expected = {b: a.copy() for b, a in arrays.items()}
    interpret_func(func, expected)
    done = check_same_bits(legal(func, target), arrays, target)
    for b in func.params:
        np.testing.assert_array_equal(
            bits(done[b]), bits(expected[b]), err_msg=f"{func.name}, legalized: {b}"
        )
    return {b.name: a for b, a in done.items()}
