"""Graphs with operators that are left to PyTorch, in parts: what is supported between them becomes native programs."""

from collections.abc import Callable
from typing import Any

from tilewright.dynamo.explain import GraphReport, record_graph, say_left
from tilewright.dynamo.program import GraphProgram
from tilewright.dynamo.torch_module import constant_array, torch_module
from tilewright.frontend.torch.convert import UnsupportedCall, convert_graph, operator_name

# Work that is not worth a program of its own: views, and arithmetic on sizes.
_CHEAP = frozenset(
    {
        "operator.getitem",
        *("operator.add", "operator.sub", "operator.mul", "operator.floordiv", "operator.mod"),
        *("aten.view.default", "aten._unsafe_view.default", "aten.permute.default", "aten.transpose.int"),
        *("aten.t.default", "aten.expand.default", "aten.unsqueeze.default", "aten.squeeze.dim"),
        *("aten.slice.Tensor", "aten.select.int", "aten.alias.default", "aten.detach.default"),
        *("aten.sym_size.int", "aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int"),
    }
)


def compile_parts(module: Any, constants: frozenset[int]) -> Callable[..., Any]:
    """A function that runs the graph: one program, or the graph's own code with programs in it."""
    calls = [n for n in module.graph.nodes if n.op.startswith("call_")]
    report = record_graph(GraphReport(len(calls)))
    left = unsupported_calls(module)
    if not left and any(operator_name(n.target) not in _CHEAP for n in calls):
        report.programs = 1
        return GraphProgram(module, constants, report)
    if not left:
        report.why_eager = "nothing is computed, elements are only viewed in other shapes"
        return module.forward
    report.left = left
    say_left(left)
    return _with_programs(module, constants, report, {c.node for c in left})


def unsupported_calls(module: Any) -> tuple[UnsupportedCall, ...]:
    """Those that have no ONNX form; with a call whose further results somebody reads, all of its results."""
    found = convert_graph(module.graph, lambda name: _attribute(module, name), constant_array).unsupported
    reasons = {c.node: c for c in found}
    for node in module.graph.nodes:
        if node.name in reasons and operator_name(node.target) == "operator.getitem":
            source = node.args[0]
            why = UnsupportedCall(source.name, operator_name(source.target), reasons[node.name].reason)
            reasons.setdefault(source.name, why)
    for node in module.graph.nodes:
        if operator_name(node.target) == "operator.getitem" and node.args[0].name in reasons:
            reasons.setdefault(
                node.name, UnsupportedCall(node.name, "operator.getitem", reasons[node.args[0].name].reason)
            )
    # an item of what PyTorch makes is no operator to be named
    return tuple(reasons.values())


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _with_programs(
    module: Any, constants: frozenset[int], report: GraphReport, left: set[str]
) -> Callable[..., Any]:
    partitioner = torch_module("torch.fx.passes.infra.partitioner")
    support = torch_module("torch.fx.passes.operator_support")

    class Support(support.OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Any) -> bool:
            return node.op == "call_function" and node.name not in left

    placeholders = [n.name for n in module.graph.nodes if n.op == "placeholder"]
    fixed = {placeholders[i] for i in constants}
    finder = partitioner.CapabilityBasedPartitioner(module, Support(), allows_single_node_partition=True)
    parts = [p for p in finder.propose_partitions() if _is_worthwhile(p)]
    fused = finder.fuse_partitions(parts)
    names: list[str] = []
    for node in fused.graph.nodes:
        if node.op == "call_module" and node.target.startswith("fused_"):
            own = frozenset(i for i, a in enumerate(node.args) if getattr(a, "name", "") in fixed)
            setattr(fused, node.target, _as_module(GraphProgram(getattr(fused, node.target), own, report)))
            names.append(node.target)
    report.programs = len(names)
    return fused.forward


def _is_worthwhile(part: Any) -> bool:
    return any(operator_name(n.target) not in _CHEAP for n in part.nodes)


def _as_module(program: GraphProgram) -> Any:
    class Part(torch_module("torch.nn").Module):
        def forward(self, *args: Any) -> Any:
            return program(*args)

    return Part()
