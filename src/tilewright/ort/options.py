"""Options of sessions and of runs.

All of ONNX Runtime's are kept as values, and those that mean something here are used: threads, logging, profiling,
fixed dimensions, initializers, libraries of operators (for the real ONNX Runtime). As there, a value of the wrong type
is a TypeError and an option that does not exist an AttributeError.
"""

import os
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, overload

from tilewright.ort.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from tilewright.ort.exceptions import Fail
from tilewright.ort.ort_value import OrtValue

T = TypeVar("T")


class Setting(Generic[T]):
    """An option with a default. Numbers may be anything that is an index, as in ONNX Runtime."""

    def __init__(self, default: T) -> None:
        self._default, self._kind, self._name = default, type(default), ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "Setting[T]": ...
    @overload
    def __get__(self, instance: "OptionValues", owner: type) -> T: ...
    def __get__(self, instance: "OptionValues | None", owner: type) -> "Setting[T] | T":
        return self if instance is None else instance.values.get(self._name, self._default)

    def __set__(self, instance: "OptionValues", value: T) -> None:
        instance.values[self._name] = self._checked(value)

    def _checked(self, value: Any) -> Any:
        if self._kind is int and hasattr(value, "__index__") and not isinstance(value, bool):
            return value.__index__()
        if not isinstance(value, self._kind):
            wanted = self._kind.__name__
            raise TypeError(
                f"{self._name}: {value!r} is of type {type(value).__name__}, and should be {wanted}"
            )
        return value


class OptionValues:
    """Options that were set, by name, and entries of configuration, which are text."""

    __slots__ = ("config", "values")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.config: dict[str, str] = {}

    def _configure(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"entries are text: {key!r}, {value!r}")
        self.config[key] = value

    def _configured(self, key: str) -> str:
        found = self.config.get(key)
        if found is None:
            raise RuntimeError(f"{type(self).__name__} does not have configuration with key: {key}")
        return found


class SessionOptions(OptionValues):
    """How a session is made."""

    __slots__ = ("denotations", "dims", "initializers", "libraries", "providers")

    intra_op_num_threads = Setting(0)
    inter_op_num_threads = Setting(0)
    graph_optimization_level = Setting(GraphOptimizationLevel.ORT_ENABLE_ALL)
    execution_mode = Setting(ExecutionMode.ORT_SEQUENTIAL)
    execution_order = Setting(ExecutionOrder.DEFAULT)
    log_severity_level = Setting(-1)
    log_verbosity_level = Setting(0)
    logid = Setting("")
    enable_profiling = Setting(False)
    profile_file_prefix = Setting("onnxruntime_profile_")
    optimized_model_filepath = Setting("")
    enable_cpu_mem_arena = Setting(True)
    enable_mem_pattern = Setting(True)
    enable_mem_reuse = Setting(True)
    use_deterministic_compute = Setting(False)
    use_per_session_threads = Setting(True)

    def __init__(self) -> None:
        super().__init__()
        self.dims: dict[str, int] = {}
        self.denotations: dict[str, int] = {}
        self.initializers: dict[str, OrtValue] = {}
        self.libraries: list[str] = []
        self.providers: list[tuple[str, dict[str, str]]] = []

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._configure(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """RuntimeError if nobody has added it."""
        return self._configured(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """The dimension of this name has this size."""
        self.dims[name] = size.__index__()

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Dimensions that mean this (`DATA_BATCH`) have this size."""
        self.denotations[denotation] = size.__index__()

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """The weight of this name is this tensor, whatever the model has in its place."""
        self.initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Weights that the model has in other files."""
        self.initializers.update(zip(names, values, strict=True))

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        """Operators of somebody else, which the real ONNX Runtime loads if a model needs it."""
        if not os.path.exists(path):
            why = "cannot open shared object file: No such file or directory"
            raise Fail(f"Failed to load library {os.fspath(path)} with error: {os.fspath(path)}: {why}")
        self.libraries.append(os.fspath(path))

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        self.providers.append((name, options))

    def has_providers(self) -> bool:
        return bool(self.providers)


class RunOptions(OptionValues):
    """How one run is made."""

    __slots__ = ()

    log_severity_level = Setting(-1)
    log_verbosity_level = Setting(0)
    logid = Setting("")
    terminate = Setting(False)
    only_execute_path_to_fetches = Setting(False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._configure(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """RuntimeError if nobody has added it."""
        return self._configured(key)
