"""`tilewright corpus`: a corpus is built, goes on where it was, is shown and merged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from examples.models import mlp
from tests.fake_ray import FakeNode, FakeRay
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.target.target import native
from tilewright.training.corpus import Corpus
from tilewright.training.dataset import samples
from tilewright.training.net import Net


def call(*arguments: object, status: int = ExitStatus.OK) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result


def call_json(*arguments: object, status: int = ExitStatus.OK) -> Any:
    return json.loads(call(*arguments, "--json", status=status).stdout)


def test_a_corpus_is_built_from_a_model_and_what_it_has_is_not_measured_again(tmp_path: Path) -> None:
    model, folder = tmp_path / "mlp.onnx", tmp_path / "corpus"
    model.write_bytes(mlp((256, 192, 64), batch=96).SerializeToString())
    built = call_json("corpus", "build", folder, model, "--per-kernel", 3)
    assert (built["kernels"], built["trials"], built["complete_programs"]) == (2, 6, 1)
    assert built["interrupted"] is False and built["problems"] == []
    shown = call_json("corpus", "show", folder)
    assert (shown["kernels"], shown["trials"], shown["programs"]) == (2, 6, 1)
    assert shown["by"]["source"]["network"]["trials"] == sum(shown["statuses"].values()) == 6
    (machine,) = shown["by"]["machine"]
    assert native().cpu in machine
    again = call_json("corpus", "build", folder, model, "--per-kernel", 3)
    assert (again["trials"], again["complete_programs"]) == (0, 1)
    made = samples(Corpus(folder), native(), processes=1)
    assert [s.kind for s in made] == ["gemm", "gemm"] and sum(map(len, made)) == shown["statuses"]["ok"]
    assert all((s.seconds > 0).all() and (s.seconds < 1).all() for s in made)
    other = tmp_path / "other"
    merged = call_json("corpus", "merge", other, folder)
    assert merged["added"] == {"kernels": 2, "trials": 8}  # with what was compiled
    table = call("corpus", "show", other).stdout
    assert "2 kernels, 6 trials, 1 programs" in table and "noise of times" in table


@pytest.mark.slow
def test_other_structures_of_a_program_bring_other_kernels(tmp_path: Path) -> None:
    net = Net(np.random.default_rng(0))
    net.conv(net.input(1, 16, 24, 24), 32, (3, 3))
    model, folder = tmp_path / "conv.onnx", tmp_path / "corpus"
    model.write_bytes(net.model("conv").SerializeToString())
    own = call_json("corpus", "build", folder, model, "--per-kernel", 1)
    assert (own["kernels"], own["trials"]) == (1, 1)
    more = call_json("corpus", "build", folder, model, "--per-kernel", 1, "--structures", 1)
    assert more["kernels"] == more["trials"] >= 1 and more["complete_programs"] == 1
    texts = [k.text for k in Corpus(folder).kernels().values()]
    assert len(set(texts)) == len(texts) == 1 + more["kernels"]


def test_nodes_of_a_cluster_build_and_time_and_a_lost_cluster_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes are made up: `tests/e2e/test_ray.py` has real ones, for tuning."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    model, folder = tmp_path / "mlp.onnx", tmp_path / "corpus"
    model.write_bytes(mlp((256, 192, 64), batch=96).SerializeToString())
    build = ("corpus", "build", folder, model, "--per-kernel", 4, "--on", "ray")
    ray = FakeRay(FakeNode.dying("alone", "run", 2)).install(monkeypatch)
    output = call(*build, status=ExitStatus.USER_ERROR).output
    assert "error: all nodes of the cluster that" in output and "try: what was measured is kept" in output
    assert "the same command goes on" in output and not ray.actors
    kept = call_json("corpus", "show", folder)
    assert 0 < kept["trials"] < 8 and kept["programs"] == 0
    nodes = FakeNode("one"), FakeNode("two")
    FakeRay(*nodes, FakeNode("head", cores=0)).install(monkeypatch)
    built = call_json(*build)
    assert (built["trials"], built["complete_programs"]) == (8 - kept["trials"], 1)
    assert all({"build", "prepare", "run"} <= set(n.calls) for n in nodes)
    shown = call_json("corpus", "show", folder)
    assert shown["trials"] == 8 and len(shown["by"]["machine"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "absent"), "there is no corpus"),
        (("merge", "new", "absent"), "there is no corpus"),
        (("build", "new"), "there are no programs"),
        (("build", "new", "absent.onnx"), "cannot read absent.onnx"),
        (("build", "new", "program.tw"), "a compiled program holds machine code only"),
        (("build", "new", "--generated", "1", "--budget", "soon"), "'soon' is not a time"),
        (("build", "new", "--generated", "1", "--threads", "4000"), "4000 threads on"),
        (("build", "new", "--generated", "1", "--address", "10.0.0.1"), "an address is that of a cluster"),
        (("build", "file", "--generated", "1"), "the folder of the corpus cannot be made"),
        (("build", "new", "a/same.onnx", "b/same.onnx"), "two models are called same"),
    ],
)
def test_mistakes_are_named_with_what_to_do(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "same.onnx").touch()
    output = call("corpus", *arguments, status=ExitStatus.USER_ERROR).output
    assert f"error: {message}" in output and "try: " in output
    assert not Path("new").exists()
