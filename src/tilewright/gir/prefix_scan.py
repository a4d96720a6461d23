"""A scan along lanes: prefixes of a vector by shifts that double, and a value that is carried from vector to vector.

    a b c d  ──>  a  a+b  b+c  c+d  ──>  a  a+b  a+b+c  a+b+c+d  ──>  each + carry;  carry + (a+b+c+d)
             by 1                   by 2

Vectors are stored next to one of neutral elements, so that a shifted one is read at another place of both: a shuffle.
What is carried waits for one operation a vector, not for one an element.
"""

from collections.abc import Callable

from tilewright.gir.flow_graph import FlowNode
from tilewright.gir.names import Names
from tilewright.ir.expr import Buffer, Expr, Load, Scope, Var, as_index, binary
from tilewright.tir.stmt import For, If, LoopKind, Stmt, Store, seq

_ZERO = as_index(0)


class PrefixScan:
    """Of vectors of `width` elements, the last of which may have fewer; in the order of a sweep."""

    def __init__(self, names: Names, node: FlowNode, width: int, name: str) -> None:
        self.node = node
        self._names, self._width, self._name = names, width, name
        self._carry = names.local(f"{name}_carry", (1,), node.out, Scope.REGISTER)
        self.now = names.local(f"{name}_now", (width,), node.out, Scope.REGISTER)
        # Lanes are in the order of memory; neutral elements are where the scan comes from.
        self._own, self._neutral, self._back = (0, width, 1) if node.reverse else (width, 0, -1)

    def started(self) -> Stmt:
        return Store(self._carry, (_ZERO,), self.node.start)

    def taken_up(self, value: Callable[[Var], Expr], count: int) -> list[Stmt]:
        """What each lane has is in `now` afterwards; lanes from `count` on have nothing of their own."""
        node, width, start = self.node, self._width, self.node.start
        shifted = self._padded(0)
        out = [self._lanes(lambda lane: [Store(shifted, (lane + self._neutral,), start)])]
        if count < width:
            out.append(self._lanes(lambda lane: [Store(shifted, (lane + self._own,), start)]))

        def stored(lane: Var) -> Stmt:
            own = Store(shifted, (lane + self._own,), value(lane))
            return own if count == width else If(lane < count, own)

        out.append(self._lanes(lambda lane: [stored(lane)]))
        by = 1
        while by < width:
            shifted, out_of = self._padded(by), shifted
            out.append(self._shift(shifted, out_of, by))
            by *= 2
        offset = self._own + (self._back if node.exclusive else 0)
        carry, last = Load(self._carry, (_ZERO,)), as_index(0 if node.reverse else 2 * width - 1)
        out.append(
            self._lanes(
                lambda lane: [
                    Store(self.now, (lane,), binary(node.combine, carry, Load(shifted, (lane + offset,))))
                ]
            )
        )
        out.append(Store(self._carry, (_ZERO,), binary(node.combine, carry, Load(shifted, (last,)))))
        return out

    def _shift(self, made: Buffer, of: Buffer, by: int) -> Stmt:
        """Every lane combined with the one that is `by` lanes before it."""
        node, start = self.node, self.node.start

        def stores(lane: Var) -> list[Stmt]:
            before, own = Load(of, (lane + (self._own + self._back * by),)), Load(of, (lane + self._own,))
            return [
                Store(made, (lane + self._neutral,), start),
                Store(made, (lane + self._own,), binary(node.combine, before, own)),
            ]

        return self._lanes(stores)

    def _padded(self, by: int) -> Buffer:
        return self._names.local(f"{self._name}_by{by}", (2 * self._width,), self.node.out, Scope.REGISTER)

    def _lanes(self, stores: Callable[[Var], list[Stmt]]) -> Stmt:
        lane = self._names.var("lane", self._width)
        return For(lane, self._width, seq(*stores(lane)), LoopKind.VECTORIZED)
