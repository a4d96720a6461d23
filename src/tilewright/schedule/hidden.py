"""Elements of an axis that are hidden from a row: a chain of reductions finds nothing there.

A map of the axis that is a very low number where the axis is beyond a row, `select(j <= r, …, -inf)`, makes a maximum
what it is without these elements, and powers of them nothing. So chunks of which no row sees anything can be left out.
"""

from tilewright.gir.repair import Scale
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Const,
    Expr,
    Load,
    Select,
    Var,
    as_index,
    free_vars,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import path_to, ranges_above
from tilewright.schedule.reduction_chain import AxisNest, ReductionChain, is_extreme
from tilewright.tir.func import Func
from tilewright.tir.simplify import ranges

_LOWEST = -1e30  # what hides an element: below all that there are


def masked_nest(chain: ReductionChain) -> AxisNest | None:
    """The map whose extreme all other folds follow by a factor, so that they find nothing where it is very low."""
    made = {n.out: n for n in chain.nests}
    tops = [f for b, f in chain.folds.items() if b in chain.results]
    others = [f for b, f in chain.folds.items() if b not in chain.results]
    if len(tops) != 1 or not is_extreme(tops[0]) or tops[0].combine is not BinaryOp.MAX:
        return None
    if not all(isinstance(f.repair, Scale) for f in others):
        return None
    match tops[0].value:
        case Load(buffer=b):
            return made.get(b)
        case _:
            return None


def _hidden_from(nest: AxisNest, simplify: Simplifier) -> Expr | None:
    """An expression over the iterators that is above 0 where the nest stores a very low number, and grows along the
    axis. None if there is none, or if there may be rows that see nothing.
    """
    value = None if nest.block.try_store is None else nest.store.value
    match value:
        case Select(cond=Binary(op=BinaryOp.LE | BinaryOp.LT as op, a=a, b=b), b=Const(value=low)):
            least = a - b + (op is BinaryOp.LT)
        case _:
            return None
    steps = {atom: k for atom, k in simplify.linear(least).terms}
    if low > _LOWEST or steps.get(nest.axis.var, 0) < 1 or not all(isinstance(atom, Var) for atom in steps):
        return None
    domains = {it.var: Interval(0, it.extent - 1) for it in nest.block.iters if it is not nest.axis}
    first = Simplifier(domains).bounds(substitute(least, {nest.axis.var: as_index(0)}))
    return least if first.hi <= 0 else None


def seen_more(nest: AxisNest, rows: int) -> int | None:
    """How many elements more than its own number each of `rows` rows sees, where others are hidden by their number."""
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in nest.block.iters})
    least = _hidden_from(nest, simplify)
    if least is None:
        return None
    form = simplify.linear(least)
    steps = dict(form.terms)
    others = [it for it in nest.block.iters if it.var in steps and it is not nest.axis]
    if len(others) != 1 or others[0].extent != rows or steps[others[0].var] != -1:
        return None
    # An element that no row sees at all would be copied for nobody.
    is_all_seen = nest.axis.extent <= rows - form.const
    return -form.const if steps[nest.axis.var] == 1 and form.const <= 0 and is_all_seen else None


def is_seen(func: Func, chain: ReductionChain, start: Expr, loop: Var | None) -> Expr:
    """Whether any row of the nest sees any element of the chunk that begins with `start`, over the loops outside."""
    nest = masked_nest(chain)
    if nest is None:
        raise step_refusal(func, chain.around, "the reductions do not follow the maximum of one map")
    simplify = Simplifier(ranges_above(path_to(func.body, chain.around)) | ranges(chain.around))
    least = _hidden_from(nest, simplify)
    if least is None:
        raise step_refusal(
            func, nest.block, f"{nest.block.name} does not hide what follows a row that sees something"
        )
    inner = {n.var: n.extent for n in nest.row_loops}
    bound = dict(zip((it.var for it in nest.block.iters), nest.block.bindings, strict=True))
    form = simplify.linear(substitute(substitute(least, bound), {nest.loop.var: start}))
    lowest: Expr = as_index(form.const)
    for atom, k in form.terms:
        # The rows of the nest that see most.
        end = (inner[atom] - 1 if k < 0 else 0) if isinstance(atom, Var) and atom in inner else atom
        lowest = lowest + end * k
    if any(v in inner for v in free_vars(lowest)):
        raise step_refusal(func, nest.block, f"{nest.block.name} does not hide elements along a line")
    if loop is not None:
        simplify.learn({loop: Interval(0, chain.extent - 1)})
    return simplify(lowest <= 0)
