"""What the process tells of the engine: versions, devices, and switches of ONNX Runtime that mean nothing here."""

from typing import Any

from tilewright.version import __version__ as own_version

API_VERSION = "1.31.1"  # of the ONNX Runtime whose interface this is


def get_version_string() -> str:
    """Of the interface, not of Tilewright: programs compare it with what they need."""
    return API_VERSION


def get_build_info() -> str:
    return f"ORT Build Info: tilewright={own_version}, build type=Release"


def get_device() -> str:
    return "CPU"


def set_seed(seed: int) -> None:
    """Operators with random numbers take their seeds from the model; without one, each run has others."""


def disable_telemetry_events() -> None:
    """There is no telemetry."""


def enable_telemetry_events() -> None:
    """There is no telemetry."""


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """No libraries are needed."""


def has_collective_ops() -> bool:
    return False


def get_ep_devices() -> list[Any]:
    """Devices of execution providers that come as libraries of their own: none."""
    return []


def create_and_register_allocator(mem_info: Any, arena_cfg: Any) -> None:
    """Programs have an arena of their own each."""


def create_and_register_allocator_v2(provider: str, mem_info: Any, options: Any, arena_cfg: Any) -> None:
    """Programs have an arena of their own each."""


def print_debug_info() -> None:
    print(f"tilewright {own_version}, in place of onnxruntime {API_VERSION}")


class OrtArenaCfg:
    """How an arena would grow."""

    def __init__(self, *values: Any, **named: Any) -> None:
        self.values, self.named = values, named
