"""tw.func: what is written is what is meant, names and kinds are as documented, and printed programs read back."""

# pyright: reportInvalidTypeForm=false
import math
from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright import exp as exponential
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Binary, BinaryOp, Cast, Fma, Scope
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func
from tilewright.tir.script import func
from tilewright.tir.stmt import Block, If, IterKind, LoopKind, Store, blocks, loops, walk_stmts

Sound = Callable[[Func], Func]

M, N, K = 6, 8, 4
SHAPE = (M, N)
SCALE = 0.5
KIND = tw.f64
WIDE = DType.F64
LANES = np.int64(4)


@tw.func
def matmul(A: tw.f32[M, K], B: tw.f32[K, N], C: tw.out(tw.f32[M, N])):
    """A docstring is no statement."""
    for i, j, k in tw.grid(M, N, K):
        with tw.init():
            C[i, j] = 0.0
        C[i, j] = tw.fma(A[i, k], B[k, j], C[i, j])


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def stores(program: Func) -> list[Store]:
    return [n for b in blocks(program.body) for n in walk_stmts(b.body) if isinstance(n, Store)]


def kinds(block: Block) -> str:
    return "".join("r" if it.kind is IterKind.REDUCE else "s" for it in block.iters)


def loop_names(program: Func) -> list[str]:
    return [n.var.name for n in loops(program.body)]


# ------------------------------------------------------------------------------------------------------ blocks


def test_matmul_is_what_the_builder_makes(sound: Sound) -> None:
    b = FuncBuilder("matmul")
    x, y = b.param("A", (M, K), DType.F32), b.param("B", (K, N), DType.F32)
    built = b.finish(b.reduce("C", (M, N), (K,), lambda i, j, k: (x[i, k], y[k, j])))
    named = str(built).replace("C_i", "i").replace("C_j", "j").replace("C_k", "k")
    assert str(sound(matmul)) == named


def test_plain_stores_get_blocks_named_after_their_buffers(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[M, K], B: tw.f32[K, N], C: tw.out(tw.f32[M, N])):
        for i, j in tw.grid(M, N):
            C[i, j] = 0.0
        for i, j, k in tw.grid(M, N, K):
            C[i, j] += A[i, k] * B[k, j]

    assert [(b.name, kinds(b)) for b in blocks(sound(f).body)] == [("C", "ss"), ("C_1", "ssr")]
    # What several loops are called gets the block in front; what is unique stays.
    assert loop_names(f) == ["C_i", "C_j", "C_1_i", "C_1_j", "k"]
    assert [it.var.name for b in blocks(f.body) for it in b.iters] == [
        "C_vi",
        "C_vj",
        "C_1_vi",
        "C_1_vj",
        "C_1_vk",
    ]
    a, b = normal(M, K), normal(K, N)
    np.testing.assert_allclose(tw.interpret(f, a, b), a @ b, rtol=1e-5, atol=1e-6)


def test_float_updates_are_not_contracted() -> None:
    @tw.func
    def f(A: tw.f32[N], C: tw.out(tw.f32[1])):
        for k in range(N):
            C[0] += A[k] * A[k]

    (store,) = stores(f)
    assert isinstance(store.value, Binary) and store.value.op is BinaryOp.ADD
    assert not any(isinstance(s.value, Fma) for s in stores(f))


@pytest.mark.parametrize(
    ("update", "kind"),
    [
        ("C[i] += A[i, k]", "sr"),
        ("C[i] -= A[i, k]", "sr"),
        ("C[i] *= A[i, k]", "sr"),
        ("C[i] = max(C[i], A[i, k])", "sr"),
        ("C[i] = min(A[i, k], C[i])", "sr"),
        ("C[i] = A[i, k] * 2.0 + C[i]", "sr"),
        ("C[i] = fma(A[i, k], A[i, k], C[i])", "sr"),
        ("C[i] += 1.0", "sr"),  # a loop that is not mentioned counts
        ("if A[i, k] > 0.0:\n            C[i] += A[i, k]", "sr"),
    ],
)
def test_loops_that_do_not_choose_the_element_are_reductions(update: str, kind: str, sound: Sound) -> None:
    f = sound(func(f"def f(A: f32[4, 6], C: out(f32[4])):\n    for i, k in grid(4, 6):\n        {update}\n"))
    assert [kinds(b) for b in blocks(f.body)] == [kind]


