"""Give the zeros that a Pad adds to the window of the convolution that reads them.

    p = Pad[before=(0, 0, 1, 1), after=(0, 0, 1, 1)](x)
    y = Conv[window=(3×3, no padding)](p, w)             →   y = Conv[window=(3×3, padding 1)](x, w)

Only spatial axes, only zeros, and only padding: nothing may be cut off.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.pieces import Pad


def fuse_padding(graph: Graph) -> Graph:
    return sweep(graph, _fuse)


def _fuse(state: Sweep, node: Node) -> Sequence[Value] | None:
    before = state.producer(node.inputs[0]) if isinstance(node.op, Conv) else None
    if before is None or not isinstance(node.op, Conv) or not isinstance(before.op, Pad):
        return None
    pad, window = before.op, node.op.window
    pads = (*pad.before, *pad.after)
    if pad.mode != "constant" or pad.value != 0 or min(pads) < 0 or any((*pad.before[:2], *pad.after[:2])):
        return None
    low, high = (
        tuple(a + b for a, b in zip(ours, theirs[2:], strict=True))
        for ours, theirs in ((window.before, pad.before), (window.after, pad.after))
    )
    wider = replace(node.op, window=replace(window, before=low, after=high))
    return state.add(wider, (before.inputs[0], *node.inputs[1:]), node)
