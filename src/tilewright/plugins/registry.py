"""Which plugins there are.

An installed package names its plugin in the entry point group `tilewright.plugins`; a program registers one with
`register_plugin`, which goes first. A plugin is loaded when somebody asks for it by name, and not before: those that
nobody asks for cost nothing.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tilewright.graph.external import No, Plugin
from tilewright.support.errors import UserError

GROUP = "tilewright.plugins"

_log = logging.getLogger("tilewright")
_registered: dict[str, Plugin] = {}


def register_plugin(plugin: Plugin) -> None:
    """Make a plugin known to this process. A later one of the same name takes its place."""
    _check(plugin, type(plugin).__qualname__)
    _registered[plugin.name] = plugin


def unregister_plugin(name: str) -> None:
    _registered.pop(name, None)


def plugin_names() -> tuple[str, ...]:
    """All that can be asked for, loaded or not."""
    return tuple(sorted({*_registered, *_installed()}))


def find_plugin(name: str) -> Plugin:
    """The plugin of this name; UserError if there is none, or if what it needs is not there."""
    plugin = _registered.get(name) or _loaded(name)
    answer = plugin.is_available()
    if isinstance(answer, No):
        raise UserError(f"the plugin {name} cannot be used: {answer.reason}")
    return plugin


def find_plugins(names: Sequence[str]) -> tuple[Plugin, ...]:
    return tuple(find_plugin(n) for n in dict.fromkeys(names))


def reference(plugin: Plugin) -> str:
    """How another process gets the same plugin: `module:class`. Empty if it cannot: the class is inside of something,
    or the plugin was made with arguments.
    """
    kind = type(plugin)
    is_plain = kind.__module__ != "__main__" and kind.__qualname__.isidentifier() and not vars(plugin)
    return f"{kind.__module__}:{kind.__qualname__}" if is_plain else ""


def by_reference(text: str) -> Plugin:
    return _made(EntryPoint("", text, GROUP).load(), text)


@lru_cache(maxsize=1)
def _installed() -> dict[str, EntryPoint]:
    return {e.name: e for e in entry_points(group=GROUP)}


@lru_cache(maxsize=32)
def _loaded(name: str) -> Plugin:
    entry = _installed().get(name)
    if entry is None:
        known = ", ".join(plugin_names()) or "none"
        raise UserError(f"there is no plugin {name!r}", hint=f"installed and registered are: {known}")
    try:
        found = entry.load()
    except Exception as e:
        raise UserError(
            f"the plugin {name} cannot be loaded: {type(e).__name__}: {e}", where=entry.value
        ) from e
    plugin = _made(found, entry.value)
    if plugin.name != name:
        raise UserError(f"the plugin {name} calls itself {plugin.name!r}", where=entry.value)
    return plugin


def _made(found: Any, where: str) -> Plugin:
    plugin = found() if isinstance(found, type) else found
    _check(plugin, where)
    return plugin


def _check(plugin: Any, where: str) -> None:
    if not isinstance(plugin, Plugin):
        raise UserError(
            "this is no Plugin", where=where, hint="derive it from tilewright.graph.external.Plugin"
        )
    name: Any = getattr(plugin, "name", None)
    if not isinstance(name, str) or not name or ":" in name:
        raise UserError(
            f"{name!r} is no name for a plugin", where=where, hint="give it letters, without a colon"
        )
