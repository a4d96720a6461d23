"""One test per mistake that a step on computation or data refuses, named after the mistake.

Each refusal says which step, where in the program, which condition is violated and, where there is one, what to do;
and it leaves the module as it was.
"""

import pytest

from tilewright.ir import layout as lay
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Scope, Var, as_index, const, maximum
from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    DecomposeReduction,
    LoopPartition,
    Parallel,
    Reorder,
    ReverseComputeAt,
    ReverseComputeInline,
    SetScope,
    Split,
    TransformLayout,
)
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Call, External, Func, Module, single
from tilewright.tir.stmt import Block, For, Iter, IterKind, Store, seq

I32 = DType.I32
LOCAL = Scope.LOCAL


def dense() -> Func:
    b = FuncBuilder("dense")
    x, y, bias = b.param("A", (8, 4), I32), b.param("B", (4, 6), I32), b.param("bias", (6,), I32)
    c = b.reduce("C", (8, 6), (4,), lambda i, j, k: (x[i, k], y[k, j]))
    d = b.compute("D", (8, 6), lambda i, j: c[i, j] + bias[j])
    return b.finish(b.compute("E", (8, 6), lambda i, j: maximum(d[i, j], 0)))


def stencil() -> Func:
    b = FuncBuilder("stencil")
    x = b.param("X", (9,), I32)
    t = b.compute("T", (9,), lambda i: x[i] * 2)
    return b.finish(b.compute("U", (8,), lambda i: t[i] + t[i + 1]))


def in_place() -> Func:
    """T = X; X = X + 1 in place; Y = T."""
    b = FuncBuilder("in_place")
    x = b.param("X", (4,), I32)
    t = b.compute("T", (4,), lambda i: x[i])
    b.compute("X1", (4,), lambda i: x[i] + 1, out=x)
    return b.finish(b.compute("Y", (4,), lambda i: t[i] * 2))


def two_writers() -> Func:
    """T's halves are written by two blocks, and read by a third."""
    b = FuncBuilder("halves")
    x, y = b.param("X", (4,), I32), b.param("Y", (4,), I32)
    t = Buffer("T", (8,), I32)
    b.compute("L", (4,), lambda i: x[i], out=t)
    func = b.finish(b.compute("Z", (8,), lambda i: t[i] * 2))
    v, i = Var("R_vi"), Var("R_i")
    right = For(i, 4, Block("R", (Iter(v, 4),), (i,), Store(t, (v + 4,), y[v])))
    body = func.body
    return Func(func.name, (x, y, Buffer("Z", (8,), I32)), (t,), seq(right, body), func.outputs[1:])


def refused(func: Func | Module, *steps: Step) -> str:
    """The message of the last step, which must be refused; the ones before it are legal."""
    module = replay(single(func) if isinstance(func, Func) else func, steps[:-1])
    with pytest.raises(ScheduleError) as e:
        steps[-1].apply(module)
    text = str(e.value)
    assert text.startswith(str(steps[-1])), text
    return text


def marked(text: str) -> str:
    """The line of the excerpt that is marked."""
    return next(line for line in text.splitlines() if "<-- here" in line)


# -------------------------------------------------------------------------------------------------- reverse_compute_at


def test_consumer_moved_into_an_unfinished_reduction() -> None:
    order = Reorder(("C_k", "C_i", "C_j"))
    text = refused(dense(), order, ReverseComputeAt("D", "C_j"))
    assert (
        "loop 'C_k' carries the reduction of block 'C': C is not finished inside it, where block 'D' would read it"
        in text
    )
    text = refused(dense(), ReverseComputeAt("D", "C_k"))
    assert "carries the reduction" in text
    assert "choose a loop outside all reduction loops" in text


def test_consumer_moved_into_the_outer_part_of_a_split_reduction() -> None:
    text = refused(dense(), Split("C_k", (2, 2)), Reorder(("C_k_0", "C_i")), ReverseComputeAt("D", "C_i"))
    assert "loop 'C_k_0' carries the reduction" in text


