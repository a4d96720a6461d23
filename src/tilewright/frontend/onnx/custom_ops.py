"""Custom ops: nodes that native code does not know, or refuses. Plugins are asked to run them.

First for the types of what the node gives (`Plugin.infer`): if one says, the node is a part of a native program, as
others of the plugin are. Then for what runs the node by itself, between native programs (`Plugin.host`), on values that
are there: their types need not be known before, and they may be sequences, strings or nothing.

What a plugin says of a custom op is all that is known of it. It may be random, so it is never evaluated ahead of time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper

from tilewright.frontend.onnx.file import OverLimit, TensorReader
from tilewright.frontend.onnx.functions import Functions
from tilewright.frontend.onnx.names import all_nodes, label, subgraphs
from tilewright.frontend.onnx.nodes import NodeSite, nonsense
from tilewright.graph.external import CustomNode, HostRun, No, Plugin
from tilewright.ops.hostop import HostValue, Subgraph
from tilewright.ops.opdef import TensorType
from tilewright.support.errors import UserError

_SHOWN = 100  # unsupported nodes listed in a message

RunNode: TypeAlias = Callable[[Sequence[HostValue], Mapping[str, Subgraph]], Sequence[HostValue]]


@dataclass(frozen=True, slots=True, eq=False)
class Hosted:
    """What a plugin runs a node with. It takes the node's inputs, and then what its bodies use of the values around
    them, by name in alphabetical order; it has no use for our bodies.
    """

    plugin: str
    run: RunNode


@dataclass(frozen=True, slots=True, eq=False)
class CustomOps:
    """The plugins that a model may use, in the order in which they are asked."""

    plugins: Sequence[Plugin]
    functions: Functions
    reader: TensorReader
    _hosted: dict[NodeSite, Hosted] = field(
        default_factory=dict[NodeSite, Hosted]
    )  # made once, whatever the types

    def __bool__(self) -> bool:
        return bool(self.plugins)

    def against(self, step: NodeSite) -> str | None:
        """What plugins have against a node, before its types are known; None if one may take it. Those that know
        operators only by types (they say so by having `infer`, and no `host`) may.
        """
        reasons: list[str] = []
        for plugin in self.plugins:
            kind = type(plugin)
            if kind.host is Plugin.host and kind.infer is not Plugin.infer:
                return None
            answer = plugin.host(step.node, step.opsets)
            if not isinstance(answer, No):
                return None
            reasons.append(answer.reason)
        return "; ".join(dict.fromkeys(reasons))

    def types(self, node: CustomNode) -> Sequence[TensorType] | No:
        """What the outputs of a node are that are not left out."""
        wanted = sum(map(bool, node.node.output))
        reasons: list[str] = []
        for plugin in self.plugins:
            found = plugin.infer(node)
            if not isinstance(found, No):
                if len(found) != wanted:
                    raise UserError(f"{plugin.name} has types for {len(found)} outputs of {wanted}")
                return found
            reasons.append(found.reason)
        return No("; ".join(dict.fromkeys(reasons)))

    def host(self, step: NodeSite) -> Hosted | No:
        """Who runs a node by itself."""
        found = self._hosted.get(step)
        if found is not None:
            return found
        bodies = [n for g in subgraphs(step.node).values() for n in all_nodes(g.node)]
        if any(self.functions.own(n) is not None for n in bodies):
            return No("plugins do not get the functions of the model, which its subgraphs call")
        node = self.self_contained(step.node)
        reasons: list[str] = []
        for plugin in self.plugins:
            answer = plugin.host(node, step.opsets)
            if not isinstance(answer, No):
                made = Hosted(plugin.name, _guarded(plugin.name, node, answer))
                if step.depth == 0:  # nodes inside of functions are made anew for each set of types
                    self._hosted[step] = made
                return made
            reasons.append(answer.reason)
        return No("; ".join(dict.fromkeys(reasons)))

    def instead(self, step: NodeSite, run: RunNode) -> RunNode:
        """What runs a node of the host; should it refuse the values, a plugin runs it instead."""

        def either(inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> Sequence[HostValue]:
            try:
                with nonsense(step):
                    return run(inputs, bodies)
            except OverLimit:
                raise
            except UserError as e:
                found = self.host(step)
                try:
                    if isinstance(found, No):
                        raise UserError(found.reason)
                    return found.run(inputs, {})
                except UserError as theirs:
                    raise UserError(f"{e.message}; {theirs.message}", hint=e.hint) from e

        return either

    def self_contained(self, node: NodeProto) -> NodeProto:
        """The node with the tensors of its attributes inside of it, which may be in files."""
        if not any(a.type in (AttributeProto.TENSOR, AttributeProto.GRAPH) for a in node.attribute):
            return node
        out = NodeProto()
        out.CopyFrom(node)
        for a in out.attribute:
            if a.type == AttributeProto.TENSOR:
                a.t.CopyFrom(numpy_helper.from_array(self.reader.read(a.t), a.t.name))
            elif a.type == AttributeProto.GRAPH:
                a.g.CopyFrom(self._self_contained_graph(a.g))
        return out

    def _self_contained_graph(self, graph: GraphProto) -> GraphProto:
        out = GraphProto()
        out.CopyFrom(graph)
        for t in out.initializer:
            if t.data_location == TensorProto.EXTERNAL:
                t.CopyFrom(numpy_helper.from_array(self.reader.read(t), t.name))
        for n in out.node:
            n.CopyFrom(self.self_contained(n))
        return out


def _guarded(plugin: str, node: NodeProto, run: HostRun) -> RunNode:
    """A plugin's function, whose failures are UserErrors: it gets values that nobody has checked."""

    def guarded(inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> Sequence[HostValue]:
        try:
            results = run(inputs)
        except UserError:
            raise
        except Exception as e:
            raise UserError(f"the plugin {plugin} fails: {e}") from e
        if len(results) != len(node.output):
            raise UserError(
                f"the plugin {plugin} gives {len(results)} results for {len(node.output)} outputs"
            )
        return results

    return guarded


def unsupported_node(step: NodeSite, reasons: str) -> str:
    """What to say of a node that nothing can run."""
    version = step.opsets.get(step.domain, "not imported")
    what = f"{label(step.node.op_type)} (domain {step.domain or 'ai.onnx'}, opset {version}) in {step.title}"
    return f"{what}: {reasons}" if reasons else what


def unsupported(refusals: Iterable[str]) -> UserError:
    """All nodes that nothing can run."""
    found = list(refusals)
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return UserError(
        "\n  ".join([f"{len(found)} nodes of the model are not supported:", *found[:_SHOWN], *more])
    )
