"""Which part of its inputs is complete at a place to which a block may move.

A buffer whose writers are all in earlier nests is complete altogether. A writer that shares loops with the place has,
at that point, written the part that belongs to the current iteration of the shared loops: that part must be
finished (the shared loops feed no reduction of the writer) and known exactly (a box without holes).
"""

from collections.abc import Mapping, Sequence

from tilewright.ir.expr import Buffer, Var, as_index
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import path_to
from tilewright.schedule.preconditions import check_settled
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import (
    BufferRegion,
    Span,
    accesses,
    box,
    contains,
    exact_union,
    loop_extents,
)
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Stmt, blocks


def available(
    func: Func, flow: Dataflow, block: Block, loop: For, before: Stmt | None, simplify: Simplifier
) -> dict[Buffer, tuple[BufferRegion, bool]]:
    """Of the inputs of `block` that are not complete before the nest of `loop`: the part that is complete in the body
    of `loop`, in front of its statement `before` (None: at the end), and whether it was written inside `loop`.

    Raises ScheduleError if an input is not complete in any known part.
    """
    place = path_to(func.body, loop)
    start = next(blocks(loop))
    end = None if before is None else next(blocks(before))
    out: dict[Buffer, tuple[BufferRegion, bool]] = {}
    for buffer in flow.reads(block):
        shared: dict[tuple[Var, ...], list[Block]] = {}
        for w in flow.writers(buffer):
            if w is block:
                continue
            path = path_to(func.body, w)
            common = [func.body, *(a for a, b in zip(path[1:], place[1:], strict=False) if a is b)]
            limit = end if common[-1] is loop else start
            if limit is not None and flow.position(w) >= flow.position(limit):
                raise step_refusal(
                    func,
                    w,
                    f"block {w.name!r} writes {buffer.name}, which block {block.name!r} reads, only after the place "
                    f"under loop {loop.var.name!r}",
                    "every producer must be done there: choose a loop around it, or move it first",
                )
            shared.setdefault(tuple(n.var for n in common if isinstance(n, For)), []).append(w)
        if len(shared) > 1:
            one, other = (writers[0] for writers in list(shared.values())[:2])
            raise step_refusal(
                func,
                other,
                f"the writers of {buffer.name} are under different loops: a part comes from {one.name!r}, another from "
                f"{other.name!r}",
                "choose a loop that is around all of them, or around none",
            )
        if not shared or () in shared:
            continue
        ((fixed, writers),) = shared.items()
        around = [n for n in place if isinstance(n, For) and n.var in fixed]
        for w in writers:
            check_settled(func, flow, w, around, block, simplify)
        out[buffer] = (_finished(func, buffer, writers, around[-1], simplify), around[-1] is loop)
    return out


def _finished(
    func: Func, buffer: Buffer, writers: Sequence[Block], around: For, simplify: Simplifier
) -> BufferRegion:
    """What the writers of `buffer` write in one iteration of `around`."""
    boxes: list[BufferRegion] = []
    ranging = loop_extents(around.body)
    for a in accesses(around.body, reads=False):
        if a.buffer is not buffer:
            continue
        found = box(a, ranging, simplify)
        spans = tuple(s for s in found.spans if s is not None)
        domain_only = all(a.keeps_domain(c, simplify) for c in found.conditions)
        if not found.exact or not domain_only or len(spans) < len(found.spans):
            raise step_refusal(
                func,
                writers[-1],
                f"what block {writers[-1].name!r} writes to {buffer.name} in one iteration of {around.var.name!r} is "
                "not known to be a box without holes",
                "choose another loop",
            )
        boxes.append(spans)
    whole = exact_union(boxes, simplify)
    if whole is None:
        raise step_refusal(
            func,
            writers[-1],
            f"the writers of {buffer.name} under {around.var.name!r} do not fill one box together",
            "choose another loop",
        )
    return whole


def missing(
    nest: Stmt, parts: Mapping[Buffer, tuple[BufferRegion, bool]], simplify: Simplifier
) -> Buffer | None:
    """An input of which `nest`, put at the place, reads more than is available there."""
    ranging = loop_extents(nest)
    for read in accesses(nest):
        if read.is_write or read.buffer not in parts:
            continue
        region, _ = parts[read.buffer]
        for need, have, size in zip(
            box(read, ranging, simplify).spans, region, read.buffer.shape, strict=True
        ):
            if not contains(have, need or Span(as_index(0), size), size, simplify):
                return read.buffer
    return None
