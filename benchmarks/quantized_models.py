"""Networks of the benchmark suite, quantised by ONNX Runtime's quantiser as its documentation says: QDQ files.

Weights are s8 with a scale for each channel, activations u8 with one for the tensor, both over their full range; all
else are the quantiser's defaults. It is calibrated on inputs like those that the suite keeps beside a model.
"""

import shutil
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

CALIBRATED = 4  # inputs that ranges are taken from
_LEAST_OPSET = 19


def samples_like(inputs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """These inputs, and others of their shapes and kinds: floats of their spread, whole numbers among theirs."""
    random = np.random.default_rng(11)
    others = [{name: _another(random, value) for name, value in inputs.items()} for _ in range(count - 1)]
    return [dict(inputs), *others]


class _Inputs:
    """What the quantiser asks for inputs."""

    def __init__(self, like: Mapping[str, Any]) -> None:
        self._left = samples_like(like, CALIBRATED)

    def get_next(self) -> dict[str, Any] | None:
        return self._left.pop() if self._left else None


def _another(random: Any, value: Any) -> Any:
    if value.dtype.kind == "f":
        return random.normal(value.mean(), value.std(), value.shape).astype(value.dtype)
    return random.permutation(value.ravel()).reshape(value.shape)


def suite_inputs(model: Path) -> dict[str, Any]:
    """What the suite keeps beside a model, by the names of its inputs."""
    graph = ModelProto.FromString(model.read_bytes()).graph
    weights = {t.name for t in graph.initializer}
    names = [i.name for i in graph.input if i.name not in weights]
    with np.load(model.with_suffix(".npz"), allow_pickle=False) as arrays:
        keys = sorted(k for k in arrays.files if k.startswith("in"))
        return {name: arrays[key] for name, key in zip(names, keys, strict=True)}


def quantized(model: Path) -> Path:
    """The QDQ file of a model of the suite, beside it; made once."""
    path = model.with_name(f"{model.stem}_qdq.onnx")
    if path.exists():
        return path
    quantization: Any = import_module("onnxruntime.quantization")
    shapes: Any = import_module("onnxruntime.quantization.shape_inference")
    with tempfile.TemporaryDirectory() as folder:
        prepared, made = Path(folder) / "prepared.onnx", Path(folder) / "made.onnx"
        shapes.quant_pre_process(model, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            made,
            _Inputs(suite_inputs(model)),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        shutil.move(made, path)
    shutil.copy(model.with_suffix(".npz"), path.with_suffix(".npz"))
    return path


def reference_results(model: Path) -> list[Any]:
    """What ONNX's reference evaluator makes of a model and its inputs; computed once, and kept beside it."""
    kept = model.with_suffix(".reference.npz")
    if not kept.exists():
        proto = ModelProto.FromString(model.read_bytes())
        for used in proto.opset_import:  # it has no DequantizeLinear of earlier ones, which mean the same
            used.version = max(used.version, _LEAST_OPSET) if not used.domain else used.version
        evaluator: Any = ReferenceEvaluator(proto)
        found = evaluator.run(None, suite_inputs(model))
        np.savez(kept, *found)
    with np.load(kept, allow_pickle=False) as arrays:
        return [arrays[name] for name in arrays.files]
