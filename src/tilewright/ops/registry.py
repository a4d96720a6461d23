"""All ops. They are found, not listed: a class that is declared in a module of one of its rooms is one.

`docs/adding-an-op.md` says how to add one.
"""

import inspect
import pkgutil
from importlib import import_module
from typing import TypeGuard, TypeVar

import tilewright.ops
from tilewright.ops.compositeop import Composite
from tilewright.ops.hostop import HostOp
from tilewright.ops.opdef import Op

C = TypeVar("C", Op, HostOp, Composite)

_ROOMS = ("core", "composite", "host", "contrib", "ml")


def _declared(base: type[C]) -> tuple[type[C], ...]:
    """The classes below `base` that name ONNX operators, by module and then in the order they stand there."""
    rooms = [import_module(f"{tilewright.ops.__name__}.{name}") for name in _ROOMS]
    modules = [
        import_module(f"{room.__name__}.{m.name}")
        for room in rooms
        for m in pkgutil.iter_modules(room.__path__)
    ]
    return tuple(
        c
        for module in modules
        for c in vars(module).values()
        if _is_below(c, base) and c.__module__ == module.__name__ and not inspect.isabstract(c) and c.onnx
    )


def _is_below(c: object, base: type[C]) -> TypeGuard[type[C]]:
    """Quicker than issubclass, which asks all classes below `base` about one that is not."""
    return isinstance(c, type) and base in c.__mro__


OPS: tuple[type[Op], ...] = _declared(Op)
HOST_OPS: tuple[type[HostOp], ...] = _declared(HostOp)
COMPOSITES: tuple[type[Composite], ...] = _declared(Composite)

_BY_ONNX: dict[str, type[Op]] = {name: op for op in OPS for name in op.onnx}
_HOST_BY_ONNX: dict[str, type[HostOp]] = {name: op for op in HOST_OPS for name in op.onnx}
_COMPOSITE_BY_ONNX: dict[str, type[Composite]] = {name: op for op in COMPOSITES for name in op.onnx}


def by_onnx(op_type: str, domain: str = "") -> type[Op] | None:
    """The op that imports this ONNX operator, if there is one."""
    return _BY_ONNX.get(qualified(op_type, domain))


def host_by_onnx(op_type: str, domain: str = "") -> type[HostOp] | None:
    """The op of the host that runs this ONNX operator, if there is one."""
    return _HOST_BY_ONNX.get(qualified(op_type, domain))


def composite_by_onnx(op_type: str, domain: str = "") -> type[Composite] | None:
    """What writes this ONNX operator as others, if there is one."""
    return _COMPOSITE_BY_ONNX.get(qualified(op_type, domain))


def qualified(op_type: str, domain: str) -> str:
    """How an op spells an ONNX operator: with its domain, unless that is ONNX's own."""
    return f"{domain}.{op_type}" if domain not in ("", "ai.onnx") else op_type
