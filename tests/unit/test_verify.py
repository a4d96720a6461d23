"""The verifier: one broken program per rule, and the line that its message quotes."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Bitcast,
    Buffer,
    Const,
    Expr,
    Fma,
    Scope,
    Select,
    Unary,
    UnaryOp,
    Var,
    as_index,
    const,
)
from tilewright.support.errors import InternalError
from tilewright.support.program import Branch, While
from tilewright.tir.func import Call, Constant, External, Func, Module, Program
from tilewright.tir.parser import parse_func
from tilewright.tir.rewrite import transform_stmt
from tilewright.tir.stmt import Alloc, Block, For, Iter, Seq, Stmt, Store
from tilewright.tir.verify import verify_func, verify_module

F32 = DType.F32
i, j = Var("i"), Var("j")
X, Y = Buffer("X", (8,), F32), Buffer("Y", (8,), F32)

GOOD = """\
@func
def f(X: f32[8, 8], Y: out(f32[8])):
    T = alloc(f32[8])
    for i in range(8):
        for k in range(8):
            with block("sum"):
                vi = spatial(8, i)
                vk = reduce(8, k)
                where(i + k < 20)
                with init():
                    T[vi] = f32(0.0)
                T[vi] = T[vi] + X[vi, vk]
    for j in parallel(8):
        with block("copy"):
            vj = spatial(8, j)
            Y[vj] = T[vj]
