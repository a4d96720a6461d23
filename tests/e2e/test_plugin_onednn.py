"""oneDNN as a plugin."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tests.toy_plugin import compile_here
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.external import No
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.partition import Offer, offer
from tilewright.plugins.onednn import OneDnn
from tilewright.plugins.onednn import library as dnnl
from tilewright.plugins.onednn.program import PrimitiveProgram
from tilewright.plugins.registry import register_plugin, unregister_plugin
from tilewright.support.arrays import Array
from tilewright.support.artifact import ExternalCall
from tilewright.support.errors import UserError

try:
    distribution(dnnl.PACKAGE)
except PackageNotFoundError:
    pytest.skip("oneDNN is not installed", allow_module_level=True)

RNG = np.random.default_rng(29)
node = helper.make_node


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    compile_here(monkeypatch)
    register_plugin(OneDnn())
    yield
    unregister_plugin("onednn")


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def scalar(x: float) -> Array:
    return np.array(x, np.float32)


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[int, ...]],
    weights: Mapping[str, Array],
    *outputs: str,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs or ("y",)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def feeds_of(m: ModelProto) -> dict[str, Array]:
    return {i.name: normal(*(d.dim_value for d in i.type.tensor_type.shape.dim)) for i in m.graph.input}


def check_close(got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=3e-6 * max(1.0, float(np.abs(array).max())))


def offered(m: ModelProto) -> Offer:
    return offer(load_graph(m), OneDnn())


def loaded(m: ModelProto, threads: int = 1) -> PrimitiveProgram:
    """What the plugin makes of a model that is one region."""
    (region,) = offered(m).regions
    assert len(region.graph.nodes) == len(load_graph(m).nodes)
    program = OneDnn().load(OneDnn().compile(region, region.constants), region.constants, threads)
    assert isinstance(program, PrimitiveProgram)
    return program


def check(m: ModelProto) -> None:
    """The whole model is one region, and numpy says the same."""
    feeds = feeds_of(m)
    want = interpret_graph(load_graph(m), feeds)
    for threads in (1, 2):
        got = {name: np.full(a.shape, np.nan, a.dtype) for name, a in want.items()}
        loaded(m, threads)(list(feeds.values()), list(got.values()))
        check_close(got, want)


def check_from_end_to_end(m: ModelProto) -> tw.CompiledModel:
    """The whole model is one region of a compiled program, and native code says the same."""
    made = tw.compile(m, plugins=("onednn",), placement="greedy", strict=True)
    assert [type(step) for step in made.artifact.program] == [ExternalCall]
    feeds = feeds_of(m)
    want = tw.load(m, threads=1).run(feeds)
    for threads in (1, 2):
        with made.session(threads, strict=True) as session:
            check_close(session.run(feeds), want)
    return made


# ------------------------------------------------------------------------------------------------------ operators


def conv(x: tuple[int, ...], w: tuple[int, ...], **attributes: Any) -> ModelProto:
    nodes = [node("Conv", ["x", "w", "b"], ["y"], **attributes)]
    return model(nodes, {"x": x}, {"w": normal(*w), "b": normal(w[0])})


@pytest.mark.parametrize(
    "m",
    [
        conv((1, 16, 9, 11), (24, 16, 3, 3), pads=[1, 1, 1, 1]),
        conv((2, 3, 12, 12), (8, 3, 5, 5), strides=[2, 3], pads=[2, 0, 1, 2]),
        conv((1, 8, 13, 13), (8, 8, 3, 3), dilations=[2, 3], pads=[2, 3, 2, 3]),
        conv((1, 16, 10, 10), (16, 1, 3, 3), group=16, pads=[1, 1, 1, 1], strides=[2, 2]),
        conv((1, 32, 7, 7), (16, 8, 3, 3), group=4, auto_pad="SAME_UPPER"),
        conv((2, 8, 30), (16, 8, 5), strides=[2], pads=[2, 2]),
        conv((1, 8, 6, 7, 8), (16, 8, 3, 3, 3), pads=[1, 1, 1, 1, 1, 1]),
        conv((1, 5, 8, 8), (7, 5, 1, 1)),
    ],
    ids=["plain", "strides and pads", "dilations", "depthwise", "groups", "1d", "3d", "few channels"],
)
def test_convolutions(m: ModelProto) -> None:
    check(m)


@pytest.mark.parametrize(
    ("a", "b", "is_known"),
    [
        ((5, 16), (16, 24), True),
        ((2, 5, 16), (16, 24), True),
        ((3, 4, 16), (3, 16, 8), False),
        ((2, 3, 4, 16), (3, 16, 8), False),
        ((2, 1, 4, 16), (16, 8), False),
    ],
)
def test_products(a: tuple[int, ...], b: tuple[int, ...], is_known: bool) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    check(model(nodes, {"x": a}, {"w": normal(*b)}) if is_known else model(nodes, {"x": a, "w": b}, {}))


@pytest.mark.parametrize(("turn_a", "turn_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("c", [(12,), (5, 12), (1,)])
def test_products_of_matrices_that_are_turned(turn_a: int, turn_b: int, c: tuple[int, ...]) -> None:
    nodes = [node("Gemm", ["x", "w", "c"], ["y"], transA=turn_a, transB=turn_b)]
    weights = {"w": normal(*((12, 8) if turn_b else (8, 12))), "c": normal(*c)}
    check(model(nodes, {"x": (8, 5) if turn_a else (5, 8)}, weights))


def test_a_matrix_that_is_used_both_ways() -> None:
    """What is packed for one way is not used for the other."""
    nodes = [node("Gemm", ["x", "w"], ["h"]), node("Gemm", ["h", "w"], ["y"], transB=1)]
    check(model(nodes, {"x": (3, 16)}, {"w": normal(16, 16)}))


POOLS = {
    "max": node("MaxPool", ["h"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max, ceil": node("MaxPool", ["h"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "max, dilated": node("MaxPool", ["h"], ["y"], kernel_shape=[2, 2], dilations=[2, 2]),
    "mean": node("AveragePool", ["h"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "mean, ceil": node("AveragePool", ["h"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "mean with padding": node(
        "AveragePool", ["h"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "global mean": node("GlobalAveragePool", ["h"], ["y"]),
    "global max": node("GlobalMaxPool", ["h"], ["y"]),
    "mean without axes": node("ReduceMean", ["h", "axes"], ["y"], keepdims=0),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str) -> None:
    nodes = [node("Conv", ["x", "w"], ["h"]), POOLS[name]]
    m = model(nodes, {"x": (2, 8, 11, 9)}, {"w": normal(12, 8, 3, 3), "axes": np.array([2, 3])})
    check(m)


ACTIVATIONS: dict[str, list[NodeProto]] = {
    "relu": [node("Relu", ["s"], ["y"])],
    "leaky": [node("LeakyRelu", ["s"], ["y"], alpha=0.1)],
    "relu6": [node("Clip", ["s", "zero", "six"], ["y"])],
    "one side": [node("Clip", ["s", "", "six"], ["y"])],
    "sigmoid": [node("Sigmoid", ["s"], ["y"])],
    "tanh": [node("Tanh", ["s"], ["y"])],
    "elu": [node("Elu", ["s"], ["y"], alpha=0.7)],
    "hard sigmoid": [node("HardSigmoid", ["s"], ["y"], alpha=0.25, beta=0.4)],
    "hard swish": [node("HardSwish", ["s"], ["y"])],
    "gelu": [node("Gelu", ["s"], ["y"])],
    "gelu by tanh": [node("Gelu", ["s"], ["y"], approximate="tanh")],
    "swish in pieces": [node("Sigmoid", ["s"], ["e"]), node("Mul", ["e", "s"], ["y"])],
    "gelu in pieces": [
        node("Div", ["s", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["f"]),
        node("Mul", ["s", "f"], ["g"]),
        node("Mul", ["g", "half"], ["y"]),
    ],
    "hard swish in pieces": [
        node("Add", ["s", "three"], ["d"]),
        node("Clip", ["d", "zero", "six"], ["e"]),
        node("Mul", ["s", "e"], ["f"]),
        node("Div", ["f", "six"], ["y"]),
    ],
}
NUMBERS = {
    **{n: scalar(x) for n, x in {"zero": 0, "half": 0.5, "one": 1, "three": 3, "six": 6}.items()},
    "root": scalar(sqrt(2)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_follows_a_convolution_is_part_of_it(name: str) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Add", ["r", "c"], ["s"])]
    m = model(
        [*nodes, *ACTIVATIONS[name]],
        {"x": (1, 8, 6, 6), "r": (1, 16, 6, 6)},
        {"w": normal(16, 8, 3, 3), **NUMBERS},
    )
    ((unit,),) = (r.units for r in offered(m).regions)
    assert len(unit.nodes) == 2 + len(ACTIVATIONS[name])
    check(m)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_follows_a_product_is_part_of_it(name: str) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["t"]),
        node("Add", ["r", "t"], ["s"]),
    ]
    m = model(
        [*nodes, *ACTIVATIONS[name]],
        {"x": (2, 5, 8), "r": (2, 5, 16)},
        {"w": normal(8, 16), "b": normal(16), **NUMBERS},
    )
    ((unit,),) = (r.units for r in offered(m).regions)
    assert len(unit.nodes) == 3 + len(ACTIVATIONS[name])
    check(m)


def test_numbers_for_each_channel() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Mul", ["c", "scale"], ["d"]),
        node("Add", ["shift", "d"], ["y"]),
    ]
    weights = {"w": normal(12, 8, 1, 1), "scale": normal(12, 1, 1), "shift": normal(1, 12, 1, 1)}
    check(model(nodes, {"x": (2, 8, 5, 5)}, weights))


# -------------------------------------------------------------------------------------------------- whole networks


def network() -> ModelProto:
    """A stem, a block with a shortcut, branches that are joined, and a classifier."""
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c0"], ["r0"]),
        node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p0", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c1"], ["s1"]),
        node("Mul", ["c1", "s1"], ["r1"]),
        node("Conv", ["r1", "w1"], ["c2"], pads=[1, 1, 1, 1]),
        node("Add", ["c2", "p0"], ["a2"]),
        node("Relu", ["a2"], ["r2"]),
        node("Conv", ["r2", "w3"], ["c3"]),
        node("Concat", ["c3", "r2"], ["j"], axis=1),
        node("Tanh", ["j"], ["t"]),
        node("GlobalAveragePool", ["t"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w4", "b4"], ["y"], transB=1),
    ]
    weights = {
        "w0": normal(16, 3, 3, 3),
        "b0": normal(16),
        "w1": normal(16, 16, 3, 3) / 10,
        "w3": normal(8, 16, 1, 1),
        "w4": normal(10, 24),
        "b4": normal(10),
    }
    return model(nodes, {"x": (1, 3, 24, 24)}, weights)


def perceptron() -> ModelProto:
    nodes = [
        node("MatMul", ["x", "w0"], ["m0"]),
        node("Add", ["m0", "b0"], ["a0"]),
        node("Relu", ["a0"], ["r0"]),
        node("Gemm", ["r0", "w1", "b1"], ["m1"]),
        node("Add", ["m1", "r0"], ["a1"]),
        node("Tanh", ["a1"], ["y"]),
    ]
    weights = {"w0": normal(8, 32), "b0": normal(32), "w1": normal(32, 32) / 4, "b1": normal(32)}
    return model(nodes, {"x": (4, 8)}, weights)


def test_a_network_is_one_region() -> None:
    made = check_from_end_to_end(network())
    (region,) = made.artifact.regions
    assert len(region.blob) < 6000  # its weights are not in it


def test_a_perceptron_is_one_region_of_two_primitives() -> None:
    check_from_end_to_end(perceptron())
    assert [len(r.units) for r in offered(perceptron()).regions] == [2]


def test_values_inside_of_a_region_that_others_need() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        node("Conv", ["h", "v"], ["c"]),
        node("Relu", ["c"], ["y"]),
        node("Reshape", ["y", "shape"], ["z"]),
    ]
    weights = {"w": normal(16, 8, 3, 3), "v": normal(16, 16, 1, 1), "shape": np.array([1, -1])}
    check(model(nodes, {"x": (1, 8, 6, 6)}, weights, "h", "y", "z"))


def test_tensors_lie_as_the_library_wants_between_primitives_and_weights_are_packed_once() -> None:
    program = loaded(network())

    def is_plain(name: str) -> bool:
        held = program.held[name]
        return held.layout.is_like(dnnl.plain(held.shape))

    assert [name for name in ("r0", "p0", "r1", "r2") if is_plain(name)] == []
    assert is_plain("x") and is_plain("y")
    assert len(program.packed) >= 4
    assert program.reorderings < 4  # of what is computed: on the way to the border, and before the classifier


def test_memory_is_used_again() -> None:
    nodes = [node("Conv", [f"h{i}", "w"], [f"h{i + 1}"], pads=[1, 1, 1, 1]) for i in range(12)]
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    program = loaded(model(nodes, {"x": (1, 16, 16, 16)}, {"w": normal(16, 16, 3, 3) / 12}))
    assert program.plan.bytes <= 4 * 16 * 16 * 16 * 4


# ------------------------------------------------------------------------------------------------------ refusals


def refusal(m: ModelProto, name: str) -> str:
    return next(r.reason for r in offered(m).refusals if r.unit.name == name)


def test_it_says_why_it_does_not_take_something() -> None:
    conv_of = [node("Conv", ["x", "w"], ["y"])]
    assert refusal(model(conv_of, {"x": (1, 4, 5, 5), "w": (4, 4, 3, 3)}, {}), "Conv") == "dynamic weights"
    vector = model([node("MatMul", ["x", "w"], ["y"])], {"x": (8,)}, {"w": normal(8, 3)})
    assert refusal(vector, "MatMul") == "a vector"
    scaled = model([node("Gemm", ["x", "w"], ["y"], alpha=0.5)], {"x": (2, 8)}, {"w": normal(8, 3)})
    assert refusal(scaled, "Gemm") == "alpha or beta other than 1"
    alone = model([node("Relu", ["x"], ["y"])], {"x": (2, 8)}, {})
    assert refusal(alone, "Relu") == "there is no GEMM and no convolution next to it"
    other = model([node("Softmax", ["x"], ["y"])], {"x": (2, 8)}, {})
    assert refusal(other, "Softmax") == "oneDNN is not used for Softmax"
    unlike = model([node("Add", ["x", "w"], ["y"])], {"x": (2, 8)}, {"w": normal(8)})
    assert refusal(unlike, "Add") == "operands of different shapes"


def test_other_types_than_f32() -> None:
    m = model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 8)}, {"w": np.ones((8, 3))})
    m.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    m.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    assert refusal(m, "MatMul") == "dtype f64"


def test_bounds_that_are_computed() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Clip", ["h", "low"], ["y"])]
    m = model(nodes, {"x": (2, 8), "low": ()}, {"w": normal(8, 3)})
    assert refusal(m, "Clip") == "oneDNN is not used for Clip"


def test_what_cannot_follow_is_left_out_of_the_chain() -> None:
    """A mask that differs from row to row is neither a residual nor a number for each column."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "mask"], ["y"])]
    m = model(nodes, {"x": (2, 3, 4, 8), "mask": (1, 1, 4, 6)}, {"w": normal(8, 6)})
    found = offered(m)
    assert [[len(u.nodes) for u in r.units] for r in found.regions] == [[1]]
    assert any("neither as large as the result" in r.reason for r in found.refusals)


