"""What a user asks of plugins. Light to import: a program that was compiled before is loaded without the compiler."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.support.errors import UserError
from tilewright.support.policy import Policy

CalibrationSample: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """What the user asks of plugins: their names, in order of preference. `strict`: that a plugin fails is an error.
    `threads`: how many are measured with; None: a session's default. `calibration` are samples of the model's inputs,
    by name. `is_open`: the shapes of the model are known only when it runs, and may change.
    """

    plugins: tuple[str, ...] = ()
    policy: Policy = Policy.MEASURED
    strict: bool = False
    threads: int | None = None
    calibration: tuple[CalibrationSample, ...] = field(default=(), compare=False)
    is_open: bool = False

    @classmethod
    def of(
        cls,
        plugins: Iterable[str],
        placement: str,
        strict: bool,
        threads: int | None = None,
        calibration: Iterable[CalibrationSample] = (),
    ) -> "PluginOptions":
        """From what a user writes."""
        names = (plugins,) if isinstance(plugins, str) else tuple(plugins)
        samples = tuple({n: np.ascontiguousarray(a) for n, a in s.items()} for s in calibration)
        try:
            return cls(names, Policy(placement), strict, threads, samples)
        except ValueError:
            known = ", ".join(p.value for p in Policy)
            raise UserError(f"{placement!r} is no placement", hint=f"there are: {known}") from None

    def __str__(self) -> str:
        if not self.plugins:
            return ""
        threads = f" {self.threads}"
        is_open = " open" if self.is_open else ""
        return f"{','.join(self.plugins)} {self.policy.value}{threads}{is_open}{self._samples()}"

    def _samples(self) -> str:
        """A digest of the samples to calibrate with."""
        if not self.calibration:
            return ""
        h = hashlib.sha256()
        for name, array in (item for s in self.calibration for item in sorted(s.items())):
            h.update(f"{name} {array.dtype} {array.shape}\n".encode())
            h.update(array.data if array.size else b"")
        return f" {h.hexdigest()}"


NATIVE = PluginOptions()
