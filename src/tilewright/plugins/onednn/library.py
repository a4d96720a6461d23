"""oneDNN's C API (dnnl.h of version 3), as far as the plugin needs it. All tensors are float32.

Its functions return a status, 0 if all is well; `thing_create` puts a handle where its first argument points, and
`thing_destroy` frees it.
"""

import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from ctypes import CDLL, Structure, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from enum import IntEnum
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from math import prod
from typing import Any

from tilewright.support.errors import UserError

PACKAGE = "onednn-cpu-gomp"  # of its wheels the one that needs nothing but libgomp
_FILE = "libdnnl.so.3"
INFERENCE = 96  # dnnl_forward_inference
_CPU, _F32, _ANY_LAYOUT, _IN_ORDER, _CALLERS_SCRATCHPAD = 1, 3, 1, 1, 1
_IMPLEMENTATION, _LAYOUT_OF_ARGUMENT = 8, 255  # what can be asked of a primitive
_STATUS = (
    "success",
    "out of memory",
    "invalid arguments",
    "unimplemented",
    "no more to try",
    "run-time error",
)


class AlgKind(IntEnum):
    DIRECT_CONVOLUTION = 0x1
    RELU, TANH, ELU, HARD_SIGMOID, LOGISTIC = 0x20, 0x21, 0x22, 0x28, 0x29
    GELU_TANH, SWISH, CLIP, GELU_ERF, HARD_SWISH = 0x2B, 0x2C, 0x2E, 0x31, 0x34
    MAX, MEAN_WITH_PADDING, MEAN = 0x1FF, 0x2FF, 0x3FF
    ADD, MUL = 0x1FFF0, 0x1FFF1


# What a tensor is to a primitive. Number i of a list is `LIST + i`.
SOURCE, OTHER_SOURCE, RESULT, WEIGHTS, BIAS, SCRATCHPAD, LIST = 1, 2, 17, 33, 41, 80, 1024


def post_op(i: int) -> int:
    """The operand of post-op i."""
    return 0x8000 * (i + 1) | OTHER_SOURCE


class ExecArg(Structure):
    _fields_ = (("role", c_int), ("tensor", c_void_p))


class LibraryError(UserError):
    """The library is not there, or refuses something."""


class Handle(c_void_p):
    """What the library has made. It is freed with this object."""


@lru_cache(maxsize=1)
def dnnl_functions() -> Any:
    """Those of the library, and of OpenMP, which it is linked with."""
    try:
        files = distribution(PACKAGE).files or ()
        found = CDLL(next(str(f.locate()) for f in files if f.name == _FILE))
    except PackageNotFoundError:
        raise LibraryError(f"{PACKAGE} is not installed: pip install 'tilewright[onednn]'") from None
    except (OSError, StopIteration) as e:
        raise LibraryError(f"{_FILE} of {PACKAGE} cannot be loaded: {e}") from None
    found.dnnl_primitive_desc_query_md.restype = c_void_p
    found.dnnl_memory_desc_get_size.restype = c_size_t
    return found


def call(name: str, *args: Any) -> None:
    """LibraryError if it fails."""
    status: int = getattr(dnnl_functions(), f"dnnl_{name}")(*args)
    if status:
        is_known = 0 <= status < len(_STATUS)
        raise LibraryError(f"dnnl_{name}: {_STATUS[status] if is_known else status}")


def make(kind: str, *args: Any, by: str = "") -> Handle:
    """An object of this kind, by its usual function or another one."""
    made = Handle()
    call(by or f"{kind}_create", byref(made), *args)
    free = getattr(dnnl_functions(), f"dnnl_{kind}_destroy")
    weakref.finalize(made, free, c_void_p(made.value)).atexit = False
    return made


@lru_cache(maxsize=1)
def engine() -> Handle:
    """The CPU."""
    return make("engine", _CPU, c_size_t(0))


