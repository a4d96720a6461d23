"""The one way to rewrite an expression: bottom up, each distinct node once."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tilewright.ir.expr import Expr, Load, Var, free_vars, loads
from tilewright.ir.traits import traits

Memo: TypeAlias = dict[Expr, Expr]


def transform(e: Expr, fn: Callable[[Expr], Expr | None], memo: Memo | None = None) -> Expr:
    """Rebuild `e` from its leaves up; `fn(node)` may replace a node whose children are already rewritten (None:
    keep).

    Sharing is kept: a node reached twice is rewritten once. Pass one `memo` to several calls with the same `fn` to
    share between them too. Recursive, with depth bounded by the expression's height (importers bound that).
    """
    if memo is None:
        memo = {}
    done = memo.get(e)
    if done is not None:
        return done
    children = e.children()
    node = e
    if children:
        rebuilt = tuple([transform(c, fn, memo) for c in children])
        if rebuilt != children:  # equality of nodes is identity
            node = e.rebuild(rebuilt)
    replaced = fn(node)
    out = node if replaced is None else replaced
    memo[e] = out
    return out


def replace_loads(e: Expr, fn: Callable[[Load], Expr | None], memo: Memo) -> Expr:
    """As `transform`, of loads only: what loads nothing is not looked at."""
    if not loads(e):
        return e
    done = memo.get(e)
    if done is None:
        children = e.children()
        rebuilt = tuple([replace_loads(c, fn, memo) for c in children])
        done = e if rebuilt == children else e.rebuild(rebuilt)
        if isinstance(done, Load):
            replaced = fn(done)
            done = done if replaced is None else replaced
        memo[e] = done
    return done


def transform_where(e: Expr, kinds: int, fn: Callable[[Expr], Expr | None], memo: Memo) -> Expr:
    """As `transform`, for rules that concern expressions of these `traits`: others are not looked at."""
    if not traits(e) & kinds:
        return e
    done = memo.get(e)
    if done is None:
        children = e.children()
        rebuilt = tuple([transform_where(c, kinds, fn, memo) for c in children])
        node = e if rebuilt == children else e.rebuild(rebuilt)
        replaced = fn(node)
        memo[e] = done = node if replaced is None else replaced
    return done


def substitute(e: Expr, values: Mapping[Var, Expr], memo: Memo | None = None) -> Expr:
    """Replace variables. All at once: the replacements are not searched again. `memo` as in `transform`."""
    if isinstance(e, Var):
        return values.get(e, e)
    try:  # as `free_vars`, without the call
        names = e.known_vars
    except AttributeError:
        names = free_vars(e)
    if names.isdisjoint(values):
        return e
    if memo is None:
        memo = {}
    done = memo.get(e)
    if done is None:
        memo[e] = done = e.rebuild(tuple([substitute(c, values, memo) for c in e.children()]))
    return done
