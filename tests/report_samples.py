"""Small models and reports that several tests of reports share."""

import math

from onnx import ModelProto

from examples.models import Net
from tilewright.report.data import (
    ArenaTensor,
    BoxFacts,
    CallFacts,
    KernelFacts,
    MachineFacts,
    ModelFacts,
    NodeFacts,
    ReportData,
    RunFacts,
    TensorFacts,
)


def small_cnn(channels: int = 16, size: int = 16) -> ModelProto:
    """Convolutions with BatchNormalization, a residual and a head: what a passing compiler folds and fuses."""
    net = Net(0)

    def conv(x: str, c_in: int, kernel: int) -> str:
        shape = (channels, c_in, kernel, kernel)
        weight = net.normal("weight", shape, math.sqrt(2 / (c_in * kernel * kernel)))
        y = net.op("Conv", x, weight, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)
        scale = [net.uniform(n, (channels,), 0.8, 1.2) for n in ("scale", "bias", "mean", "var")]
        return net.op("BatchNormalization", y, *scale)

    y = net.op("Relu", conv("image", 3, 3))
    y = net.op("Relu", net.op("Add", conv(y, channels, 1), y))
    y = net.op("Flatten", net.op("GlobalAveragePool", y), axis=1)
    net.op("Gemm", y, net.normal("fc", (10, channels), 0.2), net.normal("fc_bias", (10,), 0.1), transB=1)
    return net.model("small_cnn", {"image": (1, 3, size, size)}, {"logits": (1, 10)})


def made_up(kernels: int = 2, text: str = "for i in range(4):") -> ReportData:
    """A report of a chain of kernels, one node and one call each."""
    tensor = TensorFacts("x", "float32", "1x4")
    facts = [
        KernelFacts(
            *(f"kernel_{n}", "contraction 6x16", "gemm", (("rows", 6),), "", 4, 1, 1e-3 * (n + 1)),
            *(2_000_000 * (n + 1), 40_000, "1x4 → 1x4", (tensor,), ("x",), n, n, n, n, "8 instructions"),
        )
        for n in range(kernels)
    ]
    boxes = [
        BoxFacts(
            f"group_{n}",
            "MatMul + Relu",
            "native",
            "channels last" if n % 2 else "as stated",
            (n,),
            (n,),
            (n - 1,) if n else (),
            (tensor,),
            1e-3 * (n + 1),
        )
        for n in range(kernels)
    ]
    total = sum(k.seconds for k in facts)
    return ReportData(
        ModelFacts(
            *("toy.onnx", "onnx", (tensor,), (tensor,), (("MatMul", kernels),), 1000, 64 * kernels, 4096),
            *("exact", ("avx2",), 0, "0.1"),
        ),
        MachineFacts("a machine", 1e11, 1e10),
        RunFacts(
            *("2026-01-01T00:00+00:00", 1, (0,), 9, total, total, total, total, 1.0, False, (("batch", 4),))
        ),
        tuple(facts),
        tuple(boxes),
        tuple(NodeFacts(f"node_{n}", "MatMul", "1x4", k.seconds, n) for n, k in enumerate(facts)),
        tuple(CallFacts(n, n, 1, k.seconds) for n, k in enumerate(facts)),
        tuple(ArenaTensor(f"t{n}", 64 * n, 64, n, min(n + 1, kernels - 1)) for n in range(kernels)),
        texts=tuple(f"{text} # {n}" for n in range(kernels)),
    )
