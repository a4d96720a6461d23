"""What passes ask when they recognise an operation from its parts: who made a value, and whether it is a number."""

from tilewright.graph.graph import Node, Value
from tilewright.graph.rewrite import Sweep
from tilewright.ir.dtype import DType
from tilewright.ops.core.arithmetic import Div, Mul, Pow
from tilewright.ops.core.pointwise import Reciprocal, Sqrt
from tilewright.ops.opdef import Op

# The distance from 1 to the next number.
_EPSILON = {DType.F64: 2.0**-52, DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}


def made_by(state: Sweep, value: Value, *kinds: type[Op]) -> Node | None:
    """The node that makes `value`, if it is of one of these kinds."""
    node = state.producer(value)
    return node if node is not None and isinstance(node.op, kinds) else None


def number(state: Sweep, value: Value) -> float | None:
    """The value of a constant of one element."""
    array = state.known(value)
    return float(array.item()) if array is not None and array.size == 1 else None


def is_close(a: float, b: float, dtype: DType) -> bool:
    """Are both the same number, as far as a few roundings to `dtype` leave it?

    Exporters round constants to the type of the model, and may have multiplied two or three of them before.
    """
    return abs(a - b) <= 2 * _EPSILON.get(dtype, 0.0) * max(abs(a), abs(b))


def exponent(state: Sweep, node: Node) -> float | None:
    """The exponent of a power, if it is known."""
    assert isinstance(node.op, Pow)
    return number(state, node.inputs[1]) if node.op.exponent is None else node.op.exponent


def root_of(state: Sweep, value: Value) -> Value | None:
    """What `value` is the square root of."""
    node = made_by(state, value, Sqrt, Pow)
    if node is None or (isinstance(node.op, Pow) and exponent(state, node) != 0.5):
        return None
    return node.inputs[0]


def quotients(state: Sweep, node: Node) -> list[tuple[Value, Value]]:
    """The pairs of which `node` is the quotient: a / b, and a · (1 / b) in either order."""
    if isinstance(node.op, Div):
        return [(node.inputs[0], node.inputs[1])]
    if not isinstance(node.op, Mul):
        return []
    found: list[tuple[Value, Value]] = []
    for a, b in (node.inputs, node.inputs[::-1]):
        inverse = made_by(state, b, Reciprocal, Div)
        if inverse is None:
            continue
        if isinstance(inverse.op, Reciprocal):
            found.append((a, inverse.inputs[0]))
        elif number(state, inverse.inputs[0]) == 1:
            found.append((a, inverse.inputs[1]))
    return found
