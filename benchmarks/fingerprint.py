"""Does a change of the compiler change the code that it makes?

    python -m benchmarks.fingerprint            # compare with benchmarks/fingerprints.json; exit 1 if anything differs
    python -m benchmarks.fingerprint --write    # keep what is made now
    python -m benchmarks.fingerprint resnet18   # some models only

A fingerprint is the digest of the LLVM IR of a kernel after canonical renaming, with the number of its parts and of its
steps. The models are the networks and the operators of the benchmark suite and ten transformers
(`export_transformers.py`): ONNX files in `models`, `ops` and `transformers` below `$BENCH_HOME`. Nothing is compiled by
LLVM and nothing is run, so it takes a few minutes for all of them. A commit that moves or renames keeps all
fingerprints; one that changes choices says which, and why.
"""

import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from tilewright.codegen.kernel import kernel_ir, parts, steps
from tilewright.codegen.legalize import legalize
from tilewright.driver.decisions import Kernel
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.passes.fold_natively import without_values
from tilewright.ops.accuracy import DEFAULT
from tilewright.target.names import resolve_target
from tilewright.tir.func import Func
from tilewright.tir.pipeline import lower_func

_STORED = Path(__file__).with_name("fingerprints.json")
_FOLDERS = ("models", "ops", "transformers")
_TARGET = "x86-64-v3"  # the same on every machine
_NAMES = re.compile(r"(?<![\w.\"])%[A-Za-z_.][\w.]*|^[A-Za-z_.][\w.]*(?=:$)", re.MULTILINE)


def bench_home() -> Path:
    return Path(os.environ.get("BENCH_HOME", "~/.cache/tilewright-bench")).expanduser()


def canonical(ir: str) -> str:
    """LLVM IR with its values and labels numbered in order of appearance."""
    numbers: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        name = found[0].removeprefix("%")
        number = numbers.setdefault(name, str(len(numbers)))
        return f"%{number}" if found[0].startswith("%") else number

    return _NAMES.sub(renamed, ir)


def fingerprint(kernel: Func) -> str:
    text = canonical(kernel_ir(replace(kernel, name="kernel")))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{digest} {parts(kernel)} parts {steps(kernel)} steps"


def fingerprints(model: Path) -> dict[str, int]:
    """Of all kernels of a model, with how many Funcs have each."""
    target = resolve_target(_TARGET)
    passes = legalize(target)
    context = PassContext(target, DEFAULT.allows, run_constants=without_values)
    state = run_passes(ProgramState(load_graph(model)), context)
    calls = [d.calls for d in state.trace.sections["kernels"] if isinstance(d, Kernel)]
    found: Counter[str] = Counter()
    for kernel, sites in zip(state.kernels, calls, strict=True):
        phases, _ = lower_func(kernel.schedule.func, passes)
        for phase in phases:
            found[fingerprint(phase.func)] += len(sites)
    return dict(sorted(found.items()))


def find_models(names: tuple[str, ...]) -> Iterator[Path]:
    for folder in _FOLDERS:
        for path in sorted((bench_home() / folder).glob("*.onnx")):
            if not names or path.stem in names:
                yield path


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("names", nargs=-1)
@click.option("--write", is_flag=True, help="Keep the fingerprints of the code as it is.")
@click.option("--json", "as_json", is_flag=True, help="Print what differs as JSON.")
def main(names: tuple[str, ...], write: bool, as_json: bool) -> None:
    paths = list(find_models(names))
    if not paths:
        raise click.ClickException(f"there are no models in {', '.join(_FOLDERS)} of $BENCH_HOME")
    console = Console(stderr=True)
    made = {p.stem: fingerprints(p) for p in track(paths, "fingerprints", console=console, transient=True)}
    stored: dict[str, dict[str, int]] = json.loads(_STORED.read_text()) if _STORED.exists() else {}
    if write:
        _STORED.write_text(json.dumps({**stored, **made}, indent=1, sort_keys=True) + "\n")
        return
    differing = {name: _difference(stored.get(name, {}), found) for name, found in made.items()}
    differing = {name: d for name, d in differing.items() if d}
    if as_json:
        print(json.dumps(differing, indent=1))
    else:
        for name, lines in differing.items():
            print(name, *(f"  {line}" for line in lines), sep="\n")
        total = sum(sum(f.values()) for f in made.values())
        print(f"{len(made)} models, {total} kernels: {len(differing) or 'no'} models differ")
    sys.exit(1 if differing else 0)


def _difference(before: dict[str, int], after: dict[str, int]) -> list[str]:
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    return [f"- {n} x {f}" for f, n in gone.items()] + [f"+ {n} x {f}" for f, n in new.items()]


if __name__ == "__main__":
    main()
