"""What tests of whole models share: small ONNX models, onnxruntime as the judge, and the comparison with it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

from tilewright.compiler import compile
from tilewright.runtime.session import Session

Array = NDArray[np.generic]
OPSET = 18


class Model:
    """An ONNX model, node by node. The methods give the names of what they add."""

    def __init__(self, seed: int = 0, opset: int = OPSET) -> None:
        self.rng = np.random.default_rng(seed)
        self._opset = opset
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._inputs: list[tuple[str, Sequence[int], Any]] = []
        self._count = 0

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def input(self, *shape: int, dtype: Any = np.float32) -> str:
        name = self._fresh("input")
        self._inputs.append((name, shape, dtype))
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = self._fresh("constant")
        self._weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """Random numbers; a MatMul with them keeps the scale of what it is given."""
        fan_in = math.prod(shape[1:]) or 1
        return self.constant(self.rng.standard_normal(shape).astype(np.float32) / math.sqrt(fan_in))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def op(self, op_type: str, *inputs: str, outputs: int = 0, **attrs: Any) -> Any:
        """A node with one output; a tuple of names if `outputs` is given."""
        names = [self._fresh(op_type.lower()) for _ in range(max(outputs, 1))]
        self._nodes.append(helper.make_node(op_type, inputs, names, **attrs))
        return tuple(names) if outputs else names[0]

    def finish(self, *outputs: str) -> ModelProto:
        graph = helper.make_graph(
            self._nodes,
            "test",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(d)), list(s))
                for n, s, d in self._inputs
            ],
            [helper.make_empty_tensor_value_info(n) for n in outputs],
            initializer=self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=9)


def random_feeds(model: ModelProto, seed: int = 1) -> dict[str, Array]:
    """Numbers for the inputs, a fixed choice per seed."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for v in model.graph.input:
        shape = tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        if dtype.kind == "f":
            out[v.name] = rng.standard_normal(shape).astype(dtype)
        elif dtype.kind == "b":
            out[v.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            out[v.name] = rng.integers(0, 5, shape).astype(dtype)
    return out


def run_onnxruntime(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Some of its fusions are wrong: a transposed stack of matrices times a vector, for one.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def check_outputs(got: Mapping[str, Array], want: Mapping[str, Array], tolerance: float = 1e-4) -> None:
    """The same names, types and shapes; integers equal; floats within `tolerance` of the largest."""
    assert list(got) == list(want)
    for name, w in want.items():
        g = got[name]
        assert (g.dtype, g.shape) == (w.dtype, w.shape), name
        if w.dtype.kind not in "f":
            np.testing.assert_array_equal(g, w, err_msg=name)
            continue
        largest = float(np.abs(w).max(initial=0))
        assert np.isfinite(w).all() and np.isfinite(g).all(), name
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance * max(largest, 1e-3), err_msg=name)


def check_model(
    model: ModelProto, *, feeds: Mapping[str, Array] | None = None, target: str = "native"
) -> Session:
    """One thread agrees with onnxruntime, and two with one to the bit."""
    feeds = random_feeds(model) if feeds is None else feeds
    compiled = compile(model, target=target)
    one = compiled.session(threads=1)
    got = one.run(feeds)
    check_outputs(got, run_onnxruntime(model, feeds))
    with compiled.session(threads=2) as two:
        for name, again in two.run(feeds).items():
            np.testing.assert_array_equal(again, got[name], err_msg=f"{name}: two threads")
    return one
