"""Who writes and who reads each buffer of a Func.

Dependencies go from block to buffer to block, never from block to block, so they are read off the accesses. An
access belongs to the innermost block around it. A reduction reads its own accumulator: it is among the readers of
the buffer it writes, and `producers` and `consumers` leave it out.
"""

from dataclasses import dataclass

from tilewright.ir.expr import Buffer, loads
from tilewright.tir.declared import declared_below
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Store, children, stmt_exprs
from tilewright.tir.touched import Touched, touched


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """The buffers that one block reads and writes itself, not counting the blocks inside it."""

    block: Block
    position: int  # in program order
    reads: dict[Buffer, None]
    writes: dict[Buffer, None]


def _own(block: Block) -> Touched:
    """What a block touches outside of blocks inside it."""
    if not declared_below(block).blocks:
        return touched(block)
    found = Touched({}, {})
    stack = list(reversed(children(block)))
    while stack:
        s = stack.pop()
        if isinstance(s, Block):
            continue
        if isinstance(s, Store):
            found.writes[s.buffer] = None
        found.reads.update((ld.buffer, None) for e in stmt_exprs(s) for ld in loads(e))
        stack.extend(reversed(children(s)))
    return found


class Dataflow:
    """The uses of every block of a Func, and the way back from buffers to blocks."""

    def __init__(self, func: Func) -> None:
        self.uses: dict[str, Uses] = {}
        self._readers: dict[Buffer, list[Block]] = {}
        self._writers: dict[Buffer, list[Block]] = {}
        for block in func.names.blocks.values():
            mine = _own(block)
            self.uses[block.name] = Uses(block, len(self.uses), mine.reads, mine.writes)
            for b in mine.reads:
                self._readers.setdefault(b, []).append(block)
            for b in mine.writes:
                self._writers.setdefault(b, []).append(block)

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
