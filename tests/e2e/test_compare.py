"""`tilewright compare`: mistakes made on purpose are found, in bounded memory, and written as small models."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import ModelProto, numpy_helper, parser

from examples.models import mlp
from tilewright.cli.bisect import Bisector
from tilewright.cli.difference import Tolerance
from tilewright.cli.engines import Engine, EngineModel, OnnxReference, Ort, OwnReference, RunEngine
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.cli.submodel import ModelParts
from tilewright.support.errors import UserError

CHAIN = """
<ir_version: 9, opset_import: ["" : 18]>
chain (float[2, 3] x) => (float[2, 3] y, float[3, 2] z) {
    a = Neg(x)
    b = Abs(a)
    c = Tanh(b)
    d = Mul(c, x)
    e = Exp(d)
    z = Transpose(e)
    f = Add(e, c)
    y = Sqrt(f)
}
"""
GROWING = """
<ir_version: 9, opset_import: ["" : 18]>
growing (float[4] x) => (float[4] y)
<float[1] w = {1.0}> {
    a = Mul(x, w)
    b = Mul(a, w)
    c = Mul(b, w)
    d = Mul(c, w)
    y = Mul(d, w)
}
"""
X = np.array([[0.5, -1, 2], [3, 0.25, -0.75]], np.float32)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


class Changed:
    """An engine that is given another model than it is asked to run."""

    name = "changed"

    def __init__(self, change: Callable[[ModelProto], None], inner: Engine | None = None) -> None:
        self._change, self._inner = change, inner or OnnxReference()

    def prepare(self, model: EngineModel) -> RunEngine:
        proto = ModelProto()
        proto.CopyFrom(model if isinstance(model, ModelProto) else onnx.load(model))
        self._change(proto)
        return self._inner.prepare(proto)


def swap_tanh(model: Any) -> None:
    """In a model, or in the subgraph of an attribute."""
    for node in model.graph.node if isinstance(model, ModelProto) else model.g.node:
        if node.op_type == "Tanh":
            node.op_type = "Sigmoid"


def scale_weights(model: ModelProto) -> None:
    for t in model.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t) * np.float32(1 + 4e-5), t.name))


def saved(text: str | ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    proto = parser.parse_model(text) if isinstance(text, str) else text
    path.write_bytes(proto.SerializeToString())
    return path


def call(*arguments: object, status: int = ExitStatus.OK) -> Result:
    result = CliRunner().invoke(main, ["compare", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def call_json(*arguments: object, status: int = ExitStatus.OK) -> Any:
    return json.loads(call(*arguments, "--json", status=status).stdout)


def bisector(
    parts: ModelParts, feeds: dict[str, Any], ours: Engine, reference: Engine, memory: int = 1 << 30
) -> Bisector:
    return Bisector(parts, feeds, ours, reference, Tolerance(), memory)


# ------------------------------------------------------------------------------------------------------ the comparison


@pytest.mark.parametrize("against", ["ort", "onnx", "reference"])
def test_engines_agree(against: str, tmp_path: Path) -> None:
    path = saved(mlp((8, 16, 4)), tmp_path)
    report = call_json(path, "--against", against)
    assert report["agrees"] and 0 <= report["passes_at"] < 1e-6
    assert [o["name"] for o in report["outputs"]] == ["y"]
    assert "agrees with" in call(path, "--against", against).stdout


def test_the_least_tolerance_that_passes_passes(tmp_path: Path) -> None:
    path = saved(CHAIN, tmp_path)
    text = call(path, "--against", "onnx", "--tolerance", 0, status=ExitStatus.MISMATCH).stdout
    assert "differs from onnx.reference" in text
    least = text.rsplit("--tolerance ", 1)[1].split()[0]
    call(path, "--against", "onnx", "--tolerance", least)


def test_integers_and_other_places_of_nan_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(
        """
        <ir_version: 9, opset_import: ["" : 18]>
        m (float[3] x) => (int32[3] i, float[3] n) { i = Cast<to = 6>(x) n = Sqrt(x) }
        """,
        tmp_path,
    )

    def change(model: ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "Sqrt":
                node.op_type = "Neg"
        node = model.graph.node.add(op_type="Neg", input=["i_0"], output=["i"])
        model.graph.node[0].output[0] = node.input[0]

    np.save(tmp_path / "x.npy", np.array([1, 5, -1], np.float32))
    monkeypatch.setattr("tilewright.cli.compare.make_reference", lambda *_: Changed(change))
    report = call_json(path, "--input", f"x={tmp_path / 'x.npy'}", status=ExitStatus.MISMATCH)
    assert report["passes_at"] is None
    integers, places = report["outputs"]
    assert (integers["reason"], integers["error"]) == ("3 of 3 integers differ, by up to 10", None)
    assert places["reason"] == "NaN or infinities in 1 of 3 places differ"
    call(
        path,
        "--steps",
        10,
        "--tolerance",
        100,
        "--input",
        f"x={tmp_path / 'x.npy'}",
        status=ExitStatus.MISMATCH,
    )


def test_json_is_stable(tmp_path: Path) -> None:
    path = saved(CHAIN, tmp_path)
    first, again = (call(path, "--against", "reference", "--bisect", "--json").stdout for _ in range(2))
    assert first == again
    report = json.loads(first)
    assert list(report) == [
        "model",
        "against",
        "tolerance",
        "steps",
        "agrees",
        "passes_at",
        "outputs",
        "bisect",
    ]
    assert list(report["outputs"][0]) == ["name", "dtype", "shape", "error", "largest", "different", "reason"]
    assert list(report["bisect"]) == ["nodes", "windows", "peak_bytes", "first_different", "first_wrong"]


@pytest.mark.parametrize("memory", ["", "much", "0", "-1GB", "1TB"])
def test_an_amount_of_memory_is_a_number_with_a_unit(memory: str, tmp_path: Path) -> None:
    call(saved(CHAIN, tmp_path), "--memory", memory, status=ExitStatus.USAGE)


def test_a_compiled_program_cannot_be_compared(tmp_path: Path) -> None:
    program = tmp_path / "m.tw"
    program.touch()
    assert "give the .onnx file" in call(program, status=ExitStatus.USER_ERROR).stderr


# ------------------------------------------------------------------------------------------------------------ bisecting


@pytest.mark.parametrize("memory", ["1GB", "1B"])
def test_a_wrong_node_is_found_and_written(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.cli.compare.make_reference", lambda *_: Changed(swap_tanh, Ort(1)))
    path, folder = saved(CHAIN, tmp_path), tmp_path / "small"
    options = ("--memory", memory, "--write", folder)
    report = call_json(path, *options, status=ExitStatus.MISMATCH)
    for which in ("first_different", "first_wrong"):
        found = report["bisect"][which]
        assert (found["index"], found["op"], found["output"]) == (2, "Tanh", "c")
        assert found["error"] > 0.1
    assert report["written"]["nodes"] == ["Tanh"]
    assert report["bisect"]["windows"] == (1 if memory == "1GB" else 3)
    text = call(path, *options, status=ExitStatus.MISMATCH).stdout
    assert "Tanh_2 (Tanh), output c" in text
    command = text.splitlines()[-1].split()
    assert command == report["written"]["command"].split()
    assert command[:2] == ["tilewright", "compare"] and "--tolerance=0.0001" in command
    again = call_json(*command[2:], status=ExitStatus.MISMATCH)  # the written model shows it too
    assert again["outputs"][0]["name"] == "c"
    assert again["outputs"][0]["error"] == pytest.approx(report["written"]["error"])


def test_written_data_are_onnx_test_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.compare.make_reference", lambda *_: Changed(swap_tanh))
    folder = tmp_path / "small"
    call(saved(CHAIN, tmp_path), "--write", folder, status=ExitStatus.MISMATCH)
    tensors = {
        p.name: numpy_helper.to_array(onnx.load_tensor(p)) for p in (folder / "test_data_set_0").iterdir()
    }
    assert tensors.keys() == {"input_0.pb", "output_0.pb"}
    np.testing.assert_allclose(tensors["output_0.pb"], 1 / (1 + np.exp(-tensors["input_0.pb"])), rtol=1e-6)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(folder / "model.onnx"), strict_mode=True)
    assert inferred.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 3


def test_errors_that_grow_are_told_from_a_wrong_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.compare.make_reference", lambda *_: Changed(scale_weights))
    path, folder = saved(GROWING, tmp_path), tmp_path / "small"
    report = call_json(path, "--write", folder, status=ExitStatus.MISMATCH)
    assert report["bisect"]["first_different"]["output"] == "c"  # 3 × 4e-5 is more than 1e-4
    assert report["bisect"]["first_wrong"] is None
    assert report["written"]["nodes"] == ["Mul"] * 3
    assert "small errors have grown" in call(path, "--bisect", status=ExitStatus.MISMATCH).stdout


def test_nodes_that_are_wrong_together_only(tmp_path: Path) -> None:
    """Ours is wrong where an Exp follows a Mul whose result nobody asks for: a mistake of fusion."""

    def fuse(model: ModelProto) -> None:
        asked = {o.name for o in model.graph.output}
        makers = {n.output[0]: n for n in model.graph.node}
        for node in model.graph.node:
            maker = makers.get(node.input[0])
            if node.op_type == "Exp" and maker is not None and maker.op_type == "Mul":
                node.op_type = "Exp" if node.input[0] in asked else "Neg"

    with ModelParts(saved(CHAIN, tmp_path)) as parts:
        search = bisector(parts, {"x": X}, Changed(fuse), OnnxReference())
        found = search.search()
        assert found.different is None and found.wrong is None
        made = search.reproduce("y")
    assert made is not None
    assert [n.op_type for n in made.model.graph.node] == ["Mul", "Exp", "Add", "Sqrt"]


def test_what_cannot_be_reproduced_is_not_written(tmp_path: Path) -> None:
    with ModelParts(saved(CHAIN, tmp_path)) as parts:
        assert bisector(parts, {"x": X}, OnnxReference(), OnnxReference()).reproduce("y") is None


def test_random_nodes_are_not_compared(tmp_path: Path) -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    m (float[64] x) => (float[64] y) { a = RandomNormalLike(x) b = Add(a, x) y = Abs(b) }
    """
    with ModelParts(saved(text, tmp_path)) as parts:
        feeds = {"x": np.zeros(64, np.float32)}
        found = bisector(parts, feeds, OnnxReference(), OnnxReference()).search()
    assert (found.different, found.wrong, found.windows) == (None, None, 2)


