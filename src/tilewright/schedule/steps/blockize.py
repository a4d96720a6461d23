"""blockize: a nest and the block in it become the body of one new block.

    for i_0, j_0, k_0:                                       Blockize("i_1")
        for i_1 in range(4):                                      ─────>
            for j_1 in range(8):
                for k_1 in range(2):
                    C(vi = i_0*4 + i_1, vj = j_0*8 + j_1, vk = reduce(k_0*2 + k_1))

    for i_0, j_0, k_0:
        C_o(vi_o = i_0, vj_o = j_0, vk_o = reduce(k_0)):
            init:
                for i_1_init in range(4):
                    for j_1_init in range(8):
                        C_init(vi_init = vi_o*4 + i_1_init, vj_init = vj_o*8 + j_1_init)
            for i_1 in range(4):
                for j_1 in range(8):
                    for k_1 in range(2):
                        C(vi = vi_o*4 + i_1, vj = vj_o*8 + j_1, vk = reduce(vk_o*2 + k_1))

From outside `C_o` is a block like any other: the loops around it are split, reordered and parallelised as if it
computed one element, while its inside stays as it is. That is how a tile that a tensor intrinsic will compute is kept
in one piece, whatever happens around it.

Below the loop there are loops, each the whole body of the one above, and one block. Its bindings are divided: each is
outer·n + inner, where `inner`, of the loops inside, is in 0 … n-1. `outer` is the binding of an iterator of the new
block (`<iterator>_o`, of the same kind), unless it is 0. Conditions on outer loops go to the new block; others stay
with the inner one.

A reduction over outer loops has its init in the new block, over copies of the spatial loops inside (suffix `_init`).
There it runs before all updates of the tile instead of before those of each element. So neither may see of what the
other writes more than the one element, and no loop inside may repeat updates. A reduction over inner loops only keeps
its init.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.ir.condition import conjuncts, logical_and
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Expr,
    Var,
    as_index,
    free_vars,
)
from tilewright.ir.simplify import Interval, Linear, Simplifier
from tilewright.schedule.edit import replace_stmt, simplify_nest, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import chain, find_loop, loop_vars, starts_at_zero
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.step import LoopStep
from tilewright.schedule.steps.decompose_reduction import check_init_apart, elements, init_nest
from tilewright.tir.analysis.affine import determined
from tilewright.tir.func import Func
from tilewright.tir.printer import print_expr
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, IterKind, Stmt


class Division(NamedTuple):
    """A binding as outer·step + inner, and the new iterator that stands for `outer`."""

    iter: Iter | None  # None: there is no outer part
    outer: Linear
    step: int
    inner: Expr

    @property
    def binding(self) -> Expr:
        """The binding inside the new block."""
        return self.inner if self.iter is None else self.iter.var * self.step + self.inner


@dataclass(frozen=True, slots=True)
class Blockize(LoopStep):
    suffix: str = "o"  # of the new names; a tile inside of a tile needs another

    def rewrite(self, func: Func) -> Func:
        loop = find_loop(func, self.loop)
        nest = chain(loop)
        block = nest[-1].body
        if not isinstance(block, Block):
            raise step_refusal(
                func,
                loop,
                f"below {self.loop} there is not one block under single loops",
                hint="Distribute, or ComputeAt a loop further out, leaves one block",
            )
        simplify = Simplifier(ranges(func.body))
        inside = {n.var for n in nest}
        divisions: list[Division] = []
        for it, binding in zip(block.iters, block.bindings, strict=True):
            name = f"{it.var.name}_{self.suffix}"
            divisions.append(_divide(func, block, it, binding, name, inside, simplify))
        new = _outer_block(func, f"{block.name}_{self.suffix}", nest, block, divisions, simplify)
        check_fresh(func, bound_names(new) - bound_names(loop))
        return replace_stmt(func, loop, new)


def _outer_block(
    func: Func,
    name: str,
    nest: Sequence[For],
    block: Block,
    divisions: Sequence[Division],
    simplify: Simplifier,
) -> Block:
    kept = [d for d in divisions if d.iter is not None]
    iters = tuple([d.iter for d in kept if d.iter is not None])
    bindings = tuple([simplify.expr(d.outer) for d in kept])
    inside = {n.var for n in nest}
    outer: list[Expr] = []
    inner: list[Expr] = []
    for c in conjuncts(simplify(block.predicate)):
        if free_vars(c).isdisjoint(inside):
            outer.append(c)
        else:
            inner.append(_over_iterators(func, block, c, inside, kept, simplify))
    for it, value in zip(iters, bindings, strict=True):  # what a condition of the inner block has kept in
        outer += [simplify(c) for c in (as_index(0) <= value, value < it.extent)]
    within = Simplifier(_ranges(iters, nest))
    body = replace(
        block,
        bindings=tuple([within(d.binding) for d in divisions]),
        predicate=within(logical_and(*inner)),
    )
    init: Stmt | None = None
    if block.init is not None and any(it.kind is IterKind.REDUCE for it in iters):
        _check_init(func, nest, block, divisions, simplify)
        first: dict[Var, Expr] = {it.var: as_index(0) for it in iters if it.kind is IterKind.REDUCE}
        init = substitute_stmt(init_nest(body, block.init, list(nest)), first)
        init = simplify_nest(init, Simplifier(_ranges(iters, nest) | ranges(init)))
        body = replace(body, init=None)
    predicate = logical_and(*dict.fromkeys(outer))
    return Block(name, iters, bindings, wrap(nest, body), init, predicate)


def _ranges(iters: Sequence[Iter], nest: Sequence[For]) -> dict[Var, Interval]:
    found = {it.var: Interval(0, it.extent - 1) for it in iters}
    return found | {n.var: Interval(0, n.extent - 1) for n in nest}


# ------------------------------------------------------------------------------------------------------ division


def _divide(
    func: Func, block: Block, it: Iter, binding: Expr, name: str, inside: set[Var], simplify: Simplifier
) -> Division:
    form = simplify.linear(binding)
    outer, inner = _sides(func, block, form, inside)
    if not outer:
        return Division(None, Linear(0, ()), 1, simplify.expr(form))  # loops of one iteration are gone
    if not inner:
        return Division(Iter(Var(name), it.extent, it.kind), form, 1, as_index(0))
    step = math.gcd(*(k for _, k in outer))
    whole, rest = divmod(form.const, step)
    value = simplify.expr(Linear(rest, inner))
    bounds = simplify.bounds(value)
    if bounds.lo < 0 or bounds.hi >= step:
        raise step_refusal(
            func,
            block,
            f"{it.var.name} is not divided by the loops inside: they take it from {bounds.lo} to {bounds.hi}, and "
            f"those outside move it by {step}",
            hint="split the loop evenly, or blockize at a loop further out",
        )
    iterator = Iter(Var(name), -(-it.extent // step), it.kind)
    return Division(iterator, Linear(whole, tuple((a, k // step) for a, k in outer)), step, value)


def _sides(
    func: Func, block: Block, form: Linear, inside: set[Var]
) -> tuple[tuple[tuple[Expr, int], ...], tuple[tuple[Expr, int], ...]]:
    """The terms over what is outside, and those over the loops inside."""
    outer: list[tuple[Expr, int]] = []
    inner: list[tuple[Expr, int]] = []
    for term in form.terms:
        used = free_vars(term[0])
        if used.isdisjoint(inside):
            outer.append(term)
        elif used <= inside:
            inner.append(term)
        else:
            raise step_refusal(
                func,
                block,
                f"{print_expr(term[0])} depends on loops inside and outside at once",
                hint="blockize before these loops are fused, or at a loop further out",
            )
    return tuple(outer), tuple(inner)


def _over_iterators(
    func: Func,
    block: Block,
    cond: Expr,
    inside: set[Var],
    divisions: Sequence[Division],
    simplify: Simplifier,
) -> Expr:
    """A condition on loops inside, with what it says of loops outside expressed in the new iterators."""
    if free_vars(cond) <= inside:
        return cond
    if isinstance(cond, Binary) and cond.op in (BinaryOp.LT, BinaryOp.LE) and cond.a.dtype is INDEX:
        form = simplify.linear(cond.a - cond.b)
        outer, inner = _sides(func, block, form, inside)
        for d in divisions:
            times = _multiple(dict(outer), dict(d.outer.terms))
            if d.iter is not None and times:
                rest = simplify.expr(Linear(form.const - times * d.outer.const, inner))
                return Binary(cond.op, d.iter.var * times + rest, as_index(0))
    raise step_refusal(
        func,
        block,
        f"the condition {print_expr(cond)} depends on loops inside and outside, and not by way of an iterator",
        hint="LoopPartition gives exact tiles, which need no condition",
    )


def _multiple(of: Mapping[Expr, int], terms: Mapping[Expr, int]) -> int:
    """n if `of` is n·terms, else 0."""
    if of.keys() != terms.keys() or not terms:
        return 0
    ratios = {divmod(of[a], k) for a, k in terms.items()}
    times, rest = ratios.pop()
    return 0 if ratios or rest else times


# ---------------------------------------------------------------------------------------------------------- init


def _check_init(
    func: Func, nest: Sequence[For], block: Block, divisions: Sequence[Division], simplify: Simplifier
) -> None:
    """Init may run for the whole tile, before its first updates."""
    assert block.init is not None
    both = loop_vars(block, IterKind.SPATIAL) & loop_vars(block, IterKind.REDUCE)
    mixed = next((n for n in nest if n.var in both), None)
    if mixed is not None:
        raise step_refusal(
            func,
            mixed,
            f"{mixed.var.name} feeds both spatial and reduce iterators of {block.name}",
            hint="split it",
        )
    known = determined(block.bindings, simplify) & determined(elements(func, block, nest), simplify)
    again = next((n for n in nest if n.extent > 1 and n.var not in known), None)
    if again is not None:
        raise step_refusal(
            func,
            again,
            f"{again.var.name} runs updates of the same elements again, each time after init",
            hint=f"blockize at a loop below {again.var.name}",
        )
    if not starts_at_zero([d.inner for d in divisions], block):
        raise step_refusal(
            func, block, f"the reduce iterators of {block.name} are not all 0 where its loops are"
        )
    check_init_apart(func, block, block.init)
