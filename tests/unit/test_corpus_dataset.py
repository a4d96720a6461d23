"""Rows of a corpus as samples: which there are, with which features, and when these are computed again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests import small_corpus
from tests.unit.cost_samples import made_samples
from tests.unit.test_corpus_points import GEMM
from tilewright.learned.candidates import KernelCandidates
from tilewright.learned.features import ABSENT, FEATURES
from tilewright.search.database import decisions_text
from tilewright.search.default import spaces
from tilewright.support.frames import unpack
from tilewright.support.pool import PoolRequest
from tilewright.target.target import AVX2, native
from tilewright.tir.parser import parse_func
from tilewright.training import dataset
from tilewright.training.corpus import Corpus
from tilewright.training.dataset import LeftOut, at_one_place, samples
from tilewright.training.rows import KernelKey, KernelRow, TrialRow
from tilewright.training.sampler import answer, sample
from tilewright.training.samples import KernelSamples
from tilewright.training.splits import random_split
from tilewright.training.table import stacked

DOUBLE = """
@func
def double(x: f32[64, 128], y: out(f32[64, 128])):
    for i in range(64):
        for j in range(128):
            with block("y"):
                vi = spatial(64, i)
                vj = spatial(128, j)
                y[vi, vj] = x[vi, vj] + x[vi, vj]
