"""Reading assembly (AT&T syntax): the loops of a function, and what their instructions do to memory."""

import re
from dataclasses import dataclass
from functools import cached_property

_LABEL = re.compile(r"^(\.L\w+|\w+):")
_MEMORY = re.compile(r"[-\w.]*\((%\w+)?(?:,\s*(%\w+))?(?:,\s*\d)?\)")
_READS_ONLY = ("cmp", "test", "vucomis", "ucomis", "prefetch", "bt")


@dataclass(frozen=True)
class Instruction:
    """One line. Operands are in AT&T order: sources first, destination last."""

    name: str
    operands: tuple[str, ...]

    @staticmethod
    def parse(line: str) -> "Instruction | None":
        code = line.split("#")[0].strip()
        if not code or code.startswith(".") or _LABEL.match(code):
            return None
        name, _, rest = code.removeprefix("{vex}\t").partition("\t")
        # Commas inside of a memory operand do not part operands.
        operands = re.findall(r"(?:[^,(]|\([^)]*\))+", rest)
        return Instruction(name.strip(), tuple(o.strip() for o in operands))

    def _is_memory(self, operand: str) -> bool:
        return bool(_MEMORY.search(operand))

    @property
    def is_fma(self) -> bool:
        return self.name.startswith("vfmadd")

    @property
    def is_jump(self) -> bool:
        return self.name.startswith("j")

    @property
    def is_store(self) -> bool:
        if not self.operands or self.name.startswith(("lea", "call", "j", "push", *_READS_ONLY)):
            return self.name.startswith(("push", "call"))
        return self._is_memory(self.operands[-1])

    @property
    def is_load(self) -> bool:
        if self.name.startswith(("lea", "call", "j", "prefetch")):
            return False
        sources = self.operands if self.name.startswith(_READS_ONLY) else self.operands[:-1]
        return any(self._is_memory(o) for o in sources)

    @property
    def is_broadcast(self) -> bool:
        return self.name.startswith("vbroadcast") and self.is_load

    @property
    def touches_stack(self) -> bool:
        # Without a frame pointer %rbp is a register like any other.
        return self.name.startswith(("push", "pop")) or any("(%rsp" in o for o in self.operands)


@dataclass(frozen=True)
class Loop:
    """The code from a label to the jump back to it."""

    label: str
    instructions: tuple[Instruction, ...]

    def count(self, what: str) -> int:
        return sum(bool(getattr(i, what)) for i in self.instructions)

    @cached_property
    def has_fma(self) -> bool:
        return self.count("is_fma") > 0


def innermost_loops(text: str) -> list[Loop]:
    """The loops that hold no other loop, in the order of the code."""
    items: list[Instruction | str] = []  # labels are strings
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label is not None:
            items.append(label[1])
        elif (parsed := Instruction.parse(line)) is not None:
            items.append(parsed)
    at = {item: n for n, item in enumerate(items) if isinstance(item, str)}
    spans: list[tuple[int, int]] = []
    for n, item in enumerate(items):
        if isinstance(item, Instruction) and item.is_jump and item.operands:
            start = at.get(item.operands[0])
            if start is not None and start < n:
                spans.append((start, n))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    return [
        Loop(str(items[start]), tuple(i for i in items[start : end + 1] if isinstance(i, Instruction)))
        for start, end in inner
    ]
