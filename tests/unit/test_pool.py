"""The pool of processes: every request is over in the end, whatever happens to the process that has it."""

import os
import signal
import sys
from collections.abc import Iterator
from math import inf

import pytest

from tilewright.support.errors import UserError
from tilewright.support.frames import pack
from tilewright.support.pool import (
    Pool,
    PoolRequest,
    ProcessDied,
    ProcessFailure,
    ProcessLate,
    module_command,
)

COMMAND = module_command("tests.dying_worker")
NEVER_READY = (sys.executable, "-c", "import time; time.sleep(100)")
CHATTERS = (sys.executable, "-c", "import os, time; os.write(1, bytes(1000)); time.sleep(100)")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(COMMAND) as made:
        yield made


def ask(pool: Pool, *texts: str, timeout: float = 30.0) -> list[PoolRequest]:
    requests = [pool.submit(pack(text), timeout) for text in texts]
    pool.wait(*requests)
    return requests


def said(requests: list[PoolRequest]) -> list[str]:
    return [str(r.failure) if r.answer is None else r.answer[0] for r in requests]


def test_requests_are_answered_in_any_number_of_processes() -> None:
    texts = [str(n) for n in range(20)]
    for limit in (1, 3):
        with Pool(COMMAND, limit) as pool:
            assert said(ask(pool, *texts)) == texts
            assert len(pool.pids) == limit


def test_a_process_that_dies_costs_the_request_that_it_was_at(pool: Pool) -> None:
    requests = ask(pool, "a", "die", "b", "leave", "c")
    assert said(requests) == [
        "a",
        "the process ended with SIGSEGV",
        "b",
        "the process ended with status 3",
        "c",
    ]
    assert [r.failure.code for r in requests if isinstance(r.failure, ProcessDied)] == [-signal.SIGSEGV, 3]


def test_a_process_that_hangs_is_ended(pool: Pool) -> None:
    late, good = ask(pool, "hang", "a", timeout=1.5)
    assert isinstance(late.failure, ProcessLate) and said([good]) == ["a"]


def test_a_process_that_does_not_get_ready_is_ended() -> None:
    with Pool(NEVER_READY, start_seconds=0.2) as pool:
        (request,) = ask(pool, "a")
    assert str(request.failure) == "the process has not answered in 0.2 s"


def test_a_process_that_answers_nonsense_is_ended() -> None:
    with Pool(CHATTERS) as pool:
        (request,) = ask(pool, "a")
        assert str(request.failure) == "the process answered nonsense" and pool.pids == []


def test_every_process_is_told_the_context_once(pool: Pool) -> None:
    note = pack("note")  # an answer to it would be taken for that to a request
    requests = [pool.submit(pack(text), 30.0, note) for text in ("a", "b", "die", "c", "d")]
    pool.wait(*requests)
    assert said(requests) == ["a", "b", "the process ended with SIGSEGV", "c", "d"]


def test_messages_larger_than_pipes_go_both_ways(pool: Pool) -> None:
    texts = [letter * (3 << 20) for letter in "ab"]
    assert said(ask(pool, *texts)) == texts


def test_requests_can_be_taken_back_while_no_process_has_them(pool: Pool) -> None:
    requests = [pool.submit(pack(str(n)), 30.0) for n in range(4)]
    pool.serve(0.0)  # the process gets two of them
    assert [pool.take_back(), pool.take_back(), pool.take_back()] == [requests[3], requests[2], None]
    pool.wait(*requests[:2])
    assert said(requests[:2]) == ["0", "1"]


def test_closing_ends_processes_and_requests(pool: Pool) -> None:
    requests = [pool.submit(pack("hang"), 30.0) for _ in range(3)]
    pool.serve(0.0)
    (pid,) = pool.pids
    pool.close()
    assert all(isinstance(r.failure, ProcessFailure) for r in requests) and pool.pids == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert said(ask(pool, "a")) == ["a"]  # it can be used again


def test_an_interrupted_wait_leaves_nothing_running(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> list[PoolRequest]:
        raise KeyboardInterrupt

    pool.start(1)
    monkeypatch.setattr(pool, "serve", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(pool, "a")
    assert pool.pids == []


def test_after_enough_losses_no_process_is_started() -> None:
    with Pool(COMMAND, losses=2) as pool:
        requests = [pool.submit(pack(text), 30.0) for text in ("die", "leave", "a")]
        pool.wait(*requests[:2])
        assert pool.limit == 0 and pool.take_back() is requests[2]


def test_a_command_that_cannot_be_run() -> None:
    with Pool(("/nowhere/python",)) as pool, pytest.raises(UserError, match="a process cannot be started"):
        ask(pool, "a")


def test_serving_without_requests_returns(pool: Pool) -> None:
    assert pool.serve(inf) == []


def test_processes_are_ready_before_they_are_asked() -> None:
    with Pool(COMMAND, 2) as pool:
        pool.start(2)
        pool.wait_until_ready()
        started = pool.pids
        assert said(ask(pool, "a", "b")) == ["a", "b"]
        assert pool.pids == started


def test_processes_that_do_not_get_ready_are_not_waited_for_long() -> None:
    with Pool(NEVER_READY, start_seconds=0.2) as pool:
        pool.start(1)
        pool.wait_until_ready()
