"""Sessions: what `run` and `bind` promise about values, arrays, threads, forks and interrupts."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import timeit
import traceback
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime_programs import (
    N,
    add_program,
    arena,
    artifact,
    biased_program,
    const,
    inp,
    mixed,
    mixing_program,
    out,
    vector,
)
from tilewright.runtime.feeds import signature_text
from tilewright.runtime.program import merge_barriers
from tilewright.runtime.session import Session
from tilewright.support.artifact import (
    ExternalCall,
    KernelCall,
    Segment,
    TensorSpec,
)
from tilewright.support.program import Branch, While

pytestmark = pytest.mark.usefixtures("few_objects")

A = np.arange(N, dtype=np.float32)
B = np.linspace(-1, 1, N, dtype=np.float32)


def rss_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def test_a_call_by_position_takes_strided_arrays() -> None:
    with Session(add_program()) as session:
        (y,) = session.call([np.repeat(A, 2)[::2], B])
    np.testing.assert_array_equal(y, A + B)


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    x = np.random.default_rng(0).random(N, np.float32)
    with Session(mixing_program(9), threads=threads) as session:
        assert session.threads == threads
        bound = session.bind({"x": x})
        expected = mixed(x, 9)
        for _ in range(20):
            bound.outputs["y"][:] = np.nan
            bound.run()
            assert bound.outputs["y"].tobytes() == expected.tobytes()


def test_constants_and_arena() -> None:
    with Session(biased_program(), threads=2) as session:
        result = session.run({"a": A, "b": B})
    np.testing.assert_array_equal(result["sum"], A + B + np.arange(N, dtype=np.float32))


def test_constants_may_stay_where_they_are() -> None:
    with Session(biased_program(), threads=1, weights_in_place=True) as session:
        result = session.run({"a": A, "b": B})
    np.testing.assert_array_equal(result["sum"], A + B + np.arange(N, dtype=np.float32))


def test_a_session_says_what_it_is() -> None:
    session = Session(biased_program(), threads=2)
    text = repr(session)
    assert text.startswith("<Session ") and f"-> sum: float32[{N}]; 2 threads; 1 kernel in 2 calls; " in text
    assert "an arena of " in text and "for x86_64" in text
    assert "closed" not in text
    session.close()
    assert repr(session).endswith("; closed>")


def test_only_the_first_of_many_inputs_are_shown() -> None:
    kinds = [(f"x{n}", "float32[1]") for n in range(6)]
    assert signature_text(kinds).endswith("x3: float32[1], … 2 more")
    assert signature_text(kinds[:1]) == "x0: float32[1]" and signature_text([]) == "nothing"


def test_results_belong_to_the_caller() -> None:
    with Session(add_program(), threads=1) as session:
        first = session.run({"a": A, "b": B})["sum"]
        kept = first.copy()
        session.run({"a": A + 1, "b": B})
    np.testing.assert_array_equal(first, kept)


def test_large_results_start_on_a_cache_line() -> None:
    call = KernelCall("nothing", 1, (out(0),))
    program = artifact([Segment((call,))], [], [TensorSpec("y", "float32", (64, 33))])
    with Session(program) as session:
        y = session.run({})["y"]
    assert y.shape == (64, 33) and y.ctypes.data % 64 == 0 and y.flags.writeable


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.repeat(A, 2)[::2],
        lambda: A[::-1].copy()[::-1],
        lambda: np.frombuffer(A.tobytes(), np.float32),  # read-only
        lambda: np.frombuffer(b"x" + A.tobytes(), np.uint8)[1:].view(np.float32),  # not aligned
        lambda: A.tolist(),
        lambda: tuple(range(N)),
    ],
    ids=["strided", "reversed", "read-only", "misaligned", "list", "tuple of ints"],
)
def test_feeds_of_many_kinds(make: "Callable[[], NDArray[np.float32]]") -> None:
    with Session(add_program(), threads=1) as session:
        np.testing.assert_array_equal(session.run({"a": make(), "b": B})["sum"], A + B)


class Foreign:
    """An array of another library, which only speaks DLPack."""

    def __init__(self, array: NDArray[np.float32]) -> None:
        self._array = array

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)  # pyright: ignore

    def __dlpack_device__(self) -> object:
        return self._array.__dlpack_device__()


def test_arrays_of_other_libraries() -> None:
    a = A.copy()
    with Session(add_program(), threads=1) as session:
        bound = session.bind({"a": Foreign(a), "b": B})  # pyright: ignore
        a += 1  # without a copy in between
        np.testing.assert_array_equal(bound.run()["sum"], A + 1 + B)


def test_scalars_and_empty_arrays() -> None:
    specs = [TensorSpec("s", "int64", ()), TensorSpec("e", "float32", (0, 3))]
    call = KernelCall("move", 1, (inp(0), out(0)))
    skip = KernelCall("nothing", 1, (inp(1), out(1)))
    outs = [TensorSpec("t", "int64", ()), TensorSpec("f", "float32", (3, 0))]
    with Session(artifact([Segment((call, skip))], specs, outs)) as session:
        for scalar in (7, np.int64(7), np.array(7)):
            result = session.run({"s": scalar, "e": np.empty((0, 3), np.float32)})
            assert result["t"].shape == () and result["t"] == 7
            assert result["f"].shape == (3, 0)


def test_dtypes_beyond_numpys() -> None:
    spec = TensorSpec("x", "bfloat16", (4,))
    call = KernelCall("move", 1, (inp(0), out(0)))
    x = np.array([1.5, -2, 0.25, 8], ml_dtypes.bfloat16)
    with Session(artifact([Segment((call,))], [spec], [TensorSpec("y", "bfloat16", (4,))])) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], x)
        np.testing.assert_array_equal(session.run({"x": [1.5, -2, 0.25, 8]})["y"], x)


def test_outputs_may_be_given() -> None:
    buffer = np.empty(N, np.float32)
    with Session(add_program(), threads=1) as session:
        assert session.run({"a": A, "b": B}, {"sum": buffer})["sum"] is buffer
    np.testing.assert_array_equal(buffer, A + B)


def test_bound_reads_in_place_and_overwrites_outputs() -> None:
    a = A.copy()
    with Session(add_program(), threads=1) as session:
        bound = session.bind({"a": a, "b": B[::-1]})
        assert bound.inputs["a"] is a
        assert bound.inputs["b"] is not B
        first = bound.run()["sum"]
        np.testing.assert_array_equal(first, A + B[::-1])
        a += 1
        bound.inputs["b"][:] = 0
        assert bound.run()["sum"] is first
        np.testing.assert_array_equal(first, A + 1)


def test_bound_survives_the_session() -> None:
    session = Session(add_program(), threads=2)
    bound = session.bind({"a": A, "b": B})
    session.close()
    del session
    gc.collect()
    np.testing.assert_array_equal(bound.run()["sum"], A + B)


def test_bound_run_is_quick() -> None:
    """Half a microsecond in a quiet moment; the limit leaves room for a busy machine."""
    with Session(add_program(parts=1)) as session:
        bound = session.bind({"a": A, "b": B})
        best = min(timeit.repeat(bound.run, number=1000, repeat=20)) / 1000
    assert best < 2e-6


def test_serial_program_starts_no_thread() -> None:
    before = len(os.listdir("/proc/self/task"))
    with Session(add_program(parts=1), threads=4) as session:
        session.run({"a": A, "b": B})
        assert len(os.listdir("/proc/self/task")) == before


def test_sessions_share_one_team() -> None:
    before = len(os.listdir("/proc/self/task"))
    with Session(add_program(), threads=3) as one, Session(biased_program(), threads=3) as two:
        assert len(os.listdir("/proc/self/task")) == before + 2
        one.run({"a": A, "b": B})
        two.run({"a": A, "b": B})
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == before


def test_many_python_threads() -> None:
    failures: list[str] = []
    with Session(mixing_program(5), threads=2) as session:

        def work(seed: int) -> None:
            x = np.random.default_rng(seed).random(N, np.float32)
            expected = mixed(x, 5)
            for _ in range(100):
                if session.run({"x": x})["y"].tobytes() != expected.tobytes():
                    failures.append(f"thread {seed}")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not failures


def test_runs_release_the_interpreter() -> None:
    call = KernelCall("slow", 1, (inp(0),))
    program = artifact([Segment((call,))], [TensorSpec("n", "int64", ())], [])
    with Session(program) as session:
        thread = threading.Thread(target=lambda: session.run({"n": 20_000_000}))
        thread.start()
        ticks = 0
        while thread.is_alive():
            ticks += 1
            time.sleep(0.002)
    assert ticks > 3


FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on


def in_child(work: "Callable[[], None]") -> int:
    """Exit status of a forked child that does `work`."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


