"""Text: whatever is printed reads back as the same program, and bad text is answered with line and caret."""

import math
import struct
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    COMPARISONS,
    FALSE,
    TRUE,
    Binary,
    BinaryOp,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Scope,
    Select,
    Unary,
    UnaryOp,
    Var,
    as_index,
    const,
    walk,
)
from tilewright.support.errors import UserError
from tilewright.support.program import Branch, While
from tilewright.tir.analysis.accesses import reads, writes
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func, same_module, same_stmt
from tilewright.tir.func import Call, Constant, External, Func, Module
from tilewright.tir.parser import parse_expr, parse_func, parse_module
from tilewright.tir.printer import print_expr, print_func, print_head, print_module, print_stmt
from tilewright.tir.stmt import Alloc, Block, For, If, Iter, IterKind, LoopKind, Seq, Stmt, Store, blocks

F32 = DType.F32
Sound = Callable[[Func], Func]
i, j = Var("i"), Var("j")
A = Buffer("A", (8, 8), F32)
S = Buffer("S", (), F32)


def roundtrip(e: Expr, *names: Var | Buffer) -> str:
    text = print_expr(e)
    assert parse_expr(text, names) is e, text
    return text


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (i * 3 + j, "i * 3 + j"),
        (i * (j + 1), "i * (j + 1)"),
        (i - (j - 1), "i - (j - 1)"),
        (i - j - 1, "i - j - 1"),
        ((i + j) // 4 % 3, "(i + j) // 4 % 3"),
        (i // (j % 3), "i // (j % 3)"),
        (Const(INDEX, -3), "-3"),
        (i * -3, "i * -3"),
        (Unary(UnaryOp.NEG, Const(INDEX, 3)), "neg(3)"),
        (-(i + j) * i, "-(i + j) * i"),
        (Unary(UnaryOp.NEG, -i), "--i"),
        (Binary(BinaryOp.AND, i < 3, j <= 4), "i < 3 and j <= 4"),
        (Binary(BinaryOp.AND, i < 3, Binary(BinaryOp.OR, j < 1, i < 2)), "i < 3 and (j < 1 or i < 2)"),
        (Binary(BinaryOp.AND, i < 3, Binary(BinaryOp.AND, j < 1, i < 2)), "i < 3 and (j < 1 and i < 2)"),
        (Binary(BinaryOp.EQ, i < 3, j < 3), "(i < 3) == (j < 3)"),
        (Unary(UnaryOp.NOT, i < 3), "not i < 3"),
        (Binary(BinaryOp.XOR, i < 3, Unary(UnaryOp.NOT, j < 3)), "(i < 3) ^ (not j < 3)"),
        (Binary(BinaryOp.OR, i, Binary(BinaryOp.AND, j, Binary(BinaryOp.SHL, i, j))), "i | j & i << j"),
        (Binary(BinaryOp.MIN, i, j), "min(i, j)"),
        (Binary(BinaryOp.ADD, Const(INDEX, 1), Const(INDEX, 2)), "1 + 2"),
        (A[i, j] + 1.0, "A[i, j] + f32(1.0)"),
        (S[()], "S[()]"),
        (A[i // 8, i % 8], "A[i // 8, i % 8]"),
        (Fma(A[i, 0], S[()], const(0.1, F32)), "fma(A[i, 0], S[()], f32(0.1))"),
        (Cast(F32, const(3, DType.I32)), "cast(f32, i32(3))"),
        (Bitcast(DType.U32, const(-1, F32)), "bitcast(u32, f32(-1.0))"),
        (Select(TRUE, FALSE, TRUE), "select(True, False, True)"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_expression(e: Expr, text: str) -> None:
    assert roundtrip(e, i, j, A, S) == text


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float], ids=str)
def test_floats_keep_their_bits(dtype: DType) -> None:
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 0.1, -1 / 3, 1e-45, 5e-324, 3.4028235e38, 65504.0]
    for value in special:
        roundtrip(const(value, dtype))
    odd_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8_1234_0000_0000))[0]
    roundtrip(Const(dtype, odd_nan))
    rng = np.random.default_rng(0)
    for bits in rng.integers(0, 1 << 64, 300, np.uint64):
        with np.errstate(all="ignore"):
            roundtrip(const(float(bits.view(np.float64).astype(np.float32)), dtype))
            roundtrip(const(float(bits.view(np.float64)), DType.F64))


def test_integers_keep_their_type() -> None:
    for dtype in DType:
        if dtype.is_int:
            info = np.iinfo(dtype.numpy)
            for v in (info.min, info.max, 0, 7):
                roundtrip(const(int(v), dtype))


