"""store_at: pieces of a buffer are stored in it at once, and not copied there."""

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, select
from tilewright.schedule.steps import StoreAt
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Call, Func, Module
from tilewright.tir.interp import interpret_module
from tilewright.tir.stmt import blocks
from tilewright.tir.verify import verify_module


def module_of(*funcs: Func, temps: tuple[str, ...]) -> Module:
    buffers = {b.name: b for f in funcs for b in f.params}
    written = {b for f in funcs for b in f.outputs}
    between = tuple(buffers[n] for n in temps)
    program = tuple(Call(f.name, f.params) for f in funcs)
    inputs = tuple(b for b in buffers.values() if b not in written)
    outputs = tuple(b for b in buffers.values() if b in written and b not in between)
    return Module(funcs, program, inputs, outputs, (), between)


def network(*, cut: int = 0, shift: int = 0, again: bool = False) -> Module:
    """Two kernels make t and u, a third puts them side by side with x between, a fourth reads that, a fifth t."""
    f = FuncBuilder("first", "f_")
    x = f.param("x", (2, 3), DType.I32)
    t = f.compute("t", (2, 4), lambda h, c: x[h, c % 3] * 2)
    first = f.finish(t)

    g = FuncBuilder("second", "g_")
    u = g.compute("u", (2, 2), lambda h, c: g.use(x)[h, c] + 7)
    second = g.finish(u)

    k = FuncBuilder("cat", "k_")
    a, b, d = k.use(t), k.use(x), k.use(u)

    def piece(h: Expr, c: Expr) -> Expr:
        rest = select(c < 7 - cut, b[h, c - 4 + cut], d[h, c - 7 + cut])
        return select(c < 4 - cut, a[h, c + shift], rest)

    whole = k.compute("w", (2, 9 - cut), piece)
    third = k.finish(whole)

    r = FuncBuilder("reader", "r_")
    w = r.use(whole)
    total = r.reduce("y", (2,), (9 - cut,), lambda h, c: w[h, c])
    if again:
        total = r.compute("z", (2,), lambda h: total[h] + r.use(t)[h, 0])
    fourth = r.finish(total)

    s = FuncBuilder("other", "s_")
    fifth = s.finish(s.compute("v", (2, 4), lambda h, c: s.use(t)[h, c] + 1))
    return module_of(first, second, third, fourth, fifth, temps=("f_t", "g_u", "k_w"))


def outputs(module: Module) -> dict[str, np.ndarray]:
    (x,) = module.inputs
    return interpret_module(module, {x.name: np.arange(x.size, dtype=np.int32).reshape(x.shape) - 2})


def check(before: Module, after: Module) -> None:
    verify_module(after)
    expected = outputs(before)
    for name, found in outputs(after).items():
        np.testing.assert_array_equal(found, expected[name])


def test_a_piece_at_the_start_is_stored_there() -> None:
    module = network()
    done = StoreAt("k_w", "f_t").apply(module)
    check(module, done)
    assert [b.name for b in done.temps] == ["g_u", "k_w"]
    assert [b.name for b in blocks(done.func("cat").body)] == ["k_w_high"]
    assert done.func("first").outputs == done.func("cat").outputs


def test_pieces_go_one_by_one_and_leave_the_rest_between() -> None:
    module = network()
    done = StoreAt("k_w_low", "f_t").apply(StoreAt("k_w", "g_u").apply(module))
    check(module, done)
    assert [b.name for b in blocks(done.func("cat").body)] == ["k_w_low_high"]


def test_a_kernel_with_nothing_left_to_do_goes() -> None:
    f = FuncBuilder("first", "f_")
    x = f.param("x", (3,), DType.I32)
    t = f.compute("t", (3,), lambda i: x[i] * 2)
    g = FuncBuilder("copy", "g_")
    first, u = f.finish(t), g.compute("u", (3,), lambda i: g.use(t)[i])
    second = g.finish(u)
    r = FuncBuilder("reader", "r_")
    third = r.finish(r.compute("y", (3,), lambda i: r.use(u)[i] + 1))
    module = module_of(first, second, third, temps=("f_t", "g_u"))
    done = StoreAt("g_u", "f_t").apply(module)
    check(module, done)
    assert [f.name for f in done.funcs] == ["first", "reader"]


def refused(module: Module, block: str = "k_w", buffer: str = "f_t") -> str:
    with pytest.raises(ScheduleError) as e:
        StoreAt(block, buffer).apply(module)
    return e.value.message


def test_a_part_of_a_buffer_is_refused() -> None:
    assert "a whole buffer between kernels" in refused(network(cut=1))


def test_a_shifted_part_is_refused() -> None:
    assert "a whole buffer between kernels" in refused(network(cut=1, shift=1))


def test_an_input_stays_where_it_is() -> None:
    assert "a whole buffer between kernels" in refused(network(), buffer="x")


def test_a_kernel_that_uses_both_is_named() -> None:
    assert "reader uses both f_t and k_w" in refused(network(again=True))


def test_no_such_block() -> None:
    assert "no block is named 'nothing'" in refused(network(), block="nothing")
