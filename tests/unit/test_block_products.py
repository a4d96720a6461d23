"""Products with weights of 4 bits: every tile keeps the meaning, and codes keep their 4 bits."""

import numpy as np
import pytest
from native import run_native

from tilewright.families.block_products.space import BlockProductsSpace, block_products_space
from tilewright.ir.dtype import DType
from tilewright.ops.core.block_matmul import BlockMatMul, QuantizeBlocks, pack_codes, unpack_codes
from tilewright.search.default import choose_schedule, make_request
from tilewright.support.arrays import Array
from tilewright.support.processor import cpu_features
from tilewright.target.target import AVX2, AVX512, AVX512_VNNI, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import Emit, walk_stmts
from tilewright.tir.verify import verify_func

TARGETS = {"avx2": AVX2, "avx512": AVX512, "vnni": AVX512_VNNI}
CONSTANTS = frozenset({"w", "w_scale", "w_zero"})


def inputs_of(rows: int, count: int, blocks: int, size: int) -> list[Array]:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((rows, blocks * size)).astype(np.float32)
    scale = rng.uniform(0.5, 2, (count, blocks)).astype(np.float32)
    codes = pack_codes(rng.integers(0, 16, (count, blocks, size)))
    return [*QuantizeBlocks(size).reference((x,)), codes, scale, scale * np.float32(7)]


def func_of(arrays: list[Array], *, has_bias: bool = False) -> Func:
    b = FuncBuilder("block_matmul")
    names = ("x", "x_scale", "x_total", "w", "w_scale", "w_zero")
    params = [b.param(n, a.shape, DType.of(a.dtype)) for n, a in zip(names, arrays, strict=True)]
    (y,) = BlockMatMul().compute(b, params, "y")
    if has_bias:
        y = b.compute("z", y.shape, lambda m, n: y[m, n] + 1.0)
    return b.finish(y)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_tile_keeps_the_meaning(rows: int, target: Target, has_bias: bool) -> None:
    arrays = inputs_of(rows, 64, 3, 16)
    func = func_of(arrays, has_bias=has_bias)
    space = block_products_space(make_request(func, target, CONSTANTS))
    assert isinstance(space, BlockProductsSpace)
    (want,) = run_func(func, *arrays)
    points, costs = space.ranked()
    assert len(points) > 2 and np.isfinite(costs).all()
    for point in points:
        built = space.build(space.decisions(point)).func
        verify_func(built)
        assert any(isinstance(s, Emit) for s in walk_stmts(built.body))
        np.testing.assert_array_equal(run_func(built, *arrays)[0], want)
        if target.features <= cpu_features():
            np.testing.assert_array_equal(run_native(built, arrays, target)[0], want)


@pytest.mark.parametrize("has_bias", [False, True])
def test_it_is_the_cheapest_way(has_bias: bool) -> None:
    func = func_of(inputs_of(1, 256, 8, 32), has_bias=has_bias)
    assert choose_schedule(func, AVX2, CONSTANTS).family == "block_products"


def test_codes_are_packed_in_pairs() -> None:
    codes = np.random.default_rng(1).integers(0, 16, (3, 2, 16))
    packed = pack_codes(codes)
    assert packed.nbytes * 2 == codes.size
    np.testing.assert_array_equal(unpack_codes(packed).reshape(codes.shape), codes)