@cache
def _exprs(dtype: DType, depth: int) -> st.SearchStrategy[Expr]:
    leaves: list[Expr] = [Var(f"v_{dtype.value}", dtype), Buffer(f"b_{dtype.value}", (4,), dtype)[1]]
    if dtype is DType.BOOL:
        literal = st.sampled_from([TRUE, FALSE])
    elif dtype.is_float:
        literal = st.floats(width=16).map(lambda v: const(v, dtype))
    else:
        literal = st.integers(0, 100).map(lambda v: const(v, dtype))
    leaf = st.one_of(st.sampled_from(leaves), literal)
    if depth == 0:
        return leaf
    sub = _exprs(dtype, depth - 1)
    some = [leaf, st.builds(Select, _exprs(DType.BOOL, 0), sub, sub)]
    if dtype is DType.BOOL:
        ops = [BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR, BinaryOp.EQ, BinaryOp.NE]
        some.append(st.builds(Unary, st.just(UnaryOp.NOT), sub))
        for other in (INDEX, F32):
            operand = _exprs(other, depth - 1)
            some.append(st.builds(Binary, st.sampled_from(sorted(COMPARISONS, key=str)), operand, operand))
    elif dtype.is_float:
        ops = [
            BinaryOp.ADD,
            BinaryOp.SUB,
            BinaryOp.MUL,
            BinaryOp.DIV,
            BinaryOp.MAX,
            BinaryOp.POW,
            BinaryOp.MOD,
        ]
        functions = [op for op in UnaryOp if op is not UnaryOp.NOT]
        some.append(st.builds(Unary, st.sampled_from(functions), sub))
        some.append(st.builds(Fma, sub, sub, sub))
        some.append(st.builds(Cast, st.just(dtype), _exprs(INDEX, depth - 1)))
    else:
        ops = [o for o in BinaryOp if o not in COMPARISONS and o is not BinaryOp.DIV]
        some.append(st.builds(Unary, st.sampled_from([UnaryOp.NEG, UnaryOp.ABS]), sub))
        some.append(
            st.builds(lambda e, d=dtype: Load(Buffer(f"b_{d.value}", (4,), d), (e,)), _exprs(INDEX, 0))
        )
    some.append(st.builds(Binary, st.sampled_from(ops), sub, sub))
    return st.one_of(some)


@given(st.sampled_from([DType.BOOL, INDEX, F32, DType.I32, DType.F64]).flatmap(lambda d: _exprs(d, 3)))
@settings(max_examples=100, deadline=None)
def test_any_expression_reads_back(e: Expr) -> None:
    names: dict[str, Var | Buffer] = {}
    for d in DType:
        names[f"v_{d.value}"] = Var(f"v_{d.value}", d)
        names[f"b_{d.value}"] = Buffer(f"b_{d.value}", (4,), d)
    text = print_expr(e)
    assert parse_expr(text, names) is e, text


def test_the_text_of_a_dag_is_as_long_as_the_dag() -> None:
    x: Expr = A[i, j]
    for _ in range(100):
        x = Fma(x, x, x)
    text = roundtrip(x, A, i, j)
    assert len(text.splitlines()) == 100
    deep: Expr = A[i, j]
    for n in range(500):  # nothing is shared, but Python would not take so many brackets
        deep = Unary(UnaryOp.EXP, deep + float(n))
    roundtrip(deep, A, i, j)


def test_shared_parts_are_named_before_their_store(sound: Sound) -> None:
    b = FuncBuilder("gelu")
    x = b.param("X", (4,), F32)

    def gelu(i: Var) -> Expr:
        t = x[i] * x[i]
        p = Fma(t, const(0.044715, F32), const(1.0, F32)) * x[i]
        return p * Unary(UnaryOp.TANH, p) + t

    text = print_func(sound(b.finish(b.compute("Y", (4,), gelu))))
    assert "t0 = X[Y_vi] * X[Y_vi]\n" in text and "t1 = fma(t0, f32(0.044715), f32(1.0)) * X[Y_vi]\n" in text
    assert "Y[Y_vi] = t1 * tanh(t1) + t0\n" in text


