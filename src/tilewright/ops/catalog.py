"""The table of ops for the documentation: `python -m tilewright.ops.catalog > docs/ops.md`. A test keeps it current."""

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from tilewright.ops.composite import Composite
from tilewright.ops.opdef import Kind, Op
from tilewright.ops.registry import COMPOSITES, OPS

_HEAD = """# Supported ops

Made by `python -m tilewright.ops.catalog > docs/ops.md` from the declarations in `src/tilewright/ops/`.
Several ONNX operators may be one op here; what ONNX gives as inputs that only say *how* to compute (axes, shapes,
bounds) has to be known at compile time and is an attribute. `Constant`, `Shape` and `Size` are folded on import.

| op | ONNX | kind | attributes | notes |
|---|---|---|---|---|
"""


_COMPOSITES = """
## Operators that others compute

They are imported as the nodes that compute them.

| ONNX | notes |
|---|---|
"""


def catalog() -> str:
    """Markdown."""
    ops = "".join(_row(op) for kind in Kind for op in OPS if op.kind is kind)
    return _HEAD + ops + _COMPOSITES + "".join(f"| {', '.join(c.onnx)} | {_notes(c)} |\n" for c in COMPOSITES)


def _row(op: type[Op]) -> str:
    attributes = ", ".join(map(_attribute, fields(op))) if is_dataclass(op) else ""
    return f"| {op.__name__} | {', '.join(op.onnx)} | {op.kind.value} | {attributes} | {_notes(op)} |\n"


def _attribute(field: "Field[Any]") -> str:
    return f"`{field.name}`" if field.default is MISSING else f"`{field.name}={field.default!r}`"


def _notes(op: type[Op] | type[Composite]) -> str:
    """The first paragraph of the docstring; a dataclass that has none has its signature there."""
    text = (op.__doc__ or "").strip()
    return "" if text.startswith(f"{op.__name__}(") else " ".join(text.split("\n\n")[0].split())


if __name__ == "__main__":
    print(catalog(), end="")
