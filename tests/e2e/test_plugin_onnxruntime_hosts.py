"""Operators that only ONNX Runtime knows: models with them give what ONNX Runtime gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

import tilewright as tw
from tests.toy_plugin import compile_here
from tilewright.frontend.onnx.values import type_of
from tilewright.graph.external import No
from tilewright.plugins.onnxruntime import OnnxRuntime

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(29)
MS = "com.microsoft"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    compile_here(monkeypatch)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def floats(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return RNG.standard_normal(shape).astype(np.float32)


def strings(*texts: str) -> np.ndarray[Any, Any]:
    return np.array(texts, object)


def model(
    nodes: Sequence[NodeProto],
    feeds: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [ValueInfoProto(name=n, type=type_of(v)) for n, v in feeds.items()],
        [ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def by_engine(m: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    engine = pytest.importorskip("onnxruntime")
    session = engine.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def agree(
    m: ModelProto, feeds: Mapping[str, Any], match: str = "not supported", tolerance: float = 1e-5
) -> None:
    with pytest.raises(tw.UserError, match=match):
        tw.load(m)
    with tw.load(m, threads=1, plugins=("onnxruntime",), placement="greedy", strict=True) as session:
        results = [session.run(feeds) for _ in range(2)]
    for got in results:
        for (name, have), want in zip(got.items(), by_engine(m, feeds), strict=True):
            equal(name, have, want, tolerance)


def equal(name: str, have: Any, want: Any, tolerance: float = 1e-5) -> None:
    assert have.dtype == want.dtype and have.shape == want.shape, name
    if want.dtype.kind == "f":
        assert np.allclose(have, want, rtol=tolerance, atol=tolerance, equal_nan=True), name
    else:
        assert np.array_equal(have, want), name


# ----------------------------------------------------------------------------------------- one operator after the other


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A node: its inputs (None: left out), its attributes, and how many outputs it has."""

    op_type: str
    inputs: Sequence[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1
    domain: str = MS
    opset: int = 18

    def node(self, prefix: str = "") -> tuple[NodeProto, dict[str, Any]]:
        """The node, and what to feed it."""
        names = [f"{prefix}x{i}" if v is not None else "" for i, v in enumerate(self.inputs)]
        outputs = [f"{prefix}y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op_type, names, outputs, domain=self.domain, **self.attrs)
        return node, {n: v for n, v in zip(names, self.inputs, strict=True) if n}

    def model(self) -> tuple[ModelProto, dict[str, Any]]:
        node, feeds = self.node()
        return model([node], feeds, node.output, opset=self.opset), feeds


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


CASES = [
    # The shapes of what they give depend on data.
    Case("Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)], outputs=3),
    Case(
        "BifurcationDetector",
        [ints(1, 5, 3, 4, 2, 6), ints(1, 5), ints(0), ints(3, 4, 2, 7, 8, 9, 1)],
        outputs=2,
    ),
    Case("BifurcationDetector", [ints(1, 5, 3, 4, 2, 6), ints(1), ints(0), None], outputs=2),
    Case("DynamicTimeWarping", [floats(1, 5, 4)]),
    Case("Pad", [floats(2, 3), ints(0, 1, 2, 0), np.array([7], np.float32)], {"mode": "constant"}),
    Case(
        "ConvTransposeWithDynamicPads",
        [floats(1, 1, 3, 3), floats(1, 2, 3, 3), ints(0, 1, 0, 1), None],
        {"kernel_shape": [3, 3], "strides": [2, 2]},
    ),
    # They take strings and give strings.
    Case(
        "Tokenizer",
        [strings("to be or", "not")],
        {"mark": 1, "pad_value": "#", "mincharnum": 1, "separators": [" "]},
    ),
    # Types follow from types.
    Case("MurmurHash3", [strings("a", "bc")], {"positive": 0, "seed": 3}),
    Case("NGramRepeatBlock", [np.array([[1, 2, 1, 2]], np.int64), floats(1, 5)], {"ngram_size": 2}),
    Case("UnfoldTensor", [floats(2, 8)], {"dim": 1, "size": 3, "step": 2}),
    Case(
        "CropAndResize",
        [
            floats(1, 2, 6, 6),
            np.array([[0.1, 0.2, 0.8, 0.9]], np.float32),
            np.zeros(1, np.int32),
            np.array([3, 4], np.int32),
        ],
        {"mode": "bilinear"},
    ),
    Case(
        "MaxpoolWithMask",
        [floats(1, 1, 4, 4), np.ones((1, 1, 4, 4), np.int32)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    Case("MatMulInteger16", [np.array([[1, -2]], np.int16), np.array([[300], [4]], np.int16)]),
    Case("GatedAdd", [floats(2, 3, 4), floats(2, 3, 4), floats(2, 3, 1)]),
    Case("GatedRMSNorm", [floats(2, 3, 8), floats(8), floats(2, 3, 8)]),
    Case("CausalConvWithState", [floats(1, 3, 6), floats(3, 1, 4), None, None], outputs=2),
    Case(
        "NGramHashMapping",
        [np.array([[1, 2, 3, 4]], np.int64), ints(3, 5), ints(97)],
        {"pad_id": 0, "n_head_per_ngram": 1, "max_ngram_size": 2},
        outputs=1,
    ),
    Case(
        "MoE",
        [floats(4, 8), floats(4, 2), floats(2, 16, 8), None, floats(2, 8, 16)],
        {"k": 1, "activation_type": "relu"},
    ),
]


def test_operators_that_only_it_knows() -> None:
    """One model has them all: they have nothing to do with each other."""
    nodes = [case.node(f"{case.op_type} {i} ") for i, case in enumerate(CASES)]
    feeds = {name: value for _, given in nodes for name, value in given.items()}
    agree(model([n for n, _ in nodes], feeds, [o for n, _ in nodes for o in n.output]), feeds)


def test_an_operator_that_onnx_has_dropped() -> None:
    """What it gives depends on data."""
    agree(*Case("DynamicSlice", [floats(4, 5), ints(1, 0), ints(3, 4)], domain="", opset=9).model())


# ------------------------------------------------------------------------- nodes that native code knows, and refuses


def statistics(*shape: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    return [floats(*shape), floats(*shape), floats(*shape), np.abs(floats(*shape)) + 1]


REFUSED = {
    "an attribute": (
        Case("BatchNormalization", [floats(2, 3, 4), *statistics(3, 4)], {"spatial": 0}, domain="", opset=7),
        "spatial=0 is not supported",
    ),
    "a number of inputs": (Case("Sum", [floats(2, 3) for _ in range(70)], domain=""), "the limit is 64"),
    "a pattern of strings": (
        Case("RegexFullMatch", [strings("abc", "ab1")], {"pattern": "[[:alpha:]]+"}, domain="", opset=20),
        "named class of characters",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_that_native_code_refuses(name: str) -> None:
    case, reason = REFUSED[name]
    agree(*case.model(), match=reason)


def test_a_model_of_an_opset_before_ours() -> None:
    """Reshape had its shape as an attribute once, and MatMul has been as it is."""
    nodes = [
        helper.make_node("Reshape", ["x"], ["r"], shape=[3, -1]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    feeds = {"x": floats(2, 6), "w": floats(4, 2)}
    agree(model(nodes, feeds, ["y"], opset=4), feeds, match="opset 4; supported are 7 to 28")


def test_an_opset_that_nobody_has() -> None:
    feeds = {"x": floats(2)}
    m = model([helper.make_node("Relu", ["x"], ["y"])], feeds, ["y"], opset=99)
    with pytest.raises(tw.UserError, match=r"ONNX Runtime knows ONNX up to opset \d+, and this is of 99"):
        tw.load(m, plugins=("onnxruntime",))


# ------------------------------------------------------------------------------------------------------------ in models


def test_it_stands_between_native_programs_and_shapes_change_from_run_to_run() -> None:
    w = floats(6, 5)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Round", ["product"], ["rounded"]),
        helper.make_node("Reshape", ["rounded", "flat"], ["line"]),
        helper.make_node("Unique", ["line"], ["values", "places", "counts"], domain=MS),
        helper.make_node("Gather", ["line", "places"], ["again"]),
        helper.make_node("Cast", ["counts"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["values", "numbers"], ["y"]),
    ]
    feeds = {"x": floats(4, 6)}
    m = model(nodes, feeds, ["y", "again"], {"w": w, "flat": ints(-1)})
    with tw.load(m, threads=1, plugins=("onnxruntime",), placement="greedy") as session:
        for scale in (1, 3):
            x = {"x": scale * feeds["x"]}
            for (name, have), want in zip(session.run(x).items(), by_engine(m, x), strict=True):
                equal(name, have, want)


def test_strings_go_in_and_numbers_come_out() -> None:
    nodes = [
        helper.make_node(
            "Tokenizer", ["s"], ["words"], domain=MS, mark=0, pad_value="", mincharnum=1, separators=[" "]
        ),
        helper.make_node("StringConcat", ["words", "mark"], ["marked"]),
        helper.make_node("MurmurHash3", ["marked"], ["hash"], domain=MS, positive=1),
        helper.make_node("Cast", ["hash"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Mod", ["wide", "buckets"], ["bucket"]),
        helper.make_node("Gather", ["table", "bucket"], ["y"]),
    ]
    feeds = {"s": strings("the quick brown fox", "jumps over")}
    constants = {"mark": np.array("!", object), "buckets": ints(50), "table": floats(50, 4)}
    agree(model(nodes, feeds, ["y", "marked"], constants, opset=20), feeds)


def test_it_is_known_inside_of_loops() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Concat", ["v", "step"], ["longer"], axis=0),
            helper.make_node("Unique", ["longer"], ["kept", "where", "counts"], domain=MS),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("kept", TensorProto.FLOAT, None),
        ],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    feeds = {"x": np.array([1, 1, 2], np.float32), "step": np.array([2, 5], np.float32), "n": np.array(3)}
    m = model([loop], feeds, ["y"])
    agree(m, feeds)


def decoder(vocabulary: int, heads: int, width: int) -> GraphProto:
    """Each token says what comes next; keys and values are kept for nobody. Its weights are those of the main graph."""
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["token"]),
        helper.make_node("MatMul", ["token", "head"], ["logits"]),
        helper.make_node("Gather", ["cached", "input_ids"], ["flat"]),
        helper.make_node("Reshape", ["flat", "parts"], ["pairs"]),
        helper.make_node("Transpose", ["pairs"], ["new"], perm=[2, 0, 3, 1, 4]),
        helper.make_node("Concat", ["past_0", "new"], ["present_0"], axis=3),
    ]
    names = ("input_ids", "position_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT32, ["batch", None]) for n in names]
    past, present = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, "batch", heads, None, width])
        for n in ("past_0", "present_0")
    )
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", None, vocabulary])
    return helper.make_graph(nodes, "decoder", [*inputs, past], [logits, present])


def test_a_search_whose_decoder_is_a_subgraph_of_the_node() -> None:
    vocabulary, heads, width = 11, 2, 4
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], to=TensorProto.INT32),
        helper.make_node(
            "GreedySearch",
            ["ids", "longest", "shortest"],
            ["found"],
            domain=MS,
            decoder=decoder(vocabulary, heads, width),
            eos_token_id=10,
            pad_token_id=10,
            vocab_size=vocabulary,
            model_type=0,
        ),
        helper.make_node("Mul", ["found", "found"], ["y"]),
    ]
    constants = {
        "embedding": floats(vocabulary, 8),
        "head": floats(8, vocabulary),
        "cached": floats(vocabulary, 2 * heads * width),
        "parts": ints(0, 0, 2, heads, width),
        "longest": np.array([9], np.int32),
        "shortest": np.array([1], np.int32),
    }
    feeds = {"x": np.array([[1, 2, 3], [4, 5, 6]])}
    agree(model(nodes, feeds, ["y"], constants), feeds)


def test_all_that_it_does_not_know_is_named_with_the_reasons() -> None:
    nodes = [
        helper.make_node("Unique", ["x"], ["u", "where", "counts"], domain=MS),
        helper.make_node("Nonesuch", ["u"], ["n"], domain=MS),
        helper.make_node("Unheard", ["x"], ["y"]),
    ]
    feeds = {"x": floats(4)}
    with pytest.raises(tw.UserError) as error:
        tw.load(model(nodes, feeds, ["n", "y"]), plugins=("onnxruntime",))
    first, *rest = str(error.value).splitlines()
    assert first == "2 nodes of the model are not supported:"
    for line, name in zip(rest, ("Nonesuch", "Unheard"), strict=True):
        assert f"'{name}'" in line and f"ONNX Runtime has no CPU kernel for {name}" in line


# ------------------------------------------------------------------------------------------------------- short elements


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4"],
)
def test_elements_that_numpy_does_not_have_go_in_and_come_out(dtype: str) -> None:
    """Also infinity, and numbers that are not."""
    short = np.dtype(getattr(ml_dtypes, dtype))
    bits = np.arange(256 if short.itemsize == 1 else 1 << 16).astype(
        np.uint8 if short.itemsize == 1 else np.uint16
    )
    values = np.arange(16).astype(np.int8).astype(short) if "int4" in dtype else bits.view(short)
    number = helper.np_dtype_to_tensor_dtype(short)
    exact = {"saturate": 0} if "float8" in dtype else {}
    run = OnnxRuntime().host(helper.make_node("Cast", ["x"], ["y"], to=number, **exact), {"": 25})
    assert not isinstance(run, No)
    (got,) = run([values])
    assert isinstance(got, np.ndarray) and got.dtype == short
    assert np.array_equal(got.astype(np.float32), values.astype(np.float32), equal_nan=True)


def test_a_region_takes_and_gives_bfloat16() -> None:
    x = floats(2, 8).astype(ml_dtypes.bfloat16)
    m = model([helper.make_node("Transpose", ["x"], ["y"])], {"x": x}, ["y"])
    made = tw.compile(m, plugins=("onnxruntime",), placement="greedy", strict=True)
    assert len(made.artifact.regions) == 1
    got = made.session(1, strict=True).run({"x": x})["y"]
    assert got.dtype == x.dtype and np.array_equal(got, x.T)
