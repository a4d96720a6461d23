"""The tree of programs, whatever its leaves are."""

from tilewright.support.program import Branch, ProgramTree, While, conditions, leaves, map_program

NESTED: ProgramTree[int, str] = (1, 2, Branch("a", (3, While("b", (4, 5))), ()), 6)


def test_leaves_and_conditions_come_in_program_order() -> None:
    assert list(leaves(NESTED)) == [1, 2, 3, 4, 5, 6]
    assert list(conditions(NESTED)) == ["a", "b"]


def test_runs_of_leaves_are_mapped_together() -> None:
    joined = map_program(NESTED, lambda run: ["+".join(map(str, run))], str.upper)
    assert joined == ("1+2", Branch("A", ("3", While("B", ("4+5",))), ()), "6")


def test_leaves_may_become_none_or_several() -> None:
    assert map_program((1, 2, 3), lambda run: [n for n in run for _ in range(n - 1)], str) == (2, 3, 3)
