"""join_funcs: two Funcs that are called one after the other become one.

    f(X, T): for i: T[i] = X[i] * 2                  JoinFuncs("f", "g")    f__g(X, Y): for i: T[i] = X[i] * 2
    g(T, Y): for j: Y[j] = T[j] + T[j + 1]                ─────>                       for j: Y[j] = T[j] + T[j + 1]

So other steps can move what the first computes to where the second needs it. Buffers between kernels that nobody else
uses become locals. Each of the two is called once, and the calls stand next to each other in one sequence. Their
algorithms are chosen: what is joined is what they compute now.
"""

from dataclasses import dataclass
from itertools import pairwise

from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.support.program import leaves, map_program
from tilewright.tir.func import Call, External, Func, Module, Program
from tilewright.tir.names import short_name
from tilewright.tir.stmt import seq


@dataclass(frozen=True, slots=True)
class JoinFuncs(Step):
    first: str
    second: str

    @property
    def name(self) -> str:
        """The Func that computes both."""
        return short_name(f"{self.first}__{self.second}")

    def apply(self, module: Module) -> Module:
        called = [c.func for c in leaves(module.program) if isinstance(c, Call)]
        names = (self.first, self.second)
        if [n for n in called if n in names] != list(names):
            raise ScheduleError(
                f"{self}: the two are not called once each, the first before the second",
                hint="print the module to see its program",
            )
        if any(module.func(n).alternatives for n in names):
            raise ScheduleError(f"{self}: one of the two has several algorithms", hint="choose one first")
        if not self._are_neighbours(module.program):
            raise ScheduleError(f"{self}: the calls do not stand next to each other in one sequence")
        joined = self._joined(module)
        place, gone = sorted(names, key=lambda n: module.funcs.index(module.func(n)))
        return module.with_funcs({place: joined}, without=(gone,), temps=dict.fromkeys(joined.locals))

    def _joined(self, module: Module) -> Func:
        f, g = module.func(self.first), module.func(self.second)
        temps = {b for b in (*f.params, *g.params) if b in module.temps and b not in module.outside}
        own = {b for b in temps if all(h is f or h is g for h in module.users(b))}
        params = tuple(b for b in dict.fromkeys((*f.params, *g.params)) if b not in own)
        inner = tuple(b for b in dict.fromkeys((*f.params, *g.params)) if b in own)
        outputs = tuple(b for b in params if b in f.outputs or b in g.outputs)
        return Func(self.name, params, (*f.locals, *inner, *g.locals), seq(f.body, g.body), outputs)

    def _are_neighbours(self, program: Program) -> bool:
        pairs: set[tuple[str, str]] = set()

        def look(run: list[Call | External]) -> list[Call | External]:
            pairs.update(pairwise(c.func if isinstance(c, Call) else "" for c in run))
            return run

        map_program(program, look, lambda cond: cond)
        return (self.first, self.second) in pairs
