"""ONNX Runtime in this process, to compare with: `pip install tilewright[ort]`."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tilewright.support.errors import UserError


class OnnxRuntimePeer:
    """ONNX Runtime's CPU provider with all graph optimisations. `ort` is its module, `session` its session."""

    name = "onnxruntime"

    def __init__(self, model: str | bytes, threads: int) -> None:
        self.ort = import_onnxruntime()
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        try:
            self.session = self.ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as e:  # its errors share no base class
            raise UserError(f"ONNX Runtime cannot load the model: {e}") from e

    def __call__(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        names = [o.name for o in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, dict(feeds)), strict=True))


def import_onnxruntime() -> Any:
    try:
        import onnxruntime  # noqa: PLC0415  # an optional extra
    except ImportError as e:
        raise UserError("ONNX Runtime is not installed", hint="pip install 'tilewright[ort]'") from e
    return onnxruntime
