"""Whatever a candidate does, its trial ends, and its end has a name."""

import os
import signal
import threading
import time
from collections.abc import Generator
from dataclasses import replace

import numpy as np
import pytest

from tests.native import BEST
from tests.tile_space import gemm, tile_spaces
from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import compile_object
from tilewright.support.artifact import KernelCall, Place, Slot, TensorSpec
from tilewright.tir.func import Func
from tilewright.tuning.candidate import DEFAULT, PLAIN, Maker, Task, tensor_spec
from tilewright.tuning.candidates import Candidates
from tilewright.tuning.trial import Candidate, Experiment, TrialStatus, find_difference, random_input
from tilewright.tuning.trials import Trials

FUNC = gemm(16, 16, 16)
TASK = Task("task", FUNC, frozenset(), BEST, tile_spaces)

HEAD = "define void @kernel0(ptr %args, i64 %part) {\nentry:\n"
CRASHES = HEAD + "  store i64 1, ptr inttoptr (i64 8 to ptr)\n  ret void\n}\n"
TRAPS = HEAD + "  call void @llvm.trap()\n  ret void\n}\ndeclare void @llvm.trap()\n"
NEVER_ENDS = HEAD + '  br label %loop\nloop:\n  call void asm sideeffect "", ""()\n  br label %loop\n}\n'
DOES_NOTHING = HEAD + "  ret void\n}\n"
CALLS_OTHERS = HEAD + "  call void @elsewhere()\n  ret void\n}\ndeclare void @elsewhere()\n"


def experiment(func: Func = FUNC, threads: int = 1) -> Experiment:
    inputs = tuple(tensor_spec(p) for p in func.params if p not in func.outputs)
    outputs = tuple(map(tensor_spec, func.outputs))
    driver = compile_object(driver_ir(BEST), BEST)
    return Experiment(inputs, outputs, driver, threads, 1e-4, 256 << 20)


def right() -> list[bytes]:
    a, b = (random_input(TensorSpec("", "float32", (16, 16)), n) for n in range(2))
    return [(a @ b).tobytes()]


def of_ir(ir: str) -> Candidate:
    good = Maker(TASK).make(PLAIN, {})[0]
    return replace(good, objects=(compile_object(ir, BEST),))


@pytest.fixture(scope="module")
def trials() -> Generator[Trials]:
    with Trials() as made:
        made.prepare(experiment(), right())
        yield made


def run(trials: Trials, candidate: Candidate, timeout: float = 20.0) -> tuple[TrialStatus, str]:
    outcome = trials.run(candidate, runs=3, slow=1.0, timeout=timeout)
    assert (outcome.status is TrialStatus.OK) == (outcome.seconds < 1.0)
    return outcome.status, outcome.message


GOOD = Maker(TASK).make(DEFAULT, {})[0]


def test_ok(trials: Trials) -> None:
    assert run(trials, GOOD) == (TrialStatus.OK, "")


def test_a_crash_is_a_run_error_that_names_the_signal(trials: Trials) -> None:
    assert run(trials, of_ir(CRASHES)) == (TrialStatus.RUN_ERROR, "SIGSEGV")
    assert run(trials, of_ir(TRAPS)) == (TrialStatus.RUN_ERROR, "SIGILL")
    assert run(trials, GOOD) == (TrialStatus.OK, "")


def test_code_that_cannot_be_loaded_is_a_run_error(trials: Trials) -> None:
    status, message = run(trials, of_ir(CALLS_OTHERS))
    assert status is TrialStatus.RUN_ERROR and "elsewhere" in message
    assert run(trials, replace(GOOD, objects=(b"nonsense",)))[0] is TrialStatus.RUN_ERROR


def test_what_never_ends_is_a_timeout(trials: Trials) -> None:
    start = time.monotonic()
    status, message = run(trials, of_ir(NEVER_ENDS), timeout=0.3)
    assert status is TrialStatus.TIMEOUT and "0.3 s" in message
    assert time.monotonic() - start < 10
    assert run(trials, GOOD) == (TrialStatus.OK, "")


def test_a_wrong_result_is_found(trials: Trials) -> None:
    status, message = run(trials, of_ir(DOES_NOTHING))
    assert status is TrialStatus.WRONG_RESULT and message.startswith("C: ")


def test_too_much_memory_is_oom(trials: Trials) -> None:
    assert run(trials, replace(GOOD, arena_bytes=1 << 40))[0] is TrialStatus.OOM
    assert (
        run(trials, replace(GOOD, arena_bytes=1 << 30))[0] is TrialStatus.OOM
    )  # over the limit of the experiment
    huge = (TensorSpec("packed", "float32", (1 << 36,)),)
    assert run(trials, replace(GOOD, made=huge))[0] is TrialStatus.OOM
    assert run(trials, GOOD) == (TrialStatus.OK, "")


def test_killed_by_somebody_else(trials: Trials) -> None:
    run(trials, GOOD)
    pid = trials.pid
    assert pid is not None
    killer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    killer.start()
    assert run(trials, of_ir(NEVER_ENDS)) == (TrialStatus.KILLED, "SIGKILL")
    killer.join()


