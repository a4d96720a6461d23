"""The loops of a tensor program written by a person: one variable each, and each name once.

    for i, j in grid(M, N):            for C_i in range(M):
        C[i, j] = 0.0                      for C_j in range(N):
    for i, j in grid(M, N):                    C[C_i, C_j] = 0.0
        D[i, j] += C[i, j]     ──>     for D_i in range(M):
                                           for D_j in range(N):
                                               D[D_i, D_j] = D[D_i, D_j] + C[D_i, D_j]

A loop whose name another loop has too is named after the first block in it; so are iterators of blocks that are
written out. Blocks themselves are named after the buffers that are stored to: `C`, `C_1`. `range(lo, hi)` begins at 0
afterwards, numbers that are given a name are put in where it stands, and `a += b` is written out.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from tilewright.tir.expr_parser import number_of
from tilewright.tir.script_names import Refuse, fold_integer
from tilewright.tir.stmt import LoopKind
from tilewright.tir.syntax_tree import (
    at,
    block_names,
    buffer_of,
    header_lines,
    loop_variables,
    moved,
    replace_names,
    stores,
)

_LOOPS = tuple(k.value for k in LoopKind)
_STATEMENTS = "loops, `with block(…)`, `with init()`, `if`, stores `A[i] = …`, and abbreviations `x = …`"


@dataclass(slots=True)
class PlainLoops:
    """Rewrites the loops of one function. `blocks` has the name of the block that each store is to get, `explicit` the
    blocks that are written out, and `written` how the loops are called in the text.
    """

    buffers: frozenset[str]  # parameters and allocations
    fail: Refuse
    blocks: dict[ast.stmt, str] = field(default_factory=dict[ast.stmt, str])
    explicit: dict[str, ast.stmt] = field(default_factory=dict[str, ast.stmt])
    written: dict[str, str] = field(default_factory=dict[str, str])
    _taken: set[str] = field(default_factory=set[str])
    _repeated: set[str] = field(default_factory=set[str])

    def rewrite(self, body: list[ast.stmt]) -> list[ast.stmt]:
        self._plan(body)
        return self._loops(body, {}, ())

    # ---------------------------------------------------------------------------------------------------- names

    def _plan(self, body: list[ast.stmt]) -> None:
        """Choose the names of blocks, and find names that several loops or iterators have."""
        explicit = [name for s in body for name in block_names(s)]
        bound = Counter(name for s in body for name in loop_variables(s))
        self._repeated = {name for name, n in bound.items() if n > 1}
        self._taken = {name for name in bound if name not in self._repeated}
        used = set(explicit)
        for s in stores(body):
            stem = name = buffer_of(s)
            n = 0
            while name in used:
                n += 1
                name = f"{stem}_{n}"
            used.add(name)
            self.blocks[s] = name

    def _fresh(self, name: str, prefix: str) -> str:
        """`name` if nothing else is called so; otherwise with the block in front."""
        if name not in self._repeated:
            return name
        return self.unique(f"{prefix}_{name}")

    def unique(self, name: str) -> str:
        word, n = name, 1
        while word in self._taken or word in self.buffers:
            n += 1
            word = f"{name}x{n}"
        self._taken.add(word)
        return word

    # ---------------------------------------------------------------------------------- loops of one variable each

    def _loops(
        self,
        body: Iterable[ast.stmt],
        names: Mapping[str, ast.expr],
        around: tuple[str, ...],
        block: str = "",
    ) -> list[ast.stmt]:
        """Grids taken apart, loops renamed, `a += b` written out, abbreviated numbers put in. `names` has what names
        stand for from here on; `around` are the loops, and `block` the block that is written out around.
        """
        names, inherited = dict(names), frozenset(names)
        out: list[ast.stmt] = []
        for s in body:
            match s:
                case ast.For():
                    out.append(self._loop(s, names, around, block))
                case ast.AugAssign(target=ast.Subscript() as target, op=op, value=value):
                    self._check_target(target)
                    read = copy.copy(target)
                    read.ctx = ast.Load()
                    new = replace_names(at(s, ast.Assign([target], at(s, ast.BinOp(read, op, value)))), names)
                    out.append(moved(s, self.blocks, new))
                case ast.AugAssign(target=target):
                    cannot_update(self.fail, target)
                case ast.Assign(value=ast.Call(func=ast.Name(id="alloc"))):
                    self.fail(s, "buffers are allocated outside of loops and conditions", None)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if number_of(value) is not None:
                    self._check_free(s, name, around, inherited)
                    names[name] = value
                case ast.Assign(targets=[ast.Name(id=name)]):
                    self._check_free(s, name, around, inherited)
                    new = replace_names(s, names)
                    names.pop(name, None)
                    out.append(new)
                case ast.Assign(targets=[ast.Subscript() as target]):
                    self._check_target(target)
                    out.append(moved(s, self.blocks, replace_names(s, names)))
                case ast.Assign(targets=targets):
                    self.fail(targets[0], "one element or one name is assigned at a time", None)
                case ast.AnnAssign():
                    self.fail(s, "a local buffer is made by `T = tw.alloc(tw.f32[8, 8])`", None)
                case ast.If():
                    test = replace_names(s.test, names)
                    then, other = (self._loops(b, names, around, block) for b in (s.body, s.orelse))
                    out.append(at(s, ast.If(test, then, other)))
                case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="block")))]):
                    out.append(self._explicit(s, names, around))
                case ast.With():
                    items = [replace_names(i, names) for i in s.items]
                    out.append(at(s, ast.With(items, self._loops(s.body, names, around, block))))
                case ast.Pass():
                    out.append(s)
                case _:
                    self._unsupported(s)
        return out

    def _loop(
        self, s: ast.For, names: Mapping[str, ast.expr], around: tuple[str, ...], block: str
    ) -> ast.stmt:
        targets = s.target.elts if isinstance(s.target, ast.Tuple) else [s.target]
        if s.orelse:
            self.fail(s.orelse[0], "a loop has no else", None)
        match s.iter:
            case ast.Call(func=ast.Name(id="grid"), args=extents, keywords=[]):
                ranges = [at(e, ast.Call(ast.Name("range", ast.Load()), [e], [])) for e in extents]
                if len(targets) != len(extents):
                    self.fail(
                        s.target, f"{len(targets)} variables for a grid of {len(extents)} extents", None
                    )
            case ast.Call(func=ast.Name(id=kind), args=args) if kind in _LOOPS:
                ranges = [s.iter]
                if len(targets) != 1 or not 1 <= len(args) <= 2:
                    self.fail(
                        s, f"{kind} has one variable, and one extent", "several at once: `tw.grid(M, N)`"
                    )
            case _:
                self.fail(
                    s.iter,
                    "this is nothing that a loop can run over",
                    "`range(N)` or `tw.grid(M, N)`, or one of tw.parallel, tw.vectorized, tw.unrolled",
                )
        inside = dict(names)
        heads: list[tuple[ast.For, str]] = []
        found = [*(self.blocks[x] for x in stores(s.body) if x in self.blocks), block]
        prefix = found[0] or next((n for x in s.body for n in block_names(x)), "loop")
        for target, call in zip(targets, ranges, strict=True):
            if not isinstance(target, ast.Name):
                self.fail(target, "a loop variable is a name", None)
            if target.id in around or target.id in self.buffers:
                what = "a loop around this one" if target.id in around else "a buffer"
                self.fail(target, f"{target.id} is the name of {what}", "give the variable another name")
            around = (*around, target.id)
            word = self._fresh(target.id, prefix)
            self.written[word] = target.id
            call, first = self._extent(call, names)
            var: ast.expr = at(target, ast.Name(word, ast.Load()))
            inside[target.id] = (
                var if first == 0 else at(target, ast.BinOp(var, ast.Add(), at(target, ast.Constant(first))))
            )
            heads.append((at(s, ast.For(at(target, ast.Name(word, ast.Store())), call, [], [])), word))
        nest: list[ast.stmt] = self._loops(s.body, inside, around, block)
        for head, _ in reversed(heads):
            head.body = nest
            nest = [head]
        return heads[0][0]

    def _extent(self, call: ast.expr, names: Mapping[str, ast.expr]) -> tuple[ast.expr, int]:
        """The range with one extent, and where it begins."""
        assert isinstance(call, ast.Call)
        values: list[int] = []
        for node in call.args:
            value = fold_integer(replace_names(node, names))
            if value is None:
                self.fail(
                    node,
                    f"the extent {ast.unparse(node)} is not known when the program is compiled",
                    "extents are integers, or integer variables of the scope around the function",
                )
            values.append(value)
        first, end = (0, *values) if len(values) == 1 else values
        if end < first:
            self.fail(call, f"the extent is {end - first}", "extents are not negative")
        return at(call, ast.Call(call.func, [at(call, ast.Constant(end - first))], call.keywords)), first

    def _explicit(self, s: ast.With, names: Mapping[str, ast.expr], around: tuple[str, ...]) -> ast.stmt:
        """A block written out: its iterators get unique names too."""
        prefix = next(block_names(s), "block")
        if prefix in self.explicit:
            self.fail(s, f"there is a block {prefix!r} already", None)
        self.explicit[prefix] = s
        inside = dict(names)
        head: list[ast.stmt] = []
        for x in s.body[: header_lines(s.body)]:
            match x:
                case ast.Assign(targets=[ast.Name(id=name) as target], value=value):
                    word = self._fresh(name, prefix)
                    inside[name] = at(x, ast.Name(word, ast.Load()))
                    # Bindings and predicate are over loops: there the iterators are not known yet.
                    head.append(
                        at(
                            x,
                            ast.Assign(
                                [at(target, ast.Name(word, ast.Store()))], replace_names(value, names)
                            ),
                        )
                    )
                case ast.Expr(value=ast.Call(func=ast.Name(id="where"))):
                    head.append(replace_names(x, names))
                case _:
                    pass  # what a block reads and writes is derived from it
        rest = self._loops(s.body[header_lines(s.body) :], inside, around, prefix)
        return at(s, ast.With([replace_names(i, names) for i in s.items], [*head, *rest]))

    # ---------------------------------------------------------------------------------------------------- checks

    def _check_target(self, target: ast.Subscript) -> None:
        if not isinstance(target.value, ast.Name) or target.value.id not in self.buffers:
            self.fail(
                target.value,
                f"{ast.unparse(target.value)} is not a buffer",
                f"the buffers are: {', '.join(sorted(self.buffers)) or 'none'}",
            )

    def _check_free(
        self, s: ast.Assign, name: str, around: tuple[str, ...], inherited: frozenset[str]
    ) -> None:
        if name in around or name in self.buffers:
            what = "a loop variable" if name in around else "a buffer"
            hint = None if name in around else f"store to an element: {name}[…] = …"
            self.fail(s.targets[0], f"{name} is {what}", hint)
        if name in inherited:
            cannot_update(self.fail, s.targets[0])

    def _unsupported(self, s: ast.stmt) -> NoReturn:
        what = type(s).__name__.lower()
        if isinstance(s, ast.Return):
            self.fail(s, "results are stored, not returned", "declare them as C: tw.out(tw.f32[M, N])")
        if isinstance(s, ast.Expr):
            self.fail(s, "this statement does nothing", f"there are {_STATEMENTS}")
        self.fail(s, f"a tensor program has no `{what}`", f"there are {_STATEMENTS}")


def cannot_update(fail: Refuse, target: ast.expr) -> NoReturn:
    fail(
        target,
        f"{ast.unparse(target)} is an abbreviation and cannot be updated",
        "values that change are kept in buffers: T = tw.alloc(tw.f32[1]), T[0] += …",
    )
