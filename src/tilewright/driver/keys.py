"""What decides a program, as keys of the cache.

A program depends on the bytes of the model and of the files with its external data, on shapes, accuracy and target, and
on the compiler: its sources as they are now, so that a changed compiler never serves what it would make differently,
and the packages that it is built on. Nothing here imports the compiler: a program that was compiled before is found
without.

Hashing a large model takes longer than loading its program. So the digest of a file is kept in the cache, under what
the file system says of the file: any write changes its times. A file that was written just now is hashed each time,
because a second write in the same tick of the clock would not show.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.cache import Cache
from tilewright.support.artifact import FORMAT_VERSION
from tilewright.support.extensions import extensions_digest
from tilewright.support.regular_file import open_regular
from tilewright.target.target import Target
from tilewright.version import __version__

if TYPE_CHECKING:
    from onnx import ModelProto

    from tilewright.frontend.onnx.held_model import HeldModel

_FOLDER = Path(__file__).parents[1]  # the package
_LARGE = 8 << 20  # smaller files are hashed sooner than a note is read and checked
_SERIALISED = 64 << 20  # a larger ModelProto is not serialised only to be looked up
# Of the folders with rules: what keeps records, and what proposes points, but decides nothing of what a point means.
_NO_RULES = frozenset(
    {
        "anneal.py",
        "database.py",
        "evolve.py",
        "program_records.py",
        "strategy.py",
        "tuning_exchange.py",
        "tuning_file.py",
        "tuning_tables.py",
    }
)
_SETTLED_NS = 2_000_000_000  # coarser than the clock of any file system in use


def compiler_digest() -> str:
    """Of the sources of this package, of the packages that decide what it makes, and of those that have added to it."""
    return own_digest() + extensions_digest()


@lru_cache(maxsize=1)
def own_digest() -> str:
    h = hashlib.sha256(f"{__version__} {FORMAT_VERSION} numpy {np.__version__}".encode())
    for path in sorted(_sources(str(_FOLDER))):
        h.update(f"\n{path.removeprefix(str(_FOLDER))}\n".encode())
        h.update(_contents(path))
    for package in ("llvmlite", "onnx"):  # by when they were installed: importing them would take too long
        spec = find_spec(package)
        state = _state(os.stat(spec.origin)) if spec is not None and spec.origin else ""
        h.update(f"\n{package} {state}".encode())
    return h.hexdigest()


def source_digest(name: str) -> str:
    """Of one source file of this package, named from its folder."""
    return hashlib.sha256(_contents(str(_FOLDER / name))).hexdigest()


def rules_digest() -> str:
    """Of the sources that decide what a stored choice of a schedule means: the design spaces and the steps."""
    return _own_rules() + extensions_digest()


@lru_cache(maxsize=1)
def _own_rules() -> str:
    h = hashlib.sha256()
    for folder in ("schedule", "families", "search"):
        for path in sorted(_sources(str(_FOLDER / folder))):
            if os.path.basename(path) not in _NO_RULES:
                h.update(f"\n{path.removeprefix(str(_FOLDER))}\n".encode())
                h.update(_contents(path))
    return h.hexdigest()


def target_digest(target: Target) -> str:
    """Of what measurements depend on. Figures by which schedules are ranked are no part of it."""
    m = target.machine
    caches = (m.l1_bytes, m.l2_bytes, m.l3_bytes)
    return _key("target", target.triple, repr(sorted(target.features)), target.cpu, repr(caches))


def program_key(
    model: str,
    external: Iterable[str],
    shapes: Mapping[str, Sequence[int]] | None,
    target: Target,
    accuracy: Accuracy,
    tuned: str = "",
    plugins: str = "",
    trace: str = "",
    *,
    check_indices: bool = False,
    dims: str = "",
) -> str:
    """`model` is the digest of the model, `external` the digests of its other files, in order; `tuned` is the digest
    of the choices in the database that go into it; `plugins` says which take part, and how they are placed;
    `trace` is the digest of decisions that were given, `dims` says which dimensions are open.
    """
    return _key(
        "program",
        compiler_digest(),
        model,
        *external,
        *_target_facts(target),
        repr(sorted((name, tuple(map(int, shape))) for name, shape in (shapes or {}).items())),
        str(accuracy),
        tuned,
        plugins,
        trace,
        "check_indices" if check_indices else "",
        *([dims] if dims else []),
    )


def _target_facts(target: Target) -> tuple[str, str]:
    # A set prints in another order in every process.
    return repr(replace(target, features=frozenset())), repr(sorted(target.features))


def model_digest(model: "str | Path | bytes | ModelProto | HeldModel", cache: Cache) -> str:
    """Of the bytes of a model, without its external data; empty where they cannot be had, or only at great cost."""
    match model:
        case str() | Path():
            return file_digest(model, cache)
        case bytes():
            return hashlib.sha256(model).hexdigest()
        case _ if hasattr(model, "digest"):  # a HeldModel; its module would import onnx
            return cast("HeldModel", model).digest
        case _ if cast("ModelProto", model).ByteSize() <= _SERIALISED:
            return hashlib.sha256(cast("ModelProto", model).SerializeToString(deterministic=True)).hexdigest()
        case _:
            return ""


def file_state(path: str | Path) -> str:
    """Changes whenever the file does, or another takes its place; empty if it is not there."""
    try:
        return _state(os.stat(path))
    except (OSError, ValueError):
        return ""


def is_settled(path: str | Path, before_ns: int) -> bool:
    """Was the file written before that time?"""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return False
    return max(info.st_mtime_ns, info.st_ctime_ns) < before_ns


def file_digest(path: str | Path, cache: Cache) -> str:
    """The SHA-256 of a file, from the cache if it has not changed since; empty if it cannot be read, or is a pipe."""
    try:
        descriptor, info = open_regular(path)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            key = _key("file", os.path.realpath(path), _state(info))
            noted = cache.get(key) if info.st_size >= _LARGE else None
            if noted is not None:
                return noted.decode()
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if _state(os.fstat(file.fileno())) != _state(info):
                return ""  # being written
    except OSError:
        return ""
    changed = max(info.st_mtime_ns, info.st_ctime_ns)
    if info.st_size >= _LARGE and time.time_ns() - changed > _SETTLED_NS:
        cache.put(key, digest.encode(), sync=False)
    return digest


def external_files(model: str, cache: Cache) -> list[str] | None:
    """The files with external data of the model of this digest; None if it has not been compiled yet."""
    noted = cache.get(_key("external", compiler_digest(), model))
    return None if noted is None else json.loads(noted)


def note_external_files(model: str, names: Sequence[str], cache: Cache) -> None:
    cache.put(_key("external", compiler_digest(), model), json.dumps(list(names)).encode(), sync=False)


def known_tasks(program: str, cache: Cache) -> list[str] | None:
    """The tasks (digests of Funcs) of the program of this key, untuned; None if it has not been compiled yet."""
    noted = cache.get(_key("tasks", program))
    return None if noted is None else json.loads(noted)


def note_tasks(program: str, tasks: Iterable[str], cache: Cache) -> None:
    cache.put(_key("tasks", program), json.dumps(sorted(set(tasks))).encode(), sync=False)


def _key(*facts: str) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _state(info: os.stat_result) -> str:
    return f"{info.st_dev} {info.st_ino} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}"


def _sources(folder: str) -> Iterable[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".onnx")):  # the cost model decides too
                yield entry.path
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path)


def _contents(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()
