"""Every op on every sample: types as inferred, values as numpy's, and the same as onnxruntime's where it has the op.

An op that is added to `OPS` is tested here without a line of test code.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from native import BEST, TARGETS, run_native, target_name
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as OrtNotImplemented

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Var
from tilewright.ops.catalog import catalog
from tilewright.ops.core.conv import Conv, ConvTranspose
from tilewright.ops.core.movement import Reshape, reshape_index
from tilewright.ops.core.norm import BatchNormalization
from tilewright.ops.opdef import Kind, Sample, TensorType
from tilewright.ops.registry import OPS, by_onnx
from tilewright.search.default import schedule_func
from tilewright.support.arrays import Array
from tilewright.target.target import Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import interpret_func
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
    interpret_func(func, arrays | dict(zip(func.outputs, outputs, strict=True)))
    return outputs


def run_scheduled(target: Target, func: Func, inputs: Sequence[Array]) -> list[Array]:
    return run_native(schedule_func(func, target).func, inputs, target)


def _runs() -> list[Any]:
    """Each sample with each way to run it. Targets but the best run a sixth of an op's samples, with the first,
    and the others in long runs: what differs between targets is code that many samples share.
    """
    ways: dict[str, Execute] = {"interpreter": run_interpreter}
    ways |= {target_name(t): partial(run_scheduled, t) for t in TARGETS}
    always = ("interpreter", target_name(BEST))
    return [
        pytest.param(
            sample,
            way,
            id=f"{name}-{op.__name__}-{k}",
            marks=() if name in always or k % 6 == 0 else pytest.mark.slow,
        )
        for op in OPS
        for k, sample in enumerate(op.samples(np.random.default_rng(7)))
        for name, way in ways.items()
    ]


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
    unit = (length + 8) * float(ml_dtypes.finfo(expected.dtype).eps)
    scale = max(1.0, *finite)
    np.testing.assert_allclose(a[~special], e[~special], rtol=2 * unit, atol=unit * scale, err_msg=what)


@pytest.mark.parametrize("sample", SAMPLES)
def test_infer_agrees_with_reference(sample: Sample) -> None:
    inferred = sample.op.infer([TensorType.of(x) for x in sample.inputs])
    assert inferred == tuple(TensorType.of(x) for x in sample.op.reference(sample.inputs))


@pytest.mark.parametrize(("sample", "execute"), _runs())
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
    types = [*sample.op.infer([TensorType.of(x) for x in sample.inputs]), *map(TensorType.of, sample.inputs)]
    if any(t.dtype is DType.BF16 for t in types):
        return "onnxruntime's Python interface has no bf16"
    if sample.onnx is not None and sample.onnx.op_type.startswith("ai.onnx.preview.training."):
        return "onnxruntime has no optimisers"
    return None


def run_onnxruntime(sample: Sample) -> list[Array]:
    case = sample.onnx
    assert case is not None
    feeds = {f"x{i}": x for i, x in enumerate(case.inputs) if x is not None}
    domain, _, op_type = case.op_type.rpartition(".")
    node = onnx.helper.make_node(
        op_type,
        [f"x{i}" if x is not None else "" for i, x in enumerate(case.inputs)],
        [f"y{k}" for k in range(case.outputs)],
        domain=domain,
        **{
            k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
            for k, v in case.attrs.items()
        },
    )
    graph = onnx.helper.make_graph(
        [node],
        op_type,
        [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in feeds.items()
        ],
        [onnx.helper.make_empty_tensor_value_info(f"y{k}") for k in range(case.outputs)],
    )
    imports = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(domain, case.opset)]
    imports = imports[0 if domain else 1 :]
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


# -------------------------------------------------------------------------------------------------- the declarations


def test_every_op_is_a_frozen_value() -> None:
    for op in OPS:
        assert dataclasses.is_dataclass(op), op
        params = getattr(op, "__dataclass_params__")  # noqa: B009
        assert params.frozen and params.eq, op
        assert not hasattr(next(iter(op.samples(np.random.default_rng(7)))).op, "__dict__"), op


def test_onnx_names_are_claimed_once_and_exist() -> None:
    names = [name for op in OPS for name in op.onnx]
    assert len(set(names)) == len(names)
    for op in OPS:
        for name in op.onnx:
            domain, _, op_type = name.rpartition(".")
            assert by_onnx(op_type, domain) is op
            assert domain in ("com.microsoft", "tilewright") or onnx.defs.has(op_type, domain), name
    assert by_onnx("NoSuchOperator") is None


def test_every_onnx_name_has_a_sample() -> None:
    for op in OPS:
        tried = {s.onnx.op_type for s in op.samples(np.random.default_rng(7)) if s.onnx is not None}
        ours = {
            n for n in op.onnx if n.startswith("tilewright.")
        }  # parts of composites: no other engine knows them
        assert tried == set(op.onnx) - ours, op


def test_samples_are_reproducible() -> None:
    for op in OPS:
        first, second = (list(op.samples(np.random.default_rng(7))) for _ in range(2))
        for a, b in zip(first, second, strict=True):
            assert a.op == b.op and hash(a.op) == hash(b.op)
            for x, y in zip(a.inputs, b.inputs, strict=True):
                assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def test_docs_table_is_current() -> None:
    written = (Path(__file__).parents[2] / "docs" / "ops.md").read_text(encoding="utf-8")
    assert written == catalog(), "run: python -m tilewright.ops.catalog > docs/ops.md"


# ------------------------------------------------------------------------------------------------------- the blocks


def block_names(sample: Sample) -> list[str]:
    return [block.name for block in blocks(build(sample).body)]


def test_elementwise_and_movement_ops_are_one_block_per_output() -> None:
    for op in OPS:
        if op.kind in (Kind.ELEMENTWISE, Kind.MOVEMENT) and op is not BatchNormalization:
            for sample in op.samples(np.random.default_rng(7)):
                func = build(sample)
                assert len(list(blocks(func.body))) == len(func.outputs), sample.op


def test_convolution_pads_only_if_windows_leave_the_input() -> None:
    x, w = np.zeros((1, 2, 5, 5), np.float32), np.zeros((3, 2, 3, 3), np.float32)
    assert block_names(Conv.sample(x, w)) == ["out_conv", "out"]
    assert block_names(Conv.sample(x, w, pads=[1, 1, 1, 1])) == ["out_pad", "out_conv", "out"]
    # The row and column of padding at the end are never reached with this stride.
    assert block_names(Conv.sample(x, w, pads=[0, 0, 1, 1], strides=[2, 2])) == ["out_conv", "out"]


def test_padded_input_holds_exactly_what_is_read() -> None:
    x, w = np.zeros((1, 2, 6, 6), np.float32), np.zeros((3, 2, 3, 3), np.float32)
    func = build(Conv.sample(x, w, pads=[1, 1, 1, 1], strides=[2, 2]))
    assert [b.shape for b in func.locals if b.name == "out_pad"] == [(1, 2, 7, 7)]  # not 8


def test_convolution_bias_is_a_block_of_its_own() -> None:
    arrays = [np.zeros(s, np.float32) for s in ((1, 2, 5, 5), (3, 2, 1, 1), (3,))]
    assert block_names(Conv.sample(*arrays)) == ["out_conv", "out"]


def test_transposed_convolution_multiplies_no_zeros_where_the_kernel_is_a_multiple_of_the_stride() -> None:
    """All its multiply-adds are of an element of the input and one of the weights, or of the border."""
    x = np.zeros((1, 2, 4, 4), np.float32)

    def work(channels: int, kernel: int, **attrs: object) -> int:
        w = np.zeros((2, channels, kernel, kernel), np.float32)
        (block,) = [b for b in blocks(build(ConvTranspose.sample(x, w, **attrs)).body) if b.is_reduction]
        return math.prod(it.extent for it in block.iters)

    assert work(16, 2, strides=[2, 2]) == 2 * 16 * 16 * 4
    assert work(16, 4, strides=[2, 2], pads=[1, 1, 1, 1]) == 2 * 16 * 64 * 4
    assert work(3, 4, strides=[2, 2], pads=[1, 1, 1, 1]) == 2 * 3 * 100 * 4  # to fill vectors: a few too many
    assert work(3, 3, strides=[2, 2]) == 2 * 3 * 81 * 9  # with zeros in between


def test_depthwise_convolution_has_no_group_arithmetic() -> None:
    x, w = np.zeros((1, 4, 5, 5), np.float32), np.zeros((4, 1, 3, 3), np.float32)
    block, _ = blocks(build(Conv.sample(x, w, group=4)).body)
    assert [it.var.name.removeprefix("out_conv_v") for it in block.iters] == ["n", "c", "h", "w", "kh", "kw"]


def test_reshape_keeps_the_iterators_of_axes_it_leaves_alone() -> None:
    i = [Var(f"i{d}") for d in range(4)]
    assert reshape_index((2, 3, 4), (2, 1, 3, 4), i) == (i[0], i[2], i[3])
    assert reshape_index((8, 6, 5), (8, 2, 3, 5), i) == (i[0], i[1] * 3 + i[2], i[3])
    assert reshape_index((8, 2, 3), (8, 6), i[:2]) == (i[0], i[1] // 3, i[1] % 3)


@pytest.mark.parametrize(
    ("a", "b"), [((2, 0, 3), (0, 5)), ((1, 1), ()), ((), (1, 1, 1)), ((4, 1, 3), (2, 6)), ((1, 6, 1), (6,))]
)
def test_reshape_of_unusual_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x = np.arange(math.prod(a), dtype=np.int64).reshape(a)
    sample = Sample(Reshape(b), (x,))
    (actual,) = run_interpreter(build(sample), sample.inputs)
    np.testing.assert_array_equal(actual, x.reshape(b))
