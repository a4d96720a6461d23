"""Tuning on real Ray clusters of two nodes, which are processes of this machine. A cluster takes ten seconds to start
and its actors as many to import us, so these tests are slow; `tests/unit/test_cluster.py` has the same with nodes that
are made up.
"""

import logging
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.unit.test_inside import three_layers
from tilewright.support.errors import UserError
from tilewright.tuning.tune_result import TuningProgress

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own

STORE = {"object_store_memory": 80 << 20, "num_cpus": 1}
# Another processor, as far as that node can tell.
UNLIKE = """
import tilewright.support.processor
tilewright.support.processor.cpu_model = lambda: "another"
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """Of a head that takes no part."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    utils: Any = import_module("ray.cluster_utils")
    made = utils.Cluster(
        initialize_head=True,
        head_node_args={
            **STORE,
            "num_cpus": 0,
            "include_dashboard": False,
            # A node is given up after a second without a sign of life.
            "_system_config": {
                "health_check_initial_delay_ms": 0,
                "health_check_period_ms": 500,
                "health_check_timeout_ms": 500,
                "health_check_failure_threshold": 2,
            },
        },
    )
    yield made
    made.shutdown()


def kill_node(node: Any) -> None:
    """All of its processes, at once, as if the machine had lost power."""
    (raylet,) = (p.process.pid for p in node.all_processes["raylet"])
    pids = [raylet, *descendants(raylet)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


class Killer:
    """Kills nodes when so many trials were made: a moment later, while the next are under way."""

    def __init__(self, nodes: list[Any], trials: int) -> None:
        self._nodes, self._trials = nodes, trials
        self.thread: threading.Thread | None = None

    def __call__(self, now: TuningProgress) -> None:
        if now.trials >= self._trials and self.thread is None:
            self.thread = threading.Thread(target=self._kill)
            self.thread.start()

    def _kill(self) -> None:
        time.sleep(0.1)
        for node in self._nodes:
            kill_node(node)


def rows(database: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def check_results(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is right with what was found."""
    model = three_layers()
    x = np.random.default_rng(1).standard_normal((32, 48)).astype(np.float32)
    (before,) = tw.load(model).run({"x": x}).values()
    with monkeypatch.context() as m:
        m.setenv("TILEWRIGHT_DB", str(database))
        (after,) = tw.load(model).run({"x": x}).values()
    np.testing.assert_allclose(
        np.asarray(after, np.float32), np.asarray(before, np.float32), rtol=1e-3, atol=1e-2
    )


def test_a_cluster_tunes_a_model_and_survives_the_loss_of_a_node(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tilewright")
    nodes = [cluster.add_node(**STORE) for _ in range(2)]
    database = tmp_path / "tuning.db"
    killer = Killer(nodes[1:], trials=18)
    result = tw.tune(
        *(three_layers(),),
        budget=60,
        trials=60,
        database=database,
        on="ray",
        address=cluster.address,
        progress=killer,
    )
    assert killer.thread is not None
    killer.thread.join()
    assert "cluster: 2 nodes build, 2 time" in caplog.text and "is lost" in caplog.text
    assert result.trials == 60 and not result.failures
    assert rows(database, "SELECT DISTINCT status FROM program_trials") == [("ok",)]
    assert rows(database, "SELECT COUNT(*) FROM program_trials") == [(60,)]
    assert rows(database, "SELECT status, trials FROM tunings ORDER BY id DESC LIMIT 1") == [("done", 60)]
    check_results(database, monkeypatch)


def test_if_all_nodes_are_killed_what_was_measured_is_kept(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "tuning.db"
    options: dict[str, Any] = {"database": database, "on": "ray", "address": cluster.address}
    nodes = [cluster.add_node(**STORE) for _ in range(2)]
    with pytest.raises(UserError, match=r"all nodes of the cluster that (time|build) candidates are lost"):
        tw.tune(three_layers(), budget=100, progress=Killer(nodes, trials=12), **options)
    ((kept,),) = rows(database, "SELECT COUNT(*) FROM program_trials WHERE status = 'ok'")
    assert kept >= 12
    cluster.add_node(**STORE)
    result = tw.tune(three_layers(), trials=kept + 6, resume=True, **options)
    assert rows(database, "SELECT COUNT(*) FROM program_trials") == [(kept + result.trials,)]
    points = "SELECT COUNT(*) FROM (SELECT DISTINCT task, rule, decisions FROM program_trials)"
    assert rows(database, points) == [(kept + result.trials,)]  # none twice
    check_results(database, monkeypatch)


def test_a_node_of_another_kind_times_nothing(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tilewright")
    (tmp_path / "sitecustomize.py").write_text(UNLIKE)
    cluster.add_node(**STORE)
    cluster.add_node(**STORE, env_vars={"PYTHONPATH": str(tmp_path)})
    result = tw.tune(
        *(three_layers(),),
        budget=60,
        trials=6,
        database=tmp_path / "tuning.db",
        on="ray",
        address=cluster.address,
    )
    assert "is another kind of machine: it builds candidates, and times none" in caplog.text
    assert "cluster: 2 nodes build, 1 time" in caplog.text
    assert result.trials == 6 and not result.failures
