"""All ops, in one explicit table. `docs/adding-an-op.md` says how to add one."""

from tilewright.ops.activation import (
    Clip,
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mish,
    PRelu,
    Relu,
    Selu,
    Sigmoid,
    Softplus,
    Softsign,
    ThresholdedRelu,
)
from tilewright.ops.arithmetic import Add, Cast, Div, Max, Mean, Min, Mod, Mul, Pow, Sub, Sum
from tilewright.ops.constant import Fill, Range
from tilewright.ops.contraction import Gemm, MatMul
from tilewright.ops.conv import Conv, ConvTranspose
from tilewright.ops.depth import DepthToSpace, SpaceToDepth
from tilewright.ops.einsum import Einsum
from tilewright.ops.gather import Gather, GatherElements, OneHot
from tilewright.ops.logic import (
    And,
    Equal,
    Greater,
    GreaterOrEqual,
    IsInf,
    IsNaN,
    Less,
    LessOrEqual,
    Not,
    Or,
    Where,
    Xor,
)
from tilewright.ops.movement import Expand, Identity, Reshape, Transpose
from tilewright.ops.norm import BatchNormalization, GroupNormalization, LayerNormalization
from tilewright.ops.opdef import Op
from tilewright.ops.pieces import Concat, Pad, Slice, Split, Tile, Trilu
from tilewright.ops.pointwise import (
    Abs,
    Ceil,
    Cos,
    Erf,
    Exp,
    Floor,
    Log,
    Neg,
    Reciprocal,
    Round,
    Sign,
    Sin,
    Sqrt,
    Tanh,
)
from tilewright.ops.pool import AveragePool, MaxPool
from tilewright.ops.reduce import (
    ArgMax,
    ArgMin,
    ReduceL1,
    ReduceL2,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    ReduceSumSquare,
)
from tilewright.ops.resize import Resize
from tilewright.ops.scan import CumSum
from tilewright.ops.softmax import Softmax

OPS: tuple[type[Op], ...] = (
    # arithmetic and conversion
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Max,
    Min,
    Sum,
    Mean,
    Cast,
    # comparison, logic and choice
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    Xor,
    Not,
    IsNaN,
    IsInf,
    Where,
    # functions of one argument
    Abs,
    Neg,
    Sign,
    Reciprocal,
    Sqrt,
    Exp,
    Log,
    Erf,
    Sin,
    Cos,
    Floor,
    Ceil,
    Round,
    # activations
    Relu,
    LeakyRelu,
    PRelu,
    ThresholdedRelu,
    Clip,
    Sigmoid,
    Tanh,
    Gelu,
    HardSigmoid,
    HardSwish,
    Elu,
    Selu,
    Softplus,
    Softsign,
    Mish,
    # movement
    Identity,
    Reshape,
    Transpose,
    Expand,
    Concat,
    Split,
    Slice,
    Pad,
    Tile,
    Trilu,
    DepthToSpace,
    SpaceToDepth,
    Gather,
    GatherElements,
    OneHot,
    # without inputs
    Fill,
    Range,
    # contractions
    MatMul,
    Gemm,
    Einsum,
    Conv,
    ConvTranspose,
    # reductions
    ReduceSum,
    ReduceMean,
    ReduceMax,
    ReduceMin,
    ReduceProd,
    ReduceL1,
    ReduceL2,
    ReduceSumSquare,
    ReduceLogSum,
    ReduceLogSumExp,
    ArgMax,
    ArgMin,
    CumSum,
    MaxPool,
    AveragePool,
    Resize,
    # normalisations
    Softmax,
    LayerNormalization,
    GroupNormalization,
    BatchNormalization,
)

_BY_ONNX: dict[str, type[Op]] = {name: op for op in OPS for name in op.onnx}


def by_onnx(op_type: str) -> type[Op] | None:
    """The op that imports this ONNX operator, if there is one."""
    return _BY_ONNX.get(op_type)
