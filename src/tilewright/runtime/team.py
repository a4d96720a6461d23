"""The team of threads that runs parallel kernels.

Workers are plain threads that run the native driver and never touch Python. One team serves all sessions of a process
that have the same driver and thread count: jobs take it one at a time, and a job that finds it taken runs on its
caller's thread alone. So sessions in several Python threads do not ask for more cores than there are. Nobody waits for
a worker that has no part of the job: one that is asleep, or whose core others use, comes too late and does nothing.

A team belongs to the process that started it. In a forked child it is marked as not running; the first job there runs
alone and says so, and `start` then makes new workers.

Between jobs, workers wait for `TILEWRIGHT_SPIN_US` microseconds (100 unless set, 0 turns it off) and then sleep.

A worker that loses its core in the middle of a part, to another process or to threads of another library that spin, is
moved to the caller's core to finish it. While a job runs, its affinity may therefore be narrower than it was; it is
restored when the job ends.
"""

import ctypes
import errno
import hashlib
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable

from tilewright.runtime.loader import Code
from tilewright.runtime.memory import MemoryRegion
from tilewright.support.driver_abi import LINE, Record, TeamState
from tilewright.support.errors import UserError

SPIN_US = 100.0
PATIENCE_US = 20.0  # between two looks at a worker that is waited for
_log = logging.getLogger(__name__)

# A fault must be reported where it happens; everything else is for Python's threads.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT}


def spin_us() -> float:
    """How long idle workers spin before they sleep: what the environment says, or `SPIN_US`."""
    text = os.environ.get("TILEWRIGHT_SPIN_US")
    if text is None:
        return SPIN_US
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e6:
        raise UserError(
            f"TILEWRIGHT_SPIN_US = {text!r} is not a number of microseconds between 0 and 1000000",
            hint="0 lets idle workers sleep at once",
        )
    return value


class _Crew:
    """The threads and the memory they share. Kept apart from `Team` so that a team can be collected while they run."""

    def __init__(self, driver: Code, threads: int) -> None:
        self.driver = driver
        self.threads = threads
        self.region = MemoryRegion(ctypes.sizeof(TeamState) + 2 * threads * LINE)
        self.state = TeamState.from_address(self.region.address)
        self.state.statuses = self.region.address + ctypes.sizeof(TeamState) + threads * LINE
        self.workers: list[ctypes.c_ulong] = []
        self.lock = threading.Lock()
        self.closed = False
        self.stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(driver.address("tw_stop"))
        self.rounds, self.patience = _rounds(driver, spin_us()), _rounds(driver, PATIENCE_US)

    def start(self) -> None:
        with self.lock:
            if self.closed or self.state.running:
                return
            self.state.generation = self.state.quit = self.state.sleepers = 0
            self.state.door = self.state.finished = self.state.busy = 0
            self.state.spin, self.state.patience = self.rounds, self.patience
            self.workers = self._hire()
            self.state.workers = 1 + len(self.workers)
            self.state.running = 1

    def _hire(self) -> list[ctypes.c_ulong]:
        pthread = ctypes.CDLL(None)
        pthread.pthread_create.argtypes = (ctypes.c_void_p,) * 4
        pthread.pthread_setname_np.argtypes = (ctypes.c_ulong, ctypes.c_char_p)
        entry = self.driver.address("tw_worker")
        workers: list[ctypes.c_ulong] = []
        # threads inherit the mask: a signal such as Ctrl-C must reach a thread of Python's
        old = signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()) - _OWN_SIGNALS)
        try:
            for worker in range(1, self.threads):
                at = self.region.address + ctypes.sizeof(TeamState) + worker * LINE
                record = Record.from_address(at)
                record.team, record.worker = self.region.address, worker
                thread = ctypes.c_ulong()
                failure = pthread.pthread_create(ctypes.byref(thread), None, entry, at)
                if failure:
                    reason = errno.errorcode.get(failure, str(failure))
                    _log.warning("only %d of %d threads could be started (%s)", worker, self.threads, reason)
                    break
                pthread.pthread_setname_np(thread, f"tilewright-{worker}".encode())
                workers.append(thread)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
        return workers

    def shut_down(self) -> None:
        """Wait for the job that runs, end the workers, and wait for them."""
        with self.lock:
            self.closed = True
            if not self.state.running:
                return
            self.stop(self.region.address)
            pthread = ctypes.CDLL(None)
            pthread.pthread_join.argtypes = (ctypes.c_ulong, ctypes.c_void_p)
            for thread in self.workers:
                pthread.pthread_join(thread, None)
            self.workers = []

    def forget(self) -> None:
        """In a forked child: the workers are not there, and nobody holds the lock."""
        self.lock = threading.Lock()
        self.workers = []
        self.state.running = self.state.busy = 0


