"""`docs/adding-a-plugin.md`: the plugin that it shows runs, in a process that finds it as the document says."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "adding-a-plugin.md"
CHECK = """
made = tw.compile("model.onnx", plugins=["dense"], placement="greedy", strict=True)
assert [r.plugin for r in made.artifact.regions] == ["dense"], made.artifact.regions
x = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)
want = tw.load("model.onnx").run({"x": x})["y"]
assert np.allclose(session.run({"x": x})["y"], want, atol=1e-6)

from tilewright.graph.external import Capabilities

Dense.capabilities = Capabilities(open_sizes=True)
made = tw.compile("open.onnx", dims={"n": (1, 9)}, plugins=["dense"], placement="greedy", strict=True)
assert [r.plugin for r in made.artifact.regions] == ["dense"], made.artifact.regions
assert np.allclose(made.session(strict=True).run({"x": x})["y"], want, atol=1e-6)
print("it runs")
"""


def test_the_plugin_of_the_document_runs(tmp_path: Path) -> None:
    plugin, use = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "dense_plugin.py").write_text(plugin)
    (tmp_path / "use.py").write_text(f"{use}\nimport numpy as np\n{CHECK}")
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    for name, rows in (("model", 2), ("open", "n")):
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, 4))
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, 3))
        graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight, "w")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    done = subprocess.run(
        [sys.executable, "use.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TILEWRIGHT_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.endswith("it runs\n"), done.stderr
