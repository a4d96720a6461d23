"""Every operator of ATen that has an ONNX form: the form means what PyTorch computes, by the reference of its ops."""

import operator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.dynamo.torch_module import tensor_array  # noqa: E402
from tilewright.frontend.onnx.load import load_graph  # noqa: E402
from tilewright.frontend.torch.convert import convert_graph  # noqa: E402
from tilewright.frontend.torch.table import OPERATORS  # noqa: E402
from tilewright.graph.interp import interpret_graph  # noqa: E402

A = torch.ops.aten


def f(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    """Floats, the same for the same shape."""
    g = torch.Generator().manual_seed(len(shape) * 100 + sum(shape))
    return torch.rand(*shape, generator=g) * (high - low) + low


def i(*shape: int, low: int = 0, high: int = 4) -> Any:
    g = torch.Generator().manual_seed(7)
    return torch.randint(low, high, shape, generator=g)


def b(*shape: int) -> Any:
    return i(*shape, high=2).bool()


X, Y, P = f(3, 4), f(3, 4, low=0.5), f(3, 4, low=0.1, high=0.9)
IMAGE = f(2, 4, 6, 6)
N, M = i(3, 4, low=-5, high=6), i(3, 4, low=1, high=4)

CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []


def case(op: Any, *args: Any, **kwargs: Any) -> None:
    CASES.append((op, args, kwargs))


for _op in (A.add.Tensor, A.sub.Tensor, A.rsub.Tensor):
    case(_op, X, Y, alpha=2)
    case(_op, N, M)
case(A.add.Tensor, N, X)
case(A.add.Tensor, b(3, 4), b(3, 4))
case(A.add.Scalar, X, 2.5)
case(A.add.Scalar, N, 1.5)
case(A.sub.Scalar, X, 2)
case(A.rsub.Scalar, X, 2)
case(A.mul.Tensor, X, f(4))
case(A.mul.Tensor, N, torch.tensor(0.5))
case(A.mul.Tensor, b(3, 4), b(3, 4))
case(A.mul.Scalar, N, 3)
case(A.div.Tensor, X, Y)
case(A.div.Tensor, N, M)
case(A.true_divide.Tensor, N, M)
case(A.div.Scalar, X, 4)
for _mode in ("floor", "trunc"):
    case(A.div.Tensor_mode, X, Y, rounding_mode=_mode)
    case(A.div.Tensor_mode, N, M, rounding_mode=_mode)
    case(A.div.Scalar_mode, N, 3, rounding_mode=_mode)
case(A.floor_divide.default, N, M)
case(A.floor_divide.Scalar, N, 2)
case(A.remainder.Tensor, X, Y)
case(A.remainder.Tensor, N, M)
case(A.remainder.Scalar, N, 3)
case(A.fmod.Tensor, X, Y)
case(A.fmod.Scalar, N, 3)
case(A.pow.Tensor_Tensor, Y, X)
for _exponent in (2, 0.5, -0.5, -1, 3, 1):
    case(A.pow.Tensor_Scalar, Y, _exponent)
case(A.pow.Scalar, 2.0, X)
for _op in (A.maximum.default, A.minimum.default, A.max.other, A.min.other):
    case(_op, X, Y)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    case(getattr(A, _name).Tensor, N, M)
    case(getattr(A, _name).Scalar, N, 2)
    case(getattr(A, _name).Scalar, N, 1.5)
for _name in ("logical_and", "logical_or", "logical_xor"):
    case(getattr(A, _name).default, N, b(3, 4))
case(A.logical_not.default, N)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    case(getattr(A, _name).Tensor, N, M)
    case(getattr(A, _name).Tensor, b(3, 4), b(3, 4).flip(0))
    case(getattr(A, _name).Scalar, N, 3)
case(A.bitwise_not.default, N)
case(A.bitwise_not.default, b(3, 4))
case(A.__and__.Tensor, N, M)
case(A.__or__.Tensor, N, M)
case(A.bitwise_left_shift.Tensor, i(3).to(torch.uint8), i(3).to(torch.uint8))
case(A.bitwise_right_shift.Tensor, i(3).to(torch.uint8), i(3).to(torch.uint8))
case(A.where.self, b(3, 4), X, f(4))
case(A.where.ScalarSelf, b(3, 4), 1.0, X)
case(A.where.ScalarOther, b(3, 4), X, 0.0)
case(A.where.Scalar, b(3, 4), 1.0, 0.0)
case(A.masked_fill.Scalar, X, b(3, 4), float("-inf"))
case(A.masked_fill.Tensor, X, b(3, 4), torch.tensor(2.0))
for _name in ("exp", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "erf", "tanh", "sigmoid", "exp2"):
    case(getattr(A, _name).default, X)
for _name in ("log", "sqrt", "reciprocal", "rsqrt", "log2", "log10", "log1p"):
    case(getattr(A, _name).default, Y)
case(A.sqrt.default, M)
for _name in ("asin", "acos", "atanh"):
    case(getattr(A, _name).default, P)
case(A.acosh.default, f(3, 4, low=1.1))
for _name in ("abs", "neg", "sign", "sgn", "floor", "ceil", "round", "trunc", "expm1", "erfc", "positive"):
    case(getattr(A, _name).default, X)
case(A.neg.default, N)
case(A.floor.default, N)
case(A.round.decimals, X, decimals=1)
case(A.expm1.default, f(5) * 1e-4)
case(A.atan2.default, X, f(3, 4).flip(0))
case(A.clamp.default, X, -1.0, 1.0)
case(A.clamp.default, X, None, 1.0)
case(A.clamp.Tensor, X, f(4, high=-1.0), None)
case(A.clamp_min.default, X, 0.5)
case(A.clamp_min.Tensor, X, f(4))
case(A.clamp_max.default, X, 0.5)
case(A.clamp_max.Tensor, X, f(4))
case(A.addcmul.default, X, Y, P, value=0.5)
case(A.addcdiv.default, X, Y, P, value=0.5)
case(A.lerp.Scalar, X, Y, 0.3)
case(A.lerp.Tensor, X, Y, P)
_ODD = torch.tensor([1.0, float("nan"), float("inf"), float("-inf")])
for _name in ("isfinite", "isnan", "isinf", "nan_to_num"):
    case(getattr(A, _name).default, _ODD)
case(A.isnan.default, N)
case(A._to_copy.default, X, dtype=torch.int64)
case(A._to_copy.default, N, dtype=torch.bool)
case(torch.ops.prims.convert_element_type.default, X, torch.float64)
for _name in ("clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "contiguous"):
    case(getattr(A, _name).default, X)

for _name in ("relu", "hardswish", "mish", "selu", "relu6", "gelu", "silu", "hardsigmoid", "hardtanh", "elu"):
    case(getattr(A, _name).default, f(3, 4, low=-8, high=8))
case(A.gelu.default, X, approximate="tanh")
case(A.leaky_relu.default, X, 0.2)
case(A.softplus.default, f(3, 4, low=-30, high=30), 2.0, 10.0)
case(A.prelu.default, IMAGE, f(4))
case(A._prelu_kernel.default, IMAGE, f(1, 4, 1, 1))
case(A.log_sigmoid.default, X)
case(A.log_sigmoid_forward.default, X)
case(A.threshold.default, X, 0.5, 7.0)
case(A.hardshrink.default, X, 0.5)
case(A.softshrink.default, X, 0.5)
case(A.glu.default, X, -1)
case(A._softmax.default, X, 1, False)
case(A.softmax.int, X, 0)
case(A._log_softmax.default, X, -1, False)
case(A.log_softmax.int, X, -1)
case(A._safe_softmax.default, torch.tensor([[1.0, 2.0], [float("-inf")] * 2]), -1)

for _name in ("sum", "prod", "mean", "amax", "max", "min"):
    case(getattr(A, _name).default, X)
case(A.sum.default, b(3, 4))
case(A.sum.dim_IntList, X, [0], True)
case(A.sum.dim_IntList, N.int(), [-1])
case(A.prod.dim_int, X, 1)
case(A.mean.dim, IMAGE, [-1, -2], True)
case(A.amax.default, X, [0])
case(A.amin.default, X, [1], True)
for _name in ("max", "min"):
    case(getattr(A, _name).dim, X, 1)
case(A.argmax.default, X)
case(A.argmax.default, X, 1, True)
case(A.argmin.default, X, 0)
for _name in ("any", "all"):
    case(getattr(A, _name).default, b(3, 4))
    case(getattr(A, _name).dim, b(3, 4), 1)
    case(getattr(A, _name).dims, N, [0, 1], True)
case(A.var.correction, X, [1], correction=0, keepdim=True)
case(A.var.dim, X, [1])
case(A.std.correction, X, None)
case(A.var_mean.correction, X, [0])
for _order in (1, 2, float("inf"), float("-inf")):
    case(A.linalg_vector_norm.default, X, _order, [1])
case(A.norm.ScalarOpt_dim, X, 2, [1], True)
case(A.norm.Scalar, X, 2)
case(A.logsumexp.default, X, [1])
case(A.cumsum.default, X, 1)

case(A.mm.default, X, f(4, 5))
case(A.bmm.default, f(2, 3, 4), f(2, 4, 5))
case(A.matmul.default, f(2, 3, 4), f(4, 5))
case(A.mv.default, X, f(4))
case(A.dot.default, f(4), f(4))
case(A.addmm.default, f(5), X, f(4, 5))
case(A.addmm.default, f(5), X, f(4, 5), beta=0.5, alpha=2.0)
case(A.addmv.default, f(3), X, f(4))
case(A.baddbmm.default, f(2, 3, 5), f(2, 3, 4), f(2, 4, 5), beta=0.5, alpha=2.0)
case(A.linear.default, f(2, 3, 4), f(5, 4), f(5))
case(A.outer.default, f(3), f(4))
case(A.einsum.default, "bij,bjk->bik", [f(2, 3, 4), f(2, 4, 5)])
_CONV = ([2, 1], [1, 0], [1, 1])
case(A.convolution.default, IMAGE, f(6, 2, 3, 3), f(6), *_CONV, False, [0, 0], 2)
case(A.convolution.default, IMAGE, f(4, 3, 3, 3), None, *_CONV, True, [1, 0], 1)
case(A.convolution.default, f(2, 4, 9), f(6, 4, 3), None, [1], [1], [1], False, [0], 1)
case(A.conv1d.default, f(2, 4, 9), f(6, 4, 3), f(6))
case(A.conv2d.default, IMAGE, f(6, 4, 3, 3), None, [2, 2], [1, 1])
case(A.conv2d.default, IMAGE[0], f(6, 4, 3, 3), None)
case(A.conv3d.default, f(1, 2, 4, 4, 4), f(3, 2, 2, 2, 2))

case(A.layer_norm.default, IMAGE, [6], f(6), f(6))
case(A.layer_norm.default, IMAGE, [6, 6])
case(A.native_layer_norm.default, X, [4], f(4), None, 1e-3)
case(A.rms_norm.default, X, [4], f(4))
case(A._fused_rms_norm.default, X, [4], f(4), 1e-3)
case(A.group_norm.default, IMAGE, 2, f(4), f(4))
case(A.native_group_norm.default, IMAGE, f(4), f(4), 2, 4, 36, 2, 1e-5)
case(A.instance_norm.default, IMAGE, f(4), f(4), None, None, True, 0.1, 1e-5, False)
_STATS = (f(4), f(4), f(4), f(4, low=0.5))
case(A._native_batch_norm_legit_no_training.default, IMAGE, *_STATS, 0.1, 1e-5)
case(A.native_batch_norm.default, IMAGE, *_STATS, False, 0.1, 1e-5)

_Q, _K, _V = f(2, 3, 5, 8), f(2, 3, 7, 8), f(2, 3, 7, 8).flip(0)
case(A.scaled_dot_product_attention.default, _Q, _K, _V)
case(A.scaled_dot_product_attention.default, _Q, _K, _V, f(5, 7))
case(A.scaled_dot_product_attention.default, _Q, _K, _V, i(5, 7).bool() | torch.eye(5, 7).bool(), scale=0.2)
case(A.scaled_dot_product_attention.default, _K, _K, _V, None, 0.0, True)
case(A.scaled_dot_product_attention.default, f(2, 6, 5, 8), _K, _V, enable_gqa=True)
case(A.scaled_dot_product_attention.default, f(3, 5, 8), f(3, 7, 8), f(3, 7, 8), f(5, 7))
case(A._scaled_dot_product_flash_attention_for_cpu.default, _Q, _K, _V, attn_mask=f(2, 1, 5, 7))
case(A._scaled_dot_product_flash_attention_for_cpu.default, _K, _K, _V, 0.0, True)

for _name in ("view", "_unsafe_view", "reshape", "view_copy"):
    case(getattr(A, _name).default, IMAGE, [2, -1, 36])
case(A.flatten.using_ints, IMAGE, 1)
case(A.permute.default, IMAGE, [0, -1, 1, 2])
case(A.transpose.int, IMAGE, 1, -1)
case(A.t.default, X)
case(A.expand.default, f(3, 1), [2, -1, 4])
case(A.unsqueeze.default, X, -1)
case(A.squeeze.default, f(1, 3, 1))
case(A.squeeze.dim, f(1, 3, 1), 0)
case(A.squeeze.dims, f(1, 3, 1), [0, 1])
case(A.slice.Tensor, IMAGE, 2, 1, -1, 2)
case(A.slice.Tensor, IMAGE, 1)
case(A.narrow.default, IMAGE, 2, 1, 3)
case(A.select.int, IMAGE, 1, -2)
case(A.cat.default, [X, Y], -1)
case(A.cat.default, [X, N], 0)
case(A.stack.default, [X, Y], 1)
case(A.split_with_sizes.default, IMAGE, [1, 5], 2)
case(A.split.sizes, IMAGE, [1, 5], 2)
case(A.split.Tensor, IMAGE, 4, 3)
case(A.chunk.default, IMAGE, 2, 1)
case(A.unbind.int, X, 1)
case(A.repeat.default, X, [2, 1, 3])
case(A.flip.default, IMAGE, [1, 3])
case(A.roll.default, IMAGE, [1, -2], [2, 3])
case(A.roll.default, X, [3])
case(A.constant_pad_nd.default, IMAGE, [1, 2, 0, -1], 5.0)
case(A.pad.default, IMAGE, [1, 1, 0, 2], "replicate")
case(A.reflection_pad1d.default, f(1, 2, 5), [1, 2])
case(A.reflection_pad2d.default, IMAGE, [1, 2, 2, 1])
case(A.reflection_pad3d.default, f(1, 2, 3, 3, 3), [1] * 6)
case(A.replication_pad1d.default, f(1, 2, 5), [1, 2])
case(A.replication_pad2d.default, IMAGE, [1, 2, 2, 1])
case(A.replication_pad3d.default, f(1, 2, 3, 3, 3), [1] * 6)
case(A.pixel_shuffle.default, IMAGE, 2)
case(A.triu.default, X, 1)
case(A.tril.default, X)
case(A.unfold.default, IMAGE, 2, 3, 2)
case(A.slice_scatter.default, X, f(3, 2), 1, 1, 3)
case(A.select_scatter.default, X, f(4), 0, -1)
case(A.copy.default, X, f(4))

case(A.embedding.default, f(5, 3), i(2, 4))
case(A.index_select.default, IMAGE, 1, i(3))
case(A.gather.default, X, 1, i(3, 2))
case(A.index.Tensor, X, [i(2, high=3)])
case(A.index.Tensor, IMAGE, [None, i(3, 1), i(2)])
case(A.index.Tensor, IMAGE, [i(2, high=2), None, i(2)])
case(A._unsafe_index.Tensor, IMAGE, [None, None, i(3, 1), i(2)])
_NO_ACCUMULATION = torch.tensor([2, 0])
case(A.index_put.default, X, [_NO_ACCUMULATION], f(4))
case(A.index_put.default, X, [b(3, 4)], torch.tensor(9.0))
case(A._unsafe_index_put.default, X, [_NO_ACCUMULATION, _NO_ACCUMULATION], f(2), True)
case(A.scatter.src, X, 1, torch.tensor([[0, 2], [1, 3], [2, 0]]), f(3, 2))
case(A.scatter.value, X, 1, torch.tensor([[0], [1], [2]]), 5.0)
case(A.scatter.reduce, X, 1, torch.tensor([[0], [1], [2]]), f(3, 1), reduce="add")
case(A.scatter_add.default, X, 1, i(3, 2), f(3, 2))
case(A.topk.default, X, 2)
case(A.sort.default, X, -1, True)
case(A.sort.stable, X, stable=True, dim=0)
case(A.argsort.default, X)

case(A.full.default, [2, 3], 1.5)
case(A.zeros.default, [2, 3])
case(A.ones.default, [2], dtype=torch.int32)
case(A.new_zeros.default, X, [2])
case(A.new_ones.default, X, [2])
case(A.new_full.default, X, [2], 3)
case(A.zeros_like.default, X)
case(A.ones_like.default, N)
case(A.full_like.default, X, 2)
case(A.scalar_tensor.default, 2.5)
case(A.arange.default, 5)
case(A.arange.start, 1, 5)
case(A.arange.start_step, 0.0, 2.0, 0.5)
case(torch.ops.prims.iota.default, 4, start=1, step=2, dtype=torch.int64, device="cpu", requires_grad=False)
case(A.linspace.default, 0, 1, 5)
case(A.eye.default, 3)
case(A.eye.m, 3, 4)

case(A.max_pool1d.default, f(2, 4, 9), [3], [2], [1])
case(A.max_pool2d.default, IMAGE, [3, 3], [2, 2], [1, 1])
case(A.max_pool2d.default, IMAGE, [2, 2], [], [0, 0], [1, 1], True)
case(A.max_pool2d_with_indices.default, IMAGE, [3, 3], [2, 2])
case(A.max_pool3d.default, f(1, 2, 4, 4, 4), [2, 2, 2])
case(A.max_pool3d_with_indices.default, f(1, 2, 4, 4, 4), [2, 2, 2])
case(A.avg_pool1d.default, f(2, 4, 9), [3])
case(A.avg_pool2d.default, IMAGE, [3, 3], [2, 2], [1, 1], False, False)
case(A.avg_pool2d.default, IMAGE[0], [2, 2])
case(A.avg_pool3d.default, f(1, 2, 4, 4, 4), [2, 2, 2])
case(A.adaptive_avg_pool1d.default, f(2, 4, 6), [3])
case(A.adaptive_avg_pool2d.default, IMAGE, [2, 3])
case(A._adaptive_avg_pool2d.default, IMAGE, [1, 1])
case(A.adaptive_avg_pool3d.default, f(1, 2, 4, 4, 4), [2, 2, 2])
case(A._adaptive_avg_pool3d.default, f(1, 2, 4, 4, 4), [2, 2, 2])
case(A.adaptive_max_pool1d.default, f(2, 4, 6), [3])
case(A.adaptive_max_pool2d.default, IMAGE, [2, 2])
case(A.adaptive_max_pool3d.default, f(1, 2, 4, 4, 4), [2, 2, 2])
for _exact in ("upsample_nearest", "_upsample_nearest_exact"):
    case(getattr(A, f"{_exact}1d").default, f(1, 2, 5), [9])
    case(getattr(A, f"{_exact}2d").default, IMAGE, [12, 9])
    case(getattr(A, f"{_exact}3d").default, f(1, 2, 3, 3, 3), [6, 6, 6])
case(A.upsample_nearest1d.vec, f(1, 2, 5), [9], None)
case(A.upsample_nearest2d.vec, IMAGE, None, [2.0, 2.0])
case(A.upsample_nearest3d.vec, f(1, 2, 3, 3, 3), None, [2.0, 2.0, 2.0])
case(A.upsample_linear1d.default, f(1, 2, 5), [9], False)
case(A.upsample_bilinear2d.default, IMAGE, [11, 9], True)
case(A.upsample_trilinear3d.default, f(1, 2, 3, 3, 3), [6, 6, 6], False)
case(A.upsample_linear1d.vec, f(1, 2, 5), None, False, [2.0])
case(A.upsample_bilinear2d.vec, IMAGE, [11, 9], False, None)
case(A.upsample_bilinear2d.vec, IMAGE, None, False, [1.7, 1.7])
case(A.upsample_trilinear3d.vec, f(1, 2, 3, 3, 3), [6, 6, 6], False, None)
case(A.upsample_bicubic2d.default, IMAGE, [11, 9], False)
case(A.upsample_bicubic2d.vec, IMAGE, [11, 9], True, None)
case(A.grid_sampler_2d.default, IMAGE, f(2, 3, 3, 2, low=-1, high=1), 0, 0, False)
case(A.grid_sampler.default, IMAGE, f(2, 3, 3, 2, low=-1, high=1), 1, 1, True)


def recurrent(gates: int, layers: int, directions: int, inputs: int = 3, hidden: int = 4) -> list[Any]:
    out: list[Any] = []
    for layer in range(layers):
        for _ in range(directions):
            width = inputs if layer == 0 else hidden * directions
            out += [f(gates * hidden, width) / 3, f(gates * hidden, hidden) / 3]
            out += [f(gates * hidden), f(gates * hidden).flip(0)]
    return out


_LSTM = ([f(4, 2, 4), f(4, 2, 4).flip(0)], recurrent(4, 2, 2), True, 2, 0.0, False, True, True)
case(A.lstm.input, f(2, 5, 3), *_LSTM)
case(A.lstm.input, f(5, 2, 3), [f(1, 2, 4)] * 2, recurrent(4, 1, 1), True, 1, 0.0, False, False, False)
case(A.gru.input, f(5, 2, 3), f(2, 2, 4), recurrent(3, 1, 2), True, 1, 0.0, False, True, False)
case(A.rnn_tanh.input, f(5, 2, 3), f(1, 2, 4), recurrent(1, 1, 1), True, 1, 0.0, False, False, False)
case(
    A.mkldnn_rnn_layer.default,
    f(5, 2, 3),
    *recurrent(4, 1, 1),
    *(f(1, 2, 4), f(1, 2, 4).flip(2), True, [], 2, 4, 1, True, False, False, False),
)


def graph_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any], Any]:
    """A graph with one call, its tensors as inputs but for those in lists of weights; and what it gives."""
    graph = torch.fx.Graph()
    tensors: list[Any] = []

    def place(value: Any) -> Any:
        if isinstance(value, list):
            return [place(v) for v in value]
        if isinstance(value, torch.Tensor):
            node = graph.placeholder(f"x{len(tensors)}")
            node.meta["val"] = value
            tensors.append(value)
            return node
        return value

    call = graph.call_function(op, tuple(place(a) for a in args), {k: place(v) for k, v in kwargs.items()})
    result = call.meta["val"] = op(*args, **kwargs)
    outputs = [call]
    if isinstance(result, tuple | list):
        outputs = []
        for number, value in enumerate(result):
            node = graph.call_function(operator.getitem, (call, number))
            node.meta["val"] = value
            outputs.append(node)
    graph.output(tuple(outputs))
    return graph, tensors, result


