"""Programs for parts of the ranges of open dimensions: which there are, and all of them as one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.driver.decisions import Narrower
from tilewright.driver.trace import ProgramTrace
from tilewright.graph.graph import Graph
from tilewright.graph.window_dims import window_dims
from tilewright.search.narrower import default_boxes
from tilewright.support.artifact import Artifact
from tilewright.support.errors import UserError
from tilewright.support.sizes import Dim


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


def with_narrower(
    artifact: Artifact, trace: ProgramTrace, programs: Sequence[tuple[Narrower, Artifact, ProgramTrace]]
) -> tuple[Artifact, ProgramTrace]:
    """The program for all sizes that has the others too, and the trace of all of them."""
    trace = replace(trace, narrower=tuple((box, t) for box, _, t in programs))
    options = {**artifact.manifest.options, "trace": str(trace)}
    made = replace(
        artifact,
        manifest=replace(artifact.manifest, options=options),
        narrower=tuple(a for _, a, _ in programs),
    )
    return made, trace
