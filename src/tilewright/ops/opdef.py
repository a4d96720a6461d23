"""What an op is: declared once, and everything else is derived from the declaration.

An op is a frozen dataclass whose fields are its attributes. It says how it is spelled in ONNX, what types it yields
(`infer`), what it computes (`compute`, as tensor expressions on a FuncBuilder), what numpy says (`reference`, the
meaning the tests hold it to), and which cases to try (`samples`). Importer, constant folding, documentation row and
numerics tests all come from here.

Shapes are static, so `from_onnx` resolves everything that depends on them or on the opset (negative axes, `-1` in a
shape, automatic padding, axes given as an input): an op's attributes are plain and complete, and two spellings of one
computation are one op.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

# ONNX numbers its element types; these are the ones that have a DType.
ONNX_DTYPES: Mapping[int, DType] = {
    1: DType.F32,
    2: DType.U8,
    3: DType.I8,
    4: DType.U16,
    5: DType.I16,
    6: DType.I32,
    7: DType.I64,
    9: DType.BOOL,
    10: DType.F16,
    11: DType.F64,
    12: DType.U32,
    13: DType.U64,
    16: DType.BF16,
}


ONNX_NUMBERS: Mapping[DType, int] = {dtype: number for number, dtype in ONNX_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorType:
    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"

    @staticmethod
    def of(array: Array) -> "TensorType":
        return TensorType(DType.of(array.dtype), tuple(int(n) for n in array.shape))

    @property
    def rank(self) -> int:
        return len(self.shape)


@unique
class Kind(Enum):
    """How an op may be grouped with others."""

    ELEMENTWISE = "elementwise"  # output element depends on one element of each (broadcast) input
    MOVEMENT = "movement"  # each output element is one input element, or a constant
    REDUCTION = "reduction"  # softmax, norms, pools, sums
    CONTRACTION = "contraction"  # matmul, convolution


class OnHost(UserError):
    """A node that native code cannot compute, though its op is known: the host has to. Says why."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """An ONNX node as an op's `from_onnx` sees it. Absent optional inputs have type None."""

    op_type: str
    opset: int  # of the domain that the operator is from
    attrs: Mapping[str, Any]  # int, float, str, list of those, or ndarray
    inputs: tuple[TensorType | None, ...]
    # The value of input i, if it is known at compile time.
    constant: Callable[[int], NDArray[np.generic] | None]
    outputs: int
    # The value of input i, if it is known but for the sizes of open dimensions: an array of ints.
    sizes: Callable[[int], NDArray[np.object_] | None] = lambda i: None

    @property
    def present(self) -> tuple[int, ...]:
        """The inputs that are not left out."""
        return tuple(i for i, t in enumerate(self.inputs) if t is not None)

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def input(self, i: int) -> TensorType:
        """The type of a required input."""
        found = self.inputs[i] if i < len(self.inputs) else None
        if found is None:
            raise UserError(f"{self.op_type} needs an input {i}")
        return found

    def integer(self, name: str, default: int) -> int:
        return int(self.attrs.get(name, default))

    def real(self, name: str, default: float) -> float:
        """Float attributes are f32, and so are their defaults."""
        return float(np.float32(self.attrs.get(name, default)))

    def text(self, name: str, default: str) -> str:
        return str(self.attrs.get(name, default))

    def integers(self, name: str) -> tuple[int, ...] | None:
        found = self.attrs.get(name)
        return None if found is None else tuple(int(v) for v in found)

    def value(self, i: int, what: str) -> Array:
        """The value of input i, which has to be known at compile time; `what` says what it means."""
        self.input(i)
        found = self.constant(i)
        if found is None:
            raise OnHost(f"{what} (input {i}) is computed at run time")
        return found

    def value_integers(self, i: int, what: str) -> tuple[int, ...]:
        sizes = self.sizes(i)
        return (
            tuple(sizes.reshape(-1))
            if sizes is not None
            else tuple(map(int, self.value(i, what).reshape(-1)))
        )

    def given_integers(self, i: int, name: str) -> tuple[int, ...] | None:
        """Integers that older opsets have as the attribute `name` and newer ones as input i."""
        return self.value_integers(i, name) if self.has(i) else self.integers(name)

    def one_output(self, what: str) -> None:
        """Refuse nodes that use a further output, which is `what`."""
        if self.outputs > 1:
            raise UserError(
                f"{self.op_type}: the output {what} is not supported", hint="only output 0 may be used"
            )


