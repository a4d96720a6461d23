"""Building a corpus: what is measured, kept and not measured again; with processes that only pretend to."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from examples.models import mlp
from tilewright.support.errors import UserError
from tilewright.target.target import AVX2
from tilewright.training import collect
from tilewright.training.collect import Collector, CollectProgress, SourceProgram, machine_name
from tilewright.training.corpus import Corpus, UnwritableCorpusError, trial_key
from tilewright.training.net import Net
from tilewright.training.rows import TrialRow
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Built, Point
from tilewright.tuning.crew import NobodyLeftError
from tilewright.tuning.insides import InsideOutcome
from tilewright.tuning.sites import SitedProgram
from tilewright.tuning.trial import Candidate, TrialStatus
from tilewright.tuning.workplace import Workplace


def convolutions() -> ModelProto:
    net = Net(np.random.default_rng(0))
    net.conv(net.same("Relu", net.conv(net.input(1, 16, 12, 12), 32, (3, 3))), 16, (3, 3))
    return net.model("convolutions")


PROGRAM = SourceProgram("mlp", "gemm", lambda: mlp((32, 24, 16), batch=2))
CONVOLUTIONS = SourceProgram("convolutions", "convolution", convolutions)
SECONDS = 1e-3  # of each site


class Builder:
    """Candidates of the family "stream" cannot be built."""

    def __init__(self) -> None:
        self.built: list[Point] = []

    def start(self) -> None: ...
    def wait_until_ready(self) -> None: ...
    def close(self) -> None: ...

    def build_all(self, wanted: Sequence[tuple[Task, Point]]) -> list[Built]:
        self.built += [p for _, p in wanted]
        failed = Built(TrialStatus.BUILD_ERROR, message="it refuses")
        return [
            failed if family == "stream" else Built(TrialStatus.OK, _made(d)) for _, (family, d) in wanted
        ]


def _made(decisions: object) -> Candidate:
    return Candidate((repr(decisions).encode(),), (), (), (), 0)


class Runner:
    """The first candidate at a site is wrong, others take half as long. After `lives` runs it is interrupted, or fails
    with `loss`.
    """

    copies = 1

    def __init__(self, lives: float, loss: UserError | None = None) -> None:
        self.seconds: Sequence[float] = ()
        self.lives, self.loss = lives, loss
        self.placed: list[list[int]] = []

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *about: object) -> None: ...
    def close(self) -> None: ...

    def prepare(self, program: SitedProgram, runs: int) -> None:
        self.seconds = [SECONDS for _ in program.sites]

    def run(self, placed: Sequence[tuple[int, Candidate]], runs: int) -> list[InsideOutcome]:
        self.lives -= 1
        if self.lives < 0:
            raise self.loss or KeyboardInterrupt
        self.placed.append([site for site, _ in placed])
        if len(self.placed) == 1:
            return [InsideOutcome(TrialStatus.WRONG_RESULT, message="off") for _ in placed]
        return [InsideOutcome(TrialStatus.OK, (0.5,) * runs) for _ in placed]


class Bench:
    """Collects with these, as often as it is asked to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.corpus, self._patch = Corpus(folder), monkeypatch

    def collect(
        self,
        programs: Sequence[SourceProgram],
        per_kernel: int = 12,
        lives: float = math.inf,
        budget: float = math.inf,
        structures: int = 0,
        loss: UserError | None = None,
    ) -> tuple[CollectProgress, Builder, Runner]:
        builder, runner = Builder(), Runner(lives, loss)
        self._patch.setattr(collect, "workplace", lambda *args: Workplace(builder, runner))  # pyright: ignore
        self._patch.setattr(collect, "Insides", lambda *args: runner)  # pyright: ignore
        with Collector(
            self.corpus, AVX2, per_kernel=per_kernel, budget=budget, structures=structures
        ) as collector:
            collector.run(programs)
            return collector.now, builder, runner

    def trials(self) -> list[TrialRow]:
        return [t for t in self.corpus.trials() if t.family != "default"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_each_kernel_gets_its_trials_with_what_became_of_them(bench: Bench) -> None:
    now, builder, runner = bench.collect([PROGRAM])
    kernels, trials = bench.corpus.kernels(), bench.trials()
    assert len(kernels) == now.kernels == 2 and {k.source for k in kernels.values()} == {"gemm"}
    assert {k: sum(t.kernel == k for t in trials) for k in kernels} == dict.fromkeys(kernels, 12)
    assert len(builder.built) == now.trials == 24
    failed = [t for t in trials if t.status == "build_error"]
    assert failed and all(t.family == "stream" and math.isnan(t.seconds) and not t.code for t in failed)
    assert sum(t.status == "wrong_result" for t in trials) == 2
    assert now.failures == {"build_error": len(failed), "wrong_result": 2}
    good = [t for t in trials if t.status == "ok"]
    assert {(t.seconds, t.compiled_seconds, len(set(t.ratios))) for t in good} == {(SECONDS / 2, SECONDS, 1)}
    assert len({t.code for t in good}) == len({t.decisions for t in good})
    assert all(len(t.ratios) >= 6 and t.machine == machine_name(AVX2) and t.threads == 1 for t in good)
    assert all(sorted(sites) == [0, 1] for sites in runner.placed[:4]), "sites are timed together"
    assert json.loads(good[0].decisions)


def test_what_was_compiled_is_a_row_of_its_own(bench: Bench) -> None:
    bench.collect([PROGRAM])
    own = [t for t in bench.corpus.trials() if t.family == "default"]
    assert len(own) == 2
    assert {(t.seconds, t.compiled_seconds, t.ratios) for t in own} == {(SECONDS, SECONDS, (1.0,))}


def test_a_complete_program_is_not_looked_at_again(bench: Bench) -> None:
    bench.collect([PROGRAM])

    def nothing() -> Path:
        raise AssertionError("it was read again")

    now, builder, _ = bench.collect([SourceProgram("mlp", "gemm", nothing)])
    assert now.programs == 1 and not builder.built
    with pytest.raises(AssertionError):  # more are wanted of each kernel
        bench.collect([SourceProgram("mlp", "gemm", nothing)], per_kernel=13)


def test_an_interrupted_build_goes_on_where_it_was(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.collect([PROGRAM], lives=3)
    kept = bench.trials()
    assert 0 < len(kept) < 24 and not bench.corpus.programs()
    now, builder, _ = bench.collect([PROGRAM])
    assert len(builder.built) == now.trials == 24 - len(kept)
    trials = bench.trials()
    assert len(trials) == 24 and [*map(trial_key, trials)][: len(kept)] == [*map(trial_key, kept)]
    assert len(bench.corpus.programs()) == 1


def test_a_kernel_that_another_program_had_is_not_measured_again(bench: Bench) -> None:
    bench.collect([PROGRAM])
    now, builder, _ = bench.collect([SourceProgram("copy", "network", PROGRAM.make)])
    assert not builder.built and now.kernels == 0
    assert [p.program for p in bench.corpus.programs()] == ["mlp", "copy"]
    assert {k.program for k in bench.corpus.kernels().values()} == {"mlp"}


def test_when_the_time_is_over_nothing_is_begun(bench: Bench) -> None:
    now, builder, _ = bench.collect([PROGRAM], budget=1e-9)
    assert not builder.built and now.programs == 0 and not bench.corpus.programs()


def test_a_program_that_cannot_be_measured_does_not_end_the_build(bench: Bench, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    now, _, _ = bench.collect([SourceProgram.of_file(broken), PROGRAM])
    assert [name for name, _ in now.problems] == ["broken"] and now.programs == 2
    rows = {p.program: p.problem for p in bench.corpus.programs()}
    assert rows["broken"] and not rows["mlp"]


@pytest.mark.parametrize(
    ("loss", "hint"),
    [
        (NobodyLeftError("all nodes are lost", hint="--resume"), "the same command goes on"),
        (UnwritableCorpusError("no space left", hint="make room"), "make room"),
    ],
)
def test_what_a_program_has_no_part_in_ends_the_build(bench: Bench, loss: UserError, hint: str) -> None:
    """And the program is not given up for it."""
    with pytest.raises(UserError, match=loss.message) as caught:
        bench.collect([PROGRAM], lives=2, loss=loss)
    assert caught.value.hint is not None and hint in caught.value.hint
    assert not bench.corpus.programs()
    kept = bench.trials()
    assert kept
    now, _, _ = bench.collect([PROGRAM])
    assert now.programs == 1 and now.trials == 24 - len(kept) and not now.problems


def test_other_structures_bring_kernels_also_of_a_program_that_was_complete(bench: Bench) -> None:
    bench.collect([CONVOLUTIONS], per_kernel=2)
    own = set(bench.corpus.kernels())
    now, _, _ = bench.collect([CONVOLUTIONS], per_kernel=2, structures=1)
    more = set(bench.corpus.kernels()) - own
    assert len(more) == now.kernels > 0 and now.trials == 2 * len(more)
    assert [p.structures for p in bench.corpus.programs()] == [1]
    again, builder, _ = bench.collect([CONVOLUTIONS], per_kernel=2)
    assert again.programs == 1 and not builder.built


def test_processes_that_have_built_many_candidates_are_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Builder] = []

    def candidates(limit: int) -> Builder:
        started.append(Builder())
        return started[-1]

    monkeypatch.setattr(collect, "Candidates", candidates)
    monkeypatch.setattr(collect, "_MANY_BUILT", 20)
    other = SourceProgram("other", "gemm", lambda: mlp((40, 30), batch=3))
    _, first, _ = bench.collect([PROGRAM, other])
    assert len(first.built) == 24 and [len(b.built) for b in started] == [12]
