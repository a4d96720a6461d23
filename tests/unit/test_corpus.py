"""The corpus on disk: what is added is there, once, whatever happens to the process or to a part."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.support.errors import UserError
from tilewright.training.corpus import Corpus, ProgramRow, trial_key
from tilewright.training.rows import KernelKey, KernelRow, TrialRow


def kernel(name: str) -> KernelRow:
    return KernelRow(KernelKey(name), f"def {name}(): …", ("b", "w"), "net", "network")


def trial(name: str, decisions: str = "{}", **others: object) -> TrialRow:
    row = TrialRow(
        *(KernelKey(name), "net", "cpu 1234", 1, "gemm", decisions, "c0de", "ok"),
        *(2e-3, 1e-3, (1.9, 2.0, 2.1), "tilewright 0"),
    )
    return replace(row, **others)  # pyright: ignore[reportArgumentType]


PROGRAM = ProgramRow("net", "network", "cpu 1234", 1, 30, 2, 60, "")


def test_rows_come_back_as_they_were_added(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "new" / "corpus")
    failed = trial("k", '{"tile": 4}', status="build_error", code="", ratios=())
    corpus.add([kernel("k"), kernel("m")], [trial("k"), failed])
    corpus.add([kernel("n")], [trial("n", threads=2)])
    corpus.complete(PROGRAM)
    again = Corpus(corpus.folder)
    assert list(again.kernels().values()) == [kernel("k"), kernel("m"), kernel("n")]
    assert again.trials() == [trial("k"), failed, trial("n", threads=2)]
    assert again.programs() == [PROGRAM]


def test_a_trial_is_known_by_what_was_run_and_the_first_counts(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.add([kernel("k")], [trial("k")])
    again = trial("k", seconds=9.0, ratios=(9.0,), code="other", versions="tilewright 1")
    assert trial_key(again) == trial_key(trial("k"))
    others = [
        trial("k", program="other"),
        trial("k", threads=2),
        trial("k", machine="m"),
        trial("k", family="f"),
    ]
    corpus.add([replace(kernel("k"), program="other")], [again, *others])
    assert corpus.trials() == [trial("k"), *others]
    assert corpus.kernels()[KernelKey("k")].program == "net"


def test_of_a_trial_that_was_timed_again_the_longer_timing_counts(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    again = trial("k", ratios=(1.5,) * 9, seconds=1.5e-3)
    corpus.add([kernel("k")], [trial("k"), trial("k", '{"rows": 2}')])
    corpus.add([], [again])
    assert corpus.trials() == [again, trial("k", '{"rows": 2}')]


def test_a_program_is_complete_once(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.complete(PROGRAM)
    corpus.complete(replace(PROGRAM, threads=2))
    corpus.complete(replace(PROGRAM, per_kernel=60))
    assert [(p.threads, p.per_kernel) for p in corpus.programs()] == [(2, 30), (1, 60)]


def test_a_damaged_part_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = Corpus(tmp_path)
    for n in range(3):
        corpus.add([kernel("k")], [trial("k", f'{{"n": {n}}}')])
    part = tmp_path / "trials-000002.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    assert [t.decisions for t in corpus.trials()] == ['{"n": 0}', '{"n": 2}']
    assert corpus.damaged == [part]
    assert str(part) in caplog.text and "left out" in caplog.text
    corpus.add([], [trial("k", '{"n": 3}')])  # the next part does not take its place
    assert len(corpus.trials()) == 3 and part.exists()


def test_damaged_kernels_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    Corpus(tmp_path).add([kernel("k")], [])
    (tmp_path / "kernels.parquet").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"cannot be read") as caught:
        Corpus(tmp_path).kernels()
    assert "kernels.parquet" in str(caught.value) and "move it away" in str(caught.value)


def test_a_part_that_cannot_be_written_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(tmp_path)
    corpus.add([kernel("k")], [trial("k")])

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device"):
            corpus.add([], [trial("k", '{"n": 1}')])
    assert Corpus(tmp_path).trials() == [trial("k")]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".trials")]


ADDING = """
import sys
from dataclasses import replace
from tilewright.training.corpus import Corpus
from tilewright.training.rows import KernelKey, TrialRow
corpus = Corpus(sys.argv[1])
row = TrialRow(KernelKey("k"), "net", "cpu", 1, "gemm", "", "", "ok", 1.0, 1.0, (1.0,) * 6, "")
for n in range(10_000):
    corpus.add([], [replace(row, decisions=f"{n} {m}") for m in range(50)])
    print(n, flush=True)
"""


def test_a_kill_loses_at_most_the_batch_at_hand(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ADDING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        for _ in range(5):
            last = other.stdout.readline()
        time.sleep(0.005)  # somewhere in the next ones
        other.kill()
        last = (other.stdout.read().split() or [last])[-1]
    corpus = Corpus(tmp_path)
    found = [t.decisions for t in corpus.trials()]
    whole = [f"{n} {m}" for n in range(len(found) // 50) for m in range(50)]
    assert found == whole and not corpus.damaged
    assert len(found) >= 50 * (int(last) + 1)


def test_two_builds_of_one_corpus_are_refused(tmp_path: Path) -> None:
    with (
        Corpus(tmp_path).writing(),
        pytest.raises(UserError, match="another process adds to this corpus"),
        Corpus(tmp_path).writing(),
    ):
        pass
    with Corpus(tmp_path).writing():
        pass


def test_merging_adds_what_is_new(tmp_path: Path) -> None:
    one, two = Corpus(tmp_path / "one"), Corpus(tmp_path / "two")
    one.add([kernel("k")], [trial("k")])
    two.add([kernel("k"), kernel("m")], [trial("k", seconds=5.0), trial("m")])
    two.complete(PROGRAM)
    assert one.merge(two) == (1, 1)
    assert one.merge(two) == (0, 0)
    assert one.trials() == [trial("k"), trial("m")]
    assert set(one.kernels()) == {"k", "m"} and one.programs() == [PROGRAM]
    with pytest.raises(UserError, match="there is no corpus"):
        one.merge(Corpus(tmp_path / "absent"))


def test_many_parts_become_one(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    for n in range(40):
        corpus.add([kernel("k")], [trial("k", f'{{"n": {n}}}')])
    damaged = tmp_path / "trials-000007.parquet"
    damaged.write_bytes(b"nonsense")
    before = corpus.trials()
    corpus.compact()

    def parts() -> list[str]:
        return sorted(p.name for p in tmp_path.glob("trials-*"))

    assert parts() == ["trials-000007.parquet", "trials-000041.parquet"]
    assert corpus.trials() == before and len(before) == 39
    corpus.compact()  # few parts stay as they are
    assert len(parts()) == 2


def test_without_pyarrow_a_corpus_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="needs pyarrow") as caught:
        Corpus(tmp_path).add([kernel("k")], [])
    assert "pip install 'tilewright[learn]'" in str(caught.value)
