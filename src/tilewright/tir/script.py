"""`tw.func`: a tensor program written as a Python function.

    M = N = K = 512

    @tw.func
    def matmul(A: tw.f32[M, K], B: tw.f32[K, N], C: tw.out(tw.f32[M, N])):
        for i, j, k in tw.grid(M, N, K):
            with tw.init():
                C[i, j] = 0.0
            C[i, j] = tw.fma(A[i, k], B[k, j], C[i, j])

The function is read from its source and never runs; what comes out is a `Func`. Names of the scope around it are
constants (`script_names`), stores become blocks (`plain_form`), and `parser` reads the rest, so that what `print(func)`
writes is a program too. What is written is what is meant: a float `C[i, j] += a * b` is a multiplication and an
addition, rounded one by one; `tw.fma` rounds once.

The kinds of a block's iterators follow from its store: a loop that does not choose the element is a reduction. Such a
store must be an update whose order does not matter (`C[i] += …`, `max(C[i], …)`), since schedule steps take that for
granted, and any other store must reach an element only once; what does not is refused here.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from tilewright.ir.expr import Binary, BinaryOp, Buffer, Expr, Fma, Load, free_vars, loads
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.support.errors import InternalError, UserError
from tilewright.tir.analysis.affine import determined
from tilewright.tir.func import Func
from tilewright.tir.parser import FuncParser
from tilewright.tir.plain_form import Plain
from tilewright.tir.printer import print_expr
from tilewright.tir.rewrite import map_children
from tilewright.tir.script_names import Resolve, fold_integer, script_bound_names
from tilewright.tir.stmt import Block, IterKind, Seq, Stmt, Store, blocks, walk_stmts
from tilewright.tir.syntax_tree import all_stores, allocated_names, buffer_of
from tilewright.tir.verify import verify_func

_COMMUTE = frozenset(
    {
        BinaryOp.ADD,
        BinaryOp.MUL,
        BinaryOp.MIN,
        BinaryOp.MAX,
        BinaryOp.AND,
        BinaryOp.OR,
        BinaryOp.XOR,
    }
)


def func(program: Callable[..., Any] | str) -> Func:
    """The tensor program that a Python function, or the text of one, describes."""
    if isinstance(program, str):
        return _read(_Source("<text>", 1, textwrap.dedent(program)), {})
    if not inspect.isfunction(program):
        raise UserError(
            f"a {type(program).__name__} is not a tensor program",
            hint="decorate a function, or give the text of one",
        )
    try:
        lines, first = inspect.getsourcelines(program)
    except (OSError, SyntaxError, IndentationError):
        raise UserError(
            f"the source of {program.__name__} is not available",
            where=program.__code__.co_filename,
            hint="tw.func reads a function from its file or notebook cell; a text can be given as a string",
        ) from None
    source = _Source(program.__code__.co_filename, first, textwrap.dedent("".join(lines)))
    return _read(source, _scope_around(program))


def _scope_around(program: Callable[..., Any]) -> dict[str, object]:
    """What names mean where the function is defined. An annotation may use a local variable of the function around
    that the body does not: only the frame knows it.
    """
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    around: dict[str, object] = dict(program.__globals__)
    if frame.f_globals is program.__globals__:
        around |= frame.f_locals
    for name, cell in zip(program.__code__.co_freevars, program.__closure__ or (), strict=True):
        try:
            around[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            around.pop(name, None)
    return around


@dataclass(frozen=True, slots=True)
class _Source:
    file: str
    first: int  # the line of the file that the text begins with
    text: str


def _read(source: _Source, around: Mapping[str, object]) -> Func:
    parser = _ScriptParser(source)
    match parser.statements():
        case [ast.FunctionDef() as d]:
            return parser.script(d, around)
        case [ast.AsyncFunctionDef() as d]:
            parser.fail(d, "a tensor program is not async")
        case _:
            parser.fail(None, "one function is expected")


class _ScriptParser(FuncParser):
    """Reads one function; errors show the line of its file."""

    def __init__(self, source: _Source) -> None:
        super().__init__(source.text)
        self._source = source

    # ---------------------------------------------------------------------------------------------------- errors

    def fail(self, node: ast.AST | None, message: str, hint: str | None = None) -> NoReturn:
        if not isinstance(node, ast.expr | ast.stmt | ast.arg):
            raise UserError(message, where=f"{self._source.file}:{self._source.first}", hint=hint)
        line = self._lines[node.lineno - 1]
        end = len(line)
        if node.end_col_offset is not None and node.end_lineno == node.lineno:
            end = _column(line, node.end_col_offset)
        self._raise(message, node.lineno, _column(line, node.col_offset), end, hint)

    def _raise(self, message: str, line: int, start: int, end: int, hint: str | None = None) -> NoReturn:
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        skip = len(text) - len(text.lstrip())
        caret = " " * max(start - skip, 0) + "^" * max(end - start, 1)
        place = f"{self._source.file}:{line + self._source.first - 1}"
        raise UserError(message, where=f"{place}\n      {text.strip()}\n      {caret}", hint=hint)

    # -------------------------------------------------------------------------------------------------- functions

    def script(self, d: ast.FunctionDef, around: Mapping[str, object]) -> Func:
        self._check_signature(d)
        d.decorator_list = []
        Resolve(around, script_bound_names(d), self.fail).visit(d)
        body = d.body[1:] if _is_docstring(d.body[0]) else d.body
        first, body, last = self._frame(body)
        allocs = [s for s in body if _is_alloc(s)]
        names = [*(a.arg for a in d.args.args), *allocated_names(body)]
        plain = Plain(frozenset(names), self.fail)
        if not last:  # it has its own list of outputs
            self._check_inputs(d, body)
        rewritten = plain.rewrite([s for s in body if not _is_alloc(s)])
        self._check_outputs(d, rewritten)
        d.body = [*first, *allocs, *rewritten, *last] or [ast.Pass()]
        made = self.func(d)
        made = made.with_body(self._with_kinds(made.body, plain.made))
        self._verify(made, d, plain.made | plain.explicit)
        return made

    def _check_signature(self, d: ast.FunctionDef) -> None:
        a = d.args
        odd = [*a.posonlyargs, *a.kwonlyargs, *(x for x in (a.vararg, a.kwarg) if x is not None)]
        if odd:
            self.fail(odd[0], "a tensor program has plain parameters only")
        if a.defaults:
            self.fail(a.defaults[0], "a buffer has no default value")
        for arg in a.args:
            if arg.annotation is None:
                self.fail(arg, f"{arg.arg} has no type", f"write {arg.arg}: tw.f32[8, 16]")

    def _frame(self, body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt], list[ast.stmt]]:
        """`names(…)` at the beginning and `return` at the end, which printed programs have."""
        first: list[ast.stmt] = []
        last: list[ast.stmt] = []
        match body:
            case [ast.Expr(value=ast.Call(func=ast.Name(id="names"))) as s, *_]:
                first, body = [s], body[1:]
            case _:
                pass
        match body:
            case [*_, ast.Return(value=ast.Name() | ast.Tuple()) as s]:
                last, body = [s], body[:-1]
            case _:
                pass
        return first, body, last

    def _check_inputs(self, d: ast.FunctionDef, body: list[ast.stmt]) -> None:
        """Only outputs are stored to."""
        inputs = {a.arg for a in d.args.args if not _is_out(a.annotation)}
        for s in all_stores(body):
            name = buffer_of(s)
            if name in inputs:
                self.fail(
                    s.targets[0] if isinstance(s, ast.Assign) else s,
                    f"{name} is an input, and is stored to",
                    f"declare it as an output: {name}: tw.out(…)",
                )

    def _check_outputs(self, d: ast.FunctionDef, body: list[ast.stmt]) -> None:
        """All outputs are stored to."""
        stored = {buffer_of(s) for s in all_stores(body)}
        for a in d.args.args:
            if _is_out(a.annotation) and a.arg not in stored:
                self.fail(a, f"nothing is stored to the output {a.arg}")

    def integer(self, node: ast.expr) -> int:
        value = fold_integer(node)
        if value is None:
            self.fail(
                node,
                f"{ast.unparse(node)} is not an integer that is known when the program is compiled",
                "extents are integers, or integer variables of the scope around the function",
            )
        if value < 0:
            self.fail(node, f"the extent is {value}", "extents are not negative")
        return value

    # ------------------------------------------------------------------------------------------------------ blocks

    def _with_kinds(self, s: Stmt, made: Mapping[str, ast.stmt]) -> Stmt:
        """Blocks that were made for stores get the kinds of their iterators."""
        if isinstance(s, Block) and s.name in made:
            return self._kinds(s, made[s.name])
        return map_children(s, lambda c: self._with_kinds(c, made))

    def _kinds(self, block: Block, at: ast.stmt) -> Block:
        store = next(n for n in walk_stmts(block.body) if isinstance(n, Store))
        chosen = {v for i in store.indices for v in free_vars(i)}
        repeated = [it for it in block.iters if it.var not in chosen and it.extent > 1]
        if not _is_update(store):
            self._check_apart(block, store, at)
        if block.init is not None:
            self._check_init(block, store, bool(repeated), at)
        iters = tuple(replace(it, kind=IterKind.REDUCE) if it in repeated else it for it in block.iters)
        return replace(block, iters=iters)

    def _check_apart(self, block: Block, store: Store, at: ast.stmt) -> None:
        """Each element is stored to once."""
        simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
        known = determined(store.indices, simplify)
        free = [it for it in block.iters if it.var not in known and it.extent > 1]
        if not free:
            return
        bound = dict(zip(block.iters, block.bindings, strict=True))
        loops = ", ".join(print_expr(bound[it]) for it in free)
        name = store.buffer.name
        self.fail(
            at,
            f"iterations of {loops} may store to the same element of {name}, and then the order matters",
            f"a reduction is an update: {name}[…] += …, = max({name}[…], …), = tw.fma(a, b, …); "
            "a temporary has an index for each loop; a block that is written out promises that it is all right",
        )

    def _check_init(self, block: Block, store: Store, is_reduction: bool, at: ast.stmt) -> None:
        if not is_reduction:
            self.fail(
                at,
                f"this store has an init, and no loop that repeats it for the same element of "
                f"{store.buffer.name}",
                "an init belongs to a reduction",
            )
        for n in (n for n in walk_stmts(block.init or Seq(())) if isinstance(n, Store)):
            if n.indices != store.indices:
                self.fail(at, f"its init stores to another element of {store.buffer.name}")

    def _verify(self, func: Func, d: ast.FunctionDef, places: Mapping[str, ast.stmt]) -> None:
        """Raise for what the rules of programs forbid, at the block that broke them where that is known."""
        for b in blocks(func.body):
            alone = replace(func, body=_only(func.body, b))
            stored = {n.buffer for n in walk_stmts(alone.body) if isinstance(n, Store)}
            alone = replace(alone, outputs=tuple(p for p in func.params if p in stored))
            if b.name in places:
                self._verified(alone, places[b.name])
        self._verified(func, d)

    def _verified(self, func: Func, at: ast.stmt) -> None:
        try:
            verify_func(func)
        except InternalError as e:
            message, _, place = str(e).partition("\n")
            message = message.removeprefix(f"{func.name}: ")
            if isinstance(at, ast.FunctionDef):
                raise UserError(
                    message,
                    where=f"{self._source.file}:{at.lineno + self._source.first - 1}\n    {place.strip()}",
                ) from None
            self.fail(at, message)


def _column(line: str, offset: int) -> int:
    """Python's trees count bytes."""
    return len(line.encode()[:offset].decode(errors="ignore"))