# ------------------------------------------------------------------------------------------------------- bounded memory


def long_chain(nodes: int, elements: int) -> str:
    body = " ".join(f"v{i + 1} = {'Neg' if i % 2 else 'Abs'}(v{i})" for i in range(nodes))
    head = '<ir_version: 9, opset_import: ["" : 18]> '
    return f"{head} m (float[{elements}] v0) => (float[{elements}] v{nodes}) {{ {body} }}"


@pytest.mark.parametrize(("memory", "least", "most"), [(12 << 20, 0, 20 << 20), (1 << 30, 48 << 20, 1 << 30)])
def test_memory_is_bounded(memory: int, least: int, most: int, tmp_path: Path) -> None:
    """24 results of 1 MiB, of two engines; if there is room, they are held all at once."""
    elements = 1 << 18
    feeds = {"v0": np.ones(elements, np.float32)}
    with ModelParts(saved(long_chain(24, elements), tmp_path)) as parts:
        search = bisector(parts, feeds, OwnReference(), OwnReference(), memory)
        tracemalloc.start()
        try:
            found = search.search()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert found.different is None and found.wrong is None
    assert least <= found.peak_bytes <= min(memory, most)
    assert least <= peak <= most + (12 << 20)  # and what comparing takes


def test_a_result_larger_than_the_memory_is_a_window_of_its_own(tmp_path: Path) -> None:
    with ModelParts(saved(long_chain(5, 1000), tmp_path)) as parts:
        feeds = {"v0": np.ones(1000, np.float32)}
        found = bisector(parts, feeds, OwnReference(), OwnReference(), memory=1).search()
    assert found.windows == 5
    assert found.peak_bytes <= 4 * 4000  # the inputs and the results of one node, of both engines


