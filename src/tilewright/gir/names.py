"""Names of what a kernel is made of: its loops, blocks and buffers."""

from collections.abc import Mapping

from tilewright.ir.expr import Buffer, Expr, Scope, Var
from tilewright.ir.simplify import Interval, Simplifier


class Names:
    """The loops and buffers of a kernel, as they are made."""

    def __init__(self, prefix: str, extents: Mapping[Var, int]) -> None:
        self._prefix, self._count, self._parts = prefix, 0, 0
        self.locals: dict[Buffer, None] = {}
        self.simplify = Simplifier({a: Interval(0, e - 1) for a, e in extents.items()})

    def var(self, name: str, extent: int) -> Var:
        self._count += 1
        made = Var(f"{self._prefix}_{name}{self._count}")
        self.simplify.learn({made: Interval(0, extent - 1)})
        return made

    def block(self, name: str) -> str:
        self._count += 1
        return f"{self._prefix}_{name}{self._count}"

    def part(self) -> str:
        """The name of a block that is a part of the whole: the first has that of the whole."""
        self._parts += 1
        return self._prefix if self._parts == 1 else f"{self._prefix}_p{self._parts - 1}"

    def local(
        self,
        name: str,
        shape: tuple[int, ...],
        like: Buffer,
        scope: Scope,
        sizes: tuple[Expr | None, ...] = (),
    ) -> Buffer:
        made = Buffer(name, (), like.dtype, scope).with_shape(shape, sizes)
        self.locals[made] = None
        return made
