"""Products of matrices, and convolutions."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.frontend.torch.element_types import is_float
from tilewright.frontend.torch.emitter import NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator


def _matmul(e: NodeEmitter, a: Tensor, b: Tensor) -> str:
    return e.op("MatMul", a, b)


def _addmm(e: NodeEmitter, x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> str:
    if beta == 1 and alpha == 1:
        return e.op("Add", e.op("MatMul", a, b), x)
    if not is_float(x.dtype):
        raise UnsupportedOperator("scaled products of integers")
    if a.rank == 2 and b.rank == 2:
        return e.op("Gemm", a, b, x, alpha=float(alpha), beta=float(beta))
    product = e.op("Mul", e.op("MatMul", a, b), e.number(alpha, x.dtype))
    return e.op("Add", product, e.op("Mul", x, e.number(beta, x.dtype)))


def _linear(e: NodeEmitter, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str:
    swapped = weight.name
    if weight.rank == 2:
        swapped = e.op("Transpose", weight, perm=[1, 0])
    product = e.op("MatMul", x, swapped)
    return product if bias is None else e.op("Add", product, bias)


def _outer(e: NodeEmitter, a: Tensor, b: Tensor) -> str:
    return e.op("Mul", e.op("Unsqueeze", a, e.integers(1)), b)


def _einsum(e: NodeEmitter, equation: str, operands: Sequence[Tensor], path: object = None) -> str:
    return e.op("Einsum", *operands, equation=equation)


def _convolution(
    e: NodeEmitter,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> str:
    spatial = weight.rank - 2
    is_single = x.rank == spatial + 1  # without a batch
    name = e.op("Unsqueeze", x, e.integers(0)) if is_single else x.name

    def along(values: Sequence[int]) -> list[int]:
        return list(values) * spatial if len(values) == 1 else list(values)

    attrs: dict[str, Any] = {
        "strides": along(stride),
        "pads": [*along(padding), *along(padding)],
        "dilations": along(dilation),
        "group": groups,
        "kernel_shape": [weight.extent(i) for i in range(2, weight.rank)],
    }
    if transposed:
        attrs["output_padding"] = along(output_padding)
    made = e.op("ConvTranspose" if transposed else "Conv", name, weight, bias, **attrs)
    return e.op("Squeeze", made, e.integers(0)) if is_single else made


def _conv(
    rank: int,
    e: NodeEmitter,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: "int | Sequence[int]" = (1,),
    padding: "int | Sequence[int]" = (0,),
    dilation: "int | Sequence[int]" = (1,),
    groups: int = 1,
) -> str:
    if isinstance(padding, str):
        raise UnsupportedOperator(f"padding {padding!r}")
    strides, pads, dilations = ([v] if isinstance(v, int) else v for v in (stride, padding, dilation))
    return _convolution(e, x, weight, bias, strides, pads, dilations, False, [0] * rank, groups)


ENTRIES: Mapping[str, Callable[..., Any]] = {
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.matmul.default": _matmul,
    "aten.mv.default": _matmul,
    "aten.dot.default": _matmul,
    "aten.addmm.default": _addmm,
    "aten.addmv.default": _addmm,
    "aten.baddbmm.default": _addmm,
    "aten.linear.default": _linear,
    "aten.outer.default": _outer,
    "aten.einsum.default": _einsum,
    "aten.convolution.default": _convolution,
    "aten.conv1d.default": partial(_conv, 1),
    "aten.conv2d.default": partial(_conv, 2),
    "aten.conv3d.default": partial(_conv, 3),
}
