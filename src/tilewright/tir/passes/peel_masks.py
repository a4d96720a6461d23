"""peel_masks: vectors that are wholly inside of an open size have no mask.

for i in range(100, (n + 15) // 16):              for i in range(100, n // 16):
    for l in vectorized(16):                          for l in vectorized(16):
        if i * 16 + l < n:                  ──>           Y[i * 16 + l] = …
            Y[i * 16 + l] = …                     for i in range(100, (n + 15) // 16 - n // 16):
                                                      for l in vectorized(16):
                                                          if (i + n // 16) * 16 + l < n: …

A masked store takes an AMD core as long as a dozen others (Zen 3: 42 micro-operations), and all vectors but the last of
a row need none.
"""

from dataclasses import replace

from tilewright.ir.condition import conjuncts, logical_and
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Expr,
    Var,
    as_index,
    free_vars,
    maximum,
    minimum,
)
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.tir.func import Func
from tilewright.tir.rename import rename
from tilewright.tir.rewrite import map_children, transform_stmt
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import For, If, LoopKind, Stmt, seq, walk_stmts


def peel_masks(func: Func) -> Func:
    simplify = Simplifier(ranges(func.body))
    return func.with_body(_peel(func.body, simplify))


def _peel(s: Stmt, simplify: Simplifier) -> Stmt:
    if not isinstance(s, For) or s.kind is not LoopKind.SERIAL or s.limit is None:
        return map_children(s, lambda c: _peel(c, simplify))
    inner = [n for n in walk_stmts(s.body) if isinstance(n, For)]
    if any(n.kind is not LoopKind.VECTORIZED for n in inner):
        return map_children(s, lambda c: _peel(c, simplify))
    masks = {c: n for vector in inner for c, n in _masks(s.var, vector, simplify).items()}
    if not masks:
        return s
    first, *others = dict.fromkeys(masks.values())
    for n in others:
        first = minimum(first, n)
    whole = simplify(maximum(minimum(first, s.limit), as_index(0)))

    def unmasked(n: Stmt) -> Stmt | None:
        if not isinstance(n, If):
            return None
        kept = logical_and(*(c for c in conjuncts(n.cond) if c not in masks))
        return n.then if kept is TRUE else replace(n, cond=kept)

    main = replace(s, body=transform_stmt(s.body, unmasked), limit=whole)
    var = Var(f"{s.var.name}_edge")
    rest = simplify(s.limit - whole)
    edge = For(
        var, s.extent, rename(s.body, "_edge", {s.var: var + whole}), s.kind, s.annotations, limit=rest
    )
    return seq(_if_any(main, whole, simplify), _if_any(edge, rest, simplify))


def _if_any(loop: For, count: Expr, simplify: Simplifier) -> Stmt:
    return loop if simplify.bounds(count).lo >= 1 else If(as_index(0) < count, loop)


def _masks(var: Var, vector: For, simplify: Simplifier) -> dict[Expr, Expr]:
    """Conditions on the lanes of a vector, and up to which iteration of the loop around each holds for all of them."""
    found: dict[Expr, Expr] = {}
    for n in walk_stmts(vector.body):
        if isinstance(n, If):
            for c in conjuncts(n.cond):
                whole = _whole(c, var, vector, simplify)
                if whole is not None:
                    found[c] = whole
    return found


def _whole(cond: Expr, var: Var, vector: For, simplify: Simplifier) -> Expr | None:
    """`step * var + lane + rest < 0` holds for all lanes if it does for the last: the number of values of `var`, from 0
    on, for which that is so.
    """
    if not isinstance(cond, Binary) or cond.op is not BinaryOp.LT or vector.var not in free_vars(cond):
        return None
    form = simplify.linear(cond.a - cond.b)
    terms = dict(form.terms)
    step, lane = terms.pop(var, 0), terms.pop(vector.var, 0)
    if step <= 0 or lane <= 0 or any({var, vector.var} & free_vars(a) for a in terms):
        return None
    rest = simplify.expr(Linear(form.const + lane * (vector.extent - 1), tuple(terms.items())))
    return simplify((as_index(step - 1) - rest) // step)
