"""Who writes and who reads each buffer of a Func.

Dependencies go from block to buffer to block, never from block to block, so they are read off the accesses. An
access belongs to the innermost block around it. A reduction reads its own accumulator: it is among the readers of
the buffer it writes, and `producers` and `consumers` leave it out.
"""

from dataclasses import dataclass

from tilewright.ir.expr import Buffer, Load, walk
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Stmt, Store, children, stmt_exprs


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """The buffers that one block reads and writes itself, not counting the blocks inside it."""

    block: Block
    position: int  # in program order
    reads: dict[Buffer, None]
    writes: dict[Buffer, None]


class Dataflow:
    """The uses of every block of a Func, and the way back from buffers to blocks."""

    def __init__(self, func: Func) -> None:
        self.uses: dict[str, Uses] = {}
        self._readers: dict[Buffer, list[Block]] = {}
        self._writers: dict[Buffer, list[Block]] = {}
        self._visit(func.body, None)

    def _visit(self, s: Stmt, inside: Uses | None) -> None:
        if isinstance(s, Block):
            inside = Uses(s, len(self.uses), {}, {})
            self.uses[s.name] = inside
        elif inside is not None:
            if isinstance(s, Store):
                self._note(inside.writes, self._writers, s.buffer, inside.block)
            for e in stmt_exprs(s):
                for n in walk(e):
                    if isinstance(n, Load):
                        self._note(inside.reads, self._readers, n.buffer, inside.block)
        for c in children(s):
            self._visit(c, inside)

    @staticmethod
    def _note(seen: dict[Buffer, None], users: dict[Buffer, list[Block]], buffer: Buffer, by: Block) -> None:
        if buffer not in seen:
            seen[buffer] = None
            users.setdefault(buffer, []).append(by)

    def writers(self, buffer: Buffer) -> tuple[Block, ...]:
        """The blocks that store to `buffer`, in program order."""
        return tuple(self._writers.get(buffer, ()))

    def readers(self, buffer: Buffer) -> tuple[Block, ...]:
        """The blocks that load from `buffer`, in program order."""
        return tuple(self._readers.get(buffer, ()))

    def reads(self, block: Block) -> tuple[Buffer, ...]:
        return tuple(self.uses[block.name].reads)

    def writes(self, block: Block) -> tuple[Buffer, ...]:
        return tuple(self.uses[block.name].writes)

    def position(self, block: Block) -> int:
        """Where the block stands in program order."""
        return self.uses[block.name].position

    def producers(self, block: Block) -> tuple[Block, ...]:
        """The other blocks that write what `block` reads."""
        found = {w.name: w for b in self.reads(block) for w in self.writers(b) if w is not block}
        return tuple(sorted(found.values(), key=self.position))

    def consumers(self, block: Block) -> tuple[Block, ...]:
        """The other blocks that read what `block` writes."""
        found = {r.name: r for b in self.writes(block) for r in self.readers(b) if r is not block}
        return tuple(sorted(found.values(), key=self.position))
