"""The regions of plugins in a compiled program, made ready to run.

A region whose plugin is not there, cannot load it or fails while it runs is run by native code from then on, which is
compiled when that happens; it is said once. With `strict` it is an error instead. Where sizes are open, native code is
compiled for all of them, as the program is.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto

from tilewright.plugins.registry import find_plugin
from tilewright.support.arrays import Array, Shapes
from tilewright.support.artifact import Artifact, ExternalCall, RegionCode
from tilewright.support.errors import Hint, UserError
from tilewright.support.program import leaves

RunSized: TypeAlias = Callable[[Sequence[Array], Sequence[Array], Mapping[str, int]], None]
"""Reads the inputs and fills the outputs, where open dimensions have these sizes."""


@dataclass(frozen=True, slots=True, eq=False)
class NativeRegion:
    """What runs instead of a plugin, and the types of elements that it takes and gives."""

    run: RunSized
    takes: tuple[np.dtype[Any], ...]
    gives: tuple[np.dtype[Any], ...]


MakeNativeRegion: TypeAlias = Callable[[bytes, Mapping[str, Array], Shapes], NativeRegion]
"""Native code for an ONNX model without weights, its constants by name, and the shapes of its inputs if sizes are open.
"""

_NO_SIZES: Mapping[str, int] = MappingProxyType({})
_log = logging.getLogger("tilewright")


def externals_of(
    artifact: Artifact, threads: int, native: MakeNativeRegion, *, strict: bool
) -> dict[str, "GuardedRegion"]:
    """The code of the program's external calls."""
    calls = {s.key: s for s in leaves(artifact.program) if isinstance(s, ExternalCall)}
    out: dict[str, GuardedRegion] = {}
    for code in artifact.regions:
        constants = {name: artifact.constants[at] for name, at in code.constants}
        extents = [s.extents for _, s in calls[code.key].inputs] if artifact.manifest.dims else []
        out[code.key] = GuardedRegion(code, constants, extents, threads, native, strict)
    return out


class GuardedRegion:
    """A region that runs, whoever runs it. `extents` are the shapes of its inputs as the plugin gets them, if sizes may
    be open.
    """

    def __init__(
        self,
        code: RegionCode,
        constants: Mapping[str, Array],
        extents: Sequence[tuple[int, ...]],
        threads: int,
        native: MakeNativeRegion,
        strict: bool,
    ) -> None:
        self._code, self._constants, self._native, self._strict = code, constants, native, strict
        self._extents = extents
        self._lock = threading.Lock()
        self._has_failed = False
        try:
            self._run = self._loaded(threads)
        except Exception as e:
            self._run = self._fall_back(e)

    def __call__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], sizes: Mapping[str, int] = _NO_SIZES
    ) -> None:
        run = self._run
        try:
            run(inputs, outputs, sizes)
        except Exception as e:
            if self._has_failed and run is self._run:
                raise  # it is native code that fails
            with self._lock:
                if not self._has_failed:
                    self._run = self._fall_back(e)
            if _overlap(inputs, outputs):
                raise UserError(
                    f"{self._code.key}: the plugin {self._code.plugin} failed where outputs lie over inputs,"
                    f" which may be gone: {_reason(e)}",
                    hint="run again: native code runs this region from now on",
                ) from e
            self._run(inputs, outputs, sizes)

    def _loaded(self, threads: int) -> RunSized:
        plugin = find_plugin(self._code.plugin)
        if plugin.version != self._code.version:
            raise UserError(
                f"the region was compiled by version {self._code.version} of {plugin.name}; here is {plugin.version}"
            )
        run = plugin.load(self._code.blob, self._constants, threads if plugin.capabilities.threads else 1)
        return lambda inputs, outputs, sizes: run(inputs, outputs)

    def _fall_back(self, e: Exception) -> RunSized:
        title = f"{self._code.key}: the plugin {self._code.plugin} failed ({_reason(e)})"
        if self._strict:
            hint = Hint(
                "without strict=True, native code would take over",
                command="without --strict, native code would take over",
            )
            raise UserError(title, hint=hint) from e
        if not self._code.model:
            raise UserError(title, hint="native code does not know all operators of this region") from e
        _log.warning("%s; native code runs this region from now on", title)
        self._has_failed = True
        try:
            made = self._native(self._code.model, self._constants, self._shapes())
        except UserError as ours:
            raise UserError(
                f"{title}, and native code cannot take over: {ours.message}", hint=ours.hint
            ) from e
        return _stated(made, self._code.last)

    def _shapes(self) -> Shapes:
        """Of the inputs of the region's model."""
        names = [i.name for i in ModelProto.FromString(self._code.model).graph.input] if self._extents else []
        return {
            name: _first_shape(shape) if self._code.last else shape
            for name, shape in zip(names, self._extents, strict=True)
        }


def _reason(e: Exception) -> str:
    return e.message if isinstance(e, UserError) else f"{type(e).__name__}: {e}"


def _overlap(inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return any(np.may_share_memory(a, b) for a in inputs for b in outputs)


def _first_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """With channels last in memory: as the model has it."""
    return (shape[0], shape[-1], *shape[1:-1]) if len(shape) > 2 else shape


def _stated(native: NativeRegion, is_last: bool) -> RunSized:
    """Native code for arrays in the form in which the plugin wanted them, and that may lie over each other."""

    def first(a: Array) -> Array:
        return np.moveaxis(a, -1, 1) if is_last and a.ndim > 2 else a

    def run(inputs: Sequence[Array], outputs: Sequence[Array], sizes: Mapping[str, int]) -> None:
        taken = [
            np.asarray(first(a), dtype, order="C") for a, dtype in zip(inputs, native.takes, strict=True)
        ]
        given = [first(a) for a in outputs]
        made = [
            want if want.dtype == dtype and want.flags.c_contiguous else np.empty(want.shape, dtype)
            for want, dtype in zip(given, native.gives, strict=True)
        ]
        native.run([a.copy() if _overlap([a], made) else a for a in taken], made, sizes)
        for have, want in zip(made, given, strict=True):
            if have is not want:
                want[...] = have

    return run
