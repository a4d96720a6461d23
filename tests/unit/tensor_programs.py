"""Blocks to tensorize, and intrinsics that any machine has: their instructions are left to the code generator."""

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Fma, Scope, Var, cast, const, logical_and, select
from tilewright.target.intrinsic import Intrinsic, Operand
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Iter, IterKind, Stmt, Store, blocks

ANY = frozenset(Scope)


def update(
    name: str, extents: dict[str, int], reduce: str, operands: dict[str, tuple[tuple[str, ...], DType]]
) -> Func:
    """The Func that adds one product to its first operand; operands by the letters of their dimensions."""
    iters = {
        a: Iter(Var(f"{name}_v{a}"), n, IterKind.REDUCE if a in reduce else IterKind.SPATIAL)
        for a, n in extents.items()
    }
    buffers = {
        n: Buffer(f"{name}_{n}", tuple(extents[a] for a in axes), t) for n, (axes, t) in operands.items()
    }
    at = {n: buffers[n][tuple(iters[a].var for a in axes)] for n, (axes, _) in operands.items()}
    out, x, y = operands
    wide = operands[out][1]
    value = Fma(at[x], at[y], at[out]) if wide.is_float else at[out] + cast(wide, at[x]) * cast(wide, at[y])
    body: Stmt = Block(
        f"{name}_update",
        tuple(iters.values()),
        tuple(Var(f"{name}_{a}") for a in extents),
        Store(buffers[out], tuple(iters[a].var for a in operands[out][0]), value),
    )
    for a, n in reversed(extents.items()):
        body = For(Var(f"{name}_{a}"), n, body)
    return Func(name, tuple(buffers.values()), (), body, (buffers[out],))


def tile(rows: int, columns: int, k: int | None = None) -> Intrinsic:
    """C[rows, columns] += A[rows, k] · B[k, columns] in f32; any k unless it is given."""
    name = f"tile_{rows}x{columns}" + (f"x{k}" if k else "")
    f32 = DType.F32
    meaning = update(
        name,
        {"i": rows, "j": columns, "k": k or 1},
        "k",
        {"C": (("i", "j"), f32), "A": (("i", "k"), f32), "B": (("k", "j"), f32)},
    )
    operands = (Operand("C", ANY, 1), Operand("A", ANY), Operand("B", ANY, 1))
    return Intrinsic(
        f"any.f32.{name}", meaning, operands, frozenset(), frozenset() if k else frozenset({f"{name}_k"})
    )


def dot(lanes: int = 8) -> Intrinsic:
    """C[lanes] += A[4] · B[lanes, 4]: u8 times s8 into s32."""
    name = f"dot_{lanes}x4"
    meaning = update(
        name,
        {"j": lanes, "q": 4},
        "q",
        {"C": (("j",), DType.I32), "A": (("q",), DType.U8), "B": (("j", "q"), DType.I8)},
    )
    operands = (Operand("C", ANY, 1), Operand("A", ANY, 1), Operand("B", ANY, 2))
    return Intrinsic(f"any.i32.{name}", meaning, operands, frozenset())


# ------------------------------------------------------------------------------------------------------ programs


def einsum(text: str, extents: dict[str, int], dtype: DType = DType.F32) -> Func:
    """`text` as numpy writes it, with two factors."""
    terms, result = text.split("->")
    over = [c for c in dict.fromkeys(terms.replace(",", "")) if c not in result]
    b = FuncBuilder("einsum")
    x, y = (
        b.param(n, [extents[c] for c in term], dtype) for n, term in zip("XY", terms.split(","), strict=True)
    )

    def product(*i: Expr) -> tuple[Expr, Expr]:
        at = dict(zip((*result, *over), i, strict=True))
        first, second = terms.split(",")
        return x[tuple(at[c] for c in first)], y[tuple(at[c] for c in second)]

    axes = [*result, *over]
    shape, depth = [extents[c] for c in result], [extents[c] for c in over]
    return b.finish(b.reduce("Z", shape, depth, product, axes=axes))


def conv(
    size: Sequence[int],
    kernel: Sequence[int],
    *,
    channels: tuple[int, int] = (3, 4),
    group: int = 1,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 0,
    inline: bool = False,
) -> Func:
    """A convolution over any number of axes; `inline` leaves the padding inside the sum."""
    inputs, outputs = channels[0] // group, channels[1] // group
    b = FuncBuilder("conv")
    x = b.param("X", (2, channels[0], *size), DType.F32)
    w = b.param("W", (channels[1], inputs, *kernel), DType.F32)
    rank = len(size)
    reach = [(k - 1) * dilation + 1 for k in kernel]
    out = [(n + 2 * pad - r) // stride + 1 for n, r in zip(size, reach, strict=True)]

    def padded(n: Expr, c: Expr, at: Sequence[Expr]) -> Expr:
        if not pad:
            return x[(n, c, *at)]
        inside = [logical_and(const(pad) <= p, p < s + pad) for p, s in zip(at, size, strict=True)]
        return select(logical_and(*inside), x[(n, c, *(p - pad for p in at))], const(0.0, DType.F32))

    source = None
    if pad and not inline:
        full = [s + 2 * pad for s in size]
        source = b.compute(
            "P", (2, channels[0], *full), lambda n, c, *at: padded(n, c, at), axes=["n", "c", *"dhw"[-rank:]]
        )

    def taps(*i: Expr) -> tuple[Expr, Expr]:
        n, g, o, place, c, k = i[0], i[1], i[2], i[3 : 3 + rank], i[3 + rank], i[4 + rank :]
        at = [p * stride + t * dilation for p, t in zip(place, k, strict=True)]
        channel = g * inputs + c
        value = padded(n, channel, at) if source is None else source[(n, channel, *at)]
        return value, w[(g * outputs + o, c, *k)]

    axes = ["n", "g", "o", *"dhw"[-rank:], "c", *"rst"[:rank]]
    return b.finish(b.reduce("Y", (2, group, outputs, *out), (inputs, *kernel), taps, axes=axes))


def block_of(func: Func, name: str) -> Block:
    return next(b for b in blocks(func.body) if b.name == name)
