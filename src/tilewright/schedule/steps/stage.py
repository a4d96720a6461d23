"""stage: an operand of a block's computation is computed beforehand, into a buffer of its own.

    for i, j, k:                              Stage("C", (0,), ("vi", "vk"))     for …_loop:
        C[vi, vj] = fma(A[vi, vk] * S[vk],            ─────>                         C_stage_0[vi, vk] = A[…] * S[…]
                        B[vk, vj],                                               for i, j, k:
                        C[vi, vj])                                                   C[vi, vj] = fma(
                                                                                         C_stage_0[vi, vk], …)

`position` is the way from the stored value to the operand: the number of the child at each node (a factor of an fma is
(0,) or (1,)). The new buffer has a dimension for each of `iters`, which are exactly the iterators that the operand
depends on. Unlike Reindex, the operand may be any expression: padding that was inlined, a product of several factors,
or one of two loads of the same buffer. It must not read what the block writes, and what it reads can be read in front
of the nest (`schedule/early_read.py`).
"""

from dataclasses import dataclass, replace

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Load, Scope, Var, cast, free_vars, loads, walk
from tilewright.ir.rewrite import substitute
from tilewright.schedule.early_read import check_early_read
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block
from tilewright.schedule.names import check_fresh
from tilewright.schedule.own_nest import own_nest, replace_own_nest, under_own_loops
from tilewright.schedule.step import BlockStep
from tilewright.schedule.steps.reindex import insert_before
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.value_range import fits_dtype
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, Store


@dataclass(frozen=True, slots=True)
class Stage(BlockStep):
    position: tuple[int, ...]
    iters: tuple[str, ...]
    dtype: DType | None = None

    @property
    def copy(self) -> str:
        """The new block, and the new buffer."""
        return f"{self.block}_stage_{'_'.join(map(str, self.position))}"

    @property
    def loops(self) -> tuple[str, ...]:
        """The loops of the new block, one per named iterator."""
        return tuple(f"{self.copy}_{n}_loop" for n in self.iters)

    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        own_nest(func, block)
        store = block.try_store
        if store is None:
            raise step_refusal(func, block, f"the body of {self.block} is not one store")
        operand = self._operand(func, block, store.value)
        if any(ld.buffer is store.buffer for ld in loads(operand)):
            raise step_refusal(func, block, f"this operand reads {store.buffer.name}, which the block writes")
        used = {v.name for v in free_vars(operand)}
        kept = operand.dtype if self.dtype is None else self.dtype
        if kept is not operand.dtype and not fits_dtype(operand, kept):
            raise step_refusal(func, block, f"not every value of this {operand.dtype} fits {kept}")
        by_name = {it.var.name: it for it in block.iters}
        if used != set(self.iters) or len(self.iters) != len(used) or not used <= by_name.keys():
            raise step_refusal(
                func, block, f"the operand depends on {', '.join(sorted(used))}", hint="name exactly these"
            )
        check_early_read(func, block, operand)
        old = [by_name[n] for n in self.iters]
        staged = Buffer(self.copy, tuple(it.extent for it in old), kept, Scope.GLOBAL)
        fresh: dict[Var, Expr] = {it.var: Var(f"{self.copy}_{it.var.name}") for it in old}
        iters = tuple(Iter(Var(f"{self.copy}_{it.var.name}"), it.extent) for it in old)
        check_fresh(func, (self.copy, *self.loops, *(it.var.name for it in iters)))
        first = Block(
            self.copy,
            iters,
            tuple(Var(n) for n in self.loops),
            Store(staged, tuple(it.var for it in iters), cast(kept, substitute(operand, fresh))),
        )
        read = cast(operand.dtype, Load(staged, tuple(it.var for it in old)))
        value = _put(store.value, self.position, read)
        reading = replace(block, body=Store(store.buffer, store.indices, value))
        func = replace(replace_own_nest(func, block, reading), locals=(*func.locals, staged))
        return func.with_body(insert_before(func.body, find_block(func, self.block), under_own_loops(first)))

    def _operand(self, func: Func, block: Block, value: Expr) -> Expr:
        for n in self.position:
            children = value.children()
            if isinstance(value, Load) or not 0 <= n < len(children):
                raise step_refusal(
                    func,
                    block,
                    "there is no operand at this position",
                    hint="count children from the stored value",
                )
            value = children[n]
        return value


def position_of(value: Expr, operand: Expr) -> tuple[int, ...]:
    """The way from a stored value to an operand inside it."""
    if value is operand:
        return ()
    for n, child in enumerate(() if isinstance(value, Load) else value.children()):
        if any(e is operand for e in walk(child)):
            return (n, *position_of(child, operand))
    raise ScheduleError(
        f"{operand} is no operand of {value}", hint="ask for the operands of the block as it is now"
    )


def _put(e: Expr, position: tuple[int, ...], new: Expr) -> Expr:
    """`e` with the node at `position` replaced."""
    if not position:
        return new
    at, *rest = position
    children = list(e.children())
    children[at] = _put(children[at], tuple(rest), new)
    return e.rebuild(tuple(children))
