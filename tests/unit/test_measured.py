"""Placement by measurement: pieces of a model, who gets which, and that the whole decides in the end."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from graph_cases import f32, floats

from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import Unit
from tilewright.graph.graph import Graph, Node
from tilewright.graph.segments import segments, subgraph, work
from tilewright.graph.surroundings import Surroundings
from tilewright.graph.verify import verify_graph
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.arithmetic import Add
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.pointwise import Exp
from tilewright.placement.measured import Assignment, choose
from tilewright.placement.timer import PlacementTimer, graph_digest
from tilewright.runtime.session import Session
from tilewright.search.database import Database, RecordScope


def layers(n: int, width: int = 8) -> Graph:
    """MatMuls and activations in turns, with a shortcut over each pair."""
    b = GraphBuilder()
    x = b.input("x", f32(4, width))
    for i in range(n):
        h = b.apply(MatMul(), x, b.constant(f"w{i}", floats(width, width)))
        x = b.apply(Add(), b.apply(Relu() if i < n // 2 else Exp(), h), x)
    return b.finish(x)


class Pretended:
    """A lab that adds up what nodes are said to take; `whole` is what is really so."""

    pieces = 12

    def __init__(self, seconds: Callable[[Node, str], float], whole: float = 1.0) -> None:
        self._seconds, self._whole = seconds, whole
        self.asked: list[tuple[int, tuple[str, ...]]] = []
        self.compared: list[Assignment] = []

    def seconds(self, part: Graph, plugins: Sequence[str]) -> dict[str, float]:
        self.asked.append((len(part.nodes), tuple(plugins)))
        return {name: sum(self._seconds(n, name) for n in part.nodes) for name in ("", *plugins)}

    def compare(self, graph: Graph, choices: Mapping[str, Assignment]) -> dict[str, float]:
        self.compared = list(choices.values())
        return {
            name: sum(self._seconds(n, c.get(n, "")) for n in graph.nodes)
            * (self._whole if len(set(c.values())) > 0 else 1.0)
            for name, c in choices.items()
        }

    def why_not(self, plugin: str) -> str:
        return ""


def claimed(graph: Graph, *names: str, by: Callable[[Node], bool] = lambda n: True) -> dict[str, list[Unit]]:
    """Plugins that would take these nodes, each by itself."""
    units = [Unit(n.name, graph, (n,), n.inputs, n.outputs) for n in graph.nodes if by(n)]
    return {name: units for name in names}


def by_activation(node: Node, plugin: str) -> float:
    """The plugin is quick at exponentials, and we are at the rest."""
    is_exp = isinstance(node.op, Exp)
    return 1e-3 * (1.0 if is_exp == (plugin == "theirs") else 1.3)


def test_pieces_are_in_order_and_have_about_the_same_work() -> None:
    graph = layers(16)
    pieces = segments(graph, 4)
    assert [n for p in pieces for n in p] == list(graph.nodes)
    assert len(pieces) == 4
    loads = [sum(map(work, p)) for p in pieces]
    assert max(loads) <= 1.5 * min(loads)
    around = Surroundings(graph)
    for p in pieces:
        verify_graph(subgraph(around, "piece", p))


def test_little_goes_across_a_cut() -> None:
    """Where many values are alive, there is no cut."""
    b = GraphBuilder()
    x = b.input("x", f32(4, 8))
    heads = [b.apply(MatMul(), x, b.constant(f"w{i}", floats(8, 8))) for i in range(8)]
    total = heads[0]
    for h in heads[1:]:
        total = b.apply(Add(), total, h)
    graph = b.finish(b.apply(Relu(), b.apply(Exp(), total)))
    for p in segments(graph, 20)[1:]:
        assert len(subgraph(Surroundings(graph), "piece", p).inputs) <= 3


def test_what_belongs_together_is_in_one_piece() -> None:
    graph = layers(16)
    together = [graph.nodes[i : i + 3] for i in range(4, 40, 6)]
    pieces = segments(graph, 100, together)
    assert len(pieces) > 16
    for nodes in together:
        assert sum(not set(nodes).isdisjoint(p) for p in pieces) == 1


def test_each_gets_what_it_is_quickest_at() -> None:
    graph = layers(12)
    lab = Pretended(lambda n, p: 1e-3 * (0.7 if (graph.nodes.index(n) >= 18) == (p == "theirs") else 1.0))
    found = choose(graph, claimed(graph, "theirs"), lab)
    assert found.name == "mixed"
    assert found.seconds["mixed"] < min(found.seconds["native"], found.seconds["theirs"])
    assert found.assignment is not None
    assert {graph.nodes.index(n) for n in found.assignment} == set(range(18, 36))


def test_changing_hands_all_the_time_does_not_pay() -> None:
    """Every second node is quicker elsewhere, by less than it takes to get there."""
    graph = layers(12)
    lab = Pretended(lambda n, p: 1e-6 * (0.7 if (graph.nodes.index(n) % 2 == 0) == (p == "theirs") else 1.0))
    assert "mixed" not in choose(graph, claimed(graph, "theirs"), lab).seconds


def test_the_whole_has_the_last_word() -> None:
    """Parts promise more than the whole keeps: native code stays."""
    lab = Pretended(by_activation, whole=1.5)
    graph = layers(12)
    found = choose(graph, claimed(graph, "theirs"), lab)
    assert found.name == "native" and found.assignment == {}
    assert len(lab.compared) >= 2


def test_native_code_stays_where_a_plugin_is_hardly_faster() -> None:
    graph = layers(4)
    found = choose(graph, claimed(graph, "theirs"), Pretended(lambda n, p: 0.995e-3 if p else 1e-3))
    assert found.name == "native"


def test_where_plugins_take_nothing_nothing_is_timed() -> None:
    graph = layers(4)
    lab = Pretended(by_activation)
    found = choose(graph, {"theirs": [], "others": []}, lab)
    assert (found.name, found.assignment, found.seconds) == ("native", {}, {})
    assert not lab.asked and not lab.compared


def test_a_piece_that_nobody_takes_something_of_is_not_timed() -> None:
    graph = layers(12)
    last = graph.nodes[-1]
    lab = Pretended(lambda n, p: 1e-3)
    choose(graph, claimed(graph, "theirs", by=lambda n: n is last), lab)
    assert len(lab.asked) == 1


def test_a_plugin_that_wins_all_it_takes_is_compared_once() -> None:
    """Pieces of which it takes nothing do not make a mixture."""
    graph = layers(12)
    early = set(graph.nodes[:18])
    lab = Pretended(lambda n, p: 0.5e-3 if p else 1e-3)
    found = choose(graph, claimed(graph, "theirs", by=early.__contains__), lab)
    assert list(found.seconds) == ["native", "theirs"]


def test_progress_is_told() -> None:
    graph = layers(12)
    seen: list[tuple[int, int]] = []
    lab = Pretended(by_activation)
    choose(graph, claimed(graph, "theirs"), lab, lambda done, total: seen.append((done, total)))
    total = len(lab.asked) + 1
    assert seen == [(n, total) for n in range(total + 1)]


def test_what_nobody_can_run_alone_is_left_to_all() -> None:
    class Hopeless(Pretended):
        def seconds(self, part: Graph, plugins: Sequence[str]) -> dict[str, float]:
            return {}

        def compare(self, graph: Graph, choices: Mapping[str, Assignment]) -> dict[str, float]:
            return dict.fromkeys(choices, math.inf)

    graph = layers(4)
    found = choose(graph, claimed(graph, "theirs"), Hopeless(by_activation))
    assert (found.name, found.assignment) == ("greedy", None)
    assert list(found.seconds) == ["native", "theirs"]


# ------------------------------------------------------------------------------------------------- placements, timed


class Clockwork:
    """In place of a session: a run takes a while, or fails."""

    def __init__(self, seconds: float = 0.0, error: str = "") -> None:
        self._seconds, self._error = seconds, error
        self.is_closed = False

    def bind(self, feeds: Mapping[str, object]) -> "Clockwork":
        return self

    def run(self) -> None:
        if self._error:
            raise RuntimeError(self._error)
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass

    def __enter__(self) -> "Clockwork":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


class Bench:
    """A timer of placements over made-up sessions, by the plugins that take part."""

    def __init__(
        self, path: Path, sessions: Mapping[str, Clockwork | Exception | None], strict: bool = False
    ) -> None:
        self.built: list[str] = []
        self.sessions = sessions

        def build(graph: Graph, assignment: Assignment) -> Session | None:
            name = "+".join(sorted(set(assignment.values())))
            self.built.append(name)
            made = sessions[name]
            if isinstance(made, Exception):
                raise made
            return cast("Session | None", made)

        scope = RecordScope("target", "rules")
        self.bench = PlacementTimer(build, Database(path / "db"), scope, 1, {"theirs": "1"}, strict=strict)


def test_parts_are_timed_once(tmp_path: Path) -> None:
    graph = layers(2)
    first = Bench(tmp_path, {"": Clockwork(2e-3), "theirs": Clockwork(1e-3), "idle": None})
    found = first.bench.seconds(graph, ["theirs", "idle"])
    assert found["theirs"] < 0.8 * found[""] and "idle" not in found
    assert first.bench.known(graph, "") == found[""] and first.bench.known(graph, "idle") is None
    again = Bench(tmp_path, {})
    assert again.bench.seconds(graph, ["theirs", "idle"]) == found
    assert again.built == []


def test_wholes_are_kept_too(tmp_path: Path) -> None:
    graph = layers(2)
    all_theirs = dict.fromkeys(graph.nodes, "theirs")
    some = dict.fromkeys(graph.nodes[:2], "theirs")
    made = Bench(tmp_path, {"": Clockwork(2e-3), "theirs": Clockwork(1e-3)})
    found = made.bench.compare(graph, {"native": {}, "theirs": all_theirs, "mixed": some})
    assert set(found) == {"native", "theirs", "mixed"}
    assert made.bench.known(graph, "theirs") == found["theirs"]
    assert made.bench.known(graph, "") == found["native"]


@pytest.mark.parametrize("broken", [Clockwork(error="the device is on fire"), RuntimeError("no driver")])
def test_who_fails_does_not_take_the_others_along(
    tmp_path: Path, broken: Clockwork | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    graph = layers(2)
    made = Bench(tmp_path, {"": Clockwork(1e-3), "theirs": broken, "other": Clockwork(2e-3)})
    choices = {"native": {}, **{n: dict.fromkeys(graph.nodes, n) for n in ("theirs", "other")}}
    with caplog.at_level(logging.WARNING, "tilewright"):
        found = made.bench.compare(graph, choices)
    assert found["theirs"] == math.inf and found["native"] < found["other"] < math.inf
    assert caplog.text.count("placement without theirs: RuntimeError") == 1
    assert all(s.is_closed for s in made.sessions.values() if isinstance(s, Clockwork))


@pytest.mark.parametrize("broken", [Clockwork(error="on fire"), RuntimeError("on fire")])
def test_who_must_not_fail_fails_loudly(tmp_path: Path, broken: Clockwork | Exception) -> None:
    graph = layers(2)
    made = Bench(tmp_path, {"": Clockwork(1e-3), "theirs": broken}, strict=True)
    with pytest.raises(RuntimeError, match="on fire"):
        made.bench.compare(graph, {"native": {}, "theirs": dict.fromkeys(graph.nodes, "theirs")})


@pytest.mark.parametrize("change", ["names", "weights", "ops", "shape"])
def test_a_part_is_known_by_what_it_computes(change: str) -> None:
    before = graph_digest(layers(2))
    b = GraphBuilder()
    x = b.input("other" if change == "names" else "x", f32(4, 16 if change == "shape" else 8))
    for i in range(2):
        width = x.shape[1]
        h = b.apply(MatMul(), x, b.constant(f"w{i}", floats(width, width)))
        x = b.apply(Add(), b.apply(Relu() if i == 0 and change != "ops" else Exp(), h), x)
    assert (graph_digest(b.finish(x)) == before) == (change in ("names", "weights"))
