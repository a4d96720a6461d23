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
- Loops have one variable each before that, and unique names: `plain_loops` does it.
- `x = A[i] * 2.0` abbreviates an expression. It is read where `x` is used, so what it reads must not be stored to in
  between, and it cannot count or accumulate.
"""

import ast
import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.tir.plain_loops import PlainLoops, cannot_update
from tilewright.tir.script_names import Refuse
from tilewright.tir.syntax_tree import (
    AstNode,
    all_stores,
    at,
    bound_in,
    buffer_of,
    header_lines,
    is_store,
    names_in,
    replace_names,
)


class Plain:
    """Rewrites the body of one function over `buffers`: parameters and allocations. `made` has the store that each
    block was made from, `explicit` the blocks that are written out.
    """

    def __init__(self, buffers: frozenset[str], fail: Refuse) -> None:
        self.fail = fail
        self.made: dict[str, ast.stmt] = {}
        self._loops = PlainLoops(buffers, fail)
        self._lines: dict[str, ast.stmt] = {}  # abbreviations by unique name

    @property
    def explicit(self) -> dict[str, ast.stmt]:
        return self._loops.explicit

    def rewrite(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return self._statements(self._loops.rewrite(body), _Place())

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
                    out.append(
                        self._block(s, place, init) if s in self._loops.blocks else self._use(s, place)
                    )
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
                return s in self._loops.blocks

    def _block(self, s: ast.Assign, place: "_Place", init: ast.With | None) -> ast.stmt:
        name = self._loops.blocks[s]
        self.made[name] = s
        iters: dict[str, ast.expr] = {}
        body: list[ast.stmt] = []
        for word, extent in place.loops:
            own = self._loops.unique(f"{name}_v{self._loops.written[word]}")
            iters[word] = at(s, ast.Name(own, ast.Load()))
            call = ast.Call(ast.Name("spatial", ast.Load()), [extent, ast.Name(word, ast.Load())], [])
            body.append(at(s, ast.Assign([ast.Name(own, ast.Store())], call)))
        if init is not None:
            for x in init.body:
                if not is_store(x) or buffer_of(x) != buffer_of(s):
                    self.fail(x, f"`init` gives {buffer_of(s)} its first value, and does nothing else", None)
            firsts = [self._use(x, place) for x in init.body]
            inner = [replace_names(x, iters) for x in (*self._lines_for(firsts), *firsts)]
            body.append(at(init, ast.With(init.items, inner)))
        store: ast.stmt = self._use(s, place)
        for cond in reversed(place.conds):
            store = at(cond, ast.If(cond, [store], []))
        body += [replace_names(x, iters) for x in (*self._lines_for([store]), store)]
        head = ast.Call(ast.Name("block", ast.Load()), [ast.Constant(name)], [])
        return at(s, ast.With([ast.withitem(head)], body))

    # ----------------------------------------------------------------------------------------------- abbreviations

    def _let(self, s: ast.Assign, name: str, value: ast.expr, place: "_Place") -> ast.stmt:
        """Each is a name of its own from here on, so that `y` in `y = x; x = 2 * x` goes on to mean the first `x`."""
        before = place.lets.get(name)
        if before is not None and place.depth > before.depth and name in names_in(value):
            cannot_update(self.fail, s.targets[0])
        new = self._use(value, place)
        reads = (names_in(value) & self._loops.buffers).union(
            *(place.lets[n].reads for n in names_in(value) if n in place.lets)
        )
        word = self._loops.unique(name)
        line = at(s, ast.Assign([at(s, ast.Name(word, ast.Store()))], new))
        self._lines[word] = line
        place.lets[name] = _Let(s, word, place.depth, reads)
        return line

    def _use(self, node: AstNode, place: "_Place") -> AstNode:
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
        return replace_names(node, {name: ast.Name(let.word, ast.Load()) for name, let in place.lets.items()})

    def _lines_for(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The abbreviations that these statements use, in the order they were made."""
        wanted = set[str]().union(*(names_in(s) for s in body))
        for word, line in reversed(self._lines.items()):
            if word in wanted:
                wanted |= names_in(line)
        return [line for word, line in self._lines.items() if word in wanted]

    def _check_condition(self, test: ast.expr, body: list[ast.stmt]) -> None:
        stores = list(all_stores(body))
        read = names_in(test) & {buffer_of(x) for x in stores}
        if read and not (len(stores) == 1 and body == stores):
            self.fail(
                test,
                f"the condition reads {min(read)}, which is stored to under it",
                "use tw.select, or keep the condition in a buffer",
            )


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
