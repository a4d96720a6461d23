"""Do the iterations of a loop depend on each other?

Two accesses of one buffer, a store and another, may touch the same element. If the element tells which
iteration of the loop touches it, both are in one iteration, and the order of iterations does not matter to
them.

    for i: { for r in range(4): A[i*4 + r] = …;   for s in range(4): … = A[i*4 + s] }      i // 4 is the
    same for both for k: C[i] = C[i] + …                                     the element C[i] is touched in
    every iteration of k

A buffer that is used only below the loop and filled in each iteration before it is read (a cache, a partial
result) is private to the iteration: it does not matter whether iterations fill the same part of it, for
each can have its own.
"""

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from tilewright.ir.expr import Buffer, Expr, Indices, Var, free_vars, loads
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Linear, Number, Simplifier
from tilewright.tir.analysis.affine import determines, is_injective
from tilewright.tir.analysis.regions import LinearTerms
from tilewright.tir.func import Func
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, IterKind, Stmt, Store, children, loops, stmt_exprs
from tilewright.tir.touched import touched


class Instance(NamedTuple):
    """A block with its bindings over loop variables, also where it is nested in other blocks."""

    block: Block
    bindings: tuple[Expr, ...]

    def loop_vars(self, kind: IterKind) -> set[Var]:
        pairs = zip(self.block.iters, self.bindings, strict=True)
        return set[Var]().union(*(free_vars(b) for it, b in pairs if it.kind is kind))


class OrderedAccess(NamedTuple):
    block: str  # the innermost block around it; "" outside of blocks
    buffer: Buffer
    indices: Indices  # over loop variables
    is_store: bool
    reduction: Instance | None  # the innermost block around it that has an init
    in_init: bool  # … of which it belongs to the init, not to the updates


class Conflict(NamedTuple):
    """Why iterations depend on each other: two blocks that meet in one element of a buffer."""

    buffer: Buffer
    writer: str
    other: str


def instances(s: Stmt, values: dict[Var, Expr] | None = None) -> Iterator[Instance]:
    """The blocks in `s`, in program order."""
    values = values or {}
    if isinstance(s, Block):
        bindings = tuple([substitute(b, values) for b in s.bindings])
        yield Instance(s, bindings)
        values = values | {it.var: b for it, b in zip(s.iters, bindings, strict=True)}
    for child in children(s):
        yield from instances(child, values)


def ordered_accesses(s: Stmt, only: Buffer | None = None) -> list[OrderedAccess]:
    """Every access in `s`, in program order (a statement's loads before its store); `only`: to that buffer."""
    out: list[OrderedAccess] = []
    _collect(s, _Place("", None, False, {}), only, out)
    return out


def count_accesses(s: Stmt, buffer: Buffer) -> int:
    """How many `ordered_accesses` of the buffer there are."""
    count, todo = 0, [s]
    while todo:
        n = todo.pop()
        if isinstance(n, Store):
            count += n.buffer is buffer
        else:
            known = touched(n)
            if buffer not in known.reads and buffer not in known.writes:
                continue
            todo.extend(children(n))
        for e in stmt_exprs(n):
            for load in loads(e):
                count += load.buffer is buffer
    return count


class _Place(NamedTuple):
    block: str
    reduction: Instance | None
    in_init: bool
    values: dict[Var, Expr]  # of iterators

    def access(self, buffer: Buffer, indices: Indices, is_store: bool) -> OrderedAccess:
        over_loops = tuple([substitute(i, self.values) for i in indices]) if self.values else indices
        return OrderedAccess(self.block, buffer, over_loops, is_store, self.reduction, self.in_init)


