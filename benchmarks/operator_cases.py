"""Single operators as ONNX models, named as in the benchmark suite."""

from collections.abc import Callable
from dataclasses import dataclass

from onnx import ModelProto

from examples.models import Net


@dataclass(frozen=True, slots=True)
class Case:
    flops: int
    build: Callable[[], ModelProto]


def gemm(m: int, n: int, k: int) -> Case:
    """Both operands are inputs."""

    def build() -> ModelProto:
        net = Net(0)
        net.op("MatMul", "a", "b")
        return net.model("gemm", {"a": (m, k), "b": (k, n)}, {"y": (m, n)})

    return Case(2 * m * n * k, build)


def dense(rows: int, n_in: int, n_out: int) -> Case:
    """A linear layer with bias."""

    def build() -> ModelProto:
        net = Net(0)
        weight, bias = net.normal("weight", (n_out, n_in), n_in**-0.5), net.normal("bias", (n_out,), 0.1)
        net.op("Gemm", "x", weight, bias, transB=1)
        return net.model("dense", {"x": (rows, n_in)}, {"y": (rows, n_out)})

    return Case(2 * rows * n_in * n_out, build)


def conv(kernel: int, c_in: int, c_out: int, size: int, stride: int = 1, groups: int = 1) -> Case:
    """A 2-D convolution with bias on a square image, padded to keep its size (but for the stride)."""
    out = (size - 1) // stride + 1
    per_output = c_in // groups * kernel * kernel

    def build() -> ModelProto:
        net = Net(0)
        weight = net.normal("weight", (c_out, c_in // groups, kernel, kernel), per_output**-0.5)
        net.op(
            "Conv",
            "x",
            weight,
            net.normal("bias", (c_out,), 0.1),
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[kernel // 2] * 4,
            group=groups,
        )
        return net.model("conv", {"x": (1, c_in, size, size)}, {"y": (1, c_out, out, out)})

    return Case(2 * c_out * out * out * per_output, build)


CASES = {
    "gemm_512": gemm(512, 512, 512),
    "gemm_1024": gemm(1024, 1024, 1024),
    "dense_128x768x3072": dense(128, 768, 3072),
    "dense_128x3072x768": dense(128, 3072, 768),
    "dense_1x1024x1024": dense(1, 1024, 1024),
    "c2d_stem_7x7s2_3_64_224": conv(7, 3, 64, 224, stride=2),
    "c2d_3x3_64_64_56": conv(3, 64, 64, 56),
    "c2d_3x3_128_128_28": conv(3, 128, 128, 28),
    "c2d_3x3_256_256_14": conv(3, 256, 256, 14),
    "c2d_3x3_512_512_7": conv(3, 512, 512, 7),
    "c2d_3x3s2_128_128_56": conv(3, 128, 128, 56, stride=2),
    "c2d_1x1_64_256_56": conv(1, 64, 256, 56),
    "c2d_1x1_256_64_56": conv(1, 256, 64, 56),
    "c2d_1x1_1024_256_14": conv(1, 1024, 256, 14),
    "dep_3x3_32_112": conv(3, 32, 32, 112, groups=32),
    "dep_3x3_576_14": conv(3, 576, 576, 14, groups=576),
}
