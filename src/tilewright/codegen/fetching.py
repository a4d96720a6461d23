"""What is asked for before it is read: by which loop, and which lines were already."""

from dataclasses import dataclass, field

from tilewright.ir.expr import Buffer, Expr, Load, Var, maximum, minimum


@dataclass(slots=True)
class Fetching:
    """The loop whose vectors are asked for `ahead` iterations before they are read, and the lines that were."""

    var: Var
    ahead: int
    elements: bool = False  # are single elements asked for, too?
    lines: set[tuple[Buffer, tuple[tuple[Expr, int], ...], int]] = field(
        default_factory=set[tuple[Buffer, tuple[tuple[Expr, int], ...], int]]
    )


def nearest_element(ld: Load) -> Load:
    """The nearest element, where this one does not exist."""
    near = zip(ld.indices, ld.buffer.shape, strict=True)
    return Load(ld.buffer, tuple(minimum(maximum(i, 0), n - 1) for i, n in near))
