"""`InferenceSession`: a model, and how callers of ONNX Runtime run it.

A run is one call of the program's own `run`; everything else is looked at only when that fails. Then it is the feeds'
fault, which is told in ONNX Runtime's words; or ours, and the real ONNX Runtime takes the model over, if it is
installed. A session may be used from several threads at once.
"""

import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.ort.engines import (
    ModelRunner,
    ModelSource,
    OwnProgram,
    RealSession,
    RunAll,
    copied_into,
    model_title,
)
from tilewright.ort.exceptions import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
    OrtError,
)
from tilewright.ort.feed_check import check_fed, check_feeds
from tilewright.ort.io_binding import IOBinding
from tilewright.ort.messages import lower_severity, say_once
from tilewright.ort.node_arg import ModelMetadata, NodeArg, metadata_of, node_arg
from tilewright.ort.number_programs import NUMBER_TYPES
from tilewright.ort.options import RunOptions, SessionOptions
from tilewright.ort.ort_value import OrtValue
from tilewright.ort.providers import ProviderOptions, Providers, chosen_providers
from tilewright.ort.real import is_installed
from tilewright.ort.thread_counts import session_threads
from tilewright.ort.trace_events import TraceEvents
from tilewright.ort.wire import WireError, WireModel, read_wire
from tilewright.support.arrays import OpaqueArray
from tilewright.support.errors import UserError

_NO_REAL = "TILEWRIGHT_ORT_FALLBACK"  # "0": what is not supported is an error, though ONNX Runtime is there
_OWN_FORMAT = b"ORTM"  # of ONNX Runtime's own files, after four bytes


