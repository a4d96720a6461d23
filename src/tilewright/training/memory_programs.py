"""Generated programs that move more than they compute: norms, softmax, pooling, transposes, elementwise chains."""

import math

import numpy as np

from tilewright.training.draws import ELEMENTS, Draw, new_image
from tilewright.training.net import Net


def memory_bound(net: Net, draw: Draw) -> None:
    """Norms, softmax, pooling, transposes, concatenation, elementwise chains and reductions, most of them apart."""
    kinds = (_norm, _softmax, _elementwise, _reduction, _moving, _pooling, _image_norm)
    for _ in range(draw.one((5, 6, 7, 8))):
        draw.one(kinds)(net, draw)


def _matrix(net: Net, draw: Draw) -> str:
    least = draw.between(1 << 13, ELEMENTS // 2)
    while True:
        shape = draw.batch(), draw.rows(), draw.width()
        if least <= math.prod(shape) <= 3 * least:
            return net.input(*shape)


def _norm(net: Net, draw: Draw) -> None:
    x = _matrix(net, draw)
    if draw.chance(0.5):
        x = net.same("Add", x, net.input(*net.shapes[x]))
    if draw.chance(0.6):
        net.activation(net.layer_norm(x), draw.one(("", "", "Gelu", "Relu")))
        return
    shape = (*net.shapes[x][:-1], 1)
    mean = net.op("ReduceMean", shape, net.same("Mul", x, x), net.ints(-1), keepdims=1)
    root = net.same("Sqrt", net.same("Add", mean, net.scalar(1e-6)))
    net.same("Mul", net.same("Div", x, root), net.positive(shape[-1] and net.shapes[x][-1]))


def _softmax(net: Net, draw: Draw) -> None:
    x = _matrix(net, draw)
    if draw.chance(0.4):
        x = net.same("Mul", x, net.scalar(0.125))
    net.same(draw.one(("Softmax", "Softmax", "LogSoftmax")), x, axis=draw.one((-1, -1, -1, 1, 2)))


def _elementwise(net: Net, draw: Draw) -> None:
    x = _matrix(net, draw) if draw.chance(0.5) else new_image(net, draw)
    for _ in range(draw.one((1, 2, 3, 4, 5))):
        if draw.chance(0.4):
            kinds = (
                "Relu",
                "Sigmoid",
                "Tanh",
                "Silu",
                "Gelu",
                "HardSwish",
                "Clip",
                "Exp",
                "Abs",
                "Softplus",
                "Elu",
            )
            x = net.activation(x, draw.one(kinds))
        elif draw.chance(0.5):
            x = net.same(draw.one(("Add", "Mul", "Sub", "Max")), x, net.input(*net.shapes[x]))
        else:
            c = net.shapes[x][1] if len(net.shapes[x]) == 4 else net.shapes[x][-1]
            other = net.positive(*((c, 1, 1) if len(net.shapes[x]) == 4 else (c,)))
            x = net.same(draw.one(("Add", "Mul", "Div")), x, other)


def _reduction(net: Net, draw: Draw) -> None:
    x = _matrix(net, draw) if draw.chance(0.5) else new_image(net, draw)
    shape = net.shapes[x]
    axes = draw.one(((-1,), (-1,), (1,), (0,), (-2, -1), (-2,), (1, 2)))
    kept = [1 if n in {a % len(shape) for a in axes} else s for n, s in enumerate(shape)]
    if draw.chance(0.4):
        x = net.same("Mul", x, x)
    y = net.op(
        draw.one(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")), kept, x, net.ints(*axes), keepdims=1
    )
    if draw.chance(0.4):
        net.same("Sub", x, y)


def _moving(net: Net, draw: Draw) -> None:
    x = _matrix(net, draw) if draw.chance(0.4) else new_image(net, draw)
    shape = net.shapes[x]
    match draw.one(("transpose", "transpose", "concat", "slice", "pad", "resize", "depth")):
        case "transpose":
            net.transpose(x, *map(int, draw.rng.permutation(len(shape))))
        case "concat":
            other = (shape[0], draw.between(1, 2 * shape[1]), *shape[2:])
            joined = (shape[0], shape[1] + other[1], *shape[2:])
            net.activation(
                net.op("Concat", joined, x, net.input(*other), axis=1), draw.one(("", "Relu", "Silu"))
            )
        case "slice":
            half = max(1, shape[-1] // 2)
            first = net.op("Slice", (*shape[:-1], half), x, net.ints(0), net.ints(half), net.ints(-1))
            rest = (*shape[:-1], shape[-1] - half)
            second = net.op("Slice", rest, x, net.ints(half), net.ints(shape[-1]), net.ints(-1))
            if rest[-1] == half:
                net.same("Mul", first, net.same("Sigmoid", second))
        case "pad":
            pads = [0] * (len(shape) - 2) + [1, 2]
            net.op("Pad", [n + 2 * p for n, p in zip(shape, pads, strict=True)], x, net.ints(*pads, *pads))
        case "resize" if len(shape) == 4:
            scales = net.constant(np.array([1, 1, 2, 2], np.float32))
            mode = draw.one(("nearest", "linear"))
            made = (*shape[:2], 2 * shape[2], 2 * shape[3])
            net.op("Resize", made, x, "", scales, mode=mode, coordinate_transformation_mode="asymmetric",
                   nearest_mode="floor")  # fmt: skip
        case "depth" if len(shape) == 4:
            made = (shape[0], shape[1], shape[2] // 2 * 2, shape[3] // 2 * 2)
            x = net.input(*made)
            net.op("SpaceToDepth", (made[0], 4 * made[1], made[2] // 2, made[3] // 2), x, blocksize=2)
        case _:
            net.same("Relu", net.transpose(x, *reversed(range(len(shape)))))


def _pooling(net: Net, draw: Draw) -> None:
    x = new_image(net, draw)
    if draw.chance(0.25):
        net.op("GlobalAveragePool", (*net.shapes[x][:2], 1, 1), x)
        return
    kernel = draw.one((2, 3, 3, 5))
    if min(net.shapes[x][2:]) < kernel:
        return _softmax(net, draw)
    net.pool(draw.one(("MaxPool", "MaxPool", "AveragePool")), x, kernel, draw.one((1, 2, 2)))


def _image_norm(net: Net, draw: Draw) -> None:
    x = new_image(net, draw)
    c = net.shapes[x][1]
    if draw.chance(0.5):
        y = net.same("InstanceNormalization", x, net.positive(c), net.normal(c))
    else:
        y = net.same("Add", net.batch_norm(x), net.input(*net.shapes[x]))
    net.activation(y, draw.one(("", "Relu", "Silu")))