_RUN_JOB = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)  # a kind of call that releases the GIL


class Team:
    """`threads` threads, the caller's included.

    `run_job` is the driver's `tw_start`: it takes the address of a `Job`, and returns 1 if the job named a team that is
    not running. `address` is what a job's `team` field takes, if it may run in parallel. `each` is the address of the
    driver's `tw_each`.
    """

    def __init__(self, driver: Code, threads: int) -> None:
        self._crew = _Crew(driver, threads)
        self.run_job: Callable[[int], int] = _RUN_JOB(driver.address("tw_start"))
        self.address = self._crew.region.address
        self.each = driver.address("tw_each")
        self.threads = threads
        _crews.add(self._crew)
        # also at exit, before the interpreter unmaps the code that the workers run
        self._end = weakref.finalize(self, self._crew.shut_down)

    def start(self) -> None:
        """Make the workers, unless they are there."""
        self._crew.start()

    @property
    def is_running(self) -> bool:
        return self._crew.state.running != 0

    @property
    def sleepers(self) -> int:
        """Workers that are asleep."""
        return self._crew.state.sleepers

    @property
    def is_patient(self) -> bool:
        """Does the caller wait for a worker that has lost its core, however long that takes? Only where a measurement
        asks for it, to find out what that costs.
        """
        return self._crew.state.patience == 0

    @is_patient.setter
    def is_patient(self, value: bool) -> None:
        self._crew.state.patience = 0 if value else self._crew.patience

    @property
    def jobs(self) -> int:
        """Jobs that the team has been given since it started."""
        return self._crew.state.generation

    def close(self) -> None:
        """End the workers. Jobs given to the team afterwards run on their caller's thread."""
        self._end()


_crews: "weakref.WeakSet[_Crew]" = weakref.WeakSet()
_teams: "weakref.WeakValueDictionary[tuple[str, int], Team]" = weakref.WeakValueDictionary()
_shared = threading.Lock()


def shared_team(driver: bytes, threads: int) -> Team:
    """The process's team for this driver and thread count. It ends when nobody holds it any more."""
    key = (hashlib.sha256(driver).hexdigest(), threads)
    with _shared:
        team = _teams.get(key)
        if team is None:
            team = _teams[key] = Team(Code([driver], name="driver"), threads)
        return team


def _rounds(driver: Code, us: float) -> int:
    """How many rounds of pausing take `us` microseconds. The length of a pause differs tenfold among processors."""
    if us == 0:
        return 0
    pause = ctypes.CFUNCTYPE(None, ctypes.c_int64)(driver.address("tw_pause"))
    sample = 1000
    best = min(_seconds(pause, sample) for _ in range(3))
    return max(1, int(us * 1e-6 / best * sample))


def _seconds(pause: Callable[[int], object], n: int) -> float:
    start = time.perf_counter()
    pause(n)
    return max(time.perf_counter() - start, 1e-9)


def _after_fork() -> None:
    global _shared
    _shared = threading.Lock()
    for crew in list(_crews):
        crew.forget()


os.register_at_fork(after_in_child=_after_fork)