# ------------------------------------------------------------------------------------------- files, threads, failures


def test_a_file_has_the_region(tmp_path: Path) -> None:
    m = network()
    feeds = feeds_of(m)
    made = tw.compile(m, plugins=("onednn",), placement="greedy", strict=True)
    made.save(tmp_path / "m.tw")
    with tw.load(tmp_path / "m.tw", threads=1, strict=True) as session:
        check_close(session.run(feeds), tw.load(m, threads=1).run(feeds))


def test_runs_at_the_same_time_do_not_meet() -> None:
    program = loaded(network())
    feeds = [normal(1, 3, 24, 24) for _ in range(3)]
    want = [np.empty((1, 10), np.float32) for _ in feeds]
    for x, y in zip(feeds, want, strict=True):
        program([x], [y])
    wrong: list[int] = []

    def run(i: int) -> None:
        y = np.empty((1, 10), np.float32)
        for _ in range(30):
            program([feeds[i]], [y])
            if not np.array_equal(y, want[i]):
                wrong.append(i)

    workers = [threading.Thread(target=run, args=(i,)) for i in range(len(feeds))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert wrong == []


def test_a_run_leaves_the_number_of_threads_as_it_was() -> None:
    openmp = dnnl.dnnl_functions()
    before = openmp.omp_get_max_threads()
    program = loaded(perceptron(), threads=before + 1)
    program([normal(4, 8)], [np.empty((4, 32), np.float32)])
    assert openmp.omp_get_max_threads() == before


def test_without_the_library_native_code_runs_the_region(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    m = perceptron()
    feeds = feeds_of(m)
    made = tw.compile(m, plugins=("onednn",), placement="greedy")

    def missing(package: str) -> Any:
        raise PackageNotFoundError(package)

    for cached in (dnnl.dnnl_functions, dnnl.engine):
        cached.cache_clear()
    monkeypatch.setattr(dnnl, "distribution", missing)
    try:
        answer = OneDnn().is_available()
        assert isinstance(answer, No) and "pip install 'tilewright[onednn]'" in answer.reason
        with caplog.at_level(logging.WARNING, "tilewright"), made.session(1) as session:
            check_close(session.run(feeds), tw.load(m, threads=1).run(feeds))
        assert "is not installed" in caplog.text
        with pytest.raises(UserError, match="is not installed"):
            made.session(1, strict=True)
    finally:
        for cached in (dnnl.dnnl_functions, dnnl.engine):
            cached.cache_clear()


def test_a_status_of_the_library_is_an_error_in_words() -> None:
    with pytest.raises(dnnl.LibraryError, match="dnnl_memory_desc_create_with_tag: invalid arguments"):
        dnnl.free([-5])
