"""Nodes that native code does not know, or refuses, and that plugins run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

import tilewright as tw
from tests.toy_plugin import Numpy
from tilewright.frontend.onnx.names import free_names, subgraphs
from tilewright.graph.external import CustomNode, HostRun, No, Plugin
from tilewright.ops.hostop import HostValue
from tilewright.ops.opdef import TensorType
from tilewright.plugins.registry import register_plugin, unregister_plugin

RNG = np.random.default_rng(23)
DOMAIN = "org.example"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


# ------------------------------------------------------------------------------------------------------------- plugins


def _halves(x: HostValue) -> Sequence[HostValue]:
    assert isinstance(x, np.ndarray)
    return [np.array_split(x, 2)]


def _longest(strings: HostValue, sequence: HostValue) -> Sequence[HostValue]:
    assert isinstance(strings, np.ndarray) and isinstance(sequence, list)
    found = max(strings.reshape(-1), key=len)
    return [np.array([found], object), np.array([len(found) + len(sequence)], np.float32)]


def _picked(x: HostValue, low: HostValue = None) -> Sequence[HostValue]:
    assert isinstance(x, np.ndarray)
    least = 0.0 if low is None else float(np.asarray(low).item())
    return [
        x[x > least],
        None,
        np.array([np.sum(x > least)], np.int64),
    ]  # those that are left out may be None


class Hosting(Numpy):
    """Runs a few operators by itself; `asked` has what it was asked about, and `seen` what it was given."""

    name = "hosting"
    functions: ClassVar[Mapping[str, Callable[..., Sequence[HostValue]]]] = {
        "Halves": _halves,
        "Longest": _longest,
        "Picked": _picked,
    }

    def __init__(self) -> None:
        self.seen: list[Sequence[HostValue]] = []

    def host(self, node: NodeProto, opsets: Mapping[str, int]) -> HostRun | No:
        assert opsets[DOMAIN] == 1
        if node.op_type == "Scale":  # its body says by what, by the name that it has outside
            return self._scaled(node)
        found = self.functions.get(node.op_type)
        if found is None:
            return No(f"hosting has never heard of {node.op_type}")

        def run(inputs: Sequence[HostValue]) -> Sequence[HostValue]:
            self.seen.append(inputs)
            return found(*inputs)[: len(node.output)]

        return run

    def _scaled(self, node: NodeProto) -> HostRun:
        (body,) = subgraphs(node).values()
        names = sorted(free_names(node))
        (factor,) = body.node[0].input

        def run(inputs: Sequence[HostValue]) -> Sequence[HostValue]:
            x, *captured = inputs
            return [np.asarray(x) * np.asarray(captured[names.index(factor)])]

        return run


class Typing(Numpy):
    """Knows operators only when it is given types."""

    name = "typing"

    def infer(self, node: CustomNode) -> Sequence[TensorType] | No:
        return No(f"typing has no {node.node.op_type} for {', '.join(map(str, node.inputs))}")


@pytest.fixture
def hosting() -> Iterator[Hosting]:
    yield from _registered(Hosting())


@pytest.fixture
def typing() -> Iterator[Typing]:
    yield from _registered(Typing())


def _registered(plugin: Any) -> Iterator[Any]:
    assert isinstance(plugin, Plugin)
    register_plugin(plugin)
    yield plugin
    unregister_plugin(plugin.name)


# -------------------------------------------------------------------------------------------------------------- models


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    """One of the operators above."""
    return helper.make_node(op_type, inputs, outputs, name=f"the {op_type}", domain=DOMAIN, **attributes)


def tensor(name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opsets: Mapping[str, int] | None = None,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    versions = {"": 18, DOMAIN: 1, "com.microsoft": 1, "local": 1} if opsets is None else opsets
    imports = [helper.make_opsetid(d, v) for d, v in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def floats(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return RNG.standard_normal(shape).astype(np.float32)


# ----------------------------------------------------------------------------------------- nodes that run by themselves


def test_native_code_runs_what_comes_before_and_after(hosting: Hosting) -> None:
    w = floats(6, 5)
    m = model(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            node("Picked", ["a", ""], ["picked", "", "count"]),
            helper.make_node("Exp", ["picked"], ["y"]),
            helper.make_node("Add", ["count", "count"], ["twice"]),
        ],
        [tensor("x", (4, 6))],
        ["y", "twice"],
        {"w": w},
    )
    with tw.load(m, threads=1, plugins=("hosting",), placement="greedy") as session:
        for _ in range(3):  # each has another number of positive ones
            x = floats(4, 6)
            got, a = session.run({"x": x}), x @ w
            assert np.allclose(got["y"], np.exp(a[a > 0]), rtol=1e-5)
            assert got["twice"] == 2 * np.sum(a > 0)
    assert all(low is None for _, low in hosting.seen)


def test_it_takes_and_gives_sequences_and_strings(hosting: Hosting) -> None:
    m = model(
        [
            node("Halves", ["x"], ["parts"]),
            node("Longest", ["s", "parts"], ["word", "length"]),
            helper.make_node("ConcatFromSequence", ["parts"], ["joined"], axis=0),
            helper.make_node("Mul", ["joined", "length"], ["y"]),
        ],
        [tensor("x", (5, 2)), tensor("s", (3,), TensorProto.STRING)],
        ["word", "y", "parts"],
    )
    x, s = floats(5, 2), np.array(["ab", "abcd", ""], object)
    got = tw.load(m, threads=1, plugins=("hosting",)).run({"x": x, "s": s})
    assert got["word"].tolist() == ["abcd"]
    assert np.array_equal(got["y"], x * 6)
    assert [p.shape for p in got["parts"]] == [(3, 2), (2, 2)]


def test_it_gets_what_its_subgraphs_use_of_the_values_around(hosting: Hosting) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["factor"], ["out"])], "body", [], [tensor("out", ())]
    )
    m = model(
        [
            helper.make_node("Relu", ["f"], ["factor"]),
            node("Scale", ["x"], ["scaled"], body=body),
            helper.make_node("Neg", ["scaled"], ["y"]),
        ],
        [tensor("x", (3,)), tensor("f", (1,))],
        ["y"],
    )
    x = floats(3)
    got = tw.load(m, plugins=("hosting",)).run({"x": x, "f": np.array([2.5], np.float32)})
    assert np.allclose(got["y"], -2.5 * x)


def test_it_gets_tensors_inside_of_the_node_that_were_in_the_file(hosting: Hosting, tmp_path: Path) -> None:
    big = floats(1 << 15)  # large enough to be left in the file

    class Sums(Hosting):
        def host(self, node: NodeProto, opsets: Mapping[str, int]) -> HostRun | No:
            (value,) = (a.t for a in node.attribute)
            return lambda inputs: [np.asarray(inputs[0]) + numpy_helper.to_array(value)]

    register_plugin(Sums())
    attribute = helper.make_attribute("value", numpy_helper.from_array(big))
    custom_op = node("AddConstant", ["x"], ["y"])
    custom_op.attribute.append(attribute)
    path = tmp_path / "model.onnx"
    path.write_bytes(model([custom_op], [tensor("x", big.shape)], ["y"]).SerializeToString())
    x = floats(*big.shape)
    with tw.load(path, plugins=("hosting",)) as session:
        assert np.array_equal(session.run({"x": x})["y"], x + big)


def test_it_runs_inside_of_branches_and_loops(hosting: Hosting) -> None:
    picked = helper.make_graph(
        [node("Picked", ["x"], ["p"]), helper.make_node("Neg", ["p"], ["n"])], "then", [], [tensor("n", (0,))]
    )
    whole = helper.make_graph([helper.make_node("Identity", ["x"], ["i"])], "else", [], [tensor("i", (0,))])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=picked, else_branch=whole)
    m = model([choice], [tensor("x", (9,)), tensor("c", (), TensorProto.BOOL)], ["y"])
    x = floats(9)
    with tw.load(m, plugins=("hosting",)) as session:
        assert np.array_equal(session.run({"x": x, "c": np.array(True)})["y"], -x[x > 0])
        assert np.array_equal(session.run({"x": x, "c": np.array(False)})["y"], x)


def test_it_is_not_run_before_its_time(hosting: Hosting) -> None:
    """Its result might be another one each time, for all we know."""
    m = model([node("Picked", ["x"], ["y"])], [], ["y"], {"x": np.array([1, -1, 2], np.float32)})
    with tw.load(m, plugins=("hosting",)) as session:
        assert hosting.seen == []
        session.run({})
        assert session.run({})["y"].tolist() == [1, 2]
    assert len(hosting.seen) == 2


def test_a_failure_names_the_node_and_the_plugin(hosting: Hosting) -> None:
    m = model([node("Halves", ["x"], ["y"])], [tensor("x", (2,), TensorProto.STRING)], ["y"])
    m.graph.node[0].op_type = "Longest"
    with pytest.raises(tw.UserError, match=r"the plugin hosting fails: .*\n  at: node 'the Halves': Longest"):
        tw.load(m, plugins=("hosting",)).run({"x": np.array(["a", "b"], object)})


def test_the_model_cannot_be_one_program(hosting: Hosting) -> None:
    m = model([node("Halves", ["x"], ["y"])], [tensor("x", (2,))], ["y"])
    with pytest.raises(tw.UserError, match="the plugin hosting runs it"):
        tw.compile(m, plugins=("hosting",))


# ------------------------------------------------------------------------------------------------- what nobody can run


def lacking() -> ModelProto:
    """One that is known among three that are not, one of them in a branch."""
    branch = helper.make_graph([node("Third", ["a"], ["t"])], "branch", [], [tensor("t", ())])
    return model(
        [
            node("First", ["x"], ["a"]),
            node("Halves", ["x"], ["h"]),
            node("Second", ["a"], ["b"]),
            helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=branch),
        ],
        [tensor("x", (4,)), tensor("c", (), TensorProto.BOOL)],
        ["b", "h", "d"],
    )


def lines(error: pytest.ExceptionInfo[tw.UserError]) -> list[str]:
    return str(error.value).splitlines()


def test_without_plugins_all_are_named_at_once() -> None:
    with pytest.raises(tw.UserError) as error:
        tw.load(lacking())
    first, *rest = lines(error)
    assert first == "5 nodes of the model are not supported:"
    assert [line.split()[0] for line in rest] == ["'First'", "'Halves'", "'Second'", "'Third'", "'Third'"]
    assert "in node 'the First'" in rest[0]


def test_with_plugins_the_others_are_named_at_once_and_why(hosting: Hosting) -> None:
    with pytest.raises(tw.UserError) as error:
        tw.load(lacking(), plugins=("hosting",))
    first, *rest = lines(error)
    assert first == "4 nodes of the model are not supported:"
    assert (
        "'First' (domain org.example, opset 1) in node 'the First': hosting has never heard of First"
        in rest[0]
    )
    assert [line.split()[0] for line in rest] == ["'First'", "'Second'", "'Third'", "'Third'"]


def test_plugins_that_must_know_types_are_told_them_and_all_are_named(typing: Typing) -> None:
    m = model(
        [node("First", ["x"], ["a"]), helper.make_node("Neg", ["x"], ["n"]), node("Second", ["n"], ["b"])],
        [tensor("x", (4,))],
        ["a", "b"],
    )
    with pytest.raises(tw.UserError) as error:
        tw.load(m, plugins=("typing",))
    first, one, two = lines(error)
    assert first == "2 nodes of the model are not supported:"
    assert "'First'" in one and "typing has no First for f32[4]" in one
    assert "'Second'" in two and "typing has no Second for f32[4]" in two


def test_subgraphs_that_call_functions_of_the_model_are_refused(hosting: Hosting) -> None:
    body = helper.make_graph(
        [helper.make_node("Own", ["factor"], ["out"], domain="local")], "body", [], [tensor("out", ())]
    )
    nodes = [node("Scale", ["x"], ["y"], body=body)]
    m = model(nodes, [tensor("x", (3,)), tensor("factor", (1,))], ["y"])
    identity = helper.make_node("Identity", ["a"], ["b"])
    m.functions.append(
        helper.make_function("local", "Own", ["a"], ["b"], [identity], [helper.make_opsetid("", 18)])
    )
    with pytest.raises(tw.UserError, match="do not get the functions of the model"):
        tw.load(m, plugins=("hosting",))
