"""`onnxruntime.capi.onnxruntime_inference_collection`: where ONNX Runtime has its session."""

from typing import Any

from tilewright.ort.inference_session import InferenceSession
from tilewright.ort.inference_session import InferenceSession as Session
from tilewright.ort.io_binding import IOBinding
from tilewright.ort.ort_value import OrtDevice, OrtValue
from tilewright.ort.real import real_attribute

is_tilewright = True

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue", "Session"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return real_attribute("onnxruntime.capi.onnxruntime_inference_collection", name, __name__)
