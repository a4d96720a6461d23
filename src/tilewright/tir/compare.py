"""Are two programs the same?

Expressions and buffers are interned, so statements compare by value already, but for how sequences are nested: that
has no meaning, and text does not show it.
"""

import numpy as np

from tilewright.support.program import map_program
from tilewright.tir.func import Call, External, Func, Module, Program
from tilewright.tir.rewrite import map_children
from tilewright.tir.stmt import Seq, Stmt, seq


def same_stmt(a: Stmt, b: Stmt) -> bool:
    return _flat(a) == _flat(b)


def same_func(a: Func, b: Func) -> bool:
    """The same name, parameters, locals, outputs and body."""
    heads = [(f.name, f.params, f.locals, f.outputs) for f in (a, b)]
    return heads[0] == heads[1] and same_stmt(a.body, b.body)


def same_module(a: Module, b: Module) -> bool:
    """The same Funcs, program and buffers, and constants of the same bytes."""
    heads = [(m.inputs, m.outputs, m.temps, _calls(m.program), len(m.funcs)) for m in (a, b)]
    if heads[0] != heads[1] or [c.buffer for c in a.constants] != [c.buffer for c in b.constants]:
        return False
    if not all(same_func(f, g) for f, g in zip(a.funcs, b.funcs, strict=True)):
        return False
    values = zip(a.constants, b.constants, strict=True)
    return all(np.asarray(c.value).tobytes() == np.asarray(d.value).tobytes() for c, d in values)


def _calls(program: Program) -> object:
    """The program with what a Call says in its place: Calls compare as objects."""

    def said(run: list[Call | External]) -> list[object]:
        return [(c.func, c.args) if isinstance(c, Call) else c for c in run]

    return map_program(program, said, lambda cond: cond)


def _flat(s: Stmt) -> Stmt:
    s = map_children(s, _flat)
    return seq(*s.stmts) if isinstance(s, Seq) else s
