"""Programs that run once for each row of a tensor, in an order that data decides: sorting, selection, suppression.

Such a program is the body of one block whose iterators choose the row. Its memory is its own: arrays that every row has
for itself, which become memory of one worker, and registers. Loops over vectors say so themselves: how many elements
are compared at once is part of the algorithm.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, Load, Scope, Var, as_index, minimum
from tilewright.support.sizes import is_open
from tilewright.tir.build import FuncBuilder
from tilewright.tir.stmt import For, LoopKind, Repeat, Stmt, Store, seq

VECTOR_BITS = 256  # elements that are compared at once; narrower machines take two instructions


@dataclass(frozen=True, slots=True)
class RowArray:
    """The part of a buffer that belongs to the row."""

    buffer: Buffer
    row: tuple[Expr, ...]

    def __getitem__(self, i: "Expr | int | tuple[Expr | int, ...]") -> Load:
        return Load(self.buffer, (*self.row, *_indices(i)))

    def put(self, i: "Expr | int | tuple[Expr | int, ...]", value: Expr) -> Stmt:
        return Store(self.buffer, (*self.row, *_indices(i)), value)


def _indices(i: "Expr | int | tuple[Expr | int, ...]") -> tuple[Expr, ...]:
    return tuple(as_index(n) for n in (i if isinstance(i, tuple) else (i,)))


@dataclass(frozen=True, slots=True)
class RowCell:
    """A value in a register."""

    array: RowArray

    @property
    def value(self) -> Load:
        return self.array[0]

    def put(self, value: "Expr | int") -> Stmt:
        return self.array.put(0, as_index(value))


class RowProgram:
    """What the body of a block is made of. `extents` are those of all rows, and `row` chooses one."""

    def __init__(self, b: FuncBuilder, name: str, extents: Sequence[int], row: Sequence[Expr]) -> None:
        self._b, self._name = b, name
        self._extents, self._row = tuple(extents), tuple(row)
        self._count = 0

    def array(self, name: str, shape: Sequence[int], dtype: DType) -> RowArray:
        buffer = self._b.ahead(self._fresh(name), (*self._extents, *shape), dtype)
        return RowArray(buffer, self._row)

    def registers(self, name: str, shape: Sequence[int], dtype: DType) -> RowArray:
        """Indexed by constants and by the variables of unrolled and vectorised loops alone."""
        found = self.array(name, shape, dtype).buffer
        return RowArray(Buffer(found.name, found.shape, dtype, Scope.REGISTER), self._row)

    def cell(self, name: str, dtype: DType = INDEX) -> RowCell:
        return RowCell(self.registers(name, (1,), dtype))

    def loop(
        self, name: str, extent: int, body: Callable[[Var], Stmt], kind: LoopKind = LoopKind.SERIAL
    ) -> Stmt:
        var = self._b.var(self._fresh(name))
        return For(var, extent, body(var), kind)

    def lanes(self, dtype: DType) -> int:
        return VECTOR_BITS // dtype.bits

    def vectors(self, name: str, extent: int, dtype: DType, body: Callable[[Expr], Stmt]) -> Stmt:
        """A loop over `extent` elements, whole vectors of them, written out."""
        lanes = self.lanes(dtype)
        return self.loop(
            name,
            extent // lanes,
            lambda u: self._lanes(name, lanes, lambda n: body(u * lanes + n)),
            LoopKind.UNROLLED,
        )

    def least(
        self, name: str, extent: int, dtype: DType, value: Callable[[Expr], Expr]
    ) -> tuple[RowCell, Stmt]:
        """A register, and what puts the least of `extent` values into it: in vectors, and then in halves of one."""
        width = self.lanes(dtype)
        found = self.registers(name, (width,), dtype)
        stmts = [self._lanes(name, width, lambda n: found.put(n, value(n)))]
        for start in range(width, extent, width):
            stmts.append(self._lanes(name, width, _least_with(found, value, start)))
        while width > 1:
            width //= 2
            whole, found = found, self.registers(name, (width,), dtype)
            stmts.append(self._lanes(name, width, _least_half(whole, found, width)))
        return RowCell(found), seq(*stmts)

    def count(
        self,
        name: str,
        stop: Expr | int,
        body: Callable[[Expr], Stmt],
        start: Expr | int = 0,
        step: int = 1,
        also: Expr | None = None,
    ) -> Stmt:
        """A loop from `start` up to `stop` in steps. As far as these depend on data it is a `while`, and `also` is
        another condition for it to go on.
        """
        if isinstance(stop, int) and not is_open((stop,)) and start == 0 and also is None:
            return self.loop(name, -(-stop // step), lambda i: body(i * step))
        at = self.cell(name)
        more = at.value < as_index(stop)
        return seq(
            at.put(start),
            Repeat(
                more if also is None else logical_and(more, also),
                seq(body(at.value), at.put(at.value + step)),
            ),
        )

    def _lanes(self, name: str, extent: int, body: Callable[[Var], Stmt]) -> Stmt:
        return self.loop(f"{name}_lane", extent, body, LoopKind.VECTORIZED)

    def _fresh(self, name: str) -> str:
        self._count += 1
        return f"{self._name}_{name}_{self._count}"


def _least_with(found: RowArray, value: Callable[[Expr], Expr], start: int) -> Callable[[Var], Stmt]:
    return lambda n: found.put(n, minimum(found[n], value(n + start)))


def _least_half(whole: RowArray, half: RowArray, width: int) -> Callable[[Var], Stmt]:
    return lambda n: half.put(n, minimum(whole[n], whole[n + width]))
