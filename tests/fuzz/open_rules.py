"""The rules that models with open dimensions grow by: those of static models where they do, and more."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from onnx import TensorProto

from tests.fuzz import movement_rules as moves
from tests.fuzz import ordered_rules as ordered
from tests.fuzz import rules
from tests.fuzz.open_models import OpenGenerator, RandomOpenModel, check_sizes
from tests.fuzz.random_models import Generator, Value
from tilewright.support.sizes import Dim, SizeError, SymInt, is_open, same_size, size_of

OpenRule: TypeAlias = Callable[[OpenGenerator], bool]


def random_open_model(seed: int, given: Sequence[OpenRule] | None = None) -> RandomOpenModel:
    """The same model for the same seed. By all rules, unless others are given."""
    g = OpenGenerator(seed)
    for _ in range(g.pick((1, 1, 2))):
        g.add_input()
    while g.waiting:
        g.add_input()
    wanted, made, tries = int(g.rng.integers(1, 9)), 0, 0
    while made < wanted and tries < 100:
        tries += 1
        try:
            made += g.pick(given or OPEN_RULES)(g)
        except (SizeError, ValueError, IndexError, ZeroDivisionError):
            continue  # a rule that has no way with open numbers
    dims: dict[str, Dim] = {}
    for n in g.open:
        assert isinstance(n, SymInt)
        dims |= {d.name: d for d in n.size.dims}
    return RandomOpenModel(g.finish(), dims)


def _any(g: Generator, *, min_rank: int = 0, max_rank: int = 6) -> Value:
    x = g.value(min_rank=min_rank, max_rank=max_rank)
    if x is None:
        raise SizeError("there is no such value")
    return x


def _open_axis(g: Generator, x: Value, p: float = 0.7) -> int:
    """An open axis rather than another."""
    found = [d for d, n in enumerate(x.shape) if isinstance(n, SymInt)]
    return g.pick(found) if found and g.chance(p) else g.axis(x)


def _least(n: int) -> int:
    return size_of(n).bounds[0]


def _with(shape: Sequence[int], axis: int, n: int) -> tuple[int, ...]:
    return (*shape[:axis], n, *shape[axis + 1 :])


# --------------------------------------------------------------------------------------------------------- elementwise


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """The common shape; an open number broadcasts with itself and with 1."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
    out: list[int] = []
    for n, m in zip(a, b, strict=True):
        if not same_size(n, m) and not same_size(n, 1) and not same_size(m, 1):
            return None
        out.append(m if same_size(n, 1) else n)
    return tuple(out)


def binary(g: OpenGenerator) -> bool:
    x = _any(g)
    y: Value | str
    shape = x.shape
    if g.chance(0.6):
        y = g.pick([v for v in g.values if _broadcast(x.shape, v.shape) is not None])
        assert isinstance(y, Value)
        shape = _broadcast(x.shape, y.shape) or ()
        check_sizes(shape, g.max_size)
        y = g.add(y.shape, "Tanh", [y])
    else:
        y = g.floats(*(1 if g.chance(0.3) else n for n in x.shape))
    g.add(shape, g.pick(("Add", "Sub", "Mul", "Max", "Min")), [y, x] if g.chance(0.3) else [x, y])
    return True


def where(g: OpenGenerator) -> bool:
    x = _any(g)
    fitting = [v for v in g.flags if _broadcast(v.shape, x.shape) == x.shape]
    if fitting and g.chance(0.6):
        flag: Value = g.pick(fitting)
    else:
        flag = g.add(x.shape, g.pick(("Less", "Greater")), [x, g.number(10.0 * g.pick((-1, 1)))], "flags")
    g.add(x.shape, "Where", [flag, x, g.floats(*(1 if g.chance(0.5) else n for n in x.shape))])
    return True