def test_loop_of_one_iteration_repeats_nothing(sound: Sound) -> None:
    f = sound(func("def f(A: f32[4], C: out(f32[4])):\n    for n, i in grid(1, 4):\n        C[i] = A[i]\n"))
    assert [kinds(b) for b in blocks(f.body)] == ["ss"]


def test_statements_share_the_loops_they_stand_in(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[M, N], C: tw.out(tw.f32[M]), D: tw.out(tw.f32[M, N])):
        for i in range(M):
            C[i] = 0.0
            for j in range(N):
                C[i] += A[i, j]
            for j in range(N):
                D[i, j] = A[i, j] / C[i]

    assert loop_names(sound(f)) == ["i", "C_1_j", "D_j"]
    assert [b.name for b in blocks(f.body)] == ["C", "C_1", "D"]
    a = np.abs(normal(M, N)) + 1
    _, d = tw.interpret(f, a)
    np.testing.assert_allclose(d, a / a.sum(1, keepdims=True), rtol=1e-5)


def test_conditions_move_into_their_blocks(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[M, N], C: tw.out(tw.f32[M, N])):
        for i, j in tw.grid(M, N):
            if i < j:
                C[i, j] = A[i, j]
            elif i == j:
                C[i, j] = 1.0
            else:
                C[i, j] = -A[i, j]

    assert all(isinstance(b.body, If) for b in blocks(sound(f).body))
    a = normal(M, N)
    i, j = np.indices((M, N))
    np.testing.assert_array_equal(tw.interpret(f, a), np.where(i < j, a, np.where(i == j, 1, -a)))


def test_one_store_under_a_condition_on_itself(sound: Sound) -> None:
    @tw.func
    def f(C: tw.out(tw.f32[4])):
        for i in range(4):
            if C[i] < 0.0:
                C[i] = 0.0

    c = np.array([1, -2, 3, -4], np.float32)
    tw.interpret(sound(f), out=c)
    assert c.tolist() == [1, 0, 3, 0]


def test_init_in_front_of_a_condition(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[M, N], C: tw.out(tw.f32[M])):
        for i, k in tw.grid(M, N):
            with tw.init():
                C[i] = 0.0
            if A[i, k] > 0.0:
                C[i] += A[i, k]

    (block,) = blocks(sound(f).body)
    assert block.init is not None and isinstance(block.body, If)
    a = normal(M, N)
    np.testing.assert_allclose(tw.interpret(f, a), np.maximum(a, 0).sum(1), rtol=1e-5)


# ----------------------------------------------------------------------------------------------------- constants


def test_names_around_are_constants(sound: Sound) -> None:
    half = N // 2

    @tw.func
    def f(A: tw.f32[SHAPE], B: KIND[half], C: tw.out(tw.f32[M, half])):
        for i, j in tw.grid(SHAPE[0], LANES):
            C[i, j] = A[i, j * 2] * SCALE + 1.0 / N + math.pi

    assert [p.shape for p in sound(f).params] == [(M, N), (half,), (M, half)]
    a = normal(M, N)
    expected = a[:, ::2] * np.float32(SCALE) + np.float32(1 / N) + np.float32(math.pi)
    np.testing.assert_array_equal(tw.interpret(f, a, np.zeros(half)), expected)


def test_own_names_hide_those_around(sound: Sound) -> None:
    @tw.func
    def f(SCALE: tw.f32[4], C: tw.out(tw.f32[4])):
        for K in range(4):
            C[K] = SCALE[K]

    a = normal(4)
    np.testing.assert_array_equal(tw.interpret(sound(f), a), a)


def test_words_may_be_called_anything(sound: Sound) -> None:
    @func
    def f(A: tw.f32[4], C: tw.out(tw.f32[4])):
        for i in range(4):
            C[i] = exponential(max(A[i], 0.0))

    a = normal(4)
    np.testing.assert_allclose(tw.interpret(sound(f), a), np.exp(np.maximum(a, 0)), rtol=1e-6)