@FORKS
def test_forked_child_makes_its_own_workers() -> None:
    x = np.random.default_rng(1).random(N, np.float32)
    expected = mixed(x, 5).tobytes()
    with Session(mixing_program(5), threads=3) as session:
        bound = session.bind({"x": x})
        bound.run()

        def work() -> None:
            for _ in range(3):
                assert bound.run()["y"].tobytes() == expected
                assert session.run({"x": x})["y"].tobytes() == expected
            assert len(os.listdir("/proc/self/task")) == 3
            session.close()

        assert in_child(work) == 0
        assert bound.run()["y"].tobytes() == expected


@FORKS
def test_fork_while_other_threads_run() -> None:
    x = np.random.default_rng(1).random(N, np.float32)
    expected = mixed(x, 5).tobytes()
    stop = threading.Event()
    with Session(mixing_program(5), threads=2) as session:

        def keep_running() -> None:
            while not stop.is_set():
                session.run({"x": x})

        def work() -> None:
            for _ in range(20):
                assert session.run({"x": x})["y"].tobytes() == expected

        threads = [threading.Thread(target=keep_running) for _ in range(4)]
        for t in threads:
            t.start()
        try:
            statuses = [in_child(work) for _ in range(3)]
        finally:
            stop.set()
            for t in threads:
                t.join()
    assert statuses == [0, 0, 0]


