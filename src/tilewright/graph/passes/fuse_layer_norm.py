"""Recognise a norm of rows that was exported in pieces.

    mean = ReduceMean(x)
    d = Sub(x, mean)
    v = ReduceMean(Pow(d, 2))                       n = LayerNormalization(x, scale)
    n = Mul(Div(d, Sqrt(Add(v, epsilon))), scale)   →
    y = Add(n, bias)                                y = LayerNormalization(x, scale, bias)

over the last axes, with constant epsilon, scale and bias. Where x itself stands for d, it is the norm by root mean
square. The root may be divided by or multiplied with its reciprocal; sums and products may be written in either order.
One op over rows needs x once from memory; the pieces are three passes over it. Pieces that somebody else needs stay
too. A norm that is neither scaled nor shifted has a scale of ones.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.pattern import exponent, made_by, number, quotients, root_of, square_of
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.arithmetic import Add, Mul, Pow, Sub
from tilewright.ops.core.norm import LayerNormalization
from tilewright.ops.core.reduce import ReduceMean


def fuse_layer_norm(graph: Graph) -> Graph:
    unscaled: set[Value] = set()  # norms of ours whose scale is ones

    def fuse(state: Sweep, node: Node) -> Sequence[Value] | None:
        found = _match_normed(state, node)
        if found is not None:
            x, op = found
            ones = np.ones(x.shape[op.axis :], x.type.dtype.numpy)
            made = state.add(op, (x, state.add_constant(f"{node.outputs[0].name}.scale", ones)), node)
            unscaled.update(made)
            return made
        if isinstance(node.op, Mul | Add):
            return _with_weight(state, node, unscaled)
        return None

    return sweep(graph, fuse)


def _with_weight(state: Sweep, node: Node, unscaled: set[Value]) -> Sequence[Value] | None:
    """The norm that `node` scales or shifts by a constant, if it has no scale or shift yet."""
    a, b = node.inputs
    for value, weight in ((a, b), (b, a)):
        norm = made_by(state, value, LayerNormalization)
        if norm is None or state.known(weight) is None or value.type != node.outputs[0].type:
            continue
        x, scale, *bias = norm.inputs
        if bias or len(norm.outputs) > 1:
            continue
        if isinstance(node.op, Add):
            return state.add(norm.op, (x, scale, weight), node)
        if value in unscaled:
            return state.add(norm.op, (x, weight), node)
    return None


def _match_normed(state: Sweep, node: Node) -> tuple[Value, LayerNormalization] | None:
    """If `node` is d / sqrt(mean square of d + epsilon), where d is x or x - mean: x, and the op."""
    if not node.outputs or not node.outputs[0].type.dtype.is_float:
        return None
    for d, square in _over_roots(state, node):
        found = _match_mean_square(state, square, d)
        if found is None or d.type != node.outputs[0].type:
            continue
        mean, epsilon = found
        trailing = bool(mean.axes) and mean.axes == tuple(range(mean.axes[0], len(d.shape)))
        if not mean.keep or not trailing:
            continue
        x = _centred(state, d, mean)
        return (d if x is None else x), LayerNormalization(mean.axes[0], epsilon, centred=x is not None)
    return None


def _over_roots(state: Sweep, node: Node) -> list[tuple[Value, Value]]:
    """The pairs d, s for which `node` is d / sqrt(s)."""
    roots = [(d, root_of(state, b)) for d, b in quotients(state, node)]
    if isinstance(node.op, Mul):
        for d, b in (node.inputs, node.inputs[::-1]):
            power = made_by(state, b, Pow)
            if power is not None and exponent(state, power) == -0.5:
                roots.append((d, power.inputs[0]))
    return [(d, s) for d, s in roots if s is not None]


def _match_mean_square(state: Sweep, value: Value, d: Value) -> tuple[ReduceMean, float] | None:
    """If `value` is the mean of d² plus a constant: the mean, and the constant."""
    total = made_by(state, value, Add)
    for v, more in (total.inputs, total.inputs[::-1]) if total is not None else ():
        mean, epsilon = made_by(state, v, ReduceMean), number(state, more)
        if mean is None or epsilon is None:
            continue
        base = square_of(state, mean.inputs[0])
        if base is not None and _is_same(state, base, d):
            assert isinstance(mean.op, ReduceMean)
            return mean.op, epsilon
    return None


def _centred(state: Sweep, d: Value, mean: ReduceMean) -> Value | None:
    """The value that `d` is, less its mean."""
    node = made_by(state, d, Sub)
    middle = made_by(state, node.inputs[1], ReduceMean) if node is not None else None
    if node is None or middle is None or middle.op != mean or middle.inputs[0] is not node.inputs[0]:
        return None
    return node.inputs[0]


def _is_same(state: Sweep, a: Value, b: Value) -> bool:
    """The same value, or the same difference written down twice."""
    p, q = made_by(state, a, Sub), made_by(state, b, Sub)
    if a is b or p is None or q is None or p.inputs[0] is not q.inputs[0]:
        return a is b
    r, s = state.producer(p.inputs[1]), state.producer(q.inputs[1])
    return p.inputs[1] is q.inputs[1] or (
        r is not None and s is not None and r.op == s.op and r.inputs == s.inputs
    )
