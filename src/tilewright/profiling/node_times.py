"""The seconds of each node of a model, in a program that was timed call by call."""

from collections.abc import Iterable

from tilewright.driver.kernels import Item
from tilewright.profiling.attribution import attribute_time
from tilewright.profiling.boxes import box_of, final_nodes, joined_boxes, made_steps
from tilewright.profiling.call_times import CallTime
from tilewright.stages import Stages


def measured_node_seconds(found: Stages, calls: Iterable[CallTime]) -> dict[str, float]:
    """By the names of nodes as they were imported; `calls` are those of the program, in its order."""
    assert found.imported is not None
    attribution, joined = attribute_time(found.imported, found.graph), joined_boxes(found)
    spent: dict[str, float] = {}
    times = iter(calls)
    for step in made_steps(found, {}):
        if isinstance(step, Item):
            box = box_of(step)
            spent[box] = spent.get(box, 0.0) + next(times).seconds
    seconds: dict[str, float] = {}
    for box, own in spent.items():
        for node, share in attribution.shares(final_nodes(found, joined.get(box, ()))).items():
            seconds[node.name] = seconds.get(node.name, 0.0) + share * own
    return seconds
