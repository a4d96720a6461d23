"""Vectors put together from others: elements a few places apart, and columns of rows that are in registers.

Native code agrees with the interpreter to the bit, and reads nothing outside of its arrays.
"""

import numpy as np
import pytest
from assembly import innermost_loops
from guarded import run_guarded
from native import HAS_AVX2, arrays_of, bits, check, every_target, kernels_of, program

from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.objects import compile_assembly
from tilewright.target.target import AVX2, Target
from tilewright.tir.interp import interpret_func

DTYPES = ["f32", "f64", "i32", "u8", "f16", "bool"]


@pytest.mark.parametrize("lanes", [4, 5, 8])
@pytest.mark.parametrize(
    ("dtype", "step"), [("f32", 2), ("f32", 3), ("f64", 4), ("u8", 2), ("bool", 2), ("i32", 5)]
)
@every_target
def test_elements_a_few_places_apart(dtype: str, step: int, lanes: int, target: Target) -> None:
    """The array ends with the last element that a lane reads."""
    extent = 3 * lanes * step - step + 1
    func = program(f"""
def strided(X: {dtype}[{extent}], Y: out({dtype}[3, {lanes}])):
    for n in range(3):
        for i in vectorized({lanes}):
            Y[n, i] = X[(n * {lanes} + i) * {step}]
""")
    arrays = arrays_of(func)
    done = run_guarded(func, arrays, target)
    want = np.asarray(arrays[func.params[0]])[::step].reshape(3, lanes)
    np.testing.assert_array_equal(bits(done[func.outputs[0]]), bits(want))


@every_target
def test_elements_apart_under_a_condition_are_read_one_by_one(target: Target) -> None:
    func = program("""
def masked(X: f32[14], Y: out(f32[16])):
    for n in range(2):
        for i in vectorized(8):
            Y[n * 8 + i] = select(n * 8 + i < 7, X[(n * 8 + i) * 2], f32(1.0))
""")
    arrays = arrays_of(func)
    expected = {b: a.copy() for b, a in arrays.items()}
    interpret_func(func, expected)
    done = run_guarded(func, arrays, target)
    np.testing.assert_array_equal(done[func.outputs[0]], expected[func.outputs[0]])


def transposed(rows: int, columns: int, dtype: str) -> str:
    """All rows go into registers as vectors, and come out as columns."""
    lines = [f"def turned(X: {dtype}[{rows}, {columns}], Y: out({dtype}[{columns}, {rows}])):"]
    lines.append(f'    with alloc({dtype}[{rows}, {columns}], "register") as R:')
    for r in range(rows):
        lines += [f"        for i in vectorized({columns}):", f"            R[{r}, i] = X[{r}, i]"]
    for c in range(columns):
        lines += [f"        for j in vectorized({rows}):", f"            Y[{c}, j] = R[j, {c}]"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("dtype", DTYPES)
@every_target
def test_rows_become_columns(dtype: str, target: Target) -> None:
    for rows, columns in ((1, 8), (2, 2), (3, 4), (6, 8), (8, 8), (9, 8), (4, 6), (5, 16)):
        done = check(program(transposed(rows, columns, dtype)), target)
        np.testing.assert_array_equal(bits(done["Y"]), bits(done["X"].T))


@every_target
def test_columns_of_rows_that_change_in_between(target: Target) -> None:
    """What was turned before a store to the registers is not what they hold after it."""
    text = transposed(4, 4, "f32").replace("Y: out(f32[4, 4])", "Y: out(f32[4, 4]), Z: out(f32[4])")
    text += """        for i in vectorized(4):
            R[1, i] = R[1, i] + X[0, i]
        for i in vectorized(4):
            Z[i] = R[i, 2]
"""
    done = check(program(text), target)
    x = done["X"]
    np.testing.assert_array_equal(done["Z"], [x[0, 2], x[1, 2] + x[0, 2], x[2, 2], x[3, 2]])


@pytest.mark.skipif(not HAS_AVX2, reason="the figures are those of 8 lanes")
def test_turning_a_tile_takes_three_shuffles_a_row() -> None:
    lines = ["def turned(X: f32[64, 8], Y: out(f32[64, 8])):", "    for n in range(8):"]
    lines.append('        with alloc(f32[8, 8], "register") as R:')
    for r in range(8):
        lines += ["            for i in vectorized(8):", f"                R[{r}, i] = X[n * 8 + {r}, i]"]
    for c in range(8):
        lines += ["            for j in vectorized(8):", f"                Y[n * 8 + {c}, j] = R[j, {c}]"]
    func = program("\n".join(lines) + "\n")
    (loop,) = innermost_loops(compile_assembly(kernel_ir(func), AVX2))
    names = [i.name for i in loop.instructions]
    shuffles = [n for n in names if n.startswith(("vunpck", "vperm", "vinsertf128", "vshuf"))]
    assert len(shuffles) == 24
    assert len([n for n in names if n.startswith("vmov")]) <= 16


def test_a_processor_for_scheduling_brings_no_instructions_along() -> None:
    """AMD's own SSE4a moves parts of vectors; a program for any machine with AVX2 must not have it."""
    (kernel,), _ = kernels_of(program(transposed(9, 8, "u8")), AVX2)
    text = compile_assembly(kernel_ir(kernel), AVX2)
    assert AVX2.cpu == "znver3" and "insertq" not in text and "extrq" not in text
