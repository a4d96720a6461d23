"""What `inspect` has shown of a model, kept in the cache: to show it again, nothing is compiled.

A view is a JSON value. Its key has everything that decides what a program is, and the state of the whole database of
tuning: what a model's own share of it is becomes known only when it is compiled.
"""

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tilewright.cli.dims import DimOption
from tilewright.driver.keys import (
    external_files,
    file_digest,
    file_state,
    is_settled,
    model_digest,
    note_external_files,
    program_key,
)
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.cache import Cache, default_cache
from tilewright.search.database import database_path
from tilewright.support.errors import UserError
from tilewright.support.indices import are_checked
from tilewright.target.names import resolve_target

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Views:
    """Of the program of a model, for these options."""

    model: Path
    shapes: Mapping[str, tuple[int, ...]]
    target: str
    accuracy: Accuracy
    check_indices: bool
    dims: Mapping[str, DimOption]
    cache: Cache
    began: int = field(default_factory=time.time_ns)

    @classmethod
    def of(
        cls,
        model: Path,
        shapes: Mapping[str, tuple[int, ...]],
        target: str,
        accuracy: Accuracy | None,
        check_indices: bool | None,
        dims: Mapping[str, DimOption],
    ) -> "Views":
        bound, checked = Accuracy.of(accuracy), are_checked(check_indices)
        return cls(model, shapes, target, bound, checked, dims, default_cache())

    def find(self, name: str) -> Any | None:
        """The view of this name; None if it was never kept, or would be another now."""
        key = self._key(name)
        data = self.cache.get(key) if key else None
        try:
            return None if data is None else json.loads(zlib.decompress(data))
        except (zlib.error, ValueError):  # of another program than ours
            return None

    def keep(self, name: str, value: object, files: tuple[str, ...]) -> None:
        """`files` have the model's external data. What has changed since we began is not kept."""
        digest = model_digest(self.model, self.cache)
        beside = [self.model.parent / f for f in files]
        if not digest or not all(is_settled(p, self.began) for p in (self.model, *beside)):
            return
        note_external_files(digest, files, self.cache)
        key = self._key(name)
        if key:
            self.cache.put(key, zlib.compress(json.dumps(value).encode()), sync=False)

    def _key(self, name: str) -> str:
        """Empty if it is not known which files the model has."""
        digest = model_digest(self.model, self.cache)
        files = external_files(digest, self.cache) if digest and self.cache.is_on else None
        if files is None:
            return ""
        others = [file_digest(self.model.parent / f, self.cache) for f in files]
        if not all(others):
            return ""
        database = database_path()
        tuned = "" if database is None else " ".join(file_state(f"{database}{end}") for end in ("", "-wal"))
        return program_key(
            digest,
            others,
            self.shapes,
            resolve_target(self.target),
            self.accuracy,
            f"view {name} {tuned}",
            check_indices=self.check_indices,
            dims=repr(sorted((n, d.range) for n, d in self.dims.items())) if self.dims else "",
        )


def pick(named: Mapping[str, T], name: str) -> T:
    """By its name, or by a part of it that no other has, such as its digest."""
    if name in named:
        return named[name]
    found = [n for n in named if name in n]
    if len(found) == 1:
        return named[found[0]]
    if found:
        raise UserError(
            f"several kernels have {name!r} in their names", hint=f"take one of {', '.join(found)}"
        )
    raise UserError(f"there is no kernel {name!r} at this stage", hint=f"there are: {', '.join(named)}")
