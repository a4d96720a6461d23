"""Programs for the values of inputs that decide what runs.

Some models take a number that never changes, a sampling rate or a switch, and branch on it. Branches that depend on
inputs are taken by the host, between programs. With the number known there is one branch, and the model is one program
again, several times as quick for small models. So a model that has branches and inputs of a single integer each gets a
program for each of their values, for a few of them; any others run with the branches in place.
"""

import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from tilewright.api import load
from tilewright.ort.element_types import dtype_of_word
from tilewright.support.errors import TilewrightError

NUMBER_TYPES = frozenset({"tensor(int64)", "tensor(int32)", "tensor(bool)"})
_VALUES = 4  # that get a program


class _Runs(Protocol):
    def run(self, feeds: Any, outputs: Any = None) -> dict[str, Any]: ...


class NumberPrograms:
    """Of one model, by the values of the inputs in `deciding`, which has their types. For several threads at once."""

    def __init__(self, model: str | bytes, threads: int | None, deciding: Mapping[str, str]) -> None:
        self._model, self._threads = model, threads
        self._names = [(name, dtype_of_word(word)) for name, word in deciding.items()]
        self._programs: dict[
            tuple[int, ...], _Runs | None
        ] = {}  # None: the general program takes these values
        self._is_useless = False
        self._lock = threading.Lock()

    def try_run(self, feeds: Any) -> dict[str, Any] | None:
        """The outputs; None if the general program has to run, or to say what is wrong with the feeds."""
        if self._is_useless or feeds.__class__ is not dict:
            return None
        others = dict(feeds)
        values: list[int] = []
        for name, dtype in self._names:
            value = others.pop(name, None)
            if type(value) is not np.ndarray or value.dtype != dtype or value.ndim:
                return None
            values.append(value.item())
        key = tuple(values)
        try:
            program = self._programs[key]
        except KeyError:
            return self._first(key, others)
        return None if program is None else program.run(others)

    def _first(self, key: tuple[int, ...], feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        with self._lock:
            if key in self._programs or len(self._programs) >= _VALUES:
                return None  # another thread is quicker, or there are too many values
            try:
                values = {n: np.array(v, d) for (n, d), v in zip(self._names, key, strict=True)}
                edited = import_module("tilewright.ort.edited_model").edited_model(self._model, values, ())
                made = load(edited, threads=self._threads)
                results = made.run(feeds)
            except TilewrightError:
                self._programs[key] = None  # the general one says what is wrong, or is able to run it
                return None
            if getattr(made, "staged", None) is not None:  # something else decides
                self._is_useless = True
            self._programs[key] = made
            return results
