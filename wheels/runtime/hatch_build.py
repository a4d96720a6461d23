"""What is in the wheel: the modules of `tilewright` that a session imports, as `tilewright_runtime`.

Begins with the modules in `package/` and follows import statements. Each module that is found is copied; in its import
statements `tilewright` becomes the new name, and nothing else is changed. A module outside of `runtime` and `support`
fails the build: the wheel must not grow a compiler.
"""

import ast
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OURS, NEW = "tilewright", "tilewright_runtime"
ROOMS = ("runtime", "support", "version")
_STATEMENT = re.compile(rf"^(\s*(?:from|import) ){OURS}\b", re.MULTILINE)


class RuntimeSources(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.mkdtemp(prefix=f"{NEW}-")
        home = Path(self.root)
        collect(home / "package", home.parents[1] / "src" / OURS, Path(self._folder))
        build_data["force_include"][self._folder] = NEW

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def collect(package: Path, sources: Path, folder: Path) -> None:
    """Write the modules of the package, and all that they import of the sources, to a folder."""
    waiting = {p.name: p for p in sorted(package.glob("*.py"))}
    done: set[str] = set()
    while waiting:
        name, path = waiting.popitem()
        done.add(name)
        text = path.read_text(encoding="utf-8")
        for found in _imported(ast.parse(text), sources):
            if found.parts[0].removesuffix(".py") not in ROOMS:
                raise RuntimeError(f"{name} imports {found}: the runtime has {', '.join(ROOMS)} only")
            if str(found) not in done:
                waiting[str(found)] = sources / found
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_STATEMENT.sub(rf"\g<1>{NEW}", text), encoding="utf-8")
    (folder / "py.typed").touch()


def _imported(tree: ast.AST, sources: Path) -> set[Path]:
    """Modules of ours that a module imports, with the packages that they are in, as paths below `sources`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=members, level=0):
                names |= {module, *(f"{module}.{m.name}" for m in members)}
            case ast.Import(names=members):
                names |= {m.name for m in members}
            case _:
                pass
    found: set[Path] = set()
    for name in names:
        first, *rest = name.split(".")
        if first != OURS:
            continue
        path = Path(*rest)
        if rest and (sources / path.with_suffix(".py")).is_file():
            found.add(path.with_suffix(".py"))
        found |= {p / "__init__.py" for p in (path, *path.parents) if p.parts and (sources / p).is_dir()}
    return found
