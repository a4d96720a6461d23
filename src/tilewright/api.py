"""`load`: a model becomes a session.

A program that was compiled before is found and run without the compiler. So nothing here imports it, nor LLVM nor
onnx, which take longer to import than a program to load: `_compiler` does, when there is something to compile.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tilewright.driver.keys import (
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
from tilewright.ops.accuracy import EXACT, Accuracy, AccuracyLike
from tilewright.placement.options import CalibrationSample, PluginOptions
from tilewright.runtime import file
from tilewright.runtime.cache import NO_CACHE, Cache, default_cache
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.search.database import RecordScope, choices_digest, default_database
from tilewright.support.arrays import Shapes
from tilewright.support.artifact import Artifact
from tilewright.support.errors import Hint, MultipleProgramsError, UserError
from tilewright.support.indices import are_checked
from tilewright.support.progress import OnProgress
from tilewright.target.names import resolve_target
from tilewright.target.target import Target

if TYPE_CHECKING:
    from tilewright.compiler import CompiledModel, Model
    from tilewright.driver.trace import ProgramTrace
    from tilewright.graph.graph import Graph
    from tilewright.sessions.dynamic import DynamicSession
    from tilewright.sessions.open_model import DimRange
    from tilewright.support.sizes import Guard

_log = logging.getLogger("tilewright")


def load(
    model: "Model",
    *,
    shapes: Shapes | None = None,
    threads: int | None = None,
    target: str | Target = "native",
    accuracy: AccuracyLike | None = None,
    check_indices: bool | None = None,
    plugins: Iterable[str] = (),
    placement: str = "measured",
    strict: bool = False,
    calibration: Iterable[CalibrationSample] = (),
    cache: bool = True,
    progress: OnProgress | None = None,
    variants: int = 8,
    trace: "ProgramTrace | str | Path | None" = None,
    dims: "Mapping[str, DimRange] | None" = None,
) -> "Session | DynamicSession | OpenSession":
    """A session for a model, compiled now or taken from the cache; or for a compiled `.tw` file.

    `dims` gives ranges of open dimensions, `{"sequence": (1, 512)}`: one program is made for all sizes in them. A model
    with open dimensions that neither this nor `shapes` gives is compiled when a run shows them; up to `variants`
    programs for different shapes are kept. `accuracy` bounds the error that a quicker algorithm may add to a layer,
    relative to the layer's largest output: `TILEWRIGHT_ACCURACY`, or 2e-5, by default; "exact" allows plain sums only.
    `check_indices` makes indices that are out of range (of Gather, Scatter and their like) errors; otherwise they are
    brought into range. `TILEWRIGHT_CHECK_INDICES` sets the default.
    `plugins` may run parts of the model, as `placement` decides; if one fails, native code takes over, unless `strict`.
    Those that quantize do so by `calibration`, samples of the model's inputs by name. `trace`, or the file of that
    name, has decisions that are not taken again (`docs/traces.md`).
    """
    wanted = None if accuracy is None else Accuracy.of(accuracy)
    plugin_options = PluginOptions.of(plugins, placement, strict, threads, calibration)
    if isinstance(model, str | Path) and Path(model).suffix == ".tw":
        program = file.load_artifact(model)
        if wanted is not None:
            _check_accuracy(program, wanted, model)
        if check_indices:
            _check_checks(program, model)
        return _session(program, threads, strict)
    if dims and shapes:
        raise UserError(
            "ranges of dimensions and shapes of inputs are given",
            hint="leave one of them out; a range may be one size",
        )
    store = default_cache() if cache else NO_CACHE
    bound = wanted or Accuracy.of(None)
    checked = are_checked(check_indices)
    given = _trace_module().ProgramTrace.load(trace) if isinstance(trace, str | Path) else trace
    loader = _Loader(
        model, threads, resolve_target(target), bound, checked, plugin_options, store, progress, given
    )
    if dims:
        return loader.open(dims, variants)
    try:
        return loader.program(shapes)
    except MultipleProgramsError:
        if given is not None:
            raise UserError(
                "a trace is of one program, and this model becomes several",
                hint=Hint(
                    "give the shapes that the trace was made with: shapes={…}",
                    command="give the shapes that the trace was made with: --shape NAME=1x3x224x224",
                ),
            ) from None
        return loader.dynamic(shapes or {}, variants)


def _check_accuracy(program: Artifact, wanted: Accuracy, path: str | Path) -> None:
    """A program that has algorithms besides plain sums is as accurate as it was compiled to be."""
    options = program.manifest.options
    made = Accuracy.of(options.get("accuracy") if options.get("algorithms") else EXACT)
    if not wanted.covers(made):
        raise UserError(
            f"the program was compiled with accuracy {made}, and {wanted} is asked for",
            where=str(path),
            hint=Hint(
                f"compile the model again with accuracy {wanted}",
                command=f"compile the model again with --accuracy {wanted}",
            ),
        )


def _check_checks(program: Artifact, path: str | Path) -> None:
    if "check_indices" not in program.manifest.options:
        raise UserError(
            "the program was compiled without checks of indices, which are asked for",
            where=str(path),
            hint=Hint(
                "compile the model again with check_indices=True",
                command="compile the model again with --check-indices",
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Loader:
    """What does not depend on shapes."""

    model: "Model"
    threads: int | None
    target: Target
    accuracy: Accuracy
    check_indices: bool
    plugin_options: PluginOptions
    store: Cache
    progress: OnProgress | None
    trace: "ProgramTrace | None" = None

    def dynamic(self, shapes: Shapes, variants: int) -> "DynamicSession":
        """Several programs, compiled when their types are known."""
        home = import_module("tilewright.sessions.dynamic")
        later = replace(self, plugin_options=replace(self.plugin_options, is_open=True))
        session: DynamicSession = home.DynamicSession(
            home.OnnxModel(
                self.model,
                custom_ops=_compiler().custom_op_plugins(self.plugin_options),
                check_indices=self.check_indices,
            ),
            later.program,
            later.part,
            variants,
        )
        if session.is_closed(shapes):
            session.prepare(shapes)
        return session

    def open(self, given: "Mapping[str, DimRange]", variants: int) -> "OpenSession | DynamicSession":
        """One program for all sizes of open dimensions; or several, if its shapes cannot be followed."""
        home = import_module("tilewright.sessions.open_model")
        others = _compiler().custom_op_plugins(self.plugin_options)
        key = ""
        with home.OnnxModel(self.model, custom_ops=others, check_indices=self.check_indices) as model:
            dims = home.dims_of(model, given)
            digest = model_digest(self.model, self.store)
            files = _others(self.model, digest, self.store)
            if files is not None:
                key = self._key(digest, files, None, dims=repr(sorted(dims.values())))
                path = self.store.find_program(key)
                if path is not None:
                    return OpenSession(file.load_artifact(path), self.threads)
            try:
                made: CompiledModel = home.compile_open(model, dims, self._compile_open)
            except (MultipleProgramsError, home.NotFollowed) as e:
                _log.info("a program for each shape: %s", e.message)
                return self.dynamic({}, variants)
            if digest:
                note_external_files(digest, tuple(sorted(model.opened)), self.store)
                files = _others(self.model, digest, self.store)
                key = (
                    "" if files is None else self._key(digest, files, None, dims=repr(sorted(dims.values())))
                )
        if key:
            self.store.put_program(key, file.chunks(made.artifact))
        return OpenSession(made.artifact, self.threads)

    def _compile_open(self, graph: "Graph", guards: "tuple[Guard, ...]") -> "CompiledModel":
        made: CompiledModel = _compiler().compile_graph(
            self.target, graph, self.accuracy, self.store, self.progress, guards=guards
        )
        return made

    def part(self, graph: "Graph") -> Session:
        """A session of nodes between those that the host runs. Calibration samples do not apply to it."""
        plugin_options = replace(self.plugin_options, calibration=())
        made: CompiledModel = _compiler().compile_graph(
            self.target, graph, self.accuracy, self.store, self.progress, plugin_options
        )
        return made.session(self.threads, strict=self.plugin_options.strict)

    def program(self, shapes: Shapes | None) -> Session:
        """One program for the whole model."""
        model, store = self.model, self.store
        started = time.time_ns()
        state = _state(model)
        digest = model_digest(model, store)
        key, tuned = self._current_key(digest, shapes)
        path = store.find_program(key) if key else None
        if path is not None:
            try:
                artifact = file.load_artifact(path)
                if tuned:
                    _log.info("tuned: %d kernels from the database", tuned)
                return _static_session(artifact, self.threads, self.plugin_options.strict)
            except UserError as e:
                store.discard_program(key, e.message)
        made: CompiledModel = _compiler().compile_for(
            self.target,
            model,
            digest,
            shapes,
            self.accuracy,
            store,
            self.progress,
            plugin_options=self.plugin_options,
            trace=self.trace,
            check_indices=self.check_indices,
        )
        # Files that changed while they were read are compiled, but not kept.
        external = [_beside(model, name) for name in made.external_files]
        if digest and _state(model) == state and all(is_settled(p, started) for p in external):
            note_external_files(digest, made.external_files, store)
            others = _others(model, digest, store)
            if others is not None:
                note_tasks(self._key(digest, others, shapes), made.tasks, store)
                key = self._key(digest, others, shapes, made.tuned)
                store.put_program(key, file.chunks(made.artifact))
        return made.session(self.threads, strict=self.plugin_options.strict)

    def _key(
        self, digest: str, others: list[str], shapes: Shapes | None, tuned: str = "", dims: str = ""
    ) -> str:
        return program_key(
            digest,
            others,
            shapes,
            self.target,
            self.accuracy,
            tuned,
            self._plugins(),
            "" if self.trace is None else self.trace.digest,
            check_indices=self.check_indices,
            dims=dims,
        )

    def _plugins(self) -> str:
        """What there is to know of the plugins; those that nobody asked for are not even looked at."""
        if not self.plugin_options.plugins:
            return ""
        found = import_module("tilewright.plugins.registry").find_plugins(self.plugin_options.plugins)
        return " ".join([str(self.plugin_options), *(p.version for p in found)])

    def _current_key(self, digest: str, shapes: Shapes | None) -> tuple[str, int]:
        """Of the program as it would be compiled now, or empty: the model's other files and its tasks are not known
        before it has been compiled once. And for how many of its kernels there is a choice in the database.
        """
        others = _others(self.model, digest, self.store)
        if others is None:
            return "", 0
        untuned = self._key(digest, others, shapes)
        database = default_database()
        if not database.exists:
            return untuned, 0
        tasks = known_tasks(untuned, self.store)
        if tasks is None:
            return "", 0
        choices = database.choices(RecordScope(target_digest(self.target), rules_digest()), tasks)
        database.close()
        return self._key(digest, others, shapes, choices_digest(choices)), len(choices)


def _session(program: Artifact, threads: int | None, strict: bool) -> Session | OpenSession:
    if program.manifest.dims:
        return OpenSession(program, threads)
    return _static_session(program, threads, strict)


def _static_session(program: Artifact, threads: int | None, strict: bool) -> Session:
    if not program.regions:
        return Session(program, threads)
    return _compiler().session_of(program, threads, strict=strict)


def _compiler() -> ModuleType:
    return import_module("tilewright.compiler")


def _trace_module() -> ModuleType:
    return import_module("tilewright.driver.trace")


def _others(model: "Model", digest: str, store: Cache) -> list[str] | None:
    """The digests of the model's other files; None if they are not known, or not there."""
    names = external_files(digest, store) if digest and store.is_on else None
    if names is None:
        return None
    others = [file_digest(_beside(model, name), store) for name in names]
    return others if all(others) else None


def _beside(model: "Model", name: str) -> Path:
    return Path(model if isinstance(model, str | Path) else "").parent / name


def _state(model: "Model") -> str:
    return file_state(model) if isinstance(model, str | Path) else "in memory"
