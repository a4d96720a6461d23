"""Intrinsics of registers for matrices: meaning, interpreter and native code agree to the bit, in any shape."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from native import kernels_of, run_native

from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.objects import compile_assembly
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Scope, Var, cast, const
from tilewright.schedule.steps import Tensorize
from tilewright.schedule.trace import replay
from tilewright.support.arrays import Array
from tilewright.support.processor import cpu_features
from tilewright.support.tile_permission import without_refused
from tilewright.target.intrinsics import byte_products, find_intrinsic, intrinsics_of
from tilewright.target.matrix_units import matrix_unit
from tilewright.target.target import AMX, AVX512_VNNI, Target
from tilewright.target.x86_amx import fits_tiles
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.stmt import Block, For, Iter, IterKind, Stmt, Store, seq
from tilewright.tir.verify import verify_func

I32, U8, I8 = DType.I32, DType.U8, DType.I8
needs_amx = pytest.mark.skipif(
    not (cpu_features() >= AMX.features and without_refused(AMX.features) == AMX.features),
    reason="this machine has no AMX, or its kernel does not permit it",
)
STEPS = 3  # of the reduction, around the product


def program(rows: int, columns: int, depth: int, left: DType = U8, right: DType = I8, group: int = 4) -> Func:
    """A tile is cleared, filled in three steps of the reduction, and stored; operands have gaps between rows."""
    a = Buffer("A", (rows, STEPS * depth + group), left)
    b = Buffer("B", (STEPS * depth // group, columns + 3, group), right)
    d = Buffer("D", (rows, columns + 5), I32)
    c = Buffer("C", (rows, columns), I32, Scope.REGISTER)

    def nest(name: str, extents: dict[str, int], make: Callable[..., Store]) -> Stmt:
        iters = [
            Iter(Var(f"{name}_v{v}"), n, IterKind.REDUCE if v in "skg" else IterKind.SPATIAL)
            for v, n in extents.items()
        ]
        loops = tuple(Var(f"{name}_{v}") for v in extents)
        body: Stmt = Block(name, tuple(iters), loops, make(*(it.var for it in iters)))
        for v, n in reversed(list(zip(loops, extents.values(), strict=True))):
            body = For(v, n, body)
        return body

    def product(s: Expr, i: Expr, j: Expr, k: Expr, g: Expr) -> Store:
        factors = cast(I32, a[i, s * depth + k * group + g]) * cast(I32, b[s * (depth // group) + k, j, g])
        return Store(c, (i, j), c[i, j] + factors)

    area = {"i": rows, "j": columns}
    clear = nest("clear", area, lambda i, j: Store(c, (i, j), const(0, I32)))
    add = nest("add", {"s": STEPS, **area, "k": depth // group, "g": group}, product)
    move = nest("move", area, lambda i, j: Store(d, (i, j), c[i, j]))
    return Func("tile", (a, b, d), (c,), For(Var("once"), 1, seq(clear, add, move)), (d,))


def tensorized(
    rows: int, columns: int, depth: int, left: DType = U8, right: DType = I8, target: Target = AMX
) -> Func:
    unit = matrix_unit(target)
    assert unit is not None
    steps = (
        Tensorize("clear_i", unit.zero(rows, columns)),
        Tensorize("add_i", unit.product((left, right), rows, columns, depth)),
        Tensorize("move_i", unit.store(rows, columns)),
    )
    return replay(single(program(rows, columns, depth, left, right, unit.group)), steps).funcs[0]


def inputs_of(func: Func, kind: str) -> list[Array]:
    rng = np.random.default_rng(5)
    found: list[Array] = []
    for p in func.params:
        if p not in func.outputs:
            info = np.iinfo(p.dtype.numpy)
            some = rng.integers(info.min, info.max, p.shape, p.dtype.numpy, endpoint=True)
            ends = rng.choice(np.array([info.min, info.max], p.dtype.numpy), p.shape)
            found.append(ends if kind == "extreme" else some)
    return found


SHAPES = [
    (16, 16, 64),
    (32, 32, 64),
    (1, 1, 4),
    (25, 32, 48),
    (13, 64, 64),
    (16, 96, 32),
    (48, 16, 12),
    (7, 9, 64),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_tensorize_keeps_the_meaning(shape: tuple[int, int, int]) -> None:
    func, done = program(*shape), tensorized(*shape)
    verify_func(func)
    verify_func(done)
    assert same_func(parse_func(print_func(done)), done)
    columns = shape[1]
    inputs = inputs_of(func, "random")
    np.testing.assert_array_equal(
        run_func(done, *inputs)[0][:, :columns], run_func(func, *inputs)[0][:, :columns]
    )


@needs_amx
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_native_code(shape: tuple[int, int, int]) -> None:
    func, columns = tensorized(*shape), shape[1]
    for kind in ("random", "extreme"):
        inputs = inputs_of(func, kind)
        found, wanted = run_native(func, inputs, AMX)[0], run_func(func, *inputs)[0]
        np.testing.assert_array_equal(found[:, :columns], wanted[:, :columns])


@needs_amx
@pytest.mark.parametrize(("left", "right"), [(U8, I8), (I8, I8), (U8, U8), (I8, U8)])
def test_any_signs(left: DType, right: DType) -> None:
    func = tensorized(20, 24, 64, left, right)
    inputs = inputs_of(func, "extreme")
    found, wanted = run_native(func, inputs, AMX)[0], run_func(func, *inputs)[0]
    np.testing.assert_array_equal(found[:, :24], wanted[:, :24])


def test_a_target_without_tiles_runs_the_loops() -> None:
    func = tensorized(20, 24, 32)
    inputs = inputs_of(func, "extreme")
    if cpu_features() >= AVX512_VNNI.features:
        found, wanted = run_native(func, inputs, AVX512_VNNI)[0], run_func(func, *inputs)[0]
        np.testing.assert_array_equal(found[:, :24], wanted[:, :24])
    (kernel,), _ = kernels_of(func, AVX512_VNNI)
    assert "tdpb" not in compile_assembly(kernel_ir(kernel), AVX512_VNNI)


@pytest.mark.parametrize(
    ("left", "right", "instruction"),
    [(U8, I8, "tdpbusd"), (I8, I8, "tdpbssd"), (U8, U8, "tdpbuud"), (I8, U8, "tdpbsud")],
)
def test_the_instruction_is_there(left: DType, right: DType, instruction: str) -> None:
    (kernel,), _ = kernels_of(tensorized(32, 32, 64, left, right), AMX)
    text = compile_assembly(kernel_ir(kernel), AMX)
    loop = text[text.index("tilezero") : text.index("tilestored")]
    assert loop.count(instruction) == 4
    assert loop.count("tileloadd") == 4  # two of rows, two of columns: nothing is spilled
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1
    assert text.count("tilestored") == 4


def test_shapes_that_registers_hold() -> None:
    assert fits_tiles(32, 32)
    assert fits_tiles(16, 96)
    assert not fits_tiles(32, 48)
    assert not fits_tiles(64, 32)
    assert find_intrinsic("amx.u8i8.tile_33x32x64") is None
    assert find_intrinsic("amx.u8i8.tile_16x16x68") is None
    assert find_intrinsic("amx.u8i8.tile_16x16x6") is None
    assert find_intrinsic("amx.u8i8.tile_16x16") is None
    assert find_intrinsic("amx.i32.zero_16x16x4") is None


def test_rows_of_operands_are_read_and_no_more() -> None:
    """Shapes of registers say how much is loaded: with 5 rows of 12 bytes, nothing of a 6th row, nor of a 13th byte."""
    found = find_intrinsic("amx.u8i8.tile_5x7x12")
    assert found is not None
    assert found.tiles == ((0, 5, 28), (1, 5, 12), (2, 3, 28))


def test_vectors_do_not_see_them() -> None:
    assert all(not i.tiles for i in intrinsics_of(AMX))
    assert byte_products(AMX) == byte_products(AVX512_VNNI)


def test_configurations_of_two_tiles_that_differ() -> None:
    """Each part of a kernel sets its own shapes, and none while registers are in use."""
    one, two = tensorized(16, 16, 64), tensorized(9, 16, 64)
    texts = [compile_assembly(kernel_ir(kernels_of(f, AMX)[0][0]), AMX) for f in (one, two)]
    assert all(re.search(r"ldtilecfg.*\n(?:.*\n)*?.*tilezero", t) for t in texts)
