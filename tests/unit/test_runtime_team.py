"""The team: barriers under stress, sleeping and waking, sharing, shutdown; and how many threads a machine gets."""

import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.runtime_programs import (
    N,
    chained,
    chained_program,
    driver_object,
    kernel_object,
    marking_program,
    mixed,
    mixing_program,
    scanning_program,
)
from tilewright.runtime.loader import Code
from tilewright.runtime.machine import cpu_features, default_threads
from tilewright.runtime.memory import HUGE_PAGE, Constants, MemoryRegion, address_of
from tilewright.runtime.session import Session
from tilewright.runtime.team import Team, spin_us
from tilewright.support.driver_abi import CallRow, Job

pytestmark = pytest.mark.usefixtures("few_objects")


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def eventually(condition: "object", seconds: float = 5.0) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.002)
    return False


def idle_job(team: Team, code: Code, parts: int = 8) -> tuple[Job, object]:
    """A job of one call that does nothing, and what must stay alive with it."""
    call = CallRow(fn=code.address("nothing"), parts=parts, claims=parts, chunk=1)
    return Job(team.address, ctypes.addressof(call), 1), call


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_barrier_stress(threads: int) -> None:
    """Hundreds of dependent kernels of uneven parts: one early read changes the bits."""
    x = np.random.default_rng(threads).random(N, np.float32) / 8
    rounds = 300
    with Session(mixing_program(rounds), threads=threads) as session, np.errstate(over="ignore"):
        expected = mixed(x, rounds).tobytes()
        for _ in range(3):
            assert session.run({"x": x})["y"].tobytes() == expected


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_part_runs_once(threads: int) -> None:
    """Also where parts are no multiple of the workers, fewer than these, or enough that several are claimed at once."""
    calls = [1, 2, 3, 5, 7, 16, 17, 1, 1, 1023, 1025, 2049, 5000, 4, 3]
    runs = 150
    with Session(marking_program(calls), threads=threads) as session:
        counts = {f"y{n}": np.zeros(parts, np.int64) for n, parts in enumerate(calls)}
        bound = session.bind({}, counts)
        for _ in range(runs):
            bound.run()
        for name, count in counts.items():
            np.testing.assert_array_equal(count, runs, err_msg=name)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_steps_wait_for_each_other(threads: int) -> None:
    """One early read of a step changes the bits of all that follow."""
    x = np.random.default_rng(threads).random(N, np.float32) / 8
    steps = 200
    with Session(scanning_program(steps), threads=threads) as session, np.errstate(over="ignore"):
        rows = [x]
        for _ in range(steps):
            rows.append(mixed(rows[-1], 0))
        for _ in range(20):
            assert session.run({"x": x})["y"].tobytes() == np.stack(rows).tobytes()


