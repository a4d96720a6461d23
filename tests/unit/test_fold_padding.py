"""fold_padding: a copy into a larger buffer becomes a border around the original."""

import numpy as np
import pytest

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    as_index,
    const,
    select,
)
from tilewright.schedule.steps import FoldPadding
from tilewright.schedule.steps.fold_padding import try_padding
from tilewright.support.errors import ScheduleError
from tilewright.support.sizes import Dim, sym_int
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Call, Module
from tilewright.tir.interp import interpret_module
from tilewright.tir.passes.place_sizes import size_buffer
from tilewright.tir.stmt import blocks
from tilewright.tir.verify import verify_module


def network(before: int = 1, after: int = 2, value: int = 0, cut: int = 0, shift: int = 0) -> Module:
    """x -> double -> pad, sum of windows of three; and a second reader of the doubled values."""
    f = FuncBuilder("double", "f_")
    x = f.param("x", (2, 5, 4), DType.I32)
    twice = f.compute("t", (2, 5, 4), lambda c, h, w: x[c, h, w] * 2)
    first = f.finish(twice)

    g = FuncBuilder("windows", "g_")
    t = g.use(twice)
    size = before + 5 + after - cut

    def inside(h: Expr) -> Expr:
        return logical_and(as_index(before) <= h, h < before + 5 + shift)

    padded = g.compute(
        "pad",
        (2, size, 4),
        lambda c, h, w: select(inside(h), t[c, h - before, w], const(value, DType.I32)),
    )
    y = g.reduce("y", (2, size - 2, 4), (3,), lambda c, h, w, k: padded[c, h + k, w])
    second = g.finish(y)

    r = FuncBuilder("other", "r_")
    z = r.compute("z", (2, 5, 4), lambda c, h, w: r.use(twice)[c, h, w] + 1)
    third = r.finish(z)
    program = tuple(Call(p.name, p.params) for p in (first, second, third))
    return Module((first, second, third), program, (x,), (y, z), (), (twice,))


def outputs(module: Module) -> dict[str, np.ndarray]:
    x = np.arange(40, dtype=np.int32).reshape(2, 5, 4) - 7
    return interpret_module(module, {"x": x})


@pytest.mark.parametrize(
    ("before", "after", "value", "cut"), [(1, 2, 0, 0), (2, 0, -5, 0), (0, 1, 3, 0), (1, 1, 0, 1)]
)
def test_the_program_means_the_same(before: int, after: int, value: int, cut: int) -> None:
    module = network(before, after, value, cut)
    done = FoldPadding("g_pad").apply(module)
    verify_module(done)
    expected = outputs(module)
    for name, found in outputs(done).items():
        np.testing.assert_array_equal(found, expected[name])
    names = {b.name for f in done.funcs for b in blocks(f.body)}
    assert "g_pad" not in names
    assert ("g_pad_low1" in names) == (before > 0)


def test_the_buffer_between_kernels_has_the_border() -> None:
    done = FoldPadding("g_pad").apply(network(1, 2))
    assert done.temps[0].shape == (2, 8, 4)
    assert not done.func("windows").locals


def test_a_condition_that_is_not_the_inside_is_refused() -> None:
    with pytest.raises(ScheduleError, match="into the middle of a constant"):
        FoldPadding("g_pad").apply(network(shift=-1))


def test_an_input_keeps_its_shape() -> None:
    b = FuncBuilder("pad")
    x = b.param("X", (4,), DType.I32)
    y = b.compute(
        "P",
        (6,),
        lambda i: select(logical_and(as_index(1) <= i, i < 5), x[i - 1], const(0, DType.I32)),
    )
    func = b.finish(b.compute("Y", (6,), lambda i: y[i] + 1))
    module = Module((func,), (Call(func.name, func.params),), (x,), func.outputs)
    with pytest.raises(ScheduleError, match="not a buffer between kernels"):
        FoldPadding("P").apply(module)


def test_a_block_that_computes_is_not_padding() -> None:
    module = network()
    found = {b.name: try_padding(b) for f in module.funcs for b in blocks(f.body)}
    assert found["g_pad"] is not None
    assert [n for n, p in found.items() if p is not None] == ["g_pad"]