def positions(g: OpenGenerator) -> bool:
    """Something that depends on where an element is: Range, or a sum of ones."""
    x = _any(g, min_rank=1, max_rank=5)
    axis = _open_axis(g, x)
    size = g.m.op("Squeeze", g.m.ints(x.shape[axis]), g.m.constant([0], np.int64))
    zero, one = g.m.constant(0, np.int64), g.m.constant(g.pick((1, 1, 2)), np.int64)
    if g.chance(0.3):
        ones = g.m.op("ConstantOfShape", g.m.ints(x.shape[axis]))
        found = g.m.op("CumSum", ones, zero)
    else:
        found = g.m.op("Range", zero, g.m.op("Mul", size, one), one)
        found = g.m.op("Cast", found, to=_element(g))
    if axis < x.rank - 1:
        found = g.m.op("Unsqueeze", found, g.m.constant([*range(1, x.rank - axis)], np.int64))
    found = g.m.op("Mul", g.m.op("Cast", found, to=_element(g)), g.number(0.05))
    g.add(x.shape, "Add", [x, found])
    return True


def _element(g: Generator) -> int:
    return TensorProto.DOUBLE if g.dtype == np.float64 else TensorProto.FLOAT


def by_size(g: OpenGenerator) -> bool:
    """Divided by a size, as means are written."""
    x = _any(g, min_rank=1)
    axis = _open_axis(g, x)
    total = g.add(_with(x.shape, axis, 1), "ReduceSum", [x, g.m.ints(axis)])
    count = g.m.op("Cast", g.m.ints(x.shape[axis]), to=_element(g))
    g.add(total.shape, "Div", [total, count])
    return True


def triangle(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=2)
    k = g.m.constant(int(g.rng.integers(-3, 4)), np.int64)
    g.add(x.shape, "Trilu", [x, k] if g.chance(0.6) else [x], upper=int(g.chance(0.5)))
    return True


# ---------------------------------------------------------------------------------------------------------- reductions


def reduce(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1)
    axes = sorted({_open_axis(g, x) for _ in range(g.pick((1, 1, 2)))})
    keep = g.chance(0.5)
    kinds = ("Mean", "Max", "Min", "L1", "L2", "LogSumExp", "Sum", "SumSquare", "LogSum")
    op = g.pick(kinds)
    if op == "LogSum":
        x = g.add(x.shape, "Sigmoid", [x])
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes)
    made = g.add(
        shape, f"Reduce{op}", [x, g.m.ints(*(g.spelled(a, x.rank) for a in axes))], keepdims=int(keep)
    )
    if op in ("L1", "L2", "Sum", "SumSquare"):
        g.add(shape, "Tanh", [made])
    return True


def arg_reduce(g: OpenGenerator) -> bool:
    """Of inputs: where the largest is may change by rounding."""
    x = g.pick([v for v in g.values if v.name.startswith("input") and v.rank > 0])
    axis = _open_axis(g, x)
    keep = g.chance(0.5)
    shape = tuple(1 if d == axis else n for d, n in enumerate(x.shape) if keep or d != axis)
    op = g.pick(("ArgMax", "ArgMin"))
    last = int(g.chance(0.3))
    g.add(
        shape, op, [x], "integers", axis=g.spelled(axis, x.rank), keepdims=int(keep), select_last_index=last
    )
    return True


def cumulative(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1)
    small = g.add(x.shape, "Mul", [x, g.number(0.1)])
    axis = g.m.constant(_open_axis(g, x), np.int64)
    g.add(x.shape, "CumSum", [small, axis], exclusive=int(g.chance(0.4)), reverse=int(g.chance(0.4)))
    return True


def rms_norm(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=2)
    axis = _open_axis(g, x, 0.3)
    kept = _with(x.shape, axis, 1)
    squares = g.add(x.shape, "Mul", [x, x])
    mean = g.add(kept, "ReduceMean", [squares, g.m.ints(axis)], keepdims=1)
    root = g.add(kept, "Sqrt", [g.add(kept, "Add", [mean, g.number(1e-3)])])
    g.add(x.shape, "Mul", [g.add(x.shape, "Div", [x, root]), g.floats(*x.shape[axis:])])
    return True


def group_norm(g: OpenGenerator) -> bool:
    """As exporters write it: groups as channels of an instance norm."""
    x = _any(g, min_rank=3, max_rank=4)
    channels = x.shape[1]
    if isinstance(channels, SymInt):
        return False
    groups = g.pick([k for k in range(1, channels + 1) if channels % k == 0])
    flat = g.m.op("Reshape", x.name, g.m.constant([0, groups, -1], np.int64))
    done = g.m.op("InstanceNormalization", flat, g.floats(groups), g.floats(groups))
    made = g.add(x.shape, "Reshape", [done, g.m.op("Shape", x.name)])
    per = (channels, *(1 for _ in x.shape[2:]))
    g.add(x.shape, "Mul", [made, g.floats(*per)])
    return True