def only_first(op: Any, graph: Any) -> None:
    """Drop results that only gradients read."""
    output = graph.output_node()
    items = output.args[0]
    output.args = (items[:1],)
    for node in items[1:]:
        graph.erase_node(node)


FIRST_ONLY = ("norm", "_indices", "flash", "log_sigmoid_forward", "adaptive_max")


def name_of(c: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> str:
    return str(c[0])


@pytest.mark.parametrize("c", CASES, ids=name_of)
def test_the_form_means_what_pytorch_computes(c: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> None:
    op, args, kwargs = c
    graph, tensors, result = graph_of(op, args, kwargs)
    expected = list(result) if isinstance(result, tuple | list) else [result]
    if isinstance(result, tuple) and any(word in str(op) for word in FIRST_ONLY):
        only_first(op, graph)
    if "mkldnn" in str(op):
        expected = expected[:3]
        last = graph.output_node().args[0]
        graph.output_node().args = (last[:3],)
        graph.erase_node(last[3])
    made = convert_graph(graph, lambda _: None, tensor_array, weights=dict.fromkeys(()))
    assert made.unsupported == ()
    assert made.model is not None
    feeds = {n: tensor_array(tensors[k].contiguous()) for n, k in zip(made.names, made.inputs, strict=True)}
    loaded = load_graph(made.model)
    got = interpret_graph(loaded, feeds)
    for value, want in zip(got.values(), expected, strict=False):
        assert value.shape == tuple(want.shape)
        assert value.dtype == want.numpy().dtype
        np.testing.assert_allclose(value, want.numpy(), rtol=2e-5, atol=2e-5)


def test_every_operator_has_a_case() -> None:
    known = {str(op) for op, _, _ in CASES}
    # What nobody can compare: memory as it comes; and sizes, which need open dimensions (test_torch_backend.py).
    apart = {"aten.empty.memory_format", "aten.new_empty.default", "aten.empty_like.default"}
    missing = {n for n in OPERATORS if n.startswith(("aten.", "prims.")) and "sym_" not in n} - known - apart
    assert not missing


def test_a_use_that_has_no_form_is_refused_with_the_reason() -> None:
    graph, _, _ = graph_of(A.avg_pool2d.default, (IMAGE, [2, 2], [2, 2], [0, 0], False, True, 3), {})
    made = convert_graph(graph, lambda _: None, tensor_array)
    assert made.model is None
    assert "another divisor" in str(made.unsupported[0])
