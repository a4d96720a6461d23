"""What is asked for before it is read: by which loop, and which lines were already."""

from dataclasses import dataclass, field

from tilewright.ir.expr import Buffer, Expr, Load, Var, free_vars, maximum, minimum
from tilewright.ir.simplify import Linear


@dataclass(slots=True)
class Fetching:
    """The loop whose vectors are asked for `ahead` iterations before they are read, and the lines that were."""

    var: Var
    ahead: int
    elements: bool = False  # are single elements asked for, too?
    lines: set[tuple[Buffer, tuple[tuple[Expr, int], ...], int]] = field(
        default_factory=set[tuple[Buffer, tuple[tuple[Expr, int], ...], int]]
    )


@dataclass(slots=True)
class PanelFetching:
    """The loops inside of which the panel behind the one that is read is asked for, from the outermost in, with their
    extents; how many elements a panel has; and the buffers that were.
    """

    loops: tuple[tuple[Var, int], ...]
    elements: int
    asked: set[Buffer] = field(default_factory=set[Buffer])

    def pieces(self, form: Linear) -> tuple[Linear, int] | None:
        """Where in the next panel an iteration begins to ask, and for how many elements; None if it has no share.

        Iterations that read the same elements (other rows of a result) each ask for their part of the panel, so that
        requests are as far apart as the time there is for them allows. There must be some, or it is not known that a
        panel stays: the rows may be parts of their own.
        """
        steps = {atom: k for atom, k in form.terms if isinstance(atom, Var)}
        hidden = {v for atom, _ in form.terms if not isinstance(atom, Var) for v in free_vars(atom)}
        again, inside = 1, list[tuple[Var, int]]()
        for var, extent in reversed(self.loops):
            if steps.get(var, 0) >= self.elements or var in hidden:
                break
            again *= 1 if var in steps else extent
            inside.append((var, extent))
        if not inside or not 1 < again <= (along := steps.get(inside[0][0], 0)):
            return None
        each = -(-along // again)
        kept = {atom: k for atom, k in form.terms if atom not in dict(inside)}
        flat = 1
        for var, extent in inside:
            kept[var] = each * flat
            flat *= extent
        return Linear(form.const + self.elements, tuple(kept.items())), each


def nearest_element(ld: Load) -> Load:
    """The nearest element, where this one does not exist."""
    near = zip(ld.indices, ld.buffer.shape, strict=True)
    return Load(ld.buffer, tuple(minimum(maximum(i, 0), n - 1) for i, n in near))
