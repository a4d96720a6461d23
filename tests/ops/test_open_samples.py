"""Samples of operators with one of their dimensions left open: right at all sizes, or refused.

Numbers of elements get lost where Python's floats or numpy compute with them, and an operator that does so is wrong for
all sizes but the largest. Nothing else would tell: so each axis of each input of each sample is opened here. Where
others have to be as long, all that are as long are opened together. What is refused has a program for each shape.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper, numpy_helper

import tilewright as tw
from tests.onnx_cases import Array, check_outputs, run_onnxruntime
from tests.open_interp import OpenInterpreter
from tilewright.frontend.onnx.open_import import NotFollowed
from tilewright.ops.hostop import HostSample
from tilewright.ops.registry import COMPOSITES, OPS
from tilewright.support.errors import UserError
from tilewright.support.sizes import Dim

Opened = Mapping[int, Sequence[int]]  # axes of inputs
TOLERANCE = 2e-3  # of the largest output: half precision is among the samples

# Operators that were wrong, or refused, for numbers of elements that were lost; and a sample of each.
QUICK = {
    "DFT": 1,
    "GridSample": 0,
    "RoiAlign": 0,
    "Attention": 3,
    "MultiHeadAttention": 2,
    "EmbedLayerNormalization": 2,
    "LSTM": 0,
    "Hardmax": 1,
}

CRASHING = ("QLinearPool",)  # ONNX Runtime divides by zero for windows larger than the input


@dataclass(frozen=True)
class Case:
    """A model of one node, with the arrays of its inputs."""

    op_type: str
    domain: str
    opset: int
    attrs: Mapping[str, Any]
    inputs: tuple[Array | None, ...]
    outputs: int

    def openings(self) -> Iterator[tuple[int, list[Opened]]]:
        """The extents that may be opened, each with the axes: alone, and with all others that are as long."""
        for i, array in enumerate(self.inputs):
            if array is None or array.dtype.kind not in "fiub" or (i and array.ndim < 2):
                continue
            for axis, extent in enumerate(array.shape):
                if extent > 1:
                    yield extent, [{i: [axis]}, self._as_long(i, axis)]

    def _as_long(self, i: int, axis: int) -> Opened:
        array = self.inputs[i]
        assert array is not None
        found: dict[int, Sequence[int]] = {}
        for j, a in enumerate(self.inputs):
            if a is not None and a.ndim:
                same = [d for d, n in enumerate(a.shape) if n == array.shape[axis] and (j != i or d == axis)]
                found |= {j: same} if same else {}
        return found

    def model(self, opened: Opened) -> ModelProto:
        """The first input and those with open axes are inputs, the others constants."""
        inputs: list[Any] = []
        constants: list[Any] = []
        for i, a in enumerate(self.inputs):
            if a is None:
                continue
            if i == 0 or i in opened:
                shape = ["n" if d in opened.get(i, ()) else int(n) for d, n in enumerate(a.shape)]
                kind = helper.np_dtype_to_tensor_dtype(a.dtype)
                inputs.append(helper.make_tensor_value_info(f"x{i}", kind, shape))
            else:
                constants.append(numpy_helper.from_array(np.array(a, order="C"), f"x{i}"))
        names = ["" if a is None else f"x{i}" for i, a in enumerate(self.inputs)]
        results = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.op_type, names, results, domain=self.domain, **self.attrs)
        values = [helper.make_empty_tensor_value_info(o) for o in results]
        graph = helper.make_graph([node], "g", inputs, values, constants)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(self.domain, 1)] if self.domain else []
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self, opened: Opened, n: int) -> dict[str, Array]:
        """The arrays with this size, repeated as far as they are shorter."""
        found: dict[str, Array] = {}
        for i, a in enumerate(self.inputs):
            if a is not None and (i == 0 or i in opened):
                for axis in opened.get(i, ()):
                    a = np.take(a, np.arange(n) % a.shape[axis], axis)
                found[f"x{i}"] = np.array(a, order="C")
        return found


def cases(op: Any) -> Iterator[Case]:
    for sample in op.samples(np.random.default_rng(7)):
        found = sample if isinstance(sample, HostSample) else sample.onnx
        if found is None or not isinstance(found.inputs[0], np.ndarray):
            continue
        if any(not isinstance(a, np.ndarray | None) or (a is not None and a.size == 0) for a in found.inputs):
            continue
        module: str = op.__module__
        domain = getattr(found, "domain", "com.microsoft" if ".contrib." in module else "")
        inputs: tuple[Any, ...] = found.inputs
        yield Case(found.op_type, domain, found.opset, found.attrs, inputs, found.outputs)


def check_opening(case: Case, extent: int, choices: Sequence[Opened]) -> bool:
    """Was it opened? AssertionError if it is wrong at some size."""
    most = 2 * extent + 3
    for opened in choices:
        model, known = case.model(opened), dict[int, tuple[dict[str, Array], dict[str, Array]]]()
        try:
            for n in (most, 1, extent, 2, most - 1):
                feeds = case.feeds(opened, n)
                known[n] = feeds, run_onnxruntime(model, feeds)
        except Exception:  # sizes that the operator does not take: its exceptions have no common base
            if len(known) < 2:
                continue
        try:
            interpreter = OpenInterpreter(model, {"n": Dim("n", 1, most)})
        except (NotFollowed, UserError):
            continue
        for n, (feeds, want) in known.items():
            is_finite = all(np.isfinite(w).all() for w in want.values() if w.dtype.kind == "f")
            if is_finite and interpreter.allows({"n": n}):
                check_size(model, feeds, interpreter.run(feeds, {"n": n}), want)
        return True
    return False


def check_size(
    model: ModelProto, feeds: Mapping[str, Array], got: Mapping[str, Array], want: Mapping[str, Array]
) -> None:
    """As ONNX Runtime has it; or, where that departs from ONNX, the program of these shapes."""
    try:
        check_outputs(got, want, TOLERANCE)
    except AssertionError:
        with tw.load(model, shapes={k: a.shape for k, a in feeds.items()}) as session:
            given = session.run(feeds)
        for name, array in got.items():
            np.testing.assert_array_equal(_plain(array), _plain(given[name]), err_msg=name)


def _plain(a: Array) -> Any:
    return np.round(a.astype(np.float64), 3) if a.dtype.kind == "f" else a


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging: Any = ort
    logging.set_default_logger_severity(4)


@pytest.mark.parametrize("name", QUICK)
def test_an_open_axis_of_a_sample(name: str) -> None:
    (op,) = (o for o in (*OPS, *COMPOSITES) if o.__name__ == name)
    case = list(cases(op))[QUICK[name]]
    assert sum(check_opening(case, *opening) for opening in case.openings()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("op", [o for o in (*OPS, *COMPOSITES) if o.__name__ not in CRASHING])
def test_every_axis_of_every_sample(op: Any) -> None:
    for case in cases(op):
        for extent, choices in case.openings():
            check_opening(case, extent, choices)
