"""Charts of results: well-formed, with round numbers on their axes."""

from xml.etree import ElementTree

import pytest

from benchmarks.svg import log_chart, step_chart, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 60.0, [0, 10, 20, 30, 40, 50, 60]),
        (0.72, 1.01, [0.75, 0.8, 0.85, 0.9, 0.95, 1.0]),
        (0.0, 1234.0, [0, 200, 400, 600, 800, 1000, 1200]),
        (5.0, 5.0, [5.0]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_chart_has_a_path_and_a_name_for_each_line() -> None:
    lines = {"a < b": [(1.0, 1.0), (4.0, 0.8)], "other": [(2.0, 1.0)], "empty": []}
    root = ElementTree.fromstring(step_chart("T & T", "seconds", "share", lines, 10.0))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"T & T", "a < b", "other", "seconds", "share"} <= set(texts) and "empty" not in texts
    thick = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("fill") == "none"]
    assert len(thick) == 3  # the axes and two lines


def test_logarithmic_axes_go_from_a_power_of_ten_to_another() -> None:
    root = ElementTree.fromstring(log_chart("T", "nodes", "rate", {"one": [(1.0, 0.5), (1000.0, 20.0)]}))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0.1", "1", "10", "100", "1000", "one", "nodes", "rate"} <= set(texts) and "10000" not in texts
    (path,) = [
        e.get("d")
        for e in root.iter("{http://www.w3.org/2000/svg}path")
        if e.get("stroke-width") and e.get("fill")
    ]
    assert path is not None and path.startswith("M56.0 ") and "L520.0 " in path  # from edge to edge
