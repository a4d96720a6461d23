"""`onnxruntime.capi`: modules that programs import exceptions and types from."""

from tilewright.ort.capi import _pybind_state, onnxruntime_inference_collection, onnxruntime_pybind11_state

is_tilewright = True

__all__ = ["_pybind_state", "onnxruntime_inference_collection", "onnxruntime_pybind11_state"]
