"""From the plain form of a tensor program to the explicit one, which `parser` reads.

    for i, j, k in grid(M, N, K):                        for i in range(M):
        with init():                                         for j in range(N):
            C[i, j] = 0.0                                        for k in range(K):
        C[i, j] += A[i, k] * B[k, j]            ──>                  with block("C"):
                                                                         C_vi = spatial(M, i)
                                                                         C_vj = spatial(N, j)
                                                                         C_vk = spatial(K, k)
                                                                         with init():
                                                                             C[C_vi, C_vj] = 0.0
                                                                         C[C_vi, C_vj] = C[C_vi, C_vj] + A[…] * B[…]

Both are Python's syntax trees, and each new node has the place of the one it was made from. `script` decides on the
kinds of the iterators afterwards, when it sees the program.

- A store that stands in no block gets one, named after its buffer, with an iterator for each loop around it. Conditions
  around it move into the block, so they must not read what is stored under them.
- Names are made unique: a loop whose name another loop has too is named after the first block in it, `C_1_i`; so are
  iterators.
- `x = A[i] * 2.0` abbreviates an expression. It is read where `x` is used, so what it reads must not be stored to in
  between, and it cannot count or accumulate.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tilewright.tir.expr_parser import number_of
from tilewright.tir.script_names import Fail, fold_integer
from tilewright.tir.stmt import LoopKind
from tilewright.tir.syntax_tree import (
    Node,
    all_stores,
    at,
    block_names,
    bound_in,
    buffer_of,
    header_lines,
    is_store,
    loop_names,
    moved,
    names_in,
    renamed,
    stores,
)

_LOOPS = tuple(k.value for k in LoopKind)
_STATEMENTS = "loops, `with block(…)`, `with init()`, `if`, stores `A[i] = …`, and abbreviations `x = …`"


@dataclass(slots=True)
class Plain:
    """Rewrites the body of one function. `made` has the store that each block was made from, `explicit` the blocks that
    are written out.
    """

    buffers: frozenset[str]  # parameters and allocations
    fail: Fail
    made: dict[str, ast.stmt] = field(default_factory=dict[str, ast.stmt])
    explicit: dict[str, ast.stmt] = field(default_factory=dict[str, ast.stmt])
    _blocks: dict[ast.stmt, str] = field(default_factory=dict[ast.stmt, str])
    _taken: set[str] = field(default_factory=set[str])
    _repeated: set[str] = field(default_factory=set[str])
    _lines: dict[str, ast.stmt] = field(default_factory=dict[str, ast.stmt])  # abbreviations by unique name
    _written: dict[str, str] = field(default_factory=dict[str, str])  # how loops are called in the text

    def rewrite(self, body: list[ast.stmt]) -> list[ast.stmt]:
        self._plan(body)
        unique = self._loops(body, {}, ())
        return self._statements(unique, _Place())

    # ---------------------------------------------------------------------------------------------------- names

    def _plan(self, body: list[ast.stmt]) -> None:
        """Choose the names of blocks, and find names that several loops or iterators have."""
        explicit = [name for s in body for name in block_names(s)]
        bound = Counter(name for s in body for name in loop_names(s))
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
            self._blocks[s] = name

    def _fresh(self, name: str, prefix: str) -> str:
        """`name` if nothing else is called so; otherwise with the block in front."""
        if name not in self._repeated:
            return name
        return self._unique(f"{prefix}_{name}")

    def _unique(self, name: str) -> str:
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
                    new = renamed(at(s, ast.Assign([target], at(s, ast.BinOp(read, op, value)))), names)
                    out.append(moved(s, self._blocks, new))
                case ast.AugAssign(target=target):
                    self._cannot_update(target)
                case ast.Assign(value=ast.Call(func=ast.Name(id="alloc"))):
                    self.fail(s, "buffers are allocated outside of loops and conditions", None)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if number_of(value) is not None:
                    self._check_free(s, name, around, inherited)
                    names[name] = value
                case ast.Assign(targets=[ast.Name(id=name)]):
                    self._check_free(s, name, around, inherited)
                    new = renamed(s, names)
                    names.pop(name, None)
                    out.append(new)
                case ast.Assign(targets=[ast.Subscript() as target]):
                    self._check_target(target)
                    out.append(moved(s, self._blocks, renamed(s, names)))
                case ast.Assign(targets=targets):
                    self.fail(targets[0], "one element or one name is assigned at a time", None)
                case ast.AnnAssign():
                    self.fail(s, "a local buffer is made by `T = tw.alloc(tw.f32[8, 8])`", None)
                case ast.If():
                    test = renamed(s.test, names)
                    then, other = (self._loops(b, names, around, block) for b in (s.body, s.orelse))
                    out.append(at(s, ast.If(test, then, other)))
                case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="block")))]):
                    out.append(self._explicit(s, names, around))
                case ast.With():
                    items = [renamed(i, names) for i in s.items]
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
        found = [*(self._blocks[x] for x in stores(s.body) if x in self._blocks), block]
        prefix = found[0] or next((n for x in s.body for n in block_names(x)), "loop")
        for target, call in zip(targets, ranges, strict=True):
            if not isinstance(target, ast.Name):
                self.fail(target, "a loop variable is a name", None)
            if target.id in around or target.id in self.buffers:
                what = "a loop around this one" if target.id in around else "a buffer"
                self.fail(target, f"{target.id} is the name of {what}", "give the variable another name")
            around = (*around, target.id)
            word = self._fresh(target.id, prefix)
            self._written[word] = target.id
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
            value = fold_integer(renamed(node, names))
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
                        at(x, ast.Assign([at(target, ast.Name(word, ast.Store()))], renamed(value, names)))
                    )
                case ast.Expr(value=ast.Call(func=ast.Name(id="where"))):
                    head.append(renamed(x, names))
                case _:
                    pass  # what a block reads and writes is derived from it
        rest = self._loops(s.body[header_lines(s.body) :], inside, around, prefix)
        return at(s, ast.With([renamed(i, names) for i in s.items], [*head, *rest]))

    # ------------------------------------------------------------------------------------------ blocks for stores

    def _statements(
        self, body: Sequence[ast.stmt], place: "_Place", init: ast.With | None = None
    ) -> list[ast.stmt]:
        """`init` belongs to the first statement."""
        place = place.copy()
        out: list[ast.stmt] = []
        for s in body:
            if init is not None and not self._is_update(s):
                self.fail(init, "`init` comes right before the update that it belongs to", None)
            match s:
                case ast.Assign(targets=[ast.Subscript()]):
                    out.append(self._block(s, place, init) if s in self._blocks else self._use(s, place))
                    init = None
                    place.stored([buffer_of(s)])
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    out.append(self._let(s, name, value, place))
                case ast.For(target=ast.Name(id=word), iter=ast.Call(args=[extent])):
                    place.stored(buffer_of(x) for x in all_stores(s.body))
                    inner = place.inner()
                    inner.loops.append((word, extent))
                    out.append(at(s, ast.For(s.target, s.iter, self._statements(s.body, inner), [])))
                    place.rebound(bound_in(s.body))
                case ast.If():
                    out += self._if(s, place, init)
                    init = None
                case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="init"), args=[]))]):
                    if place.conds:
                        self.fail(s, "`init` does not stand under `if`", "put it in front of the condition")
                    if place.in_block:
                        out.append(at(s, ast.With(s.items, self._statements(s.body, place))))
                    else:
                        init = s
                case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="block")))]):
                    if place.conds:
                        self.fail(s, "a block does not stand under `if`", "write where(…) inside the block")
                    inner = place.inner()
                    inner.in_block = True
                    n = header_lines(s.body)
                    head = [self._use(x, place) for x in s.body[:n]]
                    out.append(at(s, ast.With(s.items, [*head, *self._statements(s.body[n:], inner)])))
                    place.stored(buffer_of(x) for x in all_stores([s]))
                case ast.With():
                    items = [self._use(x, place) for x in s.items]
                    out.append(at(s, ast.With(items, self._statements(s.body, place))))
                    place.stored(buffer_of(x) for x in all_stores([s]))
                case _:
                    out.append(s)
        if init is not None:
            self.fail(init, "`init` comes right before the update that it belongs to", None)
        return out or [ast.Pass()]

    def _if(self, s: ast.If, place: "_Place", init: ast.With | None) -> list[ast.stmt]:
        """In a block it stays what it is; elsewhere it moves into the blocks."""
        test = self._use(s.test, place)
        self._check_condition(s.test, [*s.body, *s.orelse])
        out: list[ast.stmt] = []
        for branch, cond in ((s.body, test), (s.orelse, at(s.test, ast.UnaryOp(ast.Not(), test)))):
            if not branch:
                continue
            inner = place.inner()
            if place.in_block:
                out.append(at(s, ast.If(cond, self._statements(branch, inner), [])))
            else:
                inner.conds.append(cond)
                out += self._statements(branch, inner, init if branch is s.body else None)
        place.stored(buffer_of(x) for x in all_stores([s]))
        place.rebound(bound_in([s]))
        return out

    def _is_update(self, s: ast.stmt) -> bool:
        """Is this one store, perhaps under conditions?"""
        match s:
            case ast.If(body=[inner], orelse=[]):
                return self._is_update(inner)
            case _:
                return s in self._blocks

    def _block(self, s: ast.Assign, place: "_Place", init: ast.With | None) -> ast.stmt:
        name = self._blocks[s]
        self.made[name] = s
        iters: dict[str, ast.expr] = {}
        body: list[ast.stmt] = []
        for word, extent in place.loops:
            own = self._unique(f"{name}_v{self._written[word]}")
            iters[word] = at(s, ast.Name(own, ast.Load()))
            call = ast.Call(ast.Name("spatial", ast.Load()), [extent, ast.Name(word, ast.Load())], [])
            body.append(at(s, ast.Assign([ast.Name(own, ast.Store())], call)))
        if init is not None:
            for x in init.body:
                if not is_store(x) or buffer_of(x) != buffer_of(s):
                    self.fail(x, f"`init` gives {buffer_of(s)} its first value, and does nothing else", None)
            firsts = [self._use(x, place) for x in init.body]
            inner = [renamed(x, iters) for x in (*self._lines_for(firsts), *firsts)]
            body.append(at(init, ast.With(init.items, inner)))
        store: ast.stmt = self._use(s, place)
        for cond in reversed(place.conds):
            store = at(cond, ast.If(cond, [store], []))
        body += [renamed(x, iters) for x in (*self._lines_for([store]), store)]
        head = ast.Call(ast.Name("block", ast.Load()), [ast.Constant(name)], [])
        return at(s, ast.With([ast.withitem(head)], body))

    # ----------------------------------------------------------------------------------------------- abbreviations

    def _let(self, s: ast.Assign, name: str, value: ast.expr, place: "_Place") -> ast.stmt:
        """Each is a name of its own from here on, so that `y` in `y = x; x = 2 * x` goes on to mean the first `x`."""
        before = place.lets.get(name)
        if before is not None and place.depth > before.depth and name in names_in(value):
            self._cannot_update(s.targets[0])
        new = self._use(value, place)
        reads = (names_in(value) & self.buffers).union(
            *(place.lets[n].reads for n in names_in(value) if n in place.lets)
        )
        word = self._unique(name)
        line = at(s, ast.Assign([at(s, ast.Name(word, ast.Store()))], new))
        self._lines[word] = line
        place.lets[name] = _Let(s, word, place.depth, reads)
        return line

    def _use(self, node: Node, place: "_Place") -> Node:
        """`node` with the names that abbreviations have; they hold here."""
        for n in ast.walk(node):
            if not isinstance(n, ast.Name) or not isinstance(n.ctx, ast.Load):
                continue
            let = place.lets.get(n.id)
            if let is not None and let.stale:
                self.fail(
                    n,
                    f"{n.id} abbreviates `{ast.unparse(let.line)}`, and {let.stale} since",
                    "keep the value in a buffer: T = tw.alloc(…)",
                )
        return renamed(node, {name: ast.Name(let.word, ast.Load()) for name, let in place.lets.items()})

    def _lines_for(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The abbreviations that these statements use, in the order they were made."""
        wanted = set[str]().union(*(names_in(s) for s in body))
        for word, line in reversed(self._lines.items()):
            if word in wanted:
                wanted |= names_in(line)
        return [line for word, line in self._lines.items() if word in wanted]

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
            self._cannot_update(s.targets[0])

    def _check_condition(self, test: ast.expr, body: list[ast.stmt]) -> None:
        stores = list(all_stores(body))
        read = names_in(test) & {buffer_of(x) for x in stores}
        if read and not (len(stores) == 1 and body == stores):
            self.fail(
                test,
                f"the condition reads {min(read)}, which is stored to under it",
                "use tw.select, or keep the condition in a buffer",
            )

    def _cannot_update(self, target: ast.expr) -> NoReturn:
        self.fail(
            target,
            f"{ast.unparse(target)} is an abbreviation and cannot be updated",
            "values that change are kept in buffers: T = tw.alloc(tw.f32[1]), T[0] += …",
        )

    def _unsupported(self, s: ast.stmt) -> NoReturn:
        what = type(s).__name__.lower()
        if isinstance(s, ast.Return):
            self.fail(s, "results are stored, not returned", "declare them as C: tw.out(tw.f32[M, N])")
        if isinstance(s, ast.Expr):
            self.fail(s, "this statement does nothing", f"there are {_STATEMENTS}")
        self.fail(s, f"a tensor program has no `{what}`", f"there are {_STATEMENTS}")