"""


def rejected(func: Func, message: str, line: str | None = None, *, lowered: bool = False) -> None:
    with pytest.raises(InternalError) as info:
        verify_func(func, lowered=lowered)
    text = str(info.value)
    assert message in text
    assert line is None or text.endswith(f"\n  at: {line}"), text


def changed(*changes: tuple[str, str]) -> Func:
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_func(text)


def test_the_good_program_is_accepted() -> None:
    verify_func(parse_func(GOOD))


# ------------------------------------------------------------------------------------------------------- buffers


def test_a_param_in_local_scope() -> None:
    local = Buffer("X", (8,), F32, Scope.LOCAL)
    rejected(Func("f", (local, Y), (), Store(Y, (as_index(0),), local[0]), (Y,)), "is in local scope")


def test_a_local_that_is_a_param() -> None:
    func = Func("f", (X, Y), (X,), Store(Y, (as_index(0),), X[0]), (Y,))
    rejected(func, "the param X: f32[8] is a local buffer too")
    rejected(replace(func, locals=(), body=Alloc(X, func.body)), "is a local buffer too")


def test_two_buffers_of_one_name() -> None:
    other = Buffer("X", (4,), F32)
    rejected(Func("f", (X, Y), (other,), Store(Y, (as_index(0),), X[0]), (Y,)), "2 buffers named 'X'")


def test_a_buffer_of_nobody() -> None:
    stray = Buffer("Z", (8,), F32)
    func = Func("f", (X, Y), (), Store(Y, (as_index(0),), stray[0]), (Y,))
    rejected(func, "Z: f32[8] is no param and no local buffer in scope here", "Y[0] = Z[0]")


def test_a_buffer_used_outside_its_allocation() -> None:
    t = Buffer("T", (8,), F32, Scope.LOCAL)
    inside = Alloc(t, Store(t, (as_index(0),), X[0]))
    func = Func("f", (X, Y), (), Seq((inside, Store(Y, (as_index(0),), t[0]))), (Y,))
    rejected(func, "no local buffer in scope", "Y[0] = T[0]")


def test_outputs_that_are_not_what_is_written() -> None:
    func = parse_func(GOOD)
    rejected(replace(func, outputs=()), "outputs are [], but the body writes [Y: f32[8]]")
    rejected(replace(func, outputs=func.params), "outputs are [X: f32[8, 8], Y: f32[8]]")
    rejected(replace(func, outputs=func.outputs * 2), "outputs are")


def test_an_access_of_the_wrong_rank() -> None:
    func = Func("f", (X, Y), (), Store(Y, (as_index(0),), X[0, 1]), (Y,))
    rejected(func, "X: f32[8] is accessed with 2 indices", "Y[0] = X[0, 1]")
    func = Func("f", (X, Y), (), Store(Y, (), X[0]), (Y,))
    rejected(func, "Y: f32[8] is accessed with 0 indices")


def test_an_index_of_the_wrong_type() -> None:
    func = Func("f", (X, Y), (), Store(Y, (const(0, DType.I32),), X[0]), (Y,))
    rejected(func, "an index of Y: f32[8] is i32, not i64")


def test_a_value_of_the_wrong_type() -> None:
    func = Func("f", (X, Y), (), Store(Y, (as_index(0),), as_index(3)), (Y,))
    rejected(func, "the value stored to Y: f32[8] is i64, not f32", "Y[0] = 3")


@pytest.mark.parametrize("index", ["vj + 1", "vj - 1", "vj * 2", "7 - vj * 2", "8"])
def test_an_access_out_of_bounds(index: str) -> None:
    rejected(changed(("= T[vj]", f"= T[{index}]")), "reads T: f32[8] at", f"Y[vj] = T[{index}]")


def test_a_store_out_of_bounds() -> None:
    rejected(changed(("Y[vj]", "Y[vj + 1]")), "writes Y: f32[8] at vj + 1, which goes from 1 to 8")


@pytest.mark.parametrize("value", ["select(vj < 7, T[vj + 1], T[0])", "T[(vj + 1) % 8]", "T[min(vj + 1, 7)]"])
def test_guarded_and_wrapped_accesses_are_fine(value: str) -> None:
    verify_func(changed(("= T[vj]", f"= {value}")))


# -------------------------------------------------------------------------------------------------- names, scope


def test_two_loops_of_one_name() -> None:
    store = For(i, 8, Store(Y, (i,), X[i]))
    func = Func("f", (X, Y), (), Seq((store, store)), (Y,))
    rejected(func, "2 loop or iterators named 'i'")
    verify_func(func, lowered=True)  # unrolling makes copies
    nested = Func("f", (X, Y), (), For(i, 8, store), (Y,))
    rejected(nested, "i is bound inside its own loop", "for i in range(8):", lowered=True)


def test_two_blocks_of_one_name() -> None:
    rejected(changed(('"copy"', '"sum"')), "2 blocks named 'sum'")


def test_a_variable_that_is_not_bound() -> None:
    func = Func("f", (X, Y), (), Store(Y, (i,), X[i]), (Y,))
    rejected(func, "i is not visible here", "Y[i] = X[i]")


def test_a_block_body_that_uses_a_loop() -> None:
    rejected(changed(("= T[vj]", "= T[j]")), "j is not visible here in block copy", "Y[vj] = T[j]")


def test_a_nested_block_sees_iterators_and_not_loops() -> None:
    text = """\
@func
def f(X: f32[8], Y: out(f32[8])):
    for i in range(4):
        with block("outer"):
            v = spatial(4, i)
            for j in range(2):
                with block("inner"):
                    w = spatial(2, j)
                    Y[v * 2 + w] = X[v * 2 + w]
