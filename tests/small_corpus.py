"""A small corpus for tests, in `tests/data/corpus`: some kernels of each kind, with all of their trials.

It was cut from a large one, and is cut again if families have changed so much that few of its schedules are left:

    python -m tests.small_corpus LARGE [FOLDER]

LARGE is a corpus (`tilewright corpus build`) that nobody adds to meanwhile. Kernels are taken in turn from all pairs of
a source and the family of the quickest schedule, those with the least noise first. Long ones are passed over: to find
their schedules takes too long for a test.
"""

import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from statistics import median

from tilewright.training.corpus import Corpus
from tilewright.training.rows import KernelKey, KernelRow, TrialRow
from tilewright.tuning.candidate import DEFAULT
from tilewright.tuning.trial import TrialStatus

FOLDER = Path(__file__).parent / "data" / "corpus"

_KERNELS = 26
_LONGEST = 31_000  # characters of a Func
_LEAST_TRIALS = 8
_MOST_NOISE = 0.05  # of the median time of a kernel, relative


def copied(folder: Path, keys: Iterable[KernelKey] | None = None) -> Corpus:
    """The small corpus, or some of its kernels, in a folder where tests may write."""
    if keys is None:
        return Corpus(shutil.copytree(FOLDER, folder))
    return cut(Corpus(FOLDER), folder, frozenset(keys))


def cut(corpus: Corpus, folder: Path, keys: frozenset[KernelKey]) -> Corpus:
    """A new corpus of some kernels, with all of their trials."""
    made = Corpus(folder)
    made.add(
        [row for key, row in corpus.kernels().items() if key in keys],
        [t for t in corpus.trials() if t.kernel in keys],
    )
    return made


def quiet_kernels(corpus: Corpus, count: int) -> list[KernelKey]:
    """Some of each source and quickest family, those with the least noise."""
    trials: dict[KernelKey, list[TrialRow]] = {}
    for t in corpus.trials():
        if t.family != DEFAULT and t.status == TrialStatus.OK.value and len(t.ratios) > 1:
            trials.setdefault(t.kernel, []).append(t)

    def noise(row: KernelRow) -> float:
        return median(t.noise for t in trials[row.key])

    groups: dict[tuple[str, str], list[KernelRow]] = {}
    for key, row in corpus.kernels().items():
        is_told = len(trials.get(key, ())) >= _LEAST_TRIALS and len(row.text) <= _LONGEST
        if is_told and noise(row) <= _MOST_NOISE:
            quickest = min(trials[key], key=lambda t: t.seconds)
            groups.setdefault((row.source, quickest.family), []).append(row)

    turns = zip_longest(*(sorted(rows, key=noise) for rows in groups.values()))
    return list(islice((row.key for turn in turns for row in turn if row is not None), count))


def main(arguments: Sequence[str]) -> None:
    large, folder = Corpus(arguments[0]), Path(arguments[1]) if len(arguments) > 1 else FOLDER
    large.check_exists()
    shutil.rmtree(folder, ignore_errors=True)
    made = cut(large, folder, frozenset(quiet_kernels(large, _KERNELS)))
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{folder}: {len(made.kernels())} kernels, {len(made.trials())} trials, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