@dataclass(slots=True)
class _Let:
    """An abbreviation, its unique name, how deep in loops it was made, the buffers it reads, and why it no longer
    holds.
    """

    line: ast.Assign
    word: str
    depth: int
    reads: set[str]
    stale: str = ""


@dataclass(slots=True)
class _Place:
    """What is around a statement."""

    loops: list[tuple[str, ast.expr]] = field(default_factory=list[tuple[str, ast.expr]])
    conds: list[ast.expr] = field(default_factory=list[ast.expr])
    lets: dict[str, _Let] = field(default_factory=dict[str, _Let])
    depth: int = 0
    in_block: bool = False

    def copy(self) -> "_Place":
        lets = {n: copy.copy(x) for n, x in self.lets.items()}
        return _Place(list(self.loops), list(self.conds), lets, self.depth, self.in_block)

    def inner(self) -> "_Place":
        """A place in a loop, a condition or a block here."""
        new = self.copy()
        new.depth += 1
        return new

    def stored(self, buffers: Iterable[str]) -> None:
        for b in buffers:
            for let in self.lets.values():
                if b in let.reads:
                    let.stale = f"{b} has been stored to"

    def rebound(self, names: Iterable[str]) -> None:
        """Python would see what the loop has assigned; here the name means what it did before."""
        for n in names:
            if n in self.lets:
                self.lets[n].stale = "it has been assigned in a loop or condition"