def test_types_around(sound: Sound) -> None:
    @tw.func
    def f(A: tw.i32[4], C: tw.out(tw.f64[4])):
        for i in range(4):
            C[i] = tw.cast(WIDE, A[i]) + tw.f64(0.5)

    assert any(isinstance(n, Cast) for s in stores(sound(f)) for n in s.value.children())
    assert tw.interpret(f, np.arange(4, dtype=np.int32)).tolist() == [0.5, 1.5, 2.5, 3.5]


def test_annotation_as_text(sound: Sound) -> None:
    @tw.func
    def f(A: "tw.f32[M, N // 2]", C: "tw.out(tw.f32[M])"):
        for i in range(M):
            C[i] = A[i, 0]

    assert [p.shape for p in sound(f).params] == [(M, 4), (M,)]


# ---------------------------------------------------------------------------------------- abbreviations, buffers


def test_abbreviations_are_expressions(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[M, N], C: tw.out(tw.f32[M, N])):
        alpha = 0.25
        for i, j in tw.grid(M, N):
            x = A[i, j] * alpha
            y = x * x
            C[i, j] = y + x
            x = A[i, 0]
            C[i, j] += x

    a = normal(M, N)
    x = a * np.float32(0.25)
    np.testing.assert_array_equal(tw.interpret(sound(f), a), x * x + x + a[:, :1])


def test_an_abbreviation_may_be_made_anew(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[N], B: tw.f32[N], C: tw.out(tw.f32[N]), D: tw.out(tw.f32[N])):
        for i in range(N):
            x = A[i]
            y = x + 1.0
            x = x * B[i]
            x = x * x
            if x > 1.0:
                y = x
                D[i] = y
            else:
                D[i] = y
            C[i] = x

    a, b = normal(N), normal(N)[::-1].copy()
    x = (a * b) * (a * b)
    c, d = tw.interpret(sound(f), a, b)
    np.testing.assert_array_equal(c, x)
    np.testing.assert_array_equal(d, np.where(x > 1, x, a + 1))


def test_allocations(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[N], C: tw.out(tw.f32[N])):
        T = tw.alloc(tw.f32[N])
        for i in range(N):
            T[i] = A[i] * 2.0
        U = tw.alloc(tw.f32[()], "register")
        V = tw.alloc(tw.f32[N], tw.Scope.LOCAL)
        U[()] = 1.0
        for i in range(N):
            V[i] = T[i] + U[()]
        for i in range(N):
            C[i] = V[i]

    assert [b.scope for b in sound(f).locals] == [Scope.GLOBAL, Scope.REGISTER, Scope.LOCAL]
    a = normal(N)
    np.testing.assert_array_equal(tw.interpret(f, a), a * 2 + 1)


def test_range_may_begin_anywhere(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[N], C: tw.out(tw.f32[N])):
        C[0] = A[0]
        for i in range(1, N):
            C[i] = C[i - 1] + A[i]

    a = normal(N)
    np.testing.assert_allclose(tw.interpret(sound(f), a), np.cumsum(a), rtol=1e-5)


def test_loops_of_all_kinds(sound: Sound) -> None:
    @tw.func
    def f(C: tw.out(tw.i32[2, 3, 4])):
        for i in tw.parallel(2):
            for j in tw.unrolled(3):
                for k in tw.vectorized(4):
                    C[i, j, k] = 7

    found = [n.kind for n in loops(sound(f).body)]
    assert found == [LoopKind.PARALLEL, LoopKind.UNROLLED, LoopKind.VECTORIZED]


def test_functions_of_expressions(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[4], C: tw.out(tw.f32[4])):
        for i in range(4):
            t = tw.select(A[i] > 0.0, tw.sqrt(tw.abs(A[i])), tw.min(A[i], -1.0))
            C[i] = tw.pow(t, 2.0) + tw.tanh(t) + tw.round(t)

    a = np.array([4, -0.5, 0.25, -3], np.float32)
    t = np.array([2, -1, 0.5, -3])
    np.testing.assert_allclose(tw.interpret(sound(f), a), t**2 + np.tanh(t) + np.round(t), rtol=1e-6)