def _collect(s: Stmt, at: _Place, only: Buffer | None, out: list[OrderedAccess]) -> None:
    if only is not None and not isinstance(s, Store):
        known = touched(s)
        if only not in known.reads and only not in known.writes:
            return
    for e in stmt_exprs(s):
        for load in loads(e):
            if only is None or load.buffer is only:
                out.append(at.access(load.buffer, load.indices, False))
    if isinstance(s, Store):
        if only is None or s.buffer is only:
            out.append(at.access(s.buffer, s.indices, True))
        return
    if isinstance(s, Block):
        bindings = tuple([substitute(b, at.values) for b in s.bindings])
        values = at.values | {it.var: b for it, b in zip(s.iters, bindings, strict=True)}
        at = _Place(s.name, at.reduction, at.in_init, values)
        if s.init is not None:
            at = at._replace(reduction=Instance(s, bindings), in_init=False)
            _collect(s.init, at._replace(in_init=True), only, out)
        _collect(s.body, at, only, out)
        return
    for child in children(s):
        _collect(child, at, only, out)


# ----------------------------------------------------------------------------------------------------- questions


def dependence(
    func: Func,
    loop: For,
    *,
    private: bool = True,
    only: Buffer | None = None,
    simplify: Simplifier | None = None,
) -> Conflict | None:
    """A reason why the iterations of `loop` are not independent; None if they are.

    `private` buffers are no reason, unless the caller will not give each iteration its own. `only`: that
    one buffer is asked about. Who asks about many loops has one `simplify` for all of them, which knows their ranges.
    """
    if loop.extent == 1:
        return None
    return _dependence(func, loop, [loop.var], commute=False, private=private, only=only, simplify=simplify)


def order_dependence(func: Func, root: For, moved: Sequence[Var]) -> Conflict | None:
    """A reason why the loops `moved`, in the nest that begins with `root`, must run in the order they have.

    The updates of one reduction may change places with each other, so a block that only meets itself in the
    element it updates is no reason.
    """
    return _dependence(func, root, moved, commute=True, private=True)


def crossing(func: Func, root: For, var: Var) -> Conflict | None:
    """A reason why an element is touched in several iterations of the loop over `var`, in the nest that begins with
    `root`; whatever the other loops do meanwhile. None: what meets in an element is in one iteration.
    """
    return _dependence(func, root, [var], commute=False, private=False)


def merge_dependence(func: Func, parts: Sequence[Stmt], variables: Sequence[Var]) -> Conflict | None:
    """A reason why loops around one of the `parts` each cannot be one nest around all, with the loops `variables`.

    `func` is the program with them merged. A part's own iterations keep their order, so only elements that two parts
    touch matter: if always in the same iteration, the earlier part still comes first.
    """
    touched = [ordered_accesses(p) for p in parts]
    varying = {*variables, *(n.var for p in parts for n in loops(p))}
    simplify = Simplifier(ranges(func.body))
    for later in range(1, len(parts)):
        for a in (a for before in touched[:later] for a in before):
            for b in touched[later]:
                if a.buffer is not b.buffer or not (a.is_store or b.is_store):
                    continue
                if _are_apart(a.indices, b.indices, varying, simplify):
                    continue
                if not all(_same_iteration(a.indices, b.indices, v, varying, simplify) for v in variables):
                    writer, other = (a, b) if a.is_store else (b, a)
                    return Conflict(a.buffer, writer.block, other.block)
    return None


def _dependence(
    func: Func,
    root: For,
    variables: Sequence[Var],
    *,
    commute: bool,
    private: bool,
    only: Buffer | None = None,
    simplify: Simplifier | None = None,
) -> Conflict | None:
    below = ordered_accesses(root.body, only)
    varying = {root.var, *(n.var for n in loops(root.body))}
    once: set[Buffer] | None = None
    for buffer in dict.fromkeys(a.buffer for a in below if a.is_store):
        users = [a for a in below if a.buffer is buffer]
        pairs = _meetings(users, commute)
        if pairs and simplify is None:
            simplify = Simplifier(ranges(func.body))
        for var in variables if pairs else ():
            assert simplify is not None
            if private and _is_private(func, root, users, var, varying, simplify):
                continue
            for store, other in pairs:
                if other.is_store:
                    once = _written_once(root) if once is None else once
                    if buffer in once:
                        continue
                if commute and _chooses_updates(_one_reduction(store, other), var):
                    continue
                a, b = store.indices, other.indices
                if _same_iteration(a, b, var, varying, simplify) or _are_apart(a, b, varying, simplify):
                    continue
                return Conflict(buffer, store.block, other.block)
    return None