"""
    verify_func(parse_func(text))
    rejected(parse_func(text.replace("X[v * 2 + w]", "X[v * 2 + j]")), "j is not visible here in block inner")
    rejected(
        parse_func(text.replace("spatial(2, j)", "spatial(2, j + i)")), "i is not visible here in block outer"
    )


# -------------------------------------------------------------------------------------------------------- blocks


def test_a_binding_is_missing() -> None:
    func = parse_func(GOOD)

    def cut(s: Stmt) -> Stmt | None:
        return replace(s, bindings=s.bindings[:-1]) if isinstance(s, Block) else None

    broken = func.with_body(transform_stmt(func.body, cut))
    rejected(broken, "2 iterators have 1 bindings", 'with block("sum"):')


def test_a_binding_that_reads_memory() -> None:
    index = Buffer("I", (8,), INDEX)
    v = Var("v")
    block = Block("b", (Iter(v, 8),), (index[i],), Store(Y, (v,), X[v]))
    rejected(Func("f", (X, index, Y), (), For(i, 8, block), (Y,)), "I[i] reads memory", 'with block("b"):')


def test_bindings_and_predicates_of_the_wrong_type() -> None:
    v = Var("v")
    block = Block("b", (Iter(v, 8),), (i,), Store(Y, (v,), X[v]))
    wrong = replace(block, bindings=(const(0, DType.I32),))
    rejected(Func("f", (X, Y), (), For(i, 8, wrong), (Y,)), "a binding is i32, not i64")
    wrong = replace(block, predicate=i)
    rejected(Func("f", (X, Y), (), For(i, 8, wrong), (Y,)), "the predicate is i64, not bool")


def test_init_without_reduction() -> None:
    rejected(
        changed(("reduce(8, k)", "spatial(8, k)")),
        "without reduce iterators has an init",
        'with block("sum"):',
    )


def test_init_that_mentions_a_reduce_iterator() -> None:
    rejected(changed(("= f32(0.0)", "= X[0, vk]")), "the init mentions a reduce iterator in X[0, vk]")


def test_a_reduction_indexed_by_its_reduce_iterator() -> None:
    func = changed(("T[vi] = T[vi] + X[vi, vk]", "T[vk] = X[vi, vk]"))
    rejected(func, "a reduction stores to elements that its iterator vk chooses", "T[vk] = X[vi, vk]")


# --------------------------------------------------------------------------------------------------------- loops


def test_a_negative_extent() -> None:
    func = Func("f", (X, Y), (), For(i, -1, Store(Y, (as_index(0),), X[0])), (Y,))
    rejected(func, "non-negative number", "for i in range(-1):")


def test_a_loop_over_something_else_than_indices() -> None:
    func = Func("f", (X, Y), (), For(Var("x", F32), 3, Store(Y, (as_index(0),), X[0])), (Y,))
    rejected(func, "non-negative number of indices")


def test_a_parallel_loop_inside_a_vectorized_one() -> None:
    func = changed(("i in range", "i in vectorized"), ("k in range", "k in parallel"))
    rejected(func, "a parallel loop is inside a vectorized one", "for k in parallel(8):")


@pytest.mark.parametrize("kind", ["parallel", "vectorized"])
def test_iterations_that_race(kind: str) -> None:
    func = changed(("in parallel", f"in {kind}"), ("spatial(8, j)", "spatial(8, 3)"))
    rejected(func, f"all iterations of the {kind} loop j store to the same elements", "Y[vj] = T[vj]")


# --------------------------------------------------------------------------------------------------------- types


x, c, n = (Buffer(name, (1,), dtype)[0] for name, dtype in (("x", F32), ("c", DType.BOOL), ("n", INDEX)))


@pytest.mark.parametrize(
    ("e", "message"),
    [
        (Unary(UnaryOp.NOT, x), "not of f32"),
        (Unary(UnaryOp.EXP, n), "exp of i64"),
        (Unary(UnaryOp.NEG, c), "neg of bool"),
        (Binary(BinaryOp.DIV, n, n), "div of i64; integers have floordiv"),
        (Binary(BinaryOp.SHL, x, x), "shl of f32"),
        (Binary(BinaryOp.AND, x, x), "and of f32"),
        (Fma(x, x, n), "fma of f32, f32 and i64"),
        (Fma(n, n, n), "fma of i64"),
        (Select(n, x, x), "select on i64"),
        (Bitcast(DType.F64, x), "bitcast from f32 to f64"),
        (Const(DType.U8, 300), "300 is not a value of u8"),
        (Const(F32, 0.1), "0.1 is not a value of f32"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_operands_of_the_wrong_type(e: Expr, message: str) -> None:
    out = Buffer("out", (1,), e.dtype)
    params = (*(load.buffer for load in (x, c, n)), out)
    rejected(Func("f", params, (), Store(out, (as_index(0),), e), (out,)), message)


def test_a_condition_that_is_no_bool() -> None:
    text = "@func\ndef f(Y: out(f32[8])):\n    if 3:\n        Y[0] = 1.0\n"
    rejected(parse_func(text), "the condition is i64, not bool", "if 3:")


# ------------------------------------------------------------------------------------------------------- lowered


def test_a_block_in_lowered_form() -> None:
    rejected(parse_func(GOOD), "a block is left in lowered form", 'with block("sum"):', lowered=True)


@pytest.mark.parametrize(("kind", "is_fine"), [("range", False), ("unrolled", True), ("vectorized", True)])
def test_registers_are_indexed_by_what_becomes_constant(kind: str, is_fine: bool) -> None:
    func = parse_func(f"""\
