"""A Ctrl-C that arrives where exceptions are lost is not lost."""

import os
import signal
import weakref

import pytest

from tilewright.cli.interrupts import end_at_once, raising_interrupts
from tilewright.support.uninterrupted import uninterrupted


class Thing:
    pass


def test_an_interrupt_in_a_callback_of_a_weak_reference_is_raised_after_it() -> None:
    ended: list[bool] = []

    def callback(_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # here it is handled
            pass
        ended.append(True)

    uninterrupted(callback)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        end_at_once()
        with pytest.raises(KeyboardInterrupt), raising_interrupts():
            thing = Thing()
            held = weakref.ref(thing, callback)
            del thing
            assert held() is None
            for _ in range(10**8):
                pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [True]
