"""Other engines, where they are installed, give what ONNX Runtime gives: a comparison with anything else would be none.

An engine's interpreter is found as `tilewright bench` finds it (`TILEWRIGHT_PYTHON_<ENGINE>`, or this one).
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.catalogue import ENGINES, ROOT
from examples.models import Net, mlp, resnet18, transformer_encoder
from tilewright.cli.catalogue import interpreter
from tilewright.cli.difference import compare_outputs, worst
from tilewright.cli.engine_process import EngineFailure, EngineProcess
from tilewright.cli.guest.job import EngineJob, read_raw_array
from tilewright.cli.peers import OnnxRuntimePeer

Arrays: TypeAlias = dict[str, Any]

TOLERANCE = 1e-3  # some compute elementary functions to four digits
MODELS = {
    "mlp": lambda: mlp((32, 24, 10)),
    "resnet18": lambda: resnet18(size=32, classes=10),
    "transformer": lambda: transformer_encoder(layers=1, hidden=32, heads=2, tokens=16),
}


def check(engine: str, model: ModelProto, feeds: Arrays, folder: Path) -> None:
    """The engine's results are those of ONNX Runtime."""
    python = interpreter(engine, {})
    if python == sys.executable and not all(map(find_spec, ENGINES[engine].packages)):
        pytest.skip(f"{engine} is not installed")
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    wanted = OnnxRuntimePeer(str(path), 1)(feeds)
    own = folder / "engine"
    own.mkdir()
    job = EngineJob(str(path), 1, str(own), str(folder))
    command = {
        "do": "load",
        "model": job.model,
        "threads": 1,
        "folder": job.folder,
        "shared": job.shared,
        "packages": ENGINES[engine].packages,
        "feeds": job.write_feeds(feeds),
        "outputs": list(wanted),
    }
    core = min(os.sched_getaffinity(0))
    with EngineProcess(ENGINES[engine], python, 1, [core], own, timeout=300) as process:
        try:
            kinds: list[str] = process.ask(command)["results"]
        except EngineFailure as e:
            if e.missing is None:
                raise AssertionError(e.answer.get("trace", str(e))) from e
            pytest.skip(f"{e.missing} is not installed")
    got = {
        name: read_raw_array(job.result(n), kind).reshape(wanted[name].shape)
        for n, (name, kind) in enumerate(zip(wanted, kinds, strict=True))
    }
    differences = compare_outputs(got, wanted)
    assert worst(differences) < TOLERANCE, [d for d in differences if d.error >= TOLERANCE]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "resnet18" else n for n in MODELS]
)
@pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=pytest.mark.slow) if e == "inductor" else e for e in ENGINES]
)  # that one calls a C++ compiler for each kernel
def test_an_engine_agrees_with_onnx_runtime(engine: str, name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    rng = np.random.default_rng(0)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    check(engine, model, feeds, tmp_path)


# Inputs of the nodes below, and constants.
INPUTS = {
    "x": (1, 8, 9, 10),
    "wide": (1, 8, 4, 6),
    "line": (1, 4, 17),
    "rows": (3, 6),
    "steps": (5, 2, 4),
    "signal": (2, 15, 1),
    "grid": (1, 5, 4, 2),
}
WEIGHTS: Arrays = {
    "kernel": (8, 8, 3, 3),
    "grouped": (8, 4, 3, 3),
    "single": (8, 1, 3, 3),
    "back": (8, 5, 3, 3),
    "back_grouped": (8, 3, 2, 2),
    "kernel_1d": (6, 4, 5),
    "channel": (8,),
    "five": (5,),
    "variance": (8,),
    "matrix": (4, 6),
    "last": (10,),
    "lstm_w": (2, 12, 4),
    "lstm_r": (2, 12, 3),
    "lstm_b": (2, 24),
    "gru_w": (1, 9, 4),
    "gru_r": (1, 9, 3),
    "gru_b": (1, 18),
}
NUMBERS = {
    "to": [1, 0, -1],
    "again": [2, 1],
    "first": [1],
    "minus": [-1],
    "three": [3],
    "axes": [2, 3],
    "begin": [-1, 1],
    "end": [-(2**62), 2**62],
    "by": [-2, 3],
    "parts": [3, 5],
    "pads": [0, 0, 1, 2, 0, 0, 2, 0],
    "wider": [1, 8, 8, 18],
    "odd": [1, 8, 7, 11],
    "picked": [2, -1, 0],
    "pairs": [[0, 1], [2, 5]],
    "each": [[3], [0], [5]],
    "each_row": [[2], [0], [1]],
    "own": [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [-1, 0, 2, 1, 3, -2]],
    "which": [0, 0],
}
SAME = {"kernel_shape": [3, 3], "pads": [1] * 4}
NODES: list[tuple[str, str, dict[str, Any]]] = [
    ("Conv", "x kernel channel", SAME),
    ("Conv", "x kernel", {"strides": [2, 1], "dilations": [1, 2], "pads": [2, 0, 1, 1]}),
    ("Conv", "x grouped", {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("Conv", "x single", {"group": 8, "auto_pad": "SAME_LOWER"}),
    ("Conv", "line kernel_1d", {"strides": [2]}),
    ("ConvTranspose", "wide back five", {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 0]}),
    ("ConvTranspose", "wide back_grouped", {"group": 2, "strides": [2, 3]}),
    ("MaxPool", "x", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1}),
    ("MaxPool", "x", {"kernel_shape": [2, 2], "dilations": [2, 1]}),
    ("AveragePool", "x", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
    ("AveragePool", "x", {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
    ("GlobalAveragePool", "x", {}),
    ("BatchNormalization", "x channel channel channel variance", {}),
    ("InstanceNormalization", "x channel channel", {}),
    ("LayerNormalization", "x last last", {}),
    ("Softmax", "x", {"axis": 1}),
    ("LogSoftmax", "x", {}),
    ("Gemm", "rows matrix", {"transB": 1, "alpha": 0.5}),
    ("Einsum", "rows rows", {"equation": "ij,kj->ik"}),
    ("LSTM", "steps lstm_w lstm_r lstm_b", {"hidden_size": 3, "direction": "bidirectional"}),
    ("GRU", "steps gru_w gru_r gru_b", {"hidden_size": 3, "linear_before_reset": 1}),
    ("GRU", "steps gru_w gru_r", {"hidden_size": 3, "direction": "reverse"}),
    *[
        (op, "x", {})
        for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Softplus", "HardSwish", "LeakyRelu", "Elu")
    ],
    ("HardSigmoid", "x", {"alpha": 0.3}),
    ("ReduceMean", "x axes", {"keepdims": 0}),
    ("ReduceSum", "x", {}),
    ("ReduceL2", "x minus", {}),
    ("ArgMax", "x", {"axis": 2, "select_last_index": 1}),
    ("Reshape", "x to", {}),
    ("Flatten", "x", {"axis": 2}),
    ("Transpose", "x", {"perm": [0, 2, 3, 1]}),
    ("Slice", "x begin end axes by", {}),
    ("Split", "x parts", {"axis": 1}),
    ("Gather", "x picked", {"axis": 3}),
    ("GatherND", "rows pairs", {}),
    ("GatherND", "rows each", {"batch_dims": 1}),
    ("Tile", "rows again", {}),
    ("Pad", "x pads", {}),
    ("Pad", "x pads", {"mode": "reflect"}),
    ("Unsqueeze", "x first", {}),
    ("Resize", "wide   wider", {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}),
    ("Resize", "wide   odd", {"mode": "linear"}),
    ("Resize", "wide   odd", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ("DepthToSpace", "x", {"blocksize": 2}),
    ("Trilu", "rows", {"upper": 0}),
    ("CumSum", "rows first", {}),
    ("Clip", "x  ", {}),
    ("Pow", "two x", {}),
    ("Sub", "two x", {}),
    ("GatherElements", "rows own", {"axis": 1}),
    ("ScatterElements", "rows own rows", {"axis": 1}),
    ("ScatterND", "rows each_row rows", {}),
    ("TopK", "rows three", {"axis": 0, "largest": 0}),
    ("DFT", "signal", {"onesided": 1}),
    ("QuantizeLinear", "x two", {}),
    ("GridSample", "x grid", {}),
    ("RoiAlign", "x regions which", {"output_height": 3, "output_width": 2, "sampling_ratio": 2}),
]
# Its gates are other ones in PyTorch.
NOT_IN_PYTORCH = ("GRU", "steps gru_w gru_r", {"hidden_size": 3, "direction": "reverse"})


def node_model(table: list[tuple[str, str, dict[str, Any]]]) -> ModelProto:
    """Every node of the table, each with an output (or two) of its own."""
    rng = np.random.default_rng(1)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in WEIGHTS.items()}
    weights["variance"] = abs(weights["variance"]) + 0.5
    weights["two"] = np.array(2, np.float32)
    weights["regions"] = np.array(
        [[0.5, 1, 6, 7.5], [-3, -2, 4, 30]], np.float32
    )  # one goes beyond the image
    constants = {**weights, **{n: np.array(v, np.int64) for n, v in NUMBERS.items()}}
    nodes: list[Any] = []
    for number, (op, inputs, attributes) in enumerate(table):
        outputs = [f"{op}_{number}", f"{op}_{number}_more"][
            : 2 if op in ("Split", "LSTM", "GRU", "TopK") else 1
        ]
        nodes.append(helper.make_node(op, inputs.split(" "), outputs, **attributes))
    kinds = {
        ("ArgMax", 0): TensorProto.INT64,
        ("QuantizeLinear", 0): TensorProto.UINT8,
        ("TopK", 1): TensorProto.INT64,
    }
    graph = helper.make_graph(
        nodes,
        "nodes",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in INPUTS.items()],
        [
            helper.make_tensor_value_info(o, kinds.get((n.op_type, at), TensorProto.FLOAT), None)
            for n in nodes
            for at, o in enumerate(n.output)
        ],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("engine", ["xla", "torch"])
def test_operators_mean_the_same_in_another_framework(engine: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in INPUTS.items()}
    table = [n for n in NODES if engine != "torch" or n != NOT_IN_PYTORCH]
    check(engine, node_model(table), feeds, tmp_path)


IS_MOVED = """
import sys, torch
from benchmarks.engines.pytorch.translate import translate
inputs = [torch.zeros(2, 3)]
(y,) = translate(sys.argv[1], inputs)(*inputs)
sys.exit(0 if y.shape == (3, 2) and y.is_contiguous() else 3)
"""


def test_eager_pytorch_moves_the_elements_of_a_transpose(tmp_path: Path) -> None:
    """A view would be an answer without work."""
    python = interpreter("torch", {})
    found = subprocess.run([python, "-c", "import torch, onnx"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("torch is not installed")
    net = Net(0)
    net.op("Transpose", "x", perm=[1, 0])
    path = tmp_path / "model.onnx"
    path.write_bytes(net.model("transpose", {"x": (2, 3)}, {"y": (3, 2)}).SerializeToString())
    ran = subprocess.run([python, "-c", IS_MOVED, str(path)], cwd=ROOT, check=False)
    assert ran.returncode == 0
