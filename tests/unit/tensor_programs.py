"""Blocks to tensorize, and intrinsics that any machine has: their instructions are left to the code generator."""

from collections.abc import Sequence

from tilewright.families.tensor.mapping import Mapping
from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    Fma,
    Var,
    cast,
    const,
    select,
)
from tilewright.target.intrinsic import ANYWHERE, MEMORY, BodyLoop, Intrinsic, Operand, state
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, IterKind, LoopKind, blocks


def tile(rows: int, columns: int, k: int | None = None) -> Intrinsic:
    """C[rows, columns] += A[rows, k] · B[k, columns] in f32; any k unless it is given."""
    name = f"tile_{rows}x{columns}" + (f"x{k}" if k else "")
    c, a = Buffer("C", (rows, columns), DType.F32), Buffer("A", (rows, k or 1), DType.F32)
    b = Buffer("B", (k or 1, columns), DType.F32)
    i, j, n = Var("i"), Var("j"), Var("k")
    value = Fma(a[i, n], b[n, j], c[i, j])
    return Intrinsic(
        f"any.f32.{name}",
        state(name, (c, a, b), {i: rows, j: columns}, {n: k or 1}, c[i, j], value),
        (Operand("C", ANYWHERE, 1), Operand("A", MEMORY), Operand("B", MEMORY, 1)),
        frozenset(),
        frozenset() if k else frozenset({"k"}),
        (BodyLoop("k"), BodyLoop("i", LoopKind.UNROLLED), BodyLoop("j", LoopKind.VECTORIZED)),
    )


def dot(lanes: int = 8) -> Intrinsic:
    """C[lanes] += A[4] · B[lanes, 4]: u8 times s8 into s32."""
    c, a = Buffer("C", (lanes,), DType.I32), Buffer("A", (4,), DType.U8)
    b = Buffer("B", (lanes, 4), DType.I8)
    j, q = Var("j"), Var("q")
    value = c[j] + cast(DType.I32, a[q]) * cast(DType.I32, b[j, q])
    return Intrinsic(
        f"any.i32.dot_{lanes}x4",
        state("dot", (c, a, b), {j: lanes}, {q: 4}, c[j], value),
        (Operand("C", ANYWHERE, 1), Operand("A", MEMORY, 1), Operand("B", MEMORY, 2)),
        frozenset(),
        body=(BodyLoop("q", LoopKind.UNROLLED), BodyLoop("j", LoopKind.VECTORIZED)),
    )


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


def quantized(
    m: int,
    n: int,
    k: int,
    x_type: DType,
    w_type: DType,
    *,
    transposed: bool = False,
    zero_points: bool = False,
) -> Func:
    """Sums of products of narrow integers."""
    b = FuncBuilder("quantized")
    x, w = b.param("X", (m, k), x_type), b.param("W", (n, k), w_type)
    x_zero, w_zero = (b.param("XZ", (), x_type), b.param("WZ", (n,), w_type)) if zero_points else (None, None)

    def wide(e: Expr) -> Expr:
        return cast(DType.I32, e)

    def product(i: Expr, j: Expr, k: Expr) -> Expr:
        p, q = wide(x[i, k]), wide(w[j, k])
        if x_zero is not None and w_zero is not None:
            p, q = p - wide(x_zero[()]), q - wide(w_zero[j])
        return q * p if transposed else p * q

    return b.finish(b.reduce("Y", (m, n), (k,), product))


def same_order(mapping: Mapping, block: Block) -> bool:
    """Does the mapping keep the order in which the block adds?"""
    before = [it.var for it in block.iters if it.kind is IterKind.REDUCE and it.extent > 1]
    outside = [it.var for it in mapping.outside if it.var in before]
    inside = [it.var for g in mapping.groups for it in g.iters if it.var in before]
    return [*outside, *inside] == before


def block_of(func: Func, name: str) -> Block:
    return next(b for b in blocks(func.body) if b.name == name)