@dataclass(frozen=True, slots=True, eq=False)
class OnnxCase:
    """A one-node ONNX model that a sample was imported from, for comparison with other engines."""

    op_type: str
    opset: int
    attrs: Mapping[str, Any]
    inputs: tuple[Array | None, ...]
    outputs: int


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A case of the numerics tests."""

    op: "Op"
    inputs: tuple[NDArray[np.generic], ...]
    onnx: OnnxCase | None = None


@dataclass(frozen=True, slots=True)
class IndexInput:
    """An input of an op whose elements choose places: on an axis of `extents[0]` elements, or along its last axis on
    several. Negative ones count from the back, or are wrong.
    """

    input: int
    extents: tuple[int, ...]
    from_back: bool = True


Compute: TypeAlias = Callable[[FuncBuilder, Sequence[Buffer], str], tuple[Buffer, ...]]


@dataclass(frozen=True, slots=True)
class OpAlternative:
    """Another way to compute an op, with the same outputs up to rounding: see `Op.alternatives`."""

    name: str
    compute: Compute
    # The largest error of the result, relative to its largest magnitude, as measured with these inputs (None: unknown).
    error: Callable[[Sequence[Array | None]], float]


class Op(ABC):
    """Subclasses are frozen slotted dataclasses."""

    __slots__ = ()
    onnx: ClassVar[tuple[str, ...]] = ()  # of other domains with their name: "com.microsoft.Gelu"
    kind: ClassVar[Kind]
    moves_only: ClassVar[bool] = False  # elements are moved or compared, whatever they are

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> "tuple[Op, tuple[int, ...]]":
        """The op and which inputs of the ONNX node it takes; the rest have become attributes.

        Raises UserError, without the node's name (the importer adds it), for what is not supported.
        """
        return cls(), node.present

    @abstractmethod
    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """The types of the outputs; UserError for inputs that do not fit."""

    @abstractmethod
    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        """Add blocks to `b`. The last block of each output is called `name` (`name_1`, … for further outputs), earlier
        ones `name_<what>`."""

    def indices(self, inputs: Sequence[TensorType]) -> Sequence[IndexInput]:
        """Those of its inputs that are indices, and that native code brings into range."""
        return ()

    def alternatives(self, inputs: Sequence[TensorType]) -> Sequence[OpAlternative]:
        """Algorithms besides that of `compute`. Their rounding errors may be larger, and a value that is not finite may
        spread: they are used where the user's bound on the error allows it, and where cost says that they pay.
        """
        return ()

    @abstractmethod
    def reference(self, inputs: Sequence[NDArray[np.generic]]) -> tuple[NDArray[np.generic], ...]:
        """The meaning, in numpy. Float results may be computed in float64 and rounded at the end."""

    @classmethod
    @abstractmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        """Small cases that cover attributes, broadcasting, edge shapes and special values."""

    @classmethod
    def sample(
        cls,
        *inputs: Array | None,
        op_type: str | None = None,
        opset: int = 18,
        outputs: int = 1,
        runtime: Collection[int] = (),
        **attrs: Any,
    ) -> Sample:
        """A Sample written as an ONNX node. The inputs in `runtime` are not known at compile time."""
        spelled = op_type if op_type is not None else cls.onnx[0]
        types = tuple(None if x is None else TensorType.of(x) for x in inputs)

        def constant(i: int) -> Array | None:
            return None if i in runtime else inputs[i]

        op, taken = cls.from_onnx(OnnxNode(spelled, opset, attrs, types, constant, outputs))
        arrays = tuple(x for x in (inputs[i] for i in taken) if x is not None)
        return Sample(op, arrays, OnnxCase(spelled, opset, attrs, inputs, outputs))

    def misfit(self, inputs: Sequence[TensorType], reason: str) -> UserError:
        """The error of `infer`: op, types, violated condition."""
        return UserError(f"{type(self).__name__} of {', '.join(map(str, inputs)) or 'nothing'}: {reason}")

    def check_arity(self, inputs: Sequence[TensorType], least: int, most: int | None = None) -> None:
        if not least <= len(inputs) <= (least if most is None else most):
            count = str(least) if most is None else f"{least} to {most}"
            raise self.misfit(inputs, f"takes {count} inputs")