def test_consumer_that_needs_more_than_an_iteration_writes() -> None:
    text = refused(stencil(), ReverseComputeAt("U", "T_i"))
    assert "block 'U' needs more of T than one iteration of 'T_i' has written" in text
    assert "for T_i in range(9)" in marked(text)


def test_consumer_moved_away_from_its_producers() -> None:
    text = refused(dense(), ReverseComputeAt("C", "D_i"))
    assert "reads what block 'C' writes" in text
    text = refused(dense(), ReverseComputeAt("E", "C_i"))
    assert "block 'D' writes D, which block 'E' reads, only after the place under loop 'C_i'" in text
    text = refused(dense(), ReverseComputeAt("D", "E_i"))
    assert "under loop 'E_i' reads what block 'D' writes" in text


def test_consumer_moved_to_a_loop_without_producers() -> None:
    b = FuncBuilder("apart")
    x = b.param("X", (4,), I32)
    b.compute("A", (4,), lambda i: x[i], out=Buffer("A", (4,), I32))
    f = b.finish(b.compute("B", (4,), lambda i: x[i] * 2))
    assert "no block under loop 'A_i' writes what block 'B' reads" in refused(f, ReverseComputeAt("B", "A_i"))


def test_consumer_of_holes() -> None:
    """The producer's loop writes every second element: no box of finished elements follows it."""
    b = FuncBuilder("holes")
    x = b.param("X", (8,), I32)
    t = b.compute("T", (8,), lambda i: x[i])
    f = b.finish(b.compute("U", (8,), lambda i: t[i] + 1))
    text = refused(f, Split("T_i", (4, 2)), Reorder(("T_i_1", "T_i_0")), ReverseComputeAt("U", "T_i_1"))
    assert "is not known to be a box without holes" in text


def test_consumer_of_a_buffer_whose_other_part_is_written_elsewhere() -> None:
    text = refused(dense(), LoopPartition("C_i", (4,)), ReverseComputeAt("D", "C_i_p1"))
    assert "the writers of C are under different loops" in text


def test_consumer_that_is_one_of_two_writers() -> None:
    assert "T has two writers" in refused(two_writers(), ReverseComputeAt("L", "R_i"))


def test_consumer_of_scattered_parts() -> None:
    """An iteration writes T[t] and T[t + 4]."""
    x, t, z = Buffer("X", (8,), I32), Buffer("T", (8,), I32), Buffer("Z", (8,), I32)
    n, v, w = Var("t"), Var("vl"), Var("vr")
    left = Block("L", (Iter(v, 4),), (n,), Store(t, (v,), x[v]))
    right = Block("R", (Iter(w, 4),), (n,), Store(t, (w + 4,), x[w + 4]))
    i, u = Var("Z_i"), Var("Z_vi")
    reader = For(i, 8, Block("Z", (Iter(u, 8),), (i,), Store(z, (u,), t[u])))
    f = Func("parts", (x, z), (t,), seq(For(n, 4, seq(left, right)), reader), (z,))
    text = refused(f, ReverseComputeAt("Z", "t"))
    assert "the writers of T under 't' do not fill one box together" in text


def test_consumer_whose_buffer_was_read_before() -> None:
    """Y takes the old content of X, so X cannot be written any earlier."""
    b = FuncBuilder("swap")
    x, z = b.param("X", (4,), I32), b.param("Z", (4,), I32)
    t = b.compute("T", (4,), lambda i: z[i] * 2)
    y = b.compute("Y", (4,), lambda i: x[i])
    b.compute("X1", (4,), lambda i: t[i], out=x)
    text = refused(b.finish(y, x), ReverseComputeAt("X1", "T_i"))
    assert "block 'Y' reads the buffer before block 'X1' writes it" in text


