"""How the code is laid out: docs/results/house.md, this checkout beside another.

    python -m benchmarks.house ../before

Counts come from the sources, and for the way from `tilewright.load` to a running kernel from a run.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.results import ROOT, current_commit, table, write
from examples.models import mlp

METHOD = """*Before* is {before}, *after* {after}. *Homonyms* are public names of classes, functions and type
aliases that several modules define. *Packages on the way* are the folders and root modules that code runs in between
`tilewright.load` of a small model, with nothing cached, and the end of its first run."""

_WALK = """
import json, sys
from pathlib import Path
import numpy as np
import tilewright
tilewright.load
root = str(Path(tilewright.__file__).parent) + "/"
seen = {}
def watch(frame, event, arg):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(root):
        first = name[len(root):].partition("/")[0]
        seen[first.removesuffix(".py")] = None
sys.setprofile(watch)
session = tilewright.load(sys.argv[1])
session.run({i.name: np.zeros(i.shape, i.dtype) for i in session.inputs})
sys.setprofile(None)
print(json.dumps(list(seen)))
"""


def package(checkout: Path) -> Path:
    return checkout / "src" / "tilewright"


def sources(checkout: Path) -> Iterator[Path]:
    yield from sorted(package(checkout).rglob("*.py"))


def root_modules(checkout: Path) -> list[str]:
    return sorted(p.stem for p in package(checkout).glob("*.py") if not p.stem.startswith("__"))


def lines(checkout: Path) -> Counter[str]:
    """By package; modules of the root together."""
    found: Counter[str] = Counter()
    for path in sources(checkout):
        first, *rest = path.relative_to(package(checkout)).parts
        found[first if rest else "(root)"] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def public_names(path: Path) -> Iterator[str]:
    """Of the classes, functions and type aliases that a module defines."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                yield name
            case _:
                pass


def homonyms(checkout: Path) -> dict[str, int]:
    """Public names with several definitions, and how many they have."""
    count = Counter(
        name for path in sources(checkout) for name in set(public_names(path)) if not name.startswith("_")
    )
    return {name: n for name, n in count.most_common() if n > 1}


def packages_on_the_way(checkout: Path) -> list[str]:
    """In the order in which they are entered first."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "mlp.onnx"
        model.write_bytes(mlp((24, 16, 8)).SerializeToString())
        env = {**os.environ, "PYTHONPATH": str(checkout / "src"), "TILEWRIGHT_CACHE": "off"}
        command = [sys.executable, "-c", _WALK, str(model)]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


@click.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/house.md.")
def main(before: Path, save: bool) -> None:
    """Compare the layout of the code with that of the checkout BEFORE."""
    both = (before, ROOT)
    counts = [lines(c) for c in both]
    roots, names = [root_modules(c) for c in both], [homonyms(c) for c in both]
    ways = [packages_on_the_way(c) for c in both]
    facts = table(
        ("", "before", "after"),
        [
            ["modules in the package's root", *(str(len(r)) for r in roots)],
            ["homonyms", *(str(len(n)) for n in names)],
            ["packages on the way from `load` to the first run", *(str(len(w)) for w in ways)],
            ["lines in the wheel", *(f"{c.total():,}" for c in counts)],
        ],
    )
    rows = [[f, *(f"{c[f]:,}" if c[f] else "" for c in counts)] for f in sorted(counts[0] | counts[1])]
    left = ", ".join(f"`{n}` ({k})" for n, k in names[1].items()) or "none"
    texts = [
        facts,
        table(("lines by package", "before", "after"), rows),
        f"Homonyms that are left: {left}.",
        f"The way, in order of first entry: {', '.join(ways[1])}.",
    ]
    click.echo("\n\n".join(texts))
    if save:
        shows = (
            f"The package's root has {len(roots[1])} modules (before: {len(roots[0])}), and a model passes "
        )
        shows += f"{len(ways[1])} packages (before: {len(ways[0])}) on its way to a running kernel."
        method = METHOD.format(before=current_commit(before), after=current_commit())
        click.echo(f"\nwritten to {write('house', 'The layout of the code', shows, method, *texts)}")


if __name__ == "__main__":
    main()
