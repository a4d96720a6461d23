"""Tiles of matrices in vectors of Arm: the meaning, the interpreter and code under qemu agree to the bit, in any shape;
the search takes them, and products with weights of 4 bits keep their bits there, too.
"""

from pathlib import Path

import numpy as np
import pytest
from aarch64 import needs_qemu, run_aarch64
from native import kernels_of
from test_block_products import CONSTANTS as BLOCK_CONSTANTS
from test_block_products import Product
from test_dot_product_gemm import convolution, gemm, inputs_of
from test_tile_intrinsics import tensorized
from test_tiles_family import dense

from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.objects import compile_assembly
from tilewright.families.tiles.space import tiles_space
from tilewright.ir.dtype import DType
from tilewright.ops.core.weight_panels import Panels
from tilewright.search.default import choose_schedule, make_request
from tilewright.target.arm_tiles import fits_vectors, vector_tile
from tilewright.target.arm_vectors import SVE_256
from tilewright.target.intrinsics import block_products, find_intrinsic
from tilewright.target.target import AARCH64, AARCH64_SVE_256, Target, aarch64
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import Emit, walk_stmts
from tilewright.tir.verify import verify_func

I8, U8 = DType.I8, DType.U8
DOT_ONLY = aarch64(frozenset({"dotprod"}))
TARGETS = {"neon": AARCH64, "sve": AARCH64_SVE_256}
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
SHAPES = [(8, 8, 16), (6, 12, 8), (1, 1, 8), (3, 5, 16), (2, 24, 16), (7, 10, 8)]
CONSTANTS = frozenset({"B", "W"})


@every_target
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_tiles_keep_the_meaning(shape: tuple[int, int, int], target: Target) -> None:
    func, columns = tensorized(*shape, target=target), shape[1]
    verify_func(func)
    inputs = inputs_of(func)
    # In `program` the operands have gaps, which nothing may read as products.
    a, b = (x.astype(np.int32) for x in inputs)
    k = 3 * shape[2]
    flat = np.moveaxis(b, 1, 2).reshape(k, -1)[:, :columns]
    np.testing.assert_array_equal(run_func(func, *inputs)[0][:, :columns], a[:, :k] @ flat)


