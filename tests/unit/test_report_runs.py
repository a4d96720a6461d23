"""What a report tells of runs: threads, comparisons, trials of tuning, and events for other viewers."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from examples.models import mlp
from tests.report_samples import made_up
from tilewright.cli.part_times import part_times
from tilewright.cli.report_tuning import tuning_curves
from tilewright.driver.tuned import tuning_scope
from tilewright.profiling.call_times import kernel_calls
from tilewright.report.charts import busy_shares, peak_of, threads_svg, tuning_svg
from tilewright.report.chrome_trace import chrome_trace
from tilewright.report.comparison import compare_runs
from tilewright.report.data import BoxFacts, PartSpan, TimelineFacts, TuningCurve
from tilewright.report.page import render_page
from tilewright.search.database import Database, Measurement
from tilewright.stages import Stages, stages
from tilewright.target.target import native


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    path = tmp_path_factory.mktemp("threads") / "mlp.onnx"
    path.write_bytes(mlp((64, 256, 32), batch=32).SerializeToString())
    return stages(path)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_part_of_every_call_is_recorded_once(compiled: Stages, threads: int) -> None:
    feeds = {"x": np.ones((32, 64), np.float32)}
    lived = part_times(compiled.artifact, feeds, target=native(), threads=threads)
    calls = [*kernel_calls(compiled.artifact.program)]
    for n, call in enumerate(calls):
        assert sum(s.parts for s in lived.spans if s.call == n) == call.parts
    assert all(0 <= s.begin <= s.end <= lived.seconds for s in lived.spans)
    assert {s.thread for s in lived.spans} <= set(range(threads))
    for thread in range(threads):
        own = [s for s in lived.spans if s.thread == thread]
        assert all(a.end <= b.begin for a, b in pairwise(own))


def _with_threads(spans: int = 3) -> TimelineFacts:
    return TimelineFacts(
        0.004,
        tuple(PartSpan(n % 2, 1e-3 * n, 1e-3 * n + 5e-4, n % 2, 2) for n in range(spans)),
    )


def test_threads_are_drawn_with_how_busy_they_were() -> None:
    report = replace(made_up(), timeline=_with_threads())
    assert busy_shares(report) == pytest.approx({0: 0.25, 1: 0.125})
    drawn = threads_svg(report)
    assert drawn.count('class="span"') == 3
    assert "kernel_1: 2 of 4 parts" in drawn
    assert "There is no record of threads" in render_page(made_up())


def test_other_viewers_get_an_event_for_each_span() -> None:
    events = chrome_trace(replace(made_up(), timeline=_with_threads()))["traceEvents"]
    bars = [e for e in json.loads(json.dumps(events)) if e["ph"] == "X"]
    assert [(e["tid"], e["ts"], e["dur"]) for e in bars] == [
        pytest.approx((n % 2, 1000 * n, 500)) for n in range(3)
    ]
    assert bars[0]["args"]["nodes"] == ["node_0"]
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"caller", "worker 1"}


def test_memory_is_needed_from_the_first_call_to_the_last() -> None:
    assert peak_of(made_up(3).arena) == (128, 1)
    assert peak_of(()) == (0, 0)


def test_runs_are_compared_by_the_names_of_nodes() -> None:
    before = made_up(2)
    nodes = (replace(before.nodes[0], seconds=5e-3), replace(before.nodes[1], name="new"))
    now = replace(before, nodes=nodes, run=replace(before.run, seconds=6e-3, threads=2))
    found = compare_runs(before, now)
    assert found.ratio == pytest.approx(0.5)
    assert [(r.name, r.before, r.now) for r in found.rows] == [
        ("node_0", 1e-3, 5e-3),
        ("new", None, 2e-3),
        ("node_1", 2e-3, None),
    ]
    assert found.cautions == ("The number of threads was another: 1 before, 2 now.",)
    page = render_page(now, before)
    assert "0.500 times as fast" in page and "The number of threads was another" in page


def test_trials_of_tuning_come_from_the_database(compiled: Stages, tmp_path: Path) -> None:
    database, scope = Database(tmp_path / "tuning.db"), tuning_scope(compiled.target)
    func, task = next(iter(compiled.tasks.items()))
    box = BoxFacts(func, "Gemm", "native", "as stated", (), (), (), (), 1.0)
    assert tuning_curves(compiled, [box], 1, database) == []
    for purpose, seconds, status in (
        ("default", 3e-3, "ok"),
        ("trial", 4e-3, "ok"),
        ("trial", None, "failed"),
        ("trial", 2e-3, "ok"),
        ("choice", 2e-3, "ok"),
    ):
        database.record(scope, Measurement(task, purpose, "gemm", {"rows": 6}, status, seconds, 1))
    (curve,) = tuning_curves(compiled, [box], 2, database)  # there is none for two threads
    assert curve == TuningCurve(func, (), 3e-3, (4e-3, None, 2e-3), "gemm, rows = 6")
    database.close()
    drawn = tuning_svg(curve)
    assert drawn.count('class="trial"') == 2
    assert 'class="untuned"' in drawn and 'class="best"' in drawn
    assert "gemm, rows = 6" in render_page(replace(made_up(), tuning=(curve,)))