def _written_once(root: For) -> set[Buffer]:
    """The buffers of which no two block instances below `root` store to one element.

    Their writers are all-spatial and store at indices that tell the iterators, and together they run as
    often as the domain has elements. Instances cover the domain, that is what blocks promise (the parts of
    a partitioned loop together), so then each does so exactly once.
    """
    extents = {n.var: n.extent for n in loops(root)}
    runs: dict[Buffer, int] = {}
    domains: dict[Buffer, set[int]] = {}
    for b in instances(root):
        for store in _own_stores(b.block.body):
            used = set[Var]().union(*(free_vars(e) for e in b.bindings))
            once = store is b.block.body and used <= extents.keys() and _stores_apart(b.block, store)
            runs[store.buffer] = runs.get(store.buffer, 0) + math.prod(extents[v] for v in used if once)
            size = math.prod(it.extent for it in b.block.iters) if once else -1
            domains.setdefault(store.buffer, set()).add(size)
    return {b for b, sizes in domains.items() if sizes == {runs[b]}}


def _own_stores(s: Stmt) -> Iterator[Store]:
    """The stores in `s` that are not inside of blocks."""
    if isinstance(s, Store):
        yield s
    elif not isinstance(s, Block):
        for c in children(s):
            yield from _own_stores(c)


def _stores_apart(block: Block, store: Store) -> bool:
    """Do different values of the block's iterators mean different elements?"""
    if block.is_reduction:
        return False
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    return is_injective(store.indices, [it.var for it in block.iters], simplify)


def _meetings(users: list[OrderedAccess], commute: bool) -> list[tuple[OrderedAccess, OrderedAccess]]:
    """The stores with the accesses that they may have elements in common with; pairs of equal indices
    once.
    """
    found: dict[tuple[Indices, Indices, str], tuple[OrderedAccess, OrderedAccess]] = {}
    for store in (a for a in users if a.is_store):
        for other in users:
            if not (commute and store.block == other.block and _is_one_element(store, other)):
                reduction = _one_reduction(store, other)
                name = "" if reduction is None else reduction.block.name
                found.setdefault((store.indices, other.indices, name), (store, other))
    return list(found.values())


def _is_one_element(a: OrderedAccess, b: OrderedAccess) -> bool:
    """Do both always touch the element that the loops choose? One that data chooses is written in an order: the last
    update wins.
    """
    return a.indices == b.indices and not any(map(loads, a.indices))


def _one_reduction(a: OrderedAccess, b: OrderedAccess) -> Instance | None:
    """The reduction of which one access is in the init and the other in the updates."""
    same = a.reduction is not None and b.reduction is not None and a.reduction.block is b.reduction.block
    return a.reduction if same and a.in_init != b.in_init else None


def _chooses_updates(reduction: Instance | None, var: Var) -> bool:
    """Does the loop do nothing but choose updates of the reduction? Reordering sees to it that init comes first."""
    if reduction is None or var in reduction.loop_vars(IterKind.SPATIAL):
        return False
    return var in reduction.loop_vars(IterKind.REDUCE)


def _are_apart(a: Indices, b: Indices, varying: Set[Var], simplify: Simplifier) -> bool:
    """Do the two never touch one element, because in some dimension their ranges do not meet?"""
    for x, y in zip(a, b, strict=True):
        p, q = simplify.linear(x), simplify.linear(y)
        fixed = [tuple(t for t in f.terms if free_vars(t[0]).isdisjoint(varying)) for f in (p, q)]
        if fixed[0] != fixed[1]:
            continue
        u, v = (_interval(f.const, [t for t in f.terms if t not in fixed[0]], simplify) for f in (p, q))
        if u.hi < v.lo or v.hi < u.lo:
            return True
    return False