def test_every_statement(sound: Sound) -> None:
    acc = Buffer("acc", (4,), F32, Scope.REGISTER)
    tmp, out = Buffer("tmp", (8, 8), F32), Buffer("out_", (8, 8), F32)
    v, w = Var("v"), Var("w")
    kinds: Stmt = Seq(())
    grid: Stmt = Seq(())
    for n, kind in enumerate(reversed([k for k in LoopKind if not k.is_thread_axis])):
        kinds = For(Var(f"l{n}"), 2, kinds, kind)
    for kind in (k for k in LoopKind if k.is_thread_axis):
        grid = For(Var(f"on_{kind.value}"), 2, grid, kind)
    block = Block(
        "some block",
        (Iter(v, 8), Iter(w, 8, IterKind.REDUCE)),
        (i, j),
        Store(tmp, (v, as_index(0)), tmp[v, 0] + A[v, w]),
        Store(tmp, (v, as_index(0)), const(0.0, F32)),
        i + j < 7,
    )
    nest = For(i, 8, For(j, 8, block))
    cond = If(Binary(BinaryOp.LT, tmp[0, 0], S[()]), Store(out, (as_index(1), as_index(2)), S[()]))
    alloc = Alloc(acc, Seq((Store(acc, (as_index(0),), S[()]), Store(out, (as_index(0),) * 2, acc[0]))))
    body = Seq((kinds, grid, Seq((nest, cond)), alloc))
    func = sound(Func("every", (A, S, out), (tmp,), body, (out,)))
    text = print_func(func)
    for line in (
        "def every(A: f32[8, 8], S: f32[()], out_: out(f32[8, 8])):",
        "    tmp = alloc(f32[8, 8])",
        "    for l3 in range(2):",
        "        for l2 in parallel(2):",
        "            for l1 in vectorized(2):",
        "                for l0 in unrolled(2):",
        "                    pass",
        "    for on_vthread in vthread(2):",
        '            with block("some block"):',
        "                v = spatial(8, i)",
        "                w = reduce(8, j)",
        "                where(i + j < 7)",
        "                reads(A[v, w], tmp[v, 0])",
        "                writes(tmp[v, 0])",
        "    if tmp[0, 0] < S[()]:",
        '    with alloc(f32[4], "register") as acc:',
    ):
        assert line in text.splitlines(), text
    (found,) = blocks(func.body)
    assert reads(found) == (A[v, w], tmp[v, 0]) and writes(found) == (tmp[v, 0],)
    assert print_head(block) == 'with block("some block"):'
    assert print_stmt(Seq(())) == "pass"


def test_any_name_has_a_stand_in() -> None:
    x = Buffer("input.1", (4,), F32)
    exp, t0, i_buffer = (Buffer(n, (4,), F32) for n in ("exp", "t0", "i"))
    n = Var("/layer/for")
    shared = Unary(UnaryOp.EXP, x[n])
    body = Seq(
        (
            For(n, 4, Store(exp, (n,), shared + shared)),
            For(i, 4, Store(i_buffer, (i,), exp[i] + t0[i])),
        )
    )
    func = Func("a function!", (x, exp, t0, i_buffer), (), body, (exp, i_buffer))
    text = print_func(func)
    assert same_func(parse_func(text), func), text
    assert "t1 = exp(input_1_0[" in text


def test_outputs_in_another_order(sound: Sound) -> None:
    x, y = Buffer("x", (1,), F32), Buffer("y", (1,), F32)
    zero = (as_index(0),)
    body = Seq((Store(x, zero, const(1.0, F32)), Store(y, zero, const(2.0, F32))))
    func = sound(Func("f", (x, y), (), body, (y, x)))
    assert print_func(func).endswith("    return y, x\n")


def test_comparison_of_programs_sees_every_difference() -> None:
    store = Store(A, (i, j), const(0.0, F32))
    nest = For(i, 8, For(j, 8, store))
    assert same_stmt(nest, For(i, 8, Seq((Seq((For(j, 8, store),)),))))
    assert not same_stmt(nest, For(i, 8, For(j, 8, store, LoopKind.VECTORIZED)))
    assert not same_stmt(nest, For(i, 8, For(j, 8, Store(A, (i, j), const(-0.0, F32)))))
    func = Func("f", (A,), (), nest, (A,))
    assert not same_func(func, Func("g", (A,), (), nest, (A,)))
    assert not same_func(func, Func("f", (A,), (), nest, ()))


# ------------------------------------------------------------------------------------------------------- modules


def _module() -> tuple[Module, np.ndarray]:
    x, w, y = (Buffer(n, (4,), F32) for n in ("x.1", "w", "y"))
    flag = Buffer("flag", (1,), DType.BOOL)
    b = FuncBuilder("add")
    p, q = b.param("p", (4,), F32), b.param("q", (4,), F32)
    add = b.finish(b.compute("r", (4,), lambda i: p[i] + q[i]))
    program = (
        External("is_small", (x,), (flag,)),
        Branch(flag, (Call("add", (x, w, y)),), ()),
        While(flag, (Call("add", (y, w, y)), External("is_small", (y,), (flag,)))),
        Branch(flag, (), (Call("add", (y, y, y)),)),
    )
    value = np.arange(4, dtype=np.float32)
    return Module((add,), program, (x,), (y, w), (Constant(w, value),), (flag,)), value


