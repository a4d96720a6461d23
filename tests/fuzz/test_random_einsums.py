"""Random einsums, tensorized by random mappings and by the best one, mean what they meant.

Letters play a random role (batch, row, column, summed, summed in one operand only) and have random extents, so tiles
fit or are padded, groups are of any length, and operands are in any layout.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native import BEST, HAS_AVX2, run_native
from tests.unit.tensor_programs import block_of, einsum, same_order
from tilewright.families.tensor.mapping import Mapping, Mappings, mappings
from tilewright.families.tensor.materialize import apply_mapping
from tilewright.families.tensor.tensorize import auto_tensorize
from tilewright.schedule.schedule import Schedule
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.intrinsics import find_intrinsic
from tilewright.target.target import AVX2
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.verify import verify_func

TILES = [i for i in map(find_intrinsic, ("x86.f32.tile_2x8", "x86.f32.tile_3x8", "x86.f32.tile_2x16")) if i]
WHERE = {"batch": (1, 1, 1), "row": (1, 0, 1), "column": (0, 1, 1), "sum": (1, 1, 0), "sum_one": (1, 0, 0)}


@st.composite
def einsums(draw: st.DrawFn) -> Func:
    letters = "abcdef"[: draw(st.integers(3, 6))]
    roles = ["row", "column", "sum", *(draw(st.sampled_from(list(WHERE))) for _ in letters[3:])]
    extents = {c: draw(st.integers(2, 5)) for c in letters}
    terms: list[str] = []
    for n in range(3):
        mine = [c for c, role in zip(letters, roles, strict=True) if WHERE[role][n]]
        terms.append("".join(draw(st.permutations(mine))))
    return einsum(f"{terms[0]},{terms[1]}->{terms[2]}", extents)


def compare(func: Func, done: Func, *, exact: bool, native: bool) -> None:
    verify_func(done)
    rng = np.random.default_rng(1)
    feeds = [rng.standard_normal(p.shape).astype(np.float32) for p in func.params if p not in func.outputs]
    (want,), (got,) = run_func(func, *feeds), run_func(done, *feeds)
    if exact:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    if native and HAS_AVX2:
        np.testing.assert_array_equal(run_native(done, feeds, BEST)[0], got)


@settings(max_examples=40, deadline=None)
@given(einsums(), st.sampled_from(TILES), st.data())
def test_any_mapping_means_the_same(func: Func, tile: Intrinsic, data: st.DataObject) -> None:
    found = mappings(block_of(func, "Z"), tile)
    assert isinstance(found, Mappings), found
    choice = data.draw(st.sampled_from(found.choices))
    at = [data.draw(st.integers(0, len(g) - 1)) for g in choice.groups]
    mapping: Mapping = choice.mapping(at)
    s = Schedule(single(func))
    apply_mapping(s, "Z", mapping, tile)
    exact = same_order(mapping, block_of(func, "Z"))
    compare(func, s.func, exact=exact, native=data.draw(st.integers(0, 4)) == 0)


@settings(max_examples=15, deadline=None)
@given(einsums(), st.booleans())
def test_the_best_mapping_means_the_same(func: Func, native: bool) -> None:
    s = Schedule(single(func))
    t = auto_tensorize(s, "Z", AVX2)
    assert t.chosen is not None, t.explain()
    compare(func, s.func, exact=False, native=native)
