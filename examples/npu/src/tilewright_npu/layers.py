"""What the NPU takes of a model: convolutions and MatMuls with constant weights, and what follows them.

A layer is read off the nodes of a unit: one contraction, then perhaps sums with a constant row or with an image of the
same shape (a residual), then perhaps a ReLU. Whatever does not fit is refused, with the reason.
"""

from dataclasses import dataclass, replace

from tilewright.graph.external import YES, Answer, No, Part, Pattern, Unit
from tilewright.graph.graph import Node, Value
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.arithmetic import Add
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.conv import Conv
from tilewright_npu.machine import Machine
from tilewright_npu.tiling import Place, Work, smallest

_DEEPEST = 1 << 16  # products of two int8 that an accumulator of 32 bits holds for sure

_CONV, _PRODUCT = Part("Conv"), Part(("MatMul", "Gemm"))
_SHAPES = (
    ("conv add relu", Part("Relu", (Part("Add", (_CONV, None)),))),
    ("conv relu", Part("Relu", (_CONV,))),
    ("conv add", Part("Add", (_CONV, None))),
    ("matmul bias relu", Part("Relu", (Part("Add", (_PRODUCT, None)),))),
    ("matmul relu", Part("Relu", (_PRODUCT,))),
    ("matmul bias", Part("Add", (_PRODUCT, None))),
)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """`form` says how the weights lie: OIHW, KN or NK; they are multiplied with `alpha`, biases with their factor."""

    x: Value
    weights: Value
    form: str
    result: Value
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    alpha: float = 1.0
    biases: tuple[tuple[Value, float], ...] = ()
    residual: Value | None = None
    relu: bool = False

    @property
    def is_image(self) -> bool:
        return self.form == "OIHW"

    def dims(self, rank: int) -> tuple[int | None, ...]:
        """Which dimensions of a value are images, rows, pixels and channels."""
        if self.is_image:
            return (0, 2, 3, 1)
        return {2: (None, None, 0, 1), 3: (0, None, 1, 2), 4: (0, 1, 2, 3)}[rank]

    def extents(self, value: Value) -> tuple[int, ...]:
        return tuple(1 if d is None else value.shape[d] for d in self.dims(len(value.shape)))

    def work(self, x: Place, residual: Place | None, results: tuple[Place, ...]) -> Work:
        images, height, width, channels = self.extents(self.x)
        _, rows, columns, outputs = self.extents(self.result)
        return Work(
            *(images, height, width, channels, rows, columns, outputs),
            *(self.kernel, self.strides, self.before),
            *(x, residual, results),
        )


def patterns(machine: Machine) -> tuple[Pattern, ...]:
    def check(unit: Unit) -> Answer:
        return supported(unit, machine)

    return tuple(Pattern(name, root, check) for name, root in _SHAPES)


def supported(unit: Unit, machine: Machine) -> Answer:
    layer = layer_of(unit)
    if isinstance(layer, No):
        return layer
    anywhere = Place(0, (0, 0, 0, 0), False)
    work = layer.work(anywhere, anywhere if layer.residual else None, (anywhere,))
    if not smallest(work, machine).fits(work, machine):
        return No("not even the smallest tile of it fits the scratchpad")
    return YES


def layer_of(unit: Unit) -> Layer | No:
    """The layer that a unit is, or why the NPU does not take it."""
    first, *rest = unit.nodes
    if any(v.type.dtype is not DType.F32 for n in unit.nodes for v in (*n.inputs, *n.outputs)):
        return No("only float32 is quantized to int8")
    layer = _contraction(unit, first)
    for node in rest:
        if isinstance(layer, No):
            return layer
        layer = _followed(unit, layer, node)
    return layer


def _contraction(unit: Unit, node: Node) -> Layer | No:
    op = node.op
    if not isinstance(op, Conv | MatMul | Gemm):
        return No(f"{unit.name} is neither a convolution nor a MatMul")
    (x, weights, *more), (result,) = node.inputs, node.outputs
    if any(unit.constant(v) is None for v in (weights, *more)):
        return No("the weights are not constant")
    if unit.constant(x) is not None or not x.size * result.size:
        return No("there is nothing to compute")
    if weights.size // result.shape[1 if isinstance(op, Conv) else -1] > _DEEPEST:
        return No("the sum of that many products may not fit an accumulator of 32 bits")
    match op:
        case Conv():
            window = op.window
            if len(window.kernel) != 2:
                return No("only images of two dimensions")
            if op.group != 1:
                return No("the array multiplies all channels with all: groups would leave it idle")
            if max(window.dilations) > 1:
                return No("the taps of a dilated window do not lie side by side")
            kernel, strides, before = ((a, b) for a, b in (window.kernel, window.strides, window.before))
            biases = tuple((v, 1.0) for v in more)
            return Layer(x, weights, "OIHW", result, kernel, strides, before, biases=biases)
        case MatMul():
            if len(weights.shape) != 2 or not 2 <= len(x.shape) <= 4:
                return No("only a matrix of weights, and two to four dimensions of inputs")
            return Layer(x, weights, "KN", result)
        case Gemm():
            if op.trans_a:
                return No("the inputs would have to be transposed")
            if any(not _is_row(v, result, 1) for v in more):
                return No("what is added is not one row")
            biases = tuple((v, op.beta) for v in more)
            return Layer(x, weights, "NK" if op.trans_b else "KN", result, alpha=op.alpha, biases=biases)


def _followed(unit: Unit, layer: Layer, node: Node) -> Layer | No:
    (result,) = node.outputs
    if layer.result not in node.inputs or layer.relu:
        return No("these nodes do not follow each other")
    if isinstance(node.op, Relu):
        return replace(layer, result=result, relu=True)
    if not isinstance(node.op, Add):
        return No(f"{type(node.op).__name__} is not what the vector unit does")
    others = [v for v in node.inputs if v is not layer.result]
    if len(others) != 1 or result.shape != layer.result.shape:
        return No("the sum has another shape than what the array computes")
    (other,) = others
    if unit.constant(other) is not None:
        if not _is_row(other, result, 1 if layer.is_image else len(result.shape) - 1):
            return No("the constant that is added is not one number for each channel")
        return replace(layer, result=result, biases=(*layer.biases, (other, 1.0)))
    if not layer.is_image:
        return No("a sum of two results of transformers loses too much as int8")
    if other.shape != result.shape or layer.residual is not None:
        return No("what is added is broadcast")
    return replace(layer, result=result, residual=other)


def _is_row(value: Value, result: Value, channels: int) -> bool:
    """Has it one number for each channel, or one for all?"""
    shape = (1,) * (len(result.shape) - len(value.shape)) + value.shape
    return len(shape) == len(result.shape) and all(n == 1 for d, n in enumerate(shape) if d != channels)
