"""The loop of a kernel that its time goes to, cut out of its assembly (AT&T syntax).

Nobody has counted how often each loop runs. Of the loops that hold no other, the one with the most arithmetic on
vectors is taken: schedules unroll what runs most, and nothing else.
"""

import re
from collections.abc import Sequence

_LABEL = re.compile(r"^(\.L\w+|\w+):")
_JUMP = re.compile(r"^\s+j\w+\s+(\.L\w+|\w+)\s*$")
_ARITHMETIC = re.compile(r"^\s+(v?fn?m\w+|v?(add|sub|mul|div|max|min|sqrt|dp|pmadd|padd|pmull)\w*)\s")
_REGISTER = re.compile(r"%[xyz]mm")
_NOISE = re.compile(r"^\s*(\.(cfi|p2align|loc|file|size|type|globl|section|ident|text)\b|#|$)")


def hot_loop(assembly: str) -> tuple[str, str]:
    """Its lines, and what there is to say of it; all of a kernel without loops."""
    lines = [line for line in assembly.splitlines() if not _NOISE.match(line)]
    loops = _innermost(lines)
    if not loops:
        return "\n".join(map(_plain, lines)), f"no loops: all {_count(lines)} instructions"
    start, end = max(loops, key=lambda span: (_arithmetic(lines[slice(*span)]), span[1] - span[0]))
    found = lines[start:end]
    others = f" of {len(loops)} innermost loops, the one with the most vector arithmetic" if loops[1:] else ""
    note = f"{_count(found)} instructions, {_arithmetic(found)} of them vector arithmetic{others}"
    return "\n".join(map(_plain, found)), note


def _innermost(lines: Sequence[str]) -> list[tuple[int, int]]:
    """From the label to behind the last jump back to it."""
    labels = {m[1]: n for n, line in enumerate(lines) if (m := _LABEL.match(line))}
    ends: dict[int, int] = {}
    for n, line in enumerate(lines):
        jump = _JUMP.match(line)
        start = None if jump is None else labels.get(jump[1])
        if start is not None and start < n:
            ends[start] = n + 1
    spans = list(ends.items())
    return [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]


def _arithmetic(lines: Sequence[str]) -> int:
    return sum(bool(_ARITHMETIC.match(line) and _REGISTER.search(line)) for line in lines)


def _count(lines: Sequence[str]) -> int:
    return sum(not _LABEL.match(line) and not line.lstrip().startswith(".") for line in lines)


def _plain(line: str) -> str:
    return line.split("#")[0].rstrip().expandtabs(8)
