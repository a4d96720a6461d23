"""Code generation: random expressions and programs mean natively, to the bit, what the interpreter says."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from native import TARGETS, arrays_of, check, check_same_bits, every_target, legal, program

from tilewright.codegen.builder import CodeRegion, TextBuilder
from tilewright.codegen.kernel import kernel_ir, parts, steps
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Bitcast,
    Buffer,
    Cast,
    Expr,
    Fma,
    Scope,
    Select,
    Unary,
    UnaryOp,
    Var,
    as_index,
    const,
    free_vars,
)
from tilewright.ir.rewrite import substitute
from tilewright.support.errors import InternalError
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import Alloc, For, If, LoopKind, Seq, Stmt, Store
from tilewright.tir.verify import verify_func

relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))

# --------------------------------------------------------------------------------------------------- expressions


ANY = [BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX]
INTEGERS = [BinaryOp.FLOORDIV, BinaryOp.MOD, BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR]
COMPARE = [BinaryOp.EQ, BinaryOp.NE, BinaryOp.LT, BinaryOp.LE]
ROUNDING = [UnaryOp.NEG, UnaryOp.ABS, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC]
N = 40
SAME_WIDTH = {DType.F32: DType.U32, DType.F64: DType.I64, DType.F16: DType.I16, DType.BF16: DType.U16}


@st.composite
def an_expr(draw: st.DrawFn, dtype: DType, index: Expr, depth: int = 3) -> Expr:
    """Something of type `dtype` over the arrays X_<dtype>, of which there are two rows."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        if draw(st.booleans()):
            return Buffer(f"X_{dtype}", (2, N), dtype)[draw(st.integers(0, 1)), index]
        if dtype is DType.BOOL:
            return const(draw(st.booleans()), dtype)
        if dtype.is_float:
            return const(
                draw(st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e-3, 3e4, float("inf"), float("nan")])), dtype
            )
        return const(draw(st.integers(-300, 300)), dtype)

    def part(t: DType = dtype) -> Expr:
        return draw(an_expr(t, index, depth - 1))

    other = draw(st.sampled_from([d for d in DType if d is not dtype]))
    match draw(st.integers(0, 7)):
        case 0:
            return Select(part(DType.BOOL), part(), part())
        case 1 if not other.is_float or dtype.is_float or dtype is DType.BOOL:
            return Cast(dtype, part(other))
        case 2 if dtype in SAME_WIDTH:
            return Bitcast(dtype, part(SAME_WIDTH[dtype]))
        case 3 if dtype is DType.BOOL and other is not DType.BOOL:
            return Binary(draw(st.sampled_from(COMPARE)), part(other), part(other))
        case _ if dtype is DType.BOOL:
            logic = [BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR, BinaryOp.MIN, BinaryOp.EQ]
            return Binary(draw(st.sampled_from(logic)), part(), part())
        case 4 if dtype.is_float:
            return Fma(part(), part(), part())
        case 5 if dtype.is_float or dtype.is_int:
            return Unary(
                draw(st.sampled_from([*ROUNDING, UnaryOp.SQRT] if dtype.is_float else ROUNDING)), part()
            )
        case 6 if dtype.is_int:
            shift = const(draw(st.integers(0, dtype.bits - 1)), dtype)
            return Binary(draw(st.sampled_from([BinaryOp.SHL, BinaryOp.SHR])), part(), shift)
        case _:
            ops = [*ANY, BinaryOp.DIV] if dtype.is_float else [*ANY, *INTEGERS]
            return Binary(draw(st.sampled_from(ops)), part(), part())


