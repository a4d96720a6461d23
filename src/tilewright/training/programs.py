"""Generated programs, as many as are wanted: where a corpus has kernels from that no network at hand has.

A program is of a *family*, which says what it is made of, and has about 4 to 12 kernels. Sizes are drawn as they occur
in networks, and some as they do not (odd channels, few rows), so that a contraction has up to some 10^8 multiply-adds.
The same seed and number give the same program, whatever else is generated.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from tilewright.training.draws import ELEMENTS, Draw, new_image
from tilewright.training.memory_programs import memory_bound
from tilewright.training.net import Net

_MACS = 4e8  # multiply-adds of a layer, given: some ten milliseconds of a core
_LEAST_MACS, _MOST_LEAST = 600_000, 80_000_000  # given: from ten microseconds on
_PROGRAM_MACS = 1.5e9  # given: some ten milliseconds
_ACTIVATIONS = ("", "Relu", "Relu", "Relu", "Silu", "Clip", "HardSwish", "LeakyRelu", "Sigmoid")


class _Wanted:
    """How many multiply-adds a layer is to have, about. Sizes are drawn until one fits."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._least = draw.between(_LEAST_MACS, _MOST_LEAST)

    def is_met(self, macs: float) -> bool:
        is_fit = self._least <= macs <= min(6 * self._least, _MACS)
        if not is_fit and self._draw.chance(0.05):  # no sizes that can be drawn have as many, maybe
            self._least = self._draw.between(_LEAST_MACS, _MOST_LEAST)
        return is_fit


# -------------------------------------------------------------------------------------------------------- convolutions


def _convolution(net: Net, draw: Draw) -> None:
    """Chains of convolutions, with residuals."""
    x = new_image(net, draw)
    for _ in range(draw.one((4, 5, 6, 7))):
        if draw.chance(0.3):
            x = new_image(net, draw)
        x = _one_convolution(net, draw, x)
        if net.macs > _PROGRAM_MACS:
            return


