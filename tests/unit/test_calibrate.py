"""Measuring the figures of this host."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from examples.models import mlp
from tilewright.cli import calibrate as module
from tilewright.cli.calibrate import calibrate, meeting_seconds, read_rate
from tilewright.cli.main import main
from tilewright.cli.peak import clock_loop, fma_loop
from tilewright.cli.summary import print_summary, summary_of
from tilewright.compiler import compile
from tilewright.support.processor import cpu_model
from tilewright.target.figures import calibrated
from tilewright.target.machine import SHIPPED
from tilewright.target.target import BASELINE, native


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ALL", 0.3)
    monkeypatch.setattr(module, "_RUN_BYTES", 1 << 20)
    monkeypatch.setattr(module, "_MOST_MEMORY", 32 << 20)


def test_all_figures_are_found() -> None:
    said: list[str] = []
    figures = calibrate(native(), 2, said.append)
    figures.check()
    assert len(figures.l3_rates) == len(figures.memory_rates) == 2
    assert figures.memory_rates[0] <= figures.memory_rates[1]
    assert said == ["clock and ports", *(f"reads from {n}" for n in ("L2", "L3", "memory")), "meetings"]


def test_one_thread_meets_nobody() -> None:
    figures = calibrate(native(), 1)
    assert figures.meeting_seconds == SHIPPED.meeting_seconds
    assert len(figures.memory_rates) == 1


def test_the_clock_is_that_of_dependent_operations() -> None:
    """A sum of multiply-adds, each of which needs the last, takes whole cycles for each, on every CPU."""
    target = native()
    clock, chain = clock_loop(target), fma_loop(target, chains=1)
    hertz = clock.cycles / clock.seconds(40)
    latency = hertz * chain.seconds(40) / (chain.flops / 2 / target.lanes(4))
    assert 1e8 < hertz < 1e10
    assert 2 < latency < 20


def test_the_baseline_can_be_measured() -> None:
    assert clock_loop(BASELINE).cycles > 0
    assert read_rate(BASELINE, 1 << 16, 2, 0.01) > 1e6
    assert meeting_seconds(BASELINE, 2, 0.01) > 0


@pytest.mark.parametrize(
    "threads, counts",
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 3, 4, 6]), (64, [1, 2, 3, 4, 8, 16, 32, 64])],
)
def test_of_many_threads_some_numbers_are_measured(threads: int, counts: list[int]) -> None:
    assert module._counts(threads) == counts  # pyright: ignore[reportPrivateUsage]


def test_numbers_between_are_on_a_line_and_never_fall() -> None:
    found = module._filled([1, 2, 4], [10.0, 30.0, 20.0], 4)  # pyright: ignore[reportPrivateUsage]
    assert found == (10.0, 30.0, 30.0, 30.0)
    assert module._filled([1, 3], [10.0, 30.0], 3) == (10.0, 20.0, 30.0)  # pyright: ignore[reportPrivateUsage]


def test_doctor_keeps_them_and_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept" / "figures.json"
    monkeypatch.setenv("TILEWRIGHT_FIGURES", str(path))
    result = CliRunner().invoke(main, ["doctor", "--calibrate"])
    assert result.exit_code == 0, result.output
    assert str(path) in result.stdout and "calibrated" in result.stdout
    machine = native().machine
    assert machine == calibrated(machine, cpu_model()) and "calibrated" in machine.name


def test_doctor_says_first_that_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_FIGURES", "off")
    monkeypatch.setattr("tilewright.cli.doctor.measure_figures", lambda *_: pytest.fail("it was measured"))
    result = CliRunner().invoke(main, ["doctor", "--calibrate"])
    assert result.exit_code == 1 and "no place" in result.stderr


def test_doctor_tells_of_what_is_not_used_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.doctor.unused_features", lambda: ("AVX-512: so wide",))
    assert "AVX-512: so wide" in CliRunner().invoke(main, ["doctor"]).stdout


def test_inspect_tells_of_the_machine_and_of_what_is_not_used_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tilewright.cli.summary.unused_features", lambda: ("AVX-512: so wide",))
    print_summary(summary_of(compile(mlp((8, 8, 4))).artifact, {}))
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"made with the figures of {native().machine.name}; for any number of threads"
    assert second == "not used yet: AVX-512: so wide"
