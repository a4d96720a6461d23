"""The page of networks in 8 bits: ratios to other engines and to float32, and errors."""

from typing import Any

from benchmarks.low_precision import FLOATS, Measured, page_parts, shows
from benchmarks.suite_results import OURS


def cell(seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "rounds": [seconds * 0.9, seconds, seconds * 1.1]}


FOUND = Measured(
    "net",
    1,
    {OURS: cell(0.01), "ort": cell(0.02), "openvino": cell(0.015), FLOATS: cell(0.03)},
    {OURS: 1e-3, "ort": 2e-3, FLOATS: 0.5},
)
FAILED = Measured("other", 1, {OURS: cell(0.01), "ort": {"failed": "no such operator"}}, {OURS: 1e-3})
PEERS = ("ort", "openvino")


def test_the_best_of_the_others_is_compared() -> None:
    assert FOUND.best(PEERS) == "openvino"
    ratio = FOUND.ratio("openvino")
    assert ratio is not None and abs(ratio.value - 1.5) < 1e-9 and ratio.low < 1.5 < ratio.high
    assert "1.50 times the speed of the best of ort and openvino, and 3.00 times our own" in shows(
        [FOUND], PEERS
    )


def test_an_engine_that_fails_has_no_ratio() -> None:
    assert FAILED.best(PEERS) is None and FAILED.ratio("ort") is None
    _, text = page_parts([FOUND, FAILED], PEERS)
    (line,) = [row for row in text.splitlines() if row.startswith("| other")]
    assert line.count("fails") == 3 and "1.0e-03" in line
