"""The engines that `tilewright bench --against` knows: where their code is, what they need, how to get it. Ours without
plugins is one of them.

An engine runs in the interpreter given by `--python ENGINE=PATH`, by the environment variable
`TILEWRIGHT_PYTHON_<ENGINE>`, or in ours.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class Peer:
    """`source` is the class (module:name) that the engine's process makes; `packages` are imported before, so that a
    missing one is told by its name.
    """

    name: str
    title: str
    source: str
    packages: tuple[str, ...]
    install: str

    @property
    def hint(self) -> str:
        return (
            f"{self.install}; or name an interpreter that has it: --python {self.name}=PATH"
            f" or {python_variable(self.name)}"
        )


def _peer(name: str, title: str, kind: str, packages: tuple[str, ...], install: str) -> Peer:
    return Peer(name, title, f"tilewright_guest.engines:{kind}", packages, f"pip install {install}")


OURS = Peer("tilewright", "Tilewright", "tilewright.cli.own_engine:OwnEngine", (), "")
NATIVE = Peer("native", "Tilewright without plugins", OURS.source, (), "")

PEERS: Mapping[str, Peer] = {
    p.name: p
    for p in (
        _peer("ort", "ONNX Runtime", "OnnxRuntime", ("onnxruntime",), "'tilewright[ort]'"),
        _peer("openvino", "OpenVINO", "OpenVino", ("openvino",), "openvino"),
        _peer("mnn", "MNN", "Mnn", ("MNN",), "MNN"),
        _peer("ncnn", "ncnn", "Ncnn", ("ncnn",), "ncnn pnnx"),
        _peer("torch", "PyTorch", "Torch", ("torch", "onnx2torch"), "torch onnx2torch"),
        _peer("inductor", "PyTorch Inductor", "Inductor", ("torch", "onnx2torch"), "torch onnx2torch"),
        _peer("xla", "XLA", "Xla", ("jax", "onnx"), "jax onnx"),
        _peer("tvm", "TVM", "Tvm", ("tvm", "onnx"), "apache-tvm onnx"),
        NATIVE,
    )
}


def python_variable(engine: str) -> str:
    return f"TILEWRIGHT_PYTHON_{engine.upper()}"


def interpreter(engine: str, given: Mapping[str, str]) -> str:
    """The interpreter to run an engine in; it exists."""
    wish = given.get(engine) or os.environ.get(python_variable(engine))
    if not wish:
        return sys.executable
    found = shutil.which(os.path.expanduser(wish))
    if found is None:
        raise UserError(
            f"there is no interpreter {wish!r} for {engine}",
            hint=f"give the path of a Python executable with --python {engine}=PATH",
        )
    return os.path.abspath(found)