# -------------------------------------------------------------------------------------------------------- compute_at


def test_output_moved_by_compute_at() -> None:
    text = refused(dense(), ComputeAt("E", "D_i"))
    assert "E is a parameter of dense: others use what block 'E' writes" in text


def test_producer_with_a_consumer_elsewhere() -> None:
    b = FuncBuilder("two")
    x = b.param("X", (4,), I32)
    t = b.compute("T", (4,), lambda i: x[i])
    u = b.compute("U", (4,), lambda i: t[i] + 1)
    f = b.finish(u, b.compute("V", (4,), lambda i: t[i] + 2))
    text = refused(f, ComputeAt("T", "V_i"))
    assert "consumer 'U' of block 'T' is not under loop 'V_i'" in text
    assert "U(" in marked(text)


def test_producer_without_consumers() -> None:
    x, t, y = Buffer("X", (4,), I32), Buffer("T", (4,), I32), Buffer("Y", (4,), I32)
    b = FuncBuilder("dead")
    b.use(x)
    b.compute("T", (4,), lambda i: x[i], out=t)
    f = b.finish(b.compute("Y", (4,), lambda i: x[i] * 2))
    f = Func(f.name, (x, y), (t,), f.body, (y,))
    assert "nothing in dead reads what block 'T' writes" in refused(f, ComputeAt("T", "Y_i"))
    assert "nothing in dead reads T" in refused(f, ComputeInline("T"))


def test_producer_whose_inputs_are_overwritten() -> None:
    text = refused(in_place(), ComputeAt("T", "Y_i"))
    assert "block 'X1' overwrites X, which block 'T' has read before" in text


def scan() -> Func:
    """P[k] = the sum of X[0 … k], read from a running sum."""
    x, c = Buffer("X", (5,), I32), Buffer("C", (1,), I32)
    p, y = Buffer("P", (5,), I32), Buffer("Y", (5,), I32)
    k, vk, vp, i, vi = Var("k"), Var("vk"), Var("vp"), Var("i"), Var("vi")
    zero = as_index(0)
    total = Store(c, (zero,), c[zero] + x[vk])
    add = Block("C", (Iter(vk, 5, IterKind.REDUCE),), (k,), total, Store(c, (zero,), const(0, I32)))
    keep = Block("P", (Iter(vp, 5),), (k,), Store(p, (vp,), c[zero]))
    reader = For(i, 5, Block("Y", (Iter(vi, 5),), (i,), Store(y, (vi,), p[vi] * 2)))
    return Func("scan", (x, y), (c, p), seq(For(k, 5, seq(add, keep)), reader), (y,))


@pytest.mark.parametrize("step", [ComputeInline("P"), ComputeAt("P", "i")], ids=str)
def test_reader_of_intermediate_values(step: Step) -> None:
    assert "loop 'k' carries the reduction of block 'C'" in refused(scan(), step)


def latest() -> Func:
    """U[i] = T[i] + W[0], where the one element of W is written in every iteration that writes T."""
    x, t = Buffer("X", (5,), I32), Buffer("T", (5,), I32)
    w, u = Buffer("W", (1,), I32), Buffer("U", (5,), I32)
    k, vt, vw, i, vu = Var("k"), Var("vt"), Var("vw"), Var("i"), Var("vu")
    zero = as_index(0)
    first = Block("T", (Iter(vt, 5),), (k,), Store(t, (vt,), x[vt] * 2))
    second = Block("W", (Iter(vw, 5),), (k,), Store(w, (zero,), x[vw]))
    last = For(i, 5, Block("U", (Iter(vu, 5),), (i,), Store(u, (vu,), t[vu] + w[zero])))
    return Func("latest", (x, u), (t, w), seq(For(k, 5, seq(first, second)), last), (u,))


def test_consumer_of_an_element_that_is_written_again() -> None:
    text = refused(latest(), ReverseComputeAt("U", "k"))
    assert (
        "block 'W' writes elements of W anew in each iteration of 'k', where block 'U' would read them"
        in text
    )


