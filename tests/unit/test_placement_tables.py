"""The page of plugins, the promises that it checks, and the parts that composed models are made of."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.placement import broken_promises
from benchmarks.placement_composed import choose_parts, compose
from benchmarks.placement_parts import FLOATS, PARTS, model_of
from benchmarks.placement_results import MEASURED, NATIVE, Composed, Program, Results, Row
from benchmarks.placement_tables import pages
from tilewright.frontend.onnx.load import load_graph

Golden = Callable[[str, str], None]


def program(ms: float, *runs_it: str, regions: int = 0, code: str = "") -> Program:
    rounds = tuple(ms * f for f in (1.0, 1.02, 0.99, 1.01, 1.0))
    return Program(rounds, runs_it or (NATIVE,), regions, 4.2, 1e-7, code)


def row(measured: float, native: float = 10.0, plugin: float = 12.0) -> Row:
    return Row(
        {
            MEASURED: program(measured, NATIVE, "mine", regions=2),
            NATIVE: program(native),
            "mine": program(plugin, "mine", regions=1),
        }
    )


def part(native: float, plugin: float) -> Row:
    return Row({NATIVE: program(native), "mine": program(plugin, "mine", regions=1)})


def results() -> Results:
    nothing = Row(
        {
            NATIVE: program(10.0, code="a"),
            "greedy": program(10.1, code="a"),
            MEASURED: program(9.9, code="a"),
        }
    )
    failed = Row({MEASURED: Program(failure="out of luck"), NATIVE: program(3.0), "mine": program(2.0)})
    return Results(
        2,
        {"mine": "1.5"},
        {"networks": "`python -m benchmarks.placement`, commit 1234567, 2026-01-01."},
        {"net": row(9.0), "slow": row(10.5), "failed": failed},
        {"net": nothing},
        {"quick": part(8.0, 4.0), "Conv": part(4.0, 8.0), "neither": part(0.2, 0.21)},
        [Composed("mine", "quick", "Conv", row(8.0))],
    )


def test_page(golden: Golden) -> None:
    golden("plugins_page.md", "\n\n".join(pages(results())) + "\n")


def test_results_survive_the_file(tmp_path: Path) -> None:
    found = results()
    found.write(tmp_path / "r.json")
    again = Results.read(tmp_path / "r.json")
    assert again == found
    assert pages(again) == pages(found)


def test_nothing_measured_is_an_empty_page() -> None:
    assert pages(Results(1, {"mine": "1"})) == ["One thread. Plugins: mine 1."]


# --------------------------------------------------------------------------------------------------------- promises


def test_two_percent_are_allowed_beyond_noise() -> None:
    assert row(10.1).broken_promises == []
    assert row(10.5).broken_promises == ["1.050 of the time of native"]
    assert row(13.0).broken_promises == ["1.300 of the time of native", "1.083 of the time of mine"]


def test_noise_is_no_broken_promise() -> None:
    noisy = Program((9.0, 12.0, 10.0, 13.0, 9.5), (NATIVE,))
    assert Row({MEASURED: noisy, NATIVE: program(10.0)}).broken_promises == []


def test_a_program_that_could_not_be_made_breaks_its_promise() -> None:
    assert broken_promises(results()) == [
        "slow: 1.050 of the time of native",
        "failed: no program: out of luck",
    ]


def test_a_composed_model_has_to_beat_both() -> None:
    assert Composed("mine", "a", "b", row(9.0)).broken_promises == []
    (why,) = Composed("mine", "a", "b", row(11.0)).broken_promises
    assert why.startswith("does not beat native: 0.91")


# ------------------------------------------------------------------------------------------------------------ parts


def test_parts_are_chosen_by_what_differs_most() -> None:
    parts = {"a": part(2.0, 1.0), "b": part(3.0, 1.0), "c": part(1.0, 1.5), "d": part(1.0, 1.1)}
    assert choose_parts(parts, "mine") == ("b", "c")
    assert choose_parts({"a": parts["a"], "d": parts["d"]}, "mine") is None
    assert choose_parts({}, "mine") is None


def test_what_a_plugin_does_not_take_is_no_part_for_it() -> None:
    refused = Row({NATIVE: program(9.0), "mine": program(1.0)})
    assert choose_parts({"refused": refused, "c": part(1.0, 2.0)}, "mine") is None


def test_what_is_over_at_once_is_no_part() -> None:
    assert choose_parts({"a": part(2.0, 1.0), "c": part(1.0, 1.5)}, "mine") == ("a", "c")
    assert choose_parts({"a": part(2.0, 1.0), "c": part(0.1, 0.15)}, "mine") is None


def test_parts_of_a_composed_model_take_about_the_same_time() -> None:
    parts = {"Tanh": part(8.0, 4.0), "Sin": part(2.0, 4.0)}
    kinds = [n.op_type for n in compose(parts, "mine", "Tanh", "Sin").graph.node]
    assert kinds == ["Tanh"] * 8 + ["Sin"] * 16


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_one_native_program(name: str) -> None:
    graph = load_graph(model_of(PARTS[name], PARTS[name]))
    assert [v.shape for v in graph.outputs] == [(FLOATS,)]
