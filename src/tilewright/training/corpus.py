"""A corpus on disk: kernels, schedules of them that were timed, and the programs that are complete.

    kernels.parquet          a row for each kernel, with the text of its Func
    programs.parquet         a row for each program of which all kernels were measured
    trials-000123.parquet    schedules that were timed, a batch each

Parts with trials are only ever added. A file is written under another name, brought to the disk and then renamed, so
that whoever is killed loses the batch that it was at. A part that cannot be read is named and left out; what it held is
measured again.

The same schedule of the same kernel in the same program, on the same machine with as many threads, is one trial
(`trial_key`). Parts may hold it twice: where it was timed again, and where a process was killed between writing a part
and removing those that it replaces. The row with the most runs counts.
"""

import fcntl
import logging
import os
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tilewright.support.errors import UserError
from tilewright.training.rows import KernelKey, KernelRow, TrialRow

_log = logging.getLogger("tilewright")
T = TypeVar("T")

_PART = re.compile(r"trials-(\d{6})\.parquet")
_KERNELS, _PROGRAMS, _LOCK = "kernels.parquet", "programs.parquet", ".lock"
_MANY_PARTS = 32  # given: to open as many takes as long as to read them


class UnwritableCorpusError(UserError):
    """A file of the corpus cannot be written."""


class TrialKey(NamedTuple):
    """What makes two trials the same."""

    kernel: KernelKey
    program: str
    machine: str
    threads: int
    family: str
    decisions: str


def trial_key(row: TrialRow) -> TrialKey:
    return TrialKey(row.kernel, row.program, row.machine, row.threads, row.family, row.decisions)


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A program that is complete: each of its kernels has `per_kernel` trials, or as many as it has schedules, and so
    have those of as many other structures. Where it cannot be measured, `problem` says why.
    """

    program: str
    source: str
    machine: str
    threads: int
    per_kernel: int
    kernels: int
    trials: int
    problem: str
    structures: int = 0  # corpora that were written before there were any have none


class Corpus:
    """In a folder, which need not exist before something is added."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.damaged: list[Path] = []  # parts that could not be read
        self._kernels: dict[KernelKey, KernelRow] | None = None

    @property
    def exists(self) -> bool:
        return (self.folder / _KERNELS).exists()

    def check_exists(self) -> None:
        if not self.exists:
            raise UserError(
                "there is no corpus", where=str(self.folder), hint=f"tilewright corpus build {self.folder}"
            )

    # --------------------------------------------------------------------------------------------------------- reading

    def kernels(self) -> dict[KernelKey, KernelRow]:
        """All of them, in the order in which they were added."""
        if self._kernels is None:
            self._kernels = {row.key: row for row in self._table(_KERNELS, _kernel_row)}
        return dict(self._kernels)

    def programs(self) -> list[ProgramRow]:
        """Those that are complete; the last row of a program comes last."""
        return self._table(_PROGRAMS, lambda values: ProgramRow(**values))

    def trials(self) -> list[TrialRow]:
        """Each once, in the order in which they were added."""
        found: dict[TrialKey, TrialRow] = {}
        self.damaged = []
        for path in self._parts():
            try:
                rows = _read(path, _trial_row)
            except UserError as e:
                self.damaged.append(path)
                _log.warning("%s is left out: %s", path, e.message)
                continue
            for row in rows:
                known = found.setdefault(trial_key(row), row)
                if len(row.ratios) > len(known.ratios):
                    found[trial_key(row)] = row
        return list(found.values())

    def _table(self, name: str, row: Callable[[dict[str, Any]], T]) -> list[T]:
        path = self.folder / name
        return _read(path, row) if path.exists() else []

    def _parts(self) -> list[Path]:
        """In the order in which they were written."""
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if _PART.fullmatch(p.name))

    # --------------------------------------------------------------------------------------------------------- writing

    @contextmanager
    def writing(self) -> Generator[None]:
        """Nobody else adds to it meanwhile: UserError if somebody does already."""
        self._make_folder()
        with open(self.folder / _LOCK, "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                raise UserError(
                    "another process adds to this corpus",
                    where=str(self.folder),
                    hint="wait for it, or build another corpus and merge it",
                ) from e
            self._kernels = None
            yield

    def add(self, kernels: Iterable[KernelRow], trials: Iterable[TrialRow]) -> None:
        """Kernels that are known stay as they are. Trials make a part."""
        known = self.kernels()
        count = len(known)
        for row in kernels:
            known.setdefault(row.key, row)
        self._make_folder()
        if len(known) > count or not self.exists:
            self._write(_KERNELS, list(known.values()), KernelRow)
            self._kernels = known
        rows = list(trials)
        if rows:
            self._write(self._next_part(), rows, TrialRow)

    def complete(self, row: ProgramRow) -> None:
        """Note that a program need not be measured again."""
        self._make_folder()
        same = (row.program, row.machine, row.threads)
        others = [p for p in self.programs() if (p.program, p.machine, p.threads) != same]
        self._write(_PROGRAMS, [*others, row], ProgramRow)

    def merge(self, other: "Corpus") -> tuple[int, int]:
        """Add what another has; how many kernels and trials are new."""
        other.check_exists()
        kernels = {k: row for k, row in other.kernels().items() if k not in self.kernels()}
        known = {trial_key(t) for t in self.trials()}
        trials = [t for t in other.trials() if trial_key(t) not in known]
        self.add(kernels.values(), trials)
        mine = {(p.program, p.machine, p.threads) for p in self.programs()}
        for p in other.programs():
            if (p.program, p.machine, p.threads) not in mine:
                self.complete(p)
        return len(kernels), len(trials)

    def compact(self) -> None:
        """Where there are many parts, one instead of them. Those that are damaged stay."""
        parts = self._parts()
        if len(parts) < _MANY_PARTS:
            return
        rows = self.trials()
        self._write(self._next_part(), rows, TrialRow)
        for path in parts:
            if path not in self.damaged:
                path.unlink()

    def _next_part(self) -> str:
        numbers = [int(m[1]) for p in self._parts() if (m := _PART.fullmatch(p.name))]
        return f"trials-{max(numbers, default=0) + 1:06}.parquet"

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(
                f"the folder of the corpus cannot be made: {e.strerror or e}",
                where=str(self.folder),
                hint="name another folder",
            ) from e

    def _write(self, name: str, rows: Sequence[Any], kind: type) -> None:
        """All of the file, or none of it."""
        arrow, parquet = _arrow(), _parquet()
        columns = {f.name: [getattr(r, f.name) for r in rows] for f in fields(kind)}
        table = arrow.table(columns, schema=_schema(kind))
        path, temporary = self.folder / name, self.folder / f".{name}.{os.getpid()}"
        try:
            with open(temporary, "wb") as out:
                parquet.write_table(table, out, compression="zstd")
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, path)
            _sync_folder(self.folder)
        except BaseException as e:
            with suppress(OSError):
                temporary.unlink()
            if isinstance(e, OSError):
                raise UnwritableCorpusError(
                    f"the corpus cannot be written: {e.strerror or e}",
                    where=str(path),
                    hint="make room, or name another folder",
                ) from e
            raise


