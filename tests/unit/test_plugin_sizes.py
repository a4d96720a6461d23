"""A plugin is small: what it takes to bring one's own code generator is a promise, printed and kept.

Every module in `tilewright.plugins` that a plugin alone imports is a part of it, whatever folder it is in.
"""

import ast
from pathlib import Path

import pytest

import tilewright.plugins

FOLDER = Path(tilewright.plugins.__file__).parent
MECHANISM = {"registry", "isolation", "packages", "worker"}  # what finds plugins and keeps them apart
PACKAGE = "tilewright.plugins"

# Lines of all it takes. oneDNN is a library of single primitives: beside saying what it takes, as the others do (200
# lines), the plugin declares the C API (200), chooses layouts and memory between primitives (200), and finds the
# chains of nodes that are one primitive (80). The others hand whole regions to an engine that does that by itself.
LIMITS = {"onednn": 700, "onnxruntime": 400, "openvino": 400}


def modules() -> dict[str, Path]:
    found = {
        p.relative_to(FOLDER).with_suffix("").as_posix().replace("/", "."): p for p in FOLDER.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in found.items() if name != "__init__"}


MODULES = modules()


def imports(path: Path) -> set[str]:
    """The modules of this folder that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            module = (node.module or "").removeprefix(PACKAGE).removeprefix(".")
            inside = [f"{module}.{a.name}".removeprefix(".") for a in node.names]
            found |= {name for name in (module, *inside) if name in MODULES}
    return found


def reached(plugin: str) -> set[str]:
    found, todo = {plugin}, [plugin]
    while todo:
        fresh = imports(MODULES[todo.pop()]) - found
        found |= fresh
        todo += fresh
    return found


PARTS = {plugin: reached(plugin) for plugin in LIMITS}


def test_every_module_belongs_to_a_plugin_or_to_the_mechanism() -> None:
    assert MODULES.keys() == MECHANISM.union(*PARTS.values())


@pytest.mark.parametrize("plugin", LIMITS)
def test_a_plugin_is_as_small_as_it_says(plugin: str) -> None:
    others = set[str]().union(*(parts for name, parts in PARTS.items() if name != plugin))
    own = PARTS[plugin] - others - MECHANISM
    lines = sum(len(MODULES[m].read_text(encoding="utf-8").splitlines()) for m in own)
    print(f"{plugin}: {lines} lines in {', '.join(sorted(own))}")
    assert lines <= LIMITS[plugin]