# ------------------------------------------------------------------------------------------------------------ movement


def slices(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1)
    axis = _open_axis(g, x)
    n = x.shape[axis]
    least, step = _least(n), g.pick((1, 1, 1, 2, 3, -1, -2))
    start, stop = (int(v) for v in g.rng.integers(0, max(least, 1), 2))
    kind = g.pick(("head", "tail", "both", "from the end"))
    if step > 0:
        first, last, count = {
            "head": (0, start + 1, start + 1),
            "tail": (start, 1 << 62, n - start),
            "both": (start, -stop, n - start - stop),
            "from the end": (-start - 1, 1 << 62, start + 1),
        }[kind]
    else:
        first, last, count = {
            "head": (start, -(1 << 62), start + 1),
            "tail": (-1, start, n - 1 - start),
            "both": (-1 - start, stop, n - 1 - start - stop),
            "from the end": (-1, -start - 2, start + 1),
        }[kind]
    size = (count + abs(step) - 1) // abs(step)
    check_sizes((size,), g.max_size)
    ends = [g.m.ints(first), g.m.ints(last), g.m.ints(axis), g.m.ints(step)]
    g.add(_with(x.shape, axis, size), "Slice", [x, *ends])
    return True


def halves(g: OpenGenerator) -> bool:
    """Up to the middle, and from there: bounds that are computed."""
    x = _any(g, min_rank=1)
    axis = _open_axis(g, x)
    n = x.shape[axis]
    half = n // 2
    first = g.chance(0.5)
    size = half if first else n - half
    check_sizes((size,), g.max_size)
    bounds = (g.m.ints(0), g.m.ints(half)) if first else (g.m.ints(half), g.m.ints(n))
    g.add(_with(x.shape, axis, size), "Slice", [x, *bounds, g.m.ints(axis)])
    return True


def split(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1)
    axis = _open_axis(g, x)
    n = x.shape[axis]
    if _least(n) < 2:
        return False
    at = int(g.rng.integers(1, _least(n)))
    sizes = (at, n - at) if g.chance(0.5) else (n - at, at)
    names = g.m.op("Split", x.name, g.m.ints(*sizes), outputs=2, axis=axis)
    for name, k in zip(names, sizes, strict=True):
        g.keep(Value(name, _with(x.shape, axis, k)), [x])
    return True


def pad(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1, max_rank=4)
    mode = g.pick(("constant", "constant", "edge", "reflect", "wrap"))
    most = [min(3, _least(d) - (mode == "reflect")) if mode in ("reflect", "wrap") else 3 for d in x.shape]
    before, after = ([int(g.rng.integers(n + 1)) if g.chance(0.6) else 0 for n in most] for _ in range(2))
    if mode == "constant" and g.chance(0.2):
        axis = _open_axis(g, x)
        before[axis] = -min(1, _least(x.shape[axis]) - 1)
    shape = [d + b + a for d, b, a in zip(x.shape, before, after, strict=True)]
    value = [g.number(0.5)] if mode == "constant" and g.chance(0.5) else []
    g.add(shape, "Pad", [x, g.m.ints(*before, *after), *value], mode=mode)
    return True


