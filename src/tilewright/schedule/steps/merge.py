"""merge: loops side by side become one loop around their bodies, in sequence.

    for i in range(6):                       Merge(("j", "n"))        for i in range(6):
        for j in range(4):                         ─────>                 for j in range(4):
            C[i, j] = A[i, j] * 2                                             C[i, j] = A[i, j] * 2
    for m in range(6):                                                        D[i, j] = C[i, j] + 1
        for n in range(4):
            D[m, n] = C[m, n] + 1

The inverse of `distribute`. The loops are named in the order in which they stand. What is around them, up to the
sequence that holds them all, is merged with them, level by level: they are equally deep, with equal extents, and each
loop is the whole body of the one above. They are plain, and nothing stands between them. The first loop of each level
keeps its name, the others disappear.

The bodies now take turns. That is legal if an element that two of them touch, one to write it, is touched by both in
the same iteration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir.expr import Expr, Var
from tilewright.schedule.edit import replace_nest, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_loop, path_to
from tilewright.schedule.plain_loop import check_plain
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.independence import merge_dependence
from tilewright.tir.func import Func
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import For, Seq, Stmt, seq
from tilewright.tir.thread_axes import launch_misfit


@dataclass(frozen=True, slots=True)
class Merge(FuncStep):
    loops: tuple[str, ...]

    def anchor(self) -> str:
        if len(self.loops) < 2 or len(set(self.loops)) != len(self.loops):
            raise ScheduleError(f"{self}: needs two or more different loops")
        return self.loops[0]

    def rewrite(self, func: Func) -> Func:
        named = [find_loop(func, name) for name in self.loops]
        around, nests = self._nests(func, named)
        start = self._position(func, around, nests)
        first = nests[0]
        parts: list[Stmt] = []
        for nest in nests:
            values: dict[Var, Expr] = {n.var: m.var for n, m in zip(nest, first, strict=True)}
            parts.append(substitute_stmt(nest[-1].body, values))
        merged = wrap(first, seq(*parts))
        stmts = (*around.stmts[:start], merged, *around.stmts[start + len(nests) :])
        new = replace_nest(func, around, seq(*stmts))
        self._check_meaning(func, new, named, parts, [n.var for n in first])
        return new

    def _nests(self, func: Func, named: Sequence[For]) -> tuple[Seq, list[list[For]]]:
        """The sequence that holds the loops, and for each the loops from there down to it."""
        paths = [path_to(func.body, n) for n in named]
        common = 0
        while all(len(p) > common + 1 and p[common] is paths[0][common] for p in paths):
            common += 1
        around = paths[0][common - 1] if common else func.body
        for loop, path in zip(named[1:], paths[1:], strict=True):
            if any(n is named[0] for n in path) or any(n is loop for n in paths[0]):
                raise step_refusal(
                    func, loop, f"{loop.var.name} and {named[0].var.name} are nested, not side by side"
                )
        nests: list[list[For]] = []
        for loop, path in zip(named, paths, strict=True):
            below = path[common:]
            nest = [n for n in below if isinstance(n, For)]
            if len(nest) != len(below) or not isinstance(around, Seq):
                raise step_refusal(
                    func,
                    loop,
                    f"{loop.var.name} shares the loops around it with other statements that are not merged",
                    hint="Distribute gives each statement a loop of its own",
                )
            nests.append(nest)
        assert isinstance(around, Seq)
        self._check_levels(func, nests)
        return around, nests

    def _check_levels(self, func: Func, nests: Sequence[Sequence[For]]) -> None:
        first = nests[0]
        for nest in nests:
            for n in nest:
                check_plain(func, n, "merge")
        for nest in nests[1:]:
            if len(nest) != len(first):
                raise step_refusal(
                    func,
                    nest[-1],
                    f"{nest[-1].var.name} is {len(nest)} loops deep, and {first[-1].var.name} {len(first)}",
                    hint="AddUnitLoop, Split or Fuse makes them equally deep",
                )
            for a, b in zip(first, nest, strict=True):
                if a.extent != b.extent:
                    raise step_refusal(
                        func,
                        b,
                        f"{b.var.name} has {b.extent} iterations, and {a.var.name} has {a.extent}",
                        hint="LoopPartition makes parts of equal length",
                    )

    def _position(self, func: Func, around: Seq, nests: Sequence[Sequence[For]]) -> int:
        """Where the first nest stands; the others follow it."""
        at = [next(k for k, s in enumerate(around.stmts) if s is nest[0]) for nest in nests]
        for n, (a, b) in enumerate(pairwise(at), 1):
            if b != a + 1:
                raise step_refusal(
                    func,
                    nests[n][0],
                    f"{nests[n][0].var.name} does not stand right behind {nests[n - 1][0].var.name}",
                    hint="name the loops in the order in which they stand",
                )
        return at[0]

    def _check_meaning(
        self, func: Func, new: Func, named: Sequence[For], parts: Sequence[Stmt], variables: Sequence[Var]
    ) -> None:
        conflict = merge_dependence(new, parts, variables)
        if conflict is not None:
            raise step_refusal(
                func,
                named[0],
                f"{conflict.other} uses elements of {conflict.buffer.name} that {conflict.writer} writes in another "
                "iteration",
                hint="one loop must be done before the other starts",
            )
        misfit = launch_misfit(new.body)
        if misfit is not None:
            raise step_refusal(func, named[0], misfit.reason)
