"""The rules that every tensor program keeps. A program that breaks one is a defect of the compiler, never of a model.

Buffers
- Params are GLOBAL; no local or allocated buffer is a param; two buffers of a Func never share a name.
- Every buffer that is used is a param, a local, or used inside its Alloc.
- `outputs` are exactly the params that the body stores to.
- An access has one index per dimension, each of index type. An access that no condition guards is in bounds, as far
  as intervals of affine indices tell. A store's value has the type of its buffer.
Names and scope
- Loop variables, block iterators and block names are unique. (In lowered form loops may repeat, since unrolling copies
  them, but never inside one another.)
- A variable is used only where it is bound. The body of a block sees the iterators of the block and of those around
  it, and loops inside itself; no loop around the block.
Blocks
- One binding per iterator, of index type; the predicate is bool; neither reads memory.
- `init` belongs to blocks with reduce iterators. What a reduction block stores itself is not indexed by its reduce
  iterators, except by what is loaded with them, and `init` does not mention them.
Loops
- Extents are not negative. A `while` is inside of a block (its body, in lowered form), and holds no block.
- A vectorized loop holds no parallel one. Loops on thread axes fit a launch (`thread_axes`).
- Annotations of loops and blocks are sorted, each key once; their values are strings, finite numbers and bools.
- A param stored to inside a loop that promises independent iterations, unguarded, is indexed by the loop (else
  iterations race).
Types
- Operands have the types that their operation is defined for: `not`, conditions: bool; `fma`, `div` and functions:
  floats; shifts: integers; a bitcast keeps the width. A literal is a value of its type.
Lowered form (what the code generator takes)
- There are no blocks; REGISTER buffers are indexed by constants, unrolled and vectorized loops, and loops of an Emit.
Modules
- Names of Funcs and of shared buffers are unique, and across Funcs those of loops, iterators and blocks.
- The program calls Funcs that exist, with arguments of their params' types, and never writes inputs or constants.
- Conditions of the program are one-element bool buffers. Constants have values of their buffers' types.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NoReturn, assert_never

import numpy as np

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Bitcast,
    Buffer,
    Const,
    Expr,
    Fma,
    Indices,
    Load,
    Scope,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    free_vars,
    loads,
)
from tilewright.ir.expr import walk as walk_expr
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Simplifier
from tilewright.support.errors import InternalError
from tilewright.support.program import conditions, leaves
from tilewright.tir.func import Call, External, Func, Module
from tilewright.tir.printer import print_expr, print_head
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import (
    Alloc,
    Block,
    Emit,
    For,
    If,
    IterKind,
    LoopKind,
    Repeat,
    Seq,
    Stmt,
    Store,
    blocks,
    loops,
    stmt_exprs,
    walk_stmts,
)
from tilewright.tir.thread_axes import launch_misfit

_ANY_NUMBER = frozenset({UnaryOp.NEG, UnaryOp.ABS, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})
_INTEGERS = frozenset({BinaryOp.SHL, BinaryOp.SHR})
_NOT_FLOATS = frozenset({BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR})
_CONSTANT_AFTER_UNROLLING = frozenset({LoopKind.UNROLLED, LoopKind.VECTORIZED})


def verify_func(func: Func, *, lowered: bool = False) -> None:
    """Raises InternalError with the offending line if `func` breaks a rule."""
    _Check(func, lowered).run()


def verify_module(module: Module, *, lowered: bool = False) -> None:
    """The rules of modules, and of each Func."""
    for f in module.funcs:
        verify_func(f, lowered=lowered)
    _check_unique("function", (f.name for f in module.funcs), "the module")
    if not lowered:
        bodies = [f.body for f in module.funcs]
        _check_unique("loop or iterator", (n for b in bodies for n in _bound_names(b)), "the module")
        _check_unique("block", (b.name for s in bodies for b in blocks(s)), "the module")
    constants = [c.buffer for c in module.constants]
    shared = dict.fromkeys((*module.inputs, *constants, *module.temps, *module.outputs))
    _check_unique("buffer", (b.name for b in shared), "the module")
    for c in module.constants:
        value = np.asarray(c.value)
        if value.shape != c.buffer.shape or value.dtype != c.buffer.dtype.numpy:
            raise InternalError(
                f"the constant {c.buffer} has a value of {value.dtype} and shape {value.shape}"
            )
    for condition in conditions(module.program):
        _check_condition(condition, frozenset(shared))
    # An input that is an output too is changed in place.
    fixed = frozenset((*module.inputs, *constants)).difference(module.outputs)
    for call in leaves(module.program):
        _check_call(module, call, frozenset(shared), fixed)


# ----------------------------------------------------------------------------------------------------- programs


def _check_call(
    module: Module, call: Call | External, shared: frozenset[Buffer], fixed: frozenset[Buffer]
) -> None:
    match call:
        case Call():
            func = next((f for f in module.funcs if f.name == call.func), None)
            if func is None:
                raise InternalError(f"the program calls {call.func}, which does not exist")
            types = [[(b.dtype, b.shape) for b in bs] for bs in (func.params, call.args)]
            if types[0] != types[1]:
                raise InternalError(f"{func.name}{func.params} is called with {call.args}")
            written = [a for p, a in zip(func.params, call.args, strict=True) if p in func.outputs]
            _check_uses(func.name, call.args, written, shared, fixed)
        case External():
            uses = (*call.inputs, *call.outputs)
            _check_uses(f"external {call.key}", uses, call.outputs, shared, fixed)
        case _:
            assert_never(call)


def _check_uses(
    who: str,
    used: Iterable[Buffer],
    written: Iterable[Buffer],
    shared: frozenset[Buffer],
    fixed: frozenset[Buffer],
) -> None:
    for b in used:
        if b not in shared:
            raise InternalError(f"{who} is called with {b}, which the module does not own")
    for b in written:
        if b in fixed:
            raise InternalError(f"{who} is called to write {b}, an input or constant of the module")


def _check_condition(b: Buffer, shared: frozenset[Buffer]) -> None:
    if b not in shared or b.dtype is not DType.BOOL or b.size != 1:
        raise InternalError(
            f"the program decides on {b}, which is not a one-element bool buffer of the module"
        )


def _check_unique(what: str, names: Iterable[str], where: str) -> None:
    for name, n in Counter(names).items():
        if n > 1:
            raise InternalError(f"{where} has {n} {what}s named {name!r}")


def _bound_names(s: Stmt) -> Iterable[str]:
    yield from (n.var.name for n in loops(s))
    yield from (it.var.name for b in blocks(s) for it in b.iters)


# -------------------------------------------------------------------------------------------------------- Funcs


class _Scope:
    """What is known at a statement."""

    __slots__ = ("at_once", "block", "buffers", "emitted", "guarded", "iters", "loops", "values")

    def __init__(self, buffers: frozenset[Buffer]) -> None:
        self.buffers = buffers
        self.loops: dict[Var, For] = {}  # those that may be mentioned
        self.iters: frozenset[Var] = frozenset()
        self.block: Block | None = None
        self.values: dict[Var, Expr] = {}  # of iterators, over loop variables
        self.at_once: tuple[For, ...] = ()  # loops around that promise independent iterations
        self.guarded = False
        self.emitted: frozenset[Var] = frozenset()  # loops that instructions stand for

    def copy(self) -> "_Scope":
        new = _Scope(self.buffers)
        new.loops, new.iters, new.block, new.values = self.loops, self.iters, self.block, self.values
        new.at_once, new.guarded, new.emitted = self.at_once, self.guarded, self.emitted
        return new


class _Check:
    def __init__(self, func: Func, lowered: bool) -> None:
        self._func, self._lowered = func, lowered
        self._simplify = Simplifier(ranges(func.body))
        self._typed: set[Expr] = set()

    def fail(self, message: str, s: Stmt | None = None) -> NoReturn:
        where = "" if s is None else f"\n  at: {print_head(s)}"
        raise InternalError(f"{self._func.name}: {message}{where}")

    def run(self) -> None:
        func = self._func
        allocated = [n.buffer for n in walk_stmts(func.body) if isinstance(n, Alloc)]
        for b in func.params:
            if b.scope is not Scope.GLOBAL:
                self.fail(f"the param {b} is in {b.scope.value} scope")
            if b in func.locals or b in allocated:
                self.fail(f"the param {b} is a local buffer too")
        distinct = dict.fromkeys((*func.params, *func.locals, *allocated))
        _check_unique("buffer", (b.name for b in distinct), func.name)
        stored = {n.buffer for n in walk_stmts(func.body) if isinstance(n, Store)}
        written = {b for b in func.params if b in stored}
        if set(func.outputs) != written or len(set(func.outputs)) != len(func.outputs):
            self.fail(f"outputs are {list(func.outputs)}, but the body writes {sorted(written, key=repr)}")
        if not self._lowered:
            _check_unique("loop or iterator", _bound_names(func.body), func.name)
            _check_unique("block", (b.name for b in blocks(func.body)), func.name)
        misfit = launch_misfit(func.body)
        if misfit is not None:
            self.fail(misfit.reason, misfit.loop)
        self._stmt(func.body, _Scope(frozenset((*func.params, *func.locals))))

    def _stmt(self, s: Stmt, scope: _Scope) -> None:
        self._check_exprs(s, scope)
        match s:
            case For():
                self._loop(s, scope)
            case Block():
                self._block(s, scope)
            case Seq():
                for c in s.stmts:
                    self._stmt(c, scope)
            case If():
                self._check_type(s.cond, DType.BOOL, "the condition", s)
                inner = scope.copy()
                inner.guarded = True
                self._stmt(s.then, inner)
            case Repeat():
                self._repeat(s, scope)
            case Store():
                self._store(s, scope)
            case Emit():
                for load in (load for places in s.operands for load in places):
                    self._check_access("names", load.buffer, load.indices, scope.guarded, s, scope)
                inner = scope.copy()
                inner.emitted = frozenset(n.var for n in loops(s.body))
                self._stmt(s.body, inner)
            case Alloc():
                inner = scope.copy()
                inner.buffers = scope.buffers | {s.buffer}
                self._stmt(s.body, inner)
            case _:
                assert_never(s)

    def _loop(self, s: For, scope: _Scope) -> None:
        if s.extent < 0 or s.var.dtype is not INDEX:
            self.fail("a loop runs over a non-negative number of indices", s)
        self._check_annotations(s)
        if s.var in scope.loops:
            self.fail(f"{s.var.name} is bound inside its own loop", s)
        if s.kind is LoopKind.PARALLEL and any(n.kind is LoopKind.VECTORIZED for n in scope.at_once):
            self.fail("a parallel loop is inside a vectorized one", s)
        inner = scope.copy()
        inner.loops = {**scope.loops, s.var: s}
        if s.extent == 0:
            inner.guarded = True
        if s.kind.is_at_once and s.extent > 1:
            inner.at_once = (*scope.at_once, s)
        self._stmt(s.body, inner)

    def _repeat(self, s: Repeat, scope: _Scope) -> None:
        self._check_type(s.cond, DType.BOOL, "the condition", s)
        if not self._lowered and scope.block is None:
            self.fail("a while is outside of a block", s)
        if any(isinstance(n, Block) for n in walk_stmts(s.body)):
            self.fail("a block is inside of a while", s)
        inner = scope.copy()
        inner.guarded = True
        self._stmt(s.body, inner)

    def _check_annotations(self, s: For | Block) -> None:
        if not s.annotations:
            return
        keys = [k for k, _ in s.annotations]
        if keys != sorted(set(keys)) or "" in keys:
            self.fail(f"the annotations {keys} are not sorted by different keys", s)
        for k, v in s.annotations:
            if isinstance(v, float) and not math.isfinite(v):
                self.fail(f"the annotation {k!r} is {v}, which text does not show", s)

    def _block(self, s: Block, scope: _Scope) -> None:
        if self._lowered:
            self.fail("a block is left in lowered form", s)
        self._check_annotations(s)
        if len(s.bindings) != len(s.iters):
            self.fail(f"{len(s.iters)} iterators have {len(s.bindings)} bindings", s)
        for e in (*s.bindings, s.predicate):
            if loads(e):
                self.fail(f"the binding or predicate {print_expr(e)} reads memory", s)
        for b in s.bindings:
            self._check_type(b, INDEX, "a binding", s)
        self._check_type(s.predicate, DType.BOOL, "the predicate", s)
        reduce = {it.var for it in s.iters if it.kind is IterKind.REDUCE}
        if s.init is not None and not reduce:
            self.fail("a block without reduce iterators has an init", s)
        inner = scope.copy()
        inner.block, inner.loops = s, {}
        inner.iters = scope.iters | {it.var for it in s.iters}
        values = {it.var: substitute(b, scope.values) for it, b in zip(s.iters, s.bindings, strict=True)}
        inner.values = {**scope.values, **values}
        inner.guarded = scope.guarded or s.predicate is not TRUE or any(it.extent == 0 for it in s.iters)
        if s.init is not None:
            for e in (e for n in walk_stmts(s.init) for e in stmt_exprs(n)):
                if free_vars(e) & reduce:
                    self.fail(f"the init mentions a reduce iterator in {print_expr(e)}", s)
            self._stmt(s.init, inner)
        self._stmt(s.body, inner)

    def _store(self, s: Store, scope: _Scope) -> None:
        self._check_type(s.value, s.buffer.dtype, f"the value stored to {s.buffer}", s)
        self._check_access("writes", s.buffer, s.indices, scope.guarded, s, scope)
        mentioned = {v for i in s.indices for v in _vars_outside_loads(i)}
        if scope.block is not None:
            bad = [it.var for it in scope.block.iters if it.kind is IterKind.REDUCE and it.var in mentioned]
            if bad:
                self.fail(f"a reduction stores to elements that its iterator {bad[0].name} chooses", s)
        if not scope.guarded and s.buffer in self._func.params:
            outer = {v for i in s.indices for v in free_vars(substitute(i, scope.values))}
            for loop in scope.at_once:
                if loop.var not in outer:
                    self.fail(
                        f"all iterations of the {loop.kind.value} loop {loop.var.name} store to the same elements",
                        s,
                    )

    # -------------------------------------------------------------------------------------------------- expressions

    def _check_exprs(self, s: Stmt, scope: _Scope) -> None:
        visible = scope.loops.keys() | scope.iters
        for e in stmt_exprs(s):
            hidden = free_vars(e) - visible
            if hidden:
                v = min(v.name for v in hidden)
                self.fail(
                    f"{v} is not visible here" + (f" in block {scope.block.name}" if scope.block else ""), s
                )
            for n in walk_expr(e):
                if n not in self._typed:
                    self._typed.add(n)
                    wrong = _wrong_types(n)
                    if wrong is not None:
                        self.fail(f"{wrong}: {print_expr(n)}", s)
            for load, guarded in _guarded_loads(e).items():
                self._check_access("reads", load.buffer, load.indices, guarded or scope.guarded, s, scope)

    def _check_type(self, e: Expr, dtype: DType, what: str, s: Stmt) -> None:
        if e.dtype is not dtype:
            self.fail(f"{what} is {e.dtype}, not {dtype}", s)

    def _check_access(
        self, verb: str, buffer: Buffer, indices: Indices, guarded: bool, s: Stmt, scope: _Scope
    ) -> None:
        if buffer not in scope.buffers:
            self.fail(f"{buffer} is no param and no local buffer in scope here", s)
        if len(indices) != len(buffer.shape):
            self.fail(f"{buffer} is accessed with {len(indices)} indices", s)
        for index, extent in zip(indices, buffer.shape, strict=True):
            self._check_type(index, INDEX, f"an index of {buffer}", s)
            if not guarded and self._leaves(index, extent):
                lo, hi = self._simplify.bounds(index)
                self.fail(f"{verb} {buffer} at {print_expr(index)}, which goes from {lo} to {hi}", s)
            if self._lowered and buffer.scope is Scope.REGISTER:
                moving = [
                    v for v in free_vars(index) if not _is_unrolled(scope.loops, v) and v not in scope.emitted
                ]
                if moving or loads(index):
                    self.fail(f"the register {buffer.name} is indexed by what is no constant", s)

    def _leaves(self, index: Expr, extent: int) -> bool:
        """Is the index certainly out of bounds for some iteration? Only said of sums of variables, which take their
        bounds: iterations run for all combinations."""
        lo, hi = self._simplify.bounds(index)
        form = self._simplify.linear(index)
        return (lo < 0 or hi >= extent) and all(isinstance(a, Var) for a, _ in form.terms)


def _is_unrolled(around: Mapping[Var, For], v: Var) -> bool:
    return v in around and around[v].kind in _CONSTANT_AFTER_UNROLLING


def _vars_outside_loads(e: Expr) -> set[Var]:
    """The variables that an index mentions itself. In a scatter data chooses the element, and they choose the data."""
    found: set[Var] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Var):
            found.add(node)
        elif not isinstance(node, Load):
            stack.extend(node.children())
    return found


def _guarded_loads(e: Expr) -> dict[Load, bool]:
    """Every load, and whether all ways to it lead through a branch of a Select."""
    found: dict[Load, bool] = {}
    seen: set[tuple[Expr, bool]] = set()
    stack = [(e, False)]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        node, under = item
        if isinstance(node, Load):
            found[node] = found.get(node, True) and under
        if isinstance(node, Select):
            stack += [(node.cond, under), (node.a, True), (node.b, True)]
        else:
            stack += [(c, under) for c in node.children()]
    return found


def _wrong_types(e: Expr) -> str | None:
    """What is wrong with the operands' types, if anything."""
    match e:
        case Const():
            is_value = const(e.value, e.dtype) is e or e.value != e.value
            return None if is_value else f"{e.value!r} is not a value of {e.dtype}"
        case Unary(op=UnaryOp.NOT):
            return None if e.dtype is DType.BOOL else f"not of {e.dtype}"
        case Unary():
            fits = e.dtype.is_float or (e.dtype.is_int and e.op in _ANY_NUMBER)
            return None if fits else f"{e.op.value} of {e.dtype}"
        case Binary(op=BinaryOp.DIV):
            return None if e.dtype.is_float else f"div of {e.dtype}; integers have floordiv"
        case Binary() if e.op in _INTEGERS:
            return None if e.dtype.is_int else f"{e.op.value} of {e.dtype}"
        case Binary() if e.op in _NOT_FLOATS:
            return f"{e.op.value} of {e.dtype}" if e.dtype.is_float else None
        case Fma():
            fits = e.dtype.is_float and e.a.dtype is e.b.dtype is e.c.dtype
            return None if fits else f"fma of {e.a.dtype}, {e.b.dtype} and {e.c.dtype}"
        case Select():
            return None if e.cond.dtype is DType.BOOL else f"select on {e.cond.dtype}"
        case Bitcast():
            return None if e.dtype.bits == e.a.dtype.bits else f"bitcast from {e.a.dtype} to {e.dtype}"
        case _:
            return None
