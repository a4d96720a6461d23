"""Products with weights of 4 and 8 bits: every tile keeps the meaning, and codes keep their bits."""

from collections.abc import Iterator

import numpy as np
import pytest
from native import run_native

from tilewright.families.block_products.space import BlockProductsSpace, block_products_space
from tilewright.ir.dtype import DType
from tilewright.ops.core.arithmetic import Add
from tilewright.ops.core.block_matmul import BlockMatMul
from tilewright.ops.core.block_quantize import QuantizeBlocks
from tilewright.ops.core.weight_panels import Panels
from tilewright.search.default import choose_schedule, make_request
from tilewright.support.arrays import Array
from tilewright.support.processor import cpu_features
from tilewright.target.intrinsics import block_products
from tilewright.target.target import AVX2, AVX512, AVX512_VNNI, AVX_VNNI, BASELINE, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import Emit, walk_stmts
from tilewright.tir.verify import verify_func

TARGETS = {"avx2": AVX2, "avx512": AVX512, "vnni": AVX512_VNNI, "avx-vnni": AVX_VNNI}
CONSTANTS = frozenset({"codes", "scales", "zeros"})


class Product:
    """Random rows by random weights, in integers or in floats."""

    def __init__(
        self, panels: Panels, rows: int, columns: int, blocks: int, size: int, *, has_zeros: bool = False
    ) -> None:
        rng = np.random.default_rng(7)
        x = rng.standard_normal((rows, blocks * size)).astype(np.float32)
        scales = panels.pack_each(rng.uniform(0.5, 2, (columns, blocks)).astype(np.float32))
        codes = panels.pack(rng.integers(0, 1 << panels.bits, (columns, blocks, size)).astype(np.uint8))
        zeros = panels.pack_each(rng.integers(0, 1 << panels.bits, (columns, blocks)).astype(np.uint8))
        middle = 1.0 if has_zeros else 2.0 ** (panels.bits - 1)
        left: tuple[Array, ...] = QuantizeBlocks(size, middle).reference((x,))
        if not panels.in_words:
            parts = x.reshape(rows, blocks, size)
            left = parts, (parts.sum(axis=2) * middle).astype(np.float32)
        self.op = BlockMatMul(columns, panels, has_zeros=has_zeros)
        self.inputs = [*left, codes, scales, *([zeros] if has_zeros else [])]

    def func(self, *, has_bias: bool = False) -> Func:
        b = FuncBuilder("block_matmul")
        left = ("x", "x_scale", "x_total") if self.op.panels.in_words else ("x", "x_total")
        names = (*left, "codes", "scales", "zeros")
        params = [b.param(n, a.shape, DType.of(a.dtype)) for n, a in zip(names, self.inputs, strict=False)]
        (y,) = self.op.compute(b, params, "y")
        if has_bias:
            (y,) = Add().compute(b, (y, b.param("one", (1,), DType.F32)), "z")
        return b.finish(y)


def space_of(func: Func, target: Target) -> BlockProductsSpace:
    space = block_products_space(make_request(func, target, CONSTANTS))
    assert isinstance(space, BlockProductsSpace)
    return space


def some_points(space: BlockProductsSpace) -> Iterator[dict[str, int]]:
    """The cheapest, the dearest, and one between."""
    points, costs = space.ranked()
    assert len(points) > 2 and np.isfinite(costs).all()
    for at in (0, len(points) // 2, len(points) - 1):
        yield space.decisions(points[at])


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    ("rows", "columns", "size", "has_zeros"), [(1, 64, 32, False), (7, 83, 16, True), (11, 32, 48, False)]
)
@pytest.mark.parametrize("bits", [4, 8])
def test_integers_keep_the_meaning(
    target: Target, rows: int, columns: int, size: int, has_zeros: bool, bits: int
) -> None:
    lanes, _ = block_products(target)[bits]
    product = Product(Panels(bits, lanes, in_words=True), rows, columns, 3, size, has_zeros=has_zeros)
    func, inputs = product.func(has_bias=not has_zeros), product.inputs
    if not has_zeros:
        inputs = [*inputs, np.ones(1, np.float32)]
    (want,) = run_func(func, *inputs)
    near = product.op.reference(product.inputs)[0] + (0.0 if has_zeros else 1.0)
    np.testing.assert_allclose(want, near, rtol=1e-4, atol=1e-4 * np.abs(near).max())
    space = space_of(func, target)
    for decisions in some_points(space):
        built = space.build(decisions).func
        verify_func(built)
        assert any(isinstance(s, Emit) for s in walk_stmts(built.body))
        np.testing.assert_array_equal(run_func(built, *inputs)[0], want)
        if target.features <= cpu_features():
            np.testing.assert_array_equal(run_native(built, inputs, target)[0], want)


@pytest.mark.parametrize("target", [*TARGETS.values(), BASELINE], ids=[*TARGETS, "baseline"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (7, 83)])
@pytest.mark.parametrize("bits", [4, 8])
def test_floats_keep_the_meaning(target: Target, rows: int, columns: int, bits: int) -> None:
    panels = Panels(bits, target.lanes(4), in_words=False)
    product = Product(panels, rows, columns, 3, 16, has_zeros=columns == 83)
    func = product.func()
    (near,) = product.op.reference(product.inputs)
    space = space_of(func, target)
    for decisions in some_points(space):
        built = space.build(decisions).func
        verify_func(built)
        (want,) = run_func(built, *product.inputs)
        np.testing.assert_allclose(want, near, rtol=1e-4, atol=1e-5 * np.abs(near).max())
        if target.features <= cpu_features() and target is not BASELINE:
            np.testing.assert_array_equal(run_native(built, product.inputs, target)[0], want)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("in_words", [False, True])
def test_it_is_the_cheapest_way(in_words: bool, has_bias: bool) -> None:
    func = Product(Panels(4, 8, in_words), 1, 256, 8, 32).func(has_bias=has_bias)
    assert choose_schedule(func, AVX2, CONSTANTS).family == "block_products"


@pytest.mark.parametrize(("bits", "in_words"), [(4, True), (4, False), (8, True), (8, False)])
def test_codes_are_packed(bits: int, in_words: bool) -> None:
    panels = Panels(bits, 8, in_words)
    codes = np.random.default_rng(1).integers(0, 1 << bits, (13, 2, 16)).astype(np.uint8)
    packed = panels.pack(codes)
    assert packed.shape == panels.shape(13, 2, 16)
    assert packed.nbytes * 8 == 16 * 2 * 16 * bits  # of two panels
    np.testing.assert_array_equal(panels.unpack(packed, 13), codes)
    scales = codes[..., 0].astype(np.float32)
    np.testing.assert_array_equal(panels.unpack_each(panels.pack_each(scales), 13), scales)
