"""Is a scheduled Func still one that its steps may rely on? The conditions, found out anew or from what is remembered.

Of every block:
- `affine_binding`: the loops around it run every point of its iterators' domain exactly once (where the predicate
  holds): the bindings are a quasi-affine bijection. `tir/analysis/bijection.py` recognises them.
- `region_cover`: what it reads of local buffers has been written by the time it is read, completely. `cover.py`.
- `kind`: *complete* (all iterators spatial, the only writer of what it writes, reads none of it), *reduction* (has
  an init, an affine binding, the only writer, and where it writes does not depend on reduce iterators), or *opaque*,
  with the reason why it is neither.
Of every scope, the Func and each block with blocks inside:
- `stage_pipeline`: all blocks in it are covered, they depend on each other only by reading what was written (RAW)
  or writing it again (WAW), never by overwriting what another one has read (WAR), and nothing else is in it.
Of the Func:
- `threading`: loops on the axes of a GPU fit one launch. `tir/thread_axes.py` has the limits.

Not all of that must hold always. `compute_at` may run a producer's instances again, or only those that are needed;
`decompose_reduction` and `loop_partition` leave blocks that write a buffer together. `problems` has what makes a
program wrong, and `check_valid` raises the first of them: a read of what is not written, a reduction that
does not run over its domain exactly once between one init and the next, instances outside of the domain, instances
of an output's writers that never run, a launch that does not fit.

A condition that is neither recognised nor small enough to be counted is `UNKNOWN`: it does not count as holding, and it
is no problem either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple

from tilewright.ir.expr import Buffer, free_vars
from tilewright.schedule.bindings import Binding, binding, unwritten_element
from tilewright.schedule.cover import Writer, cover, writers_of
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.sites import Site, SiteKey, Sites, site_accesses, sites
from tilewright.schedule.verdict import HOLDS, Certainty, Verdict, fails
from tilewright.tir.analysis.regions import Access
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, IterKind, Stmt
from tilewright.tir.thread_axes import launch_misfit

_MAX_REMEMBERED = 4096


@unique
class BlockKind(Enum):
    COMPLETE = "complete"
    REDUCTION = "reduction"
    OPAQUE = "opaque"


class BlockValidity(NamedTuple):
    affine_binding: Verdict
    region_cover: Verdict
    kind: BlockKind
    reason: str  # why the block is opaque


class Problem(NamedTuple):
    """What makes the program wrong, and where."""

    at: Stmt
    reason: str
    hint: str


@dataclass(frozen=True, slots=True, eq=False)
class Validity:
    func: Func
    blocks: dict[str, BlockValidity]
    scopes: dict[str, Verdict]  # the stage pipeline, by block; that of the Func by its name
    threading: Verdict
    problems: tuple[Problem, ...]

    @property
    def is_valid(self) -> bool:
        return not self.problems

    @property
    def stage_pipeline(self) -> Verdict:
        """Of the Func's own scope."""
        return self.scopes[self.func.name]

    def explain(self) -> str:
        """Every condition that does not hold, and why; one block a line."""
        lines = [f"{self.func.name}: {'valid' if self.is_valid else 'not valid'}"]
        lines += [f"  problem: {p.reason}" for p in self.problems]
        for name, block in self.blocks.items():
            lines.append(f"  {name}: {block.kind.value}" + (f", for {block.reason}" if block.reason else ""))
            lines += _line("affine binding", block.affine_binding)
            lines += _line("region cover", block.region_cover)
        for name, verdict in self.scopes.items():
            if verdict.state is not Certainty.HOLDS:
                lines.append(f"  stage pipeline of {name} {verdict.state.value}: {verdict.reason}")
        if self.threading.is_broken:
            lines.append(f"  threading fails: {self.threading.reason}")
        return "\n".join(lines)

    def same_as(self, other: "Validity") -> bool:
        """Does `other`, of the same Func, say the same?"""
        return self.explain() == other.explain()


def _line(what: str, verdict: Verdict) -> list[str]:
    return [] if verdict else [f"    {what} {verdict.state.value}: {verdict.reason}"]


def validate(func: Func) -> Validity:
    """The conditions of `func`, found out from nothing."""
    return Validator().validate(func)


def check_valid(func: Func) -> None:
    """Raises ScheduleError with the place and the reason if `func` is not a valid schedule."""
    raise_problem(validate(func))


