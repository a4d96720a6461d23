"""`tilewright corpus`: a corpus is built, goes on where it was, is shown and merged."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from examples.models import mlp
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.target.target import native
from tilewright.training.corpus import Corpus
from tilewright.training.dataset import samples


def call(*arguments: object, status: int = ExitStatus.OK) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result


def call_json(*arguments: object, status: int = ExitStatus.OK) -> Any:
    return json.loads(call(*arguments, "--json", status=status).stdout)


def test_a_corpus_is_built_from_a_model_and_what_it_has_is_not_measured_again(tmp_path: Path) -> None:
    model, folder = tmp_path / "mlp.onnx", tmp_path / "corpus"
    model.write_bytes(mlp((256, 192, 64), batch=16).SerializeToString())
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