def test_producer_recomputed_in_a_parallel_loop() -> None:
    text = refused(stencil(), Parallel("U_i"), ComputeAt("T", "U_i"))
    assert "iterations of the parallel loop 'U_i' would write the same elements of T" in text


def test_producer_moved_before_its_inputs() -> None:
    text = refused(dense(), ComputeAt("D", "E_j"), ComputeAt("C", "E_j"), ComputeAt("D", "E_i"))
    assert "block 'C' writes C, which block 'D' reads, only after the place under loop 'E_i'" in text


def test_producer_that_needs_more_than_its_inputs_have() -> None:
    """Rows of D in blocks of 4 do not fit tiles of 3 rows, of which C has one at a time."""
    tile = (Split("E_i", (None, 3)), ComputeAt("D", "E_i_0"), ComputeAt("C", "E_i_0"))
    blocks = TransformLayout("D", lay.Layout((lay.SplitDim(0, 4),)))
    text = refused(dense(), *tile, blocks, ComputeAt("D", "E_i_0"))
    assert "block 'D' needs more of C than is complete inside loop 'E_i_0'" in text


# ------------------------------------------------------------------------------------------------------------ inline


def test_inlined_reduction() -> None:
    text = refused(dense(), ComputeInline("C"))
    assert "block 'C' is a reduction" in text
    assert "ComputeAt" in text


def test_inlined_output() -> None:
    assert "E is a parameter of dense" in refused(dense(), ComputeInline("E"))


def test_inlined_block_with_two_writers() -> None:
    assert "T has two writers, blocks 'L' and 'R'" in refused(two_writers(), ComputeInline("L"))


def test_inlined_block_whose_inputs_are_overwritten() -> None:
    assert "overwrites X" in refused(in_place(), ComputeInline("T"))


def test_inlined_block_that_updates_in_place() -> None:
    b = FuncBuilder("update")
    x = b.param("X", (4,), I32)
    t = b.compute("T", (4,), lambda i: x[i])
    b.compute("T1", (4,), lambda i: t[i] + 1, out=t)
    f = b.finish(b.compute("Y", (4,), lambda i: t[i]))
    f = Func(f.name, tuple(p for p in f.params if p is not t), (t,), f.body, f.outputs[1:])
    assert "has two writers" in refused(f, ComputeInline("T1"))


def test_inlined_block_whose_indices_do_not_decide_its_iterators() -> None:
    text = refused(single(folded()), ComputeInline("T"))
    assert "the indices at which block 'T' stores do not decide its iterators" in text


