"""Tuning on a cluster whose nodes are made up: who does what, what becomes of the work of nodes that are lost, and what
is kept. `tests/e2e/test_ray.py` has a real one.
"""

import logging
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw
from tests.fake_ray import FakeNode, FakeRay, FakeRayError, FakeReference
from tests.unit.test_inside import sited_layers, three_layers
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.search.default import spaces
from tilewright.support.errors import UserError
from tilewright.target.target import native
from tilewright.tuning.candidate import DEFAULT, Task
from tilewright.tuning.candidates import Point
from tilewright.tuning.cluster import Cluster, ClusterBuilder, ClusterRunner, batch_parts
from tilewright.tuning.crew import Crew, Member
from tilewright.tuning.sites import SitedProgram
from tilewright.tuning.trial import TrialStatus
from tilewright.tuning.tune import tune


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture(scope="module")
def program() -> SitedProgram:
    return sited_layers()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "tuning.db"


def statuses(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [s for (s,) in connection.execute("SELECT status FROM program_trials ORDER BY id")]


def last_status(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT status FROM tunings ORDER BY id DESC LIMIT 1").fetchone()[0]


# ------------------------------------------------------------------------------------------------------------- tuning


def test_a_model_is_tuned_by_all_nodes_that_are_left(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, dying = FakeNode("here"), FakeNode.dying("dying", "run", 2)
    ray = FakeRay(here, dying, FakeNode("head", cores=0)).install(monkeypatch)
    model = three_layers()
    x = np.random.default_rng(1).standard_normal((32, 48)).astype(np.float32)
    (before,) = tw.load(model).run({"x": x}).values()
    result = tune(model, budget=60, trials=12, database=database, on="ray")
    assert result.trials == 12 and not result.failures
    assert statuses(database) == ["ok"] * 12 and last_status(database) == "done"
    assert dying.calls.count("run") == 2 and not dying.is_alive  # what it was at was done by the other
    assert here.calls.count("run") >= 3
    assert "node dying (10.0.0.1, dying) is lost: The actor died because its node has died.;" in caplog.text
    assert not ray.actors and not ray.is_started  # nothing is left
    assert sum(t.trials for t in result.tasks) == 12
    monkeypatch.setenv("TILEWRIGHT_DB", str(database))
    (after,) = tw.load(model).run({"x": x}).values()
    np.testing.assert_allclose(
        np.asarray(after, np.float32), np.asarray(before, np.float32), rtol=1e-3, atol=1e-2
    )


def test_if_all_nodes_are_lost_what_was_measured_is_kept(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is asked next finds that nobody is left: those that build, or those that time."""
    FakeRay(FakeNode.dying("one", "run", 3), FakeNode.dying("other", "run", 2)).install(monkeypatch)
    with pytest.raises(
        UserError, match=r"all nodes of the cluster that (time|build) candidates are lost"
    ) as raised:
        tune(three_layers(), budget=60, database=database, on="ray")
    assert "the last: node o" in raised.value.message
    assert raised.value.hint is not None and "resume=True" in raised.value.hint
    kept = statuses(database)
    assert kept and set(kept) == {"ok"}
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT status, trials FROM tunings ORDER BY id").fetchall()
    status, trials = rows[-1]
    assert status == "running" and trials <= len(kept)  # it can be resumed


# -------------------------------------------------------------------------------------------------------------- parts


def test_what_a_lost_builder_was_at_is_built_by_another(
    program: SitedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, other = FakeNode.dying("dying", "build"), FakeNode("other")
    FakeRay(dying, other).install(monkeypatch)
    func, constants = program.funcs[program.sites[0].task]
    task = Task("key", func, constants, native(), spaces)
    with Cluster(None, 1) as cluster:
        builder = ClusterBuilder(cluster)
        good: Point = (DEFAULT, {})
        bad: Point = ("nonsense", {})
        built = builder.build_all([(task, good), (task, bad), (task, good)])
        assert [b.status for b in built] == [TrialStatus.OK, TrialStatus.BUILD_ERROR, TrialStatus.OK]
        assert not dying.is_alive and other.calls.count("build") == 3
        other.is_alive = False
        with pytest.raises(UserError, match="all nodes of the cluster that build candidates are lost"):
            builder.build_all([(task, good)])


def test_programs_are_prepared_everywhere_and_compared_on_this_node(
    program: SitedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, lost, other = FakeNode("here"), FakeNode.dying("lost", "prepare"), FakeNode("other")
    FakeRay(here, lost, other).install(monkeypatch)
    programs = [program.artifact] * 2
    with Cluster(None, 1) as cluster:
        runner = ClusterRunner(cluster)
        runner.prepare(program, 2)
        assert runner.copies == 2 and len(runner.seconds) == 3 and all(s > 0 for s in runner.seconds)
        cluster.runners.members.reverse()
        found = runner.compare(programs, rounds=2, seconds=0.01, tolerance=1e-6)
        assert not isinstance(found, str) and [len(s.rounds) for s in found] == [2, 2]
        assert "compare" in here.calls and "compare" not in other.calls
        here.is_alive = False
        assert not isinstance(runner.compare(programs, rounds=1, seconds=0.01, tolerance=1e-6), str)
        assert "compare" in other.calls


def test_who_does_what(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A runner has all cores of its node, and is on one of this machine's kind; nobody is asked who has other rules."""
    here, unlike, small = FakeNode("here", cores=4), FakeNode.unlike("unlike"), FakeNode("small")
    old = FakeNode("old", report=lambda r: replace(r, version="0.0.1", rules="others"))
    ray = FakeRay(here, unlike, small, old).install(monkeypatch)
    with Cluster(None, threads=2) as cluster:
        cluster.start()
        found = sorted((a.node.name, type(a.made).__name__, a.cpus) for a in ray.actors)
        assert found == [
            ("here", "NodeBuilder", 0),
            ("here", "NodeRunner", 4),
            ("small", "NodeBuilder", 0),
            ("unlike", "NodeBuilder", 0),
        ]
    assert "node unlike (10.0.0.1, unlike) is another kind of machine: it builds" in caplog.text
    assert "has 1 cores: it times no candidates on 2 threads" in caplog.text
    assert "its Tilewright 0.0.1 is not the one of this machine" in caplog.text
    assert not ray.actors


def test_a_cluster_of_other_machines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRay(FakeNode.unlike("other")).install(monkeypatch)
    with Cluster(None, 1) as cluster, pytest.raises(UserError, match="no node of the cluster can") as raised:
        cluster.start()
    assert "on a node of the kind that you want to tune for" in str(raised.value)


# ----------------------------------------------------------------------------------------------------------- requests


def crew_of(*nodes: FakeNode, patience: float = 60.0) -> tuple[Crew, FakeRay]:
    class Echo:
        def say(self, what: int) -> int:
            return what

    ray = FakeRay(*nodes)
    crew = Crew(ray, "echo", patience)
    crew.members += [Member(ray.remote(Echo).options(0, n.name).remote(), n.name) for n in nodes]
    return crew, ray


def test_a_request_that_costs_every_node_is_given_up() -> None:
    """Otherwise one candidate could end the whole cluster."""
    nodes = [FakeNode(f"n{n}") for n in range(5)]
    crew, ray = crew_of(*nodes)

    def ask(member: Member, what: int) -> object:
        reference = member.actor.say.remote(what)
        if what == 7:
            reference.call = lambda: ray_error()
        return reference

    def ray_error() -> None:
        raise FakeRayError("gone")

    assert crew.spread([5, 6, 7, 8], ask) == {0: 5, 1: 6, 3: 8}
    assert len(crew.members) == 2 and len(crew.lost) == 3
    assert len(ray.actors) == 2
    crew.check()


def test_a_member_that_does_not_answer_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    crew, ray = crew_of(FakeNode("quick"), FakeNode("hanging"), patience=0.0)
    wait = ray.wait

    def wait_for_quick(
        references: Sequence[FakeReference], num_returns: int, timeout: float
    ) -> tuple[list[FakeReference], list[FakeReference]]:
        quick = [r for r in references if r.node.name == "quick"]
        return wait(quick, num_returns, timeout) if quick else ([], list(references))

    ray.wait = wait_for_quick
    with caplog.at_level(logging.WARNING, "tilewright"):
        found = crew.spread([1, 2, 3], lambda m, what: m.actor.say.remote(what))
    assert found == {0: 1, 1: 2, 2: 3}
    assert "hanging is lost: it has not answered in 0 s" in caplog.text


@pytest.mark.parametrize(
    ("sites", "count", "sizes"),
    [
        ([0, 1, 2, 3], 2, [2, 2]),
        ([0, 0, 1, 1], 2, [2, 2]),
        ([0, 0, 0], 2, [1, 1, 1]),  # more than there are copies
        ([4], 3, [1]),
        ([], 3, []),
    ],
)
def test_in_a_part_every_site_has_one_candidate(sites: list[int], count: int, sizes: list[int]) -> None:
    parts = batch_parts(sites, count)
    assert [len(p) for p in parts] == sizes
    assert sorted(n for p in parts for n in p) == list(range(len(sites)))
    assert all(len({sites[n] for n in p}) == len(p) for p in parts)


# ----------------------------------------------------------------------------------------------------------- mistakes


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, database: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="needs Ray, which is not installed") as raised:
        tune(three_layers(), database=database, on="ray")
    assert raised.value.hint == "pip install 'tilewright[ray]'"


def test_the_command_says_so_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    model = tmp_path / "layers.onnx"
    model.write_bytes(three_layers().SerializeToString())
    result = CliRunner().invoke(main, ["tune", str(model), "--on", "ray"])
    assert result.exit_code == ExitStatus.USER_ERROR
    assert "pip install 'tilewright[ray]'" in result.stderr
    result = CliRunner().invoke(main, ["tune", str(model), "--address", "auto"])
    assert result.exit_code == ExitStatus.USER_ERROR and "give --on ray as well" in result.stderr


def test_what_cannot_be_tuned_on_a_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, database: Path
) -> None:
    FakeRay(FakeNode("one")).install(monkeypatch)
    with pytest.raises(UserError, match="only a model whose program runs as a whole"):
        tw.tune(three_layers(), dims={"n": (1, 8)}, on="ray", database=database)
    with pytest.raises(UserError, match="nothing can be tuned on 'slurm'"):
        tw.tune(three_layers(), on="slurm", database=database)
    with pytest.raises(UserError, match="an address is that of a cluster"):
        tw.tune(three_layers(), address="auto", database=database)


@pytest.mark.parametrize(
    ("given", "environment", "used"),
    [("10.0.0.1:6379", "x", "10.0.0.1:6379"), (None, "10.0.0.2:6379", "10.0.0.2:6379"), (None, "", "local")],
)
def test_the_address_is_that_of_the_option_or_of_the_environment(
    given: str | None, environment: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", environment)
    ray = FakeRay(FakeNode("one")).install(monkeypatch)
    with Cluster(given, 1) as cluster:
        cluster.start()
    assert ray.options["address"] == used


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay().install(monkeypatch)

    def refuse(**_: object) -> None:
        raise ConnectionError("nobody listens\nmore")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(UserError, match="cannot be used: nobody listens") as raised:
        Cluster("10.0.0.1:1", 1).start()
    assert raised.value.where == "10.0.0.1:1"