class InferenceSession:
    """Runs a model, given as the name of its file or as its bytes."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Providers = None,
        provider_options: ProviderOptions = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(path_or_bytes, bytes):
            self._model: ModelSource = path_or_bytes
        elif isinstance(path_or_bytes, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._model = os.fspath(path_or_bytes)
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        self._model_path = None if isinstance(self._model, bytes) else self._model
        self._sess_options = SessionOptions() if sess_options is None else sess_options
        self._enable_fallback = int(kwargs.get("enable_fallback", 1)) == 1
        lower_severity(self._sess_options.log_severity_level)
        self._providers = self._chosen(providers, provider_options)
        self._lock = threading.RLock()
        self._overriding: dict[frozenset[str], ModelRunner] = {}
        self._events: TraceEvents | None = None
        if self._sess_options.enable_profiling:
            self._events = TraceEvents(self._sess_options.profile_file_prefix)
        start = time.monotonic_ns()
        self._engine: ModelRunner = self._first_engine()
        self._run: RunAll = self._runner()
        if self._events is not None:
            self._events.add("session_initialization", start, model=model_title(self._model))
        self._write_optimized()

    def __repr__(self) -> str:
        who = "ONNX Runtime" if isinstance(self._engine, RealSession) else "Tilewright"
        return f"<InferenceSession of {model_title(self._model)}, run by {who}>"

    # --------------------------------------------------------------------------------------------------- running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run once. All outputs in the model's order, or those that are named; new arrays each time."""
        if run_options is not None:
            _check_options(run_options)
        try:
            results = self._run(input_feed)
        except Exception as error:
            results = self._run_otherwise(input_feed, error)
        if not output_names:
            return list(results.values())
        if isinstance(output_names, str):
            raise TypeError("run(): output names are a list of names, and this is one name")
        try:
            return [results[name] for name in output_names]
        except KeyError as error:
            raise InvalidArgument(f"Invalid output name:{error.args[0]}") from None

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run once, on OrtValues and to OrtValues."""
        feeds = {name: value.content() for name, value in input_dict_ort_values.items()}
        return [OrtValue(v) for v in self.run(output_names, feeds, run_options)]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run once, on what is bound. RuntimeError if that does not fit."""
        if iobinding.owner is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        if run_options is not None:
            _check_options(run_options)
        try:
            iobinding.run()
        except (OrtError, ValueError) as error:
            raise RuntimeError(f"Error in execution: {error}") from error

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Any,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run once in a thread of its own, which then calls `callback(results, user_data, error)`."""
        check_fed(input_feed, self._inputs_meta)

        def work() -> None:
            results: list[Any] = []
            text = ""
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as error:
                text = str(error)
            callback(results, user_data, text)

        threading.Thread(target=work, daemon=True).start()

    def io_binding(self) -> IOBinding:
        """A binding for this session."""
        return IOBinding([a.name for a in self._inputs_meta], self._run_into, self)

    # ------------------------------------------------------------------------------------------------- the model

    def get_inputs(self) -> list[NodeArg]:
        return self._inputs_meta

    def get_outputs(self) -> list[NodeArg]:
        return self._outputs_meta

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs that have a value, which a feed may replace. Each set of them that is fed gets a program."""
        return self._overridable_initializers

    def get_modelmeta(self) -> ModelMetadata:
        return self._model_meta

    # ----------------------------------------------------------------------------------------------- the session

    def get_session_options(self) -> SessionOptions:
        return self._sess_options

    def get_providers(self) -> list[str]:
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return self._providers

    def set_providers(self, providers: Providers = None, provider_options: ProviderOptions = None) -> None:
        """There is one provider, so the program stays."""
        self._providers = self._chosen(providers, provider_options)

    def disable_fallback(self) -> None:
        """Providers that do not exist are errors."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """Providers that do not exist are left out."""
        self._enable_fallback = True

    def get_profiling_start_time_ns(self) -> int:
        """Comparable with `time.monotonic_ns()`; 0 without profiling."""
        return 0 if self._events is None else self._events.start_ns

    def end_profiling(self) -> str:
        """Write what was recorded; the name of the file, or nothing without profiling."""
        if self._events is None:
            return ""
        events, self._events = self._events, None
        self._run = self._runner()
        return events.write()

    def _chosen(self, providers: Providers, options: ProviderOptions) -> dict[str, dict[str, str]]:
        return chosen_providers(providers, options, may_fall_back=self._enable_fallback)

    # --------------------------------------------------------------------------------------------------- engines

    def _first_engine(self) -> ModelRunner:
        """Our own program if we can make one, otherwise the real ONNX Runtime."""
        if self._is_foreign_format():
            engine = self._real("it is in ONNX Runtime's own format", None)
            self._describe_from(engine)
            return engine
        shapes = self._describe(self._read())
        options = self._sess_options
        try:
            model = self._model
            if options.initializers:
                values = {n: v.numpy() for n, v in options.initializers.items()}
                model = import_module("tilewright.ort.edited_model").edited_model(model, values, ())
            made = OwnProgram(model, session_threads(options), shapes, self._deciding)
        except Exception as error:
            return self._real(_reason(error), error)
        for arg in self._outputs_meta:
            arg.shape = made.output_shapes.get(arg.name, arg.shape)
        self._is_checked = bool(options.dims or options.denotations) and not made.is_closed
        return made

    def _is_foreign_format(self) -> bool:
        if isinstance(self._model, bytes):
            return self._model[4:8] == _OWN_FORMAT
        return self._model.endswith(".ort") and os.path.exists(self._model)

    def _read(self) -> WireModel:
        """What the model says of itself, or ONNX Runtime's errors for what is none."""
        where = "" if self._model_path is None else f"Load model from {self._model_path} failed:"
        unparsed = (
            f"{where}Protobuf parsing failed."
            if where
            else "Failed to load model because protobuf parsing failed."
        )
        try:
            found = read_wire(self._model)
        except FileNotFoundError:
            raise NoSuchFile(f"{where}Load model {self._model_path} failed. File doesn't exist") from None
        except (WireError, IsADirectoryError) as error:
            raise InvalidProtobuf(unparsed) from error
        except OSError as error:
            raise Fail(f"{where}{error}") from error
        if not found.has_graph:
            raise InvalidArgument(f"{where}No graph was found in the protobuf.")
        return found

    def _describe(self, model: WireModel) -> dict[str, tuple[int, ...]]:
        """Keep what the model says of itself. The shapes of inputs that only the options make known."""
        options = self._sess_options
        self._is_checked = False
        self._inputs_meta: list[NodeArg] = []
        self._overridable_initializers: list[NodeArg] = []
        self._model_meta = metadata_of(model)
        self._deciding: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for value in model.inputs:
            arg, is_fixed = node_arg(value, options.dims, options.denotations)
            if value.name in model.initializers:
                self._overridable_initializers.append(arg)
                continue
            self._inputs_meta.append(arg)
            if model.has_branches and value.dims == () and value.type in NUMBER_TYPES:
                self._deciding[arg.name] = arg.type
            known = tuple(n for n in arg.shape if isinstance(n, int))
            if is_fixed and len(known) == len(arg.shape):
                shapes[arg.name] = known
        self._outputs_meta = [node_arg(v, options.dims, options.denotations)[0] for v in model.outputs]
        return shapes

    def _describe_from(self, engine: RealSession) -> None:
        real = engine.session
        self._is_checked = False
        self._inputs_meta = [NodeArg(a.name, a.type, a.shape) for a in real.get_inputs()]
        self._outputs_meta = [NodeArg(a.name, a.type, a.shape) for a in real.get_outputs()]
        found = real.get_overridable_initializers()
        self._overridable_initializers = [NodeArg(a.name, a.type, a.shape) for a in found]
        meta = real.get_modelmeta()
        self._model_meta = ModelMetadata(
            meta.producer_name,
            meta.graph_name,
            meta.domain,
            meta.description,
            meta.graph_description,
            meta.version,
            meta.custom_metadata_map,
        )

    def _real(self, why: str, error: Exception | None) -> RealSession:
        """The real ONNX Runtime for this model; said once. Our own error if it is not there, or not wanted."""
        refused = (
            os.environ.get(_NO_REAL, "").lower() in ("0", "off", "false", "no")
            or self._sess_options.config.get("session.disable_cpu_ep_fallback") == "1"
        )
        if refused or not is_installed():
            raise _own_error(self._model_path, why, error, refused=refused) from error
        engine = RealSession(self._model, self._sess_options)
        say_once(
            f"{model_title(self._model)} is run by ONNX Runtime, not by Tilewright: {why}",
            self._sess_options.log_severity_level,
        )
        return engine

    def _runner(self) -> RunAll:
        """How a run is made: the engine's own method, unless something has to be done to feeds each time."""
        run = self._engine.run
        texts = [a.name for a in self._inputs_meta if a.type == "tensor(string)"]
        if texts and not isinstance(self._engine, RealSession):
            run = _with_texts(run, texts)
        if self._is_checked:
            run = _checked(run, self._inputs_meta, self._overridable_initializers)
        return run if self._events is None else _recorded(run, self._events)

    def _run_otherwise(self, feeds: Any, error: Exception) -> dict[str, Any]:
        """A run that has failed: the caller's fault, or an initializer that is fed; otherwise somebody else tries."""
        tried = self._engine
        if isinstance(error, OrtError) or not isinstance(tried, OwnProgram):
            raise error
        try:
            check_feeds(feeds, self._inputs_meta, self._overridable_initializers)
        except (OrtError, ValueError, RuntimeError) as fault:
            raise fault from None  # what our program said of it is of no use
        fed = frozenset(a.name for a in self._overridable_initializers if a.name in feeds)
        if fed:
            return self._overridden(fed).run(feeds)
        with self._lock:
            taken = self._engine
            if taken is not tried:  # another thread was quicker
                return taken.run(feeds)
            engine = self._real(_reason(error), error)
            results = engine.run(feeds)  # if that fails too, it was the feeds, and our program stays
            self._engine = engine
            self._run = self._runner()
            return results

    def _overridden(self, fed: frozenset[str]) -> ModelRunner:
        """A program that takes these initializers as inputs."""
        with self._lock:
            if fed not in self._overriding:
                values = {n: v.numpy() for n, v in self._sess_options.initializers.items() if n not in fed}
                try:
                    edit = import_module("tilewright.ort.edited_model").edited_model
                    model = edit(self._model, values, fed)
                    self._overriding[fed] = OwnProgram(model, session_threads(self._sess_options), {}, {})
                except Exception as error:
                    self._overriding[fed] = self._real(_reason(error), error)
            return self._overriding[fed]

    def _run_into(self, feeds: Mapping[str, Any], buffers: Mapping[str, OpaqueArray]) -> Mapping[str, Any]:
        """For bindings."""
        if not buffers or self._run != self._engine.run:
            try:
                results = self._run(feeds)
            except Exception as error:
                results = self._run_otherwise(feeds, error)
        else:
            try:
                return self._engine.run_into(feeds, buffers)
            except UserError as error:
                results = self._run_otherwise(feeds, error)
        return copied_into(results, dict(buffers))

    def _write_optimized(self) -> None:
        """Who asks for the optimised model gets one that computes the same: ours is no ONNX any more."""
        path = self._sess_options.optimized_model_filepath
        if not path or isinstance(self._engine, RealSession):  # that has written it
            return
        if isinstance(self._model, bytes):
            Path(path).write_bytes(self._model)
        elif os.path.abspath(path) != os.path.abspath(self._model):
            shutil.copyfile(self._model, path)


