"""rfactor: a reduce loop becomes spatial, through a buffer of partial results.

    for i in range(8):                          Rfactor("C", "k_1")
        for k_0 in range(4):                          ─────>
            for k_1 in range(16):
                C(vi = i, vk = reduce(k_0 * 16 + k_1))          C[vi] += A[vi, vk]

    for i in range(8):
        for k_0 in range(4):
            for k_1 in range(16):
                C_rf(vi_rf = i, k_0_v_rf = reduce(k_0), k_1_v_rf = k_1)
                                                        C_rf[vi_rf, k_1_v_rf] += A[vi_rf, k_0_v_rf * 16 + k_1_v_rf]
    for i_m in range(8):
        for k_1_m in range(16):
            C(vi = i_m, k_1_v = reduce(k_1_m))                  C[vi] += C_rf[vi, k_1_v]

`C_rf` fills a buffer of the same name, with one dimension more, whose extent is that of the loop; there the loop is
spatial and can be vectorized. Then `C` combines the partial results. It keeps its name and its init.

Of the nest around the block, what holds nothing else is its own: there `C` gets copies of the spatial loops (suffix
`_m`, for merge), right after. Loops that other blocks share stay shared, so a row reduction that was moved into a loop
over rows stays in it: rows outside, lanes inside.

A reduction over lanes rounds differently; that is why it is a step.
"""

from dataclasses import dataclass, replace

from tilewright.ir.condition import conjuncts, logical_and
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Buffer,
    Expr,
    Fma,
    Load,
    Var,
    as_index,
    binary,
    free_vars,
    loads,
    select,
)
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.edit import replace_stmt, swap_stmt, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block, find_loop, loop_vars, loops_on, path_to
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.step import BlockStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.independence import ordered_accesses
from tilewright.tir.analysis.open_reductions import mask_of
from tilewright.tir.build import identity
from tilewright.tir.func import Func
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import Block, For, Iter, IterKind, LoopKind, Stmt, Store, blocks, seq

_IDENTITY = {BinaryOp.ADD: "sum", BinaryOp.MUL: "prod", BinaryOp.MAX: "max", BinaryOp.MIN: "min"}


@dataclass(frozen=True, slots=True)
class Update:
    """acc = combine(acc, value), where the value is one expression or, for a fused multiply-add, two factors."""

    combine: BinaryOp
    acc: Load
    operands: tuple[Expr, ...]

    def value(self, acc: Expr) -> Expr:
        return (
            Fma(*self.operands, acc) if len(self.operands) == 2 else binary(self.combine, acc, *self.operands)
        )

    @property
    def alone(self) -> Expr:
        """What is combined with the accumulator."""
        return binary(BinaryOp.MUL, *self.operands) if len(self.operands) == 2 else self.operands[0]

    @property
    def identity(self) -> Expr:
        return identity(_IDENTITY[self.combine], self.acc.dtype)

    def guarded(self, cond: Expr) -> "Update":
        """The same update where `cond` holds, and none elsewhere. Both factors become 0: 0 · NaN is not 0."""
        return replace(self, operands=tuple([select(cond, x, self.identity) for x in self.operands]))


