"""The worked example of docs/adding-an-intrinsic.md, as it stands there: a family from outside of the compiler."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from intrinsic_programs import inputs_of, meaning_of, tensorized
from native import HAS_AVX2, kernels_of, run_native

from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.objects import compile_assembly
from tilewright.ir.expr import Scope
from tilewright.support.errors import ScheduleError
from tilewright.target import intrinsics
from tilewright.target.target import AVX2
from tilewright.tir.interp import run_func

DOC = Path(__file__).parents[2] / "docs" / "adding-an-intrinsic.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the code of the page defines."""
    family, instruction, program = re.findall(
        r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(family + instruction, names)
    monkeypatch.setattr(intrinsics.ADDED, "items", {})
    intrinsics.register_intrinsics(*names["FAMILY"])
    exec(program, names)
    return names


def test_the_program_means_what_it_says(example: dict[str, Any]) -> None:
    func = example["schedule"].module.funcs[0]
    x, y = inputs_of(func, "extreme", np.random.default_rng(0))
    expected = np.abs(x.astype(np.int64) - y).sum((1, 3))
    np.testing.assert_array_equal(run_func(func, x, y)[0], expected)
    if HAS_AVX2:
        np.testing.assert_array_equal(run_native(func, [x, y], AVX2)[0], expected)
    (kernel, *_), _ = kernels_of(func, AVX2)
    assert "vpsadbw" in compile_assembly(kernel_ir(kernel), AVX2)


@pytest.mark.skipif(not HAS_AVX2, reason="this machine has no AVX2")
@pytest.mark.parametrize("scope", [Scope.REGISTER, Scope.GLOBAL], ids=lambda s: s.value)
def test_the_instruction_keeps_its_meaning(example: dict[str, Any], scope: Scope) -> None:
    (intrinsic,) = example["FAMILY"]
    func = tensorized(intrinsic, scope)
    for kind in ("random", "extreme"):
        inputs = inputs_of(func, kind, np.random.default_rng(1))
        (expected,) = run_func(meaning_of(intrinsic, scope), *inputs)
        np.testing.assert_array_equal(run_native(func, inputs, AVX2)[0], expected)


def test_the_refusal_on_the_page(example: dict[str, Any]) -> None:
    f, schedule_of, single = example["f"], example["Schedule"], example["single"]
    schedule = schedule_of(single(f.finish(example["total"])))
    schedule.reorder("D_i", "D_t", "D_g", "D_k")
    schedule.decompose_reduction("D", "D_t")
    with pytest.raises(ScheduleError) as refused:
        schedule.tensorize("D_t", "x86.u8.psadbw")
    page = DOC.read_text(encoding="utf-8")
    message = str(refused.value).splitlines()
    assert "\n".join(f"    {line}" for line in message) in page
