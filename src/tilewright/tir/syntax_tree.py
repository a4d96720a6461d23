"""Python's syntax trees of tensor programs: what is in them, and copies with other names."""

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

ITERS = ("spatial", "reduce")
AstNode = TypeVar("AstNode", bound=ast.AST)

# ------------------------------------------------------------------------------------------------- looking at trees


def stores(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The stores that need a block of their own (or are an init), in order."""
    for s in body:
        match s:
            case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="init")))]):
                pass
            case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="block")))]):
                pass
            case _ if is_store(s):
                yield s
            case ast.For() | ast.With():
                yield from stores(s.body)
            case ast.If():
                yield from stores([*s.body, *s.orelse])
            case _:
                pass


def all_stores(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for s in body:
        for n in ast.walk(s):
            if isinstance(n, ast.stmt) and is_store(n):
                yield n


def is_store(s: ast.stmt) -> bool:
    match s:
        case ast.Assign(targets=[ast.Subscript()]) | ast.AugAssign(target=ast.Subscript()):
            return True
        case _:
            return False


def buffer_of(s: ast.stmt) -> str:
    match s:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))]):
            return name
        case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=name))):
            return name
        case _:
            return "block"


def block_names(s: ast.stmt) -> Iterator[str]:
    for n in ast.walk(s):
        match n:
            case ast.Call(func=ast.Name(id="block"), args=[ast.Constant(value=str(name)), *_]):
                yield name
            case _:
                pass


def loop_variables(s: ast.stmt) -> Iterator[str]:
    """Loop variables and the iterators of blocks, as often as they are bound."""
    for n in ast.walk(s):
        match n:
            case ast.For(target=ast.Tuple(elts=names)):
                yield from (x.id for x in names if isinstance(x, ast.Name))
            case ast.For(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=kind))) if (
                kind in ITERS
            ):
                yield name
            case _:
                pass


def allocated_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The buffers that `T = alloc(…)` and, in lowered programs, `with alloc(…) as T` make."""
    for n in (n for s in body for n in ast.walk(s)):
        match n:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="alloc"))):
                yield name
            case ast.withitem(
                context_expr=ast.Call(func=ast.Name(id="alloc")), optional_vars=ast.Name(id=name)
            ):
                yield name
            case _:
                pass


def bound_in(body: Iterable[ast.stmt]) -> set[str]:
    return {
        n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def header_lines(body: list[ast.stmt]) -> int:
    """How many statements at the beginning of a block are about the block: iterators, predicate, reads and writes."""
    for n, s in enumerate(body):
        match s:
            case ast.Assign(targets=[ast.Name()], value=ast.Call(func=ast.Name(id=kind))) if kind in ITERS:
                pass
            case ast.Expr(value=ast.Call(func=ast.Name(id="where" | "reads" | "writes"))):
                pass
            case _:
                return n
    return len(body)


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


# ------------------------------------------------------------------------------------------------- making trees


def at(old: ast.AST, new: AstNode) -> AstNode:
    """`new`, and what it consists of, at the place of `old` where it has none."""
    for n in ast.walk(new):
        if not hasattr(n, "lineno"):
            ast.copy_location(n, old)
    return new


def replace_names(node: AstNode, names: Mapping[str, ast.expr]) -> AstNode:
    """A copy in which names are replaced by what they stand for."""
    return _Rename(names).visit(copy.deepcopy(node))


class _Rename(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        new = self._names.get(node.id)
        match new, node.ctx:
            case None, _:
                return node
            case ast.Name(id=word), ast.Store():
                return ast.copy_location(ast.Name(word, ast.Store()), node)
            case _, ast.Load():
                return _relocated(copy.deepcopy(new), node)
            case _:
                return node


def _relocated(new: ast.expr, place: ast.expr) -> ast.expr:
    for n in ast.walk(new):
        ast.copy_location(n, place)
    return new


def moved(old: ast.stmt, blocks: dict[ast.stmt, str], new: ast.stmt) -> ast.stmt:
    """`new` in the place of `old`, and with the name of its block."""
    if old in blocks:
        blocks[new] = blocks.pop(old)
    return new