def raise_problem(validity: Validity) -> None:
    for p in validity.problems:
        raise step_refusal(validity.func, p.at, p.reason, p.hint)


class Validator:
    """Validates, and remembers what it found per block: after a step only the blocks that changed cost something."""

    def __init__(self) -> None:
        self._accesses: dict[SiteKey, tuple[Access, ...]] = {}
        self._bindings: dict[SiteKey, Binding] = {}
        self._covers: dict[tuple[SiteKey, ...], Verdict] = {}
        self._unwritten: dict[tuple[SiteKey, ...], str] = {}
        self._kept: dict[int, Stmt] = {}  # statements whose identity is part of a key must not go away

    def validate(self, func: Func) -> Validity:
        if len(self._kept) > _MAX_REMEMBERED:
            for memory in (self._accesses, self._bindings, self._covers, self._unwritten, self._kept):
                memory.clear()
        return _Validation(func, self).run()

    def accesses(self, site: Site) -> tuple[Access, ...]:
        found = self._accesses.get(site.key)
        if found is None:
            found = self._accesses[site.key] = tuple(site_accesses(site))
            for b in (*site.outer, site.block):
                self._kept[id(b)] = b
        return found

    def binding(self, site: Site) -> Binding:
        found = self._bindings.get(site.key)
        if found is None:
            found = self._bindings[site.key] = binding(site)
        return found

    def cover(self, reader: Site, reads: Sequence[Access], writers: Sequence[Writer]) -> Verdict:
        where = [
            (*w.site.key, w.site.position < reader.position, *[n.kind.is_at_once for n in w.shared])
            for w in writers
        ]
        key = (reader.key, (reads[0].buffer,), *where)
        found = self._covers.get(key)
        if found is None:
            found = self._covers[key] = cover(reader, reads, writers)
        return found

    def unwritten(self, writers: Sequence[tuple[Site, tuple[Access, ...]]]) -> str:
        key = tuple([s.key for s, _ in writers])
        found = self._unwritten.get(key)
        if found is None:
            found = self._unwritten[key] = unwritten_element(writers)
        return found


class _Use(NamedTuple):
    site: Site
    reads: tuple[Access, ...]
    stores: tuple[Access, ...]


