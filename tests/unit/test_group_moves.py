"""Group boundaries as moves of tuning: which differ, and of which part of the graph which is taken."""

from tilewright.driver.decisions import Group, Join
from tilewright.driver.trace import ProgramTrace
from tilewright.families.space import Space
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tuning.groups import mixed_groups, other_groups
from tilewright.tuning.structures import MeasuredStructure

A, B, C, D = (Group(v, (v,)) for v in "abcd")
AB, CD = Group("b", ("a", "b")), Group("d", ("c", "d"))


def trace(*groups: Group, joins: tuple[Join, ...] = ()) -> ProgramTrace:
    return ProgramTrace().with_section("groups", groups).with_section("joins", joins)


def chosen(*found: MeasuredStructure) -> set[Group] | None:
    mixed = mixed_groups(found)
    return None if mixed is None else {d for d in mixed.sections["groups"] if isinstance(d, Group)}


def test_groups_that_eagerness_does_not_change_are_no_move() -> None:
    own = trace(AB, C, D)
    assert not list(other_groups(own, lambda eagerness, refine: own))
    more = list(other_groups(own, lambda eagerness, refine: trace(AB, CD) if eagerness > 1 else own))
    assert [s.why for s in more] == ["fused more"]
    assert set(more[0].trace.sections) == {"groups"}  # the rest is decided anew


def test_what_a_model_of_seconds_would_fuse_is_a_move_too() -> None:
    def model(space: Space, func: Func, target: Target, constants: frozenset[str]) -> Space:
        raise AssertionError("nothing is estimated here")

    own = trace(AB, C, D)
    found = list(
        other_groups(own, lambda eagerness, refine: trace(AB, CD) if refine is model else own, model)
    )
    assert [s.why for s in found] == ["fused by the model"]


def test_of_each_part_the_quickest_groups_are_taken() -> None:
    own = MeasuredStructure(trace(AB, C, D), {"b": 1.0, "c": 0.6, "d": 0.6})
    less = MeasuredStructure(trace(A, B, C, D), {"a": 0.3, "b": 0.3, "c": 0.6, "d": 0.6})
    more = MeasuredStructure(trace(AB, CD), {"b": 1.0, "d": 0.9})
    assert chosen(own, less, more) == {A, B, CD}


def test_what_is_no_gain_beyond_doubt_stays() -> None:
    own = MeasuredStructure(trace(AB, C, D), {"b": 1.0, "c": 0.6, "d": 0.6})
    less = MeasuredStructure(trace(A, B, C, D), {"a": 0.5, "b": 0.49, "c": 0.6, "d": 0.6})
    assert chosen(own, less) is None


def test_groups_that_are_joined_are_one_part() -> None:
    """The time of a joined Func is of both of its groups: neither can be taken alone."""
    joined = trace(AB, C, D, joins=(Join("b", "c"),))
    own = MeasuredStructure(joined, {JoinFuncs("b", "c").name: 1.0, "d": 0.5})
    less = MeasuredStructure(trace(A, B, C, D), {"a": 0.2, "b": 0.2, "c": 0.4, "d": 0.5})
    assert chosen(own, less) == {A, B, C, D}
