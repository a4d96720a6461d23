"""Whole models of few bits for Arm: compiled here, run under qemu, compared with onnxruntime.

Bytes go through the instructions that a processor has: with i8mm (NEON or SVE), with dot products alone, or neither.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from aarch64 import needs_qemu, run_module_aarch64
from onnx import ModelProto, TensorProto, helper, numpy_helper
from test_quantized import FORMS, SHAPE, judged, network

from tilewright.lowered import lowered
from tilewright.target.target import AARCH64, AARCH64_SVE_256, Target, aarch64
from tilewright.tir.func import Func
from tilewright.tir.stmt import Emit, walk_stmts

TARGETS = {
    "neon": AARCH64,
    "sve": AARCH64_SVE_256,
    "dotprod": aarch64(frozenset({"dotprod"})),
    "armv8": aarch64(frozenset()),
}
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def _used(funcs: Iterable[Func]) -> set[str]:
    emits = (s.intrinsic for f in funcs for s in walk_stmts(f.body) if isinstance(s, Emit))
    return {name.split("_")[0] for name in emits if ".f32." not in name}


@needs_qemu
@pytest.mark.filterwarnings("ignore")  # of the quantizer
@every_target
@pytest.mark.parametrize("form", ["operators", "pairs, each channel", "dynamic"])
def test_networks_of_bytes(form: str, target: Target, tmp_path: Path) -> None:
    source, quantised = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    onnx.save(network(), source)
    FORMS[form](str(source), str(quantised))
    model = onnx.load(quantised)
    x = np.random.default_rng(9).standard_normal(SHAPE).astype(np.float32)
    (got,), funcs = run_module_aarch64(lowered(model, target=target), {"x": x}, tmp_path, target)
    np.testing.assert_allclose(got, judged(model, x), rtol=0, atol=1e-6 if form == "dynamic" else 1 / 255)
    if "i8mm" in target.features:
        assert _used(funcs) & {"arm.u8i8.tile", "arm.i8i8.tile", "sve.u8i8.tile", "sve.i8i8.tile"}
    elif "dotprod" in target.features:
        assert "arm.i8i8.sdot" in _used(funcs)  # unsigned bytes are moved to signed ones
    else:
        assert not _used(funcs)


def four_bits(rows: int, columns: int, depth: int) -> ModelProto:
    """`MatMulNBits` as exporters of language models write it."""
    rng = np.random.default_rng(4)
    blocks = depth // 32
    codes = rng.integers(0, 256, (columns, blocks, 16), np.uint8)
    scales = (rng.random((columns, blocks)) / 8).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "s"],
        ["y"],
        domain="com.microsoft",
        K=depth,
        N=columns,
        bits=4,
        block_size=32,
        accuracy_level=4,
    )
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "four_bits",
        [info("x", TensorProto.FLOAT, [rows, depth])],
        [info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(scales, "s")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@needs_qemu
@every_target
@pytest.mark.parametrize("rows", [1, 5])
def test_weights_of_four_bits(rows: int, target: Target, tmp_path: Path) -> None:
    model = four_bits(rows, 24, 96)
    x = np.random.default_rng(1).standard_normal((rows, 96)).astype(np.float32)
    module = lowered(model, target=target)
    (got,), funcs = run_module_aarch64(module, {"x": x}, tmp_path, target)
    wanted = judged(model, x)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=0.02 * np.abs(wanted).max())
    if "dotprod" in target.features:
        assert _used(funcs) == {"sve.i8u4.dot8" if target is AARCH64_SVE_256 else "arm.i8u4.dot8"}
        kept = sum(c.buffer.bytes for c in module.constants if c.buffer.dtype.bytes == 1)
        assert kept == 24 * 96 // 2
