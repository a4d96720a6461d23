"""Values that callers hold: tensors in memory, sequences, and where they are.

There is one device, the CPU. An OrtValue of a numpy array is that array, not a copy of it.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tilewright.ort.element_types import as_dtype, element_number, tensor_word
from tilewright.ort.enums import OrtAllocatorType, OrtDeviceVendorId, OrtMemType
from tilewright.support.arrays import OpaqueArray

_DEVICES = {"cpu": 0, "cuda": 1, "gpu": 1, "dml": 1, "webgpu": 1, "fpga": 2, "cann": 3, "npu": 3}
_VENDORS = {
    "cuda": OrtDeviceVendorId.NVIDIA,
    "dml": OrtDeviceVendorId.MICROSOFT,
    "cann": OrtDeviceVendorId.HUAWEI,
}
_ELSEWHERE = (
    "Can't allocate memory on the device using this package of OnnxRuntime. Please use the appropriate package of "
    "OnnxRuntime for your hardware to use this feature."
)


class OrtDevice:
    """A device by name and number. Of others than the CPU there is only the name."""

    def __init__(self, device_type: int, device_id: int, vendor_id: int = 0) -> None:
        self._type, self._id, self._vendor = device_type, device_id, vendor_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> "OrtDevice":
        if ort_device_name not in _DEVICES:
            raise Exception("Unsupported device type: " + ort_device_name)
        vendor = _VENDORS.get(ort_device_name, 0) if vendor_id < 0 else vendor_id
        return OrtDevice(_DEVICES[ort_device_name], device_id, int(vendor))

    def device_id(self) -> int:
        return self._id

    def device_type(self) -> int:
        return self._type

    def device_vendor_id(self) -> int:
        return self._vendor

    def device_mem_type(self) -> int:
        return 0


class OrtMemoryInfo:
    """Where memory is, and whose."""

    def __init__(
        self,
        name: str,
        allocator_type: OrtAllocatorType,
        id: int = 0,
        mem_type: OrtMemType = OrtMemType.DEFAULT,
    ) -> None:
        self.name, self.allocator_type, self.device_id, self.mem_type = name, allocator_type, id, mem_type


class OrtValue:
    """A tensor, a sequence of them, or nothing where an optional is empty."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value: Any = value

    def _get_c_value(self) -> "OrtValue":
        return self

    @classmethod
    def ortvalue_from_numpy(
        cls,
        numpy_obj: Any,
        /,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> "OrtValue":
        """The array itself, made contiguous if it is not."""
        _check_device(device_type)
        if not isinstance(numpy_obj, np.ndarray) or cast(OpaqueArray, numpy_obj).dtype.kind in "USTO":
            raise RuntimeError(
                "Creation of OrtValues is currently only supported from non-string numpy arrays"
            )
        return cls(np.require(cast(OpaqueArray, numpy_obj), requirements=("C", "A")))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, /, onnx_element_type: int) -> "OrtValue":
        """The bytes of an array as elements of one of ONNX's types: bfloat16 in an array of uint16."""
        dtype = as_dtype(onnx_element_type)
        array = np.require(data, requirements=("C", "A"))
        if array.dtype.itemsize != dtype.itemsize:
            raise RuntimeError(
                f"elements of {array.dtype} have another size than those of {tensor_word(onnx_element_type)}"
            )
        return cls(array.view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> "OrtValue":
        """A tensor whose elements are not set."""
        _check_device(device_type)
        return cls(np.empty(tuple(shape), as_dtype(element_type)))

    def data_ptr(self) -> int:
        return self._array().ctypes.data

    def device_name(self) -> str:
        return "cpu"

    def shape(self) -> list[int]:
        return list(self._array().shape)

    def data_type(self) -> str:
        """`tensor(float)`, or `seq(tensor(float))`."""
        if isinstance(self._value, list):
            members = cast("list[Any]", self._value)
            inner = OrtValue(members[0]).data_type() if members else "tensor(float)"
            return f"seq({inner})"
        return tensor_word(self.element_type())

    def element_type(self) -> int:
        """ONNX's number."""
        return element_number(self._array().dtype)

    def tensor_size_in_bytes(self) -> int:
        return self._array().nbytes

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def numpy(self) -> Any:
        """The array, which is the memory of the value."""
        return self._array()

    def content(self) -> Any:
        """The array, or the list of a sequence, or None."""
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._array(), dtype=dtype, copy=copy)

    def __dlpack__(self, **keywords: Any) -> Any:
        return cast(Any, self._array()).__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @classmethod
    def from_dlpack(cls, data: Any, /, is_bool_tensor: bool = False) -> "OrtValue":
        """The memory of another framework's tensor."""
        array: OpaqueArray = np.from_dlpack(data)
        return cls(array.view(np.bool_) if is_bool_tensor and array.dtype == np.uint8 else array)

    def update_inplace(self, np_arr: Any) -> None:
        """Overwrite the elements."""
        mine = self._array()
        given = np_arr.numpy() if isinstance(np_arr, OrtValue) else np_arr
        if not isinstance(given, np.ndarray):
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")
        array = cast(OpaqueArray, given)
        if array.size != mine.size:
            raise RuntimeError("The input size of numpy arrays does not match the size of the OrtValue.")
        if array.dtype != mine.dtype:
            raise RuntimeError(f"the elements are {array.dtype}, and those of the OrtValue {mine.dtype}")
        np.copyto(mine, array.reshape(mine.shape))

    def _array(self) -> OpaqueArray:
        if not isinstance(self._value, np.ndarray):
            raise RuntimeError("Only OrtValues that are Tensors are currently supported")
        return cast(OpaqueArray, self._value)


def _check_device(device_type: str) -> None:
    if device_type != "cpu":
        raise RuntimeError(_ELSEWHERE)


def array_at(address: int, shape: Sequence[int], element_type: Any) -> OpaqueArray:
    """The memory at an address as an array. Whoever gave the address keeps the memory alive."""
    dtype = as_dtype(element_type)
    size = int(np.prod(tuple(shape), dtype=np.int64)) * dtype.itemsize
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    flat: OpaqueArray = np.frombuffer(memory, np.uint8)
    return flat.view(dtype).reshape(tuple(shape))


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy each tensor to the one that stands in its place."""
    for have, want in zip(src, dst, strict=True):
        want.update_inplace(have)
