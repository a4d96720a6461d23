"""join_funcs: two Funcs that are called one after the other become one.

    f(X, T): for i: T[i] = X[i] * 2                  JoinFuncs("f", "g")    f__g(X, Y): for i: T[i] = X[i] * 2
    g(T, Y): for j: Y[j] = T[j] + T[j + 1]                ─────>                       for j: Y[j] = T[j] + T[j + 1]

So other steps can move what the first computes to where the second needs it. Buffers between kernels that nobody else
uses become locals. Each of the two is called once, and the calls stand next to each other in one sequence. Their
algorithms are chosen: what is joined is what they compute now.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Branch, Call, External, Func, Module, Program, Sequence, While, calls
from tilewright.tir.stmt import seq


@dataclass(frozen=True, slots=True)
class JoinFuncs(Step):
    first: str
    second: str

    @property
    def name(self) -> str:
        """The Func that computes both."""
        return f"{self.first}__{self.second}"

    def apply(self, module: Module) -> Module:
        called = [c.func for c in calls(module.program) if isinstance(c, Call)]
        names = (self.first, self.second)
        if [n for n in called if n in names] != list(names):
            raise ScheduleError(
                f"{self}: the two are not called once each, the first before the second",
                hint="print the module to see its program",
            )
        if any(module.func(n).alternatives for n in names):
            raise ScheduleError(f"{self}: one of the two has several algorithms", hint="choose one first")
        joined = self._joined(module)
        program = self._program(module.program, joined)
        if program is module.program:
            raise ScheduleError(f"{self}: the calls do not stand next to each other in one sequence")
        funcs = [f for f in module.funcs if f.name not in names]
        funcs.insert(next(n for n, f in enumerate(module.funcs) if f.name in names), joined)
        temps = tuple(b for b in module.temps if b not in joined.locals)
        return replace(module, funcs=tuple(funcs), program=program, temps=temps)

    def _joined(self, module: Module) -> Func:
        f, g = module.func(self.first), module.func(self.second)
        elsewhere = {b for h in module.funcs if h is not f and h is not g for b in h.params}
        elsewhere |= {b for p in _parts(module.program) for b in _seen(p)}
        own = {b for b in (*f.params, *g.params) if b in module.temps and b not in elsewhere}
        params = tuple(b for b in dict.fromkeys((*f.params, *g.params)) if b not in own)
        inner = tuple(b for b in dict.fromkeys((*f.params, *g.params)) if b in own)
        outputs = tuple(b for b in params if b in f.outputs or b in g.outputs)
        return Func(self.name, params, (*f.locals, *inner, *g.locals), seq(f.body, g.body), outputs)

    def _program(self, p: Program, joined: Func) -> Program:
        """`p` with one call instead of the two, if they stand next to each other in it."""
        match p:
            case Sequence():
                names = [s.func if isinstance(s, Call) else "" for s in p.steps]
                if self.first in names and names[names.index(self.first) + 1 :][:1] == [self.second]:
                    at = names.index(self.first)
                    call = Call(joined.name, joined.params)
                    return Sequence((*p.steps[:at], call, *p.steps[at + 2 :]))
                steps = tuple(self._program(s, joined) for s in p.steps)
                return p if all(a is b for a, b in zip(steps, p.steps, strict=True)) else Sequence(steps)
            case Branch():
                then, other = self._program(p.then, joined), self._program(p.otherwise, joined)
                same = then is p.then and other is p.otherwise
                return p if same else Branch(p.cond, then, other)
            case While():
                body = self._program(p.body, joined)
                return p if body is p.body else While(p.cond, body)
            case Call() | External():
                return p


def _parts(p: Program) -> list[Program]:
    """`p` and everything in it."""
    match p:
        case Sequence():
            inner = p.steps
        case Branch():
            inner = (p.then, p.otherwise)
        case While():
            inner = (p.body,)
        case Call() | External():
            inner = ()
    return [p, *(x for s in inner for x in _parts(s))]


def _seen(p: Program) -> tuple[Buffer, ...]:
    """The buffers that a part of the program uses outside of Funcs."""
    match p:
        case External():
            return (*p.inputs, *p.outputs)
        case Branch() | While():
            return (p.cond,)
        case Call() | Sequence():
            return ()
