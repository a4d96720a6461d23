"""Mappings ranked and built: the program means what it meant, in the interpreter and natively."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from aarch64 import needs_qemu, run_aarch64
from native import BEST, HAS_AVX2, run_native
from tensor_programs import block_of, conv, einsum, quantized, same_order

from tilewright.families.tensor.cost import mapping_terms
from tilewright.families.tensor.mapping import Mapping, Mappings, mappings
from tilewright.families.tensor.materialize import apply_mapping
from tilewright.families.tensor.operand_plan import is_in_place
from tilewright.families.tensor.tensorize import Tensorization, auto_tensorize, rank, tensorize_candidates
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Fma, Load, loads, maximum
from tilewright.ops.core.conv import ConvTranspose
from tilewright.ops.core.window import Window
from tilewright.schedule.find import loops_above
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import parse_trace, print_trace, replay
from tilewright.support.errors import ScheduleError
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.intrinsics import find_intrinsic, intrinsics_of
from tilewright.target.target import AVX2, BASELINE
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import Emit, LoopKind, blocks, walk_stmts
from tilewright.tir.verify import verify_func


def intrinsic(name: str) -> Intrinsic:
    found = find_intrinsic(name)
    assert found is not None
    return found


SMALL = intrinsic("x86.f32.tile_2x8")
DOT = intrinsic("x86.i16.dot2_8")


def found(func: Func, name: str, which: Intrinsic) -> Mappings:
    out = mappings(block_of(func, name), which)
    assert isinstance(out, Mappings), out
    return out


def inputs(func: Func) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    given = [p for p in func.params if p not in func.outputs]
    return [
        (
            rng.standard_normal(p.shape)
            if p.dtype.is_float
            else rng.integers(-100 if p.dtype.is_signed else 0, 100, p.shape)
        ).astype(p.dtype.numpy)
        for p in given
    ]


def build(func: Func, name: str, mapping: Mapping, which: Intrinsic, *, native: bool = True) -> Func:
    """The program of a mapping, compared with the original."""
    s = Schedule(single(func))
    apply_mapping(s, name, mapping, which)
    verify_func(s.func)
    assert same_func(replay(single(func), parse_trace(print_trace(s.trace))).funcs[0], s.func)
    given = inputs(func)
    (want,), (got,) = run_func(func, *given), run_func(s.func, *given)
    if want.dtype.kind != "f" or same_order(mapping, block_of(func, name)):
        np.testing.assert_array_equal(got, want, err_msg=str(mapping))
    else:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str(mapping))
    if HAS_AVX2 and native:
        (actual,) = run_native(s.func, given, BEST)
        np.testing.assert_array_equal(actual, got, err_msg=str(mapping))
    return s.func


def some(all_of: Mappings, count: int = 2) -> Iterable[Mapping]:
    """The first and the last mapping and a few between, of each assignment of operands."""
    for choice in all_of.choices:
        step = max(1, (len(choice) - 1) // count)
        yield from itertools.islice(choice, 0, None, step)


KINDS = {
    "matmul": einsum("mk,kn->mn", {"m": 4, "k": 3, "n": 16}),
    "edges": einsum("mk,kn->mn", {"m": 5, "k": 3, "n": 11}),
    "transposed": einsum("km,nk->nm", {"m": 5, "k": 3, "n": 11}),
    "one_padded": einsum("mk,nk->mn", {"m": 5, "k": 3, "n": 8}),
    "batched": einsum("bmk,bkn->bmn", {"b": 2, "m": 4, "k": 3, "n": 9}),
    "one_row": einsum("mk,kn->mn", {"m": 1, "k": 3, "n": 8}),
    "conv1d": conv((9,), (3,), channels=(3, 8)),
    "conv2d": conv((4, 5), (2, 3), channels=(2, 5)),
    "conv3d": conv((2, 3, 3), (1, 2, 2), channels=(2, 4)),
    "grouped": conv((3, 4), (2, 2), channels=(4, 6), group=2),
    "dilated": conv((5, 6), (2, 2), channels=(2, 4), dilation=2),
    "strided": conv((5, 5), (3, 2), channels=(2, 4), stride=2),
    "padded": conv((3, 2), (3, 3), channels=(2, 4), pad=1),
    "padded_inline": conv((3, 2), (3, 3), channels=(2, 4), pad=1, inline=True),
}


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "one_row"])
def test_mappings_of_every_kind_of_block_mean_the_same(kind: str) -> None:
    func = KINDS[kind]
    name = "Y" if "Y" in {b.name for b in blocks(func.body)} else "Z"
    for n, m in enumerate(some(found(func, name, SMALL))):
        build(func, name, m, SMALL, native=n % 3 == 1)


def test_one_row_takes_a_tile_of_one_row() -> None:
    row, column = found(KINDS["one_row"], "Z", intrinsic("x86.f32.tile_1x8"))
    build(KINDS["one_row"], "Z", row, intrinsic("x86.f32.tile_1x8"))
    with pytest.raises(ScheduleError, match="j would be all padding but for one element"):
        build(KINDS["one_row"], "Z", column, intrinsic("x86.f32.tile_1x8"))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_transposed_convolution(stride: int) -> None:
    b = FuncBuilder("transposed")
    x, w = b.param("X", (1, 2, 3, 4), DType.F32), b.param("W", (2, 3, 4, 4), DType.F32)
    window = Window((4, 4), (stride, stride), (1, 1), (1, 1), (1, 1))
    (y,) = ConvTranspose(window).compute(b, [x, w], "Y")
    func = b.finish(y)
    name = next(b.name for b in blocks(func.body) if b.is_reduction)
    for n, m in enumerate(some(found(func, name, SMALL), 1)):
        build(func, name, m, SMALL, native=n == 1)


def test_three_factors_are_two_after_one_product_is_staged() -> None:
    b = FuncBuilder("three")
    x, s, y = b.param("X", (4, 3), DType.F32), b.param("S", (3,), DType.F32), b.param("Y", (3, 8), DType.F32)
    func = b.finish(b.reduce("Z", (4, 8), (3,), lambda i, j, k: (x[i, k] * s[k], y[k, j])))
    for m in found(func, "Z", SMALL):
        store = block_of(build(func, "Z", m, SMALL), "Z").store
        assert isinstance(store.value, Fma)
        assert all(isinstance(e, Load) for e in store.value.children())


def test_one_buffer_as_both_operands() -> None:
    b = FuncBuilder("gram")
    x = b.param("X", (9, 3), DType.F32)
    func = b.finish(b.reduce("Z", (9, 9), (3,), lambda i, j, k: (x[i, k], x[j, k])))
    for m in found(func, "Z", SMALL):
        build(func, "Z", m, SMALL)


@pytest.mark.parametrize("shape", [(4, 16, 6), (3, 13, 5)])
def test_products_of_pairs(shape: tuple[int, int, int]) -> None:
    func = quantized(*shape, DType.I16, DType.I16)
    for m in found(func, "Y", DOT):
        done = build(func, "Y", m, DOT)
        assert any(isinstance(n, Emit) and n.intrinsic == DOT.name for n in walk_stmts(done.body))


def test_a_single_instruction_runs_on_several_accumulators() -> None:
    func = quantized(8, 16, 6, DType.I16, DType.I16)
    done = build(func, "Y", next(iter(found(func, "Y", DOT))), DOT)
    (emit,) = (n for n in walk_stmts(done.body) if isinstance(n, Emit))
    unrolled = [n.extent for n in loops_above(done, emit) if n.kind is LoopKind.UNROLLED]
    assert unrolled == [4, 2]


@pytest.mark.parametrize("shape", [(4, 8, 8), (3, 13, 5)])
def test_bytes_with_zero_points_become_products_of_pairs(shape: tuple[int, int, int]) -> None:
    func = quantized(*shape, DType.U8, DType.I8, zero_points=True)
    for m in found(func, "Y", DOT):
        done = build(func, "Y", m, DOT)
        assert any(isinstance(n, Emit) and n.intrinsic == DOT.name for n in walk_stmts(done.body))


@pytest.mark.parametrize("shape", [(4, 8, 8), (3, 5, 11)])
@pytest.mark.parametrize(
    ("name", "x_type", "w_type"),
    [
        ("arm.i8i8.sdot", DType.I8, DType.I8),
        ("arm.u8i8.usdot", DType.U8, DType.I8),
        ("arm.i8i8.smmla", DType.I8, DType.I8),
        ("arm.u8u8.ummla", DType.U8, DType.U8),
    ],
)
def test_products_of_bytes_on_arm(
    name: str, x_type: DType, w_type: DType, shape: tuple[int, int, int]
) -> None:
    func = quantized(*shape, x_type, w_type)
    for m in found(func, "Y", intrinsic(name)):
        done = build(func, "Y", m, intrinsic(name), native=False)
        assert any(isinstance(n, Emit) and n.intrinsic == name for n in walk_stmts(done.body))


@needs_qemu
@pytest.mark.parametrize("name", ["arm.i8i8.sdot", "arm.i8i8.smmla", "arm.f32.tile_4x8"])
def test_arm_code_of_a_mapping(name: str, tmp_path: Path) -> None:
    func = (
        quantized(3, 10, 11, DType.I8, DType.I8)
        if "i8" in name
        else einsum("mk,kn->mn", {"m": 5, "k": 3, "n": 9})
    )
    block = "Y" if "i8" in name else "Z"
    mapping = next(iter(found(func, block, intrinsic(name))))
    done = build(func, block, mapping, intrinsic(name), native=False)
    given = inputs(func)
    np.testing.assert_array_equal(run_aarch64(done, given, tmp_path)[0], run_func(done, *given)[0])


def test_tiles_across_rows_that_follow_one_another_are_in_place() -> None:
    func = conv((4, 6), (1, 1), channels=(3, 4))
    across = next(m for m in found(func, "Y", SMALL) if str(m).startswith("i = Y_vo, j = (Y_vn, Y_vh, Y_vw)"))
    assert is_in_place(2, across, SMALL, block_of(func, "Y"))
    done = build(func, "Y", across, SMALL)
    assert not any(b.name.startswith("Y_X") for b in blocks(done.body))


def test_what_follows_the_product_is_done_on_registers() -> None:
    b = FuncBuilder("dense")
    x, w, c = (
        b.param("X", (4, 3), DType.F32),
        b.param("W", (3, 11), DType.F32),
        b.param("C", (11,), DType.F32),
    )
    z = b.reduce("Z", (4, 11), (3,), lambda i, j, k: (x[i, k], w[k, j]))
    func = b.finish(b.compute("R", (4, 11), lambda i, j: maximum(z[i, j] + c[j], 0.0)))
    for m in found(func, "Z", SMALL):
        done = build(func, "Z", m, SMALL)
        assert "Z_Z_out" not in {b.name for b in blocks(done.body)}


def test_padding_of_the_input_is_made_by_the_copy() -> None:
    func = KINDS["padded"]
    copying = next(
        m
        for m in found(func, "Y", SMALL)
        if not is_in_place(1, m, SMALL, block_of(func, "Y"))
        and "P" in {ld.buffer.name for ld in loads(m.operands[1])}
    )
    done = build(func, "Y", copying, SMALL)
    assert "P" not in {b.name for b in blocks(done.body)}


def test_a_refused_mapping_changes_nothing() -> None:
    func = KINDS["matmul"]
    s = Schedule(single(func))
    s.split("Z_m", (None, 2))
    before, trace = s.module, s.trace
    with pytest.raises(ScheduleError):
        apply_mapping(s, "Z", next(iter(found(func, "Z", SMALL))), SMALL)
    assert s.module is before and s.trace == trace


# ------------------------------------------------------------------------------------------------------- the cost


@pytest.mark.parametrize("kind", ["edges", "conv2d", "grouped", "strided"])
def test_the_closed_form_agrees_with_each_mapping(kind: str) -> None:
    func = KINDS[kind]
    name = "Y" if "Y" in {b.name for b in blocks(func.body)} else "Z"
    block = block_of(func, name)
    for choice in found(func, name, SMALL).choices:
        terms = mapping_terms(choice, SMALL, AVX2)
        assert terms.seconds.shape == tuple(len(g) for g in choice.groups)
        for at in np.ndindex(*terms.seconds.shape):
            m = choice.mapping(at)
            for operand in (1, 2):
                assert (terms.copies[operand][at] == 0) == is_in_place(operand, m, SMALL, block), str(m)
            whole = 1 / (1 - m.waste)
            assert terms.waste[at] >= terms.compute[at] * (whole - 1) * 0.999
            assert terms.seconds[at] > 0


def test_copies_of_constants_are_free() -> None:
    choice = found(KINDS["edges"], "Z", SMALL).choices[0]
    plain, constant = (mapping_terms(choice, SMALL, AVX2, frozenset(c)) for c in ((), ("Y",)))
    assert plain.copies[2].min() > 0 == constant.copies[2].max()


def test_whole_tiles_are_cheaper_than_padded_ones() -> None:
    func = einsum("mk,kn->mn", {"m": 48, "k": 64, "n": 64})
    best = tensorize_candidates(func, "Z", AVX2)[0]
    assert best.mapping.waste == 0
    assert best.intrinsic.name in ("x86.f32.tile_6x16", "x86.f32.tile_4x16")


def test_candidates_are_ranked_and_limited() -> None:
    out = tensorize_candidates(KINDS["conv2d"], "Y", AVX2, limit=10)
    assert len(out) == 10
    assert [c.seconds for c in out] == sorted(c.seconds for c in out)
    assert tensorize_candidates(KINDS["conv2d"], "Y", BASELINE) == []


# --------------------------------------------------------------------------------------------------- automatically


def automatic(func: Func, name: str) -> tuple[Func, Tensorization]:
    s = Schedule(single(func))
    t = auto_tensorize(s, name, AVX2)
    verify_func(s.func)
    given = inputs(func)
    for want, got in zip(run_func(func, *given), run_func(s.func, *given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return s.func, t


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_is_chosen_and_told(kind: str) -> None:
    func = KINDS[kind]
    name = "Y" if "Y" in {b.name for b in blocks(func.body)} else "Z"
    done, t = automatic(func, name)
    assert t.chosen is t.ranking.candidates[0] and not t.refused
    assert done is not func
    text = t.explain()
    assert text.startswith(f"{name} is computed by {t.chosen.intrinsic.name}: i = ")
    assert f"the best of {t.ranking.count} mappings" in text


def test_the_explanation_of_a_product() -> None:
    _, t = automatic(einsum("mk,kn->mn", {"m": 12, "k": 8, "n": 16}), "Z")
    first, predicted, where, *rest = t.explain().splitlines()
    assert first == "Z is computed by x86.f32.tile_6x16: i = Z_vm, j = Z_vn, k = Z_vk"
    assert "predicted: work " in predicted and "padding" not in predicted
    assert where == "  X is read in place; Y is read in place"
    assert any(line.startswith("  +") and "x86.f32.tile_4x16" in line for line in rest)
    assert any(
        line.startswith("  not x86.i16.dot2_8") and "Z computes Z = fma(X, Y, Z)" in line for line in rest
    )


def test_a_block_without_a_mapping_stays_and_the_reason_is_told() -> None:
    b = FuncBuilder("depthwise")
    x, w = b.param("X", (4, 6), DType.F32), b.param("W", (4, 3), DType.F32)
    func = b.finish(b.reduce("Y", (4, 4), (3,), lambda c, h, r: (x[c, h + r], w[c, r])))
    s = Schedule(single(func))
    t = auto_tensorize(s, "Y", AVX2)
    assert t.chosen is None and s.trace == ()
    text = t.explain()
    assert text.startswith("Y is not tensorized: no intrinsic fits.\n")
    assert "Y_vc (spatial) indexes Y, X and W" in text
    tiles = sum(i.name.startswith("x86.f32.tile") for i in intrinsics_of(AVX2))
    assert f"not x86.f32.tile_1x8 and {tiles - 1} more: " in text


def test_no_block_of_that_name() -> None:
    with pytest.raises(ScheduleError, match="no block is named 'Q'"):
        auto_tensorize(Schedule(single(KINDS["matmul"])), "Q", AVX2)


def test_the_choice_can_be_restricted() -> None:
    s = Schedule(single(KINDS["matmul"]))
    t = auto_tensorize(s, "Z", AVX2, intrinsics=[SMALL])
    assert t.chosen is not None and t.chosen.intrinsic is SMALL
    assert len(rank(block_of(KINDS["matmul"], "Z"), [SMALL], AVX2).candidates) == t.ranking.count
