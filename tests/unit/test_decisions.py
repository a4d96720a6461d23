"""Traces with sampling steps: what there is to choose, that every draw is a legal program with the same meaning, and
that all choices are drawn.
"""

import numpy as np
import pytest
from schedule_programs import PROGRAMS, check, conv, elementwise, matmul, outline

from tilewright.ir import layout
from tilewright.ir.expr import Scope
from tilewright.schedule.decisions import choices, draw_trace, sampling_steps
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    ComputeAt,
    Fuse,
    Parallel,
    Reorder,
    SampleCategorical,
    SampleComputeLocation,
    SamplePerfectTile,
    SetScope,
    Split,
    TransformLayout,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import Trace, parse_trace, print_trace, replay
from tilewright.search.trace_space import TraceSpace
from tilewright.support.errors import ScheduleError, UserError
from tilewright.target.target import BASELINE
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, Module, single

TILED: Trace = (
    SamplePerfectTile("C_i", 2, 4),
    SamplePerfectTile("C_j", 3, 2),
    Reorder(("C_i_0", "C_j_0", "C_k", "C_i_1", "C_j_1", "C_j_2")),
    SampleCategorical(((), (Unroll("C_i_1"),), (Vectorize("C_j_2"), Parallel("C_i_0")))),
)
MOVED: Trace = (
    SampleComputeLocation("Y"),
    SampleComputeLocation("Z"),
    SamplePerfectTile("W_j", 2, 5),
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def decide_trace(module: Module, trace: Trace, generator: np.random.Generator) -> Trace:
    return draw_trace(module, trace, generator).trace


def decisions(trace: Trace) -> tuple[object, ...]:
    return tuple(getattr(trace[n], "decision") for n in sampling_steps(trace))  # noqa: B009


def divisible() -> Func:
    return matmul(m=8, n=6, k=5)


# --------------------------------------------------------------------------------------------------------- the steps


def test_perfect_tile_splits_as_decided() -> None:
    step = SamplePerfectTile("C_j", 3, 2, (3, 1, 2))
    done = check(matmul(), step)
    assert step.names == ("C_j_0", "C_j_1", "C_j_2")
    assert [line.strip() for line in outline(done.body)][1:4] == [
        "for C_j_0 in range(3):",
        "for C_j_1 in range(1):",
        "for C_j_2 in range(2):",
    ]


def test_perfect_tiles_are_all_that_divide() -> None:
    assert choices(single(matmul()), SamplePerfectTile("C_j", 2, 3)) == ((2, 3), (3, 2), (6, 1))
    assert len(choices(single(matmul()), SamplePerfectTile("C_j", 3, 6))) == 9


def test_categorical_takes_the_steps_of_its_option() -> None:
    step = SampleCategorical(((), (Split("C_i", (None, 2)), Unroll("C_i_1"))), 1)
    plain = replay(single(matmul()), (Split("C_i", (None, 2)), Unroll("C_i_1"))).funcs[0]
    assert same_func(check(matmul(), step), plain)
    assert same_func(check(matmul(), SampleCategorical(step.options, 0)), matmul())


def test_categorical_offers_what_is_legal() -> None:
    step = SampleCategorical(((Vectorize("C_k"),), (Vectorize("C_j"),), ()))
    assert choices(single(matmul()), step) == (1, 2)


def test_location_of_a_chain() -> None:
    module = single(elementwise())
    assert choices(module, SampleComputeLocation("Z")) == ("root", "inline", "W_i", "W_j")
    assert choices(module, SampleComputeLocation("Y")) == ("root", "inline")  # Z and W are in two nests
    inlined = SampleComputeLocation("Z", "inline").apply(module)
    assert choices(inlined, SampleComputeLocation("Y")) == ("root", "inline", "W_i", "W_j")


@pytest.mark.parametrize("place", ["root", "inline", "W_i", "W_j"])
def test_location_does_what_was_decided(place: str) -> None:
    done = check(elementwise(), SampleComputeLocation("Z", place))
    lines = [line.strip() for line in outline(done.body)]
    assert any(line.startswith("Z(") for line in lines) == (place != "inline")
    if place == "W_i":
        assert same_func(done, ComputeAt("Z", "W_i").apply(single(elementwise())).funcs[0])


def test_location_of_an_output_is_where_it_is() -> None:
    assert choices(single(matmul()), SampleComputeLocation("C")) == ("root",)


def test_nested_steps_print_and_parse() -> None:
    trace: Trace = (
        SampleCategorical(
            (
                (),
                (Split("C_i", (None, 2)), SetScope("T", Scope.LOCAL)),
                (
                    TransformLayout("B", layout.Layout((layout.SplitDim(1, 2), layout.FuseDims(0, 2)))),
                    Fuse(("a", "b")),
                ),
            ),
            2,
        ),
        SampleCategorical(((Unroll("C_k"),),)),
        SampleComputeLocation("C", "inline"),
        SamplePerfectTile("C_i", 3, 8),
    )
    assert parse_trace(print_trace(trace)) == trace


def test_a_value_is_not_a_step() -> None:
    with pytest.raises(UserError, match="Layout is not known here"):
        parse_trace("SampleCategorical(options=((Layout(primitives=()),),), decision=0)")


def test_methods_of_a_schedule() -> None:
    s = Schedule(single(matmul(relu=True)))
    inner = s.sample_perfect_tile("D_j", 2, 3, (2, 3))[1]
    s.sample_categorical([[], [Vectorize(inner)]], 1)
    s.sample_compute_location("C", "D_i")
    check(matmul(relu=True), *s.trace)


# ------------------------------------------------------------------------------------------------- drawing decisions


def test_decide_is_deterministic() -> None:
    module = single(divisible())
    assert decide_trace(module, TILED, rng(3)) == decide_trace(module, TILED, rng(3))


@pytest.mark.parametrize("seed", range(8))
def test_a_drawn_trace_keeps_the_meaning(seed: int) -> None:
    for func, trace in ((divisible(), TILED), (elementwise(), MOVED)):
        drawn = decide_trace(single(func), trace, rng(seed))
        assert all(d is not None for d in decisions(drawn))
        check(func, *drawn)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_any_block_anywhere_keeps_the_meaning(name: str) -> None:
    func = PROGRAMS[name]
    blocks = [b.split("(")[0].strip() for b in outline(func.body) if "for " not in b]
    for seed in range(2):
        check(func, *decide_trace(single(func), tuple(SampleComputeLocation(b) for b in blocks), rng(seed)))


def all_ways(func: Func, trace: Trace) -> set[tuple[object, ...]]:
    """Every legal way to decide, by trying each."""
    found: set[tuple[object, ...]] = set()

    def go(at: int, done: tuple[Step, ...]) -> None:
        try:
            module = replay(single(func), done)
        except ScheduleError:
            return
        if at == len(trace):
            found.add(decisions(done))
            return
        step = trace[at]
        if isinstance(step, SamplePerfectTile | SampleCategorical | SampleComputeLocation):
            for d in choices(module, step):
                go(at + 1, (*done, type(step)(**{**fields_of(step), "decision": d})))
        else:
            go(at + 1, (*done, step))

    go(0, ())
    return found


def fields_of(step: Step) -> dict[str, object]:
    return {name: getattr(step, name) for name in step.__slots__}


@pytest.mark.parametrize(
    ("func", "trace"), [(divisible(), TILED), (elementwise(), MOVED)], ids=["tiled", "moved"]
)
def test_every_choice_is_drawn(func: Func, trace: Trace) -> None:
    ways = all_ways(func, trace)
    generator = rng(1)
    drawn = {decisions(decide_trace(single(func), trace, generator)) for _ in range(12 * len(ways))}
    assert drawn == ways


def test_choices_are_drawn_evenly() -> None:
    module, generator = single(matmul(n=12)), rng(2)
    trace = (SamplePerfectTile("C_j", 2, 12),)
    seen = [decisions(decide_trace(module, trace, generator))[0] for _ in range(1200)]
    counts = [seen.count(c) for c in choices(module, trace[0])]
    assert len(counts) == 6
    assert all(140 < n < 260 for n in counts)


def test_decisions_taken_already_stay() -> None:
    trace = (SamplePerfectTile("C_j", 2, 6, (3, 2)), SamplePerfectTile("C_i", 2, 8))
    for seed in range(4):
        assert decisions(decide_trace(single(divisible()), trace, rng(seed)))[0] == (3, 2)


def test_a_dead_end_is_decided_otherwise() -> None:
    # Unless the option splits the loop, the step after it has nothing to unroll.
    trace = (SampleCategorical(((), (), (), (Split("C_i", (None, 4)),))), Unroll("C_i_1"))
    for seed in range(4):
        assert decisions(decide_trace(single(divisible()), trace, rng(seed))) == (3,)


def test_no_way_through_is_refused_with_the_reason() -> None:
    trace = (SamplePerfectTile("C_i", 2, 8), SamplePerfectTile("C_j", 2, 6), Unroll("nowhere"))
    with pytest.raises(ScheduleError, match="no loop or block is named 'nowhere'"):
        decide_trace(single(divisible()), trace, rng())


# -------------------------------------------------------------------------------------------------------- design space


def space(func: Func, trace: Trace, count: int = 64) -> TraceSpace:
    return TraceSpace(func, trace, BASELINE, count=count)


def test_points_of_a_trace_space_build() -> None:
    made = space(divisible(), TILED, count=10)
    points = made.points()
    assert points.shape == (10, 3)
    assert len(np.unique(points, axis=0)) == 10
    assert [k.name for k in made.knobs] == ["decision0", "decision1", "decision2"]
    for point in points:
        values = made.decisions(point)
        assert all(values[k.name] in k.choices for k in made.knobs)
        check(divisible(), *made.build(values).trace)


def test_a_trace_space_draws_the_same_points_again() -> None:
    trace = (SamplePerfectTile("Y_v", 2, 6), SampleComputeLocation("P"))
    np.testing.assert_array_equal(space(conv(), trace, 6).points(), space(conv(), trace, 6).points())


def test_all_points_of_a_small_space_are_found() -> None:
    trace = (*TILED[:1], SampleComputeLocation("C"), *TILED[3:])
    made = space(matmul(m=8, relu=True), trace, count=200)
    assert len(made.points()) == len(all_ways(matmul(m=8, relu=True), trace))
    ranked, costs = made.ranked()
    np.testing.assert_array_equal(ranked, made.points())
    assert not np.isnan(costs).any()


def test_decided_steps_are_no_knobs() -> None:
    made = space(divisible(), (SamplePerfectTile("C_i", 2, 4, (2, 4)), SamplePerfectTile("C_j", 2, 3)))
    assert [k.choices for k in made.knobs] == [(0, 1, 2)]
    trace = made.build({"decision0": 1}).trace
    assert decisions(trace) == ((2, 4), (3, 2))


def test_a_point_outside_of_the_choices_is_refused() -> None:
    with pytest.raises(ScheduleError, match="decision0 is 3, but there are 3 choices"):
        space(divisible(), (SamplePerfectTile("C_j", 2, 3),)).build({"decision0": 3})


def test_a_trace_without_decisions_is_one_point() -> None:
    made = space(divisible(), (Split("C_i", (2, 4)),))
    assert made.points().shape == (1, 0)
    assert [str(s) for s in made.build({}).trace] == ["Split(loop='C_i', factors=(2, 4))"]
