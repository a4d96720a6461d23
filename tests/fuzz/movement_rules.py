"""Rules of random models that move data: no value is computed, only elements are placed."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tests.fuzz.random_models import Generator, Value


def transpose(g: Generator) -> bool:
    x = g.value(min_rank=2)
    if x is None:
        return False
    perm = [int(p) for p in g.rng.permutation(x.rank)]
    g.add([x.shape[p] for p in perm], "Transpose", [x], perm=perm)
    return True


def reshape(g: Generator) -> bool:
    x = g.value()
    if x is None:
        return False
    left, shape = x.size, list[int]()
    while left > 1 and len(shape) < 4:
        shape.append(g.pick([f for f in range(1, left + 1) if left % f == 0]))
        left //= shape[-1]
    if left > 1:
        shape.append(left)
    if g.chance(0.3):
        shape.insert(int(g.rng.integers(len(shape) + 1)), 1)
    g.add(shape, "Reshape", [x, g.m.ints(*shape)])
    return True


def unit_axes(g: Generator) -> bool:
    x = g.value(max_rank=5)
    if x is None:
        return False
    units = [d for d, n in enumerate(x.shape) if n == 1]
    if units and g.chance(0.5):
        axis = g.pick(units)
        g.add([n for d, n in enumerate(x.shape) if d != axis], "Squeeze", [x, g.m.ints(axis)])
    else:
        axis = int(g.rng.integers(x.rank + 1))
        g.add([*x.shape[:axis], 1, *x.shape[axis:]], "Unsqueeze", [x, g.m.ints(axis)])
    return True


def expand(g: Generator) -> bool:
    x = g.value(max_rank=4)
    if x is None:
        return False
    shape = [g.pick((2, 3, 5)) if d == 1 and g.chance(0.6) else d for d in x.shape]
    if g.chance(0.3):
        shape.insert(0, 2)
    if math.prod(shape) > g.max_size:
        return False
    g.add(shape, "Expand", [x, g.m.ints(*shape)])
    return True


def slices(g: Generator) -> bool:
    x = g.value(min_rank=1)
    if x is None:
        return False
    axis = g.axis(x)
    start = int(g.rng.integers(x.shape[axis]))
    stop = int(g.rng.integers(start + 1, x.shape[axis] + 1))
    step = g.pick((1, 1, 1, 2, 3, -1, -2))
    size = -(-(stop - start) // abs(step))
    # Backwards from the last element; an end before the first is any large negative number.
    bounds = (start, stop) if step > 0 else (stop - 1, start - 1 if start else -(1 << 40))
    ends = [g.m.ints(bounds[0]), g.m.ints(bounds[1]), g.m.ints(axis), g.m.ints(step)]
    g.add([*x.shape[:axis], size, *x.shape[axis + 1 :]], "Slice", [x, *ends])
    return True


def concat(g: Generator) -> bool:
    x = g.value(min_rank=1)
    if x is None:
        return False
    axis = g.axis(x)
    same = [v for v in g.values if v.rank == x.rank and _equal_but(v.shape, x.shape, axis)]
    parts: list[Value | str] = [x]
    total = x.shape[axis]
    for _ in range(g.pick((1, 1, 2))):
        if g.chance(0.6):
            other = g.pick(same)
            parts.append(other)
            total += other.shape[axis]
        else:
            n = g.pick((1, 2, 3))
            parts.append(g.floats(*x.shape[:axis], n, *x.shape[axis + 1 :]))
            total += n
    if x.size // x.shape[axis] * total > g.max_size:
        return False
    order = [parts[int(i)] for i in g.rng.permutation(len(parts))]
    g.add([*x.shape[:axis], total, *x.shape[axis + 1 :]], "Concat", order, axis=g.spelled(axis, x.rank))
    return True


def _equal_but(a: Sequence[int], b: Sequence[int], axis: int) -> bool:
    return all(x == y or d == axis for d, (x, y) in enumerate(zip(a, b, strict=True)))


def split(g: Generator) -> bool:
    x = g.value(min_rank=1)
    if x is None:
        return False
    axis = g.axis(x)
    if x.shape[axis] < 2:
        return False
    at = int(g.rng.integers(1, x.shape[axis]))
    sizes = (at, x.shape[axis] - at)
    names = g.m.op("Split", x.name, g.m.ints(*sizes), outputs=2, axis=axis)
    for name, n in zip(names, sizes, strict=True):
        g.keep(Value(name, (*x.shape[:axis], n, *x.shape[axis + 1 :])), [x])
    return True


def pad(g: Generator) -> bool:
    x = g.value(min_rank=1, max_rank=4)
    if x is None:
        return False
    mode = g.pick(("constant", "constant", "edge", "reflect"))
    most = [min(2, d - 1) if mode == "reflect" else 2 for d in x.shape]
    before, after = ([int(g.rng.integers(n + 1)) for n in most] for _ in range(2))
    shape = [d + b + a for d, b, a in zip(x.shape, before, after, strict=True)]
    if math.prod(shape) > g.max_size:
        return False
    value = [g.number(0.5)] if mode == "constant" and g.chance(0.5) else []
    g.add(shape, "Pad", [x, g.m.ints(*before, *after), *value], mode=mode)
    return True


def tile(g: Generator) -> bool:
    x = g.value(min_rank=1, max_rank=4)
    if x is None:
        return False
    repeats = [g.pick((1, 1, 2, 3)) for _ in x.shape]
    if x.size * math.prod(repeats) > g.max_size:
        return False
    g.add([d * r for d, r in zip(x.shape, repeats, strict=True)], "Tile", [x, g.m.ints(*repeats)])
    return True


def gather(g: Generator) -> bool:
    x = g.value(min_rank=1, max_rank=4)
    if x is None:
        return False
    axis = g.axis(x)
    extent = x.shape[axis]
    shape = tuple(g.pick((1, 2, 3, 5)) for _ in range(g.pick((0, 1, 1, 2))))
    out = (*x.shape[:axis], *shape, *x.shape[axis + 1 :])
    if math.prod(out) > g.max_size:
        return False
    picked = g.rng.integers(-extent if g.chance(0.3) else 0, extent, shape)
    g.add(out, "Gather", [x, g.m.constant(picked, np.int64)], axis=axis)
    return True


def depth(g: Generator) -> bool:
    x = g.value(min_rank=4, max_rank=4)
    if x is None:
        return False
    n, c, h, w = x.shape
    if c % 4 == 0 and g.chance(0.6):
        mode = g.pick(("DCR", "CRD"))
        g.add((n, c // 4, h * 2, w * 2), "DepthToSpace", [x], blocksize=2, mode=mode)
    elif h % 2 == 0 and w % 2 == 0:
        g.add((n, c * 4, h // 2, w // 2), "SpaceToDepth", [x], blocksize=2)
    else:
        return False
    return True


def resize(g: Generator) -> bool:
    x = g.value(min_rank=4, max_rank=4)
    if x is None:
        return False
    n, c, h, w = x.shape
    a, b = g.pick((1, 2, 3)), g.pick((1, 2))
    if x.size * a * b > g.max_size:
        return False
    mode = g.pick(("nearest", "linear"))
    rounding = {"nearest_mode": "floor"} if mode == "nearest" else {}
    inputs = [x, "", g.m.constant([1, 1, a, b], np.float32)]
    places = "asymmetric"
    g.add(
        (n, c, h * a, w * b), "Resize", inputs, mode=mode, coordinate_transformation_mode=places, **rounding
    )
    return True


MOVEMENT: tuple[Callable[[Generator], bool], ...] = (
    *(transpose,) * 2,
    *(reshape,) * 2,
    unit_axes,
    expand,
    *(slices,) * 2,
    *(concat,) * 2,
    split,
    pad,
    tile,
    gather,
    depth,
    resize,
)
