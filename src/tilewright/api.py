"""`load`: a model becomes a session.

A program that was compiled before is found and run without the compiler. So nothing here imports it, nor LLVM nor
onnx, which take longer to import than a program to load: `_compiler` does, when there is something to compile.
"""

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from tilewright.keys import (
    external_files,
    file_digest,
    file_state,
    is_settled,
    model_digest,
    note_external_files,
    program_key,
)
from tilewright.runtime import file
from tilewright.runtime.cache import NO_CACHE, Cache, default_cache
from tilewright.runtime.session import Session
from tilewright.support.errors import UserError
from tilewright.target.names import resolve_target
from tilewright.target.target import Target

if TYPE_CHECKING:
    from onnx import ModelProto

    from tilewright.compiler import CompiledModel

Model: TypeAlias = "str | Path | bytes | ModelProto"
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Progress: TypeAlias = Callable[[str, int, int], None]


def load(
    model: Model,
    *,
    shapes: Shapes | None = None,
    threads: int | None = None,
    target: str | Target = "native",
    cache: bool = True,
    progress: Progress | None = None,
) -> Session:
    """A session for a model, compiled now or taken from the cache; or for a compiled `.tw` file."""
    if isinstance(model, str | Path) and Path(model).suffix == ".tw":
        return Session(file.load(model), threads)
    machine = resolve_target(target)
    store = default_cache() if cache else NO_CACHE
    started = time.time_ns()
    state = _state(model)
    digest = model_digest(model, store)
    key = _key(model, digest, shapes, machine, store)
    path = store.find_program(key) if key else None
    if path is not None:
        try:
            return Session(file.load(path), threads)
        except UserError as e:
            store.discard_program(key, e.message)
    made: CompiledModel = _compiler().compile_for(machine, model, digest, shapes, store, progress)
    # Files that changed while they were read are compiled, but not kept.
    external = [_beside(model, name) for name in made.external_files]
    if digest and _state(model) == state and all(is_settled(p, started) for p in external):
        note_external_files(digest, made.external_files, store)
        key = _key(model, digest, shapes, machine, store)
        if key:
            store.put_program(key, file.chunks(made.artifact))
    return made.session(threads)


def _compiler() -> ModuleType:
    return import_module("tilewright.compiler")


def _key(model: Model, digest: str, shapes: Shapes | None, target: Target, store: Cache) -> str:
    """Of the program for this model, or empty: its other files are not known before it has been compiled once."""
    names = external_files(digest, store) if digest and store.is_on else None
    if names is None:
        return ""
    others = [file_digest(_beside(model, name), store) for name in names]
    return program_key(digest, others, shapes, target) if all(others) else ""


def _beside(model: Model, name: str) -> Path:
    return Path(model if isinstance(model, str | Path) else "").parent / name


def _state(model: Model) -> str:
    return file_state(model) if isinstance(model, str | Path) else "in memory"
