"""`make wheel`: builds what a release has (two wheels and the sources) into dist/, and tries it as users would.

    tilewright            holds the files of src/tilewright, all and nothing else; in an empty environment it says
                          its version, passes its own checks, compiles a network and runs it
    tilewright_runtime    is at most 1 MB and needs numpy and ml_dtypes; in an environment with these alone it runs the
                          programs that the other has compiled, with the same result to the bit; both can be installed

Whatever is not so ends the script with what was expected. `--no-try` only builds and looks inside.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from onnx import ModelProto

from examples.models import mlp, resnet18

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
RUNTIME_MOST_BYTES = 1 << 20
RUNTIME_NEEDS = {"numpy", "ml-dtypes"}
NOT_FOR_THE_RUNTIME = ("tilewright", "onnx", "llvmlite", "click", "rich", "google")


def main() -> None:
    compiler, runtime = build()
    check_compiler(compiler)
    check_runtime(runtime)
    if "--no-try" not in sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="tilewright-wheels-") as folder:
            try_wheels(compiler, runtime, Path(folder))
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:,.0f} kB")


# --------------------------------------------------------------------------------------------------------------- build


def build() -> tuple[Path, Path]:
    """The wheel of the compiler, and that of the runtime."""
    shutil.rmtree(DIST, ignore_errors=True)
    for folder, targets in ((ROOT, ("wheel", "sdist")), (ROOT / "wheels" / "runtime", ("wheel",))):
        chosen = [word for target in targets for word in ("--target", target)]
        run([sys.executable, "-m", "hatchling", "build", "--directory", str(DIST), *chosen], cwd=folder)
    return _one("tilewright-*.whl"), _one("tilewright_runtime-*.whl")


def _one(pattern: str) -> Path:
    found = list(DIST.glob(pattern))
    expect(len(found) == 1, f"one {pattern} in dist/, and there are {len(found)}")
    return found[0]


# -------------------------------------------------------------------------------------------------------------- inside


def check_compiler(wheel: Path) -> None:
    """All files of the sources, and no others."""
    source = ROOT / "src"
    wanted = {
        str(p.relative_to(source))
        for p in source.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and not any(d.endswith(".egg-info") for d in p.parts)
    }
    names, _ = _inside(wheel)
    expect(names == wanted, f"the files of src/ in {wheel.name}: they differ by {sorted(names ^ wanted)}")
    for needed in ("tilewright/py.typed", "tilewright/learned/shipped/cost_model.onnx"):
        expect(needed in names, f"{needed} in {wheel.name}")


def check_runtime(wheel: Path) -> None:
    names, needs = _inside(wheel)
    size = wheel.stat().st_size
    expect(size <= RUNTIME_MOST_BYTES, f"{wheel.name} of at most 1 MB, and it has {size} bytes")
    expect(needs == RUNTIME_NEEDS, f"{wheel.name} to need {RUNTIME_NEEDS}, and it needs {needs}")
    strange = [n for n in names if not n.startswith("tilewright_runtime/")]
    expect(not strange, f"tilewright_runtime alone in {wheel.name}, and there is {strange}")
    expect("tilewright_runtime/py.typed" in names, f"py.typed in {wheel.name}")


def _inside(wheel: Path) -> tuple[set[str], set[str]]:
    """The names of its files but for metadata, and what it requires."""
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = next(n for n in names if n.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(about).decode("utf-8"))
    licences = [n for n in names if n.endswith("/licenses/LICENSE")]
    expect(bool(licences), f"a licence in {wheel.name}")
    required = {r.split(">")[0].strip() for r in fields.get_all("Requires-Dist", []) if ";" not in r}
    return {n for n in names if ".dist-info/" not in n}, required


# ------------------------------------------------------------------------------------------------------------- trials


def try_wheels(compiler: Path, runtime: Path, folder: Path) -> None:
    full, alone = Environment(folder / "full"), Environment(folder / "alone")
    started = time.perf_counter()
    full.install(compiler)
    version = full.run("tilewright", "--version").split()[-1]
    expect(f"-{version}-" in compiler.name, f"the version of {compiler.name}, and it says {version}")
    doctor = json.loads(full.run("tilewright", "doctor", "--json"))
    print(f"installed and examined in {time.perf_counter() - started:.0f} s: {sorted(doctor)}")

    network, small = resnet18(size=32, classes=10), open_mlp()
    for name, model, options in (("network", network, ()), ("open", small, ("--dim", "n=1..8"))):
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
        full.run("tilewright", "compile", f"{name}.onnx", "-o", f"{name}.tw", *options)
    sizes = {"network": (1, 3, 32, 32), "open": (3, 8)}
    alone.install(runtime)
    installed = alone.installed()
    expect(
        installed == {*RUNTIME_NEEDS, "tilewright-runtime"},
        f"numpy and ml_dtypes beside the runtime, and there are {installed}",
    )
    for name in NOT_FOR_THE_RUNTIME:
        expect(not alone.has(name), f"no module {name} beside the runtime")

    def same_results(other: Environment, command: str) -> None:
        for name, model in (("network", network), ("open", small)):
            given, result = model.graph.input[0].name, model.graph.output[0].name
            values = np.random.default_rng(0).standard_normal(sizes[name]).astype(np.float32)
            np.save(folder / "x.npy", values)
            files = ("--input", f"{given}=x.npy", "--output", f"{result}=")
            full.run("tilewright", "run", f"{name}.tw", *files[:3], f"{files[3]}wanted.npy")
            other.run(command, f"{name}.tw", *files[:3], f"{files[3]}found.npy")
            wanted, found = np.load(folder / "wanted.npy"), np.load(folder / "found.npy")
            expect(bool(np.isfinite(wanted).all()) and bool(wanted.any()), f"results of {name}")
            expect(np.array_equal(wanted, found), f"the same result of {name} from {command}")

    same_results(alone, "tilewright-run")
    full.install(runtime)
    same_results(full, "tilewright-run")
    full.remove("tilewright-runtime")
    full.run("tilewright", "run", "network.onnx", "--json")
    print(f"tried in {time.perf_counter() - started:.0f} s")


def open_mlp() -> ModelProto:
    """A model whose batch is open."""
    model = mlp((8, 16, 4))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    return model


class Environment:
    """An empty one: no packages, not even pip, and nothing that the user has compiled or set."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._work = folder.parent
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("TILEWRIGHT_", "PYTHON"))}
        self._variables = {**kept, "TILEWRIGHT_CACHE": str(folder / "cache"), "TILEWRIGHT_DB": "off"}

    def install(self, wheel: Path) -> None:
        self._pip("install", "--quiet", str(wheel))

    def remove(self, name: str) -> None:
        self._pip("uninstall", "--quiet", "--yes", name)

    def installed(self) -> set[str]:
        return {p["name"].replace("_", "-") for p in json.loads(self._pip("list", "--format", "json"))}

    def has(self, module: str) -> bool:
        code = f"from importlib.util import find_spec; print(find_spec({module!r}) is not None)"
        return self.run("python", "-c", code).strip() == "True"

    def run(self, program: str, *arguments: str) -> str:
        """Its output. It is run where the models are, not where the sources are."""
        return run([str(self._folder / "bin" / program), *arguments], cwd=self._work, env=self._variables)

    def _pip(self, *arguments: str) -> str:
        python = str(self._folder / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        return run([*pip, *arguments])


def run(command: list[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"{' '.join(command)} to work:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def expect(is_so: bool, what: str) -> None:
    if not is_so:
        sys.exit(f"make wheel expects {what}")


if __name__ == "__main__":
    expect(find_spec("hatchling") is not None, "hatchling, of the extra dev")
    main()
