"""What `accuracy=` does to a network of convolutions: which algorithms it gets, how far off it is, where NaN goes."""

import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import tilewright as tw
from tests.onnx_cases import Model
from tilewright.cli.main import main
from tilewright.ops.accuracy import AccuracyLike
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.window import Window

Floats: TypeAlias = NDArray[np.floating[Any]]

CHANNELS, EXTENT = 64, 28
WINDOW = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))


class Net:
    """Two layers with a rectifier in between, compiled once for each accuracy; and what they compute in float64."""

    def __init__(self) -> None:
        m, rng = Model(), np.random.default_rng(0)
        shape = (CHANNELS, CHANNELS, 3, 3)
        scale = 1 / np.sqrt(9 * CHANNELS)
        self.weights = [(rng.standard_normal(shape) * scale).astype(np.float32) for _ in range(2)]
        self.x = rng.standard_normal((1, CHANNELS, EXTENT, EXTENT)).astype(np.float32)
        first, second = (m.constant(w) for w in self.weights)
        hidden = m.op("Relu", m.op("Conv", m.input(*self.x.shape), first, pads=[1, 1, 1, 1]))
        self.model = m.finish(m.op("Conv", hidden, second, pads=[1, 1, 1, 1]))
        self._compiled: dict[AccuracyLike | None, tw.CompiledModel] = {}

    def compiled(self, accuracy: AccuracyLike | None) -> tw.CompiledModel:
        if accuracy not in self._compiled:
            self._compiled[accuracy] = tw.compile(self.model, accuracy=accuracy)
        return self._compiled[accuracy]

    def run(self, accuracy: AccuracyLike | None, x: Floats) -> Floats:
        with self.compiled(accuracy).session(1) as session:
            found = session.run({session.inputs[0].name: x})
        return np.asarray(found[session.outputs[0].name], np.float32)

    def reference(self, x: Floats) -> Floats:
        first, second = (w.astype(np.float64) for w in self.weights)
        (hidden,) = Conv(WINDOW).reference((x.astype(np.float64), first))
        (out,) = Conv(WINDOW).reference((np.where(hidden < 0, 0, hidden), second))
        return np.asarray(out, np.float64)

    def algorithms(self, accuracy: AccuracyLike | None) -> list[str]:
        return self.compiled(accuracy).artifact.manifest.options.get("algorithms", "").splitlines()


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


def error(found: Floats, exact: Floats) -> float:
    return float(np.abs(found - exact).max() / np.abs(exact).max())


def test_by_default_errors_stay_within_the_bound(net: Net) -> None:
    first, second = net.algorithms(None)
    assert all("Winograd F(4×4, 3×3)" in a and "error" in a for a in (first, second))
    assert error(net.run(None, net.x), net.reference(net.x)) < 2e-5


def test_a_stricter_bound_leaves_smaller_tiles(net: Net) -> None:
    first, second = net.algorithms(6e-7)
    assert "Winograd F(2×2, 3×3)" in first and "Winograd F(2×2, 3×3)" in second
    assert error(net.run(6e-7, net.x), net.reference(net.x)) < 3e-6


def test_exact_has_plain_sums_only(net: Net) -> None:
    assert net.algorithms("exact") == [] == net.algorithms(1e-8)
    assert error(net.run("exact", net.x), net.reference(net.x)) < 3e-6


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_under_exact_what_is_not_finite_is_where_it_belongs(net: Net, value: float) -> None:
    x = net.x.copy()
    x[0, 3, 10, 17] = value
    with np.errstate(invalid="ignore"):
        exact = net.reference(x)
        spread = net.run(None, x)
    found = net.run("exact", x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(np.isposinf(found), np.isposinf(exact))
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(exact))
    touched = ~np.isfinite(exact)
    assert not np.isfinite(spread[touched]).any(), "by default it may spread, but is never lost"
    # Nothing beyond the tiles that overlap what a plain sum would reach.
    rows = np.flatnonzero((~np.isfinite(spread)).any(axis=(0, 1, 3)))
    assert rows.min() >= 10 - 8 and rows.max() <= 10 + 8


def test_inspect_says_algorithm_and_error(net: Net, tmp_path: Path) -> None:
    program = tmp_path / "net.tw"
    net.compiled(None).save(program)
    result = CliRunner().invoke(main, ["inspect", str(program), "--json"])
    found = json.loads(result.stdout)
    assert found["accuracy"] == "2e-05"
    assert [f"{a['layer']}: {a['algorithm']}" for a in found["algorithms"]] == net.algorithms(None)
    text = CliRunner().invoke(main, ["inspect", str(program)]).stdout
    assert "Winograd F(4×4, 3×3)" in text and ", error " in text
    with pytest.raises(tw.UserError, match="exact is asked for"):
        tw.load(program, accuracy="exact")
