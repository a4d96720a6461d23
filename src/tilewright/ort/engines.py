"""What runs a model behind a session: our own program, or the real ONNX Runtime in its place.

Both take feeds by name and give all outputs by name. Results are contiguous, as programs expect of ONNX Runtime.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from tilewright.api import load
from tilewright.ort.exceptions import translated
from tilewright.ort.number_programs import NumberPrograms
from tilewright.ort.options import SessionOptions
from tilewright.ort.ort_value import OrtValue
from tilewright.ort.providers import CPU
from tilewright.ort.real import real_onnxruntime
from tilewright.runtime.session import Session
from tilewright.support.arrays import OpaqueArray, Shapes
from tilewright.support.errors import UserError

ModelSource: TypeAlias = str | bytes
RunAll: TypeAlias = Callable[[Any], dict[str, Any]]


class ModelRunner(Protocol):
    """Runs one model."""

    @property
    def run(self) -> RunAll:
        """All outputs, by name and in the model's order."""
        ...

    def run_into(self, feeds: Mapping[str, Any], buffers: Mapping[str, OpaqueArray]) -> dict[str, Any]:
        """The same, with some outputs written to these arrays."""
        ...


class OwnProgram:
    """A program of ours. `run` is the session's own method where that gives contiguous arrays: nothing is added.

    `deciding`: inputs that are one number each and decide what runs, with their types. Programs are made for their
    values (`ort/number_programs.py`).
    """

    def __init__(
        self, model: ModelSource, threads: int | None, shapes: Shapes, deciding: Mapping[str, str]
    ) -> None:
        self._session = load(model, threads=threads, shapes=shapes or None)
        self._by_number = NumberPrograms(model, threads, deciding) if deciding else None
        self.run: RunAll = self._session.run if self.is_closed else self._run_open

    @property
    def is_closed(self) -> bool:
        """Are all shapes known?"""
        return isinstance(self._session, Session)

    @property
    def output_shapes(self) -> dict[str, list[int | str | None]]:
        """Of outputs, where they are known."""
        if not isinstance(self._session, Session):
            return {}
        return {s.name: list(s.shape) for s in self._session.outputs}

    def run_into(self, feeds: Mapping[str, Any], buffers: Mapping[str, OpaqueArray]) -> dict[str, Any]:
        try:
            return cast("dict[str, Any]", self._session.run(feeds, buffers))
        except UserError:  # an output that is an input as well, or does not fit
            return copied_into(self.run(feeds), buffers)

    def _run_open(self, feeds: Any) -> dict[str, Any]:
        found = None if self._by_number is None else self._by_number.try_run(feeds)
        results = cast("dict[str, Any]", self._session.run(feeds)) if found is None else found
        for name, value in results.items():
            if type(value) is np.ndarray and not value.flags.c_contiguous:
                results[name] = np.ascontiguousarray(value).reshape(value.shape)
        return results


class RealSession:
    """ONNX Runtime itself. Its errors are given as ours of the same names."""

    def __init__(self, model: ModelSource, options: SessionOptions) -> None:
        real = real_onnxruntime()
        try:
            self.session: Any = real.InferenceSession(model, _real_options(real, options), providers=[CPU])
        except Exception as error:
            raise translated(error) from error
        self._outputs = [o.name for o in self.session.get_outputs()]

    def run(self, feeds: Any) -> dict[str, Any]:
        given = {n: v.content() if isinstance(v, OrtValue) else v for n, v in feeds.items()}
        try:
            return dict(zip(self._outputs, self.session.run(None, given), strict=True))
        except Exception as error:
            raise translated(error) from error

    def run_into(self, feeds: Mapping[str, Any], buffers: Mapping[str, OpaqueArray]) -> dict[str, Any]:
        return copied_into(self.run(feeds), buffers)


def copied_into(results: dict[str, Any], buffers: Mapping[str, OpaqueArray]) -> dict[str, Any]:
    for name, buffer in buffers.items():
        found = results.get(name)
        if not isinstance(found, np.ndarray):
            raise RuntimeError(f"Error in execution: Invalid output name: {name}")
        value = cast(OpaqueArray, found)
        if value.shape != buffer.shape or value.dtype != buffer.dtype:
            raise RuntimeError(
                f"Error in execution: output {name} is {value.dtype}{list(value.shape)}, and the memory that it is "
                f"bound to {buffer.dtype}{list(buffer.shape)}"
            )
        np.copyto(buffer, value)
        results[name] = buffer
    return results


def _real_options(real: Any, options: SessionOptions) -> Any:
    """The same options for the real one."""
    made = real.SessionOptions()
    for name, value in options.values.items():
        kind = getattr(real, type(value).__name__, None)  # its own enumerations
        setattr(made, name, kind(int(value)) if kind is not None and isinstance(value, int) else value)
    for key, text in options.config.items():
        made.add_session_config_entry(key, text)
    for name, size in options.dims.items():
        made.add_free_dimension_override_by_name(name, size)
    for denotation, size in options.denotations.items():
        made.add_free_dimension_override_by_denotation(denotation, size)
    for name, value in options.initializers.items():
        made.add_initializer(name, real.OrtValue.ortvalue_from_numpy(value.numpy()))
    for library in options.libraries:
        made.register_custom_ops_library(library)
    return made


def model_title(model: ModelSource) -> str:
    """How messages call a model."""
    return f"a model of {len(model):,} bytes" if isinstance(model, bytes) else os.fspath(model)
