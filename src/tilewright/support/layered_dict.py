"""A dict of which changed copies are cheap: a copy shares what it did not change.

Steps of a schedule make one Module of another, thousands of times for a deep network, and each keeps its Funcs by name.
A copy has the entries that differ from a dict it shares with the others; when there are many of these, they become the
next shared one.
"""

from collections.abc import ItemsView, Iterable, Mapping
from math import isqrt
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LayeredDict(Generic[K, V]):
    __slots__ = ("_changes", "_shared")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._shared: dict[K, V] = dict(entries or {})
        self._changes: dict[K, V | None] = {}  # None: it is gone

    def get(self, key: K) -> V | None:
        return self._changes[key] if key in self._changes else self._shared.get(key)

    def __getitem__(self, key: K) -> V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def items(self) -> ItemsView[K, V]:
        merged = {**self._shared, **self._changes}
        return {k: v for k, v in merged.items() if v is not None}.items()

    def changed(self, gone: Iterable[K], new: Mapping[K, V]) -> "LayeredDict[K, V]":
        """A copy without the keys in `gone`, and then with the entries in `new`."""
        changes = {**self._changes, **dict.fromkeys(gone), **new}
        made = LayeredDict[K, V]()
        made._shared, made._changes = self._shared, changes
        # What is copied in all grows least if there are about as many changes as the root of what is shared.
        return made if len(changes) <= 64 + 8 * isqrt(len(self._shared)) else LayeredDict(dict(made.items()))