def _check_options(options: RunOptions) -> None:
    if options.terminate:
        raise Fail("Exiting due to terminate flag being set to true.")


def _reason(error: Exception) -> str:
    """Why we cannot run a model, in a line."""
    if isinstance(error, UserError):
        return "; ".join(error.message.splitlines()[:3])
    return f"a mistake of Tilewright's, please report it: {type(error).__name__}: {error}"


def _own_error(path: str | None, why: str, error: Exception | None, *, refused: bool) -> Exception:
    """What there is to say if nobody can run a model."""
    cause = "" if error is None else type(error.__cause__).__name__
    if cause == "DecodeError":
        return InvalidProtobuf(f"Load model from {path} failed:{why}")
    kind = NotImplemented if "not supported" in why or "format" in why else Fail
    what_next = (
        "and falling back to ONNX Runtime is off"
        if refused
        else "pip install onnxruntime to have it run that"
    )
    return kind(f"Tilewright cannot run {path or 'the model'}: {why}; {what_next}")


def _with_texts(run: RunAll, names: Sequence[str]) -> RunAll:
    """Text of fixed width as text of any: numpy has two types for it."""

    def run_with_texts(feeds: Any) -> dict[str, Any]:
        given = dict(feeds)
        for name in names:
            if name in given:
                given[name] = np.asarray(given[name]).astype(object)
        return run(given)

    return run_with_texts


def _checked(run: RunAll, inputs: Sequence[NodeArg], overridable: Sequence[NodeArg]) -> RunAll:
    """Held to dimensions that only the options have fixed."""

    def run_checked(feeds: Any) -> dict[str, Any]:
        check_feeds(feeds, inputs, overridable)
        return run(feeds)

    return run_checked


def _recorded(run: RunAll, events: TraceEvents) -> RunAll:
    def run_recorded(feeds: Any) -> dict[str, Any]:
        start = time.monotonic_ns()
        try:
            return run(feeds)
        finally:
            shapes = {
                n: list(getattr(v, "shape", ())) for n, v in feeds.items() if not isinstance(v, OrtValue)
            }
            events.add("model_run", start, inputs=shapes)

    return run_recorded
