"""Why candidates failed, in few lines."""

from tilewright.tuning.failures import Failure, by_reason, by_status

SPLIT = "Split(loop='k0_i_1', factors=(None, (2))): 12 does not divide 30\n  at: for k0_i_1\n  try: 5"


def failure(message: str, status: str = "build_error") -> Failure:
    return Failure(status, message, "k0_matmul", "tile", {"rows": 4, "vectors": 2})


def test_what_differs_in_numbers_is_one_reason() -> None:
    other = SPLIT.replace("12", "8").replace("k0_i_1", "k17_i_3")
    odd = failure("signal 11", "run_error")
    found = by_reason([odd, failure(SPLIT), failure(other), failure(SPLIT)])
    assert [(f.status, f.count) for f in found] == [("build_error", 3), ("run_error", 1)]
    assert found[0].message == SPLIT
    assert by_status(found) == {"build_error": 3, "run_error": 1}
    assert by_reason((*found, odd))[1].count == 2


def test_a_reason_is_one_line_without_the_arguments_of_a_step() -> None:
    assert failure(SPLIT).reason == "Split: 12 does not divide 30"
    for whole in ("ZeroDivisionError: by zero", "too much code", "Split(loop", "Split(1) fails", ""):
        assert failure(whole).reason == whole


def test_a_failure_is_told_with_an_example() -> None:
    assert str(failure(SPLIT)) == (
        "1 build error: Split: 12 does not divide 30 (such as tile: rows 4, vectors 2 of k0_matmul)"
    )
