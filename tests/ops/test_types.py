"""Element types: an op takes every type that ONNX's newest declaration of it allows and native code has.

What is refused on purpose stands in `REFUSED`, with the reason.
"""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from onnx import defs

from tilewright.ir.dtype import DType
from tilewright.ops.axes import ANY, FLOATS
from tilewright.ops.core.elementwise import Elementwise
from tilewright.ops.core.reduce import Reduction
from tilewright.ops.opdef import Op, Sample, TensorType
from tilewright.ops.registry import OPS, host_by_onnx
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.interp import run_func

# As ONNX writes them.
NATIVE = {
    "tensor(bool)": DType.BOOL,
    "tensor(int8)": DType.I8,
    "tensor(int16)": DType.I16,
    "tensor(int32)": DType.I32,
    "tensor(int64)": DType.I64,
    "tensor(uint8)": DType.U8,
    "tensor(uint16)": DType.U16,
    "tensor(uint32)": DType.U32,
    "tensor(uint64)": DType.U64,
    "tensor(float16)": DType.F16,
    "tensor(bfloat16)": DType.BF16,
    "tensor(float)": DType.F32,
    "tensor(double)": DType.F64,
}

# ONNX name -> types that are refused, and why.
REFUSED: dict[str, tuple[frozenset[DType], str]] = {
    "Col2Im": (frozenset({DType.BOOL}), "overlapping elements are added"),
    "GridSample": (ANY - FLOATS, "it interpolates between elements"),
    "QLinearConv": (frozenset({DType.I8}), "the type of the result is an attribute: the sample's is u8"),
    "QLinearMatMul": (frozenset({DType.I8}), "the type of the result is an attribute: the sample's is u8"),
}


def allowed(name: str) -> frozenset[DType]:
    """The native types of the first input."""
    schema = defs.get_schema(name)
    if not schema.inputs:
        return frozenset()
    first = schema.inputs[0].type_str
    found = [c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == first] or [[first]]
    return frozenset(NATIVE[t] for t in found[0] if t in NATIVE)


def first_sample(op: type[Op], name: str) -> Sample:
    """A sample of this ONNX name that has inputs."""
    samples = (
        s for s in op.samples(np.random.default_rng(7)) if s.onnx is not None and s.onnx.op_type == name
    )
    return next(samples)


def accepts(sample: Sample, dtype: DType) -> bool:
    """Does `infer` take the sample's types with this one in place of the first input's, wherever that occurs?"""
    types = [TensorType.of(x) for x in sample.inputs]
    old = types[0].dtype
    swapped = [dataclasses.replace(t, dtype=dtype) if t.dtype is old else t for t in types]
    try:
        sample.op.infer(swapped)
    except UserError:
        return False
    return True


CASES = [
    pytest.param(op, name, id=name) for op in OPS for name in op.onnx if "." not in name and allowed(name)
]


@pytest.mark.parametrize(("op", "name"), CASES)
def test_takes_the_types_that_onnx_allows(op: type[Op], name: str) -> None:
    sample = first_sample(op, name)
    if not sample.inputs:
        pytest.skip("all inputs become attributes")
    refused, _ = REFUSED.get(name, (frozenset[DType](), ""))
    missing = {d for d in allowed(name) if not accepts(sample, d)} - refused
    if missing and host_by_onnx(name) is not None:
        pytest.skip("the host computes with the others")
    assert not missing, f"{sample.op} does not take {sorted(d.value for d in missing)}"


@pytest.mark.parametrize(
    "op", [op for op in OPS if issubclass(op, Elementwise | Reduction) and "." not in op.onnx[0]]
)
def test_computes_with_every_type_that_it_takes(op: type[Elementwise | Reduction]) -> None:
    sample = first_sample(op, op.onnx[0])
    for dtype in sorted(allowed(op.onnx[0]), key=lambda d: d.value):
        if not accepts(sample, dtype):
            continue
        converted = [_small(x, dtype) if x.dtype == sample.inputs[0].dtype else x for x in sample.inputs]
        b = FuncBuilder("kernel")
        types = [TensorType.of(x) for x in converted]
        func = b.finish(
            *sample.op.compute(b, [b.param(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)], "out")
        )
        (actual,) = run_func(func, *converted)
        (expected,) = sample.op.reference(converted)
        assert actual.dtype == expected.dtype
        if actual.dtype.kind in "iub":
            np.testing.assert_array_equal(actual, expected, err_msg=f"{sample.op} of {dtype.value}")
        else:
            unit = 8 * float(np.asarray(ml_dtypes.finfo(expected.dtype).eps))  # pyright: ignore
            a, e = actual.astype(np.float64), expected.astype(np.float64)
            np.testing.assert_allclose(a, e, rtol=unit, atol=unit, err_msg=f"{sample.op} of {dtype.value}")


def _small(x: Array, dtype: DType) -> Array:
    """Numbers that every type can hold."""
    if dtype.is_float:
        return x.astype(dtype.numpy)
    whole = np.rint(np.nan_to_num(x.astype(np.float64), posinf=3, neginf=-3))
    return (np.abs(whole) % 5 + 1).astype(dtype.numpy)
