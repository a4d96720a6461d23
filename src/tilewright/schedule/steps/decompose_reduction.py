"""decompose_reduction: a reduction's init becomes a block of its own, before the loop.

    for i in range(8):        DecomposeReduction("C", "k")     for i in range(8):
        for k in range(4):               ─────>                    for j_init in vectorized(16):
            for j in vectorized(16):                                   C_init(vi_init = i, vj_init = j_init)
                C(vi = i, vj = j,                                  for k in range(4):
                  vk = reduce(k))                                      for j in vectorized(16):
                                                                           C(vi = i, vj = j, vk = reduce(k))

The init block stands just before `loop`, in copies of those loops at or below it that feed spatial iterators; their
names, and those of the iterators, get the suffix `_init`, and they keep their kinds. The update keeps its name and
its reduce iterators, and loses its init.

Every loop that feeds a reduce iterator is at or below `loop`: above it, init would run again between updates. And no
loop at or below it repeats the reduction of an element, as a producer's may that was moved under its consumer's. Inits
of all elements come before updates now, so an update does not read other elements of what it writes, nor does init.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Expr, Indices, Var, as_index, loads
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.edit import replace_nest, swap_stmt, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import (
    find_block,
    find_loop,
    loop_vars,
    loops_above,
    loops_on,
    path_to,
    starts_at_zero,
)
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.step import BlockStep
from tilewright.tir.analysis.affine import determined
from tilewright.tir.analysis.independence import ordered_accesses
from tilewright.tir.func import Func
from tilewright.tir.rename import rename
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, IterKind, Stmt, Store, seq, stmt_exprs, walk_stmts


@dataclass(frozen=True, slots=True)
class DecomposeReduction(BlockStep):
    loop: str

    @property
    def name(self) -> str:
        """The new block."""
        return f"{self.block}_init"

    def rewrite(self, func: Func) -> Func:
        block, loop = find_block(func, self.block), find_loop(func, self.loop)
        if block.init is None:
            raise step_refusal(func, block, f"{self.block} has no init")
        path = path_to(func.body, block)
        start = next((d for d, n in enumerate(path) if n is loop), None)
        if start is None:
            raise step_refusal(func, loop, f"{self.loop} is not around {self.block}")
        between = next((n for n in path[start:-1] if isinstance(n, Block)), None)
        if between is not None:
            raise step_refusal(
                func,
                block,
                f"{self.block} is inside block {between.name}, and {self.loop} is outside of that",
                hint=f"name a loop inside of {between.name}",
            )
        below = loops_on(path[start:])
        self._check_loops(func, block, below)
        check_init_apart(func, block, block.init)
        init = init_nest(block, block.init, below)
        check_fresh(func, bound_names(init))
        update = swap_stmt(loop, block, replace(block, init=None))
        return replace_nest(func, loop, seq(init, update))

    def _check_loops(self, func: Func, block: Block, below: list[For]) -> None:
        """`below`: the loops from `loop` down to the block."""
        inside = {n.var for n in below}
        reduce, spatial = loop_vars(block, IterKind.REDUCE), loop_vars(block, IterKind.SPATIAL)
        above = sorted(v.name for v in reduce - inside)
        if above:
            raise step_refusal(
                func,
                below[0],
                f"{above[0]} feeds a reduce iterator of {self.block} and is above {self.loop}, so init would run again "
                "between updates",
                hint=f"name the outermost loop that feeds a reduce iterator: {above[0]}",
            )
        both = sorted(v.name for v in reduce & spatial)
        if both:
            raise step_refusal(
                func,
                block,
                f"{both[0]} feeds both spatial and reduce iterators of {self.block}",
                hint="split it",
            )
        simplify = Simplifier(ranges(func.body))
        known = determined(block.bindings, simplify) & determined(elements(func, block, below), simplify)
        again = [n for n in below if n.extent > 1 and n.var not in known]
        if again:
            raise step_refusal(
                func,
                again[0],
                f"{again[0].var.name} runs updates of the same elements again, each time after init",
                hint=f"name a loop below {again[0].var.name}",
            )
        if not starts_at_zero(block.bindings, block):
            raise step_refusal(
                func, block, f"the reduce iterators of {self.block} are not all 0 where its loops are"
            )


def check_init_apart(func: Func, block: Block, init: Stmt) -> None:
    """Inits may come before the updates of other elements: neither sees of what the other writes more than the one
    element.
    """
    places = {(n.buffer, n.indices) for n in walk_stmts(block.body) if isinstance(n, Store)}
    written = {b for b, _ in places}
    for part, may_read in ((init, set[tuple[Buffer, Indices]]()), (block.body, places)):
        for load in (
            ld for n in walk_stmts(part) for e in stmt_exprs(n) for ld in loads(e) if ld.buffer in written
        ):
            if (load.buffer, load.indices) not in may_read:
                which = (
                    f"the init of {block.name} reads elements of"
                    if part is init
                    else f"{block.name} reads elements of"
                )
                raise step_refusal(
                    func,
                    block,
                    f"{which} {load.buffer.name}, which depend on how inits and updates of elements take turns",
                )


def elements(func: Func, block: Block, below: Sequence[For]) -> list[Expr]:
    """What tells the updates of elements apart, and those of one element, inside of the loops above `below`. A buffer
    that goes round has one element for many values of the iterators.
    """
    stored = [i for a in ordered_accesses(block) if a.is_store for i in a.indices]
    bound = zip(block.iters, block.bindings, strict=True)
    reduce = [b for it, b in bound if it.kind is IterKind.REDUCE]
    return [*stored, *reduce, *(n.var for n in loops_above(func, below[0]))]


def init_nest(block: Block, init: Stmt, below: list[For]) -> Stmt:
    """The init of `block` as a block of its own, under copies of the spatial ones among the loops `below`."""
    spatial = loop_vars(block, IterKind.SPATIAL)
    copied = [n for n in below if n.var in spatial]
    # The loops that are not copied are at their start where init runs, and so are the reduce iterators.
    start: dict[Var, Expr] = {n.var: as_index(0) for n in below if n.var not in spatial}
    first: dict[Var, Expr] = {it.var: as_index(0) for it in block.iters if it.kind is IterKind.REDUCE}
    kept = [
        (it, substitute_expr(b, start))
        for it, b in zip(block.iters, block.bindings, strict=True)
        if it.kind is IterKind.SPATIAL
    ]
    body = Block(
        block.name,
        tuple(it for it, _ in kept),
        tuple(b for _, b in kept),
        substitute_stmt(init, first),
        None,
        substitute_expr(block.predicate, start),
    )
    return rename(wrap(copied, body), "_init")