def _sync_folder(folder: Path) -> None:
    """So that a renamed file has its name after a power cut too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path, row: Callable[[dict[str, Any]], T]) -> list[T]:
    """UserError if it is not a file of ours."""
    arrow, parquet = _arrow(), _parquet()
    try:
        table = parquet.read_table(path, use_threads=False)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        return [
            row(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)
        ]
    except (arrow.ArrowException, OSError, TypeError, KeyError, ValueError) as e:
        raise UserError(
            f"it cannot be read: {str(e).partition(chr(10))[0]}",
            where=str(path),
            hint="move it away: what it held is measured again by the next build",
        ) from e


def _kernel_row(values: dict[str, Any]) -> KernelRow:
    values["constants"] = tuple(values["constants"])
    return KernelRow(**values)


def _trial_row(values: dict[str, Any]) -> TrialRow:
    values["ratios"] = tuple(values["ratios"])
    return TrialRow(**values)


# ------------------------------------------------------------------------------------------------------------- pyarrow


def _schema(kind: type) -> Any:
    """Columns by the types that the fields of a row are declared with."""
    arrow = _arrow()
    types = {
        str: arrow.string(),
        int: arrow.int64(),
        float: arrow.float64(),
        tuple[str, ...]: arrow.list_(arrow.string()),
        tuple[float, ...]: arrow.list_(arrow.float64()),
        KernelKey: arrow.string(),
    }
    return arrow.schema([(f.name, types[f.type]) for f in fields(kind)])  # pyright: ignore[reportArgumentType]


def _arrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as e:
        raise _missing() from e


def _parquet() -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError as e:
        raise _missing() from e


def _missing() -> UserError:
    return UserError("a corpus needs pyarrow, which is not installed", hint="pip install 'tilewright[learn]'")
