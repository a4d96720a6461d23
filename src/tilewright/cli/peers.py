"""Other engines behind one face, to compare with: `pip install tilewright[ort]`."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from tilewright.support.artifact import TensorSpec
from tilewright.support.errors import UserError

_NUMPY = {  # ONNX Runtime's names of types
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


class OnnxRuntime:
    """ONNX Runtime's CPU provider with all graph optimisations; `run` works on tensors bound once, without copies."""

    name = "onnxruntime"

    def __init__(self, model: str | bytes, threads: int) -> None:
        self._ort = import_onnxruntime()
        options = self._ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        try:
            self._session = self._ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as e:  # its errors share no base class
            raise UserError(f"ONNX Runtime cannot load the model: {e}") from e

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As far as the file says: an extent it leaves open is 1."""
        return tuple(
            TensorSpec(i.name, _NUMPY[i.type], tuple(n if isinstance(n, int) else 1 for n in i.shape))
            for i in self._session.get_inputs()
        )

    def __call__(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        names = [o.name for o in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))

    def bind(self, feeds: Mapping[str, NDArray[Any]]) -> Callable[[], object]:
        binding = self._session.io_binding()
        values = {name: self._ort.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for output in self._session.get_outputs():
            binding.bind_output(output.name, "cpu")
        run = self._session.run_with_iobinding
        return lambda: run(binding)


def import_onnxruntime() -> Any:
    try:
        import onnxruntime  # noqa: PLC0415  # an optional extra
    except ImportError as e:
        raise UserError("ONNX Runtime is not installed", hint="pip install 'tilewright[ort]'") from e
    return onnxruntime