def test_python_ways_to_write_select_and_pow(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[4], C: tw.out(tw.f32[4])):
        for i in range(4):
            C[i] = A[i] ** 2.0 if A[i] > 0.0 else -A[i]

    a = np.array([4, -0.5, 0.25, -3], np.float32)
    np.testing.assert_allclose(tw.interpret(sound(f), a), [16, 0.5, 0.0625, 3], rtol=1e-6)


# ------------------------------------------------------------------------------------------------ the explicit form


def test_explicit_blocks(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[M, K], B: tw.f32[K, N], C: tw.out(tw.f32[M, N]), D: tw.out(tw.f32[M, N])):
        for i, j, k in tw.grid(M, N, K):
            with tw.block("product"):
                vi = tw.spatial(M, i)
                vj = tw.spatial(N, j)
                vk = tw.reduce(K, k)
                with tw.init():
                    C[vi, vj] = 0.0
                C[vi, vj] += A[vi, vk] * B[vk, vj]
        for i, j in tw.grid(M, N):
            with tw.block("relu"):
                vi = tw.spatial(M, i)
                vj = tw.spatial(N, j)
                D[vi, vj] = max(C[vi, vj], 0.0)

    assert [(b.name, kinds(b)) for b in blocks(sound(f).body)] == [("product", "ssr"), ("relu", "ss")]
    assert loop_names(f) == ["product_i", "product_j", "k", "relu_i", "relu_j"]
    a, b = normal(M, K), normal(K, N)
    c, d = tw.interpret(f, a, b)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(d, np.maximum(c, 0))


def test_loops_inside_a_block(sound: Sound) -> None:
    @tw.func
    def f(A: tw.f32[M, N], C: tw.out(tw.f32[M])):
        for i in range(M):
            with tw.block("row"):
                v = tw.spatial(M, i)
                C[v] = 0.0
                for j, k in tw.grid(2, N // 2):
                    C[v] += A[v, j * (N // 2) + k]
        for i in range(M):
            C[i] *= 2.0

    assert loop_names(sound(f)) == ["row_i", "j", "k", "C_i"]
    a = normal(M, N)
    np.testing.assert_allclose(tw.interpret(f, a), 2 * a.sum(1), rtol=1e-5, atol=1e-6)


def test_printed_text_pasted_into_a_file(sound: Sound) -> None:
    @tw.func
    def gemm(A: tw.f32[6, 4], B: tw.f32[4, 8], C: tw.out(tw.f32[6, 8])):
        for C_i in range(6):
            for C_j in tw.vectorized(8):
                for C_k in range(4):
                    with tw.block("C"):
                        C_vi = tw.spatial(6, C_i)
                        C_vj = tw.spatial(8, C_j)
                        C_vk = tw.reduce(4, C_k)
                        tw.where(C_i < 5)
                        tw.reads(A[C_vi, C_vk], B[C_vk, C_vj], C[C_vi, C_vj])
                        tw.writes(C[C_vi, C_vj])
                        with tw.init():
                            C[C_vi, C_vj] = tw.f32(0.0)
                        C[C_vi, C_vj] = tw.fma(A[C_vi, C_vk], B[C_vk, C_vj], C[C_vi, C_vj])

    assert same_func(func(str(sound(gemm))), gemm)
    assert loop_names(gemm) == ["C_i", "C_j", "C_k"]


def test_scheduled_programs_read_back() -> None:
    s = tw.Schedule(matmul)
    i0, i1 = s.split("i", (None, 4))
    s.reorder(i0, "j", "k", i1)
    s.cache_read("C", "A", Scope.LOCAL)
    s.decompose_reduction("C", "k")
    s.unroll(i1)
    assert same_func(func(str(s.func)), s.func)


def test_stand_ins_of_printed_text() -> None:
    b = FuncBuilder("node/1")
    x = b.param("a.b", (4,), DType.F32)
    odd = b.finish(b.compute("out", (4,), lambda i: x[i] * 2.0))
    assert "names(" in str(odd)
    assert same_func(func(str(odd)), odd)
