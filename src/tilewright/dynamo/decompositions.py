"""Which operators PyTorch takes apart before we see them: those of its core set that have no ONNX form here."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.dynamo.torch_module import torch_module
from tilewright.frontend.torch.table import OPERATORS


def backend_decompositions() -> dict[Any, Callable[..., Any]]:
    """For AOTAutograd."""
    known: Mapping[Any, Callable[..., Any]] = torch_module("torch._decomp").core_aten_decompositions()
    return _without_known(known)


def export_decompositions() -> dict[Any, Callable[..., Any]]:
    """For exported programs, in which operators are whole that AOTAutograd never shows."""
    known: Mapping[Any, Callable[..., Any]] = torch_module("torch.export").default_decompositions()
    return _without_known(known)


def _without_known(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    kept: Iterable[tuple[Any, Callable[..., Any]]] = table.items()
    return {op: write for op, write in kept if str(op) not in OPERATORS}
