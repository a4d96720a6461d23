"""`onnxruntime.capi._pybind_state`: the same names once more."""

from typing import Any

from tilewright.ort.capi.onnxruntime_pybind11_state import *  # noqa: F403
from tilewright.ort.real import real_attribute

is_tilewright = True


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return real_attribute("onnxruntime.capi._pybind_state", name, __name__)
