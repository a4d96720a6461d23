"""FuncBuilder: one block and one nest per call, names as documented, values as numpy has them."""

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Fma, Var, const, maximum
from tilewright.tir.build import FuncBuilder, identity
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import IterKind, blocks, loops

F32 = DType.F32
Sound = Callable[[Func], Func]


def test_gemm_has_the_documented_names(sound: Sound) -> None:
    b = FuncBuilder("gemm", prefix="p_")
    a, w = b.param("A", (3, 4), F32), b.param("B", (4, 5), F32)
    c = b.reduce("C", (3, 5), (4,), lambda i, j, k: (a[i, k], w[k, j]))
    d = b.compute("D", (3, 5), lambda i, j: maximum(c[i, j], 0.0))
    func = sound(b.finish(d))
    assert [n.var.name for n in loops(func.body)] == ["p_C_i", "p_C_j", "p_C_k", "p_D_i", "p_D_j"]
    block, _ = blocks(func.body)
    assert [it.var.name for it in block.iters] == ["p_C_vi", "p_C_vj", "p_C_vk"]
    assert [it.kind for it in block.iters] == [IterKind.SPATIAL, IterKind.SPATIAL, IterKind.REDUCE]
    assert isinstance(block.store.value, Fma)
    assert func.params == (a, w, d) and func.outputs == (d,) and func.locals == (c,)

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 4), np.float32), rng.standard_normal((4, 5), np.float32)
    (out,) = run_func(func, x, y)
    np.testing.assert_allclose(out, np.maximum(x.astype(float) @ y, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("combine", "reference"), [("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)]
)
@pytest.mark.parametrize("dtype", [F32, DType.F64, DType.I32, DType.U8, DType.BF16], ids=str)
def test_reductions(combine: str, reference: Callable[..., np.ndarray], dtype: DType, sound: Sound) -> None:
    b = FuncBuilder("r")
    x = b.param("X", (2, 5), dtype)
    y = b.reduce("Y", (2,), (5,), lambda i, k: x[i, k], combine)
    data = np.array([[1, 2, 3, 2, 1], [2, 2, 1, 3, 2]]).astype(dtype.numpy)
    (out,) = run_func(sound(b.finish(y)), data)
    np.testing.assert_array_equal(out.astype(np.float64), reference(data.astype(np.float64), axis=1))


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL], ids=str)
def test_identities_change_nothing(dtype: DType) -> None:
    b = FuncBuilder("r")
    x = b.param("X", (3,), dtype)
    outs = [b.reduce(c, (3,), (1,), lambda i, k: x[i], c) for c in ("sum", "prod", "max", "min")]
    data = np.array([-7, 0, 7]).astype(np.int8).astype(dtype.numpy)
    for out in run_func(b.finish(*outs), data):
        np.testing.assert_array_equal(out, data)
    with pytest.raises(KeyError):
        identity("mean", dtype)


def test_integer_products_do_not_become_fma(sound: Sound) -> None:
    b = FuncBuilder("dot")
    x = b.param("X", (4,), DType.I32)
    y = b.reduce("Y", (), (4,), lambda k: (x[k], x[k]))
    (out,) = run_func(sound(b.finish(y)), np.arange(4, dtype=np.int32))
    assert out.shape == () and out == 14


def test_writing_a_buffer_of_the_module(sound: Sound) -> None:
    b = FuncBuilder("f")
    x = b.use(Buffer("X", (4,), F32))
    out = Buffer("Out", (4,), F32)
    b.compute("Y", (4,), lambda i: x[i] + 1.0, out=out)
    func = sound(b.finish())
    assert func.params == (x, out) and func.outputs == (out,) and func.locals == ()
    module = single(func)
    assert module.inputs == (x,) and module.outputs == (out,)
    assert module.func_of_block("Y") is func and module.func_of_loop("Y_i") is func
    assert module.func_of_block("Z") is None


def test_axes_take_given_or_numbered_names() -> None:
    b = FuncBuilder("f")
    x = b.param("X", (2, 3), F32)
    b.compute("Y", (2, 3), lambda *at: x[at])
    z = b.compute("Z", (2, 3), lambda *at: x[at] * const(2.0, F32), axes=("row", "column"))
    names = [n.var for n in loops(b.finish(z).body)]
    assert names == [Var("Y_i0"), Var("Y_i1"), Var("Z_row"), Var("Z_column")]


def test_a_reduction_over_nothing_is_the_element(sound: Sound) -> None:
    b = FuncBuilder("f")
    x = b.param("X", (3,), F32)
    y = b.reduce("Y", (3,), (), lambda i: x[i], "max")
    z = b.reduce("Z", (3,), (), lambda i: (x[i], x[i]))
    data = np.array([-0.0, np.nan, -3], np.float32)
    out = run_func(sound(b.finish(y, z)), data)
    np.testing.assert_array_equal(out[0], data)
    np.testing.assert_array_equal(out[1], data * data)
