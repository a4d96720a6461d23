"""The regions of plugins in a compiled program, made ready to run.

A region whose plugin is not there, cannot load it or fails while it runs is run by native code from then on, which is
compiled when that happens; it is said once. With `strict` it is an error instead.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.graph.external import RunRegion
from tilewright.plugins.registry import find_plugin
from tilewright.support.arrays import Array
from tilewright.support.artifact import Artifact, ExternalCode, RegionCode
from tilewright.support.errors import Hint, UserError


@dataclass(frozen=True, slots=True, eq=False)
class NativeRegion:
    """What runs instead of a plugin, and the types of elements that it takes and gives."""

    run: RunRegion
    takes: tuple[np.dtype[Any], ...]
    gives: tuple[np.dtype[Any], ...]


MakeNativeRegion: TypeAlias = Callable[[bytes, Mapping[str, Array]], NativeRegion]
"""Native code for an ONNX model without weights, and its constants by name."""

_log = logging.getLogger("tilewright")


def externals_of(
    artifact: Artifact, threads: int, native: MakeNativeRegion, *, strict: bool
) -> dict[str, ExternalCode]:
    """The code of the program's external calls."""
    out: dict[str, ExternalCode] = {}
    for code in artifact.regions:
        constants = {name: artifact.constants[at] for name, at in code.constants}
        out[code.key] = _Guarded(code, constants, threads, native, strict)
    return out


class _Guarded:
    """A region that runs, whoever runs it."""

    def __init__(
        self,
        code: RegionCode,
        constants: Mapping[str, Array],
        threads: int,
        native: MakeNativeRegion,
        strict: bool,
    ) -> None:
        self._code, self._constants, self._native, self._strict = code, constants, native, strict
        self._lock = threading.Lock()
        self._has_failed = False
        try:
            self._run = self._loaded(threads)
        except Exception as e:
            self._run = self._fall_back(e)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run = self._run
        try:
            run(inputs, outputs)
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
            self._run(inputs, outputs)

    def _loaded(self, threads: int) -> RunRegion:
        plugin = find_plugin(self._code.plugin)
        if plugin.version != self._code.version:
            raise UserError(
                f"the region was compiled by version {self._code.version} of {plugin.name}; here is {plugin.version}"
            )
        return plugin.load(self._code.blob, self._constants, threads if plugin.capabilities.threads else 1)

    def _fall_back(self, e: Exception) -> RunRegion:
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
        made = self._native(self._code.model, self._constants)
        return _stated(made, self._code.last)


def _reason(e: Exception) -> str:
    return e.message if isinstance(e, UserError) else f"{type(e).__name__}: {e}"


def _overlap(inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return any(np.may_share_memory(a, b) for a in inputs for b in outputs)


def _stated(native: NativeRegion, is_last: bool) -> RunRegion:
    """Native code for arrays in the form in which the plugin wanted them, and that may lie over each other."""

    def first(a: Array) -> Array:
        return np.moveaxis(a, -1, 1) if is_last and a.ndim > 2 else a

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        taken = [
            np.asarray(first(a), dtype, order="C") for a, dtype in zip(inputs, native.takes, strict=True)
        ]
        given = [first(a) for a in outputs]
        made = [
            want if want.dtype == dtype and want.flags.c_contiguous else np.empty(want.shape, dtype)
            for want, dtype in zip(given, native.gives, strict=True)
        ]
        native.run([a.copy() if _overlap([a], made) else a for a in taken], made)
        for have, want in zip(made, given, strict=True):
            if have is not want:
                want[...] = have

    return run
