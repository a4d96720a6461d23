"""What is declared is imported, and what is imported is declared."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# The module that a package brings, where it has another name.
MODULES = {"protobuf": "google", "pillow": "PIL"}
# Declared, and rightly not imported.
NOT_IMPORTED = {
    "onednn-cpu-gomp": "a library without Python, called through ctypes (plugins/onednn_library.py)"
}


def packages(requirements: list[str]) -> set[str]:
    return {re.split(r"[ <>=;\[]", r)[0] for r in requirements}


@cache
def imported() -> frozenset[str]:
    """Modules of others that the sources name, in import statements or as text given to `import_module`."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=names):
                    found |= {n.name for n in names}
                case ast.ImportFrom(module=str(module), level=0):
                    found.add(module)
                case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(module)), *_]):
                    found.add(module)
                case _:
                    pass
    roots = {name.partition(".")[0] for name in found}
    return frozenset(roots - sys.stdlib_module_names - {"tilewright", ""})


CORE = packages(PROJECT["dependencies"])
EXTRAS = {n: packages(r) for n, r in PROJECT["optional-dependencies"].items() if n not in ("dev", "docs")}


def test_what_is_declared_is_imported() -> None:
    declared = CORE.union(*EXTRAS.values())
    used = imported()
    assert not {p for p in declared - NOT_IMPORTED.keys() if MODULES.get(p, p) not in used}
    assert NOT_IMPORTED.keys() <= declared


def test_what_is_imported_is_declared() -> None:
    declared = CORE.union(*EXTRAS.values())
    assert not imported() - {MODULES.get(p, p) for p in declared}


def test_every_extra_is_named_where_a_user_lacks_it() -> None:
    """An extra that no message and no page names is one that nobody finds."""
    text = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    assert not [e for e in EXTRAS if f"tilewright[{e}]" not in text and f'"{e}"' not in text]