class _Validation:
    def __init__(self, func: Func, known: Validator) -> None:
        self._func, self._known = func, known
        self._sites: Sites = sites(func)
        self._scopes = {id(b) for s in self._sites.all for b in s.outer}  # blocks with blocks inside
        self._uses: dict[Buffer, list[_Use]] = {}
        self._problems: list[Problem] = []

    def run(self) -> Validity:
        for site in self._sites.all:
            found: dict[Buffer, tuple[list[Access], list[Access]]] = {}
            for a in self._known.accesses(site):
                found.setdefault(a.buffer, ([], []))[a.is_write].append(a)
            for buffer, (reads, stores) in found.items():
                self._uses.setdefault(buffer, []).append(_Use(site, tuple(reads), tuple(stores)))
        covers = self._covers()
        blocks: dict[str, BlockValidity] = {}
        for site in self._sites.all:
            bound = self._known.binding(site)
            wrong = bound.problem or (bound.gap if self._writes_alone(site) else "")
            if wrong:
                self._note(site.block, wrong, "bind iterators so that they run over their domains")
            kind, reason = self._kind(site, bound.affine)
            blocks[site.block.name] = BlockValidity(bound.affine, covers[site.block.name], kind, reason)
        self._check_outputs()
        scopes = {self._func.name: self._stage_pipeline(None, covers)}
        for site in self._sites.all:
            if id(site.block) in self._scopes:
                scopes[site.block.name] = self._stage_pipeline(site.block, covers)
        return Validity(self._func, blocks, scopes, self._threading(), tuple(self._problems))

    def _note(self, at: Stmt, reason: str, hint: str) -> None:
        self._problems.append(Problem(at, reason, hint))

    # ------------------------------------------------------------------------------------------------------- blocks

    def _covers(self) -> dict[str, Verdict]:
        out = {s.block.name: HOLDS for s in self._sites.all}
        for buffer, uses in self._uses.items():
            if buffer in self._func.params and not self._is_made_here(buffer, uses):
                continue
            stores = [(u.site, u.stores) for u in uses]
            for u in uses:
                if not u.reads:
                    continue
                verdict = self._known.cover(u.site, u.reads, writers_of(u.site, stores))
                name = u.site.block.name
                if not verdict and (out[name] or verdict.is_broken):
                    out[name] = verdict
                if verdict.is_broken:
                    self._note(
                        u.site.block, verdict.reason, "let the producer run before, over all that is read"
                    )
        return out

    def _is_made_here(self, buffer: Buffer, uses: Sequence[_Use]) -> bool:
        """Is the parameter written before it is read? Otherwise it comes with values, and is changed in place."""
        if buffer not in self._func.outputs:
            return False
        first = uses[0]
        if not first.stores:
            return False
        return not first.reads or first.site.block.init is not None

    def _writes_alone(self, site: Site) -> bool:
        """Does no other block write what this one writes?"""
        mine = [site, *self._below(site.block)]
        written = {a.buffer for s in mine for a in self._known.accesses(s) if a.is_write}
        return all(not u.stores or any(u.site is s for s in mine) for b in written for u in self._uses[b])

    def _below(self, block: Block) -> list[Site]:
        """The blocks inside a block."""
        if id(block) not in self._scopes:
            return []
        return [s for s in self._sites.all if any(n is block for n in s.outer)]

    def _kind(self, site: Site, affine: Verdict) -> tuple[BlockKind, str]:
        block = site.block
        mine = [site, *self._below(block)]
        written = {a.buffer for s in mine for a in self._known.accesses(s) if a.is_write}
        for buffer in written:
            for u in self._uses[buffer]:
                if u.stores and all(u.site is not s for s in mine):
                    return BlockKind.OPAQUE, f"{u.site.block.name} writes {buffer.name} too"
        reduce = {it.var for it in block.iters if it.kind is IterKind.REDUCE}
        if not reduce:
            for s in mine:
                for a in self._known.accesses(s):
                    if not a.is_write and a.buffer in written and not (s is not site and s.block.init):
                        if s is not site and s.block.is_reduction:
                            continue
                        return BlockKind.OPAQUE, f"it reads {a.buffer.name}, which it writes"
            return BlockKind.COMPLETE, ""
        if block.init is None:
            return BlockKind.OPAQUE, "it has reduce iterators and no init"
        if not affine:
            return BlockKind.OPAQUE, "its binding is not known to be a bijection"
        for a in self._known.accesses(site):
            if a.is_write and any(free_vars(i) & reduce for i in a.place):
                return BlockKind.OPAQUE, f"reduce iterators choose where it writes {a.buffer.name}"
        return BlockKind.REDUCTION, ""

    def _check_outputs(self) -> None:
        """The blocks that write an output together run over all of it."""
        for buffer in self._func.outputs:
            writers = [(u.site, u.stores) for u in self._uses.get(buffer, ()) if u.stores]
            if all(self._known.binding(s).affine for s, _ in writers):
                continue
            reason = self._known.unwritten(writers)
            if reason:
                self._note(writers[0][0].block, reason, "bind iterators so that they run over their domains")

    # ------------------------------------------------------------------------------------------------------- scopes

    def _stage_pipeline(self, scope: Block | None, covers: dict[str, Verdict]) -> Verdict:
        inside = self._sites.inside(scope)
        if scope is None and self._sites.loose:
            return fails("there are stores outside of blocks")
        for s in inside:
            if not covers[s.block.name]:
                return Verdict(covers[s.block.name].state, covers[s.block.name].reason)
        names = {s.block.name for s in inside}
        for buffer, uses in self._uses.items():
            mine = [u for u in uses if u.site.block.name in names]
            for n, writer in enumerate(mine):
                if not writer.stores:
                    continue
                for reader in mine[:n]:
                    if reader.reads and not self._is_update(reader):
                        return fails(
                            f"{writer.site.block.name} overwrites {buffer.name}, which {reader.site.block.name} "
                            "has read"
                        )
        return HOLDS

    @staticmethod
    def _is_update(use: _Use) -> bool:
        """Does the block read only the elements that it writes itself, as accumulators are?"""
        places = {a.place for a in use.stores}
        return bool(places) and all(a.place in places for a in use.reads)

    def _threading(self) -> Verdict:
        misfit = launch_misfit(self._func.body)
        if misfit is None:
            return HOLDS
        self._note(misfit.loop, misfit.reason, "bind other loops, or split this one")
        return fails(misfit.reason)
