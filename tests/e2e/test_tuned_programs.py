"""What tuning has found for a whole program is used by the next load, and left where it does not apply any more."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.unit.test_inside import three_layers
from tilewright.driver.keys import model_digest
from tilewright.driver.tuned import tuned_model_key, tuning_scope
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.cache import NO_CACHE
from tilewright.search.database import Database
from tilewright.search.program_records import ProgramRecord
from tilewright.target.target import native

MODEL = three_layers()
X = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "tuning.db"))
    return Database(tmp_path / "tuning.db")


def record(database: Database, trace: str, threads: int = 1) -> None:
    key = tuned_model_key(model_digest(MODEL, NO_CACHE), None, Accuracy.of(None))
    database.record_program(tuning_scope(native()), ProgramRecord(key, threads, trace, 1.0, 2.0))


def run(threads: int = 1) -> Any:
    with tw.load(MODEL, threads=threads) as session:
        return session.run({"x": X})["y"]


def test_the_next_load_uses_it(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    wanted = run()
    trace = tw.compile(MODEL).trace.with_section("joins", ())
    record(database, str(trace))
    for _ in range(2):  # compiled, and from the cache
        caplog.clear()
        with caplog.at_level(logging.INFO, "tilewright"):
            np.testing.assert_allclose(run(), wanted, rtol=1e-5, atol=1e-5)
        assert "tuned: the whole program, from the database" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "tilewright"):
        run(threads=2)  # it was tuned for another number
    assert "tuned: the whole program" not in caplog.text


@pytest.mark.parametrize(
    "trace", ["[groups]\nGroup(func='nobody', values=('nothing',))\n", "[sections]\n", "not a trace ("]
)
def test_what_does_not_apply_is_left(
    database: Database, caplog: pytest.LogCaptureFixture, trace: str
) -> None:
    wanted = run()
    record(database, trace)
    with caplog.at_level(logging.INFO, "tilewright"):
        np.testing.assert_array_equal(run(), wanted)
    assert "any more" in caplog.text and "tuned: the whole program" not in caplog.text


def test_an_empty_trace_stays_with_the_default(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    record(database, "")
    with caplog.at_level(logging.INFO, "tilewright"):
        run()
    assert "tuned" not in caplog.text