def _is_docstring(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)


def _is_alloc(s: ast.stmt) -> bool:
    match s:
        case ast.Assign(targets=[ast.Name()], value=ast.Call(func=ast.Name(id="alloc"))):
            return True
        case _:
            return False


def _is_out(annotation: ast.expr | None) -> bool:
    match annotation:
        case ast.Call(func=ast.Name(id="out")):
            return True
        case _:
            return False


def _is_update(store: Store) -> bool:
    """Does the store combine its element with something, in a way that can be done in any order?"""
    own = Load(store.buffer, store.indices)
    match store.value:
        case Fma(a=a, b=b, c=c) if c is own:
            return not _reads(store.buffer, a, b)
        case Binary(op=op, a=a, b=b) if op in _COMMUTE and (a is own) != (b is own):
            return not _reads(store.buffer, b if a is own else a)
        case Binary(op=BinaryOp.SUB, a=a, b=b) if a is own:
            return not _reads(store.buffer, b)
        case _:
            return False


def _reads(buffer: Buffer, *exprs: Expr) -> bool:
    return any(load.buffer is buffer for e in exprs for load in loads(e))


def _only(s: Stmt, block: Block) -> Stmt:
    """`s` without the other blocks."""
    if isinstance(s, Block):
        return s if s is block else Seq(())
    return map_children(s, lambda c: _only(c, block))
