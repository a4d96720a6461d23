"""Interning: structurally equal nodes are one object.

So equality is identity, hashing is free, and a rewrite memoised by node visits shared parts once. The table is weak:
a node lives as long as somebody uses it. A class whose fields do not distinguish themselves under `==` (the
constants: `1 == True`, `0.0 == -0.0`) overrides `intern_key`.
"""

import threading
import weakref
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, cast

from tilewright.support.uninterrupted import uninterrupted

_lock = threading.RLock()  # a node may die, and be forgotten, while its thread holds it
_table: dict[tuple[Any, ...], "_Entry"] = {}


class _Entry(weakref.ref[Any]):
    __slots__ = ("key",)
    key: tuple[Any, ...]


def _forget(entry: weakref.ref[Any]) -> None:
    # Another thread may have made the same node again since this one died: remove only our own entry, and let nobody
    # make one between looking and removing.
    key = cast(_Entry, entry).key
    with _lock:
        if _table.get(key) is entry:
            del _table[key]


uninterrupted(_forget)

_defaults: dict[type, tuple[Any, ...]] = {}  # of the fields that a constructor takes


def _defaults_of(cls: type) -> tuple[Any, ...]:
    if cls not in _defaults:
        _defaults[cls] = tuple(f.default for f in fields(cls) if f.init)
    return _defaults[cls]


class Interned(type):
    """Metaclass of interned node classes. Positional arguments only: the fields are the key, those left out too."""

    def intern_key(cls, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (cls, *args)

    if not TYPE_CHECKING:  # the checker should see the dataclass's own constructor

        def __call__(cls, *args: Any) -> Any:
            known = _table.get((cls, *args))  # the usual case, in a hurry
            node = None if known is None else known()
            return cls._intern(args) if node is None else node

        def _intern(cls, args: tuple[Any, ...]) -> Any:
            defaults = _defaults.get(cls) or _defaults_of(cls)
            if len(args) < len(defaults) and defaults[len(args)] is not MISSING:
                args = (*args, *defaults[len(args) :])
            key = cls.intern_key(args)
            entry = _table.get(key)
            if entry is not None:
                node = entry()
                if node is not None:
                    return node
            made = super().__call__(*args)
            with _lock:
                entry = _table.get(key)
                node = entry() if entry is not None else None
                if node is not None:
                    return node
                entry = _Entry(made, _forget)
                entry.key = key
                _table[key] = entry
            return made


def interned_count() -> int:
    """How many nodes are alive; for tests of memory behaviour."""
    return len(_table)