def _one_convolution(net: Net, draw: Draw, x: str) -> str:
    wanted = _Wanted(draw)
    while True:
        batch, c_in, h, w = net.shapes[x]
        kernel = draw.one(((3, 3), (3, 3), (3, 3), (1, 1), (1, 1), (5, 5), (1, 7), (7, 1), (2, 2)))
        stride = draw.one((1, 1, 1, 2))
        dilation = draw.one((1, 1, 1, 1, 2, 3)) if kernel == (3, 3) and stride == 1 else 1
        shared = [g for g in (2, 4, 8, 16, 32) if c_in % g == 0 and c_in > g]
        group = draw.one(shared) if shared and draw.chance(0.15) else 1
        c_out = group * max(1, draw.channels(512) // group)
        is_residual = stride == 1 and kernel != (2, 2) and draw.chance(0.3)
        c_out = c_in if is_residual and c_in % group == 0 else c_out
        macs = batch * c_out * c_in // group * math.prod(kernel) * (h // stride) * (w // stride)
        if wanted.is_met(macs) and min(h, w) >= stride * max(kernel):
            break
        if draw.chance(0.2):
            x = new_image(net, draw)
    y = net.conv(x, c_out, kernel, strides=[stride] * 2, dilations=[dilation] * 2, group=group)
    if draw.chance(0.5):
        y = net.batch_norm(y)
    if net.shapes[y] == net.shapes[x] and is_residual:
        y = net.same("Add", y, x)
    y = net.activation(y, draw.one(_ACTIVATIONS))
    if draw.chance(0.1) and min(net.shapes[y][2:]) > 6:
        y = net.pool(draw.one(("MaxPool", "AveragePool")), y, draw.one((2, 3)), 2)
    return y


def _stem(net: Net, draw: Draw) -> None:
    """The first layers of networks on images: few channels, large kernels and strides."""
    for _ in range(draw.one((2, 3, 4))):
        kernel, stride = draw.one(
            ((7, 2), (7, 2), (3, 2), (3, 2), (4, 4), (5, 2), (3, 1), (11, 4), (16, 16), (6, 2))
        )
        size = draw.one((64, 96, 112, 128, 160, 192, 224, 224, 225, 256)) // (2 if stride == 1 else 1)
        batch = draw.one((1, 1, 1, 2, 4)) if size < 200 else 1
        x = net.input(batch, draw.one((1, 3, 3, 3, 3, 4, 6, 8)), size, size)
        c = draw.one((8, 16, 24, 32, 32, 48, 64, 64, 96))
        y = net.conv(x, c, (kernel, kernel), strides=[stride] * 2, is_valid=kernel == stride)
        y = net.activation(net.batch_norm(y) if draw.chance(0.6) else y, draw.one(_ACTIVATIONS))
        if draw.chance(0.4):
            y = net.pool("MaxPool", y, 3, 2)
        if draw.chance(0.7):
            second = draw.one((1, 3, 3))
            stride = draw.one((1, 2)) if second == 3 else 1
            y = net.conv(y, draw.one((16, 32, 48, 64)), (second, second), strides=[stride] * 2)
            net.activation(y, draw.one(_ACTIVATIONS))


def _depthwise(net: Net, draw: Draw) -> None:
    """Inverted residual blocks, and those that begin with a large depthwise kernel."""
    x = ""
    for _ in range(draw.one((2, 3, 4))):
        if not x or draw.chance(0.5):
            least = draw.between(1 << 12, 1 << 18)
            while True:
                batch, c, (h, w) = draw.one((1, 1, 1, 2, 4)), draw.channels(192), draw.image()
                if least <= batch * c * h * w <= 3 * least and min(h, w) >= 7:
                    break
            x = net.input(batch, c, h, w)
        x = _block(net, draw, x)
        if net.macs > _PROGRAM_MACS:
            return


def _block(net: Net, draw: Draw, x: str) -> str:
    batch, c, h, w = net.shapes[x]
    pointwise = batch * c * c * h * w
    factors = [n for n in (1, 1, 2, 3, 4, 6, 6) if n * pointwise <= _MACS]
    factor = draw.one(factors or (1,))
    kernel = draw.one((3, 3, 3, 5, 5, 7))
    stride = draw.one((1, 1, 1, 2)) if min(h, w) > 8 else 1
    act = draw.one(_ACTIVATIONS)
    y = net.activation(net.conv(x, c * factor, (1, 1)), act) if factor > 1 else x
    wide = net.shapes[y][1]
    y = net.conv(y, wide, (kernel, kernel), strides=[stride] * 2, group=wide)
    y = net.activation(net.batch_norm(y) if draw.chance(0.5) else y, act)
    if draw.chance(0.25):  # squeeze and excite
        mean = net.op("GlobalAveragePool", (batch, wide, 1, 1), y)
        gate = net.same("Relu", net.conv(mean, max(4, wide // 8), (1, 1)))
        y = net.same("Mul", y, net.same("Sigmoid", net.conv(gate, wide, (1, 1))))
    y = net.conv(y, c if draw.chance(0.6) else draw.channels(192), (1, 1))
    return net.same("Add", y, x) if net.shapes[y] == net.shapes[x] else y


def _transposed(net: Net, draw: Draw) -> None:
    """Transposed convolutions, and those over one dimension and over three."""
    for _ in range(draw.one((4, 5, 6))):
        y = (_transposed_convolution if draw.chance(0.4) else _other_dimensions)(net, draw)
        net.activation(y, draw.one(_ACTIVATIONS))


def _transposed_convolution(net: Net, draw: Draw) -> str:
    wanted = _Wanted(draw)
    while True:
        kernel, stride = draw.one(((2, 2), (2, 2), (3, 2), (4, 2), (3, 1), (4, 4)))
        batch, c_in, c_out, (h, w) = (
            draw.one((1, 1, 2)),
            draw.channels(256),
            draw.channels(256),
            draw.image(56),
        )
        if draw.chance(0.2):
            h = 1
        if wanted.is_met(batch * c_in * c_out * h * w * kernel * (kernel if h > 1 else 1)):
            break
    sizes = (h, w) if h > 1 else (w,)
    x = net.input(batch, c_in, *sizes)
    pad = (kernel - stride) // 2
    made = [(n - 1) * stride + kernel - 2 * pad for n in sizes]
    weight = net.normal(c_in, c_out, *[kernel] * len(sizes), fan_in=c_in)
    net.macs += batch * c_in * c_out * math.prod(sizes) * kernel ** len(sizes)
    return net.op(
        *("ConvTranspose", (batch, c_out, *made), x, weight, net.normal(c_out)),
        kernel_shape=[kernel] * len(sizes),
        strides=[stride] * len(sizes),
        pads=[pad] * (2 * len(sizes)),
    )


def _other_dimensions(net: Net, draw: Draw) -> str:
    wanted = _Wanted(draw)
    while True:
        batch, c_in, c_out = draw.one((1, 1, 2)), draw.channels(256), draw.channels(256)
        if draw.chance(0.6):
            sizes: tuple[int, ...] = (draw.between(16, 2000),)
            kernel: tuple[int, ...] = (draw.one((1, 3, 3, 5, 7, 9, 15, 31)),)
        else:
            sizes = (draw.between(4, 16), *[draw.between(6, 40)] * 2)
            kernel = draw.one(((3, 3, 3), (1, 3, 3), (3, 1, 1), (1, 1, 1), (2, 2, 2)))
        stride, group = draw.one((1, 1, 2)), 1
        if draw.chance(0.15):
            c_out = group = c_in
        macs = batch * c_in // group * c_out * math.prod(kernel) * math.prod(n // stride for n in sizes)
        size = batch * max(c_in, c_out) * math.prod(sizes)
        is_long = all(n >= 2 * k for n, k in zip(sizes, kernel, strict=True))
        if size <= ELEMENTS and is_long and wanted.is_met(macs):
            break
    x = net.input(batch, c_in, *sizes)
    return net.conv(x, c_out, kernel, strides=[stride] * len(sizes), group=group)


# ------------------------------------------------------------------------------------------------- matrices, sequences


def _gemm(net: Net, draw: Draw) -> None:
    """Dense layers on few rows and on many, gates, and products of two activations."""
    x = ""
    acts = ("", "Relu", "Relu", "Gelu", "Gelu", "Tanh", "Sigmoid", "Silu")
    for _ in range(draw.one((4, 5, 6, 7))):
        if draw.chance(0.15):
            _batched_product(net, draw)
            continue
        wanted = _Wanted(draw)
        while True:
            if not x or draw.chance(0.3):
                x = net.input(draw.rows(), draw.width())
            rows, n_in = net.shapes[x]
            n_out = draw.width()
            if n_in * n_out <= 1 << 23 and wanted.is_met(rows * n_in * n_out):
                break
            x = ""
        act = draw.one(acts)
        if draw.chance(0.15):
            gate = net.activation(net.linear(x, n_out, has_bias=False), "Silu")
            x = net.same("Mul", gate, net.linear(x, n_out, has_bias=False))
        elif draw.chance(0.5):
            net.macs += rows * n_in * n_out
            weight = net.normal(n_out, n_in, fan_in=n_in)
            x = net.activation(net.op("Gemm", (rows, n_out), x, weight, net.normal(n_out), transB=1), act)
        else:
            y = net.linear(x, n_out, has_bias=draw.chance(0.8))
            x = net.activation(net.same("Add", y, x) if n_in == n_out else y, act)
        if net.macs > _PROGRAM_MACS:
            return


def _batched_product(net: Net, draw: Draw) -> None:
    wanted = _Wanted(draw)
    while True:
        batch, m, n, k = draw.between(1, 32), draw.between(1, 512), draw.between(8, 512), draw.between(8, 512)
        if wanted.is_met(batch * m * n * k) and batch * max(m * n, m * k, n * k) <= ELEMENTS // 2:
            break
    y = net.matmul(net.input(batch, m, k), net.input(batch, k, n))
    net.activation(y, draw.one(("", "Relu")))


def _attention(net: Net, draw: Draw) -> None:
    """Encoder blocks; and decoding: one row, and keys and values that were computed before."""
    for _ in range(draw.one((1, 2))):
        if draw.chance(0.3):
            _decoding(net, draw)
        else:
            _encoder(net, draw)


def _encoder(net: Net, draw: Draw) -> None:
    while True:
        head, heads = (
            draw.one((16, 24, 32, 32, 40, 64, 64, 64, 80, 96, 128)),
            draw.one((1, 2, 3, 4, 6, 8, 12, 16)),
        )
        tokens = (
            draw.between(8, 512) if draw.chance(0.3) else draw.one((16, 32, 49, 64, 128, 196, 197, 256, 384))
        )
        batch, hidden = draw.one((1, 1, 1, 2, 4)), head * heads
        scores = batch * heads * tokens * tokens
        if 48 <= hidden <= 1024 and batch * tokens * hidden * hidden <= _MACS and scores * head <= _MACS:
            break
    x = net.input(batch, tokens, hidden)
    is_first = draw.chance(0.5)  # norms come first
    y = net.layer_norm(x) if is_first else x
    q, k, v = (_split(net, net.linear(y, hidden), heads) for _ in range(3))
    weights = net.matmul(q, net.transpose(k, 0, 1, 3, 2))
    weights = net.same(draw.one(("Div", "Mul")), weights, net.scalar(math.sqrt(head)))
    if draw.chance(0.3):
        weights = net.same(
            "Add", weights, net.constant(np.triu(np.full((tokens, tokens), -1e4, np.float32), 1))
        )
    mixed = net.matmul(net.same("Softmax", weights, axis=-1), v)
    y = net.linear(net.reshape(net.transpose(mixed, 0, 2, 1, 3), batch, tokens, hidden), hidden)
    x = net.same("Add", y, x)
    x = x if is_first else net.layer_norm(x)
    factor = draw.one([n for n in (4, 3, 2, 1) if n * batch * tokens * hidden * hidden <= _MACS])
    act = draw.one(("Gelu", "Gelu", "Relu", "Silu"))
    wide = net.activation(net.linear(net.layer_norm(x) if is_first else x, factor * hidden), act)
    y = net.same("Add", net.linear(wide, hidden), x)
    if not is_first:
        net.layer_norm(y)


def _split(net: Net, x: str, heads: int) -> str:
    batch, tokens, hidden = net.shapes[x]
    return net.transpose(net.reshape(x, batch, tokens, heads, hidden // heads), 0, 2, 1, 3)


def _decoding(net: Net, draw: Draw) -> None:
    head, heads, batch = draw.one((32, 64, 64, 80, 128)), draw.one((4, 6, 8, 12, 16)), draw.one((1, 1, 2, 4))
    length, hidden = draw.between(32, 1024), head * heads
    x = net.input(batch, 1, hidden)
    q, k, v = (_split(net, net.linear(net.layer_norm(x), hidden), heads) for _ in range(3))
    shape = (batch, heads, length, head)
    keys, values = (
        net.op("Concat", (batch, heads, length + 1, head), net.input(*shape), new, axis=2) for new in (k, v)
    )
    weights = net.same("Mul", net.matmul(q, net.transpose(keys, 0, 1, 3, 2)), net.scalar(head**-0.5))
    mixed = net.matmul(net.same("Softmax", weights, axis=-1), values)
    y = net.linear(net.reshape(net.transpose(mixed, 0, 2, 1, 3), batch, 1, hidden), hidden)
    x = net.same("Add", y, x)
    wide = net.activation(
        net.linear(net.layer_norm(x), draw.one((2, 4)) * hidden), draw.one(("Gelu", "Silu"))
    )
    net.same("Add", net.linear(wide, hidden), x)


def _recurrent(net: Net, draw: Draw) -> None:
    """LSTMs and GRUs, and what stands around them."""
    for _ in range(draw.one((1, 2))):
        wanted = _Wanted(draw)
        while True:
            steps, batch = draw.between(4, 64), draw.one((1, 1, 1, 2, 4, 8))
            n_in, hidden = draw.width(512), draw.width(384)
            if wanted.is_met(4 * steps * batch * hidden * (n_in + hidden)):
                break
        kind, gates = draw.one((("LSTM", 4), ("GRU", 3)))
        ways = draw.one((1, 1, 2))
        x = net.linear(net.input(steps, batch, draw.width(256)), n_in)
        parts = (
            net.normal(ways, gates * hidden, n_in, fan_in=n_in),
            net.normal(ways, gates * hidden, hidden, fan_in=hidden),
            net.normal(ways, 2 * gates * hidden),
        )
        extra = {"linear_before_reset": 1} if kind == "GRU" and draw.chance(0.5) else {}
        y = net.op(
            *(kind, (steps, ways, batch, hidden), x, *parts),
            hidden_size=hidden,
            direction="bidirectional" if ways == 2 else "forward",
            **extra,
        )
        y = net.reshape(net.transpose(y, 0, 2, 1, 3), steps, batch, ways * hidden)
        net.linear(net.layer_norm(y) if draw.chance(0.5) else y, draw.width(512))


# ------------------------------------------------------------------------------------------------------------ programs

FAMILIES: dict[str, Callable[[Net, Draw], None]] = {
    "convolution": _convolution,
    "stem": _stem,
    "depthwise": _depthwise,
    "gemm": _gemm,
    "attention": _attention,
    "recurrent": _recurrent,
    "memory-bound": memory_bound,
    "transposed": _transposed,
}
_TURN = (  # families in turn: those that networks spend most time in come more often
    *("convolution", "depthwise", "gemm", "attention", "memory-bound", "convolution", "stem"),
    *("gemm", "transposed", "convolution", "attention", "depthwise", "memory-bound", "recurrent"),
)


@dataclass(frozen=True, slots=True)
class GeneratedProgram:
    """The program of a number; `make` writes it."""

    seed: int
    number: int

    @property
    def family(self) -> str:
        return _TURN[self.number % len(_TURN)]

    @property
    def name(self) -> str:
        return f"{self.family}-{self.seed}-{self.number:05}"

    def make(self) -> ModelProto:
        rng = np.random.default_rng((self.seed, self.number))
        net = Net(rng)
        FAMILIES[self.family](net, Draw(rng))
        return net.model(self.name)


def generated(seed: int, count: int) -> Iterator[tuple[str, str, ModelProto]]:
    """Name, family and model of as many programs."""
    for n in range(count):
        program = GeneratedProgram(seed, n)
        yield program.name, program.family, program.make()
