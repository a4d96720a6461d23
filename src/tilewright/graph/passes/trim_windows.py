"""Cut off the taps of a convolution that read nothing but padding.

    x: f32[1, 200, 2, 96]
    y = Conv[window=(5×5, padding 2)](x, w)     →   y = Conv[window=(3×5, padding 1×2)](x, w[:, :, 1:4])

Of five rows of taps over an image of two, the first and the last never meet it. Small networks that look at strips of
images or a few samples of sound end in such layers. Weights must be known and finite: infinity times zero is NaN.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.window import Window


def trim_windows(graph: Graph) -> Graph:
    return sweep(graph, _trim)


def _trim(state: Sweep, node: Node) -> Sequence[Value] | None:
    if not isinstance(node.op, Conv) or not all(node.outputs[0].shape):
        return None
    x, w, *bias = node.inputs
    window = node.op.window
    outputs = node.outputs[0].shape[2:]
    useful = [
        _useful_taps(window, d, n, p) for d, (n, p) in enumerate(zip(x.shape[2:], outputs, strict=True))
    ]
    weights = state.known(w)
    if weights is None or all(len(t) == k for t, k in zip(useful, window.kernel, strict=True)):
        return None
    kept = weights[(..., *(slice(t.start, t.stop) for t in useful))]
    if not np.isfinite(weights).all():
        return None
    narrow = replace(node.op, window=_with_taps(window, useful))
    return state.add(narrow, (x, state.add_constant(w.name, kept), *bias), node)


def _useful_taps(window: Window, d: int, extent: int, outputs: int) -> range:
    """From the first to the last tap along axis d that meets the input; all of them if the rest would start inside."""
    every = range(window.kernel[d])
    step, distance = window.strides[d], window.dilations[d]

    def meets(tap: int) -> bool:
        at = tap * distance - window.before[d]  # in the first window
        first = max(0, -(-(0 - at) // step))  # the first window in which it is not before the input
        return first < outputs and at + first * step < extent

    found = [t for t in every if meets(t)]
    if not found:
        return every
    cut = range(found[0], found[-1] + 1)
    pads = window.before[d] - cut.start * distance, window.after[d] - (every.stop - cut.stop) * distance
    return every if min(pads) < 0 else cut


def _with_taps(window: Window, taps: Sequence[range]) -> Window:
    return replace(
        window,
        kernel=tuple(map(len, taps)),
        before=tuple(b - t.start * d for b, t, d in zip(window.before, taps, window.dilations, strict=True)),
        after=tuple(
            a - (k - t.stop) * d
            for a, t, k, d in zip(window.after, taps, window.kernel, window.dilations, strict=True)
        ),
    )