@dataclass(frozen=True, slots=True)
class Rfactor(BlockStep):
    loop: str
    suffix: str = "rf"  # of the new names; factoring a block once more needs another

    @property
    def name(self) -> str:
        """The new block, and its buffer."""
        return f"{self.block}_{self.suffix}"

    @property
    def merge_loop(self) -> str:
        """The loop over the partial results."""
        return f"{self.loop}_m"

    def rewrite(self, func: Func) -> Func:
        block, loop = find_block(func, self.block), find_loop(func, self.loop)
        path = path_to(func.body, block)
        self._check_loops(func, block, loop, loops_on(path))
        update = _update_of(func, block)
        root = _own_nest(func, block, path, update.acc.buffer)
        own = loops_on(path_to(root, block))

        buffer = update.acc.buffer
        if any(b.name == self.name for b in (*func.params, *func.locals)):
            raise ScheduleError(
                f"there is a buffer {self.name!r} already", hint="factor the block it belongs to"
            )
        sizes = (*buffer.sizes, None) if buffer.sizes else ()
        partial = Buffer(self.name, (*buffer.shape, loop.extent), buffer.dtype, buffer.scope, sizes)
        outside, inside = _split_predicate(func, block)
        rf = self._partial_block(block, loops_on(path), update, partial, (outside, inside))
        merge = self._merge_nest(block, own, loop, update, partial, outside)
        known = bound_names(block)
        check_fresh(func, bound_names(rf) | (bound_names(merge) - known))
        nest = seq(swap_stmt(root, block, rf), merge)
        return replace(replace_stmt(func, root, nest), locals=(*func.locals, partial))

    def _check_loops(self, func: Func, block: Block, loop: For, around: list[For]) -> None:
        reduce, spatial = loop_vars(block, IterKind.REDUCE), loop_vars(block, IterKind.SPATIAL)
        if not any(n is loop for n in around):
            raise step_refusal(func, loop, f"{self.loop} is not around {self.block}")
        if loop.kind is not LoopKind.SERIAL:
            raise step_refusal(
                func, loop, f"{self.loop} is {loop.kind.value}", hint="factor the loop before that"
            )
        if loop.var not in reduce:
            raise step_refusal(
                func,
                loop,
                f"{self.loop} feeds no reduce iterator of {self.block}",
                hint="only a loop that is reduced over has partial results",
            )
        both = sorted(v.name for v in reduce & spatial)
        if both:
            raise step_refusal(
                func, block, f"{both[0]} feeds both spatial and reduce iterators of {self.block}"
            )
        if not reduce <= {n.var for n in around}:
            raise step_refusal(
                func, block, f"reduce iterators of {self.block} are bound by a block around it"
            )

    def _partial_block(
        self,
        block: Block,
        around: list[For],
        update: Update,
        partial: Buffer,
        predicate: tuple[Expr, Expr],
    ) -> Block:
        """The block that fills `partial`: an iterator for each reduce loop, that of `loop` spatial and last."""
        outside, inside = predicate
        reduce = loop_vars(block, IterKind.REDUCE)
        feeding = [n for n in around if n.var in reduce]
        feeding.sort(key=lambda n: n.var.name == self.loop)
        of_loop: dict[Var, Expr] = {n.var: Var(f"{n.var.name}_v_{self.suffix}") for n in feeding}
        values: dict[Var, Expr] = {}
        iters: list[Iter] = []
        bindings: list[Expr] = []
        for it, b in zip(block.iters, block.bindings, strict=True):
            if it.kind is IterKind.SPATIAL:
                var = Var(f"{it.var.name}_{self.suffix}")
                iters.append(Iter(var, it.extent))
                bindings.append(b)
                values[it.var] = var
            else:
                values[it.var] = substitute_expr(b, of_loop)
        for n in feeding:
            kind = IterKind.SPATIAL if n.var.name == self.loop else IterKind.REDUCE
            iters.append(Iter(Var(f"{n.var.name}_v_{self.suffix}"), n.extent, kind))
            bindings.append(n.var)
        indices = (*(substitute_expr(i, values) for i in update.acc.indices), iters[-1].var)
        part = replace(update, operands=tuple([substitute_expr(x, values) for x in update.operands]))
        if inside is not TRUE:
            part = part.guarded(substitute_expr(inside, of_loop))
        for _, below in mask_of(block):
            part = part.guarded(substitute_expr(below, values))
        if len(feeding) == 1:  # nothing is left to reduce over: each value is a partial result
            body, init = Store(partial, indices, part.alone), None
        else:
            body = Store(partial, indices, part.value(Load(partial, indices)))
            init = Store(partial, indices, update.identity)
        return Block(self.name, tuple(iters), tuple(bindings), body, init, outside)

    def _merge_nest(
        self, block: Block, own: list[For], loop: For, update: Update, partial: Buffer, predicate: Expr
    ) -> Stmt:
        """The block of the old name, which combines the partial results, under copies of its spatial loops."""
        spatial = loop_vars(block, IterKind.SPATIAL)
        copied = {n.var: Var(f"{n.var.name}_m") for n in own if n.var in spatial}
        kept = [
            (it, substitute_expr(b, copied))
            for it, b in zip(block.iters, block.bindings, strict=True)
            if it.kind is IterKind.SPATIAL
        ]
        # A loop that only the predicate mentions repeats the block; one time, the first, is enough.
        start: dict[Var, Expr] = {n.var: as_index(0) for n in own} | copied
        lane = Iter(Var(f"{self.loop}_v"), loop.extent, IterKind.REDUCE)
        part = Load(partial, (*update.acc.indices, lane.var))
        first: dict[Var, Expr] = {it.var: as_index(0) for it in block.iters if it.kind is IterKind.REDUCE}
        body = Block(
            block.name,
            (*(it for it, _ in kept), lane),
            (*(b for _, b in kept), Var(self.merge_loop)),
            Store(update.acc.buffer, update.acc.indices, binary(update.combine, update.acc, part)),
            None if block.init is None else substitute_stmt(block.init, first),
            Simplifier()(substitute_expr(predicate, start)),
            block.annotations,
        )
        nest = [replace(n, var=copied[n.var]) for n in own if n.var in spatial]
        return wrap(nest, For(Var(self.merge_loop), loop.extent, body))


