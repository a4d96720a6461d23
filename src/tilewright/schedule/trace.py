"""Traces: the steps that make a scheduled Module from an unscheduled one.

The text of a trace has one step per line, as it is written in Python:

    Split(loop='C_i', factors=(None, 6))
    Reorder(loops=('C_k', 'C_i_1'))

It is data, not code: `parse_trace` reads it without evaluating anything, and knows only steps (`schedule/steps/`) and
the classes in `VALUES`. Blank lines and comments are skipped.
"""

import ast
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import TypeAlias

from tilewright.ir import layout
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope
from tilewright.schedule.step import Step
from tilewright.schedule.steps import SampleCategorical, step_classes
from tilewright.support.errors import UserError
from tilewright.tir.func import Module

Trace: TypeAlias = tuple[Step, ...]

# What may stand inside a step.
VALUES: tuple[type, ...] = (
    layout.Layout,
    layout.SplitDim,
    layout.ReorderDims,
    layout.FuseDims,
    layout.PadDim,
    layout.CropDim,
    layout.UnfoldDim,
    layout.FoldDim,
)
ENUMS: tuple[type[Enum], ...] = (Scope, DType)
HOLD_STEPS: tuple[type[Step], ...] = (SampleCategorical,)  # inside these stand steps

# As older traces, which databases and files keep, spell the primitives of layouts.
_FORMER = {
    "Split": layout.SplitDim,
    "Reorder": layout.ReorderDims,
    "Fuse": layout.FuseDims,
    "Pad": layout.PadDim,
}
LAYOUTS = {c.__name__: c for c in VALUES}
_VALUES = LAYOUTS | _FORMER
_ENUMS = {c.__name__: c for c in ENUMS}


def replay(module: Module, trace: Trace) -> Module:
    """Apply the steps in order."""
    for step in trace:
        module = step.apply(module)
    return module


def print_trace(trace: Trace) -> str:
    return "".join(f"{step}\n" for step in trace)


def parse_trace(text: str) -> Trace:
    """The trace that prints like this; `UserError` with the line if there is none."""
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        raise UserError(f"the trace is not in Python syntax: {e.msg}", where=f"line {e.lineno}") from None
    return tuple(_step(node) for node in tree.body)


def parse_layout(text: str) -> layout.Layout:
    """The layout that prints like this; `UserError` if there is none."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError as e:
        raise UserError(f"the layout is not in Python syntax: {e.msg}", where=text) from None
    found = parse_value(node, _VALUES)
    if not isinstance(found, layout.Layout):
        raise UserError("this is not a layout", where=text, hint="for example Layout((SplitDim(1, 16),))")
    return found


def _step(node: ast.stmt) -> Step:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        raise bad_trace(node, "a trace has one step per line")
    step = _call(node.value, step_classes())
    assert isinstance(step, Step)
    return step


def _call(node: ast.Call, classes: Mapping[str, type]) -> object:
    if not isinstance(node.func, ast.Name) or node.func.id not in classes:
        raise bad_trace(
            node, f"{ast.unparse(node.func)} is not known here", f"known are: {', '.join(classes)}"
        )
    cls = classes[node.func.id]
    names = [f.name for f in fields(cls)]
    inside = step_classes() if cls in HOLD_STEPS else _VALUES
    args = {name: parse_value(a, inside) for name, a in zip(names, node.args, strict=False)}
    args |= {k.arg or "**": parse_value(k.value, inside) for k in node.keywords}
    try:
        return cls(**args)
    except TypeError as e:
        raise bad_trace(node, f"{cls.__name__}: {e}", f"its fields are: {', '.join(names)}") from None


def parse_value(node: ast.expr, classes: Mapping[str, type]) -> object:
    """A value that stands in a trace; `classes` may be called by name."""
    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Tuple():
            return tuple(parse_value(e, classes) for e in node.elts)
        case ast.Attribute(value=ast.Name(id=enum), attr=member) if enum in _ENUMS:
            try:
                return _ENUMS[enum][member]
            except KeyError:
                raise bad_trace(node, f"{enum} has no member {member}") from None
        case ast.Call():
            return _call(node, classes)
        case _:
            raise bad_trace(node, f"{ast.unparse(node)} is not a value")


def bad_trace(node: ast.AST, message: str, hint: str | None = None) -> UserError:
    """The error of a line that cannot be read."""
    line = getattr(node, "lineno", 0)
    return UserError(
        f"cannot read the trace: {message}", where=f"line {line}: {ast.unparse(node)}", hint=hint
    )
