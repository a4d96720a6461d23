"""Are two flow graphs the same? Expressions and buffers are interned, so the fields of nodes compare by value."""

from dataclasses import fields
from typing import Any

from tilewright.gir.flow_graph import FlowGraph


def same_flow_graph(a: FlowGraph, b: FlowGraph) -> bool:
    """The same name, parameters, axes in the same order, and nodes."""
    if _fields(a, "nodes") != _fields(b, "nodes") or list(a.extents) != list(b.extents):
        return False
    return [_fields(n) for n in a.nodes] == [_fields(n) for n in b.nodes]


def _fields(value: Any, *but: str) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in but}
