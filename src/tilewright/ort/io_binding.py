"""Inputs and outputs that are bound to memory before a run."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.ort.element_types import as_dtype
from tilewright.ort.ort_value import OrtValue, array_at
from tilewright.support.arrays import OpaqueArray


class IOBinding:
    """What a session reads from and writes to. Outputs that are bound to no memory get new arrays on each run.

    `run` computes all outputs from feeds, writing those to the given arrays that there are; it belongs to the session,
    and only that may run the binding.
    """

    def __init__(
        self,
        inputs: Iterable[str],
        run: Callable[[Mapping[str, Any], Mapping[str, OpaqueArray]], Mapping[str, Any]],
        owner: object,
    ) -> None:
        self._names = frozenset(inputs)
        self._run = run
        self.owner = owner
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, OpaqueArray | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self._bind(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Any, buffer_ptr: int
    ) -> None:
        """Memory by its address, which has to live as long as it is bound."""
        _check_here(device_type)
        self._bind(name, array_at(buffer_ptr, shape, element_type))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._bind(name, ortvalue.content())

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Any = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """New memory on each run, unless there is an address."""
        _check_here(device_type)
        if buffer_ptr is None:
            self._outputs[name] = None
            return
        if element_type is None or shape is None:
            raise ValueError(
                "`element_type` and `shape` are to be provided if pre-allocated memory is provided"
            )
        self._outputs[name] = array_at(buffer_ptr, shape, as_dtype(element_type))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._outputs[name] = ortvalue.numpy()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for: memory of the CPU is as it is."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for."""

    def get_outputs(self) -> list[OrtValue]:
        """Of the last run, in the order in which they were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The same as arrays of the caller's own."""
        values = [r.content() for r in self._results]
        return [v.copy() if hasattr(v, "copy") else v for v in values]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results = []

    def run(self) -> None:
        """Run once with what is bound."""
        if not self._outputs:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        buffers = {n: a for n, a in self._outputs.items() if a is not None}
        results = self._run(self._inputs, buffers)
        missing = [n for n in self._outputs if n not in results]
        if missing:
            raise RuntimeError(f"Error in execution: Invalid output name: {missing[0]}")
        self._results = [OrtValue(results[n]) for n in self._outputs]

    def _bind(self, name: str, value: Any) -> None:
        if name not in self._names:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        self._inputs[name] = value


def _check_here(device_type: str) -> None:
    if device_type != "cpu":
        raise RuntimeError(f"there is no device {device_type!r}: bind memory of the CPU")
