"""Graphs as text, for people: `tilewright inspect`, golden tests and messages.

    graph mlp(x: f32[1, 8]):
        constant w: f32[8, 4]
        h: f32[1, 4] = MatMul(x, w)
        y: f32[1, 4] = Softmax[axis=1](h)
        return y

Names that are not plain are quoted. Constants of up to eight elements show their value.
"""

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

from tilewright.graph.graph import Graph, Node, Value
from tilewright.ops.opdef import Op
from tilewright.support.arrays import Array

_PLAIN = re.compile(r"[\w./:\-]+", re.ASCII)
_SHOWN = 8  # elements


def print_graph(graph: Graph) -> str:
    lines = [f"graph {_name(graph.name)}({', '.join(map(_typed, graph.inputs))}):"]
    lines += [f"    constant {_typed(v)}{_content(array)}" for v, array in graph.constants.items()]
    lines += [f"    {print_node(n)}" for n in graph.nodes]
    returned = [
        _name(v.name) if v.name == name else f"{_name(name)}={_name(v.name)}"
        for v, name in zip(graph.outputs, graph.output_names, strict=True)
    ]
    lines.append(f"    return {', '.join(returned)}")
    return "\n".join(lines) + "\n"


def print_node(node: Node) -> str:
    outputs = ", ".join(map(_typed, node.outputs))
    return f"{outputs} = {print_op(node.op)}({_names(node.inputs)})"


def print_op(op: Op) -> str:
    """The op and its attributes: `Softmax[axis=1]`."""
    attributes = [(f.name, getattr(op, f.name)) for f in fields(op)] if is_dataclass(op) else []
    inside = ", ".join(f"{name}={value!r}" for name, value in attributes)
    return f"{type(op).__name__}[{inside}]" if inside else type(op).__name__


def _content(array: Array) -> str:
    return f" = {array.tolist()}" if array.size <= _SHOWN else ""


def _typed(v: Value) -> str:
    return f"{_name(v.name)}: {v.type}"


def _names(values: Sequence[Value]) -> str:
    return ", ".join(_name(v.name) for v in values)


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else repr(name)
