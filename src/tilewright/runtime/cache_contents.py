"""What is in the folder of the cache, and how it is emptied.

Only files that the cache writes are counted and removed, by their names: a key and an ending. A folder that has
anything else in it is refused: somebody may have named one of theirs by mistake. Emptying is safe while others use the
cache: what they have opened stays readable, and what they miss is compiled again; constants go under the lock that
programs are published with, and only those that no remaining program names.
"""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.cache_folder import BLOB, ENTRY, PROGRAM, STAGED, remove_entries
from tilewright.support.errors import UserError

KINDS = {PROGRAM: "programs", BLOB: "constants", ENTRY: "objects and notes"}
_NAME = re.compile(rf"[0-9a-f]{{8,128}}({'|'.join(map(re.escape, KINDS))})")


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Files of one kind: how many, their bytes, and how many seconds ago the first and the last were used."""

    name: str
    files: int
    size: int
    oldest: float | None
    newest: float | None


def contents(folder: Path) -> list[CacheKind]:
    """Of each kind; nothing of a folder that does not exist."""
    now = time.time()
    found: dict[str, list[tuple[float, int]]] = {kind: [] for kind in KINDS}
    for file, info in _files(folder):
        found[Path(file).suffix].append((now - info.st_mtime, info.st_size))
    return [
        CacheKind(
            KINDS[kind],
            len(files),
            sum(size for _, size in files),
            max((age for age, _ in files), default=None),
            min((age for age, _ in files), default=None),
        )
        for kind, files in found.items()
    ]


def clear(folder: Path, older_than: float = 0.0) -> tuple[int, int]:
    """Remove what was not used for this many seconds. How many files went, and their bytes."""
    _files(folder)  # or refuse
    return remove_entries(folder, time.time() - older_than) if folder.is_dir() else (0, 0)


def _files(folder: Path) -> list[tuple[str, os.stat_result]]:
    """The files of the cache. UserError if it is no folder of a cache."""
    found: list[tuple[str, os.stat_result]] = []
    try:
        with os.scandir(folder) as files:
            for file in files:
                if file.name.startswith(STAGED):
                    continue
                if not _NAME.fullmatch(file.name) or not file.is_file(follow_symlinks=False):
                    raise UserError(
                        f"{file.name} is no file of the cache: this may be a folder of something else",
                        where=str(folder),
                        hint="set TILEWRIGHT_CACHE to the folder of the cache, or move the file away",
                    )
                try:
                    found.append((file.path, file.stat(follow_symlinks=False)))
                except FileNotFoundError:  # another process was quicker
                    continue
    except FileNotFoundError:
        return []
    except OSError as e:
        raise UserError(f"cannot read the cache: {e.strerror or e}", where=str(folder)) from e
    return found
