"""Nothing is left over: what the package defines is named somewhere else, in the package, its tests or its tools."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("src", "tests", "benchmarks", "examples")

DEFINED = re.compile(r"^ *(?:def|class) (\w+)|^(\w+)(?:: [^=\n]+)? = ", flags=re.MULTILINE)
# Called by others under these names; `Mine` is in an example of a docstring.
CALLED = re.compile(
    r"visit_\w+|__\w+__|list_commands|get_command|Mine|create_module|locate_file|is_node_supported"
)
STAND_IN = "src/tilewright/ort/"  # has names of ONNX Runtime's, for programs that were written for that
FOUND = "src/tilewright/ops/"  # classes of this folder are found by being there


def test_everything_is_used() -> None:
    texts = {
        p.relative_to(ROOT): p.read_text(encoding="utf-8") for f in PLACES for p in (ROOT / f).rglob("*.py")
    }
    real = pytest.importorskip("onnxruntime")
    classes = (
        *(real.InferenceSession, real.IOBinding, real.OrtValue, real.OrtDevice),
        *(real.SessionOptions, real.RunOptions),
    )
    named = Counter(word for text in texts.values() for word in re.findall(r"[A-Za-z_]\w*", text))
    unused = {
        f"{path}: {name}"
        for path, text in texts.items()
        for name in map("".join, DEFINED.findall(text))
        if path.parts[0] == "src" and named[name] < 2 and not CALLED.fullmatch(name)
        if not (str(path).startswith(FOUND) and name[0].isupper())
        if not (str(path).startswith(STAND_IN) and any(hasattr(c, name) for c in classes))
    }
    assert not unused, "\n".join(sorted(unused))
