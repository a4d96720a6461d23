"""The engines that benchmarks know: those of `tilewright bench`, and others whose code is in `benchmarks/engines/`."""

from collections.abc import Mapping
from pathlib import Path

from tilewright.cli.catalogue import PEERS, Peer

ROOT = str(Path(__file__).resolve().parents[1])


def _engine(name: str, title: str, source: str, packages: tuple[str, ...], install: str) -> Peer:
    return Peer(name, title, f"benchmarks.engines.{source}", packages, f"pip install {install}", ROOT)


TORCH = ("torch", "onnx")

ENGINES: Mapping[str, Peer] = {
    "ort": PEERS["ort"],
    **{
        p.name: p
        for p in (
            _engine("openvino", "OpenVINO", "openvino:OpenVino", ("openvino",), "openvino"),
            _engine("mnn", "MNN", "mnn:Mnn", ("MNN",), "MNN"),
            _engine("ncnn", "ncnn", "ncnn:Ncnn", ("ncnn",), "ncnn pnnx"),
            _engine("torch", "PyTorch", "pytorch.engine:Torch", TORCH, "torch onnx"),
            _engine(
                "inductor",
                "PyTorch Inductor",
                "pytorch.engine:Inductor",
                TORCH,
                "torch onnx",
            ),
            _engine("xla", "XLA", "xla.engine:Xla", ("jax", "onnx"), "jax onnx"),
            _engine("tvm", "TVM", "tvm:Tvm", ("tvm", "onnx"), "apache-tvm onnx"),
        )
    },
    **PEERS,
}