@st.composite
def expression_kernel(draw: st.DrawFn) -> Func:
    """One expression, computed one by one and in vectors."""
    dtype = draw(st.sampled_from(list(DType)))
    lanes = draw(st.sampled_from([1, 3, 4, 8, 20]))
    k, lane, i = Var("k"), Var("lane"), Var("i")
    y, z = Buffer("Y", (N,), dtype), Buffer("Z", (N,), dtype)
    value, at = draw(an_expr(dtype, i)), k * lanes + lane
    vector = For(lane, lanes, Store(y, (at,), substitute(value, {i: at})), LoopKind.VECTORIZED)
    body = Seq((For(k, N // lanes, vector), For(i, N, Store(z, (i,), value))))
    return Func("expression", (*(Buffer(f"X_{d}", (2, N), d) for d in DType), y, z), (), body, (y, z))


@settings(relaxed, max_examples=40)
@given(expression_kernel(), st.sampled_from(TARGETS))
def test_any_expression(func: Func, target: Target) -> None:
    note(print_func(func))
    verify_func(func, lowered=True)
    check_same_bits(legal(func, target), arrays_of(func), target)


# ----------------------------------------------------------------------------------------------------- programs


SIZE = 24


@st.composite
def a_place(draw: st.DrawFn, lanes: int, lane: Expr, outer: Var | None) -> Expr:
    """An index below SIZE that moves by some step with the lane, and perhaps with a loop outside."""
    step = draw(st.sampled_from([s for s in (1, 1, 1, 2, -1, 0) if abs(s) * (lanes - 1) < SIZE // 2]))
    reach = abs(step) * (lanes - 1)
    start = draw(st.integers(0, SIZE - 1 - reach - (0 if outer is None else 2))) + (reach if step < 0 else 0)
    place = lane * step + start
    return place + outer if outer is not None and draw(st.booleans()) else place


@st.composite
def a_value(
    draw: st.DrawFn, buffers: list[Buffer], lanes: int, lane: Expr, outer: Var | None, depth: int = 2
) -> Expr:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        b = draw(st.sampled_from(buffers))
        return b[draw(a_place(lanes, lane, None if b.scope is Scope.REGISTER else outer))]

    def part() -> Expr:
        return draw(a_value(buffers, lanes, lane, outer, depth - 1))

    match draw(st.integers(0, 3)):
        case 0:
            return Fma(part(), part(), part())
        case 1:
            limit = draw(st.integers(0, lanes))
            return Select(lane < limit, part(), part())
        case 2:
            return Select(part() < part(), part(), const(0.5, DType.F32))
        case _:
            return Binary(draw(st.sampled_from(ANY)), part(), part())


@st.composite
def a_stmt(draw: st.DrawFn, buffers: list[Buffer], names: list[str], outer: Var | None, depth: int) -> Stmt:
    """Stores in vectors, under conditions, in loops. Vectors store to elements of their own, and read no others."""
    kind = draw(st.integers(0, 5))
    if depth and kind == 0:
        k = Var(f"k{len(names)}")
        names.append(k.name)
        inner = [draw(a_stmt(buffers, names, k if outer is None else outer, depth - 1)) for _ in range(2)]
        return For(k, draw(st.integers(1, 3)), Seq(tuple(inner)))
    if depth and kind == 1:
        b = buffers[0]
        cond = b[draw(a_place(1, as_index(0), outer))] < draw(st.sampled_from([-0.5, 0.0, 0.5]))
        return If(cond, draw(a_stmt(buffers, names, outer, depth - 1)))
    lanes = draw(st.sampled_from([1, 2, 3, 4, 8]))
    lane = Var(f"l{len(names)}")
    names.append(lane.name)
    target = draw(st.sampled_from(buffers[1:]))
    others = [b for b in buffers if b is not target]
    at = draw(a_place(lanes, lane, None if target.scope is Scope.REGISTER else outer))
    value = draw(a_value(others, lanes, lane, outer))
    if draw(st.booleans()):  # an update in place
        value = Binary(BinaryOp.ADD, target[at], value)
    if lane not in free_vars(at):
        return substitute_stmt(Store(target, (at,), value), {lane: as_index(0)})
    body: Stmt = Store(target, (at,), value)
    if draw(st.booleans()):
        body = If(draw(a_value(others, lanes, lane, outer)) < 0.25, body)
    return For(lane, lanes, body, LoopKind.VECTORIZED)


@st.composite
def a_program(draw: st.DrawFn) -> Func:
    x, y = (Buffer(n, (SIZE,), DType.F32) for n in "XY")
    t, r = Buffer("T", (SIZE,), DType.F32, Scope.LOCAL), Buffer("R", (SIZE,), DType.F32, Scope.REGISTER)
    z = Buffer("Z", (2, SIZE), DType.F32)
    width = draw(st.sampled_from([4, 8]))
    fill, out = Var("fill"), Var("out")

    def vector(lane: Var, lanes: int, store: Store) -> Stmt:
        return For(lane, lanes, store, LoopKind.VECTORIZED)

    first = [
        vector(fill, width, Store(b, (fill + n,), x[fill + n]))
        for b in (t, r, y)
        for n in range(0, SIZE, width)
    ]
    names: list[str] = []
    body = [draw(a_stmt([x, y, t, r], names, None, 2)) for _ in range(draw(st.integers(1, 4)))]
    # All that was computed comes out.
    last = [
        vector(out, 8, Store(z, (as_index(row), out + n), b[out + n]))
        for row, b in enumerate((t, r))
        for n in range(0, SIZE, 8)
    ]
    return Func("random", (x, y, z), (), Alloc(t, Alloc(r, Seq((*first, *body, *last)))), (y, z))


@settings(relaxed, max_examples=25)
@given(a_program(), st.sampled_from(TARGETS))
def test_any_program(func: Func, target: Target) -> None:
    note(print_func(func))
    verify_func(func, lowered=True)
    check_same_bits(legal(func, target), arrays_of(func), target)


# ------------------------------------------------------------------------------------------------ the kernel's frame


def test_parts_of_a_parallel_loop_run_in_any_order() -> None:
    func = program("""
def f(X: f32[4, 8], Y: out(f32[4, 8])):
    for i in parallel(4):
        for j in vectorized(8):
            Y[i, j] = X[i, j] * f32(2)
""")
    assert parts(func) == 4
    check_same_bits(func, arrays_of(func))


@every_target
def test_a_parallel_loop_in_serial_ones_makes_parts_in_steps(target: Target) -> None:
    func = program("""
def f(Y: out(f32[3, 5, 4])):
    for s in range(3):
        for t in range(5):
            for i in parallel(4):
                Y[s, t, i] = cast(f32, s * 20 + t * 4 + i)
""")
    assert (parts(func), steps(func)) == (60, 15)
    np.testing.assert_array_equal(check(func, target)["Y"].ravel(), np.arange(60))


def test_too_many_steps_are_one_part() -> None:
    func = program("""
def f(Y: out(f32[5000, 4])):
    for s in range(5000):
        for i in parallel(4):
            Y[s, i] = f32(1)
""")
    assert (parts(func), steps(func)) == (1, 1)


def test_a_kernel_without_a_parallel_loop_is_one_part() -> None:
    func = program("""
def f(X: f32[4], Y: out(f32[4])):
    for i in range(4):
        for j in parallel(1):
            Y[i + j] = X[i + j]
""")
    assert parts(func) == 1
    check_same_bits(func, arrays_of(func))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("for i in unrolled(4):\n  Y[i] = X[i]", "unrolled loop i reached code generation"),
        (
            "for i in range(4):\n  with block('B'):\n   v = spatial(4, i)\n   Y[v] = X[v]",
            "block B reached code generation",
        ),
        ("for i in range(4):\n  Y[i] = exp(X[i])", "exp must be expanded before code generation"),
        (
            "for i in range(4):\n  Y[i] = pow(X[i], X[i])",
            "pow of f32 must be expanded before code generation",
        ),
        ("for i in range(4):\n  Y[i] = X[i] % X[i]", "mod of f32 must be expanded before code generation"),
        (
            "for i in range(4):\n  Y[i] = cast(f32, cast(bf16, X[i]))",
            "the cast from f32 to bf16 must be expanded",
        ),
        (
            'with alloc(f32[4], "register") as R:\n  for i in range(4):\n   R[i] = X[i]\n   Y[i] = R[i]',
            "register buffer R is indexed by a loop that is not unrolled",
        ),
        ("for i in vectorized(4):\n  Y[0] = X[i]", "every lane stores to the same element of Y"),
    ],
)
def test_what_the_passes_should_have_removed_is_refused(text: str, message: str) -> None:
    func = parse_func(f"@func\ndef f(X: f32[4], Y: out(f32[4])):\n {text}")
    with pytest.raises(InternalError, match=message):
        kernel_ir(func)


def test_sums_of_registers_are_not_remembered_across_stores() -> None:
    func = program("""
def f(X: f32[8], Y: out(f32[8]), Z: out(f32[8])):
    with alloc(f32[8], "register") as R:
        for i in vectorized(8):
            R[i] = X[i]
            Y[i] = R[i] * R[i]
            R[i] = R[i] + f32(1)
            Z[i] = R[i] * R[i]
""")
    done = check_same_bits(func, arrays_of(func, X=np.arange(8)))
    assert done[func.params[2]].tolist() == [(n + 1) ** 2 for n in range(8)]


def test_a_shared_value_is_computed_once() -> None:
    func = program("""
def f(X: f32[8], Y: out(f32[8])):
    for i in vectorized(8):
        Y[i] = sqrt(X[i]) * sqrt(X[i]) + sqrt(X[i])
""")
    assert kernel_ir(func).count("= call <8 x float> @llvm.sqrt") == 1


@pytest.mark.parametrize(
    ("index", "taken_out"), [("I[k // 2, {}]", 0), ("min(max(I[k // 2, {}] * 3, 0), 30)", 8)]
)
def test_only_indices_that_take_arithmetic_are_taken_out_of_vectors(index: str, taken_out: int) -> None:
    """However much the addresses of the indices themselves take: a load of one costs less than taking it out."""
    func = program(f"""
def f(X: f32[31], I: i64[4, 64], Y: out(f32[8, 64])):
    for k in range(8):
        for j in range(8):
            for i in vectorized(8):
                Y[k, j * 8 + i] = X[{index.format("(j * 3 + k) % 8 * 8 + i")}]
""")
    check_same_bits(func, arrays_of(func, I=np.arange(256) * 7 % 31))
    assert kernel_ir(func).count("extractelement <8 x i64>") == taken_out


@pytest.mark.parametrize("loop", ["vectorized", "range"])
def test_code_does_not_double_with_every_select(loop: str) -> None:
    """Both sides use a value that loads: under a mask for each side it would be computed twice, each time."""

    def size(depth: int) -> int:
        i, x = Var("i"), Buffer("X", (8,), DType.F32)
        flags, y = Buffer("F", (depth, 8), DType.BOOL), Buffer("Y", (8,), DType.F32)
        value: Expr = Select(x[i] < 0.0, x[i] * 2.0, const(1.0, DType.F32))
        for n in range(depth):
            value = Select(flags[n, i], value * 3.0, value + 1.0)
        func = Func("f", (x, flags, y), (), For(i, 8, Store(y, (i,), value), LoopKind(loop)), (y,))
        check_same_bits(func, arrays_of(func))
        return kernel_ir(func).count("\n")

    assert size(12) - size(8) == size(8) - size(4) > 0


def test_addresses_are_computed_in_the_loop_that_they_need() -> None:
    func = program("""
def f(X: f32[3, 5, 8], Y: out(f32[3, 5, 8])):
    for i in range(3):
        for k in range(5):
            for j in vectorized(8):
                Y[i, k, j] = X[i, k, j]
""")
    inner = kernel_ir(func).split("\nloop")[2]
    assert ", 40" not in inner and "mul nsw" in inner  # i·40 was added outside


def test_a_scalar_is_spread_over_lanes_once_a_block() -> None:
    func = program("""
def f(X: f32[2], Y: f32[2, 8], Z: out(f32[3, 8])):
    for n in range(2):
        for a in vectorized(8):
            Z[0, a] = X[n] * Y[0, a]
        for b in vectorized(8):
            Z[1, b] = X[n] * Y[1, b]
    for c in vectorized(8):
        Z[2, c] = X[1] * Y[0, c]
""")
    ir = kernel_ir(func)
    assert ir.count("shufflevector") == 2  # in the loop, and after it
    check_same_bits(func, arrays_of(func))


def test_sizes_are_read_once() -> None:
    """Stores between the loops could change them, for all that LLVM knows."""
    func = program("""
def f(X: f32[64], size__n: i64[1], Y: out(f32[64]), Z: out(f32[64])):
    for i in range(64):
        Y[i] = X[min(i, size__n[0])]
    for i in range(64):
        Z[i] = X[min(i, size__n[0] * 2)]
""")
    assert kernel_ir(func).count("load i64") == 1
    check_same_bits(func, arrays_of(func, X=np.arange(64), size__n=np.array([16])))


def test_a_head_computes_nothing_twice() -> None:
    builder = TextBuilder()
    builder.regions.append(CodeRegion(builder.place()))
    with builder.at(0):
        first, again = (builder.op("add i64 %part, 7", INDEX) for _ in range(2))
        reads = [builder.op("load i64, ptr %p, align 8", INDEX) for _ in range(2)]
    assert first == again and reads[0] != reads[1]
    assert builder.op("add i64 %part, 7", INDEX) != first  # a block that may come before
