"""Programs for parts of the ranges of open dimensions: which there are, and all of them as one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tilewright.driver.decisions import Narrower
from tilewright.driver.trace import ProgramTrace
from tilewright.graph.graph import Graph
from tilewright.graph.window_dims import window_dims
from tilewright.search.narrower import default_boxes
from tilewright.support.artifact import Artifact
from tilewright.support.errors import UserError
from tilewright.support.sizes import Dim


class RangeFacts(NamedTuple):
    """A program for some ranges, and what is known of how it was made."""

    artifact: Artifact
    trace: ProgramTrace
    tasks: tuple[str, ...]
    seconds: dict[str, float]


def narrower_programs(
    graph: Graph, dims: Mapping[str, Dim], given: ProgramTrace | None
) -> tuple[tuple[Narrower, ProgramTrace], ...]:
    """How far each goes, and what is decided of it already: those of the trace, or those that the graph gains by."""
    if given is None or given.narrower is None:
        boxes = default_boxes(dims, window_dims(graph))
        return tuple(
            (Narrower(tuple(n for n, _ in box), tuple(most for _, most in box)), ProgramTrace())
            for box in boxes
        )
    for box, _ in given.narrower:
        for name, most in box.box:
            if name not in dims or not dims[name].allows(most):
                raise UserError(
                    f"the trace does not fit this program: {name} cannot be {most}",
                    where=str(box),
                    hint=f"the open dimensions are: {', '.join(map(str, dims.values()))}",
                )
    return given.narrower


def united(whole: RangeFacts, boxes: Sequence[Narrower], programs: Sequence[RangeFacts]) -> RangeFacts:
    """The program for all sizes that has those of the boxes too."""
    trace = replace(whole.trace, narrower=tuple((b, p.trace) for b, p in zip(boxes, programs, strict=True)))
    manifest = whole.artifact.manifest
    artifact = replace(
        whole.artifact,
        manifest=replace(manifest, options={**manifest.options, "trace": str(trace)}),
        narrower=tuple(p.artifact for p in programs),
    )
    tasks = tuple(dict.fromkeys(t for p in (whole, *programs) for t in p.tasks))
    seconds = {s: t + sum(p.seconds.get(s, 0.0) for p in programs) for s, t in whole.seconds.items()}
    return RangeFacts(artifact, trace, tasks, seconds)