def test_a_worker_that_sleeps_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it wakes up in time or finds the job done: all parts have run, once, when the call returns."""
    monkeypatch.setenv("TILEWRIGHT_SPIN_US", "0")
    with Session(marking_program([8, 8]), threads=4) as session:
        counts = {name: np.zeros(8, np.int64) for name in ("y0", "y1")}
        bound = session.bind({}, counts)
        for n in range(300):
            bound.run()
            assert all((count == n + 1).all() for count in counts.values())
            time.sleep(0.0005 * (n % 3))


@pytest.mark.parametrize("threads", [2, 3])
def test_kernels_of_one_part_run_in_order(threads: int) -> None:
    """There is no barrier between them: one worker runs them all."""
    x = np.random.default_rng(threads).random(N, np.float32) / 8
    with Session(chained_program(41), threads=threads) as session, np.errstate(over="ignore"):
        expected = chained(x, 41).tobytes()
        for _ in range(400):
            assert session.run({"x": x})["y"].tobytes() == expected


def share_with_worker(team: Team, *works: Callable[[], None]) -> None:
    """Run a job of a call of two parts for each of `works`: the worker does that, and the caller's part waits until the
    worker has the other one. A worker that comes first may have both.
    """
    caller, claimed = threading.get_native_id(), [threading.Event() for _ in works]

    def part(_args: int, number: int) -> None:
        event = claimed[number // 2]
        if threading.get_native_id() == caller:
            event.wait(10)
        elif not event.is_set():
            event.set()
            works[number // 2]()

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(part)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    rows = (CallRow * len(works))()
    for n, row in enumerate(rows):
        row.fn, row.first, row.parts, row.claims, row.chunk, row.barrier = address, 2 * n, 2, 2, 1, 1
    job = Job(team.address, ctypes.addressof(rows), len(works))
    assert team.run_job(ctypes.addressof(job)) == 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no core to be moved from")
def test_a_worker_that_does_not_run_is_summoned_to_the_callers_core_and_leaves_it() -> None:
    """It sleeps in its part until that has happened: to the caller it looks like one that has lost its core."""
    everywhere = os.sched_getaffinity(0)
    home = {min(everywhere)}
    found: list[set[int]] = []
    workers: set[int] = set()

    def sleep() -> None:
        deadline = time.monotonic() + 10
        while os.sched_getaffinity(0) != home and time.monotonic() < deadline:
            time.sleep(0.01)
        found.append(os.sched_getaffinity(0))
        workers.add(threading.get_native_id())

    def look() -> None:
        found.append(os.sched_getaffinity(0))

    team = Team(Code([driver_object()]), 2)
    team.start()
    os.sched_setaffinity(0, home)  # of this thread, which is the caller's
    try:
        left: list[set[int]] = []
        for _ in range(10):
            share_with_worker(team, sleep, look)
            assert found.pop(0) == home
            left.append(found.pop())
            (worker,) = workers
            assert eventually(lambda: os.sched_getaffinity(worker) == everywhere)  # noqa: B023
        assert (
            everywhere - home in left
        )  # the caller may have looked just as it left, and have summoned it again
    finally:
        os.sched_setaffinity(0, everywhere)
    team.close()


def test_a_patient_caller_summons_nobody() -> None:
    found: list[set[int]] = []

    def sleep() -> None:
        time.sleep(0.1)
        found.append(os.sched_getaffinity(0))

    team = Team(Code([driver_object()]), 2)
    team.start()
    team.is_patient = True
    share_with_worker(team, sleep)
    assert found == [os.sched_getaffinity(0)]
    team.close()


def test_workers_sleep_and_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_SPIN_US", "50")
    code = Code([kernel_object()])
    team = Team(Code([driver_object()]), 3)
    team.start()
    job, _keep = idle_job(team, code)
    for i in range(5):
        assert eventually(lambda: team.sleepers == 2)
        assert team.run_job(ctypes.addressof(job)) == 0
        assert team.jobs == i + 1
    team.close()


def test_no_spinning_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_SPIN_US", "0")
    code = Code([kernel_object()])
    team = Team(Code([driver_object()]), 2)
    team.start()
    job, _keep = idle_job(team, code)
    for _ in range(200):
        assert team.run_job(ctypes.addressof(job)) == 0
    assert eventually(lambda: team.sleepers == 1)
    team.close()


def test_job_without_a_running_team_says_so() -> None:
    code = Code([kernel_object()])
    before = thread_count()
    team = Team(Code([driver_object()]), 2)
    job, _keep = idle_job(team, code)
    assert not team.is_running
    assert team.run_job(ctypes.addressof(job)) == 1
    team.start()
    assert team.is_running and thread_count() == before + 1
    assert team.run_job(ctypes.addressof(job)) == 0
    team.close()
    assert not team.is_running and thread_count() == before
    assert team.run_job(ctypes.addressof(job)) == 1  # still runs, alone
    team.start()
    assert thread_count() == before  # closed for good


def test_dropped_team_ends_its_workers() -> None:
    gc.collect()  # teams of other tests
    before = thread_count()
    team = Team(Code([driver_object()]), 3)
    team.start()
    assert thread_count() == before + 2
    del team
    gc.collect()
    assert thread_count() == before


def test_close_waits_for_the_job_that_runs() -> None:
    x = np.random.default_rng(0).random(N, np.float32)
    expected = mixed(x, 3).tobytes()
    wrong: list[int] = []
    for _ in range(5):
        session = Session(mixing_program(3), threads=2)
        bound = session.bind({"x": x})

        def work(bound: "object" = bound) -> None:
            assert hasattr(bound, "run")
            for i in range(200):
                if bound.run()["y"].tobytes() != expected:
                    wrong.append(i)

        thread = threading.Thread(target=work)
        thread.start()
        session._pool._plan.team.close()  # pyright: ignore
        thread.join()
    assert not wrong


def test_workers_leave_signals_to_python() -> None:
    team = Team(Code([driver_object()]), 2)
    before = set(os.listdir("/proc/self/task"))
    team.start()
    (worker,) = set(os.listdir("/proc/self/task")) - before

    def blocked() -> int:
        status = Path(f"/proc/self/task/{worker}/status").read_text()
        return int(status.split("SigBlk:")[1].split()[0], 16)

    # a thread that starts blocks everything for a moment; then SIGSEGV is reported where it happens
    assert eventually(lambda: not blocked() >> 10 & 1)
    assert blocked() >> 1 & 1 and blocked() >> 14 & 1  # SIGINT, SIGTERM
    assert Path(f"/proc/self/task/{worker}/comm").read_text() == "tilewright-1\n"
    assert os.sched_getaffinity(int(worker)) == os.sched_getaffinity(0)
    team.close()


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("250", 250.0), ("12.5", 12.5)])
def test_spin_setting(monkeypatch: pytest.MonkeyPatch, text: str, value: float) -> None:
    monkeypatch.setenv("TILEWRIGHT_SPIN_US", text)
    assert spin_us() == value


def machine(
    root: Path, monkeypatch: pytest.MonkeyPatch, siblings: dict[int, str], files: dict[str, str]
) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(siblings))  # pyright: ignore
    for cpu, text in siblings.items():
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = text + "\n"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


EIGHT = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}  # four cores of two threads


@pytest.mark.parametrize(
    ("siblings", "files", "threads"),
    [
        (EIGHT, {}, 4),
        ({0: "0,4", 4: "0,4", 1: "1,5"}, {}, 2),
        (EIGHT, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "250000 100000\n"}, 3),
        (EIGHT, {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 4),
        (EIGHT, {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "20000 100000\n"}, 1),
        (
            EIGHT,
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/x\n1:memory:/y\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            EIGHT,
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
    ],
    ids=[
        "two threads a core",
        "affinity",
        "quota above",
        "no quota",
        "a fifth of a core",
        "version 1",
        "unlimited",
    ],
)
def test_default_threads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    siblings: dict[int, str],
    files: dict[str, str],
    threads: int,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_threads(machine(tmp_path, monkeypatch, siblings, dict(files))) == threads


@pytest.mark.parametrize(("text", "threads"), [("3", 3), ("6,2", 6), ("99", 8), ("0", 4), ("many", 4)])
def test_default_threads_follow_openmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert default_threads(machine(tmp_path, monkeypatch, EIGHT, {})) == threads


def test_features_have_llvms_names(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor : 0\nflags\t\t: sse4_1 bmi1 avx2 pni\n\nprocessor : 1\nflags\t\t: sse4_1 bmi1 avx2 abm\n"
    )
    assert cpu_features(tmp_path) == {"sse4.1", "bmi", "avx2"}
    assert cpu_features(tmp_path / "nowhere") == frozenset()


def test_regions_are_zeroed_and_aligned() -> None:
    small, large = MemoryRegion(100), MemoryRegion(3 * HUGE_PAGE + 5)
    assert small.address % 4096 == 0 and large.address % HUGE_PAGE == 0
    assert large.array.size >= 3 * HUGE_PAGE + 5 and not large.array.any()


def test_constants_are_packed_and_read_only() -> None:
    arrays = [np.arange(5, dtype=np.int8), np.float32(2.5).reshape(()), np.empty((0, 4)), np.eye(3)[::-1]]
    constants = Constants(arrays)
    for given, kept, address in zip(arrays, constants.arrays, constants.addresses, strict=True):
        np.testing.assert_array_equal(given, kept)
        assert kept.shape == given.shape and not kept.flags.writeable
        assert address == address_of(kept)
    assert [a % 64 for a, c in zip(constants.addresses, arrays, strict=True) if c.size] == [0, 0, 0]
