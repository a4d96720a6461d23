"""ONNX's own operator suite: a sample of it passes, and what is wrong is reported. All of it: `make onnx-suite`."""

import unittest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import BackendTest
from onnx.backend.test.case.test_case import TestCase

from benchmarks.onnx_node_cases import as_value, load_cases, op_of, pack_case, run_case, unpack_case
from benchmarks.onnx_suite import Failure, failures_table, main, run_cases
from tilewright.backend import TilewrightBackend
from tilewright.support.frames import pack, unpack

EVERY = 48  # the sample is every 48th case, in the order of their names
RANDOM = ("Bernoulli",)  # the numbers are one engine's, and ONNX does not say which ones are right


@pytest.fixture(scope="module")
def cases() -> dict[str, TestCase]:
    return load_cases()


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (12, 24, 36))])
def test_a_sample_passes(cases: dict[str, TestCase], first: int) -> None:
    sample = [n for n in sorted(cases)[first::EVERY] if op_of(n, cases) not in RANDOM]
    assert len(sample) > 37
    found = dict(run_cases((n, pack_case(cases[n])) for n in sample))
    assert found.keys() == set(sample)
    assert {n: reason for n, reason in found.items() if reason} == {}


# ------------------------------------------------------------------------------------------------- what counts as wrong


def changed(change: Callable[[Any], Any]) -> type[Backend]:
    """A backend whose results are changed afterwards."""

    class Rep(BackendRep):
        def __init__(self, inner: BackendRep) -> None:
            self._inner = inner

        def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
            return tuple(map(change, self._inner.run(inputs)))

    class Changed(TilewrightBackend):
        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
            return Rep(super().prepare(model, device, **kwargs))

    return Changed


def same(value: Any) -> Any:
    return value


def far(value: Any) -> Any:
    return value * np.array(1.01, value.dtype)


def near(value: Any) -> Any:
    return value * np.array(1.0001, value.dtype)


def wide(value: Any) -> Any:
    return value.astype(np.float64)


def flat(value: Any) -> Any:
    return value.reshape(-1)


def short(value: Any) -> Any:
    return value[:-1]


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("test_add", same, ""),
        ("test_add", near, ""),
        ("test_add", far, "wrong: Not equal to tolerance"),
        ("test_add", wide, "wrong: Items are not equal: ACTUAL: dtype('float64')"),
        ("test_add", flat, "wrong:"),
        ("test_add", lambda v: None, "AttributeError"),
        ("test_identity_sequence", same, ""),
        ("test_identity_sequence", short, "wrong: a sequence of 1, not of 2"),
        ("test_identity_sequence", lambda s: [far(v) for v in s], "wrong: Not equal to tolerance"),
    ],
)
def test_a_wrong_result_is_a_failure(
    cases: dict[str, TestCase], name: str, change: Callable[[Any], Any], reason: str
) -> None:
    found = run_case(cases[name], changed(change))
    assert found.startswith(reason) and bool(found) == bool(reason), found


def test_a_case_survives_the_way_to_a_worker(cases: dict[str, TestCase]) -> None:
    for name in (
        "test_identity_sequence",
        "test_identity_opt",
        "test_cast_FLOAT_to_INT4",
        "test_string_split_basic",
    ):
        case = cases[name]
        again = unpack_case(*unpack(pack_case(case)))
        assert again.model == case.model and (again.rtol, again.atol) == (case.rtol, case.atol)
        values = [[[as_value(v) for v in side] for side in data_set] for data_set in case.data_sets or ()]
        assert str(again.data_sets) == str(values)


def test_a_worker_that_dies_or_hangs_fails_one_case() -> None:
    orders = ["pass", "die", "pass 2", "hang", "leave", "pass"]
    numbered = [(f"{i} {order}", pack(order)) for i, order in enumerate(orders)]
    found = dict(run_cases(numbered, seconds=5, module="tests.dying_worker"))
    assert found == {
        "0 pass": "",
        "1 die": "the process ended with SIGSEGV",
        "2 pass 2": "pass 2",
        "3 hang": "no result after 5 s",
        "4 leave": "the process ended with status 3",
        "5 pass": "",
    }


# -------------------------------------------------------------------------------------------------------- the command


def test_failures_are_grouped_by_operator_and_reason() -> None:
    failures = [Failure("a", "Op", "x|y"), Failure("b", "Op", "x|y"), Failure("c", "Abs", "z")]
    lines = failures_table(failures, {"Op": 5, "Abs": 1}).splitlines()
    assert lines[2:] == ["| Abs | 1 | 1 | z |", "| Op | 2 | 5 | x\\|y |"]


def test_operators_of_expanded_cases(cases: dict[str, TestCase]) -> None:
    assert op_of("test_elu", cases) == "Elu"
    expanded = next(n for n in cases if n.startswith("test_elu_expanded"))
    assert op_of(expanded, cases) == "Elu"


def test_the_command_counts_and_fails_below_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner()
    passed = run.invoke(main, ["--filter", "^test_add(_bcast)?$"])
    assert (passed.exit_code, passed.stdout) == (0, "2 of 2\n")

    def half(cases: Any, workers: int) -> Any:
        return ((name, "" if i % 2 else "because") for i, (name, _) in enumerate(cases))

    monkeypatch.setattr("benchmarks.onnx_suite.run_cases", half)
    failed = run.invoke(main, ["--filter", "^test_add(_bcast)?$", "--list-failures"])
    assert (failed.exit_code, failed.stdout) == (1, "test_add: because\n1 of 2\n")
    assert run.invoke(main, ["--filter", "nonsense"]).exit_code == 2


def test_the_official_runner_runs_unchanged() -> None:
    runner = BackendTest(TilewrightBackend, __name__).include(
        r"^test_(add|softmax_axis_0|identity_sequence)_cpu$"
    )
    result = unittest.TestResult()
    runner.test_suite.run(result)
    assert (result.errors, result.failures) == ([], [])
    assert result.testsRun - len(result.skipped) == 3
