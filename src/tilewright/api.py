"""`load`: a model becomes a session.

A program that was compiled before is found and run without the compiler. So nothing here imports it, nor LLVM nor
onnx, which take longer to import than a program to load: `_compiler` does, when there is something to compile.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from tilewright.keys import (
    external_files,
    file_digest,
    file_state,
    is_settled,
    known_tasks,
    model_digest,
    note_external_files,
    note_tasks,
    program_key,
    rules_digest,
    target_digest,
)
from tilewright.runtime import file
from tilewright.runtime.cache import NO_CACHE, Cache, default_cache
from tilewright.runtime.session import Session
from tilewright.search.database import Scope, default_database
from tilewright.support.errors import MultipleProgramsError, UserError
from tilewright.target.names import resolve_target
from tilewright.target.target import Target

if TYPE_CHECKING:
    from onnx import ModelProto

    from tilewright.compiler import CompiledModel
    from tilewright.dynamic import DynamicSession
    from tilewright.graph.graph import Graph

_log = logging.getLogger("tilewright")

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
    variants: int = 8,
) -> "Session | DynamicSession":
    """A session for a model, compiled now or taken from the cache; or for a compiled `.tw` file.

    A model with open dimensions that `shapes` does not give is compiled when a run shows them; up to `variants`
    programs for different shapes are kept.
    """
    if isinstance(model, str | Path) and Path(model).suffix == ".tw":
        return Session(file.load(model), threads)
    loader = _Loader(model, threads, resolve_target(target), default_cache() if cache else NO_CACHE, progress)
    try:
        return loader.program(shapes)
    except MultipleProgramsError:
        return loader.dynamic(shapes or {}, variants)


@dataclass(frozen=True, slots=True, eq=False)
class _Loader:
    """What does not depend on shapes."""

    model: Model
    threads: int | None
    target: Target
    store: Cache
    progress: Progress | None

    def dynamic(self, shapes: Shapes, variants: int) -> "DynamicSession":
        """Several programs, compiled when their types are known."""
        home = import_module("tilewright.dynamic")
        session: DynamicSession = home.DynamicSession(
            home.OnnxModel(self.model), self.program, self._part, variants
        )
        if session.is_closed(shapes):
            session.prepare(shapes)
        return session

    def _part(self, graph: "Graph") -> Session:
        return _compiler().compile_graph(self.target, graph, self.store, self.progress).session(self.threads)

    def program(self, shapes: Shapes | None) -> Session:
        """One program for the whole model."""
        model, target, store = self.model, self.target, self.store
        started = time.time_ns()
        state = _state(model)
        digest = model_digest(model, store)
        key = _key(model, digest, shapes, target, store)
        path = store.find_program(key) if key else None
        if path is not None:
            try:
                artifact = file.load(path)
                if artifact.manifest.options.get("tuned"):
                    _log.info("tuned: %s kernels from the database", artifact.manifest.options["tuned"])
                return Session(artifact, self.threads)
            except UserError as e:
                store.discard_program(key, e.message)
        made: CompiledModel = _compiler().compile_for(target, model, digest, shapes, store, self.progress)
        # Files that changed while they were read are compiled, but not kept.
        external = [_beside(model, name) for name in made.external_files]
        if digest and _state(model) == state and all(is_settled(p, started) for p in external):
            note_external_files(digest, made.external_files, store)
            others = _others(model, digest, store)
            if others is not None:
                note_tasks(program_key(digest, others, shapes, target), made.tasks, store)
                key = program_key(digest, others, shapes, target, made.tuned)
                store.put_program(key, file.chunks(made.artifact))
        return made.session(self.threads)


def _compiler() -> ModuleType:
    return import_module("tilewright.compiler")


def _key(model: Model, digest: str, shapes: Shapes | None, target: Target, store: Cache) -> str:
    """Of the program for this model as it would be compiled now, or empty: its other files and its tasks are not known
    before it has been compiled once.
    """
    others = _others(model, digest, store)
    if others is None:
        return ""
    untuned = program_key(digest, others, shapes, target)
    database = default_database()
    if not database.exists:
        return untuned
    tasks = known_tasks(untuned, store)
    if tasks is None:
        return ""
    choices = database.state(Scope(target_digest(target), rules_digest()), tasks)
    database.close()
    return program_key(digest, others, shapes, target, choices)


def _others(model: Model, digest: str, store: Cache) -> list[str] | None:
    """The digests of the model's other files; None if they are not known, or not there."""
    names = external_files(digest, store) if digest and store.is_on else None
    if names is None:
        return None
    others = [file_digest(_beside(model, name), store) for name in names]
    return others if all(others) else None


def _beside(model: Model, name: str) -> Path:
    return Path(model if isinstance(model, str | Path) else "").parent / name


def _state(model: Model) -> str:
    return file_state(model) if isinstance(model, str | Path) else "in memory"
