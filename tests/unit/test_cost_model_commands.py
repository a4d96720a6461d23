"""`tilewright cost`: what it prints and writes, on made-up samples."""

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from onnx import ModelProto

from examples.models import mlp
from tests.unit.cost_samples import made_samples
from tests.unit.schedule_programs import matmul
from tilewright.cli import cost
from tilewright.cli.main import main
from tilewright.ir.dtype import DType
from tilewright.learned.features import ABSENT
from tilewright.learned.graph_network import NetworkShape
from tilewright.learned.model_file import StoredTrees, read_trees
from tilewright.tir.printer import print_func
from tilewright.training.boosting import TreeShape
from tilewright.training.charts import contribution_chart, scatter_chart
from tilewright.training.corpus import Corpus
from tilewright.training.explain import feature_words
from tilewright.training.export import write_trees
from tilewright.training.rows import KernelKey, KernelRow
from tilewright.training.samples import KernelSamples
from tilewright.training.torch_network import NetworkSettings
from tilewright.training.trees import TreeSettings, train_trees

SVG = "{http://www.w3.org/2000/svg}"
SMALL = TreeShape(trees=12, leaves=8, depth=4, rate=0.3, least_rows=5)
FEW = TreeSettings(shape=SMALL)


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> str:
    """A corpus whose samples are made up; training is short."""

    def made(*_: object, **__: object) -> list[KernelSamples]:
        return made_samples(8, 3, 12, names=("unet", "gpt2"), with_graphs=True)

    monkeypatch.setattr(cost, "samples", made)
    monkeypatch.setattr(cost, "SCHEDULES", FEW)
    monkeypatch.setattr(cost, "SECONDS", TreeSettings(loss="absolute", shape=SMALL))
    monkeypatch.setattr(Corpus, "check_exists", lambda self: None)
    return "corpus"


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["cost", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_train_writes_a_model_that_can_be_read(corpus: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    said = json.loads(run("train", corpus, "-o", str(path), "--seed", "3", "--json"))
    assert said["bytes"] == path.stat().st_size and said["seed"] == 3
    stored = read_trees(path)
    assert stored.training == {"task": "schedules", "seed": 3, "rows": 288, "kernels": 24, "programs": 8}
    assert stored.ensemble.trees == SMALL.trees * stored.ensemble.members and stored.is_residual
    again = tmp_path / "again.onnx"
    assert str(again) in run("train", corpus, "-o", str(again), "--seed", "3")
    assert again.read_bytes() == path.read_bytes()  # of the same rows and seed


def test_eval_has_the_figures_of_all_splits(corpus: str) -> None:
    said = json.loads(run("eval", corpus, "--seeds", "1", "--json"))
    keys = {"ape_mean", "ape_worst", "analytical_ape_mean", "top5_regret", "top10_regret", "tau"}
    assert all(keys <= said["splits"][name].keys() for name in ("random", "manual", "family"))
    assert {"mape", "tau"} <= said["fusion"].keys()
    assert said["splits"]["random"]["ape_mean"] < said["splits"]["random"]["analytical_ape_mean"]
    table = run("eval", corpus, "--seeds", "1")
    assert "without windows" in table and "best of 10" in table


def test_a_page_has_all_figures_and_its_drawings(
    corpus: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cost, "ABLATIONS", {"as it is": FEW, "no terms": replace(FEW, without=("term_",))})
    page = tmp_path / "learned.md"
    said = json.loads(
        run("eval", corpus, "--seeds", "1", "--ablation-seeds", "1", "--page", str(page), "--json")
    )
    text = page.read_text()
    assert f"{said['splits']['manual']['ape_mean']:.2f} %" in text
    assert f"{said['fusion']['mape']:.2f} %" in text and "| no terms |" in text
    for name in ("learned-seconds.svg", "learned-closed-form.svg"):
        assert f"({name})" in text
        ElementTree.parse(tmp_path / name)


def test_networks_are_trained_and_judged_beside_trees(
    corpus: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    small = NetworkSettings(NetworkShape(width=8), epochs=2)
    monkeypatch.setattr(cost, "_NETWORKS", {"schedules": small, "seconds": replace(small, loss="absolute")})
    said = json.loads(run("eval", corpus, "--seeds", "1", "--gnn", "1", "--json"))
    assert said["gnn"]["splits"]["random"]["ape_mean"] != said["splits"]["random"]["ape_mean"]
    assert said["gnn"]["fusion"]["mape"] > 0.0
    path = tmp_path / "network.onnx"
    assert json.loads(run("train", corpus, "-o", str(path), "--model", "gnn", "--json"))["bytes"] < 2 << 20
    assert [o.name for o in ModelProto.FromString(path.read_bytes()).graph.output] == ["scores"]


def test_too_few_schedules_are_no_corpus(
    corpus: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cost, "samples", lambda *_, **__: made_samples(2, 1, 4))
    done = CliRunner().invoke(main, ["cost", "train", corpus, "-o", str(tmp_path / "model.onnx")])
    assert done.exit_code == 1 and "too few to train on" in done.stderr


# -------------------------------------------------------------------------------------------------------------- explain


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A network, and a cost model that trusts itself everywhere."""
    folder = tmp_path_factory.mktemp("explain")
    network, model = folder / "mlp.onnx", folder / "model.onnx"
    network.write_bytes(mlp((64, 48, 32)).SerializeToString())
    trained = train_trees(made_samples(8, 3, 12), FEW, 0)
    write_trees(model, StoredTrees(trained.ensemble, True, None, {}))
    return str(network), str(model)


def test_explain_lists_the_kernels_of_a_network(files: tuple[str, str]) -> None:
    network, model = files
    said = json.loads(run("explain", network, "--with", model, "--json"))
    assert len(said["kernels"]) == 2
    for k in said["kernels"]:
        chosen = k["chosen"]
        assert chosen["predicted_seconds"] <= k["closed_form_choice"]["predicted_seconds"]
        assert chosen["closed_form_seconds"] >= k["closed_form_choice"]["closed_form_seconds"]
        assert k["trust"] == 1.0 and k["moved"]
    listed = run("explain", network, "--with", model)
    assert all(k["kernel"] in listed for k in said["kernels"])


def test_explain_tells_and_draws_what_moved_one_kernel(files: tuple[str, str], tmp_path: Path) -> None:
    network, model = files
    kernel = json.loads(run("explain", network, "--with", model, "--json"))["kernels"][0]
    drawing = tmp_path / "moved.svg"
    said = run("explain", network, "--with", model, "--kernel", kernel["kernel"], "--svg", str(drawing))
    first = kernel["moved"][0]
    assert f"{first['percent']:+6.1f} %  {first['feature']}" in said
    bars = list(ElementTree.parse(drawing).iter(f"{SVG}rect"))
    assert len(bars) > 1
    told = run(
        "explain", network, "--with", model, "--kernel", kernel["kernel"], "--features", "200", "--json"
    )
    (every,) = json.loads(told)["kernels"]
    factors = [1.0 + m["percent"] / 100.0 for m in every["moved"]]
    factors += [1.0 + every[name] / 100.0 for name in ("usual_percent", "doubt_percent")]
    correction = math.prod(factors)
    chosen = every["chosen"]
    assert correction == pytest.approx(chosen["predicted_seconds"] / chosen["closed_form_seconds"], rel=0.01)


def test_explain_finds_a_kernel_of_a_corpus_by_its_key(files: tuple[str, str], tmp_path: Path) -> None:
    func = matmul(DType.F32, 64, 48, 32)
    row = KernelRow(KernelKey("c0ffee" * 6), print_func(func), (), "mlp", "network")
    corpus = Corpus(tmp_path)
    with corpus.writing():
        corpus.add([row], [])
    said = json.loads(run("explain", "c0ff", "--corpus", str(tmp_path), "--with", files[1], "--json"))
    (kernel,) = said["kernels"]
    assert kernel["kernel"] == func.name and kernel["schedules"] > 100


def test_explain_says_what_is_missing(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    network, model = files
    monkeypatch.setenv("TILEWRIGHT_COST_MODEL", "off")
    for arguments, text in (
        ((network,), "no cost model"),
        ((network, "--with", model, "--kernel", "nothing"), "'nothing'"),
        ((network, "--with", model, "--svg", "x.svg"), "one kernel"),
        (("absent.onnx", "--with", model), "cannot read absent.onnx"),
        ((network, "--with", network), "no cost model"),
    ):
        done = CliRunner().invoke(main, ["cost", "explain", *arguments])
        assert done.exit_code == 1 and text in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("is_gemm", 1.0, "family gemm"),
        ("is_chain", 0.0, "not chain"),
        ("knob_rows", 3.0, "rows 6"),
        ("knob_pack_a", ABSENT, "no pack_a"),
        ("term_far", -1.0, "50 % bytes from memory"),
        ("term_team", ABSENT, "no sharing and meetings"),
        ("cost", -20.0, "a cost of 0.954 µs"),
        ("over_cheapest", 1.0, "2.00 times the cheapest cost"),
        ("l2", 20.0, "l2 1.05e+06 B"),
        ("space_0", 6.0, "space 0 64"),
        ("threads", 2.0, "threads 2"),
        ("local_bytes", ABSENT, "no local bytes"),
    ],
)
def test_features_have_words(name: str, value: float, words: str) -> None:
    assert feature_words(name, value) == words


def test_charts_are_well_formed() -> None:
    bars = ElementTree.fromstring(contribution_chart("a < b", [("x & y", 3.0), ("z", -1.5), ("none", 0.0)]))
    texts = [e.text for e in bars.iter(f"{SVG}text")]
    assert {"a < b", "x & y", "+3.0 %", "-1.5 %"} <= set(texts)
    wide, narrow = [float(r.get("width", "0")) for r in bars.iter(f"{SVG}rect")][1:3]
    assert wide == pytest.approx(2 * narrow, abs=0.2)
    dots = ElementTree.fromstring(
        scatter_chart("t", "measured", "predicted", {"gemm": [(1e-5, 2e-5), (1e-3, 1e-3)], "none": []})
    )
    paths = [p.get("d", "") for p in dots.iter(f"{SVG}path") if p.get("stroke-linecap")]
    assert paths[0].count("M") == 2 and paths[1] == ""
