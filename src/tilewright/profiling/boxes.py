"""The boxes of a program: a Func with the kernels that were made of it, or a region that somebody else runs."""

from collections.abc import Iterable, Iterator, Mapping

from tilewright.driver.decisions import Join
from tilewright.driver.kernels import Item
from tilewright.graph.graph import Node
from tilewright.profiling.attribution import joined_funcs
from tilewright.stages import Stages
from tilewright.support.artifact import choice_at
from tilewright.support.program import leaves
from tilewright.tir.func import External


def made_steps(found: Stages, sizes: Mapping[str, int]) -> Iterator[Item | External]:
    """Those that are made where open dimensions have these sizes, in the order of the artifact's calls."""
    steps = [*leaves(found.program)]
    boxes = {box for s in steps if isinstance(s, Item) for box in (*((s.only,) if s.only else ()), *s.unless)}
    choice = choice_at(boxes, sizes)
    for s in steps:
        if isinstance(s, External) or ((not s.only or s.only in choice) and choice.isdisjoint(s.unless)):
            yield s


def box_of(step: Item | External) -> str:
    return step.func if isinstance(step, Item) else step.key


def joined_boxes(found: Stages) -> dict[str, list[str]]:
    """The boxes of Funcs, each with those that were joined to make it."""
    joins = [(d.first, d.second) for d in found.trace.sections.get("joins", ()) if isinstance(d, Join)]
    return joined_funcs(found.owners, joins)


def final_nodes(found: Stages, funcs: Iterable[str]) -> list[Node]:
    """The nodes of the final graph that these Funcs compute."""
    groups = [found.groups[found.owners[f]] for f in funcs]
    return [n for g in groups for n in g.nodes]