@needs_qemu
@every_target
@pytest.mark.parametrize("types", [(U8, I8), (I8, I8), (U8, U8)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_tiles_under_qemu(
    shape: tuple[int, int, int], types: tuple[DType, DType], target: Target, tmp_path: Path
) -> None:
    func, columns = tensorized(*shape, *types, target), shape[1]
    inputs = inputs_of(func)
    found, wanted = run_aarch64(func, inputs, tmp_path, target)[0], run_func(func, *inputs)[0]
    np.testing.assert_array_equal(found[:, :columns], wanted[:, :columns])


@needs_qemu
def test_a_target_without_them_runs_the_loops(tmp_path: Path) -> None:
    func = tensorized(7, 10, 16, target=AARCH64)
    inputs = inputs_of(func)
    found, wanted = run_aarch64(func, inputs, tmp_path, DOT_ONLY)[0], run_func(func, *inputs)[0]
    np.testing.assert_array_equal(found[:, :10], wanted[:, :10])
    (kernel,), _ = kernels_of(func, DOT_ONLY)
    assert "mmla" not in compile_assembly(kernel_ir(kernel), DOT_ONLY)


@pytest.mark.parametrize(
    ("types", "target", "instruction"),
    [
        ((I8, I8), AARCH64, "\tsmmla\tv"),
        ((U8, I8), AARCH64, "\tusmmla\tv"),
        ((U8, U8), AARCH64_SVE_256, "\tummla\tz"),
        ((U8, I8), AARCH64_SVE_256, "\tusmmla\tz"),
    ],
)
def test_the_instruction_is_there_and_sums_stay_in_registers(
    types: tuple[DType, DType], target: Target, instruction: str
) -> None:
    wide = 16 if target is AARCH64_SVE_256 else 8
    (kernel,), _ = kernels_of(tensorized(8, wide, 16, *types, target), target)
    text = compile_assembly(kernel_ir(kernel), target)
    assert text.count(instruction) == 4 * 4 * 2
    first, last = text.index(instruction), text.rindex(instruction)
    assert "[sp" not in text[first:last]


def test_shapes_that_registers_hold() -> None:
    assert fits_vectors(8, 8) and fits_vectors(4, 24)
    assert not fits_vectors(8, 16)
    assert fits_vectors(8, 16, SVE_256)
    assert find_intrinsic("arm.i8i8.tile_8x8x16") is vector_tile("arm.i8i8.tile_8x8x16")
    assert vector_tile("arm.i8i8.tile_16x16x16") is None
    assert vector_tile("arm.i8i8.tile_8x8x12") is None
    assert vector_tile("arm.i8u8.tile_8x8x16") is None
    assert vector_tile("arm.i8i8.tile_8x8") is None
    assert vector_tile("arm.i32.zero_8x8x8") is None


# ------------------------------------------------------------------------------------------------------- the search


SOME = {
    "whole tiles": gemm(32, 32, 64),
    "uneven": gemm(13, 21, 24),
    "signed": gemm(9, 16, 8, I8, I8),
    "epilogue": dense(11, 24, 16),
    "convolution": convolution(8, 24, 6),
    "strided": convolution(16, 12, 7, 2),
}


@needs_qemu
@every_target
@pytest.mark.parametrize("func", SOME.values(), ids=SOME)
def test_every_point_keeps_the_meaning(func: Func, target: Target, tmp_path: Path) -> None:
    space = tiles_space(make_request(func, target, CONSTANTS))
    assert space is not None
    points, costs = space.ranked()
    np.testing.assert_allclose(sum(space.terms(points).values()), costs, rtol=1e-9)
    arrays = inputs_of(func)
    (want,) = run_func(func, *arrays)
    for n in (0, len(points) // 2, len(points) - 1):
        built = space.build(space.decisions(points[n])).func
        verify_func(built)
        np.testing.assert_array_equal(run_func(built, *arrays)[0], want)
        np.testing.assert_array_equal(run_aarch64(built, arrays, tmp_path, target)[0], want)


def _emitted(func: Func) -> set[str]:
    return {s.intrinsic.split("_")[0] for s in walk_stmts(func.body) if isinstance(s, Emit)}


def test_matrices_are_taken_where_they_are_quicker() -> None:
    """With i8mm an instruction has twice the products of a dot product; one row has no use for the second."""
    chosen = choose_schedule(gemm(64, 96, 128), AARCH64, CONSTANTS)
    assert chosen.family == "tiles"
    assert _emitted(chosen.draft.func) == {"arm.i32.zero", "arm.u8i8.tile", "arm.i32.store"}
    chosen = choose_schedule(gemm(64, 96, 128), AARCH64_SVE_256, CONSTANTS)
    assert _emitted(chosen.draft.func) == {"sve.i32.zero", "sve.u8i8.tile", "sve.i32.store"}
    assert choose_schedule(gemm(1, 96, 128), AARCH64, CONSTANTS).family == "gemm"
    signed = choose_schedule(gemm(64, 96, 128, I8, I8), DOT_ONLY, CONSTANTS)
    assert signed.family == "gemm"
    assert _emitted(signed.draft.func) == {"arm.i8i8.sdot"}


@needs_qemu
@pytest.mark.parametrize("target", [*TARGETS.values(), DOT_ONLY], ids=[*TARGETS, "dotprod"])
@pytest.mark.parametrize(
    "func", [gemm(17, 40, 32, I8, I8), gemm(1, 40, 32, I8, I8)], ids=["product", "one row"]
)
def test_what_is_chosen_under_qemu(func: Func, target: Target, tmp_path: Path) -> None:
    built = choose_schedule(func, target, CONSTANTS).draft.func
    assert _emitted(built)
    arrays = inputs_of(func)
    want = arrays[0].astype(np.int32) @ arrays[1].astype(np.int32)
    np.testing.assert_array_equal(run_aarch64(built, arrays, tmp_path, target)[0], want)


# --------------------------------------------------------------------------------------------------- weights of 4 bits


@needs_qemu
@pytest.mark.parametrize("target", [*TARGETS.values(), DOT_ONLY], ids=[*TARGETS, "dotprod"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (5, 19)])
def test_weights_keep_their_bits(rows: int, columns: int, target: Target, tmp_path: Path) -> None:
    lanes, _ = block_products(target)[4]
    assert lanes == target.lanes(4)
    product = Product(Panels(4, lanes, in_words=True), rows, columns, 3, 32)
    func = product.func()
    chosen = choose_schedule(func, target, BLOCK_CONSTANTS)
    built = chosen.draft.func
    assert chosen.family == "block_products" and _emitted(built)
    inputs = product.inputs
    np.testing.assert_array_equal(
        run_aarch64(built, inputs, tmp_path, target)[0], run_func(built, *inputs)[0]
    )
    near = product.op.reference(inputs)[0]
    np.testing.assert_allclose(run_func(built, *inputs)[0], near, rtol=1e-4, atol=1e-4 * np.abs(near).max())
