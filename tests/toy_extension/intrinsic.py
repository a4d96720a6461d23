"""A tensor intrinsic: four sums at once, which every machine has."""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Var
from tilewright.target.intrinsic import ANYWHERE, BodyLoop, Intrinsic, Operand, state
from tilewright.tir.stmt import LoopKind

_C, _A, _B = (Buffer(name, (4,), DType.F32) for name in "CAB")
_j = Var("j")

ADD_4 = Intrinsic(
    "toy.f32.add_4",
    state("add", (_C, _A, _B), {_j: 4}, {}, _C[_j], _A[_j] + _B[_j]),
    tuple(Operand(name, ANYWHERE, 1) for name in "CAB"),
    frozenset(),
    body=(BodyLoop("j", LoopKind.VECTORIZED, 4),),
)
