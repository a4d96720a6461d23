"""The worked example of docs/adding-a-family.md, as it stands there: a family from outside of the compiler."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native import HAS_AVX2, run_native

from tilewright.families import families
from tilewright.families.space import KnobValues
from tilewright.ir.dtype import DType
from tilewright.search.default import choose_schedule, schedule_as, spaces
from tilewright.support.errors import ScheduleError
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func

DOC = Path(__file__).parents[2] / "docs" / "adding-a-family.md"


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    monkeypatch.setattr(families.ADDED, "items", {})
    families.register_family("written_out", names["written_out_space"])
    return names


def doubled(rows: int, cols: int) -> Func:
    b = FuncBuilder("doubled")
    x = b.param("X", (rows, cols), DType.F32)
    return b.finish(b.compute("Y", (rows, cols), lambda i, j: x[i, j] + x[i, j]))


def test_the_family_is_asked_with_all_others_and_taken_where_it_is_the_cheapest() -> None:
    func = doubled(8, 64)
    assert [s.family for s in spaces(func, AVX2)] == ["stream", "written_out"]
    chosen = choose_schedule(func, AVX2)
    assert (chosen.family, chosen.decisions) == ("written_out", {"vectors": 4})


@pytest.mark.parametrize("vectors", [1, 2, 4])
def test_every_point_means_the_same(vectors: int) -> None:
    func = doubled(3, 64)
    s = schedule_as(func, AVX2, frozenset(), "written_out", {"vectors": vectors})
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_array_equal(run_func(s.func, x)[0], x + x)
    if HAS_AVX2:
        np.testing.assert_array_equal(run_native(s.func, [x], AVX2)[0], x + x)


def test_after_a_refusal_the_next_cheapest_point_of_all_families_has_its_turn(
    example: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, refused = example["WrittenOutSpace"].build, {4}

    def refusing(space: Any, decisions: KnobValues) -> Any:
        if decisions["vectors"] in refused:
            raise ScheduleError("not this one")
        return build(space, decisions)

    monkeypatch.setattr(example["WrittenOutSpace"], "build", refusing)
    assert choose_schedule(doubled(8, 64), AVX2).decisions == {"vectors": 2}
    refused |= {1, 2}
    assert choose_schedule(doubled(8, 64), AVX2).family == "stream"