def merge(g: OpenGenerator) -> bool:
    """Neighbouring axes become one, as 0 and -1 say or by numbers that are computed."""
    x = _any(g, min_rank=2)
    at = int(g.rng.integers(x.rank - 1))
    shape = (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
    rest_is_closed = not is_open((*shape[:at], *shape[at + 1 :]))
    if rest_is_closed and g.chance(0.5):
        spelled = [-1 if d == at else int(n) for d, n in enumerate(shape)]
        g.add(shape, "Reshape", [x, g.m.ints(*spelled)])
    else:
        g.add(shape, "Reshape", [x, g.m.ints(*shape)])
    return True


def divide(g: OpenGenerator) -> bool:
    """An axis becomes two."""
    x = _any(g, min_rank=1, max_rank=5)
    axis = _open_axis(g, x, 0.5)
    n = x.shape[axis]
    factors = [k for k in (1, 2, 3, 4, 5, 8, *g.open) if _divides(n, k)]
    k = g.pick(factors)
    inner = (n // k, k) if g.chance(0.5) else (k, n // k)
    shape = (*x.shape[:axis], *inner, *x.shape[axis + 1 :])
    spelled = list(shape)
    if g.chance(0.4):
        spelled[g.pick((axis, axis + 1))] = -1
    g.add(shape, "Reshape", [x, g.m.ints(*spelled)])
    return True


def _divides(n: int, k: int) -> bool:
    try:
        return same_size((n // k) * k, n)
    except SizeError:
        return False


def reshape(g: OpenGenerator) -> bool:
    """To any shape, of what is closed."""
    if any(is_open(v.shape) for v in g.values[-3:]):
        return merge(g)
    return moves.reshape(g)


def flatten(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1)
    axis = int(g.rng.integers(x.rank + 1))
    g.add((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), "Flatten", [x], axis=axis)
    return True


def expand(g: OpenGenerator) -> bool:
    """To an open size."""
    x = _any(g, max_rank=4)
    shape = [g.pick(g.open) if same_size(n, 1) and g.chance(0.6) else n for n in x.shape]
    if g.chance(0.3):
        shape.insert(0, g.pick((2, *g.open)))
    g.add(shape, "Expand", [x, g.m.ints(*shape)])
    return True


def tile(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1, max_rank=4)
    repeats = [g.pick((1, 1, 1, 2, 3, *g.open)) for _ in x.shape]
    shape = [d * r for d, r in zip(x.shape, repeats, strict=True)]
    g.add(shape, "Tile", [x, g.m.ints(*repeats)])
    return True


def gather(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1, max_rank=4)
    axis = _open_axis(g, x)
    least = _least(x.shape[axis])
    if g.integers and g.chance(0.3):
        at: Value = g.pick(g.integers)
        low = g.add(at.shape, "Mod", [at, g.m.constant(least, np.int64)], "integers")
        g.add((*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]), "Gather", [x, low], axis=axis)
        return True
    shape = tuple(g.pick((1, 2, 3, 5)) for _ in range(g.pick((0, 1, 1, 2))))
    picked = g.rng.integers(-least if g.chance(0.5) else 0, least, shape)
    out = (*x.shape[:axis], *shape, *x.shape[axis + 1 :])
    g.add(out, "Gather", [x, g.m.constant(picked, np.int64)], axis=axis)
    return True


def indices(g: OpenGenerator) -> bool:
    """Integers of an open shape."""
    shape = [g.pick((1, 2, 3, 5, *g.open)) for _ in range(g.pick((1, 2, 2, 3)))]
    check_sizes(shape, g.max_size)
    g.integers.append(Value(g.m.input(*shape, dtype=np.int64), tuple(shape)))
    return True


def gather_elements(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1, max_rank=4)
    axis = _open_axis(g, x)
    least = _least(x.shape[axis])
    k = g.pick((1, 2, x.shape[axis]))
    shape = _with(x.shape, axis, k)
    data = g.rng.integers(-least if g.chance(0.5) else 0, least, [int(n) for n in shape])
    g.add(shape, "GatherElements", [x, g.m.part(data.astype(np.int64), shape)], axis=axis)
    return True


def scatter(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1, max_rank=4)
    kind = {"reduction": g.pick(("add", "max"))} if g.chance(0.4) else {}
    if g.chance(0.5):
        least = _least(x.shape[0])
        rows = int(g.rng.integers(1, least + 1))
        places = g.rng.permutation(least)[:rows].reshape(rows, 1)
        if g.chance(0.3):
            places = places - least
            kind = {}
            rows = 1
            places = places[:1]
        inputs = [x, g.m.constant(places, np.int64), g.floats(rows, *x.shape[1:])]
        g.add(x.shape, "ScatterND", inputs, **kind)
        return True
    axis = _open_axis(g, x)
    least = _least(x.shape[axis])
    rows = int(g.rng.integers(1, least + 1))
    shape = _with(x.shape, axis, rows)
    order = g.rng.permutation(least)[:rows].reshape([rows if d == axis else 1 for d in range(x.rank)])
    data = np.broadcast_to(order, [int(n) for n in shape]).astype(np.int64)
    g.add(x.shape, "ScatterElements", [x, g.m.part(data, shape), g.floats(*shape)], axis=axis, **kind)
    return True


def one_hot(g: OpenGenerator) -> bool:
    x = g.pick(g.integers)
    depth = g.pick((5, 3, *g.open))
    axis = g.pick((-1, 0))
    shape = (*x.shape, depth) if axis < 0 else (depth, *x.shape)
    size = g.m.op("Squeeze", g.m.ints(depth), g.m.constant([0], np.int64))
    values = g.m.constant(np.array([0.25, 1.5], g.dtype))
    g.add(shape, "OneHot", [x, size, values], axis=axis)
    return True


def largest(g: OpenGenerator) -> bool:
    x = _any(g, min_rank=1)
    axis = _open_axis(g, x)
    n = x.shape[axis]
    k = n if g.chance(0.3) else int(g.rng.integers(1, _least(n) + 1))
    names = g.m.op("TopK", x.name, g.m.ints(k), outputs=2, axis=axis, largest=int(g.chance(0.6)))
    g.keep(Value(names[0], _with(x.shape, axis, k)), [x])
    return True


def resize(g: OpenGenerator) -> bool:
    """To sizes, or by scales."""
    x = _any(g, min_rank=4, max_rank=4)
    n, c, h, w = x.shape
    a, b = g.pick((1, 2, 3)), g.pick((1, 2))
    mode = g.pick(("nearest", "linear", "cubic"))
    extra = {"nearest_mode": g.pick(("floor", "round_prefer_floor"))} if mode == "nearest" else {}
    places = g.pick(("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"))
    if g.chance(0.5):
        inputs = [x, "", g.m.constant([1, 1, a, b], np.float32)]
    else:
        inputs = [x, "", "", g.m.ints(n, c, h * a, w * b)]
    shape = (n, c, h * a, w * b)
    g.add(shape, "Resize", inputs, mode=mode, coordinate_transformation_mode=places, **extra)
    return True


# -------------------------------------------------------------------------------------------------------- contractions


def product(g: OpenGenerator) -> bool:
    """Of two values that are computed, over an axis that may be open."""
    x = _any(g, min_rank=2)
    found = [v for v in g.values if v.rank == x.rank and same_size(v.shape[-1], x.shape[-1])]
    y = g.pick(found)
    batch = _broadcast(x.shape[:-2], y.shape[:-2])
    if batch is None:
        return False
    shape = (*batch, x.shape[-2], y.shape[-2])
    check_sizes(shape, g.max_size)
    perm = [*range(y.rank - 2), y.rank - 1, y.rank - 2]
    turned = g.add([y.shape[p] for p in perm], "Transpose", [y], perm=perm)
    made = g.add(shape, "MatMul", [x, turned])
    g.add(shape, "Mul", [made, g.number(1 / math.sqrt(int(x.shape[-1])))])
    return True


_EQUATIONS = (
    "ij,kj->ik",
    "ij,ij->i",
    "ij,ik->jk",
    "bij,bkj->bik",
    "bij,bik->bjk",
    "bij->bji",
    "bij->j",
    "bij,jk->bik",
)


def einsum(g: OpenGenerator) -> bool:
    equation = g.pick(_EQUATIONS)
    terms, out = equation.split("->")
    sizes: dict[str, int] = {}
    inputs: list[Value | str] = []
    for term in terms.split(","):
        fitting = [
            v
            for v in g.values
            if v.rank == len(term)
            and all(same_size(sizes.get(a, n), n) for a, n in zip(term, v.shape, strict=True))
        ]
        if fitting and (not inputs or g.chance(0.7)):
            x: Value = g.pick(fitting)
            inputs.append(x)
            shape = x.shape
        elif inputs:
            shape = tuple(sizes[a] if a in sizes else g.pick((1, 3, 4, *g.open)) for a in term)
            inputs.append(g.scaled(4, *shape))
        else:
            return False
        sizes |= dict(zip(term, shape, strict=True))
    shape = tuple(sizes[a] for a in out)
    check_sizes(shape, g.max_size)
    made = g.add(shape, "Einsum", inputs, equation=equation)
    g.add(shape, "Mul", [made, g.number(0.2)])
    return True


def attention(g: OpenGenerator) -> bool:
    """Of [batch, length, features]; masked, causal, with fewer heads of keys."""
    x = _any(g, min_rank=3, max_rank=3)
    batch, length, width = x.shape
    if isinstance(width, SymInt):
        return False
    heads, group, size = g.pick((1, 2, 4)), g.pick((1, 1, 2)), g.pick((4, 8))
    if heads % group:
        group = 1
    keys = heads // group
    other = x
    if g.chance(0.3):
        other = g.pick([v for v in g.values if v.rank == 3 and same_size(v.shape[0], batch)])
        if isinstance(other.shape[2], SymInt):
            return False
    total = other.shape[1]
    check_sizes((batch, heads, length, total), g.max_size)

    def projected(v: Value, count: int, perm: list[int]) -> str:
        made = g.m.op("MatMul", v.name, g.scaled(int(v.shape[2]), v.shape[2], count * size))
        made = g.m.op("Reshape", made, g.m.constant([0, 0, count, size], np.int64))
        return g.m.op("Transpose", made, perm=perm)

    q, k, v = (
        projected(x, heads, [0, 2, 1, 3]),
        projected(other, keys, [0, 2, 3, 1]),
        projected(other, keys, [0, 2, 1, 3]),
    )
    if group > 1:
        k, v = (
            _repeated(g, t, group, shape)
            for t, shape in ((k, (batch, heads, size, total)), (v, (batch, heads, total, size)))
        )
    scores = g.m.op("Mul", g.m.op("MatMul", q, k), g.number(1 / math.sqrt(size)))
    kind = g.pick(("plain", "causal", "bias", "masked"))
    if kind == "causal" and other is x:
        scores = g.m.op("Where", _causal(g, length), scores, g.number(-1e9))
    elif kind == "bias":
        scores = g.m.op("Add", scores, g.floats(length, total))
    elif kind == "masked":
        scores = g.m.op("Add", scores, g.floats(batch, 1, 1, total))
    p = g.m.op("Softmax", scores, axis=-1)
    made = g.m.op("Transpose", g.m.op("MatMul", p, v), perm=[0, 2, 1, 3])
    g.add((batch, length, heads * size), "Reshape", [made, g.m.constant([0, 0, heads * size], np.int64)])
    return True


def _repeated(g: OpenGenerator, t: str, group: int, shape: Sequence[int]) -> str:
    batch, heads, a, b = shape
    wide = g.m.op("Unsqueeze", t, g.m.constant([2], np.int64))
    wide = g.m.op("Expand", wide, g.m.ints(batch, heads // group, group, a, b))
    return g.m.op("Reshape", wide, g.m.ints(*shape))


def _causal(g: OpenGenerator, length: int) -> str:
    if g.chance(0.5):
        ones = g.m.op("ConstantOfShape", g.m.ints(length, length))
        grown = g.m.op("Add", ones, g.number(1.0)) if g.dtype == np.float32 else ""
        if grown:
            lower = g.m.op("Trilu", grown, upper=0)
            return g.m.op("Greater", lower, g.number(0.5))
    size = g.m.op("Squeeze", g.m.ints(length), g.m.constant([0], np.int64))
    at = g.m.op("Range", g.m.constant(0, np.int64), size, g.m.constant(1, np.int64))
    return g.m.op("LessOrEqual", at, g.m.op("Unsqueeze", at, g.m.constant([1], np.int64)))


OPEN_RULES: tuple[OpenRule, ...] = (
    *(rules.unary,) * 4,
    *(binary,) * 5,
    *(where, positions, by_size, triangle),
    rules.integers,
    *(rules.matmul,) * 3,
    *(product,) * 2,
    rules.gemm,
    *(einsum, attention) * 2,
    *(rules.conv,) * 3,
    rules.conv_transpose,
    *(rules.pool,) * 2,
    *(reduce,) * 4,
    *(arg_reduce, cumulative, rms_norm, group_norm) * 2,
    *(rules.softmax,) * 3,
    *(rules.norm,) * 2,
    *(slices, moves.concat, merge, divide, gather) * 2,
    *(halves, split, pad, flatten, expand, tile, indices, gather_elements, scatter, one_hot, largest),
    *(moves.transpose,) * 2,
    *(reshape, moves.unit_axes, moves.expand, moves.tile, moves.depth, resize),
    ordered.recurrent,
)
