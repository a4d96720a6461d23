"""What is asked for before it is read: by which loop, and which lines were already.

Requests may be for what is behind the end of a buffer: the instruction does not fault.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.codegen.builder import TextBuilder
from tilewright.codegen.loaded import Facts
from tilewright.codegen.values import Val
from tilewright.ir.expr import Buffer, Expr, Load, Var, free_vars, maximum, minimum
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.tir.stmt import PREFETCH, PREFETCH_ELEMENTS, PREFETCH_PANEL, PREFETCH_ROW, For

_LINE_BYTES = 64
_NEAREST, _SECOND = 3, 2  # caches, as LLVM numbers them


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


class Prefetcher:
    """Writes the requests that annotations of loops ask for, beside the loads inside of these."""

    def __init__(
        self,
        builder: TextBuilder,
        simplify: Simplifier,
        facts: Facts,
        address: Callable[[Buffer, Linear], Val],
        is_fixed: Callable[[Expr], bool],
    ) -> None:
        self._b, self._simplify, self._facts = builder, simplify, facts
        self._address, self._is_fixed = address, is_fixed
        self._around: list[tuple[Var, int]] = []  # the loops at this place, with their extents
        self._ahead: Fetching | None = None
        self._rows: Fetching | None = None
        self._panels: PanelFetching | None = None

    @contextmanager
    def inside(self, loop: For) -> Generator[None]:
        """In the body of this loop. Vectors that it reads some iterations later are brought near, if it says so. Loops
        inside do so for themselves, but for rows that data chooses by its variable: no hardware foresees these.
        """
        outer = self._ahead, self._rows, self._panels
        notes = dict(loop.annotations)
        ahead, elements = int(notes.get(PREFETCH, 0)), bool(notes.get(PREFETCH_ELEMENTS))
        self._around.append((loop.var, loop.extent))
        self._ahead = Fetching(loop.var, ahead) if ahead else None
        if self._ahead is not None:
            self._rows = self._ahead
        elif (elements or notes.get(PREFETCH_ROW)) and self._rows is not None:
            self._ahead = Fetching(self._rows.var, self._rows.ahead, elements)
        panel = int(notes.get(PREFETCH_PANEL, 0))
        self._panels = PanelFetching(tuple(self._around), panel) if panel else None
        try:
            yield
        finally:
            self._ahead, self._rows, self._panels = outer
            self._around.pop()

    def before_load(self, buffer: Buffer, form: Linear, lanes: int, *, is_vector: bool) -> None:
        """Write the requests that belong to a load of `lanes` lanes."""
        if self._ahead is not None and (is_vector or self._ahead.elements):
            self._ask_ahead(buffer, form, lanes, self._ahead)
        if is_vector and self._rows is not None:
            self._ask_row(buffer, form, lanes, self._rows)
        if is_vector and self._panels is not None and buffer not in self._panels.asked:
            self._ask_panel(buffer, form, self._panels)

    def _ask_ahead(self, buffer: Buffer, form: Linear, lanes: int, fetching: Fetching) -> None:
        """For the lines that this load reads some iterations later, once for all loads of a line."""
        step = sum(k for atom, k in form.terms if atom is fetching.var)
        if step:
            self._ask(buffer, form, Linear(form.const + fetching.ahead * step, form.terms), lanes, fetching)

    def _ask_row(self, buffer: Buffer, form: Linear, lanes: int, fetching: Fetching) -> None:
        """The same where data says which row is read in a later iteration."""
        chosen = [atom for atom, _ in form.terms if self._facts.buffers(atom)]
        if not any(fetching.var in free_vars(atom) for atom in chosen) or not all(
            map(self._is_fixed, chosen)
        ):
            return
        moved, memo = {fetching.var: fetching.var + fetching.ahead}, dict[Expr, Expr]()
        atoms = [replace_loads(substitute(atom, moved), nearest_element, memo) for atom, _ in form.terms]
        later = self._simplify.weighted(atoms, [k for _, k in form.terms])
        self._ask(buffer, form, Linear(later.const + form.const, later.terms), lanes, fetching)

    def _ask_panel(self, buffer: Buffer, form: Linear, fetching: PanelFetching) -> None:
        """For a piece of the panel behind this one. It is read in a while: the second-level cache is near enough, and
        the first one has no room.
        """
        fetching.asked.add(buffer)
        found = fetching.pieces(form)
        if found is not None:
            piece, elements = found
            for n in range(0, elements, _LINE_BYTES // buffer.dtype.bytes):
                self._write(buffer, Linear(piece.const + n, piece.terms), _SECOND)

    def _ask(self, buffer: Buffer, form: Linear, later: Linear, lanes: int, fetching: Fetching) -> None:
        for n in range(0, lanes, _LINE_BYTES // buffer.dtype.bytes):
            line = (buffer, form.terms, (form.const + n) * buffer.dtype.bytes // _LINE_BYTES)
            if line not in fetching.lines:
                fetching.lines.add(line)
                self._write(buffer, Linear(later.const + n, later.terms), _NEAREST)

    def _write(self, buffer: Buffer, place: Linear, cache: int) -> None:
        f = self._b.intrinsic("llvm.prefetch.p0", "void", "ptr", "i32", "i32", "i32")
        at = self._address(buffer, place)
        self._b.line(f"{f}(ptr {at.name}, i32 0, i32 {cache}, i32 1)")  # to read, data