@contextmanager
def using_threads(count: int) -> Generator[None]:
    """For what this thread makes and runs meanwhile."""
    before: int = dnnl_functions().omp_get_max_threads()
    dnnl_functions().omp_set_num_threads(count)
    try:
        yield
    finally:
        dnnl_functions().omp_set_num_threads(before)


def dims(values: Sequence[int]) -> Any:
    return (c_int64 * len(values))(*values)


class MemoryDesc:
    """The shape of a tensor, and how it lies in memory."""

    def __init__(self, how: str, *args: Any) -> None:
        self._as_parameter_ = make("memory_desc", *args, by=f"memory_desc_{how}")  # what ctypes passes

    @property
    def address(self) -> int | None:
        return self._as_parameter_.value

    @property
    def nbytes(self) -> int:
        return dnnl_functions().dnnl_memory_desc_get_size(self)

    def is_like(self, other: "MemoryDesc") -> bool:
        return bool(dnnl_functions().dnnl_memory_desc_equal(self, other))


def plain(shape: Sequence[int], is_transposed: bool = False) -> MemoryDesc:
    """Row-major; `is_transposed`: the last two dimensions are exchanged in memory."""
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    if is_transposed:
        strides[-2:] = 1, shape[-2]
    return MemoryDesc("create_with_strides", len(shape), dims(shape), _F32, dims(strides))


def free(shape: Sequence[int]) -> MemoryDesc:
    """The library shall choose."""
    return MemoryDesc("create_with_tag", len(shape), dims(shape), _F32, _ANY_LAYOUT)


class BoundPrimitive:
    """A primitive with its tensors, by role, layout and address."""

    def __init__(self, code: Handle, tensors: Sequence[tuple[int, MemoryDesc, int]]) -> None:
        self._code, self._stream = code, make("stream", engine(), _IN_ORDER)
        self._tensors = [make("memory", v, engine(), c_void_p(at)) for _, v, at in tensors]
        roles = (role for role, *_ in tensors)
        self._bindings = (ExecArg * len(tensors))(*zip(roles, (t.value for t in self._tensors), strict=True))

    def move(self, i: int, address: int) -> None:
        call("memory_set_data_handle", self._tensors[i], c_void_p(address))

    def run(self) -> None:
        call("primitive_execute", self._code, self._stream, len(self._tensors), self._bindings)


class Primitive:
    """What C's function of this name makes of its arguments. `posts`: what is done to each element of the result, with
    two numbers or a further tensor. Scratch memory is the caller's: so it may run in several threads at once.
    """

    def __init__(
        self, name: str, *args: Any, posts: Sequence[tuple[int, float, float, MemoryDesc | None]] = ()
    ) -> None:
        attributes, chain = make("primitive_attr"), make("post_ops")
        call("primitive_attr_set_scratchpad_mode", attributes, _CALLERS_SCRATCHPAD)
        for algorithm, alpha, beta, layout in posts:
            if layout is None:
                call("post_ops_append_eltwise", chain, algorithm, c_float(alpha), c_float(beta))
            else:
                call("post_ops_append_binary", chain, algorithm, layout)
        call("primitive_attr_set_post_ops", attributes, chain)
        by = f"{name}_primitive_desc_create"
        self._description = make("primitive_desc", *args, attributes, by=by)

    def layout(self, role: int) -> MemoryDesc:
        query = dnnl_functions().dnnl_primitive_desc_query_md
        return MemoryDesc("clone", c_void_p(query(self._description, _LAYOUT_OF_ARGUMENT, role)))

    def implementation(self) -> str:
        found = c_char_p()
        call("primitive_desc_query", self._description, _IMPLEMENTATION, 0, byref(found))
        return (found.value or b"").decode()

    def bind(self, tensors: Sequence[tuple[int, MemoryDesc, int]]) -> BoundPrimitive:
        return BoundPrimitive(make("primitive", self._description), tensors)


def reordering(source: MemoryDesc, result: MemoryDesc) -> Primitive:
    return Primitive("reorder", source, engine(), result, engine())
