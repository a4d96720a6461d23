"""Worker processes: the same objects as without, whatever happens to the workers."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.codegen.objects import compile_object
from tilewright.driver.worker import CodegenServer, target_from_json, target_to_json
from tilewright.driver.workers import Workers, default_workers
from tilewright.support.errors import UserError
from tilewright.support.frames import unpack
from tilewright.target.target import BASELINE

CRASHES = (sys.executable, "-c", "import os; os.read(0, 100000); os._exit(3)")
HANGS = (sys.executable, "-c", "import time; time.sleep(100)")
CHATTERS = (sys.executable, "-c", "import os, time; os.write(1, bytes(1000)); time.sleep(100)")


def module(n: int) -> str:
    return f"define i64 @f{n}(i64 %x) {{\n  %y = add i64 %x, {n}\n  ret i64 %y\n}}\n"


def objects(pool: Workers, count: int = 12) -> list[bytes]:
    jobs = [pool.submit(module(n)) for n in range(count)]
    return [pool.result(j) for j in jobs]


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    return [compile_object(module(n), BASELINE) for n in range(12)]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_objects_are_the_same_with_and_without_workers(limit: int, expected: list[bytes]) -> None:
    with Workers(BASELINE, limit) as pool:
        assert objects(pool) == expected


def test_a_worker_does_the_work(monkeypatch: pytest.MonkeyPatch, expected: list[bytes]) -> None:
    with Workers(BASELINE, 1) as pool:
        jobs = [pool.submit(module(n)) for n in range(2)]  # as many as a worker holds: none is left for us
        monkeypatch.setattr("tilewright.driver.workers.compile_object", None)
        assert [pool.result(j) for j in jobs] == expected[:2]


def test_large_modules_do_not_block(expected: list[bytes]) -> None:
    """More than fits into the pipes, in both directions, before anybody reads."""
    padding = "; " + "x" * (3 << 20) + "\n"
    with Workers(BASELINE, 1) as pool:
        jobs = [pool.submit(padding + module(n)) for n in range(4)]
        assert [pool.result(j) for j in jobs] == expected[:4]


@pytest.mark.parametrize(
    ("command", "complaint"),
    [(CRASHES, "ended with status 3"), (HANGS, "has not answered"), (CHATTERS, "answered nonsense")],
)
def test_bad_workers_are_replaced_and_then_given_up(
    command: tuple[str, ...], complaint: str, expected: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    timeout = 0.3 if command is HANGS else 30.0
    with caplog.at_level(logging.WARNING), Workers(BASELINE, 1, timeout=timeout, command=command) as pool:
        assert objects(pool) == expected
        assert objects(pool) == expected
    texts = [r.getMessage() for r in caplog.records]
    assert len(texts) <= 2 and complaint in texts[0] and "another takes its place" in texts[0]


def test_killed_worker_is_replaced(expected: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Workers(BASELINE, 1) as pool:
        job = pool.submit(module(0))
        [first] = pool.pids
        os.kill(first, signal.SIGKILL)
        assert pool.result(job) == expected[0]
        assert objects(pool) == expected
    assert len(caplog.records) == 1


def test_no_command_is_no_worker(expected: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Workers(BASELINE, 2, command=("/nowhere/python",)) as pool:
        assert objects(pool) == expected
    assert "without worker processes" in caplog.text


@pytest.mark.parametrize("limit", [0, 1])
def test_errors_of_llvm_are_raised_by_whose_result_it_is(limit: int, expected: list[bytes]) -> None:
    with Workers(BASELINE, limit) as pool:
        bad, good = pool.submit("define nonsense"), pool.submit(module(0))
        assert pool.result(good) == expected[0]
        with pytest.raises(RuntimeError, match="expected"):
            pool.result(bad)


def test_workers_end_with_the_pool() -> None:
    with Workers(BASELINE, 2) as pool:
        objects(pool)
        pids = pool.pids
    assert pids and not any(map(is_running, pids))


INTERRUPTED = """
import sys, time
from tilewright.target.target import BASELINE
from tilewright.driver.workers import Workers
with Workers(BASELINE, 1) as pool:
    pool.result(pool.submit("define void @f() {\\n  ret void\\n}\\n"))
    print(*pool.pids, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_process(how: signal.Signals) -> None:
    """Ctrl-C reaches the whole group of a terminal; a kill only the process itself."""
    parent = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    if how is signal.SIGINT:
        os.killpg(parent.pid, how)
    else:
        os.kill(parent.pid, how)
    _, errors = parent.communicate(timeout=20)
    assert how is signal.SIGKILL or errors.strip().endswith("KeyboardInterrupt"), errors
    deadline = time.monotonic() + 10
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(worker)


# ------------------------------------------------------------------------------------------------- one worker


def test_a_target_survives_the_way_to_text() -> None:
    assert target_from_json(target_to_json(BASELINE)) == BASELINE


def test_a_worker_answers_modules_once_it_has_its_target(expected: list[bytes]) -> None:
    worker = CodegenServer()
    assert worker.answer({}, [target_to_json(BASELINE)]) is None
    answers = [worker.answer({}, [ir]) for ir in (module(0).encode(), b"nonsense", module(1).encode())]
    (good, objects), (bad, none), (_, others) = (unpack(a or b"") for a in answers)
    assert (good["error"], objects, others) == ("", expected[:1], expected[1:2])
    assert "expected" in bad["error"] and none == []


def test_a_worker_imports_no_more_than_it_needs() -> None:
    code = "import sys, tilewright.driver.worker; print(*(m for m in ('numpy', 'onnx') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("running", "workers"), [("1/900", 3), ("2/900", 2), ("4/900", 0), ("9/900", 0), ("", 3)]
)
def test_busy_cores_get_no_worker(
    running: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TILEWRIGHT_WORKERS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr("tilewright.driver.workers.default_threads", lambda: 4)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "loadavg").write_text(f"0.50 0.60 0.70 {running} 4242\n" if running else "")
    assert default_workers(tmp_path) == workers


def test_how_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_WORKERS", "3")
    assert default_workers() == 3
    monkeypatch.setenv("TILEWRIGHT_WORKERS", "many")
    with pytest.raises(UserError, match="TILEWRIGHT_WORKERS"):
        default_workers()
    monkeypatch.delenv("TILEWRIGHT_WORKERS")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert default_workers() == 0  # one core: a process more would only be in the way
    monkeypatch.setattr(sys, "executable", str(Path("/opt/app/server")))
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert default_workers() == 0  # not a Python
