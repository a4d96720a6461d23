"""The interpreter: every statement, module programs, and errors that say what went wrong."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    Buffer,
    Const,
    Expr,
    Fma,
    Scope,
    Select,
    Var,
    as_index,
    const,
    equal,
)
from tilewright.support.errors import InternalError, UserError
from tilewright.support.program import Branch, While
from tilewright.tir.analysis.independent_loops import independent_loops
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Call, Constant, External, Func, Module, single
from tilewright.tir.interp import interpret_func, interpret_module, run_func
from tilewright.tir.stmt import Alloc, Block, For, If, Iter, IterKind, LoopKind, Seq, Stmt, Store, loops, seq

F32 = DType.F32
i, j, k = (Var(n) for n in "ijk")
X, Y = Buffer("X", (8,), F32), Buffer("Y", (8,), F32)


def run(body: Stmt, x: Sequence[float] | None = None) -> np.ndarray:
    """Y after `body`, which may read X; Y starts as zeros."""
    y = np.zeros(8, np.float32)
    data = np.arange(8) if x is None else np.asarray(x)
    interpret_func(Func("f", (X, Y), (), body, (Y,)), {X: data.astype(np.float32), Y: y})
    return y


def loop(var: Var, extent: int, *body: Stmt, kind: LoopKind = LoopKind.SERIAL) -> Stmt:
    return For(var, extent, seq(*body), kind)


def test_loops_of_every_kind() -> None:
    for kind in LoopKind:
        assert run(loop(i, 8, Store(Y, (i,), X[i] * 2.0), kind=kind)).tolist() == [2.0 * n for n in range(8)]
    assert run(loop(i, 0, Store(Y, (i,), X[i]))).tolist() == [0.0] * 8


def test_a_serial_recurrence_runs_in_order() -> None:
    body = seq(Store(Y, (as_index(0),), X[0]), loop(i, 7, Store(Y, (i + 1,), Y[i] + X[i + 1])))
    assert run(body).tolist() == np.cumsum(np.arange(8)).tolist()
    assert independent_loops(body) == frozenset()


def test_conditions_guard_what_they_hold() -> None:
    body = loop(i, 12, If(i < 8, Store(Y, (i,), Select(as_index(0) < i, X[i - 1], const(-1.0, F32)))))
    assert run(body).tolist() == [-1, 0, 1, 2, 3, 4, 5, 6]
    body = loop(i, 8, If(X[i] < 3.0, If(as_index(1) <= i, Store(Y, (i - 1,), const(1.0, F32)))))
    assert run(body).tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


def test_a_block_binds_tests_and_initialises() -> None:
    v, w = Var("v"), Var("w")
    body = loop(
        i,
        3,
        loop(
            k,
            4,
            Block(
                "b",
                (Iter(v, 8), Iter(w, 4, IterKind.REDUCE)),
                (i * 3, k),
                Store(Y, (v,), Y[v] + X[w]),
                init=Store(Y, (v,), const(100.0, F32)),
                predicate=i * 3 < 5,
            ),
        ),
    )
    assert run(body).tolist() == [106, 0, 0, 106, 0, 0, 0, 0]


def test_allocations_are_fresh_every_time() -> None:
    t = Buffer("T", (2,), F32, Scope.LOCAL)
    body = loop(i, 8, Alloc(t, seq(If(i < 4, Store(t, (as_index(1),), X[i])), Store(Y, (i,), t[1]))))
    np.testing.assert_array_equal(run(body), [0, 1, 2, 3, np.nan, np.nan, np.nan, np.nan])


def test_each_iteration_has_its_own_allocation() -> None:
    t = Buffer("T", (2, 2), F32, Scope.REGISTER)
    rows = [Store(t, (as_index(n), j), X[i * 2 + j] * float(n + 1)) for n in range(2)]
    fill = loop(j, 2, If(X[i] < 2.0, seq(*rows)))
    drain = loop(k, 2, Store(Y, (i * 2 + k,), t[0, k] + t[1, as_index(1) - k]))
    body = loop(i, 4, Alloc(t, seq(fill, drain)))
    assert independent_loops(body) == {i, j, k}
    np.testing.assert_array_equal(run(body), [2, 1, 8, 7, *[np.nan] * 4])
    top = Alloc(t, seq(Store(t, (as_index(0),) * 2, X[3]), Store(Y, (as_index(1),), t[0, 0])))
    assert run(top).tolist() == [0, 3, 0, 0, 0, 0, 0, 0]


def test_statements_in_a_vector_loop_see_each_other() -> None:
    body = loop(i, 8, Store(Y, (i,), X[i] + 1.0), Store(Y, (i,), Y[i] * 10.0))
    assert independent_loops(body) == {i}
    assert run(body).tolist() == [10.0 * (n + 1) for n in range(8)]


@pytest.mark.parametrize(
    ("indices", "is_independent"),
    [
        ([i], True),
        ([i * 2 + 1, i * 2], True),
        ([i, i + 1], False),
        ([i, i + 4], True),  # four iterations: the ranges do not meet
        ([i, i + 3], False),
        ([i, as_index(4)], False),  # all iterations write element 4
        ([i // 2], False),
        ([i % 2], False),
        ([as_index(0)], False),
        ([as_index(7) - i], True),
        ([i + k], True),  # k is fixed while i runs
        ([i + k, i + k * 2], False),
        ([i * 4 + j], True),
        ([i * 3 + j], False),  # j reaches into the next iteration
    ],
)
def test_independence(indices: list[Expr], is_independent: bool) -> None:
    big = Buffer("Big", (100,), F32)
    stores = [Store(big, (n,), const(0.0, F32)) for n in indices]
    body = loop(k, 4, loop(i, 4, loop(j, 4, *stores)))
    assert (i in independent_loops(body)) == is_independent


def test_running_at_once_gives_the_bits_of_running_in_order() -> None:
    b = FuncBuilder("f")
    x, w = b.param("X", (6, 7), F32), b.param("W", (7, 5), F32)
    c = b.reduce("C", (6, 5), (7,), lambda i, j, k: (x[i, k], w[k, j]))
    d = b.compute("D", (6, 5), lambda i, j: Select(c[i, j] < 0.0, const(0.0, F32), c[i, j]))
    func = b.finish(d)
    assert {v.name for v in independent_loops(func.body)} == {"C_i", "C_j", "D_i", "D_j"}
    rng = np.random.default_rng(0)
    xs, ws = rng.standard_normal((6, 7), np.float32), rng.standard_normal((7, 5), np.float32)
    (out,) = run_func(func, xs, ws)

    def scalar(a: np.ndarray, b: np.ndarray) -> np.float32:
        total = np.float32(0)
        for p, q in zip(a, b, strict=True):
            total = np.float32(np.float64(p) * np.float64(q) + np.float64(total))
        return total if total >= 0 else np.float32(0)

    np.testing.assert_array_equal(out, [[scalar(xs[r], ws[:, s]) for s in range(5)] for r in range(6)])


def test_aliased_arrays_run_in_order() -> None:
    func = Func("shift", (X, Y), (), loop(i, 7, Store(Y, (i + 1,), X[i])), (Y,))
    memory = np.arange(8, dtype=np.float32)
    interpret_func(func, {X: memory, Y: memory})
    assert memory.tolist() == [0.0] * 8


# -------------------------------------------------------------------------------------------------------- errors


def test_an_access_out_of_bounds_names_buffer_index_and_block() -> None:
    b = FuncBuilder("f")
    x = b.param("In", (4, 4), F32)
    y = b.compute("Out", (4, 4), lambda i, j: x[i, j + 1])
    with pytest.raises(InternalError, match=r"f: block Out reads In\[0, 4\], outside In: f32\[4, 4\]"):
        run_func(b.finish(y), np.zeros((4, 4), np.float32))
    with pytest.raises(InternalError, match=r"f writes Y\[-1\], outside Y: f32\[8\]"):
        run(loop(i, 3, Store(Y, (i - 1,), X[i])))


def test_a_binding_outside_its_domain_is_an_error() -> None:
    v = Var("v")
    body = loop(i, 8, Block("b", (Iter(v, 6),), (i,), Store(Y, (v,), X[v])))
    with pytest.raises(InternalError, match="block b binds v to 6, outside 0 … 5"):
        run(body)


def test_a_buffer_without_memory_is_an_error() -> None:
    t = Buffer("T", (2,), F32, Scope.LOCAL)
    with pytest.raises(InternalError, match="no parameter and not allocated"):
        run(Store(Y, (as_index(0),), t[0]))


def test_arrays_that_do_not_fit_are_refused() -> None:
    func = Func("f", (X, Y), (), Store(Y, (as_index(0),), X[0]), (Y,))
    with pytest.raises(UserError, match="no array is given for X"):
        interpret_func(func, {})
    with pytest.raises(UserError, match="float64 with shape"):
        run_func(func, np.zeros(8))
    with pytest.raises(UserError, match="takes 1 inputs"):
        run_func(func)


# ------------------------------------------------------------------------------------------------------- modules


def _step(name: str, fn: Callable[[Buffer, Expr], Expr], src: Buffer, dst: Buffer) -> Func:
    v = Var(f"{name}_i")
    return Func(name, (src, dst), (), For(v, src.shape[0], Store(dst, (v,), fn(src, v))), (dst,))


def test_a_program_with_a_loop_a_branch_and_an_external_call() -> None:
    count = Buffer("count", (1,), INDEX)
    flag, odd = Buffer("flag", (1,), DType.BOOL), Buffer("odd", (1,), DType.BOOL)
    x, y, w = Buffer("x", (2,), F32), Buffer("y", (2,), F32), Buffer("w", (2,), F32)
    zero = as_index(0)
    start = Func(
        "start",
        (count, flag),
        (),
        seq(Store(count, (zero,), zero), Store(flag, (zero,), const(True, DType.BOOL))),
        (count, flag),
    )
    advance = Func(
        "advance",
        (count, flag, odd),
        (),
        seq(
            Store(count, (zero,), count[0] + 1),
            Store(flag, (zero,), count[0] < 5),
            Store(odd, (zero,), equal(count[0] % 2, 1)),
        ),
        (count, flag, odd),
    )
    copy = _step("copy", lambda b, v: b[v], x, y)
    n = Var("add_i")
    add = Func("add", (y, w), (), For(n, 2, Store(y, (n,), y[n] + w[n])), (y,))
    module = Module(
        (start, advance, copy, add),
        (
            Call("start", (count, flag)),
            Call("copy", (x, y)),
            While(
                flag,
                (
                    Call("advance", (count, flag, odd)),
                    Branch(odd, (Call("add", (y, w)),), (External("double", (y,), (y,)),)),
                ),
            ),
        ),
        (x,),
        (y,),
        (Constant(w, np.array([1, 10], np.float32)),),
        (count, flag, odd),
    )
    given = np.array([0, 1], np.float32)
    out = interpret_module(module, {"x": given}, {"double": lambda arrays: [arrays[0] * np.float32(2)]})
    # add, double, add, double, add
    np.testing.assert_array_equal(out["y"], [7, (((1 + 10) * 2 + 10) * 2) + 10])
    assert given.tolist() == [0, 1]
    with pytest.raises(UserError, match="no code is given for the external function 'double'"):
        interpret_module(module, {"x": given})
    with pytest.raises(UserError, match="no array is given for the input x"):
        interpret_module(module, {})


def test_kernels_are_called_on_other_buffers() -> None:
    p, q = Buffer("p", (4,), F32), Buffer("q", (4,), F32)
    kernel = _step("kernel", lambda b, v: b[v] + 1.0, p, q)
    x, t, y = (Buffer(n, (4,), F32) for n in ("x", "t", "y"))
    program = (Call("kernel", (x, t)), Call("kernel", (t, y)))
    out = interpret_module(Module((kernel,), program, (x,), (y,), (), (t,)), {"x": np.zeros(4, np.float32)})
    assert out["y"].tolist() == [2.0] * 4


def test_single_runs_a_func_with_a_constant() -> None:
    func = Func("f", (X, Y), (), loop(i, 8, Store(Y, (i,), Fma(X[i], X[i], const(1.0, F32)))), (Y,))
    module = single(func, (Constant(X, np.arange(8, dtype=np.float32)),))
    assert interpret_module(module, {})["Y"].tolist() == [float(n * n + 1) for n in range(8)]


def test_many_lanes_are_cut() -> None:
    b = FuncBuilder("f")
    x = b.param("In", (1000, 100), DType.I32)
    y = b.compute("Out", (1000, 100), lambda i, j: x[i, j] + 1)
    data = np.arange(100_000, dtype=np.int32).reshape(1000, 100)
    (out,) = run_func(b.finish(y), data)
    np.testing.assert_array_equal(out, data + 1)
    assert len(list(loops(b.finish(y).body))) == 2


def test_a_sequence_may_be_empty_and_a_mask_may_be_partial() -> None:
    assert run(Seq(())).tolist() == [0.0] * 8
    cond = logical_and(i < 2, j < 3)
    body = loop(i, 2, loop(j, 4, If(cond, If(Const(INDEX, 0) < i, Store(Y, (i * 4 + j,), X[j])))))
    assert run(body).tolist() == [0, 0, 0, 0, 0, 1, 2, 0]
