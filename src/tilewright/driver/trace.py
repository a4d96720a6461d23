"""The trace of a program: every decision that made it, in sections.

    # tilewright program trace, version 1
    # machine: Zen 3; for any number of threads
    [groups]
    Group(func='relu_1', values=('conv2d_1', 'relu_1'))
    [layouts]
    ChannelsLast(group='relu_1', buffers=('conv0', 'relu1'))
    BufferLayout(buffer='relu_2__gemm0', layout=Layout(primitives=(PadDim(dim=1, before=0, after=16),)))
    # end

A program is a model and a trace. Sections stand in the order in which they are decided. One that is missing is left to
the compiler, one that is empty decides that there is none of its kind; of kernels, those that nobody names are left to
the compiler too. The text is data, not code: nothing of it is evaluated. The line of the machine says whose figures the
decisions were taken with; it decides nothing.

A model with open dimensions may have further programs for smaller ranges. Each begins with a section `narrower`, which
says how far they go, and has the sections that follow; an empty one decides that there are none.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from types import UnionType
from typing import cast

from tilewright.driver.decisions import (
    Algorithm,
    Beside,
    BufferLayout,
    ChannelsLast,
    Decision,
    Group,
    Join,
    Kernel,
    Narrower,
    RangeKernel,
)
from tilewright.ir.layout import Layout, LayoutPrimitive
from tilewright.schedule.step import Step
from tilewright.schedule.steps import step_classes
from tilewright.schedule.trace import LAYOUTS, bad_trace, parse_value
from tilewright.schedule.trace_file import TraceFormat, load_text, save_text
from tilewright.support.errors import UserError

SECTIONS: Mapping[str, tuple[type[Decision], ...]] = {
    "groups": (Group,),
    "algorithms": (Algorithm,),
    "joins": (Join,),
    "layouts": (ChannelsLast, BufferLayout),
    "kernels": (Kernel,),
    "ranges": (RangeKernel,),
    "beside": (Beside,),
}
_NARROWER = "narrower"
_MACHINE = "# machine: "
_FORMAT = TraceFormat("# tilewright program trace, version 1", "a saved plan of a program")


@dataclass(frozen=True, slots=True)
class ProgramTrace:
    """The decisions of each section that the trace has, and the machine with whose figures they were taken. `narrower`
    are the programs for smaller ranges, with their traces; None if they are left to the compiler.
    """

    sections: Mapping[str, tuple[Decision, ...]] = field(default_factory=dict[str, tuple[Decision, ...]])
    machine: str = field(default="", compare=False)
    narrower: "tuple[tuple[Narrower, ProgramTrace], ...] | None" = None

    def __str__(self) -> str:
        return f"{_MACHINE}{self.machine}\n{self._decisions()}" if self.machine else self._decisions()

    def _decisions(self) -> str:
        lines: list[str] = []
        for name in SECTIONS:
            if name in self.sections:
                lines += [f"[{name}]", *map(str, self.sections[name])]
        if self.narrower == ():
            lines.append(f"[{_NARROWER}]")
        text = "".join(f"{line}\n" for line in lines)
        inside = (f"[{_NARROWER}]\n{box}\n{t._decisions()}" for box, t in self.narrower or ())
        return "".join((text, *inside))

    @property
    def digest(self) -> str:
        return sha256(self._decisions().encode()).hexdigest()

    def with_section(self, name: str, decisions: tuple[Decision, ...]) -> "ProgramTrace":
        return replace(self, sections={**self.sections, name: decisions})

    def save(self, path: str | Path) -> None:
        save_text(_FORMAT, str(self), path)

    @staticmethod
    def load(path: str | Path) -> "ProgramTrace":
        return load_text(_FORMAT, path, ProgramTrace.parse)

    @staticmethod
    def parse(text: str) -> "ProgramTrace":
        """The trace that prints like this; `UserError` with the line if there is none."""
        try:
            tree = ast.parse(text)
        except SyntaxError as e:
            raise UserError(f"the trace is not in Python syntax: {e.msg}", where=f"line {e.lineno}") from None
        sections: dict[str, tuple[Decision, ...]] = {}
        programs = [sections]
        boxes: list[Narrower] = []
        is_new = False
        section = ""
        for node in tree.body:
            match node:
                case ast.Expr(value=ast.List(elts=[ast.Name(id=name)])):
                    if name == _NARROWER and not is_new:
                        sections, is_new = {}, True  # nothing says yet how far it goes
                    elif name not in SECTIONS or name in sections or is_new:
                        raise bad_trace(node, f"[{name}] is no section, or stands here twice", _known())
                    else:
                        sections[name] = ()
                    section = name
                case ast.Expr(value=ast.Call() as call) if section == _NARROWER and is_new:
                    boxes.append(_narrower(call))
                    programs.append(sections)
                    is_new = False
                case ast.Expr(value=ast.Call() as call) if section and section != _NARROWER:
                    sections[section] += (_decision(call, section),)
                case _:
                    raise bad_trace(node, "a line is a [section] or a decision of one", _known())
        named = next((line for line in text.splitlines() if line.startswith(_MACHINE)), _MACHINE)
        machine = named.removeprefix(_MACHINE)
        made = [ProgramTrace(found, machine) for found in programs]
        inside = tuple(zip(boxes, made[1:], strict=True))
        return replace(made[0], narrower=inside if inside or is_new else None)


def _known() -> str:
    return f"the sections are: {', '.join((*SECTIONS, _NARROWER))}"


def _narrower(node: ast.Call) -> Narrower:
    found = _decision(node, _NARROWER, (Narrower,))
    assert isinstance(found, Narrower)
    if len(found.dims) != len(found.sizes):
        raise bad_trace(node, "each dimension has one size")
    return found


def _decision(node: ast.Call, section: str, kinds: tuple[type[Decision], ...] = ()) -> Decision:
    kinds = kinds or SECTIONS[section]
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    cls = next((c for c in kinds if c.__name__ == name), None)
    if cls is None:
        raise bad_trace(node, f"[{section}] has only {' and '.join(c.__name__ for c in kinds)} decisions")
    names = [f.name for f in fields(cls)]
    inside = LAYOUTS if cls is BufferLayout else step_classes()
    values = {name: parse_value(a, inside) for name, a in zip(names, node.args, strict=False)}
    values |= {k.arg or "**": parse_value(k.value, inside) for k in node.keywords}
    if cls is Kernel or cls is RangeKernel:
        values["knobs"] = tuple((n, v) for n, v in values.items() if n not in names)
        values = {n: v for n, v in values.items() if n in names}
    wrong = next((n for n, v in values.items() if n in names and not _has_kind(n, v)), None)
    if wrong is not None:
        raise bad_trace(node, f"{wrong} has another kind of value than {cls.__name__} needs")
    try:
        return cls(**values)  # pyright: ignore[reportArgumentType]
    except TypeError as e:
        raise bad_trace(node, str(e), f"its fields are: {', '.join(names)}") from None


def _has_kind(name: str, value: object) -> bool:
    """The text may have put anything into a field; those of one name are of one kind."""
    match name:
        case "values" | "funcs" | "buffers" | "calls" | "dims":
            return _are(value, str) and value != ()
        case "sizes":
            return _are(value, int) and all(n > 0 for n in cast("tuple[int, ...]", value))
        case "most":
            return type(value) is int and value > 0
        case "repeated":
            return _are(value, str)
        case "steps":
            return _are(value, Step)
        case "layout":
            return _is_layout(value)
        case "knobs":
            return _are(value, tuple) and all(
                type(v) is int for _, v in cast("tuple[tuple[str, object]]", value)
            )
        case _:
            return isinstance(value, str)


def _is_layout(value: object) -> bool:
    """Are there primitives in it, and numbers in these?"""
    if not isinstance(value, Layout) or not _are(value.primitives, LayoutPrimitive):
        return False
    numbers = [getattr(p, f.name) for p in value.primitives for f in fields(p)]
    return all(type(n) is int or _are(n, int) for n in numbers)


def _are(values: object, kind: type | UnionType) -> bool:
    return isinstance(values, tuple) and all(isinstance(v, kind) for v in cast("tuple[object, ...]", values))
