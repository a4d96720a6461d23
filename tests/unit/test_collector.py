"""The collector of cyclic garbage runs rarely while something is compiled, and as before afterwards."""

import gc
from collections.abc import Iterator

import pytest

from tilewright.support.collector import rare_collections


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_as_before_when_the_last_one_is_through() -> None:
    gc.set_threshold(600, 11, 12)
    with pytest.raises(KeyError), rare_collections():
        with rare_collections():
            assert gc.get_threshold()[0] > 100_000 and gc.isenabled()
        assert gc.get_threshold()[0] > 100_000
        raise KeyError
    assert gc.get_threshold() == (600, 11, 12)


def test_who_wants_it_never_or_more_rarely_still_has_it_so() -> None:
    for wanted in ((0, 0, 0), (10_000_000, 5, 5)):
        gc.set_threshold(*wanted)
        with rare_collections():
            assert gc.get_threshold() == wanted
        assert gc.get_threshold() == wanted
