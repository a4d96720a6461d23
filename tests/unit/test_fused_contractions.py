"""Programs with and without the families that fuse contractions, as `benchmarks.fused_contractions` makes them."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto

import tilewright as tw
from benchmarks.fused_contraction_cases import BLOCKS, attention, efficientnet_b0, inverted_residual
from benchmarks.fused_contractions import main, sites, without
from tilewright.compiler import compile
from tilewright.frontend.onnx.load import load_graph
from tilewright.stages import stages

SMALL = {
    "chain": attention(2, 128, 128, 32)(),
    "bands": inverted_residual(28, 16, 6, 16)(),
}


@pytest.mark.parametrize("build", BLOCKS.values(), ids=BLOCKS)
def test_a_block_can_be_read(build: object) -> None:
    assert callable(build)
    model = build()
    assert isinstance(model, ModelProto)
    graph = load_graph(model)
    wanted = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    assert [list(v.shape) for v in graph.outputs] == [wanted]


def test_efficientnet_ends_in_its_classes() -> None:
    assert load_graph(efficientnet_b0(64)).outputs[0].shape == (1, 1000)


@pytest.mark.parametrize("family", SMALL)
def test_a_program_without_a_family_has_none_of_its_kernels(family: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(SMALL[family].SerializeToString())
    found = stages(path)
    assert sites(found.trace) == {family: (1, 1)}
    other = without(family, found)
    made = compile(path, trace=other)
    assert sites(made.trace) == {} and len(made.trace.sections["kernels"]) == 3
    rng = np.random.default_rng(0)
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in found.artifact.manifest.inputs}
    (want,) = tw.load(path, threads=1).run(feeds).values()
    (got,) = tw.load(path, trace=other, threads=1).run(feeds).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_page_is_made_of_stored_results(tmp_path: Path) -> None:
    def cell(ms: float, version: str = "") -> dict[str, object]:
        return {"median_ms": ms, "round_medians_ms": [ms] * 3, "rel_err": 0.0, "version": version}

    stored = {
        "bert_base": {"1": {"tilewright": cell(10.0), "chain": cell(12.0, "12 11")}},
        "resnet_bottleneck_56x56x256": {},
    }
    path = tmp_path / "results.json"
    path.write_text(json.dumps(stored), encoding="utf-8")
    shown = CliRunner().invoke(main, ["--from", str(path), "--no-save"], catch_exceptions=False).output
    assert "| bert_base | chain | 11 of 12 | 10.000 | 12.000 | 1.20 [1.20, 1.20] | 0e+00 |" in shown
    assert "No kernel of either family is in: resnet_bottleneck_56x56x256." in shown
