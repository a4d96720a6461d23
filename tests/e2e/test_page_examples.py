"""Every Python example of every page is run by a test, or says why not.

Examples of a page run in order, in one namespace, in a folder with small models of the names that pages use. A block
that cannot run says so in a comment before it (`<!-- fragment: why -->`); one that shows our own code names the file
(`<!-- quoted: path -->`). What a block prints is compared where a block of text follows. Pages whose examples have
tests of their own are listed below.
"""

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import tilewright as tw
from tests.pages import BLOCK

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
# Pages that are run elsewhere: by tests that compare all output, time it, or make packages of it.
ELSEWHERE = {
    "README.md": "tests/e2e/test_readme.py",
    "docs/adding-a-command.md": "tests/unit/test_adding_things.py",
    "docs/adding-a-family.md": "tests/unit/test_adding_a_family.py",
    "docs/adding-a-pass.md": "tests/unit/test_adding_things.py",
    "docs/adding-a-plugin.md": "tests/e2e/test_adding_a_plugin.py",
    "docs/adding-a-target.md": "tests/unit/test_adding_things.py",
    "docs/adding-an-intrinsic.md": "tests/unit/test_adding_an_intrinsic.py",
    "docs/gir.md": "tests/golden/test_docs_gir.py",
    "docs/ir.md": "tests/golden/test_docs_ir.py",
    "docs/layouts.md": "tests/golden/test_docs_layouts.py",
    "docs/tensorization.md": "tests/golden/test_docs_tensorization.py",
    "docs/tutorial.md": "tests/e2e/test_tutorial.py",
    "docs/validation.md": "tests/golden/test_docs_ir.py",
    "docs/writing-programs.md": "tests/golden/test_docs_programs.py",
}
# What stands in an example, and what is run in its place, to be quick.
QUICKER = {'budget="5min"': "trials=2", "(1, 512)": "(1, 32)", "plugins=[": "strict=False, plugins=["}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def parsed(text: str) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]>\n{text}')


def image_model() -> ModelProto:
    return parsed("""g (float[1, 3, 224, 224] image) => (float[1, 3] logits, float[1, 3] scores) {
        pooled = GlobalAveragePool(image)
        logits = Flatten(pooled)
        scores = Softmax(logits)
    }""")


def text_model() -> ModelProto:
    return parsed("""g (float[batch, sequence, 8] x) => (float[batch, sequence, 8] y) {
        r = Relu(x)
        y = Softmax<axis = -1>(r)
    }""")


def language_model() -> ModelProto:
    """Appends to `past`; what comes out says how long that is."""
    return parsed("""g (int64[1, sequence] input_ids, int64[1, total] attention_mask, float[1, past, 4] past)
        => (float[1, sequence, 4] logits, float[1, present, 4] present) <int64[1] last = {-1}> {
        ids = Cast<to = 1>(input_ids)
        wide = Unsqueeze(ids, last)
        four = Concat<axis = -1>(wide, wide, wide, wide)
        present = Concat<axis = 1>(past, four)
        mask = Cast<to = 1>(attention_mask)
        one = ReduceMax<keepdims = 0>(mask)
        logits = Mul(four, one)
    }""")


def arrays() -> dict[str, Any]:
    """Names that examples take as given."""
    left = iter([True, True])
    rows = {n: {"x": np.ones((1, n, 8), np.float32)} for n in (4, 9, 12)}
    return {
        "tw": tw,
        "np": np,
        "image": np.zeros((1, 3, 224, 224), np.float32),
        "fill": lambda _: next(left, False),
        "use": lambda _: None,
        "feeds": rows[4],
        "first": rows[4],
        "others": rows[9],
        "more": rows[12],
        "prompt": np.ones((1, 3), np.int64),
        "mask": np.ones((1, 3), np.int64),
    }


MODELS: dict[str, Callable[[], ModelProto]] = {
    "model.onnx": image_model,
    "bert.onnx": text_model,
    "gpt2.onnx": language_model,
}


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # inside of torch.export
@pytest.mark.parametrize("page", [p for p in PAGES if name_of(p) not in ELSEWHERE], ids=name_of)
def test_examples_of_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == len(re.findall(r"^```python", text, flags=re.MULTILINE)), "a block is not closed"
    if not blocks:
        return
    if "import torch" in text:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "db"))
    for file, make in MODELS.items():
        Path(file).write_bytes(make().SerializeToString())
    tw.compile("model.onnx").save("model.tw")
    names = arrays()
    for n, block in enumerate(blocks):
        if block["mark"] == "quoted":
            missing = lines(block["code"]) - lines((ROOT / block["reason"]).read_text(encoding="utf-8"))
            assert not missing, f"not in {block['reason']}: {missing}"
        elif block["mark"] is None:
            printed = run(block["code"], tmp_path / f"example_{n}.py", names)
            if shown := re.match(r"\n\n```text\n(.*?)```", text[block.end() :], flags=re.DOTALL):
                assert printed.rstrip("\n") == shown[1].rstrip("\n")


def run(code: str, file: Path, names: dict[str, Any]) -> str:
    for shown, instead in QUICKER.items():
        code = code.replace(shown, instead)
    file.write_text(code, encoding="utf-8")  # where tw.func finds the source
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(file), "exec"), names)
    return out.getvalue()


def lines(code: str) -> set[str]:
    return {line.strip() for line in code.splitlines() if line.strip()}


def test_pages_that_are_run_elsewhere_are() -> None:
    for page, test in ELSEWHERE.items():
        assert "```python" in (ROOT / page).read_text(encoding="utf-8"), f"{page} has no examples"
        named = (ROOT / test).read_text(encoding="utf-8")
        stem = Path(page).stem
        assert stem in named or stem.removeprefix("adding-a-") in named, f"{test} does not run {page}"
