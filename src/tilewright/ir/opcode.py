"""The operators of expressions, by their spelling in text; their meaning is stated in `ir.expr`."""

from enum import Enum, unique


@unique
class UnaryOp(Enum):
    NEG = "neg"
    NOT = "not"  # bool only
    ABS = "abs"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"
    TRUNC = "trunc"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    EXP = "exp"
    EXP_NONPOSITIVE = "exp_nonpositive"  # e^x where x ≤ 0 or NaN, which whoever writes it promises
    LOG = "log"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    ERF = "erf"
    GELU = "gelu_erf"  # x · Φ(x), with the normal distribution function Φ; 0 at -∞
    SIN = "sin"
    COS = "cos"

    __hash__ = object.__hash__


@unique
class BinaryOp(Enum):
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    FLOORDIV = "floordiv"
    MOD = "mod"
    MIN = "min"
    MAX = "max"
    POW = "pow"
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    AND = "and"  # bool: logical; integers: bitwise. Both sides are evaluated.
    OR = "or"
    XOR = "xor"
    SHL = "shl"
    SHR = "shr"

    __hash__ = object.__hash__


COMPARISONS = frozenset({BinaryOp.EQ, BinaryOp.NE, BinaryOp.LT, BinaryOp.LE})


def fold_int(op: BinaryOp, a: int, b: int) -> int | None:
    """The value of `a op b` on integers or bools; None where it is not folded."""
    match op:
        case BinaryOp.ADD:
            return a + b
        case BinaryOp.SUB:
            return a - b
        case BinaryOp.MUL:
            return a * b
        case BinaryOp.FLOORDIV:
            return a // b if b else None
        case BinaryOp.MOD:
            return a % b if b else None
        case BinaryOp.MIN:
            return min(a, b)
        case BinaryOp.MAX:
            return max(a, b)
        case BinaryOp.EQ:
            return a == b
        case BinaryOp.NE:
            return a != b
        case BinaryOp.LT:
            return a < b
        case BinaryOp.LE:
            return a <= b
        case BinaryOp.AND:
            return a & b
        case BinaryOp.OR:
            return a | b
        case BinaryOp.XOR:
            return a ^ b
        case _:
            return None
