"""Single operators of all kinds of convolution and of GEMM, as ONNX models with weights that are constants.

Names say what they are: `c2d_3x3s2_128_128_56` is a 2-D convolution with a 3x3 window, stride 2, 128 channels to 128,
on images of 56x56; `t` is transposed, `dep` depthwise, `dil` dilated, `grp32` in 32 groups. `_n16` is a batch of 16.
"""

from math import prod

from onnx import ModelProto

from benchmarks.operator_cases import Case, dense, gemm
from examples.models import Net


def convolution(
    kernel: tuple[int, ...],
    c_in: int,
    c_out: int,
    sizes: tuple[int, ...],
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    batch: int = 1,
) -> Case:
    """With bias, in as many dimensions as the window has, padded to keep sizes (but for the stride)."""
    pads = [dilation * (k - 1) // 2 for k in kernel]
    out = tuple(
        (n + 2 * p - dilation * (k - 1) - 1) // stride + 1
        for n, p, k in zip(sizes, pads, kernel, strict=True)
    )
    per_output = c_in // groups * prod(kernel)

    def build() -> ModelProto:
        net = Net(0)
        weight = net.normal("weight", (c_out, c_in // groups, *kernel), per_output**-0.5)
        net.op(
            "Conv",
            "x",
            weight,
            net.normal("bias", (c_out,), 0.1),
            kernel_shape=kernel,
            strides=[stride] * len(kernel),
            dilations=[dilation] * len(kernel),
            pads=pads * 2,
            group=groups,
        )
        return net.model("conv", {"x": (batch, c_in, *sizes)}, {"y": (batch, c_out, *out)})

    return Case(2 * batch * c_out * prod(out) * per_output, build)


def transposed(
    kernel: tuple[int, ...],
    c_in: int,
    c_out: int,
    sizes: tuple[int, ...],
    *,
    stride: int,
    batch: int = 1,
) -> Case:
    """A transposed convolution that makes images `stride` times as large in each dimension."""
    pads = [(k - stride) // 2 for k in kernel]
    out = tuple((n - 1) * stride + k - 2 * p for n, k, p in zip(sizes, kernel, pads, strict=True))

    def build() -> ModelProto:
        net = Net(0)
        weight = net.normal("weight", (c_in, c_out, *kernel), (c_in * prod(kernel)) ** -0.5)
        net.op(
            "ConvTranspose",
            "x",
            weight,
            net.normal("bias", (c_out,), 0.1),
            kernel_shape=kernel,
            strides=[stride] * len(kernel),
            pads=pads * 2,
        )
        return net.model("conv_transpose", {"x": (batch, c_in, *sizes)}, {"y": (batch, c_out, *out)})

    return Case(2 * batch * c_in * prod(sizes) * c_out * prod(kernel), build)


JOINT_CASES = {
    "c1d_3s2_64_128_256": convolution((3,), 64, 128, (256,), stride=2),
    "c1d_3s2_64_128_256_n16": convolution((3,), 64, 128, (256,), stride=2, batch=16),
    "c2d_7x7s2_3_64_224": convolution((7, 7), 3, 64, (224, 224), stride=2),
    "c2d_3x3_64_64_56": convolution((3, 3), 64, 64, (56, 56)),
    "c2d_3x3_64_64_56_n16": convolution((3, 3), 64, 64, (56, 56), batch=16),
    "c2d_3x3_256_256_14": convolution((3, 3), 256, 256, (14, 14)),
    "c2d_3x3s2_128_128_56": convolution((3, 3), 128, 128, (56, 56), stride=2),
    "c2d_1x1_256_64_56": convolution((1, 1), 256, 64, (56, 56)),
    "c2d_1x1_1024_256_14_n16": convolution((1, 1), 1024, 256, (14, 14), batch=16),
    "c3d_3x3x3_64_64_8x28x28": convolution((3, 3, 3), 64, 64, (8, 28, 28)),
    "dep_3x3_32_112": convolution((3, 3), 32, 32, (112, 112), groups=32),
    "dep_3x3s2_144_56_n16": convolution((3, 3), 144, 144, (56, 56), stride=2, groups=144, batch=16),
    "dil2_3x3_64_64_56": convolution((3, 3), 64, 64, (56, 56), dilation=2),
    "grp32_3x3_128_128_56": convolution((3, 3), 128, 128, (56, 56), groups=32),
    "t2d_4x4s2_512_256_4": transposed((4, 4), 512, 256, (4, 4), stride=2),
    "t2d_4x4s2_256_128_8_n16": transposed((4, 4), 256, 128, (8, 8), stride=2, batch=16),
    "t3d_4x4x4s2_256_128_4": transposed((4, 4, 4), 256, 128, (4, 4, 4), stride=2),
    "gemm_512": gemm(512, 512, 512),
    "dense_128x768x3072": dense(128, 768, 3072),
    "dense_1x1024x1024": dense(1, 1024, 1024),
    "dense_16x1024x1024": dense(16, 1024, 1024),
}
