"""Which buffers an expression loads from, remembered: after every store each value at hand is asked for it."""

from tilewright.ir.expr import Buffer, Expr, Load


class LoadedBuffers:
    """Expressions are interned and share their parts, so every node is looked at once."""

    def __init__(self) -> None:
        self._known: dict[Expr, frozenset[Buffer]] = {}

    def of(self, e: Expr) -> frozenset[Buffer]:
        found = self._known.get(e)
        if found is None:
            own = (e.buffer,) if isinstance(e, Load) else ()
            found = frozenset(own).union(*(self.of(c) for c in e.children()))
            self._known[e] = found
        return found
