"""Writing LLVM IR text: basic blocks, names, and places to which code is hoisted.

The function is a list of lines in which some places stay open: the head of every loop. Addresses and other
values that depend only on outer loops are written into the head of the loop whose variable they use, even
when a deeper statement asks for them first; the head dominates the body, so no pass has to move anything.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.codegen.values import Val, llvm_type, splat_literal
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Var

Lines: TypeAlias = "list[str | Lines]"

_IMPURE = ("load", "call", "alloca")  # may give something else the next time


@dataclass(slots=True)
class CodeRegion:
    """The function (depth 0) or the body of a loop: an open head and what was already computed in it."""

    head: Lines
    cache: dict[object, Val] = field(default_factory=dict[object, Val])
    computed: dict[tuple[str, DType], Val] = field(
        default_factory=dict[tuple[str, DType], Val]
    )  # in its head


class TextBuilder:
    def __init__(self) -> None:
        self.root: Lines = []
        self.lines: Lines = self.root
        self.label = "entry"
        self.regions: list[CodeRegion] = []
        self.depth: dict[Var, int] = {}  # loop variable -> depth of its region
        self.env: dict[Var, Val] = {}
        self.intrinsics: set[str] = set()
        self.instructions = 0
        self._count = 0
        self._computed: dict[tuple[str, DType], Val] | None = None  # of the head that is written to
        self._splats: dict[tuple[int, str, int], Val] = {}  # of this block, by place, scalar and lanes

    def fresh(self, hint: str = "v") -> str:
        self._count += 1
        return f"%{hint}{self._count}"

    def line(self, text: str) -> None:
        self.instructions += 1
        self.lines.append("  " + text)

    def place(self) -> Lines:
        """An open place here, to be filled later."""
        hole: Lines = []
        self.lines.append(hole)
        return hole

    def op(self, text: str, dtype: DType, lanes: int = 1) -> Val:
        computed = self._computed
        if computed is not None and (found := computed.get((text, dtype))) is not None:
            return found
        # As `fresh` and `line`, without the calls: it is what is called most.
        self._count += 1
        self.instructions += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        value = Val(name, dtype, lanes)
        if computed is not None and not text.startswith(_IMPURE):
            computed[text, dtype] = value
        return value

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label
        self._splats.clear()

    @contextmanager
    def at(self, depth: int) -> Generator[None]:
        """Write into the head of the region at `depth`, where nothing is computed twice."""
        outer = self.lines, self._computed
        region = self.regions[depth]
        self.lines, self._computed = region.head, region.computed
        try:
            yield
        finally:
            self.lines, self._computed = outer

    def splat(self, v: Val, lanes: int) -> Val:
        """A scalar in every lane; once for all that want it in a block, as every row of a tile does."""
        constant = splat_literal(v, lanes)
        if constant is not None:
            return constant
        key = id(self.lines), v.name, lanes
        found = self._splats.get(key)
        if found is None:
            vec, one = llvm_type(v.dtype, lanes), self.fresh()
            self.line(f"{one} = insertelement {vec} poison, {v}, i64 0")
            text = f"shufflevector {vec} {one}, {vec} poison, <{lanes} x i32> zeroinitializer"
            found = self._splats[key] = self.op(text, v.dtype, lanes)
        return found

    def intrinsic(self, name: str, result: str, *args: str) -> str:
        """Declare it, and give the call's text up to the arguments."""
        self.intrinsics.add(f"declare {result} @{name}({', '.join(args)})")
        return f"call {result} @{name}"

    def text(self) -> str:
        return "\n".join(_flat(self.root))


def _flat(lines: Lines) -> Iterator[str]:
    for item in lines:
        if isinstance(item, str):
            yield item
        else:
            yield from _flat(item)