def shared(constants: tuple[int, int] = (0, -9), one_kernel: bool = False) -> Module:
    """x -> double -> two readers that pad it, each in its own way; and a third that does not."""
    f = FuncBuilder("double", "f_")
    x = f.param("x", (5, 8), DType.I32)
    twice = f.compute("t", (5, 8), lambda h, c: x[h, c] * 2)
    builders = [FuncBuilder("windows", "g_")] * 2 if one_kernel else [FuncBuilder(n, f"{n}_") for n in "gr"]
    made: list[Buffer] = []
    for b, name, border, value in zip(builders, ("p", "q"), (1, 2), constants, strict=True):
        t = b.use(twice)

        def padded(h: Expr, c: Expr, t: Buffer = t, n: int = border, v: int = value) -> Expr:
            return select(logical_and(as_index(n) <= h, h < n + 5), t[h - n, c], const(v, DType.I32))

        made.append(b.compute(f"{name}_pad", (5 + 2 * border, 8), padded))
    results = [
        b.reduce(f"{n}_y", (p.shape[0] - 2, 8), (3,), lambda h, c, k, p=p: p[h + k, c])
        for b, n, p in zip(builders, ("p", "q"), made, strict=True)
    ]
    z = FuncBuilder("other", "o_")
    third = z.compute("z", (5, 8), lambda h, c: z.use(twice)[h, c] + 1)
    if one_kernel:
        readers = [builders[0].finish(*results)]
    else:
        readers = [b.finish(r) for b, r in zip(builders, results, strict=True)]
    funcs = (f.finish(twice), *readers, z.finish(third))
    program = tuple(Call(p.name, p.params) for p in funcs)
    return Module(funcs, program, (x,), (*results, third), (), (twice,))


def check_shared(module: Module, done: Module) -> None:
    verify_module(done)
    x = np.arange(40, dtype=np.int32).reshape(5, 8) - 7
    expected = interpret_module(module, {"x": x})
    for name, found in interpret_module(done, {"x": x}).items():
        np.testing.assert_array_equal(found, expected[name])


@pytest.mark.parametrize("constants", [(0, 0), (0, -9)])
def test_readers_share_a_border_as_wide_as_any_wants_it(constants: tuple[int, int]) -> None:
    """Each fills what it reads before it does, so that constants may differ."""
    module = shared(constants)
    done = FoldPadding("g_p_pad", ("r_q_pad",)).apply(module)
    check_shared(module, done)
    assert done.temps[0].shape == (9, 8)
    filled = {b.name: b.iters[0].extent for f in done.funcs for b in blocks(f.body)}
    assert filled["g_p_pad_low0"] == 1 and filled["r_q_pad_high0"] == 2


def test_one_of_them_may_stay_a_copy() -> None:
    module = shared()
    check_shared(module, FoldPadding("g_p_pad").apply(module))


def test_a_kernel_may_pad_in_two_ways_but_not_with_two_constants() -> None:
    module = shared((4, 4), one_kernel=True)
    check_shared(module, FoldPadding("g_p_pad", ("g_q_pad",)).apply(module))
    with pytest.raises(ScheduleError, match="different constants around the buffer at once"):
        FoldPadding("g_p_pad", ("g_q_pad",)).apply(shared(one_kernel=True))


def test_a_block_is_named_once() -> None:
    with pytest.raises(ScheduleError, match="the same buffer, each of them once"):
        FoldPadding("g_p_pad", ("g_p_pad",)).apply(shared())


def open_network() -> Module:
    """As above, with open rows: the border behind them lies where they end."""
    rows = sym_int(Dim("n", 1, 5))
    f = FuncBuilder("double", "f_")
    x = f.param("x", (2, rows, 4), DType.I32)
    first = f.finish(f.compute("t", (2, rows, 4), lambda c, h, w: x[c, h, w] * 2))
    (twice,) = first.outputs

    g = FuncBuilder("windows", "g_")
    t = g.use(Buffer(twice.name, (2, rows, 4), DType.I32))

    def element(c: Expr, h: Expr, w: Expr) -> Expr:
        inside = logical_and(as_index(1) <= h, h < 1 + rows)
        return select(inside, t[c, h - 1, w], const(-3, DType.I32))

    padded = g.compute("pad", (2, rows + 3, 4), element)
    second = g.finish(g.reduce("y", (2, rows + 1, 4), (3,), lambda c, h, w, k: padded[c, h + k, w]))
    program = tuple(Call(p.name, p.params) for p in (first, second))
    inputs = (first.params[0], size_buffer("n"))
    return Module((first, second), program, inputs, second.outputs, (), (twice,))


@pytest.mark.parametrize("rows", range(1, 6))
def test_a_border_lies_where_an_open_dimension_ends(rows: int) -> None:
    module = open_network()
    folded = FoldPadding("g_pad").apply(module)
    verify_module(folded)
    assert not any(b.name == "g_pad" for f in folded.funcs for b in blocks(f.body))
    x = np.arange(40, dtype=np.int32).reshape(2, 5, 4) - 7
    feeds = {"x": x, "size__n": np.array([rows])}
    (wanted,), (got,) = (interpret_module(m, feeds).values() for m in (module, folded))
    np.testing.assert_array_equal(got[:, : rows + 1], wanted[:, : rows + 1])
    plain = np.full((2, rows + 3, 4), -3)
    plain[:, 1 : rows + 1] = 2 * x[:, :rows]
    np.testing.assert_array_equal(got[:, : rows + 1], sum(plain[:, k : k + rows + 1] for k in range(3)))
