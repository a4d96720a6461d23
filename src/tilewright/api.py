"""`load`: a model becomes a session.

A program that was compiled before is found and run without the compiler. So nothing here imports it, nor LLVM nor
onnx, which take longer to import than a program to load: `_compiler` does, when there is something to compile.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
from tilewright.driver.tuned import as_tuned
from tilewright.ops.accuracy import EXACT, Accuracy, AccuracyLike
from tilewright.placement.options import CalibrationSample, PluginOptions
from tilewright.runtime import file
from tilewright.runtime.cache import NO_CACHE, Cache, default_cache
from tilewright.runtime.interface_check import check_interface
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.search.database import RecordScope, choices_digest, default_database
from tilewright.support.arrays import Shapes
from tilewright.support.artifact import Artifact
from tilewright.support.errors import Hint, MultipleProgramsError, UserError
from tilewright.support.indices import are_checked
from tilewright.support.progress import OnProgress
from tilewright.support.sizes import Dim
from tilewright.target.names import resolve_target
from tilewright.target.target import Target

if TYPE_CHECKING:
    from tilewright.compiler import CompiledModel, Model
    from tilewright.driver.trace import ProgramTrace
    from tilewright.frontend.onnx.dim_ranges import DimRange
    from tilewright.frontend.onnx.load import OnnxModel
    from tilewright.graph.graph import Graph
    from tilewright.sessions.dynamic import DynamicSession

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

    Args:
        model: path or bytes of an ONNX model, a `ModelProto`, or the path of a `.tw` file.
        shapes: shapes of inputs that the model leaves open, `{"image": (1, 3, 224, 224)}`.
        threads: worker threads; by default one for each physical core that the process may use.
        target: "native", "x86-64" (any), "x86-64-v3" (AVX2 and FMA), "x86-64-v4" (and AVX-512), or a Target.
        accuracy: the error that a faster algorithm may add to a layer, relative to the layer's largest output;
            `TILEWRIGHT_ACCURACY`, or 2e-5, by default. "exact" allows plain sums only (`docs/accuracy.md`).
        check_indices: indices that are out of range (of Gather, Scatter and their like) are errors; otherwise they are
            clamped. `TILEWRIGHT_CHECK_INDICES` sets the default.
        plugins: names of plugins that may run parts of the model (`docs/adding-a-plugin.md`).
        placement: how it is decided who runs what: "measured", "model" (by estimates) or "greedy".
        strict: a plugin that fails is an error; otherwise native code takes over.
        calibration: samples of the model's inputs by name, for plugins that quantize.
        cache: look for the program in the cache, and keep it there.
        progress: called with the stage of compilation.
        variants: how many programs for different shapes are kept, where one program for all sizes cannot be.
        trace: decisions that are not taken again, or the name of their file (`docs/traces.md`).
        dims: ranges of open dimensions, `{"sequence": (1, 512)}`: one program is made for all sizes in them. A model
            with open dimensions that neither this nor `shapes` gives is compiled when a run shows them: for the shapes
            of the first run, then for all sizes of those dimensions that were seen to vary (`docs/dynamic.md`).
    """
    wanted = None if accuracy is None else Accuracy.of(accuracy)
    plugin_options = PluginOptions.of(plugins, placement, strict, threads, calibration)
    if isinstance(model, str | Path) and Path(model).suffix == ".tw":
        program = file.load_artifact(model)
        if wanted is not None:
            _check_accuracy(program, wanted, model)
        if check_indices:
            _check_checks(program, model)
        check_interface(program.manifest, shapes or {}, dims or {}, str(model))
        return _session(program, threads, strict)
    if dims:
        _ranges().check_ranges_alone(shapes)
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
            self._read(), later.program, later.part, partial(later.opened, is_alone=True), variants
        )
        if session.is_closed(shapes):
            session.prepare(shapes)
        return session

    def open(self, given: "Mapping[str, DimRange]", variants: int) -> "OpenSession | DynamicSession":
        """One program for all sizes of open dimensions; or several, if its shapes cannot be followed."""
        with self._read() as model:
            dims: dict[str, Dim] = _ranges().dims_of(model.specs, given)
            try:
                return self.opened(model, dims)
            except MultipleProgramsError as e:
                _log.info("a program for each shape: %s", e.message)
        return self.dynamic({}, variants)

    def opened(self, model: "OnnxModel", dims: "Mapping[str, Dim]", *, is_alone: bool = False) -> OpenSession:
        """One program for all sizes of these dimensions, with others for parts of the ranges unless it `is_alone`: who
        waits for a run does not want more. MultipleProgramsError if there is none.
        """
        origin = _Origin.of(self.model, self.store)
        ranges = f"{sorted(dims.values())}{' alone' if is_alone else ''}"
        found = self._stored(origin.digest, None, ranges)
        if found is None:
            made: CompiledModel = _compiler().compile_open(
                self.target,
                model,
                dims,
                origin.digest,
                self.accuracy,
                self.store,
                self.progress,
                self.plugin_options,
                self.trace,
                is_alone=is_alone,
            )
            self._keep(made, origin, None, ranges)
            found = made.artifact
        return _open_session(found, self.threads, self.plugin_options.strict)

    def _read(self) -> "OnnxModel":
        others = import_module("tilewright.plugins.registry").find_plugins(self.plugin_options.plugins)
        made: OnnxModel = import_module("tilewright.frontend.onnx.load").OnnxModel(
            self.model, custom_ops=others, check_indices=self.check_indices
        )
        return made

    def part(self, graph: "Graph") -> Session:
        """A session of nodes between those that the host runs. Calibration samples do not apply to it."""
        plugin_options = replace(self.plugin_options, calibration=())
        made: CompiledModel = _compiler().compile_graph(
            self.target, graph, self.accuracy, self.store, self.progress, plugin_options
        )
        return _static_session(made.artifact, self.threads, self.plugin_options.strict)

    def program(self, shapes: Shapes | None) -> Session:
        """One program for the whole model; with the decisions that tuning has found for it, if nobody gives others."""
        if self.trace is not None or self.plugin_options.plugins or self.check_indices:
            return self._program(shapes)

        def with_trace(trace: "ProgramTrace | None") -> Session:
            return replace(self, trace=trace)._program(shapes)

        digest = model_digest(self.model, self.store) if default_database().exists else ""
        return as_tuned(self.target, digest, shapes, self.accuracy, self.threads, with_trace)

    def _program(self, shapes: Shapes | None) -> Session:
        origin = _Origin.of(self.model, self.store)
        found = self._stored(origin.digest, shapes)
        if found is None:
            made: CompiledModel = _compiler().compile_for(
                self.target,
                self.model,
                origin.digest,
                shapes,
                self.accuracy,
                self.store,
                self.progress,
                plugin_options=self.plugin_options,
                trace=self.trace,
                check_indices=self.check_indices,
            )
            self._keep(made, origin, shapes)
            found = made.artifact
        return _static_session(found, self.threads, self.plugin_options.strict)

    def _stored(self, digest: str, shapes: Shapes | None, dims: str = "") -> Artifact | None:
        """The program, if it was compiled before."""
        key, tuned = self._current_key(digest, shapes, dims)
        path = self.store.find_program(key) if key else None
        if path is None:
            return None
        try:
            found = file.load_artifact(path, blobs=self.store)
        except UserError as e:
            self.store.discard_program(key, e.message)
            return None
        if tuned:
            _log.info("tuned: %d kernels from the database", tuned)
        return found

    def _keep(self, made: "CompiledModel", origin: "_Origin", shapes: Shapes | None, dims: str = "") -> None:
        """For later. Files that changed while they were read are compiled, but not kept."""
        digest, store = origin.digest, self.store
        external = [_beside(self.model, name) for name in made.external_files]
        if not digest or _state(self.model) != origin.state:
            return
        if not all(is_settled(p, origin.started) for p in external):
            return
        note_external_files(digest, made.external_files, store)
        others = _others(self.model, digest, store)
        if others is not None:
            note_tasks(self._key(digest, others, shapes, dims=dims), made.tasks, store)
            key = self._key(digest, others, shapes, made.tuned, dims)
            chunks = file.chunks(made.artifact, with_large=False)
            store.put_program(key, chunks, file.blobs(made.artifact))

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

    def _current_key(self, digest: str, shapes: Shapes | None, dims: str) -> tuple[str, int]:
        """Of the program as it would be compiled now, or empty: the model's other files and its tasks are not known
        before it has been compiled once. And for how many of its kernels there is a choice in the database.
        """
        others = _others(self.model, digest, self.store)
        if others is None:
            return "", 0
        untuned = self._key(digest, others, shapes, dims=dims)
        database = default_database()
        if not database.exists:
            return untuned, 0
        tasks = known_tasks(untuned, self.store)
        if tasks is None:
            return "", 0
        scope = RecordScope(target_digest(self.target), rules_digest())
        choices = database.choices(scope, tasks, self.target.machine.threads)
        database.close()
        return self._key(digest, others, shapes, choices_digest(choices), dims), len(choices)


@dataclass(frozen=True, slots=True)
class _Origin:
    """A model as it was before it was compiled: its digest, the state of its file, and when that was."""

    digest: str
    state: str
    started: int

    @classmethod
    def of(cls, model: "Model", store: Cache) -> "_Origin":
        started, state = time.time_ns(), _state(model)
        return cls(model_digest(model, store), state, started)


def _session(program: Artifact, threads: int | None, strict: bool) -> Session | OpenSession:
    make = _open_session if program.manifest.dims else _static_session
    return make(program, threads, strict)


def _open_session(program: Artifact, threads: int | None, strict: bool) -> OpenSession:
    if not program.regions:
        return OpenSession(program, threads)
    return _compiler().open_session_of(program, threads, strict=strict)


def _static_session(program: Artifact, threads: int | None, strict: bool) -> Session:
    if not program.regions:
        return Session(program, threads)
    return _compiler().session_of(program, threads, strict=strict)


def _compiler() -> ModuleType:
    return import_module("tilewright.compiler")


def _ranges() -> ModuleType:
    return import_module("tilewright.frontend.onnx.dim_ranges")


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
