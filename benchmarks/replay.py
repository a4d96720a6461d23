"""Do traces replay to the same program, byte for byte? Models are compiled, their traces printed, read and replayed.

python -m benchmarks.replay            # all models of `benchmarks.fingerprint` (NAMES: some of them)
"""

import hashlib
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from benchmarks.fingerprint import find_models
from tilewright.compiler import CompiledModel, compile
from tilewright.driver.trace import ProgramTrace
from tilewright.runtime.file import chunks


def digest(made: CompiledModel) -> str:
    h = hashlib.sha256()
    for chunk in chunks(made.artifact):
        h.update(chunk)
    return h.hexdigest()


def is_replayed(model: Path, folder: Path) -> bool:
    made = compile(model)
    path = folder / f"{model.stem}.trace"
    made.trace.save(path)
    return digest(compile(model, trace=ProgramTrace.load(path))) == digest(made)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as name:
        models = list(find_models(names))
        shown = track(models, "replays", console=Console(stderr=True), transient=True)
        differing = [model.stem for model in shown if not is_replayed(model, Path(name))]
    print(f"{len(models)} models replayed: {', '.join(differing) or 'none'} differ")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
