"""Which kernels of one part run side by side: a team shares them as if they were the parts of one.

    a(X, A)    one part, 1 µs                     a | c     any worker runs either
    b(A, B)    16 parts                 ──>       b
    c(Y, C)    one part, 1 µs

A kernel that is too short to be shared has one part, which the caller's thread runs. Several such kernels that have
nothing to do with each other are worth sharing together: small tensors in the heads of a detector, queries and keys of
a few tokens. Their code stays as it is, so results are the same to the bit, and nothing more is compiled; the driver is
told that they are parts of one call. For that they have to follow each other, so calls move: up to behind the last
that one of them needs, or down to before the first that needs one of them.

Kernels of several parts need none of this: a worker that finds a call of one part goes on to the next, up to a barrier.
So what a team computes in the meantime counts: only where the caller's thread would still be at the short ones when the
others are done there is something to gain.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.cost.parallel import least_shared, saved_beside
from tilewright.cost.work import block_seconds
from tilewright.families.prepare import prepared
from tilewright.ir.expr import Buffer
from tilewright.support.errors import ScheduleError
from tilewright.support.program import map_program
from tilewright.target.target import Target
from tilewright.tir.func import Call, External, Func, Module
from tilewright.tir.stmt import For, LoopKind, Seq, blocks, walk_stmts

# Steps of a program that a call may move over. Bound: what it reads should be near, and the search linear.
_FAR = 64


def is_one_part(scheduled: Func) -> bool:
    """Does it become one kernel, of one part?"""
    body = scheduled.body
    if isinstance(body, Seq) and len(body.stmts) > 1:
        return False
    return not any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s in walk_stmts(body))


def part_seconds(func: Func, target: Target) -> float:
    """Of a kernel of one part, roughly."""
    return sum(block_seconds(b, target.lanes(4), target.machine) for b in blocks(prepared(func).func.body))


def find_beside(module: Module, short: Mapping[str, float], target: Target) -> list[tuple[str, ...]]:
    """Calls that are worth being shared together, each in one of the tuples at most. `short` has the seconds of those
    Funcs that are kernels of one part.
    """
    machine = target.machine
    found: list[tuple[str, ...]] = []

    def meanwhile(order: _Order, members: Sequence[Call]) -> float:
        others = [module.func(c.func) for c in order.meanwhile(members) if c.func not in short]
        return sum(block_seconds(b, target.lanes(4), machine) for f in others for b in blocks(f.body))

    def look(run: list[Call | External]) -> list[Call | External]:
        order = _Order(module, run)
        left = {c for c in run if isinstance(c, Call) and short.get(c.func, 0.0) >= machine.part_seconds}
        for call in run:
            if not isinstance(call, Call) or call not in left:
                continue
            members = order.fitting(call, left)
            times = [short[c.func] for c in members]
            if saved_beside(times, 0.0, machine) < least_shared(machine):
                continue
            if saved_beside(times, meanwhile(order, members), machine) >= least_shared(machine):
                order.bring_together(members)
                left.difference_update(members)
                found.append(tuple(c.func for c in members))
        return order.calls

    map_program(module.program, look, lambda cond: cond)
    return found


def put_beside(module: Module, names: Sequence[str]) -> Module:
    """The program in which the calls of these Funcs follow each other; ScheduleError if one needs another, or something
    between them.
    """
    done = False

    def look(run: list[Call | External]) -> list[Call | External]:
        nonlocal done
        called = {c.func: c for c in run if isinstance(c, Call)}
        members = [called[n] for n in names if n in called]
        if not members:
            return run
        order = _Order(module, run)
        if len(set(members)) < max(len(names), 2) or not order.may_meet(members):
            raise ScheduleError(
                f"{', '.join(names)} cannot run side by side: one of them needs another, or what needs another"
            )
        order.bring_together(members)
        done = True
        return order.calls

    program = map_program(module.program, look, lambda cond: cond)
    if not done:
        raise ScheduleError(f"the program calls none of {', '.join(names)}")
    return replace(module, program=program)


class _Order:
    """Calls that run one after the other, and how far each may move."""

    def __init__(self, module: Module, calls: Sequence[Call | External]) -> None:
        self._uses = {c: _uses(module, c) for c in calls}
        self.calls = list(calls)
        self._depth = self._depths()
        self._look()

    def _depths(self) -> dict[Call | External, int]:
        """How many calls depend on each other up to each of them."""
        touched: dict[Buffer, int] = {}
        written: dict[Buffer, int] = {}
        found: dict[Call | External, int] = {}
        for call in self.calls:
            reads, writes = self._uses[call]
            before = [written.get(b, 0) for b in reads] + [touched.get(b, 0) for b in writes]
            depth = found[call] = 1 + max(before, default=0)
            touched |= {b: max(touched.get(b, 0), depth) for b in (*reads, *writes)}
            written |= dict.fromkeys(writes, depth)
        return found

    def _look(self) -> None:
        """Of each call, the last before it that it depends on, and the first after it that depends on it."""
        self._at = {c: n for n, c in enumerate(self.calls)}
        self._needs = dict(zip(self.calls, self._last(self.calls), strict=True))
        end = len(self.calls) - 1
        after = [end - n for n in self._last(self.calls[::-1])]
        self._needed = dict(zip(self.calls[::-1], after, strict=True))

    def _last(self, calls: Sequence[Call | External]) -> Iterator[int]:
        touched: dict[Buffer, int] = {}
        written: dict[Buffer, int] = {}
        fixed = -1  # external code stays where it is
        for n, call in enumerate(calls):
            reads, writes = self._uses[call]
            found = [written.get(b, -1) for b in reads] + [touched.get(b, -1) for b in writes]
            fixed = n if isinstance(call, External) else fixed
            yield n - 1 if isinstance(call, External) else max((*found, fixed))
            for b in (*reads, *writes):
                touched[b] = n
            for b in writes:
                written[b] = n

    def fitting(self, first: Call, others: Container[Call]) -> list[Call]:
        """The call and later ones that it may run beside. Those of its depth first: what these need, and what needs
        them, can be side by side too.
        """
        at = self._at[first]
        near = [c for c in self.calls[at + 1 : at + 1 + _FAR] if isinstance(c, Call) and c in others]
        members = [first]
        for call in sorted(near, key=lambda c: self._depth[c] != self._depth[first]):
            if self.may_meet([*members, call]):
                members.append(call)
        return sorted(members, key=self._at.__getitem__)

    def may_meet(self, members: Sequence[Call]) -> bool:
        """Is there a place for all of them, and does none need another?"""
        if max(self._needs[c] for c in members) >= min(self._needed[c] for c in members):
            return False
        touched, written = set[Buffer](), set[Buffer]()
        for call in members:
            reads, writes = self._uses[call]
            if not written.isdisjoint(reads) or not touched.isdisjoint(writes):
                return False
            touched.update(reads, writes)
            written.update(writes)
        return True

    def meanwhile(self, members: Sequence[Call]) -> list[Call]:
        """The calls around the place of these that run at the same time as things are: those that follow up to the
        first that waits for one of them, or of the members.
        """
        place = self._place(members)
        begin = max(self._needs[c] for c in members) + 1
        first = min(self._needed[c] for c in members)
        found: list[Call] = []
        for call in self.calls[max(begin, place - _FAR) : min(first, place + _FAR)]:
            if isinstance(call, External) or (self._needs[call] >= begin and self._at[call] > place):
                break
            if call not in members:
                found.append(call)
        return found

    def _place(self, members: Sequence[Call]) -> int:
        return max(min(self._at[c] for c in members), *(self._needs[c] for c in members))

    def bring_together(self, members: Sequence[Call]) -> None:
        """Calls that may meet follow each other: where the first is, or behind what the others need."""
        place = self._place(members)
        before = [c for c in self.calls[: place + 1] if c not in members]
        self.calls = [*before, *members, *(c for c in self.calls[place + 1 :] if c not in members)]
        self._look()


def _uses(module: Module, call: Call | External) -> tuple[frozenset[Buffer], frozenset[Buffer]]:
    """What it reads, and what it writes."""
    if isinstance(call, External):
        return frozenset(call.inputs), frozenset(call.outputs)
    written = frozenset(module.func(call.func).outputs)
    return frozenset(call.args) - written, written