def _update_of(func: Func, block: Block) -> Update:
    store = block.try_store
    if store is not None:
        found = _match(store)
        reduce = {it.var for it in block.iters if it.kind is IterKind.REDUCE}
        if found is not None and not any(free_vars(i) & reduce for i in store.indices):
            return found
    raise step_refusal(
        func,
        block,
        f"the body of {block.name} is not one update acc = acc + x (or *, max, min, fma) of an element that stays the "
        "same over the reduction",
    )


def _match(store: Store) -> Update | None:
    acc = Load(store.buffer, store.indices)
    match store.value:
        case Fma(a=a, b=b, c=c) if c is acc:
            found = Update(BinaryOp.ADD, acc, (a, b))
        case Binary(op=op, a=a, b=b) if op in _IDENTITY and (a is acc) != (b is acc):
            found = Update(op, acc, (b if a is acc else a,))
        case _:
            return None
    uses = (n for x in found.operands for n in loads(x))
    return None if any(n.buffer is store.buffer for n in uses) else found


def _own_nest(func: Func, block: Block, path: tuple[Stmt, ...], buffer: Buffer) -> For:
    """The outermost loop that holds nothing but the block, or that feeds its reduction, whichever is further out."""
    reduce = loop_vars(block, IterKind.REDUCE)
    around = loops_on(path)
    root = next(n for n in around if n.var in reduce or all(b is block for b in blocks(n)))
    for access in ordered_accesses(root):
        if access.buffer is buffer and access.block != block.name:
            raise step_refusal(
                func,
                root,
                f"{access.block} uses {buffer.name} inside {root.var.name}, before the reduction is complete",
                hint="move that block out of the loop",
            )
    return root


def _split_predicate(func: Func, block: Block) -> tuple[Expr, Expr]:
    """The conditions over spatial loops, and those over reduce loops."""
    reduce, spatial = loop_vars(block, IterKind.REDUCE), loop_vars(block, IterKind.SPATIAL)
    first = Simplifier({v: Interval(0, 0) for v in free_vars(block.predicate) - reduce - spatial})
    outside: list[Expr] = []
    inside: list[Expr] = []
    for cond in conjuncts(block.predicate):
        used = free_vars(cond)
        if used & reduce and used & spatial:
            raise step_refusal(func, block, f"the predicate of {block.name} mixes spatial and reduce loops")
        if used - reduce - spatial and first(cond) is not TRUE:
            raise step_refusal(
                func, block, f"the predicate of {block.name} is over loops that feed none of its iterators"
            )
        (inside if used & reduce else outside).append(cond)
    return logical_and(*outside), logical_and(*inside)
