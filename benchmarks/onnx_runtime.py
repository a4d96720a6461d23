"""ONNX Runtime in this process, on tensors that are bound once."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from tilewright.cli.peers import OnnxRuntimePeer
from tilewright.support.artifact import TensorSpec

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


class BoundOnnxRuntime(OnnxRuntimePeer):
    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As far as the file says: an extent it leaves open is 1."""
        return tuple(
            TensorSpec(i.name, _NUMPY[i.type], tuple(n if isinstance(n, int) else 1 for n in i.shape))
            for i in self.session.get_inputs()
        )

    def bind(self, feeds: Mapping[str, NDArray[Any]]) -> Callable[[], object]:
        """A run without copies."""
        binding = self.session.io_binding()
        values = {name: self.ort.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for output in self.session.get_outputs():
            binding.bind_output(output.name, "cpu")
        run = self.session.run_with_iobinding
        return lambda: run(binding)
