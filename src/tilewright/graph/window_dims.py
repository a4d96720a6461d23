"""Open dimensions that windows slide along: height and width of images, the length of signals."""

from tilewright.graph.graph import Graph
from tilewright.ops.core.window import Window
from tilewright.support.sizes import dims_in

_FIRST = 2  # axis behind batch and channels


def window_dims(graph: Graph) -> frozenset[str]:
    """Their names. What depends on them is laid out row by row, with borders, and in tiles of both axes: a program
    for large images does not suit small ones.
    """
    found: set[str] = set()
    for node in graph.nodes:
        window = getattr(node.op, "window", None)
        if isinstance(window, Window) and max(window.kernel, default=1) > 1:
            found.update(d.name for d in dims_in(node.inputs[0].shape[_FIRST:]))
    return frozenset(found)
