"""Every op on every sample: types as inferred, values as numpy's, and the same as onnxruntime's where it has the op.

An op that is added to `OPS` is tested here without a line of test code.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as OrtNotImplemented

from tilewright.ops import OPS
from tilewright.ops.opdef import Array, Sample, TensorType
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import interpret
from tilewright.tir.stmt import Block, IterKind, blocks

Execute = Callable[[Func, Sequence[Array]], list[Array]]


def _samples() -> list[Any]:
    return [
        pytest.param(sample, id=f"{op.__name__}-{k}")
        for op in OPS
        for k, sample in enumerate(op.samples(np.random.default_rng(7)))
    ]


SAMPLES = _samples()


def run_interpreter(func: Func, inputs: Sequence[Array]) -> list[Array]:
    outputs = [np.empty(o.shape, o.dtype.numpy) for o in func.outputs]
    arrays = dict(zip((p for p in func.params if p not in func.outputs), inputs, strict=True))
    interpret(func, arrays | dict(zip(func.outputs, outputs, strict=True)))
    return outputs


@pytest.fixture(params=[pytest.param(run_interpreter, id="interpreter")])
def execute(request: pytest.FixtureRequest) -> Execute:
    """How a Func is run: takes its inputs, gives its outputs. Native code joins by another parameter."""
    return request.param


def build(sample: Sample) -> Func:
    b = FuncBuilder("kernel")
    types = [TensorType.of(x) for x in sample.inputs]
    params = [b.param(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    return b.finish(*sample.op.compute(b, params, "out"))


def longest_reduction(func: Func) -> int:
    def length(block: Block) -> int:
        return math.prod(it.extent for it in block.iters if it.kind is IterKind.REDUCE)

    return max((length(block) for block in blocks(func.body)), default=1)


def check_close(actual: Array, expected: Array, inputs: Sequence[Array], length: int, what: str) -> None:
    """Equal but for rounding: a few units in the last place for each term of the longest sum, at the scale of the
    data. Integers are equal, and so are the places of NaN and of the infinities."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    special = ~np.isfinite(e)
    np.testing.assert_array_equal(a[special], e[special], err_msg=what)
    assert np.isfinite(a[~special]).all(), f"{what}: not finite where the reference is"
    finite = [abs(x[np.isfinite(x)]).max(initial=0) for x in (e, *(x.astype(np.float64) for x in inputs))]
    unit = (length + 8) * float(np.finfo(expected.dtype).eps)
    scale = max(1.0, *finite)
    np.testing.assert_allclose(a[~special], e[~special], rtol=2 * unit, atol=unit * scale, err_msg=what)


@pytest.mark.parametrize("sample", SAMPLES)
def test_infer_agrees_with_reference(sample: Sample) -> None:
    inferred = sample.op.infer([TensorType.of(x) for x in sample.inputs])
    assert inferred == tuple(TensorType.of(x) for x in sample.op.reference(sample.inputs))


@pytest.mark.parametrize("sample", SAMPLES)
def test_compute_agrees_with_reference(sample: Sample, execute: Execute) -> None:
    func = build(sample)
    expected = sample.op.reference(sample.inputs)
    for actual, want in zip(execute(func, sample.inputs), expected, strict=True):
        check_close(actual, want, sample.inputs, longest_reduction(func), str(sample.op))


@pytest.mark.parametrize("sample", SAMPLES)
def test_blocks_are_named_after_the_node(sample: Sample) -> None:
    func = build(sample)
    names = [block.name for block in blocks(func.body)]
    assert len(set(names)) == len(names)
    assert all(name == "out" or name.startswith("out_") for name in names)
    assert [o.name for o in func.outputs] == ["out", *(f"out_{k}" for k in range(1, len(func.outputs)))]


# ------------------------------------------------------------------------------------------------------ onnxruntime


# Where onnxruntime departs from ONNX or from IEEE arithmetic, so that a comparison means nothing.
ORT_ON_SPECIAL_VALUES = {
    "Clip": "clamps infinities to the largest finite number",
    "MaxPool": "drops NaN",
    "ReduceMax": "drops NaN",
    "ReduceMin": "drops NaN",
}
ORT_ON_F64 = {"HardSwish": "computes with 1/6 rounded to f32"}


def skip_reason(sample: Sample) -> str | None:
    op, floats = type(sample.op).__name__, [x for x in sample.inputs if x.dtype.kind == "f"]
    if op in ORT_ON_SPECIAL_VALUES and any(not np.isfinite(x).all() for x in floats):
        return f"onnxruntime {ORT_ON_SPECIAL_VALUES[op]}"
    if op in ORT_ON_F64 and any(x.dtype == np.float64 for x in floats):
        return f"onnxruntime {ORT_ON_F64[op]}"
    return None


def run_onnxruntime(sample: Sample) -> list[Array]:
    case = sample.onnx
    assert case is not None
    feeds = {f"x{i}": x for i, x in enumerate(case.inputs) if x is not None}
    node = onnx.helper.make_node(
        case.op_type,
        [f"x{i}" if x is not None else "" for i, x in enumerate(case.inputs)],
        [f"y{k}" for k in range(case.outputs)],
        **{
            k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
            for k, v in case.attrs.items()
        },
    )
    graph = onnx.helper.make_graph(
        [node],
        case.op_type,
        [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in feeds.items()
        ],
        [onnx.helper.make_empty_tensor_value_info(f"y{k}") for k in range(case.outputs)],
    )
    imports = [onnx.helper.make_opsetid("", case.opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(inferred.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("sample", [p for p in SAMPLES if p.values[0].onnx is not None])
def test_reference_agrees_with_onnxruntime(sample: Sample) -> None:
    reason = skip_reason(sample)
    if reason is not None:
        pytest.skip(reason)
    try:
        actual = run_onnxruntime(sample)
    except OrtNotImplemented:
        pytest.skip("onnxruntime has no kernel for these types")
    length = longest_reduction(build(sample))
    for ours, theirs in zip(sample.op.reference(sample.inputs), actual, strict=True):
        check_close(theirs, ours, sample.inputs, length, str(sample.op))