def test_ten_thousand_runs_keep_memory_flat() -> None:
    with Session(biased_program(), threads=1) as session:
        bound = session.bind({"a": A, "b": B})

        def work(n: int) -> None:
            for _ in range(n):
                session.run({"a": A, "b": B})
                bound.run()

        work(1000)
        before = rss_kib()
        work(9000)
        assert rss_kib() - before < 2048


def test_sessions_give_their_memory_back() -> None:
    big = np.ones(1 << 20, np.float32)
    call = KernelCall("nothing", 4, (const(0), arena(0)))

    def work() -> None:
        program = artifact([Segment((call,))], [], [], [big], 8 << 20)
        with Session(program, threads=2) as session:
            session.run({})
            session.bind({}).run()

    work()
    gc.collect()
    before = rss_kib()
    for _ in range(10):
        work()
    gc.collect()
    assert rss_kib() - before < 8 << 10


SIGINT_SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.path.insert(0, sys.argv[1])
from tests.runtime_programs import artifact, inp, KernelCall, Segment, TensorSpec
from tilewright.runtime.session import Session
call = KernelCall("slow", 4, (inp(0),))
session = Session(artifact([Segment((call,))], [TensorSpec("n", "int64", ())], []), threads=2)
bound = session.bind({"n": 2_000_000})
try:
    print("ready", flush=True)
    while True:
        bound.run()
except KeyboardInterrupt:
    session.run({"n": 1})
    print("interrupted", flush=True)
"""


def test_interrupt_ends_a_loop_of_runs() -> None:
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", SIGINT_SCRIPT, str(root)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        try:
            rest, _ = child.communicate(timeout=20)
        finally:
            child.kill()
        assert (rest, child.returncode) == ("interrupted\n", 0)


EXIT_SCRIPT = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from tests.runtime_programs import N, mixing_program
from tilewright.runtime.session import Session
session = Session(mixing_program(5), threads=3)
feeds = {"x": np.zeros(N, np.float32)}
def work():
    while True:
        session.run(feeds)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""


def test_exit_in_the_middle_of_runs() -> None:
    """The workers end before the interpreter unmaps their code."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", EXIT_SCRIPT, str(root)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_external_code_between_segments() -> None:
    spec = vector("t")

    def double(inputs: tuple[NDArray[np.float32], ...], outputs: tuple[NDArray[np.float32], ...]) -> None:
        assert not inputs[0].flags.writeable
        outputs[0][...] = inputs[0] * 2

    program = [
        Segment((KernelCall("add", 4, (inp(0), inp(1), arena(0))),)),
        ExternalCall("plugin/double", ((arena(0), spec),), ((arena(64), spec),)),
        Segment((KernelCall("add", 4, (arena(64), inp(0), out(0))),)),
    ]
    plan = artifact(program, [vector("a"), vector("b")], [vector("y")], arena_bytes=128)
    with Session(plan, threads=2, externals={"plugin/double": double}) as session:
        np.testing.assert_array_equal(session.run({"a": A, "b": B})["y"], (A + B) * 2 + A)
        np.testing.assert_array_equal(session.bind({"a": A, "b": B}).run()["y"], (A + B) * 2 + A)
        assert A.flags.writeable


def test_while_and_branch() -> None:
    """y counts up from x until it reaches n; then z = y if x < 0 else n."""
    x, n = TensorSpec("x", "int64", ()), TensorSpec("n", "int64", ())
    y, z = TensorSpec("y", "int64", ()), TensorSpec("z", "int64", ())
    flag, always = inp(2), arena(0)
    steps = [
        Segment((KernelCall("count", 1, (inp(0), inp(1), out(0), always)),)),
        While(always, (Segment((KernelCall("count", 1, (out(0), inp(1), out(0), always)),)),)),
        Branch(
            flag,
            (Segment((KernelCall("move", 1, (out(0), out(1))),)),),
            (Segment((KernelCall("move", 1, (inp(0), out(1))),)),),
        ),
    ]
    with Session(artifact(steps, [x, n, TensorSpec("f", "bool", ())], [y, z], arena_bytes=64)) as session:
        up = session.run({"x": 3, "n": 10, "f": True})
        assert (int(up["y"]), int(up["z"])) == (10, 10)
        once = session.run({"x": 30, "n": 10, "f": False})
        assert (int(once["y"]), int(once["z"])) == (31, 30)


def call(parts: int, barrier: bool = True) -> KernelCall:
    return KernelCall("nothing", parts, (), barrier)


@pytest.mark.parametrize(
    ("calls", "meet"),
    [
        ([call(4)], [False]),
        ([call(4), call(4)], [True, False]),
        ([call(1), call(1), call(1)], [False, False, False]),
        ([call(1), call(1), call(4)], [False, True, False]),
        (
            [call(1), call(1, False), call(4)],
            [False, True, False],
        ),  # the first one's barrier is put off, not lost
        ([call(4), call(1), call(1), call(4)], [True, False, True, False]),
        ([call(4, False), call(1), call(1)], [False, True, False]),
        ([call(4, False), call(4, False), call(4)], [False, False, False]),
    ],
)
def test_barriers_are_merged(calls: list[KernelCall], meet: list[bool]) -> None:
    assert merge_barriers(calls) == meet