def folded() -> Func:
    """T[i // 2] = X[i]: the last of two instances wins."""
    x, t, y = Buffer("X", (8,), I32), Buffer("T", (4,), I32), Buffer("Y", (4,), I32)
    i, v, j, w = Var("T_i"), Var("T_vi"), Var("Y_j"), Var("Y_vj")
    first = For(i, 8, Block("T", (Iter(v, 8),), (i,), Store(t, (v // 2,), x[v])))
    second = For(j, 4, Block("Y", (Iter(w, 4),), (j,), Store(y, (w,), t[w] + 1)))
    return Func("folded", (x, y), (t,), seq(first, second), (y,))


def reading(shape: tuple[int, ...], index: object) -> Func:
    b = FuncBuilder("reading")
    x = b.param("X", (4, 6), I32)
    t = b.compute("T", (4, 6), lambda i, j: x[i, j] * 2)
    assert callable(index)
    return b.finish(b.compute("U", shape, lambda i, j: index(t, i, j) + 1))


def test_reverse_inline_into_a_reduction() -> None:
    text = refused(dense(), ReverseComputeInline("D"))
    assert "block 'C' is a reduction" in text
    assert "ReverseComputeAt" in text


@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((4, 6), lambda t, i, j: t[i, as_index(0)]),  # a column, broadcast
        ((4, 3), lambda t, i, j: t[i, j * 2]),  # every second element
        ((4, 5), lambda t, i, j: t[i, j + 1]),  # a slice
        ((4, 6), lambda t, i, j: t[i, j // 2]),  # each element twice
        ((4, 4), lambda t, i, j: t[i, i]),  # a diagonal
    ],
    ids=["broadcast", "strided", "slice", "repeat", "diagonal"],
)
def test_reverse_inline_over_indices_that_cannot_be_inverted(shape: tuple[int, ...], index: object) -> None:
    text = refused(reading(shape, index), ReverseComputeInline("U"))
    assert "does not read every element of T that block 'T' writes in exactly one instance" in text


def test_reverse_inline_of_two_reads() -> None:
    text = refused(stencil(), ReverseComputeInline("U"))
    assert "block 'U' reads T at 2 different places" in text


def test_reverse_inline_with_another_consumer() -> None:
    b = FuncBuilder("two")
    x = b.param("X", (4,), I32)
    t = b.compute("T", (4,), lambda i: x[i])
    u = b.compute("U", (4,), lambda i: t[i] + 1)
    f = b.finish(u, b.compute("V", (4,), lambda i: t[i] + 2))
    assert "block 'V' reads T too" in refused(f, ReverseComputeInline("U"))


def test_reverse_inline_of_a_broadcast() -> None:
    b = FuncBuilder("broadcast")
    x = b.param("X", (4,), I32)
    t = b.compute("T", (4,), lambda i: x[i] * 2)
    f = b.finish(b.compute("U", (4, 6), lambda i, j: t[i] + 1))
    text = refused(f, ReverseComputeInline("U"))
    assert "the indices at which block 'U' reads T do not decide its iterators" in text


def test_reverse_inline_with_an_input_that_is_not_complete() -> None:
    b = FuncBuilder("late")
    x = b.param("X", (4,), I32)
    s = b.compute("S", (4,), lambda i: x[i] * 2)
    t = b.compute("T", (4,), lambda i: s[i] + 1)
    f = b.finish(b.compute("U", (4,), lambda i: t[i] * s[as_index(3) - i]))
    replay(single(f), (ReverseComputeInline("U"),))  # legal as long as S is complete before T
    text = refused(f, ReverseComputeAt("T", "S_i"), ReverseComputeInline("U"))
    assert "block 'U' also reads S, which is not complete where block 'T' runs" in text


def test_reverse_inline_without_a_producer() -> None:
    text = refused(stencil(), ReverseComputeInline("T"))
    assert "no block of stencil writes what block 'T' reads" in text


def test_reverse_inline_into_an_output() -> None:
    b = FuncBuilder("seen")
    x = b.param("X", (4,), I32)
    t = b.compute("T", (4,), lambda i: x[i] * 2)
    f = b.finish(t, b.compute("U", (4,), lambda i: t[i] + 1))
    assert "T is a parameter of seen" in refused(f, ReverseComputeInline("U"))


def test_inlined_block_with_two_stores() -> None:
    x, t, z = Buffer("X", (4,), I32), Buffer("T", (8,), I32), Buffer("Z", (8,), I32)
    n, v, i, u = Var("T_i"), Var("T_vi"), Var("Z_i"), Var("Z_vi")
    both = seq(Store(t, (v,), x[v]), Store(t, (v + 4,), x[v]))
    reader = For(i, 8, Block("Z", (Iter(u, 8),), (i,), Store(z, (u,), t[u])))
    f = Func("both", (x, z), (t,), seq(For(n, 4, Block("T", (Iter(v, 4),), (n,), both)), reader), (z,))
    assert "the body of block 'T' is not one store" in refused(f, ComputeInline("T"))


# --------------------------------------------------------------------------------------------------- nested blocks


def nested() -> Func:
    """A block of rows that holds the block of elements, and a reader."""
    x, t, z = Buffer("X", (4, 3), I32), Buffer("T", (4, 3), I32), Buffer("Z", (4, 3), I32)
    i, j, vi, vj = Var("i"), Var("j"), Var("vi"), Var("vj")
    inner = Block("T", (Iter(vj, 3),), (j,), Store(t, (vi, vj), x[vi, vj] * 2))
    outer = For(i, 4, Block("row", (Iter(vi, 4),), (i,), For(j, 3, inner)))
    k, n, vk, vn = Var("Z_k"), Var("Z_n"), Var("Z_vk"), Var("Z_vn")
    element = Block("Z", (Iter(vk, 4), Iter(vn, 3)), (k, n), Store(z, (vk, vn), t[vk, vn] + 1))
    return Func("nested", (x, z), (t,), seq(outer, For(k, 4, For(n, 3, element))), (z,))


def test_block_that_holds_blocks() -> None:
    text = refused(nested(), ComputeAt("row", "Z_k"))
    assert "block 'row' holds loops or blocks of its own" in text


def test_block_moved_across_a_block() -> None:
    assert "are inside different blocks" in refused(nested(), ReverseComputeAt("Z", "j"))
    assert "are inside different blocks" in refused(nested(), ComputeAt("T", "Z_k"))
    assert "block 'T' is inside block 'row'" in refused(nested(), ComputeInline("T"))


def test_reader_may_follow_a_nested_block() -> None:
    """The region that a nested block writes is seen through the block around it."""
    after = replay(single(nested()), (ReverseComputeAt("Z", "i"),)).funcs[0]
    assert [n.extent for n in loops_above(after, find_block(after, "Z"))] == [4, 1, 3]


# ------------------------------------------------------------------------------------------------------------ caches


def test_cache_of_a_buffer_that_the_block_does_not_use() -> None:
    assert "block 'C' does not write D" in refused(dense(), CacheWrite("C", "D", LOCAL))
    assert "block 'C' does not read bias" in refused(dense(), CacheRead("C", "bias", LOCAL))
    text = refused(dense(), CacheRead("C", "nobody", LOCAL))
    assert "has no buffer 'nobody'" in text
    assert "its buffers are: A, B, bias" in text


def test_cache_write_after_a_consumer_has_moved_in() -> None:
    text = refused(dense(), ReverseComputeAt("D", "C_i"), CacheWrite("C", "C", LOCAL))
    assert "block 'D' in the same nest reads C before the copy is made" in text


def test_cache_write_of_a_decomposed_reduction() -> None:
    text = refused(dense(), DecomposeReduction("C", "C_k"), CacheWrite("C", "C", LOCAL))
    assert "C has two writers" in text


def test_cache_write_of_an_update_in_place() -> None:
    text = refused(in_place(), CacheWrite("X1", "X", LOCAL))
    assert "block 'X1' changes X in place" in text


def test_cache_write_of_scattered_elements() -> None:
    x, y = Buffer("X", (4,), I32), Buffer("Y", (8,), I32)
    i, v = Var("Y_i"), Var("Y_vi")
    body = For(i, 4, Block("Y", (Iter(v, 4),), (i,), Store(y, (v * 2,), x[v])))
    text = refused(Func("scatter", (x, y), (), body, (y,)), CacheWrite("Y", "Y", LOCAL))
    assert "is not known to be a box without holes" in text


def test_cache_read_before_the_writer_is_done() -> None:
    text = refused(dense(), ReverseComputeAt("D", "C_i"), CacheRead("D", "C", LOCAL))
    assert "the copy would be made too early" in text


def test_cache_read_of_a_box_with_holes() -> None:
    blocks_of_four = TransformLayout("T", lay.Layout((lay.PadDim(0, 0, 3), lay.SplitDim(0, 4))))
    text = refused(stencil(), blocks_of_four, CacheRead("U", "T", LOCAL))
    assert "holds elements that nobody writes" in text
    assert "cache the buffer before its layout is padded" in text


def test_cache_made_twice() -> None:
    text = refused(dense(), CacheRead("C", "B", LOCAL), CacheRead("C", "B", LOCAL))
    assert "block 'C' does not read B" in text
    text = refused(dense(), CacheWrite("C", "C", LOCAL), CacheWrite("C_C_out", "C", LOCAL))
    assert "the new name 'C_local' is taken" in text


# -------------------------------------------------------------------------------------------------- scope and layout


def test_scope_of_a_parameter() -> None:
    assert "A is shared between kernels or with the caller" in refused(dense(), SetScope("A", LOCAL))
    assert "no Func has a local buffer 'nobody'" in refused(dense(), SetScope("nobody", LOCAL))


def test_scope_of_a_buffer_that_carries_values_into_a_parallel_loop() -> None:
    text = refused(dense(), Parallel("E_i"), SetScope("D", LOCAL))
    assert "block 'E' uses D in the parallel loop 'E_i', and block 'D' outside of it" in text


def test_layout_of_inputs_and_outputs() -> None:
    swap = lay.Layout((lay.ReorderDims((1, 0)),))
    for name in ("A", "E"):
        assert f"{name} is an input or output of the module" in refused(dense(), TransformLayout(name, swap))
    assert "the module has no buffer 'nobody'" in refused(dense(), TransformLayout("nobody", swap))


@pytest.mark.parametrize(
    ("primitive", "why"),
    [
        (lay.SplitDim(2, 4), "there is no dimension 2"),
        (lay.SplitDim(0, 0), "the factor must be positive"),
        (lay.ReorderDims((0, 0)), "the order is no permutation"),
        (lay.FuseDims(1, 2), "it reaches over the end"),
        (lay.PadDim(0, -1, 0), "padding must not be negative"),
        (lay.PadDim(7, 0, 1), "there is no dimension 7"),
    ],
)
def test_layout_that_does_not_fit(primitive: lay.LayoutPrimitive, why: str) -> None:
    text = refused(dense(), TransformLayout("C", lay.Layout((primitive,))))
    assert why in text
    assert "C: i32[8, 6]" in text


def test_layout_that_external_code_sees() -> None:
    f = dense()
    t = Buffer("T", (8, 6), I32)
    program = (Call(f.name, f.params), External("plugin", (f.outputs[0],), (t,)))
    module = Module((f,), program, f.params[:3], (), (), (f.outputs[0], t))
    text = refused(module, TransformLayout("E", lay.Layout((lay.ReorderDims((1, 0)),))))
    assert "E is used by external code or as a condition" in text


# ------------------------------------------------------------------------------------------------------------ names


def test_names_that_do_not_exist() -> None:
    assert "no loop or block is named 'nobody'" in refused(dense(), ComputeAt("nobody", "C_i"))
    text = refused(dense(), ComputeAt("C", "nowhere"))
    assert "dense has no loop 'nowhere'" in text


def test_loop_name_that_stays_in_use() -> None:
    """D moves away, but the loop D_0 that it made before still holds C."""
    text = refused(dense(), ComputeAt("D", "E_i"), ComputeAt("C", "D_0"), ComputeAt("D", "E_j"))
    assert "the new name 'D_0' is taken" in text


def test_a_refused_step_leaves_the_module_alone() -> None:
    module = single(dense())
    before = module.funcs[0]
    with pytest.raises(ScheduleError):
        ComputeInline("C").apply(module)
    assert module.funcs[0] is before


def test_consumer_that_is_alone() -> None:
    b = FuncBuilder("alone")
    x = b.param("X", (4,), I32)
    f = b.finish(b.compute("Y", (4,), lambda i: x[i]))
    assert "block 'Y' is alone in alone" in refused(f, ReverseComputeAt("Y", "Y_i"))