def _same_iteration(a: Indices, b: Indices, var: Var, varying: Set[Var], simplify: Simplifier) -> bool:
    """Does a[…] == b[…] mean that both are in the same iteration of `var`?

    In a dimension where both indices have the same terms in `var`, these terms are equal if the rest cannot
    make up for a difference: it spans less than their step, once what is a multiple of more than everything
    below is set aside. If the terms that are equal in this way determine `var`, the iterations are the
    same. So do the variables of loops further out, which both share.
    """
    equal: list[Expr] = [v for i in a for v in free_vars(i) if v not in varying]
    for x, y in zip(a, b, strict=True):
        p, q = _split(simplify.linear(x), var, varying), _split(simplify.linear(y), var, varying)
        if not p.own or p.own != q.own:
            continue
        same = p.fixed == q.fixed
        rest = [(*p.rest, *(() if same else p.fixed)), (*q.rest, *(() if same else q.fixed))]
        top = max(abs(c) for _, c in p.own)
        above = math.gcd(*(c for terms in rest for _, c in terms if abs(c) > top))
        apart = q.const - p.const
        if above:  # of which any multiple may be made up for by what is set aside
            apart = (apart + above // 2) % above - above // 2
        low = [
            _interval(const, [t for t in terms if abs(t[1]) <= top], simplify)
            for const, terms in zip((0, apart), rest, strict=True)
        ]
        gap = max(low[0].hi - low[1].lo, low[1].hi - low[0].lo)
        own = _interval(0, p.own, simplify)
        if gap < math.gcd(*(c for _, c in p.own)) and (above == 0 or own.hi - own.lo + gap < above):
            equal.append(simplify.expr(Linear(0, p.own)))
    return determines(equal, var, simplify)


def _is_private(
    func: Func, root: For, users: list[OrderedAccess], var: Var, varying: Set[Var], simplify: Simplifier
) -> bool:
    """Is a buffer of these uses below the loop `root` used nowhere else, and filled in each iteration before it is
    read?
    """
    buffer = users[0].buffer
    if buffer in func.params or not users[0].is_store:
        return False
    if func.body is not root and count_accesses(func.body, buffer) != len(users):
        return False
    regions = [(a, [_window(i, var, varying, simplify) for i in a.indices]) for a in users]
    stores = [r for a, r in regions if a.is_store]
    for access, region in regions:
        if access.is_store:
            continue
        for d, (key, window) in enumerate(region):
            filled = [s[d][1] for s in stores if s[d][0] == key]
            if not filled:
                return False
            if window.lo < min(f.lo for f in filled) or window.hi > max(f.hi for f in filled):
                return False
    return True


# --------------------------------------------------------------------------------------------------- index forms


class _Form(NamedTuple):
    """An index by what its terms mention: the loop variable, nothing that varies below the loop, or other
    loops.
    """

    const: int
    own: LinearTerms
    fixed: LinearTerms
    rest: LinearTerms


def _split(form: Linear, var: Var, varying: Set[Var]) -> _Form:
    own: list[tuple[Expr, int]] = []
    fixed: list[tuple[Expr, int]] = []
    rest: list[tuple[Expr, int]] = []
    for term in form.terms:
        names = free_vars(term[0])
        if var in names:
            own.append(term)
        elif names.isdisjoint(varying) and not loads(term[0]):
            fixed.append(term)
        else:
            rest.append(term)
    return _Form(form.const, tuple(own), tuple(fixed), tuple(rest))


def _interval(const: int, terms: Iterable[tuple[Expr, int]], simplify: Simplifier) -> Interval:
    lo: Number = const
    hi: Number = const
    for atom, k in terms:
        ends = [0 if e == 0 else e * k for e in simplify.bounds(atom)]
        lo, hi = lo + min(ends), hi + max(ends)
    return Interval(lo, hi)


def _window(
    index: Expr, var: Var, varying: Set[Var], simplify: Simplifier
) -> tuple[tuple[LinearTerms, LinearTerms], Interval]:
    form = _split(simplify.linear(index), var, varying)
    return (form.own, form.fixed), _interval(form.const, form.rest, simplify)