def test_a_module_reads_back() -> None:
    module, value = _module()
    text = print_module(module)
    assert same_module(parse_module(text, {"w": value}), module), text
    assert 'external("is_small", inputs=[x_1_0], outputs=[flag])' in text
    with pytest.raises(UserError, match="not the one that the text is about"):
        parse_module(text, {"w": value + 1})
    with pytest.raises(UserError, match="no value is given for the constant 'w'"):
        parse_module(text)
    other = Module(
        module.funcs, module.program, module.inputs, module.outputs[::-1], module.constants, module.temps
    )
    assert not same_module(module, other)


# -------------------------------------------------------------------------------------------------------- errors

GOOD = """\
@func
def f(A: f32[8, 8], B: out(f32[8])):
    for i in range(8):
        B[i] = A[i, 0] * 2
"""


def test_people_may_leave_types_to_the_parser() -> None:
    func = parse_func(GOOD)
    b = Buffer("B", (8,), F32)
    assert same_stmt(func.body, For(i, 8, Store(b, (i,), A[i, 0] * 2.0)))
    assert parse_expr("A[i, j] > 0.5", [A, i, j]) is (const(0.5, F32) < A[i, j])
    assert parse_expr("i >= 3", [i]) is (as_index(3) <= i)


@pytest.mark.parametrize(
    ("old", "new", "message", "caret"),
    [
        ("range(8):", "range(8", "not Python syntax", None),
        ("A[i, 0]", "C[i, 0]", "nothing is called 'C' here", "C"),
        ("A[i, 0]", "A[i]", "A: f32[8, 8] has 2 dimensions, and 1 indices are given", "A[i]"),
        ("A[i, 0] * 2", "A[i, 0] + i", "add of f32 and i64", "A[i, 0] + i"),
        ("A[i, 0] * 2", "A", "A is a buffer", "A"),
        ("range(8)", "across(8)", "not a statement of TIR", "for i in across(8):"),
        ("A[i, 0] * 2", "ex(A[i, 0])", "no function 'ex'\n", "ex(A[i, 0])"),
        ("A[i, 0] * 2", "fma(A[i, 0])", "fma does not take these arguments", "fma(A[i, 0])"),
        ("A[i, 0] * 2", "f32(i)", "not a literal of f32", "i"),
        ("A[i, 0] * 2", "select(0 < i < 3, 1.0, A[i, i])", "comparisons do not chain", "0 < i < 3"),
        ("A[i, 0] * 2", "cast(f32, 2.5)", "the type of 2.5 is not clear", "2.5"),
        ("f32[8, 8]", "float[8, 8]", "a type is expected", "float[8, 8]"),
        ("f32[8, 8]", "f32[n, 8]", "an integer is expected", "n"),
        ("B[i]", "i[i]", "a buffer is expected", "i"),
        ("A[i, 0] * 2", "[i]", "not an expression of TIR", "[i]"),
    ],
    ids=lambda v: v if isinstance(v, str) and " " not in v else "",
)
def test_bad_text_is_answered_with_line_and_caret(
    old: str, new: str, message: str, caret: str | None
) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as info:
        parse_func(GOOD.replace(old, new))
    text = str(info.value)
    assert message.strip() in text
    at = next(n for n, line in enumerate(text.splitlines()) if "  at: line " in line)
    source, below = text.splitlines()[at : at + 2]
    if caret is not None:
        marked = source[below.index("^") : below.rindex("^") + 1]
        assert marked == caret, text


def test_near_names_are_proposed() -> None:
    with pytest.raises(UserError, match=r"did you mean C_vi"):
        parse_expr("C_iv + 1", [Var("C_vi")])


def test_modules_and_functions_are_told_apart() -> None:
    with pytest.raises(UserError, match="one function is expected"):
        parse_func("x = 3")
    with pytest.raises(UserError, match="@module function is missing"):
        parse_module(GOOD)
    with pytest.raises(UserError, match="no function is called 'g'"):
        parse_module(GOOD + "@module\ndef main(A: f32[8, 8], B: out(f32[8])):\n    g(A, B)\n    return B\n")
    with pytest.raises(UserError, match="f takes 2 buffers, not 1"):
        parse_module(GOOD + "@module\ndef main(A: f32[8, 8], B: out(f32[8])):\n    f(A)\n    return B\n")
    with pytest.raises(UserError, match="without `return`"):
        parse_module(GOOD + "@module\ndef main(A: f32[8, 8], B: out(f32[8])):\n    f(A, B)\n")


def test_deep_and_shared_programs_print_quickly() -> None:
    x: Expr = A[i, j]
    for _ in range(300):
        x = Select(x < 0.0, x * x, x + x)
    assert len(list(walk(x))) < 2000 and len(print_expr(x)) < 100_000
