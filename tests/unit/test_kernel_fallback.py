"""A schedule that cannot be compiled is a defect of ours; the model still runs, and the log says so."""

import logging

import numpy as np
import pytest
from onnx import TensorProto, helper

from tilewright import compiler
from tilewright.driver import kernels
from tilewright.support.errors import InternalError
from tilewright.tir import pipeline
from tilewright.tir.func import Func
from tilewright.tir.stmt import LoopKind, loops


def test_a_schedule_that_cannot_be_compiled_is_dropped_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 9))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 9))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])

    def lower(func: Func, passes: tuple[pipeline.FuncPass, ...]) -> object:
        if any(n.kind is not LoopKind.SERIAL for n in loops(func.body)):
            raise InternalError("no code for this")
        return pipeline.lower_func(func, passes)

    monkeypatch.setattr(kernels, "lower_func", lower)
    with caplog.at_level(logging.WARNING, "tilewright"):
        session = compiler.compile(model.SerializeToString()).session(1)
    values = np.linspace(-1, 1, 36, dtype=np.float32).reshape(4, 9)
    np.testing.assert_array_equal(session.run({"x": values})["y"], np.maximum(values, 0))
    assert any("runs without a schedule" in r.getMessage() for r in caplog.records)
