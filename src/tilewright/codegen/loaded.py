"""What was loaded and computed, and from where: a store makes some of it stale."""

from dataclasses import dataclass, field

from tilewright.codegen.values import Val
from tilewright.ir.expr import Buffer, Expr, Load, Select, loads


class Facts:
    """Which buffers an expression loads from, and what it certainly evaluates, remembered: every store asks.

    Expressions are interned and share their parts, so every node is looked at once.
    """

    def __init__(self) -> None:
        self._buffers: dict[Expr, frozenset[Buffer]] = {}
        self._certain: dict[Expr, frozenset[Expr]] = {}

    def buffers(self, e: Expr) -> frozenset[Buffer]:
        found = self._buffers.get(e)
        if found is None:
            found = self._buffers[e] = frozenset(ld.buffer for ld in loads(e))
        return found

    def certain(self, e: Expr) -> frozenset[Expr]:
        """The loads, and selects that load, which are evaluated whenever `e` is."""
        found = self._certain.get(e)
        if found is None:
            if isinstance(e, Select):
                found = self.certain(e.cond) | (self.certain(e.a) & self.certain(e.b))
            else:
                found = frozenset[Expr]().union(*[self.certain(c) for c in e.children()])
            if isinstance(e, Load | Select) and self.buffers(e):
                found |= {e}
            self._certain[e] = found
        return found


NodeKey = tuple[Expr, str, int]  # an expression, the name of the mask, the number of lanes


@dataclass(slots=True)
class LoadedValues:
    """The values in the current straight line of code: shared nodes are computed once."""

    facts: Facts
    _values: dict[NodeKey, Val] = field(default_factory=dict[NodeKey, Val])
    _readers: dict[Buffer, list[NodeKey]] = field(default_factory=dict[Buffer, list[NodeKey]])
    transposed: dict[tuple[str, ...], list[Val]] = field(
        default_factory=dict[tuple[str, ...], list[Val]]
    )  # by rows

    def get(self, key: NodeKey) -> Val | None:
        return self._values.get(key)

    def __contains__(self, key: NodeKey) -> bool:
        return key in self._values

    def put(self, key: NodeKey, value: Val) -> None:
        self._values[key] = value
        for b in self.facts.buffers(key[0]):
            self._readers.setdefault(b, []).append(key)

    def forget(self, buffer: Buffer) -> None:
        """After a store: what was loaded from the buffer is no longer its content."""
        for key in self._readers.pop(buffer, ()):
            self._values.pop(key, None)

    def copy(self) -> "LoadedValues":
        readers = {b: list(keys) for b, keys in self._readers.items()}
        return LoadedValues(self.facts, dict(self._values), readers, dict(self.transposed))
