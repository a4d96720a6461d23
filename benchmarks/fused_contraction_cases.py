"""Blocks of networks in which contractions meet what a family fuses them with, as ONNX models; and EfficientNet-B0."""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from onnx import ModelProto

from examples.models import Net

Build: TypeAlias = Callable[[], ModelProto]


# -------------------------------------------------------------------------------------------------------- convolutions


def _conv(net: Net, x: str, c_in: int, c_out: int, kernel: int = 1, stride: int = 1, group: int = 1) -> str:
    """With a bias, as a batch norm becomes one."""
    fan = c_in // group * kernel * kernel
    weight = net.normal("weight", (c_out, c_in // group, kernel, kernel), math.sqrt(2 / fan))
    bias = net.normal("bias", (c_out,), 0.1)
    pads = [kernel // 2] * 4
    return net.op(
        "Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group
    )


def _relu6(net: Net, x: str) -> str:
    return net.op("Clip", x, net.scalar("low", 0.0), net.scalar("high", 6.0))


def _swish(net: Net, x: str) -> str:
    return net.op("Mul", x, net.op("Sigmoid", x))


def _squeeze(net: Net, x: str, channels: int, squeezed: int) -> str:
    """Squeeze and excitation: each channel is scaled by what the means of all say."""
    mean = net.op("GlobalAveragePool", x)
    scale = _conv(net, _swish(net, _conv(net, mean, channels, squeezed)), squeezed, channels)
    return net.op("Mul", x, net.op("Sigmoid", scale))


def _inverted(
    net: Net, x: str, c_in: int, expand: int, c_out: int, kernel: int, stride: int, squeezes: bool
) -> str:
    """Expansion, depthwise convolution, projection; with a residual where shapes allow it."""
    act = _swish if squeezes else _relu6
    wide = c_in * expand
    y = act(net, _conv(net, x, c_in, wide)) if expand > 1 else x
    y = act(net, _conv(net, y, wide, wide, kernel, stride, group=wide))
    y = _squeeze(net, y, wide, max(1, c_in // 4)) if squeezes else y
    y = _conv(net, y, wide, c_out)
    return net.op("Add", y, x) if stride == 1 and c_in == c_out else y


def inverted_residual(
    size: int, c_in: int, expand: int, c_out: int, kernel: int = 3, stride: int = 1, squeezes: bool = False
) -> Build:
    """A block of MobileNetV2, or of EfficientNet if it squeezes."""

    def build() -> ModelProto:
        net = Net(0)
        _inverted(net, "x", c_in, expand, c_out, kernel, stride, squeezes)
        out = size // stride
        return net.model("block", {"x": (1, c_in, size, size)}, {"y": (1, c_out, out, out)})

    return build


def stem_and_pool(size: int) -> ModelProto:
    """How ResNets begin."""
    net = Net(0)
    y = net.op("Relu", _conv(net, "x", 3, 64, 7, 2))
    net.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    return net.model("stem", {"x": (1, 3, size, size)}, {"y": (1, 64, size // 4, size // 4)})


def bottleneck(size: int, channels: int) -> ModelProto:
    """Of a ResNet: no convolution of it is depthwise, so there is nothing for bands."""
    net, narrow = Net(0), channels // 4
    y = net.op("Relu", _conv(net, "x", channels, narrow))
    y = net.op("Relu", _conv(net, y, narrow, narrow, 3))
    net.op("Relu", net.op("Add", _conv(net, y, narrow, channels), "x"))
    return net.model("bottleneck", {"x": (1, channels, size, size)}, {"y": (1, channels, size, size)})


# Of EfficientNet-B0: expansion, channels, blocks, kernel, first stride.
_STAGES = ((1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2), (6, 112, 3, 5, 1))
_LAST_STAGES = ((6, 192, 4, 5, 2), (6, 320, 1, 3, 1))


def efficientnet_b0(size: int = 224) -> ModelProto:
    net = Net(0)
    y, channels = _swish(net, _conv(net, "image", 3, 32, 3, 2)), 32
    for expand, wide, blocks, kernel, first in (*_STAGES, *_LAST_STAGES):
        for number in range(blocks):
            y = _inverted(net, y, channels, expand, wide, kernel, 1 if number else first, True)
            channels = wide
    y = net.op("GlobalAveragePool", _swish(net, _conv(net, y, channels, 1280)))
    weight = net.normal("weight", (1000, 1280), math.sqrt(1 / 1280))
    net.op("Gemm", net.op("Flatten", y, axis=1), weight, net.normal("bias", (1000,), 0.1), transB=1)
    return net.model("efficientnet_b0", {"image": (1, 3, size, size)}, {"logits": (1, 1000)})


# ----------------------------------------------------------------------------------------------------------- attention


def attention(heads: int, queries: int, keys: int, size: int, causal: bool = False) -> Build:
    """Scaled, masked if it is causal; keys come transposed by a Transpose, as exporters write it. One query is a step
    of decoding; several, if as many heads share their keys.
    """
    inputs = {"q": (1, heads, queries, size), "k": (1, heads, keys, size), "v": (1, heads, keys, size)}

    def build() -> ModelProto:
        net = Net(0)
        scores = net.op("MatMul", "q", net.op("Transpose", "k", perm=[0, 1, 3, 2]))
        scores = net.op("Mul", scores, net.scalar("scale", size**-0.5))
        if causal:
            hidden = np.triu(np.full((queries, keys), -np.inf, np.float32), 1)
            scores = net.op("Add", scores, net.constant("mask", hidden[None, None]))
        net.op("MatMul", net.op("Softmax", scores, axis=-1), "v")
        return net.model("attention", dict(inputs), {"y": (1, heads, queries, size)})

    return build


BLOCKS: Mapping[str, Build] = {
    "mobilenetv2_112x112x16_s2": inverted_residual(112, 16, 6, 24, stride=2),
    "mobilenetv2_56x56x24": inverted_residual(56, 24, 6, 24),
    "mobilenetv2_28x28x32": inverted_residual(28, 32, 6, 32),
    "mobilenetv2_14x14x64": inverted_residual(14, 64, 6, 64),
    "mobilenetv2_14x14x96": inverted_residual(14, 96, 6, 96),
    "mobilenetv2_7x7x160": inverted_residual(7, 160, 6, 160),
    "mbconv_56x56x24_k3": inverted_residual(56, 24, 6, 24, 3, squeezes=True),
    "mbconv_28x28x40_k5": inverted_residual(28, 40, 6, 40, 5, squeezes=True),
    "mbconv_14x14x80_k3": inverted_residual(14, 80, 6, 80, 3, squeezes=True),
    "mbconv_14x14x112_k5": inverted_residual(14, 112, 6, 112, 5, squeezes=True),
    "mbconv_7x7x192_k5": inverted_residual(7, 192, 6, 192, 5, squeezes=True),
    "resnet_stem_224": lambda: stem_and_pool(224),
    "resnet_bottleneck_56x56x256": lambda: bottleneck(56, 256),
    "attention_12x128x64": attention(12, 128, 128, 64),
    "attention_12x197x64": attention(12, 197, 197, 64),
    "attention_12x512x64": attention(12, 512, 512, 64),
    "attention_12x1024x64": attention(12, 1024, 1024, 64),
    "attention_4x2048x64": attention(4, 2048, 2048, 64),
    "attention_4x4096x64": attention(4, 4096, 4096, 64),
    "causal_12x128x64": attention(12, 128, 128, 64, causal=True),
    "causal_12x1024x64": attention(12, 1024, 1024, 64, causal=True),
    "decode_32x128_keys": attention(32, 1, 128, 128),
    "decode_32x1024_keys": attention(32, 1, 1024, 128),
    "decode_32x4096_keys": attention(32, 1, 4096, 128),
    "decode_8_groups_of_8x128_keys": attention(8, 8, 128, 128),
    "decode_8_groups_of_8x1024_keys": attention(8, 8, 1024, 128),
    "decode_8_groups_of_8x4096_keys": attention(8, 8, 4096, 128),
}