"""
CONTRACTION = KernelRow(KernelKey("c"), GEMM, ("w",), "net", "network")
KERNEL = KernelRow(KernelKey("k"), DOUBLE, (), "net", "network")  # its schedules are soon found
AT = {name: n for n, name in enumerate(FEATURES)}


@cache
def points(kernel: KernelRow) -> list[dict[str, int]]:
    """Those of the first family, all different."""
    space, *_ = spaces(parse_func(kernel.text), AVX2, frozenset(kernel.constants))
    return [{k.name: int(v) for k, v in zip(space.knobs, row, strict=True)} for row in space.points()]


FIRST, SECOND, *_ = (p for p in points(KERNEL) if not p["streams"])  # others are not compared with these


def trial(decisions: dict[str, int], ratio: float = 1.0, **others: object) -> TrialRow:
    row = TrialRow(
        *(KERNEL.key, "net", "cpu 1234", 1, "stream", decisions_text(decisions), "c0de", "ok"),
        *(1e-3 * ratio, 1e-3, (ratio, 1.01 * ratio, 0.99 * ratio, ratio), "tilewright 0"),
    )
    return replace(row, **others)  # pyright: ignore[reportArgumentType]


class PoolHere:
    """Answers in this process. `asked` are the kernels that features were computed of."""

    asked: list[str]

    def __init__(self, command: Sequence[str], limit: int) -> None:
        assert command[-1] == "tilewright.training.sampler" and limit >= 1

    def __enter__(self) -> "PoolHere":
        return self

    def __exit__(self, *about: object) -> None: ...
    def wait(self, *requests: PoolRequest) -> None: ...

    def submit(self, body: bytes, timeout: float) -> PoolRequest:
        head, blobs = unpack(body)
        self.asked.append(head["key"])
        return PoolRequest(body, timeout, answer=unpack(answer(head, blobs)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    PoolHere.asked = []
    monkeypatch.setattr(dataset, "Pool", PoolHere)
    return PoolHere.asked


# -------------------------------------------------------------------------------------------------------------- sampler


def test_features_of_a_schedule_are_those_of_kernel_machine_and_knobs() -> None:
    knobs = {"rows": 4, "vectors": 2}
    point = next(p for p in points(CONTRACTION) if knobs.items() <= p.items())
    made = sample(CONTRACTION, [("gemm", point)], AVX2.for_threads(2), with_graph=True)
    assert made.kind == "gemm" and made.kept.tolist() == [0]
    row = dict(zip(FEATURES, made.candidates.features[0].tolist(), strict=True))
    bytes_of = {"input_bytes": 96 * 64, "constant_bytes": 64 * 80, "output_bytes": 96 * 80}
    wanted = {
        "work": np.log2(96 * 80 * 64),
        **{name: np.log2(4 * n) for name, n in bytes_of.items()},
        "reductions": 1.0,
        "lanes": 8.0,
        "threads": 2.0,
        "is_gemm": 1.0,
        "is_stream": 0.0,
        "knob_rows": np.log2(2 + 4),
        "knob_vectors": np.log2(2 + 2),
        "knob_grain": ABSENT,
        "cost": np.log2(made.candidates.costs[0]),
    }
    assert {name: row[name] for name in wanted} == pytest.approx(wanted)
    assert row["over_cheapest"] >= 0 and 1e-7 < made.candidates.costs[0] < 1e-3
    assert made.candidates.graph is not None and len(made.candidates.graph.nodes) > 3


def test_a_grain_is_a_feature_and_the_own_one_of_the_family_is_none() -> None:
    schedules = [("stream", FIRST | grain) for grain in ({}, {"grain": 0}, {"grain": 4}, {"grain": -1})]
    made = sample(KERNEL, schedules, AVX2, with_graph=False)
    assert made.candidates.features[:, AT["knob_grain"]].tolist() == [ABSENT, ABSENT, np.log2(6), 0.0]


def test_schedules_that_no_family_offers_are_not_kept() -> None:
    schedules = [
        ("stream", FIRST),
        ("stream", FIRST | {"vectors": 999}),
        ("absent", FIRST),
        ("stream", SECOND),
        ("stream", FIRST | {"nonsense": 1}),
    ]
    made = sample(KERNEL, schedules, AVX2, with_graph=False)
    assert made.kept.tolist() == [0, 3] and len(made.candidates.features) == len(made.candidates.costs) == 2
    alone = sample(KERNEL, [("stream", SECOND)], AVX2, with_graph=False)
    assert (made.candidates.features[1] == alone.candidates.features[0]).all()


# -------------------------------------------------------------------------------------------------------------- dataset


def test_rows_that_are_left_out_are_counted(
    tmp_path: Path, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    corpus = Corpus(tmp_path)
    old = replace(KERNEL, key=KernelKey("old"), text="@func\ndef of_an(older, version): …")
    trials = [
        trial(FIRST, 2.0),
        trial(FIRST | {"vectors": 999}),
        trial(FIRST, family="absent"),
        trial({}, family="default"),  # what was compiled is no choice
        trial(FIRST | {"tile": 999}, status="timeout", seconds=float("nan"), ratios=()),
        trial(FIRST, kernel=old.key),
        trial(SECOND, kernel=old.key),
        trial(FIRST, kernel=KernelKey("of no table")),
        trial(SECOND, 3.0),
    ]
    corpus.add([KERNEL, old], trials)
    left_out = LeftOut()
    (found,) = samples(corpus, AVX2, left_out=left_out)
    assert left_out == LeftOut(failed=1, gone=2, unreadable=3)
    assert found.seconds == pytest.approx([2e-3, 3e-3])
    assert found.noise.tolist() == [t.noise for t in (trials[0], trials[-1])]
    assert (found.key, found.program, found.source, found.kind) == ("k", "net", "network", "memory-bound")
    assert asked == ["k", "old"] and "the kernel old of net is left out" in caplog.text


def test_programs_machines_and_threads_are_not_mixed(tmp_path: Path, asked: list[str]) -> None:
    corpus = Corpus(tmp_path)
    others = [{"program": "other"}, {"machine": "cpu 5678"}, {"threads": 2}]
    corpus.add([KERNEL], [trial(FIRST), trial(SECOND), *(trial(FIRST, 2.0, **o) for o in others)])
    every = samples(corpus, AVX2)
    assert [(s.program, s.threads, len(s)) for s in every] == [
        *(("net", 1, 2), ("other", 1, 1), ("net", 1, 1), ("net", 2, 1))
    ]
    threads = [s.candidates.features[0, AT["threads"]] for s in every]
    assert threads == [1.0, 1.0, 1.0, 2.0]
    assert len(samples(corpus, AVX2, threads=2)) == 1
    (one,) = samples(corpus, AVX2, machine="cpu 5678")
    assert one.seconds.tolist() == [2e-3]


def test_features_are_computed_once(tmp_path: Path, asked: list[str]) -> None:
    copy = replace(KERNEL, key=KernelKey("copy"))
    corpus = Corpus(tmp_path)
    corpus.add([KERNEL, copy], [trial(FIRST), trial(SECOND, 3.0), trial(FIRST, kernel=copy.key)])
    before = samples(corpus, AVX2, with_graphs=True)
    assert asked == ["k", "copy"]
    again = samples(corpus, AVX2, with_graphs=True)
    assert asked == ["k", "copy"]
    for a, b in zip(before, again, strict=True):
        assert (a.key, a.kind) == (b.key, b.kind) and (a.seconds == b.seconds).all()
        assert (a.candidates.features == b.candidates.features).all()
        assert a.candidates.graph is not None and b.candidates.graph is not None
        assert (a.candidates.graph.edges == b.candidates.graph.edges).all()
    corpus.add([], [trial(SECOND, kernel=copy.key)])  # of this kernel there is more
    assert [len(s) for s in samples(corpus, AVX2, with_graphs=True)] == [2, 2]
    assert asked == ["k", "copy", "copy"]


def _other_rules(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(dataset, "rules_digest", lambda: "others")


def _other_sources(patch: pytest.MonkeyPatch, folder: Path) -> None:
    own = dataset.source_digest

    def digest(name: str) -> str:
        return "other" if name == "cost/terms.py" else own(name)

    patch.setattr(dataset, "source_digest", digest)


def _other_figures(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setitem(globals(), "AVX2", replace(AVX2, machine=replace(AVX2.machine, hertz=1e9)))


def _shortened(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (path,) = folder.glob("samples-*.npz")
    path.write_bytes(path.read_bytes()[:-30])


def _nonsense(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (path,) = folder.glob("samples-*.npz")
    path.write_bytes(b"nonsense")


@pytest.mark.parametrize("change", [_other_rules, _other_sources, _other_figures, _shortened, _nonsense])
def test_features_of_other_sources_and_damaged_ones_are_computed_again(
    change: Callable[[pytest.MonkeyPatch, Path], None],
    tmp_path: Path,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = Corpus(tmp_path)
    corpus.add([KERNEL], [trial(FIRST)])
    (before,) = samples(corpus, AVX2)
    change(monkeypatch, tmp_path)
    (after,) = samples(corpus, AVX2)
    assert asked == ["k", "k"]
    is_same = (before.candidates.features == after.candidates.features).all()
    assert is_same == (change is not _other_figures)
    samples(corpus, AVX2)
    assert asked == ["k", "k"]


# --------------------------------------------------------------------------------------------------- the small corpus


def test_the_small_corpus_has_no_paths_and_is_small() -> None:
    corpus = Corpus(small_corpus.FOLDER)
    rows = repr([*corpus.kernels().values(), *corpus.trials()])
    assert not any(word in rows for word in ("/home", "/root", "/tmp", "/work", "/usr"))
    files = list(small_corpus.FOLDER.iterdir())
    assert {p.suffix for p in files} == {".parquet"} and sum(p.stat().st_size for p in files) < 300_000
    assert len(corpus.kernels()) >= 24 and len(corpus.trials()) >= 400 and not corpus.damaged


def quick_kernels() -> list[KernelKey]:
    """One for each set of families that kernels have, without those whose spaces are large."""
    families: dict[KernelKey, set[str]] = {}
    for t in Corpus(small_corpus.FOLDER).trials():
        families.setdefault(t.kernel, set()).add(t.family)
    first = {frozenset(found): key for key, found in families.items() if not found & {"tensor", "gemm"}}
    return [*first.values()]


def test_samples_of_the_small_corpus_are_what_models_are_trained_on(tmp_path: Path) -> None:
    """By processes, as `tilewright cost` has them."""
    corpus = small_corpus.copied(tmp_path / "corpus", quick_kernels())
    left_out = LeftOut()
    found = samples(corpus, native(), processes=1, left_out=left_out)
    ok = [t for t in corpus.trials() if t.status == "ok" and t.family != "default"]
    assert left_out.gone + left_out.unreadable < len(ok) / 2, "cut it again: tests/small_corpus.py says how"
    assert sum(map(len, found)) == len(ok) - left_out.gone - left_out.unreadable - left_out.handed_on
    assert len({s.kind for s in found}) >= 4
    table = stacked(found)
    assert np.isfinite(table.features).all() and np.isfinite(table.residuals).all()
    assert np.median(table.noise) < 0.1
    assert np.mean([_agreement(s) for s in found if len(s) > 8]) > 0.2
    split = random_split(found, seed=0)
    assert split.test and not {s.key for s in split.test} & {s.key for s in split.train}


def _agreement(s: KernelSamples) -> float:
    """The rank correlation of costs and times, which is none if times stand beside the features of others."""
    ranks = [np.argsort(np.argsort(v)) for v in (s.candidates.costs, s.seconds)]
    a, b = (r - r.mean() for r in ranks)
    return float(a @ b) / float(a @ a)


def test_decisions_in_rows_are_json_with_sorted_keys() -> None:
    for t in Corpus(small_corpus.FOLDER).trials():
        assert json.dumps(json.loads(t.decisions), sort_keys=True) == t.decisions


def test_results_that_go_past_the_caches_are_not_compared_with_others() -> None:
    """The next kernel pays for them, which the time of one kernel does not show."""
    (one,) = made_samples(1, 1, 6)
    stream, streams = FEATURES.index("is_stream"), FEATURES.index("knob_streams")
    features = one.candidates.features.copy()
    features[:, FEATURES.index("is_gemm")], features[:, stream] = 0.0, 1.0
    features[:, streams] = np.log2([2, 2, 3, 2, 3, 3])
    costs = np.array([2.0, 1.0, 1.5, 3.0, 4.0, 5.0])
    given = replace(one, candidates=KernelCandidates(features, costs, None))
    assert at_one_place(given).candidates.costs.tolist() == [2.0, 1.0, 3.0]
    assert at_one_place(at_one_place(given)).candidates.costs.tolist() == [2.0, 1.0, 3.0]
