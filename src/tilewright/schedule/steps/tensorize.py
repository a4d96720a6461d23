"""tensorize: a nest of loops becomes a tensor intrinsic.

    for k in range(64):        Tensorize("k", "x86.f32.tile_6x16")     for k in range(64):
        for i in range(6):                   ─────>                        for i in unrolled(6):
            for j in range(16):                                                for j_0 in unrolled(2):
                C(vi = i, vj = j, vk = reduce(k))                                  for j_1 in vectorized(8):
                                                                                       C(vi = i, vj = j_0 * 8 + j_1,
                                                                                         vk = reduce(k))

    for j in range(8):         Tensorize("j", "x86.i16.dot2_8")        with emit("x86.i16.dot2_8", [C[0], C[1]], …):
        for k in range(2):                   ─────>                        for j in range(8):
            C(vj = j, vk = reduce(k))                                          for k in range(2):
                                                                                   C(vj = j, vk = reduce(k))

`at` is the outermost loop of the nest, or a block that holds a nest and nothing else (as Blockize makes them). Inside
is one block: an update without init (DecomposeReduction first) or one that is all spatial, without a predicate, whose
body is one store. It is not inside a vectorized loop. `target/match.py` tells when it computes what the intrinsic
means. Loops around the nest stay: a
reduction may be inside or outside of it, if the intrinsic takes any number of steps.

An intrinsic with a body gets its loops in the body's order and kinds. A loop that the body splits gets the names
`<loop>_0`, `<loop>_1`, unless it is split like that already. One with an emitter gets an `Emit` around its loops, which
are plain then: the code generator writes the instructions. The program means what it meant, to the bit: the steps of
each element's reduction keep their order.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.expr import TRUE, Expr, Load, Var, as_index
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.edit import replace_nest, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import chain, find_block, find_loop, path_to
from tilewright.schedule.names import check_fresh
from tilewright.schedule.plain_loop import check_plain
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.target.intrinsic import BodyLoop, Intrinsic
from tilewright.target.intrinsics import find_intrinsic, intrinsic_names
from tilewright.target.match import Mismatch, PatternMatch, match_nest
from tilewright.tir.analysis.value_range import value_range
from tilewright.tir.func import Func
from tilewright.tir.rewrite import bound_store, substitute_stmt
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, Emit, For, LoopKind, Stmt, Store, walk_stmts
from tilewright.tir.stmt import loops as loops_in


@dataclass(frozen=True, slots=True)
class Tensorize(FuncStep):
    at: str
    intrinsic: str

    def anchor(self) -> str:
        return self.at

    def rewrite(self, func: Func) -> Func:
        intrinsic = find_intrinsic(self.intrinsic)
        if intrinsic is None:
            near = difflib.get_close_matches(self.intrinsic, intrinsic_names(), 3)
            raise ScheduleError(
                f"no intrinsic is named {self.intrinsic!r}",
                hint=f"did you mean {' or '.join(near)}?" if near else "target/intrinsics.py has the table",
            )
        root = self._root(func)
        nest = chain(root) if isinstance(root, For) else []
        block, store = _leaf(func, root, nest)
        simplify = Simplifier(ranges(func.body))
        found = match_nest(intrinsic, nest, store, simplify)
        if isinstance(found, Mismatch):
            raise step_refusal(func, root, found.reason, found.hint)
        _check_values(func, root, intrinsic, found)
        if intrinsic.body is None:
            return replace_nest(func, root, _emitted(intrinsic, nest, block, found, simplify))
        return replace_nest(func, root, _arranged(func, intrinsic.body, nest, block, found))

    def _root(self, func: Func) -> Stmt:
        """The statement that becomes the intrinsic."""
        if any(n.var.name == self.at for n in loops_in(func.body)):
            return find_loop(func, self.at)
        block = find_block(func, self.at)
        if block.try_store is not None:
            return block
        if block.init is not None:
            raise step_refusal(
                func, block, f"{self.at} has an init", "make it a block of its own: DecomposeReduction"
            )
        return block.body


def _check_values(func: Func, root: Stmt, intrinsic: Intrinsic, found: PatternMatch) -> None:
    """Operands have the values that the intrinsic asks for: everything that is stored there does."""
    for operand, access in zip(intrinsic.operands, found.operands, strict=True):
        if operand.within is None:
            continue
        buffer, (low, high) = access.buffer, operand.within
        stored = [n.value for n in walk_stmts(func.body) if isinstance(n, Store) and n.buffer is buffer]
        ranges_ = [value_range(v) for v in stored]
        if not stored or any(r.lo < low or r.hi > high for r in ranges_):
            raise step_refusal(
                func,
                root,
                f"{buffer.name} may have values that are not within {low} and {high}, as {operand.name} of"
                f" {intrinsic.name} has to",
                hint="Stage a value that is clamped to them",
            )


def _leaf(func: Func, root: Stmt, nest: Sequence[For]) -> tuple[Block, Store]:
    """The one block in the nest, and its store over loop variables."""
    around = path_to(func.body, root)[:-1]
    block = nest[-1].body if nest else root
    if isinstance(block, Emit) or any(isinstance(n, Emit) for n in around):
        raise step_refusal(func, root, "this nest is a tensor intrinsic already")
    lanes = next((n for n in around if isinstance(n, For) and n.kind is LoopKind.VECTORIZED), None)
    if lanes is not None:
        raise step_refusal(func, root, f"it is inside the vectorized loop {lanes.var.name}")
    if not isinstance(block, Block):
        raise step_refusal(
            func, root, "there is more than one block in the nest", hint="distribute the loops"
        )
    if block.init is not None:
        raise step_refusal(
            func,
            block,
            f"{block.name} has an init",
            hint=f"make it a block of its own first: DecomposeReduction({block.name!r}, …)",
        )
    if block.predicate is not TRUE:
        raise step_refusal(
            func, block, f"{block.name} has a predicate", hint="partition loops so that the tiles are exact"
        )
    if block.try_store is None:
        raise step_refusal(
            func, block, f"the body of {block.name} is not one store", hint="name the innermost block"
        )
    for n in nest:
        if n.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
            raise step_refusal(func, n, f"{n.var.name} is {n.kind.value} already")
    return block, bound_store(block)


# ------------------------------------------------------------------------------------------------------ with a body


def _arranged(
    func: Func, body: Sequence[BodyLoop], nest: Sequence[For], block: Block, found: PatternMatch
) -> Stmt:
    """The nest in the order and kinds of the body."""
    mine = {v.name: list(loops) for v, loops in found.loops.items()}
    order = [n for n in nest if n.extent == 1]
    split: dict[Var, Expr] = {}
    for name in dict.fromkeys(part.loop for part in body):
        parts = [part for part in body if part.loop == name]
        if len(parts) > 1:
            mine[name] = _split(func, mine[name], parts, split)
        elif parts[0].kind is LoopKind.VECTORIZED and len(mine[name]) > 1:
            raise step_refusal(
                func,
                mine[name][0],
                f"{' and '.join(n.var.name for n in mine[name])} would be the lanes of one vector",
                hint="fuse them",
            )
    for part in body:
        taken = mine[part.loop]
        if sum(p.loop == part.loop for p in body) > 1:
            taken, mine[part.loop] = taken[:1], taken[1:]
        order += [n if part.kind is LoopKind.SERIAL else replace(n, kind=part.kind) for n in taken]
    return wrap(order, substitute_stmt(block, split) if split else block)


def _split(func: Func, mine: list[For], parts: Sequence[BodyLoop], split: dict[Var, Expr]) -> list[For]:
    """Loops for the parts of one loop of the meaning; `split` gets the value of a loop that they replace."""
    inner = [p.extent or 1 for p in parts[1:]]
    extents = [math.prod(n.extent for n in mine) // math.prod(inner), *inner]
    if [n.extent for n in mine] == extents:
        return mine
    if len(mine) != 1:
        raise step_refusal(
            func,
            mine[0],
            f"{' and '.join(n.var.name for n in mine)} have {' x '.join(str(n.extent) for n in mine)} iterations, and "
            f"the intrinsic's loops {' x '.join(map(str, extents))}",
            hint="fuse them",
        )
    (loop,) = mine
    check_plain(func, loop, "split")
    names = [f"{loop.var.name}_{n}" for n in range(len(extents))]
    check_fresh(func, names)
    made = [For(Var(name), extent, loop.body) for name, extent in zip(names, extents, strict=True)]
    index: Expr = as_index(0)
    for n in made:
        index = index * n.extent + n.var
    split[loop.var] = index
    return made


# -------------------------------------------------------------------------------------------------- with an emitter


def _emitted(
    intrinsic: Intrinsic, nest: Sequence[For], block: Block, found: PatternMatch, simplify: Simplifier
) -> Emit:
    """The nest with plain loops, and where its operands are."""

    def at(access: Load, values: Mapping[Var, Expr]) -> Load:
        return Load(access.buffer, tuple(simplify(substitute_expr(i, values)) for i in access.indices))

    start: dict[Var, Expr] = {n.var: as_index(0) for n in nest}
    places: list[tuple[Load, ...]] = []
    for access, of in zip(found.operands, intrinsic.dims, strict=True):
        neighbours: list[Load] = []
        for v in of:
            loops = found.loops[v] if v is not None else ()
            # With one element along a dimension there is no neighbour, and nobody asks for the stride.
            neighbours.append(at(access, {**start, loops[-1].var: as_index(1)} if loops else start))
        places.append((at(access, start), *neighbours))
    plain = [replace(n, kind=LoopKind.SERIAL) for n in nest]
    return Emit(intrinsic.name, tuple(places), wrap(plain, block))