@func
def f(X: f32[8], Y: out(f32[8])):
    with alloc(f32[8], "register") as acc:
        for i in {kind}(8):
            acc[i] = X[i]
        Y[0] = acc[0]
""")
    if is_fine:
        verify_func(func, lowered=True)
    else:
        rejected(func, "the register acc is indexed by what is no constant", "acc[i] = X[i]", lowered=True)
        verify_func(func)


# ------------------------------------------------------------------------------------------------------- modules

FLAG = Buffer("flag", (1,), DType.BOOL)
IN, W, OUT = (Buffer(name, (8,), F32) for name in ("In", "W", "Out"))


def _module(program: Program | None = None) -> Module:
    func = Func("f", (X, Y), (), For(i, 8, Store(Y, (i,), X[i])), (Y,))
    constants = (Constant(W, np.zeros(8, np.float32)),)
    return Module((func,), program or (Call("f", (IN, OUT)),), (IN,), (OUT,), constants, (FLAG,))


def module_rejected(module: Module, message: str) -> None:
    with pytest.raises(InternalError) as info:
        verify_module(module)
    assert message in str(info.value)


def test_a_good_module_is_accepted() -> None:
    verify_module(_module())
    call = Call("f", (W, OUT))
    verify_module(_module((call, While(FLAG, (Branch(FLAG, (call,), ()),)))))


def test_names_that_two_functions_share() -> None:
    m = _module()
    (f,) = m.funcs
    module_rejected(replace(m, funcs=(f, f)), "the module has 2 functions named 'f'")
    module_rejected(replace(m, funcs=(f, replace(f, name="g"))), "2 loop or iterators named 'i'")
    verify_module(replace(m, funcs=(f, replace(f, name="g"))), lowered=True)
    store = Store(Y, (as_index(0),), const(0.0, F32))
    g, h = (Func(name, (Y,), (), Block("same", (), (), store), (Y,)) for name in "gh")
    module_rejected(replace(m, funcs=(f, g, h)), "2 blocks named 'same'")


def test_shared_buffers_of_one_name() -> None:
    m = _module()
    module_rejected(replace(m, temps=(FLAG, Buffer("In", (4,), F32))), "2 buffers named 'In'")


def test_a_call_of_nothing() -> None:
    module_rejected(_module((Call("g", (IN, OUT)),)), "the program calls g, which does not exist")


def test_a_call_with_other_types() -> None:
    module_rejected(_module((Call("f", (IN, FLAG)),)), "is called with")
    module_rejected(_module((Call("f", (IN,)),)), "is called with")


def test_a_call_with_a_buffer_of_nobody() -> None:
    module_rejected(_module((Call("f", (IN, Buffer("Z", (8,), F32))),)), "which the module does not own")


def test_a_call_that_writes_an_input_or_constant() -> None:
    module_rejected(_module((Call("f", (W, IN)),)), "f is called to write In")
    module_rejected(_module((External("e", (IN,), (W,)),)), "external e is called to write W")


def test_a_condition_that_is_no_bool_buffer() -> None:
    module_rejected(_module((While(OUT, ()),)), "the program decides on Out")
    module_rejected(_module((Branch(IN, (), ()),)), "the program decides on In")


def test_a_constant_of_another_type() -> None:
    m = _module()
    module_rejected(
        replace(m, constants=(Constant(W, np.zeros(8)),)), "the constant W: f32[8] has a value of float64"
    )
