"""All groupings of iterators that make a block an intrinsic, and why there is none."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_programs import block_of, conv, dot, einsum, quantized, tile

from tilewright.families.tensor.mapping import LIMIT, Mapping, Mappings, NoMapping, mappings, orders
from tilewright.families.tensor.match import matches
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Select
from tilewright.target.intrinsic import Intrinsic
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, IterKind

TILE = tile(2, 4)


def found(block: Block, intrinsic: Intrinsic = TILE) -> Mappings:
    out = mappings(block, intrinsic)
    assert isinstance(out, Mappings), out
    return out


def reason(block: Block, intrinsic: Intrinsic = TILE) -> str:
    out = mappings(block, intrinsic)
    assert isinstance(out, NoMapping)
    return out.reason


def texts(m: Mapping) -> dict[str, str]:
    """The letters of each group, with the names of the intrinsic's and the block's iterators cut to their axes."""
    return {g.role.name: "".join(it.var.name.rsplit("_v", 1)[1] for it in g.iters) for g in m.groups}


def outside(m: Mapping) -> str:
    return "".join(it.var.name.rsplit("_v", 1)[1] for it in m.outside)


def test_a_product_has_one_mapping_for_each_assignment_of_operands() -> None:
    block = block_of(einsum("mk,kn->mn", {"m": 4, "k": 5, "n": 8}), "Z")
    plain, swapped = found(block)
    assert texts(plain) == {"i": "m", "j": "n", "k": "k"}
    assert texts(swapped) == {"i": "n", "j": "m", "k": "k"}
    assert [str(e) for e in plain.operands] != [str(e) for e in swapped.operands]


def test_a_batch_stays_outside() -> None:
    block = block_of(einsum("bmk,bkn->bmn", {"b": 3, "m": 4, "k": 5, "n": 8}), "Z")
    for m in found(block):
        assert outside(m) == "b"


def test_every_subset_in_every_order_is_a_mapping() -> None:
    block = block_of(conv((6, 6), (3, 3)), "Y")
    all_of = found(block)
    rows = {texts(m)["i"] for m in all_of.choices[0]}
    assert rows == {"".join(p) for n in (1, 2, 3) for p in itertools.permutations("nhw", n)}
    assert {texts(m)["k"] for m in all_of.choices[0]} == {
        "".join(p) for n in (1, 2, 3) for p in itertools.permutations("crs", n)
    }
    assert len(all_of) == 2 * 15 * 1 * 15 == len(list(all_of))
    # What is not chosen stays outside, with the group's iterator of extent 1.
    some = next(m for m in all_of.choices[0] if texts(m) == {"i": "wh", "j": "o", "k": "c"})
    assert outside(some) == "ngrs"


@pytest.mark.parametrize(
    "func",
    [
        conv((7,), (3,)),
        conv((5, 6), (3, 2)),
        conv((4, 5, 4), (2, 3, 2)),
        conv((6, 6), (3, 3), channels=(4, 6), group=2),
        conv((9, 9), (3, 3), dilation=2),
        conv((9, 9), (3, 3), stride=2),
        conv((5, 5), (3, 3), pad=1),
        conv((5, 5), (3, 3), pad=1, inline=True),
    ],
    ids=["1d", "2d", "3d", "grouped", "dilated", "strided", "padded", "padded_inline"],
)
def test_convolutions_of_every_kind_have_mappings(func: Func) -> None:
    block = block_of(func, "Y")
    all_of = found(block)
    assert len(all_of.choices) == 2
    for m in all_of.choices[0]:
        assert texts(m)["j"] == "o"
        assert set(texts(m)["i"]) <= set("ndhw") and set(texts(m)["k"]) <= set("crst")
        used = [it for g in m.groups for it in g.iters]
        assert sorted(it.var.name for it in (*used, *m.outside)) == sorted(it.var.name for it in block.iters)


def test_a_group_axis_indexes_everything_and_stays_outside() -> None:
    block = block_of(conv((6, 6), (3, 3), channels=(4, 6), group=2), "Y")
    assert all("g" in outside(m) for m in found(block))


def test_inlined_padding_is_an_operand_to_be_computed_first() -> None:
    block = block_of(conv((5, 5), (3, 3), pad=1, inline=True), "Y")
    assert isinstance(found(block).choices[0].match.operands[1], Select)


def test_a_depthwise_convolution_has_none_and_the_reason_names_its_channel() -> None:
    block = block_of(conv((6, 6), (3, 3), channels=(4, 4), group=4), "Y")
    # With one output channel per group there is an iterator `o`, but of extent 1: padded to a tile it would still work.
    assert all(g.extent == 1 for m in found(block).choices[0] for g in m.groups if g.role.name == "j")
    b = FuncBuilder("depthwise")
    x, w = b.param("X", (4, 6), DType.F32), b.param("W", (4, 3), DType.F32)
    func = b.finish(b.reduce("Y", (4, 4), (3,), lambda c, h, r: (x[c, h + r], w[c, r])))
    assert reason(block_of(func, "Y")) == (
        "no spatial iterator of Y indexes Y and W and nothing else, as j of any.f32.tile_2x4 does: "
        "Y_vc (spatial) indexes Y, X and W; Y_vh (spatial) indexes Y and X; Y_vr (reduce) indexes X and W"
    )


def test_pooling_has_none_because_it_computes_something_else() -> None:
    b = FuncBuilder("pool")
    x = b.param("X", (4, 6), DType.F32)
    func = b.finish(b.reduce("Y", (4, 4), (3,), lambda c, h, r: x[c, h + r], "max"))
    assert reason(block_of(func, "Y")) == ("Y computes Y = max(Y, X), any.f32.tile_2x4 C = fma(A, B, C)")


def test_two_roundings_are_not_one() -> None:
    b = FuncBuilder("f")
    x, y = b.param("X", (4, 6), DType.F32), b.param("W", (6, 8), DType.F32)
    func = b.finish(b.reduce("Y", (4, 8), (6,), lambda i, j, k: x[i, k] * y[k, j]))
    assert "Y + X * W" in reason(block_of(func, "Y"))


@pytest.mark.parametrize("transposed", [False, True])
def test_casts_and_types_of_operands_decide_which_is_which(transposed: bool) -> None:
    (only,) = found(block_of(quantized(4, 16, 8, DType.U8, DType.I8, transposed=transposed), "Y"), dot())
    assert texts(only) == {"j": "j", "q": "k"}
    assert outside(only) == "i"
    # The other way round, rows are the lanes.
    (other,) = found(block_of(quantized(4, 16, 8, DType.I8, DType.U8, transposed=transposed), "Y"), dot())
    assert texts(other) == {"j": "i", "q": "k"}


def test_types_must_be_equal() -> None:
    assert "(of i32, i8 and i32, i8, u8)" in reason(
        block_of(quantized(4, 16, 8, DType.I8, DType.I8), "Y"), dot()
    )


def test_extents_are_padded_to_whole_tiles() -> None:
    block = block_of(einsum("mk,kn->mn", {"m": 5, "k": 3, "n": 9}), "Z")
    m = next(iter(found(block, tile(4, 8, 2))))
    assert [(g.extent, g.padded) for g in m.groups] == [(5, 8), (9, 16), (3, 4)]
    assert m.waste == pytest.approx(1 - 5 * 9 * 3 / (8 * 16 * 4))
    assert str(m) == "i = Z_vm of 5 in 8, j = Z_vn of 9 in 16, k = Z_vk of 3 in 4"


def test_iterators_of_extent_1_join_only_where_there_is_no_other() -> None:
    block = block_of(einsum("amk,kn->amn", {"a": 1, "m": 4, "k": 3, "n": 1}), "Z")
    plain = found(block).choices[0]
    assert [texts(m) for m in plain] == [{"i": "m", "j": "n", "k": "k"}]


def test_there_are_not_more_than_the_limit() -> None:
    rows, depth = "abcdef", "uvwxyz"
    extents = dict.fromkeys((*rows, *depth, "n"), 2)
    block = block_of(einsum(f"{rows}{depth},{depth}n->{rows}n", extents), "Z")
    for choice in found(block).choices:
        assert 0 < len(choice) <= LIMIT


def test_orders_are_restricted_in_two_stages() -> None:
    iters = block_of(einsum("abck,kn->abcn", dict.fromkeys("abckn", 2)), "Z").iters[:3]
    assert len(orders(iters)) == 15 == sum(math.perm(3, n) for n in (1, 2, 3))
    assert len(orders(iters, 1)) == 7
    assert len(orders(iters, 2)) == 6
    assert set(orders(iters, 2)) < set(orders(iters, 1)) < set(orders(iters))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_random_einsum_has_a_mapping_exactly_if_each_role_has_an_iterator(data: st.DataObject) -> None:
    letters = "abcdef"
    kinds = {c: data.draw(st.sampled_from(["batch", "row", "col", "sum", "none"])) for c in letters}
    where = {"batch": (1, 1, 1), "row": (1, 0, 1), "col": (0, 1, 1), "sum": (1, 1, 0), "none": (0, 0, 0)}
    order = data.draw(st.permutations(letters))
    terms = ["".join(c for c in order if where[kinds[c]][n]) for n in range(3)]
    if "sum" not in kinds.values():
        return  # nothing is summed: no reduction
    block = block_of(einsum(f"{terms[0]},{terms[1]}->{terms[2]}", dict.fromkeys(letters, 2)), "Z")
    out = mappings(block, TILE)
    count = {k: sum(v == k for v in kinds.values()) for k in where}
    if not (count["row"] and count["col"]):
        assert isinstance(out, NoMapping)
        return
    assert isinstance(out, Mappings)
    groups = [
        sum(math.perm(n, k) for k in range(1, n + 1)) for n in (count["row"], count["col"], count["sum"])
    ]
    assert len(out) == 2 * math.prod(groups)
    for m in itertools.islice(out, 50):
        for g in m.groups:
            assert all((it.kind is IterKind.REDUCE) == (g.role.kind is IterKind.REDUCE) for it in g.iters)


def test_one_buffer_can_be_both_operands() -> None:
    b = FuncBuilder("gram")
    x = b.param("X", (4, 6), DType.F32)
    func = b.finish(b.reduce("Y", (4, 4), (6,), lambda i, j, k: (x[i, k], x[j, k])))
    assert len(found(block_of(func, "Y"))) == 2


def test_a_square_has_no_columns() -> None:
    b = FuncBuilder("squares")
    x = b.param("X", (4, 6), DType.F32)
    func = b.finish(b.reduce("Y", (4,), (6,), lambda i, k: (x[i, k], x[i, k])))
    assert "no spatial iterator" in reason(block_of(func, "Y"))


def test_more_than_one_store_is_no_match() -> None:
    block = block_of(einsum("mk,kn->mn", {"m": 2, "k": 2, "n": 2}), "Z")
    from_for = Block("B", block.iters, block.bindings, block)
    assert matches(from_for, TILE) == "B is more than one store"
