"""Recognise activations that were exported in pieces.

    0.5 · x · (1 + Erf(x / √2))                           →  Gelu(x)
    0.5 · x · (1 + Tanh(√(2/π) · (x + 0.044715 · x³)))    →  Gelu[tanh](x)
    x · Sigmoid(a · x)                                    →  Swish[alpha=a](x)
    Clip[0, 6](x + 3) / 6                                 →  HardSigmoid[alpha=1/6, beta=1/2](x)
    x · Clip[0, 6](x + 3) / 6                             →  HardSwish(x)

Sums and products may be written in any order, and constants may be multiplied out: the result is expanded as a
polynomial in x and in one function f of x, the argument of f as a polynomial in x, and both are compared term by term
with what the op computes. Constants may differ by a few roundings of the element type. Nothing happens where somebody
else needs one of the parts: it would be computed twice.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tilewright.graph.graph import Graph, Node, Value, users
from tilewright.graph.pattern import exponent, is_close, made_by, number
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Clip, Gelu, HardSigmoid, HardSwish, Sigmoid, Swish
from tilewright.ops.core.arithmetic import Add, Div, Mul, Pow, Sub
from tilewright.ops.core.pointwise import Erf, Neg, Tanh
from tilewright.ops.opdef import Op

Powers: TypeAlias = tuple[int, int]  # powers of x and of f
Polynomial: TypeAlias = dict[Powers, float]

_ARITHMETIC = (Add, Sub, Mul, Div, Neg, Pow)
_FUNCTIONS = (Erf, Tanh, Sigmoid, HardSigmoid, Clip)
_MOST_PARTS = 16
_HIGHEST_POWER = 4


def recognise_activations(graph: Graph) -> Graph:
    readers, results = users(graph), set(graph.outputs)

    def recognise(state: Sweep, node: Node) -> Sequence[Value] | None:
        if not isinstance(node.op, Mul | Div | Clip) or not node.outputs[0].type.dtype.is_float:
            return None
        for f in _functions_below(state, node):
            for x in reversed(_arithmetic_below(state, f.inputs[0])):
                if x.type != node.outputs[0].type:
                    continue
                found = _Expansion(state, x, f.outputs[0])
                whole = found.of_node(node)
                inner = found.of(f.inputs[0])
                op = _activation(f.op, whole, inner, x.type.dtype) if whole and inner else None
                inside = found.parts | {node.outputs[0]}
                if op is not None and not any(_is_needed(v, inside) for v in found.parts):
                    return state.add(op, (x,), node)
        return None

    def _is_needed(part: Value, inside: set[Value]) -> bool:
        return part in results or any(r.outputs[0] not in inside for r in readers.get(part, ()))

    return sweep(graph, recognise)


def _activation(f: Op, whole: Polynomial, inner: Polynomial, dtype: DType) -> Op | None:
    """The op that computes `whole`, where f stands for the function of `inner`."""

    def same(p: Polynomial, q: Mapping[Powers, float]) -> bool:
        return p.keys() == q.keys() and all(is_close(p[t], c, dtype) for t, c in q.items())

    match f:
        case Erf() if same(inner, {(1, 0): math.sqrt(0.5)}) and same(whole, {(1, 0): 0.5, (1, 1): 0.5}):
            return Gelu()
        case Tanh() if same(whole, {(1, 0): 0.5, (1, 1): 0.5}):
            scale = math.sqrt(2 / math.pi)
            return Gelu(tanh=True) if same(inner, {(1, 0): scale, (3, 0): 0.044715 * scale}) else None
        case Sigmoid() if inner.keys() == {(1, 0)} and same(whole, {(1, 1): 1}):
            alpha = inner[1, 0]
            return Swish(1.0 if is_close(alpha, 1, dtype) else alpha)
        case HardSigmoid(alpha=alpha, beta=beta) if same(inner, {(1, 0): 1}) and same(whole, {(1, 1): 1}):
            return HardSwish() if _is_hard_swish(alpha, beta, dtype) else None
        case Clip(low=0, high=float() | int() as high) if inner.keys() == {(1, 0), (0, 0)}:
            ((power, times), factor), *more = whole.items()
            if more or times != 1 or not is_close(factor * high, 1, dtype):
                return None
            # A positive factor may as well be applied inside of the clip.
            alpha, beta = factor * inner[1, 0], factor * inner[0, 0]
            if power == 0:
                return HardSigmoid(alpha, beta)
            return HardSwish() if power == 1 and _is_hard_swish(alpha, beta, dtype) else None
        case _:
            return None


def _is_hard_swish(alpha: float, beta: float, dtype: DType) -> bool:
    return is_close(alpha, 1 / 6, dtype) and is_close(beta, 0.5, dtype)


class _Expansion:
    """Values as polynomials in `x` and `f`; `parts` are the values that were looked through, and `f` itself."""

    def __init__(self, state: Sweep, x: Value, f: Value) -> None:
        self._state, self._x, self._f = state, x, f
        self.parts: set[Value] = set()

    def of(self, value: Value) -> Polynomial | None:
        if value is self._x:
            return {(1, 0): 1.0}
        if value is self._f:
            self.parts.add(value)
            return {(0, 1): 1.0}
        known = number(self._state, value)
        if known is not None:
            return {(0, 0): known} if known else {}
        node = made_by(self._state, value, *_ARITHMETIC)
        if node is None or len(self.parts) > _MOST_PARTS:
            return None
        self.parts.add(value)
        return self.of_node(node)

    def of_node(self, node: Node) -> Polynomial | None:
        if node.outputs[0] is self._f:
            return {(0, 1): 1.0}
        if isinstance(node.op, Pow):
            by, base = exponent(self._state, node), self.of(node.inputs[0])
            if base is None or by not in (1, 2, 3):
                return None
            return _product([base] * int(by))
        terms = [self.of(v) for v in node.inputs]
        known = [t for t in terms if t is not None]
        if len(known) < len(terms):
            return None
        match node.op:
            case Neg():
                return _product([*known, {(0, 0): -1.0}])
            case Add():
                return _sum(*known)
            case Sub():
                return _sum(known[0], _product([known[1], {(0, 0): -1.0}]))
            case Mul():
                return _product(known)
            case Div() if known[1].keys() == {(0, 0)}:
                return _product([known[0], {(0, 0): 1 / known[1][0, 0]}])
            case _:
                return None


def _sum(p: Polynomial, q: Polynomial | None) -> Polynomial | None:
    if q is None:
        return None
    total = {t: p.get(t, 0.0) + q.get(t, 0.0) for t in (*p, *q)}
    return {t: c for t, c in total.items() if c}


def _product(factors: Sequence[Polynomial]) -> Polynomial | None:
    out: Polynomial = {(0, 0): 1.0}
    for q in factors:
        terms: Polynomial = {}
        for (a, b), c in out.items():
            for (d, e), k in q.items():
                terms[a + d, b + e] = terms.get((a + d, b + e), 0.0) + c * k
        if any(max(t) > _HIGHEST_POWER for t in terms):
            return None
        out = terms
    return out


def _functions_below(state: Sweep, node: Node) -> list[Node]:
    """The functions that `node` is made of by arithmetic alone."""
    if isinstance(node.op, Clip):
        return [node]
    found = [made_by(state, v, *_FUNCTIONS) for u in node.inputs for v in _arithmetic_below(state, u)]
    return [n for n in found if n is not None]


def _arithmetic_below(state: Sweep, value: Value) -> list[Value]:
    """`value`, and what it is made of by arithmetic, nearest first."""
    found: dict[Value, None] = {value: None}
    queue = [value]
    while queue and len(found) < _MOST_PARTS:
        node = made_by(state, queue.pop(0), *_ARITHMETIC)
        for v in node.inputs if node is not None else ():
            if v not in found and state.known(v) is None:
                found[v] = None
                queue.append(v)
    return list(found)