# ------------------------------------------------------------------------------------------------------ kinds of models


def test_open_dimensions_are_those_of_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.compare.make_reference", lambda *_: Changed(swap_tanh))
    path = saved(CHAIN.replace("[2, 3]", "[N, M]").replace("[3, 2]", "[M, N]"), tmp_path)
    report = call_json(path, "--shape", "x=4x5", "--bisect", status=ExitStatus.MISMATCH)
    assert report["outputs"][0]["shape"] == [4, 5]
    assert report["bisect"]["first_wrong"]["op"] == "Tanh"


def test_external_data_are_read_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    proto = mlp((64, 32, 4))
    onnx.save_model(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    monkeypatch.setattr("tilewright.cli.compare.make_reference", lambda *_: Changed(scale_weights))
    folder = tmp_path / "small"
    report = call_json(path, "--tolerance", 1e-5, "--write", folder, status=ExitStatus.MISMATCH)
    assert report["bisect"]["first_wrong"]["index"] == 0
    written = onnx.load(folder / "model.onnx", load_external_data=False)
    assert written.graph.initializer[0].raw_data


BRANCHES = """
<ir_version: 9, opset_import: ["" : 18]>
m (float[4] x, bool p) => (float[4] y)
<float[4] w = {1.0, 2.0, 3.0, 4.0}> {
    a = Neg(x)
    b = If(p) <
        then_branch = yes () => (float[4] r) { s = Mul(a, w) r = Tanh(s) },
        else_branch = no () => (float[4] r) { r = Abs(a) }
    >
    c = Add(b, w)
    y = Neg(c)
}
"""


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_a_node_with_subgraphs_is_one_node(memory: int, tmp_path: Path) -> None:
    def change(model: ModelProto) -> None:
        for node in model.graph.node:
            for a in node.attribute:
                swap_tanh(a)

    feeds = {"x": np.array([1, -2, 3, -4], np.float32), "p": np.array(True)}
    with ModelParts(saved(BRANCHES, tmp_path)) as parts:
        assert bisector(parts, feeds, OnnxReference(), OnnxReference(), memory).search().different is None
        search = bisector(parts, feeds, Changed(change), OnnxReference(), memory)
        found = search.search()
        assert found.different is not None and found.wrong is not None
        assert (found.different.op_type, found.wrong.op_type) == ("If", "If")
        made = search.reproduce("b")
    assert made is not None
    assert made.inputs.keys() == {"p", "a"}  # what the branches use is an input as well
    assert [t.name for t in made.model.graph.initializer] == ["w"]


def test_sequences_go_from_window_to_window(tmp_path: Path) -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    m (float[4] x, int64 i) => (float[N] y) { s = SplitToSequence<axis = 0>(x) t = SequenceAt(s, i) y = Neg(t) }
    """
    feeds = {"x": np.arange(4, dtype=np.float32), "i": np.array(2)}
    with ModelParts(saved(text, tmp_path)) as parts:
        found = bisector(parts, feeds, OnnxReference(), Ort(1), memory=1).search()
    assert (found.windows, found.different, found.wrong) == (3, None, None)


def test_an_engine_that_cannot_is_named_with_the_node(tmp_path: Path) -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 18, "org.example" : 1]>
    m (float[4] x) => (float[4] y) { a = Neg(x) y = org.example.Nonsense(a) }
    """
    with ModelParts(saved(text, tmp_path)) as parts, pytest.raises(UserError, match="Nonsense_1"):
        bisector(parts, {"x": np.zeros(4, np.float32)}, OwnReference(), Ort(1), memory=1).search()
