"""The memory plan: what lives at the same time does not overlap, and the arena is not larger than it need be."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer
from tilewright.tir.memory_plan import ALIGN, plan_memory


def buffer(name: str, size: int) -> Buffer:
    return Buffer(name, (size,), DType.F32)


def rounded(b: Buffer) -> int:
    return -(-b.bytes // ALIGN) * ALIGN


def test_a_chain_needs_two_buffers() -> None:
    bs = [buffer(f"b{n}", 1000) for n in range(10)]
    calls = [(bs[n], bs[n + 1]) for n in range(9)]
    assert plan_memory(calls, bs).bytes == 2 * rounded(bs[0])


def test_only_what_is_asked_for_is_placed() -> None:
    a, b = buffer("a", 8), buffer("b", 8)
    assert plan_memory([(a, b)], [b]).offsets.keys() == {b}


def test_what_is_never_touched_needs_no_place() -> None:
    a = buffer("a", 8)
    assert plan_memory([], [a]).bytes == 0


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_buffers_alive_together_do_not_overlap(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    bs = [buffer(f"b{n}", data.draw(st.integers(1, 100))) for n in range(count)]
    calls = data.draw(
        st.lists(st.lists(st.sampled_from(bs), min_size=1, max_size=4), min_size=1, max_size=12)
    )
    plan = plan_memory(calls, bs)
    lives = {b: [t for t, c in enumerate(calls) if b in c] for b in bs}
    for b, at in plan.offsets.items():
        assert at % ALIGN == 0
        assert at + b.bytes <= plan.bytes
        for c, other in plan.offsets.items():
            together = min(lives[b]) <= max(lives[c]) and min(lives[c]) <= max(lives[b])
            if b is not c and together:
                assert at + b.bytes <= other or other + c.bytes <= at
    assert plan.bytes <= sum(rounded(b) for b in plan.offsets)