def test_several_take_turns(trials: Trials) -> None:
    plain = Maker(TASK).make(PLAIN, {})[0]
    samples = trials.compare([GOOD, plain], rounds=5, runs=2, timeout=20)
    assert isinstance(samples, list)
    assert [s.runs for s in samples] == [10, 10]
    assert all(len(s.round_medians) == 5 and 0 < t < 1 for s in samples for r in s.rounds for t in r)
    wrong = trials.compare([GOOD, of_ir(DOES_NOTHING)], rounds=5, runs=2, timeout=20)
    assert not isinstance(wrong, list) and wrong.status is TrialStatus.WRONG_RESULT


def test_outputs_become_the_reference(trials: Trials) -> None:
    outcome, (result,) = trials.outputs(Maker(TASK).make(PLAIN, {})[0], timeout=20)
    assert outcome.status is TrialStatus.OK
    np.testing.assert_allclose(
        np.frombuffer(result, np.float32), np.frombuffer(right()[0], np.float32), rtol=1e-4
    )


def test_two_threads() -> None:
    with Trials() as trials:
        trials.prepare(experiment(threads=2), right())
        candidate, _ = Maker(TASK).make("tile", {"rows": 2, "columns": 8, "steps": 1})
        assert any(c.parts > 1 for c in candidate.calls)
        assert run(trials, candidate) == (TrialStatus.OK, "")


def test_work_on_constants_is_not_timed() -> None:
    func = gemm(64, 512, 64)
    weights = Maker(Task("w", func, frozenset({"B"}), BEST, tile_spaces)).make(DEFAULT, {})[0]
    assert weights.early and weights.made
    reads = {s for c in weights.calls for s in c.args}
    assert Slot(Place.INPUT, 1) not in reads and Slot(Place.CONSTANT, 0) in reads
    a, b = (random_input(tensor_spec(p), n) for n, p in enumerate(func.params[:2]))
    with Trials() as trials:
        trials.prepare(experiment(func), [(a @ b).tobytes()])
        assert run(trials, weights) == (TrialStatus.OK, "")


def test_heads_of_candidates_are_json() -> None:
    again = Candidate.of(GOOD.head(), GOOD.objects)
    assert (again.calls, again.early, again.made, again.arena_bytes) == (
        GOOD.calls,
        GOOD.early,
        GOOD.made,
        GOOD.arena_bytes,
    )
    assert all(isinstance(c, KernelCall) for c in again.calls)


# ------------------------------------------------------------------------------------------------------- differences


def test_differences() -> None:
    one = np.array([1.0, -4.0, 2.0], np.float32)
    assert find_difference(one, one, 0.0) == ""
    assert find_difference(one * np.float32(1.001), one, 1e-2) == ""
    assert "relative" in find_difference(one * np.float32(1.1), one, 1e-2)
    hole = np.array([1.0, np.nan, 2.0], np.float32)
    assert find_difference(hole, hole, 0.0) == ""
    assert "NaN" in find_difference(hole, one, 1.0) and "NaN" in find_difference(one, hole, 1.0)
    endless = np.array([np.inf, -np.inf], np.float32)
    assert find_difference(endless, endless, 0.0) == ""
    assert "infinity" in find_difference(-endless, endless, 1.0)
    counts = np.arange(3000)
    off = counts.copy()
    off[7] += 1
    assert find_difference(off, counts, 1e-6) == ""  # floats were rounded to integers
    assert "1 of 3000" in find_difference(off, counts, 0.0)


# --------------------------------------------------------------------------------------------------------- building


def test_points_that_cannot_be_built_say_why() -> None:
    with Candidates(2) as candidates:
        refused, good, unknown, odd = candidates.build(
            TASK,
            [
                ("tile", {"rows": 1, "columns": 64, "steps": 4}),
                ("tile", {"rows": 2, "columns": 16, "steps": 2}),
                ("elsewhere", {}),
                ("tile", {"rows": 2}),
            ],
        )
    assert refused.status is TrialStatus.BUILD_ERROR and refused.message == "too much code"
    assert good.status is TrialStatus.OK and good.candidate is not None and "Split(" in good.trace
    assert unknown.status is TrialStatus.BUILD_ERROR and "elsewhere" in unknown.message
    assert odd.status is TrialStatus.BUILD_ERROR and "KeyError" in odd.message


def test_a_lost_process_costs_one_point() -> None:
    with Candidates(1) as candidates:
        candidates.start()
        for pid in candidates.pids:
            os.kill(pid, signal.SIGKILL)
        built = candidates.build(TASK, [(PLAIN, {}), (DEFAULT, {}), (PLAIN, {})])
    assert sorted(b.status.value for b in built) == ["build_error", "ok", "ok"]


def test_a_process_that_hangs_costs_one_point() -> None:
    with Candidates(1, timeout=1.0) as candidates:
        candidates.build(TASK, [(PLAIN, {})])
        (pid,) = candidates.pids
        os.kill(pid, signal.SIGSTOP)
        built = candidates.build(TASK, [(PLAIN, {}), (PLAIN, {})])
    assert [b.status for b in built] == [TrialStatus.TIMEOUT, TrialStatus.OK]
