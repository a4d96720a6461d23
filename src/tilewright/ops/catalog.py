"""The table of ops for the documentation: `python -m tilewright.ops.catalog > docs/ops.md`. A test keeps it current."""

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from tilewright.ops.compositeop import Composite
from tilewright.ops.hostop import HostOp
from tilewright.ops.opdef import Kind, Op
from tilewright.ops.registry import COMPOSITES, HOST_OPS, OPS

_HEAD = """# Supported ops

Made by `python -m tilewright.ops.catalog > docs/ops.md` from the declarations in `src/tilewright/ops/`.
Several ONNX operators may be one op here. What ONNX gives as inputs that only say *how* to compute (axes, shapes) is an
attribute: where it is not known when the model is imported, the host runs the op. `Constant`, `Identity`, `Shape` and
`Size` are folded on import. An operator that is not here and that ONNX defines by others is expanded. Names without a
domain are ONNX's own.

| op | ONNX | kind | attributes | notes |
|---|---|---|---|---|
"""


_COMPOSITES = """
## Operators that others compute

They are imported as the nodes that compute them.

| ONNX | notes |
|---|---|
"""


_HOST = """
## Operators that the host runs

Between native programs ([open shapes](dynamic.md)). Where an operator stands above, too, the host has the element types
that native code does not.

| ONNX | why | notes |
|---|---|---|
"""


def catalog() -> str:
    """Markdown."""
    ops = "".join(_row(op) for kind in Kind for op in OPS if op.kind is kind)
    composites = "".join(f"| {', '.join(c.onnx)} | {_notes(c)} |\n" for c in COMPOSITES)
    hosted = "".join(f"| {', '.join(h.onnx)} | {h.why} | {_notes(h)} |\n" for h in HOST_OPS)
    return _HEAD + ops + _COMPOSITES + composites + _HOST + hosted


def _row(op: type[Op]) -> str:
    attributes = ", ".join(map(_attribute, fields(op))) if is_dataclass(op) else ""
    return f"| {op.__name__} | {', '.join(op.onnx)} | {op.kind.value} | {attributes} | {_notes(op)} |\n"


def _attribute(field: "Field[Any]") -> str:
    return f"`{field.name}`" if field.default is MISSING else f"`{field.name}={field.default!r}`"


def _notes(op: type[Op] | type[Composite] | type[HostOp]) -> str:
    """The first paragraph of the docstring; a dataclass that has none has its signature there."""
    text = (op.__doc__ or "").strip()
    return "" if text.startswith(f"{op.__name__}(") else " ".join(text.split("\n\n")[0].split())


if __name__ == "__main__":
    print(catalog(), end="")
