"""Every tensor intrinsic: its meaning, the tensorized program and the native code agree to the bit.

Integers exactly, floats with their special values; x86 on this machine, Arm under qemu.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aarch64 import needs_qemu, run_aarch64
from intrinsic_programs import inputs_of, meaning_of, tensorized
from native import HAS_AVX2, bits, kernels_of, run_native

from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.objects import compile_assembly
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope
from tilewright.schedule.steps.tensorize import Tensorize
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError, UserError
from tilewright.support.processor import cpu_features
from tilewright.target import intrinsics
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.intrinsics import (
    INTRINSICS,
    byte_products,
    find_intrinsic,
    intrinsics_of,
    register_intrinsics,
)
from tilewright.target.target import (
    AARCH64,
    AARCH64_SVE_256,
    AVX2,
    AVX512,
    AVX512_VNNI,
    AVX_VNNI,
    AVX_VNNI_INT8,
    BASELINE,
    Target,
)
from tilewright.tir.compare import same_func
from tilewright.tir.func import single
from tilewright.tir.interp import run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.verify import verify_func

ALL = list(INTRINSICS)


def scopes_of(intrinsic: Intrinsic) -> list[Scope]:
    """Where the accumulators may be. (Local memory is as global memory to the code generator.)"""
    return sorted(intrinsic.operands[0].scopes - {Scope.LOCAL}, key=lambda s: s.value)


def cases(*, arm: bool) -> list[object]:
    found = [i for i in ALL if i.name.startswith(("arm.", "sve.")) == arm]
    return [pytest.param(i, s, id=f"{i.name}-{s.value}") for i in found for s in scopes_of(i)]


@pytest.mark.parametrize(("intrinsic", "scope"), [*cases(arm=False), *cases(arm=True)])
def test_tensorize_keeps_the_meaning(intrinsic: Intrinsic, scope: Scope) -> None:
    func, done = meaning_of(intrinsic, scope), tensorized(intrinsic, scope)
    verify_func(func)
    verify_func(done)
    assert same_func(parse_func(print_func(done)), done)
    for kind in ("random", "extreme"):
        inputs = inputs_of(func, kind, np.random.default_rng(1))
        np.testing.assert_array_equal(bits(run_func(done, *inputs)[0]), bits(run_func(func, *inputs)[0]))


def test_operands_that_may_have_other_values_are_refused() -> None:
    intrinsic = find_intrinsic("x86.u8i8.bounded4_8")
    assert intrinsic is not None
    func = meaning_of(intrinsic, Scope.REGISTER, is_clamped=False)
    with pytest.raises(ScheduleError, match="B may have values that are not within -64 and 64"):
        replay(single(func), (Tensorize(intrinsic.loops[0].var.name, intrinsic.name),))


@pytest.mark.skipif(not HAS_AVX2, reason="this machine has no AVX2")
@pytest.mark.parametrize(("intrinsic", "scope"), cases(arm=False))
def test_x86_native_code(intrinsic: Intrinsic, scope: Scope) -> None:
    func = tensorized(intrinsic, scope)
    for kind in ("random", "extreme"):
        inputs = inputs_of(func, kind, np.random.default_rng(2))
        np.testing.assert_array_equal(
            bits(run_native(func, inputs, AVX2)[0]), bits(run_func(func, *inputs)[0])
        )


def _beyond_avx2() -> list[object]:
    """Intrinsics of processors that have more than AVX2, on a target that has them."""
    found = {"vnni": AVX512_VNNI, "avx512": AVX512_VNNI, "avxvnni": AVX_VNNI, "avxvnniint8": AVX_VNNI_INT8}
    return [
        pytest.param(
            i,
            t,
            id=i.name,
            marks=pytest.mark.skipif(
                not cpu_features() >= t.features, reason=f"this machine has not all of {sorted(t.features)}"
            ),
        )
        for i in ALL
        if i.emitter is not None and (t := found.get(i.name.split(".")[0])) is not None
    ]


@pytest.mark.parametrize("scope", [Scope.REGISTER, Scope.GLOBAL], ids=lambda s: s.value)
@pytest.mark.parametrize(("intrinsic", "target"), _beyond_avx2())
def test_native_code_beyond_avx2(intrinsic: Intrinsic, target: Target, scope: Scope) -> None:
    func = tensorized(intrinsic, scope)
    for kind in ("random", "extreme"):
        inputs = inputs_of(func, kind, np.random.default_rng(2))
        found, wanted = run_native(func, inputs, target)[0], run_func(func, *inputs)[0]
        np.testing.assert_array_equal(found, wanted)


@needs_qemu
@pytest.mark.parametrize(("intrinsic", "scope"), cases(arm=True))
def test_arm_code_under_qemu(intrinsic: Intrinsic, scope: Scope, tmp_path: Path) -> None:
    func = tensorized(intrinsic, scope)
    for kind in ("random", "extreme"):
        inputs = inputs_of(func, kind, np.random.default_rng(3))
        target = AARCH64_SVE_256 if intrinsic.name.startswith("sve.") else AARCH64
        (found,) = run_aarch64(func, inputs, tmp_path, target)
        np.testing.assert_array_equal(bits(found), bits(run_func(func, *inputs)[0]))


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("x86.f32.tile_2x16", "vfmadd231ps"),
        ("x86.i16.dot2_8", "vpmaddwd"),
        ("vnni.u8i8.dot4_16", "vpdpbusd"),
        ("vnni.i16.dot2_16", "vpdpwssd"),
        ("avxvnni.u8i8.dot4_8", "{vex}\tvpdpbusd\t"),
        ("avxvnni.i16.dot2_8", "{vex}\tvpdpwssd\t"),
        ("avxvnni.i8u4.dot8_8", "{vex}\tvpdpbusd\t"),
        ("avxvnni.i8u8.dot8_8", "{vex}\tvpdpbusd\t"),
        ("avxvnniint8.i8i8.dot4_8", "vpdpbssd\t"),
        ("avxvnniint8.u8u8.dot4_8", "vpdpbuud\t"),
        ("arm.f32.tile_4x8", "fmla"),
        ("arm.i8i8.sdot", "sdot"),
        ("arm.u8u8.udot", "udot"),
        ("arm.u8i8.usdot", "usdot"),
        ("arm.i8u4.dot8", "sdot"),
        ("arm.bf16.mlal2", "bfmlalt"),
        ("arm.i8i8.smmla", "smmla"),
        ("arm.u8u8.ummla", "ummla"),
        ("arm.u8i8.usmmla", "usmmla"),
        ("sve.f32.tile_4x8", "fmla\tz"),
        ("sve.i8i8.sdot", "sdot\tz"),
        ("sve.u8u8.udot", "udot\tz"),
        ("sve.u8i8.usdot", "usdot\tz"),
        ("sve.i8u4.dot8", "sdot\tz"),
    ],
)
def test_the_instruction_is_there(name: str, instruction: str) -> None:
    intrinsic = find_intrinsic(name)
    assert intrinsic is not None
    special = {
        "arm": AARCH64,
        "sve": AARCH64_SVE_256,
        "vnni": AVX512_VNNI,
        "avxvnni": AVX_VNNI,
        "avxvnniint8": AVX_VNNI_INT8,
    }
    target = special.get(name.split(".")[0], AVX2)
    (kernel,), _ = kernels_of(tensorized(intrinsic, Scope.REGISTER), target)
    assert instruction in compile_assembly(kernel_ir(kernel), target)


@pytest.mark.parametrize("scope", [Scope.REGISTER, Scope.GLOBAL], ids=lambda s: s.value)
def test_a_target_without_the_instruction_runs_the_body(scope: Scope) -> None:
    intrinsic = find_intrinsic("x86.i16.dot2_8")
    assert intrinsic is not None
    func = tensorized(intrinsic, scope)
    inputs = inputs_of(func, "extreme", np.random.default_rng(4))
    np.testing.assert_array_equal(run_native(func, inputs, BASELINE)[0], run_func(func, *inputs)[0])


def test_names_are_unique_and_families_belong_to_one_target() -> None:
    assert len({i.name for i in ALL}) == len(ALL)
    narrow, wide = (AVX2, AVX_VNNI, AVX_VNNI_INT8), (AVX512, AVX512_VNNI)
    families = {
        "arm": {AARCH64, AARCH64_SVE_256},
        "sve": {AARCH64_SVE_256},
        "x86": {*narrow, *wide},
        "avx512": {*wide},
        "vnni": {AVX512_VNNI},
        "avxvnni": {AVX_VNNI, AVX_VNNI_INT8},
        "avxvnniint8": {AVX_VNNI_INT8},
    }
    for i in ALL:
        owners = {t for t in (*narrow, *wide, AARCH64, AARCH64_SVE_256) if i in intrinsics_of(t)}
        assert owners == families[i.name.split(".")[0]], i.name


def test_targets_know_which_bytes_they_multiply() -> None:
    assert byte_products(AVX2) == byte_products(AVX512) == frozenset()
    both = {(DType.U8, DType.I8), (DType.I8, DType.U8)}
    assert byte_products(AVX512_VNNI) == byte_products(AVX_VNNI) == both
    assert byte_products(AVX_VNNI_INT8) == byte_products(AARCH64) | both
    assert byte_products(AARCH64) == {(DType.U8, DType.I8), (DType.I8, DType.I8), (DType.U8, DType.U8)}


def test_a_family_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intrinsics.ADDED, "items", {})
    family = (replace(ALL[0], name="vendor.tile"),)
    register_intrinsics(*family)
    register_intrinsics(*family)
    assert find_intrinsic("vendor.tile") is family[0]
    assert intrinsics.ADDED.items == {"vendor.tile": family[0]}
    with pytest.raises(UserError, match=r"there is another intrinsic"):
        register_intrinsics(replace(ALL[0], name="vendor.other"), ALL[0])
    assert list(intrinsics.ADDED.items) == ["vendor.tile"]
