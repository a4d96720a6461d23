"""attach: a buffer lives in rows of another, and every access finds it there."""

from dataclasses import replace

import numpy as np
import pytest
from schedule_programs import check, check_native

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Scope
from tilewright.ir.layout import Layout, PadDim, ReorderDims, SplitDim
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import Attach, ComputeAt, Merge, SetScope, TransformLayout
from tilewright.schedule.trace import parse_trace, print_trace
from tilewright.support.errors import ScheduleError
from tilewright.support.sizes import Dim, sym_int
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Call, Constant, Func, Module, single
from tilewright.tir.interp import interpret_module
from tilewright.tir.printer import print_func
from tilewright.tir.verify import verify_module


def dense(*, dtype: DType = DType.I32) -> Module:
    """Weights and a bias: constants."""
    b = FuncBuilder("dense")
    x, w, v = b.param("X", (3, 4), dtype), b.param("W", (4, 5), dtype), b.param("V", (5,), dtype)
    y = b.reduce("Y", (3, 5), (4,), lambda i, j, k: (x[i, k], w[k, j]))
    func = b.finish(b.compute("Z", (3, 5), lambda i, j: y[i, j] + v[j]))
    rng = np.random.default_rng(3)
    values = [Constant(c, rng.integers(-9, 9, c.shape).astype(dtype.numpy)) for c in (w, v)]
    return single(func, tuple(values))


def network() -> Module:
    """Two kernels make t and u, one reads both, one reads t."""
    f = FuncBuilder("first", "f_")
    x = f.param("x", (3, 4), DType.I32)
    first = f.finish(t := f.compute("t", (3, 4), lambda i, j: x[i, j] * 3))
    g = FuncBuilder("second", "g_")
    second = g.finish(u := g.compute("u", (2, 3), lambda i, j: g.use(x)[j, i] + 1))
    h = FuncBuilder("third", "h_")
    third = h.finish(h.compute("y", (2, 3), lambda i, j: h.use(t)[j, i] * h.use(u)[i, j]))
    k = FuncBuilder("fourth", "k_")
    fourth = k.finish(k.reduce("z", (3,), (4,), lambda i, j: k.use(t)[i, j]))
    funcs = (first, second, third, fourth)
    outputs = (third.outputs[0], fourth.outputs[0])
    return Module(funcs, tuple(Call(fn.name, fn.params) for fn in funcs), (x,), outputs, (), (t, u))


def results(module: Module) -> dict[str, np.ndarray]:
    feeds = {b.name: np.arange(b.size).reshape(b.shape).astype(b.dtype.numpy) - 5 for b in module.inputs}
    return interpret_module(module, feeds)


def check_modules(before: Module, after: Module) -> None:
    verify_module(after)
    expected = results(before)
    for name, found in results(after).items():
        np.testing.assert_array_equal(found, expected[name])


def test_a_bias_becomes_a_row_of_its_weights() -> None:
    module, step = dense(), Attach("V", "W", 0)
    done = step.apply(module)
    check_modules(module, done)
    (both,) = done.constants
    assert both.buffer.shape == (5, 5)
    np.testing.assert_array_equal(both.value[:4], module.constants[0].value)
    np.testing.assert_array_equal(both.value[4], module.constants[1].value)
    assert "Z[Z_vi, Z_vj] = Y[Z_vi, Z_vj] + W[4, Z_vj]" in print_func(done.funcs[0])
    assert parse_trace(print_trace((step,))) == (step,)


def test_rows_of_the_last_dimension_and_of_a_smaller_guest() -> None:
    """A guest of the host's rank brings as many rows as it has; where it is smaller, zeros are around it."""
    module = TransformLayout("V", Layout((SplitDim(0, 2), ReorderDims((1, 0))))).apply(dense())  # [2, 3]
    done = Attach("V", "W", 1).apply(module)
    check_modules(module, done)
    (both,) = done.constants
    assert both.buffer.shape == (4, 8)
    assert not both.value[2:, 5:].any() and both.value[:2, 5:].any()


def test_packed_weights_take_the_bias_too() -> None:
    """Both are laid out in blocks of two columns; a row of a block is the bias of its columns."""
    weights = TransformLayout("W", Layout((SplitDim(1, 2), ReorderDims((1, 0, 2)))))  # [3, 4, 2]
    bias = TransformLayout("V", Layout((SplitDim(0, 2),)))  # [3, 2]
    module = dense()
    done = Attach("V", "W", 1).apply(bias.apply(weights.apply(module)))
    check_modules(module, done)
    assert done.constants[0].buffer.shape == (3, 5, 2)
    assert "W[Z_vj // 2, 4, Z_vj % 2]" in print_func(done.funcs[0])


def test_a_buffer_in_the_padding_of_another() -> None:
    module = network()
    padded = TransformLayout("f_t", Layout((PadDim(0, 3, 0),))).apply(
        module
    )  # [6, 4], the first 3 rows are free
    for row, extent in ((0, 6), (1, 6), (6, 8), (None, 8)):
        done = Attach("g_u", "f_t", 0, row).apply(padded)
        check_modules(module, done)
        assert [(b.name, b.shape) for b in done.temps] == [("f_t", (extent, 4))]
        assert [p.name for p in done.func("third").params] == ["f_t", "h_y"]
        assert done.func("second").outputs == done.func("first").outputs


def test_buffers_of_one_kernel() -> None:
    func = branches()
    done = check(func, Attach("U", "T", 0))
    assert [(b.name, b.shape) for b in done.locals] == [("T", (9, 6)), ("S", (3,))]
    check_native(branches(DType.F32), Attach("U", "T", 0))
    check(func, SetScope("U", Scope.LOCAL), SetScope("T", Scope.LOCAL), Attach("U", "T", 0))


