"""ONNX's own operator suite, with all that ONNX Runtime takes given to it: a sample, and hard cases."""

from collections.abc import Iterator
from typing import Any

import pytest
from onnx import ModelProto
from onnx.backend.test.case.test_case import TestCase

from benchmarks.onnx_node_cases import load_cases, op_of, run_case
from tilewright.backend import TilewrightBackend, TilewrightRep
from tilewright.plugins.onnxruntime import OnnxRuntime
from tilewright.plugins.registry import register_plugin, unregister_plugin

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow

EVERY = 70  # the sample is every 70th case, in the order of their names
OTHERWISE = ("Attention", "Bernoulli", "DFT", "Resize")  # ONNX Runtime gives other results than ONNX expects
HARD = {
    "test_elu_default_expanded_ver18": "a region takes two constants that are equal",
    "test_shrink_soft_expanded_ver18": "a region takes a constant of rank 0",
    "test_layer_normalization_default_axis_expanded": "nodes whose results became shapes are needed by nobody",
    "test_affine_grid_2d": "a part of a composite is in a region, and what the composite takes is not",
    "test_eyelike_with_dtype": "of an input only the type matters",
    "test_convinteger_with_padding": "native code takes over, with a tensor of rank 0",
    "test_roialign_aligned_true": "there is a kernel, of an older version of the operator",
    "test_flexattention_gqa": "its parts are taken, and the whole is not",
}


class Backend(TilewrightBackend):
    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> TilewrightRep:
        return super().prepare(model, device, plugins=("onnxruntime",), placement="greedy", **kwargs)


@pytest.fixture(scope="module")
def cases() -> dict[str, TestCase]:
    return load_cases()


@pytest.fixture(autouse=True)
def _compiled_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plugin that cannot be found from elsewhere compiles in this process, which is quicker."""

    class Here(OnnxRuntime):
        pass

    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    register_plugin(Here())
    yield
    unregister_plugin("onnxruntime")


@pytest.mark.parametrize("name", HARD)
def test_a_hard_case(cases: dict[str, TestCase], name: str) -> None:
    assert run_case(cases[name], Backend) == "", HARD[name]


def test_a_sample(cases: dict[str, TestCase]) -> None:
    sample = [n for n in sorted(cases)[::EVERY] if op_of(n, cases) not in OTHERWISE]
    assert len(sample) > 20
    found = {name: run_case(cases[name], Backend) for name in sample}
    assert {name: problem for name, problem in found.items() if problem} == {}
