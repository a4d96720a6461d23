"""What the commands are made of: statistics, comparison, made-up inputs, option values, the peak loops."""

from pathlib import Path

import click
import numpy as np
import pytest

from benchmarks.interleave import interleave
from tilewright.cli.difference import compare_outputs, worst
from tilewright.cli.feeds import make_feeds, read_array
from tilewright.cli.guest.turn import MIN_RUNS, WARM_UP_RUNS
from tilewright.cli.machine import machine, memory_mb, versions
from tilewright.cli.options import parse_assignments, parse_shapes
from tilewright.cli.output import milliseconds, print_table
from tilewright.cli.peak import fma_loop, read_loop
from tilewright.runtime.made_feeds import write_npy
from tilewright.support.affinity import pinned
from tilewright.support.artifact import TensorSpec
from tilewright.support.errors import UserError
from tilewright.support.turns import Series, median_of_rounds, speedup
from tilewright.target.target import BASELINE, native

# --------------------------------------------------------------------------------------------------------- statistics


def series(*medians: float) -> Series:
    return Series(tuple((m * 0.9, m, m * 1.1) for m in medians))


def test_speedup_is_taken_round_by_round() -> None:
    """Both engines slow down together in round 2; the ratio does not see it."""
    ratio = speedup(series(1.0, 5.0, 1.0), series(2.0, 10.0, 2.0))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    assert ratio.verdict == "faster"


def test_ratio_within_noise_is_no_difference() -> None:
    ratio = speedup(series(1.0, 1.0, 1.0, 1.0), series(0.9, 1.1, 0.95, 1.05))
    assert ratio.low < 1 < ratio.high
    assert ratio.verdict == "no difference"


def test_slower_is_said() -> None:
    assert speedup(series(2.0, 2.0), series(1.0, 1.0)).verdict == "slower"


def test_median_of_rounds_has_an_interval() -> None:
    found = median_of_rounds([0.9, 0.8, 0.85, 0.1])
    assert (found.value, found.low, found.high) == pytest.approx((0.825, 0.1, 0.9))


def test_series_statistics() -> None:
    s = series(1.0, 2.0)
    assert s.runs == 6
    assert s.spread == pytest.approx(1.0)
    assert s.round_bests == pytest.approx((0.9, 1.8))
    assert s.median == pytest.approx(1.45)
    assert s.as_json()["p99_seconds"] <= 2.2


def test_engines_take_turns_in_alternating_order() -> None:
    order: list[str] = []
    found = interleave({n: lambda n=n: order.append(n) for n in "ab"}, rounds=2, seconds=0)
    runs = WARM_UP_RUNS + MIN_RUNS
    assert "".join(order) == "a" * runs + "b" * runs + "b" * runs + "a" * runs
    assert [s.runs for s in found.values()] == [2 * MIN_RUNS, 2 * MIN_RUNS]


# --------------------------------------------------------------------------------------------------------- comparison


def error(got: list[float], wanted: list[float]) -> float:
    return worst(compare_outputs({"y": np.array(got)}, {"y": np.array(wanted)}))


def test_error_is_relative_to_the_largest_magnitude() -> None:
    assert error([1.0, 101.0], [1.0, 100.0]) == pytest.approx(0.01)
    assert error([0.0], [0.0]) == 0


@pytest.mark.parametrize(
    ("got", "wanted"),
    [([np.nan, 1], [1, 1]), ([1, 1], [np.nan, 1]), ([np.inf], [-np.inf]), ([1, 2], [1]), ([np.inf], [1])],
)
def test_special_values_and_shapes_must_match(got: list[float], wanted: list[float]) -> None:
    assert error(got, wanted) == float("inf")


def test_special_values_in_the_same_place_agree() -> None:
    assert error([np.nan, np.inf, 2], [np.nan, np.inf, 2]) == 0


# ------------------------------------------------------------------------------------------------------------- inputs


def test_random_feeds_depend_on_the_seed_only() -> None:
    specs = (
        TensorSpec("x", "float32", (2, 3)),
        TensorSpec("i", "int64", (9,)),
        TensorSpec("h", "bfloat16", (2,)),
    )
    a, b, c = (make_feeds(specs, {}, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a[s.name], b[s.name]) for s in specs)
    assert not np.array_equal(a["x"], c["x"])
    assert {n: (str(v.dtype), v.shape) for n, v in a.items()} == {s.name: (s.dtype, s.shape) for s in specs}
    assert set(a["i"].tolist()) <= {0, 1}


def test_feeds_come_from_files(tmp_path: Path) -> None:
    value = np.arange(4, dtype=np.float32)
    write_npy(str(tmp_path / "x.data"), value)
    feeds = make_feeds([TensorSpec("x", "float32", (4,))], {"x": str(tmp_path / "x.data")})
    assert np.array_equal(feeds["x"], value)


def test_file_for_an_unknown_input_is_refused() -> None:
    with pytest.raises(UserError, match="no input 'z'"):
        make_feeds([TensorSpec("x", "float32", ())], {"z": "z.npy"})


def test_pickles_and_archives_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "archive.npz", x=np.zeros(1))
    for name in ("pickle.npy", "archive.npz", "absent.npy"):
        with pytest.raises(UserError, match=name):
            read_array(str(tmp_path / name))


# ------------------------------------------------------------------------------------------------------------ options


CONTEXT = click.Context(click.Command("test"))
OPTION = click.Option(["--shape"])


def test_shapes_are_read() -> None:
    found = parse_shapes(CONTEXT, OPTION, ("x=1x3x224x224", "a=b=7", "s=scalar"))
    assert found == {"x": (1, 3, 224, 224), "a=b": (7,), "s": ()}


@pytest.mark.parametrize("text", ["x", "x=", "=1", "x=1x", "x=0", "x=-1", "x=1.5", "x=²"])
def test_bad_shapes_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_shapes(CONTEXT, OPTION, (text,))


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="twice"):
        parse_assignments(CONTEXT, OPTION, ("x=a", "x=b"))


# ------------------------------------------------------------------------------------------------- output and machine


def test_table_shows_markup_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("[bold]", 1234)])
    assert capsys.readouterr().out.split() == ["name", "n", "[bold]", "1,234"]


def test_times_have_three_digits() -> None:
    assert [milliseconds(s) for s in (1.2345, 0.012345, 1.2345e-6)] == ["1234 ms", "12.3 ms", "1.23 µs"]


def test_pinning_ends() -> None:
    before = machine().affinity
    with pinned(1) as cores:
        assert machine().affinity == cores
        assert len(cores) == 1
    assert machine().affinity == before


def test_machine_describes_itself() -> None:
    now, peak = memory_mb()
    assert 0 < now <= peak + 1
    assert versions()["numpy"] == np.__version__
    assert 1 <= machine().threads <= machine().cores


@pytest.mark.parametrize("target", [BASELINE, native()], ids=["baseline", "native"])
def test_peak_loops_do_what_they_count(target: object) -> None:
    """The sums converge to x / (1 - x) with x = 0.5, and reading leaves the data as it was."""
    assert isinstance(target, type(BASELINE))
    fma = fma_loop(target, seconds=1e-4)
    fma.run()
    assert np.array_equal(
        fma.data.array.view(np.float32)[: 12 * target.lanes(4)], np.ones(12 * target.lanes(4))
    )
    read = read_loop(target, 4096)
    assert read.nbytes == 4096
    read.data.array[100] = 5
    read.run()
    assert read.data.array[100] == 5
    assert (
        read.data.array[: target.vector_bytes].max() == 5
    )  # the union of all bytes read is stored at the front