def branches(dtype: DType = DType.I32) -> Func:
    b = FuncBuilder("branches")
    x = b.param("X", (5, 6), dtype)
    t = b.compute("T", (5, 6), lambda i, j: x[i, j] * 2)
    u = b.compute("U", (4, 3), lambda i, j: x[i, j] + 1)
    s = b.reduce("S", (3,), (4,), lambda j, i: u[i, j])
    return b.finish(b.compute("Y", (5, 3), lambda i, j: t[i, j * 2] * s[j] + u[0, j]))


def test_native_code_of_constants_that_are_one() -> None:
    module = Attach("V", "W", 0).apply(dense(dtype=DType.F32))
    check_native(module.funcs[0])


# --------------------------------------------------------------------------------------------------------- refusals


def refused(module: Module, step: Attach) -> str:
    with pytest.raises(ScheduleError) as e:
        step.apply(module)
    return e.value.message


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Attach("W", "W", 0), "a buffer has no place in itself"),
        (Attach("V", "W", 2), "W has no dimension 2"),
        (Attach("V", "W", 1), "does not fit into rows of [4] elements"),
        (Attach("W", "V", 0), "does not fit into rows of [] elements"),
        (Attach("V", "W", 0, 2), "dense uses rows 0 to 3 of W; 2 to 2 must be free"),
        (Attach("V", "W", 0, 9), "W has no row 9"),
        (Attach("V", "W", 0, -1), "W has no row -1"),
        (Attach("X", "W", 0), "X is an input or output of the module"),
        (Attach("V", "nobody", 0), "the module has no buffer 'nobody'"),
        (Attach("V", "Y", 0), "one of them is a constant, the other is not"),
    ],
)
def test_what_does_not_fit(step: Attach, why: str) -> None:
    text = refused(dense(), step)
    assert why in text
    assert text.startswith(str(step))


def test_other_types() -> None:
    module = dense()
    (w, v) = module.constants
    other = Buffer("V8", (5,), DType.I8)
    mixed = replace(module, constants=(w, v, Constant(other, np.zeros(5, np.int8))))
    assert "they have different types" in refused(mixed, Attach("V8", "W", 0))


def test_a_kernel_that_reads_the_guest_and_writes_the_host() -> None:
    f = FuncBuilder("first", "f_")
    x = f.param("x", (3,), DType.I32)
    first = f.finish(t := f.compute("t", (3,), lambda i: x[i] * 3))
    g = FuncBuilder("second", "g_")
    second = g.finish(u := g.compute("u", (3,), lambda i: g.use(t)[i] + 1))
    h = FuncBuilder("third", "h_")
    third = h.finish(h.compute("y", (3,), lambda i: h.use(u)[i] - h.use(t)[i]))
    funcs = (first, second, third)
    calls = tuple(Call(fn.name, fn.params) for fn in funcs)
    module = Module(funcs, calls, (x,), third.outputs, (), (t, u))
    assert "second uses both, and writes one of them" in refused(module, Attach("f_t", "g_u", 0))


def test_a_block_that_reads_the_guest_and_writes_the_host() -> None:
    assert "block 'S' uses both" in refused(single(branches()), Attach("S", "U", 0))


def test_a_local_and_a_buffer_between_kernels() -> None:
    f = FuncBuilder("first", "f_")
    x = f.param("x", (3,), DType.I32)
    s = f.compute("s", (3,), lambda i: x[i] * 3)
    first = f.finish(t := f.compute("t", (3,), lambda i: s[i] + 1))
    g = FuncBuilder("second", "g_")
    second = g.finish(g.compute("y", (3,), lambda i: g.use(t)[i] + 1))
    funcs = (first, second)
    calls = tuple(Call(fn.name, fn.params) for fn in funcs)
    module = Module(funcs, calls, (x,), second.outputs, (), (t,))
    assert "not local to the same kernel, nor both between" in refused(module, Attach("f_s", "f_t", 0))


def test_open_dimensions() -> None:
    rows = sym_int(Dim("rows", 1, 6))
    b = FuncBuilder("open")
    x = b.param("X", (rows, 2), DType.I32)
    t = b.compute("T", (rows, 2), lambda i, j: x[i, j] * 3)
    u = b.compute("U", (2,), lambda j: x[0, j])
    module = single(b.finish(b.compute("Y", (rows, 2), lambda i, j: t[i, j] + u[j])))
    assert "one of them has an open dimension" in refused(module, Attach("U", "T", 0))


def test_debug_mode_tells_rows_apart() -> None:
    """S is still being summed where U is read, in the same buffer and another row."""
    b = FuncBuilder("apart")
    x = b.param("X", (4,), DType.I32)
    s = b.reduce("S", (), (4,), lambda i: x[i])
    u = b.compute("U", (4,), lambda i: x[i] * 2)
    y = b.compute("Y", (4,), lambda i: u[i] + 1)
    func = b.finish(y, b.compute("Z", (), lambda: s[()]))
    schedule = Schedule(func, debug=True)
    schedule.attach("S", "U", 0)
    schedule.apply(Merge(("S_i", "U_i", "Y_i")))
    check(func, *schedule.trace)


def test_other_steps_go_on_with_what_is_attached() -> None:
    """They tell buffers apart, not parts of them: some refuse, and none goes wrong."""
    module = Attach("U", "T", 0).apply(single(branches()))
    with pytest.raises(ScheduleError):
        ComputeAt("U", "S_j").apply(module)
