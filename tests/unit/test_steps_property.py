"""Any legal trace keeps the meaning of a program, and what is illegal is refused."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_programs import PROGRAMS, check

from tilewright.ir import layout
from tilewright.schedule.find import find_block, find_loop, path_to
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    Annotate,
    Attach,
    Bind,
    Blockize,
    ComputeAt,
    ComputeInline,
    DecomposePadding,
    DecomposeReduction,
    Distribute,
    Fuse,
    LoopPartition,
    Merge,
    PadEinsum,
    Parallel,
    Reorder,
    ReverseComputeAt,
    Rfactor,
    RollingBuffer,
    SampleCategorical,
    SampleComputeLocation,
    SamplePerfectTile,
    Split,
    TransformBlockLayout,
    TransformLayout,
    Unroll,
    Vectorize,
)
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import For, Store, blocks, loops, walk_stmts

MOVES = [
    "split",
    "reorder",
    "fuse",
    "kind",
    "bind",
    "annotate",
    "partition",
    "decompose",
    "rfactor",
    "move",
    "inline",
    "distribute",
    "merge",
    "blockize",
    "layout",
    "tiles",
    "attach",
    "pad",
    "pad_apart",
    "roll",
    "sample",
]


def _chains(func: Func) -> list[list[str]]:
    """Loops along one way from the top down to a block."""
    return [
        [n.var.name for n in path_to(func.body, b) if isinstance(n, For)] or ["none"]
        for b in blocks(func.body)
    ]


@st.composite
def a_layout(draw: st.DrawFn, rank: int) -> layout.Layout:
    dim = draw(st.integers(0, max(rank - 1, 0)))
    first = st.sampled_from([layout.SplitDim(dim, 2), layout.FuseDims(dim, 2), layout.FuseDims(dim, 1)])
    order = layout.ReorderDims(tuple(draw(st.permutations(range(rank)))))
    return layout.Layout(tuple(draw(st.permutations([order, draw(first)]))[: draw(st.integers(1, 2))]))


@st.composite
def a_step(draw: st.DrawFn, func: Func) -> Step:
    """Some step on the loops and blocks that there are; often an illegal one."""
    names = [n.var.name for n in loops(func.body)]
    loop = draw(st.sampled_from(names))
    block = draw(st.sampled_from([b.name for b in blocks(func.body)]))
    extent = find_loop(func, loop).extent
    match draw(st.sampled_from(MOVES)):
        case "split":
            return Split(loop, (None, draw(st.integers(1, 5))))
        case "reorder":
            return Reorder(tuple(draw(st.permutations(draw(st.sampled_from(_chains(func)))))))
        case "fuse":
            body = find_loop(func, loop).body
            return Fuse((loop, body.var.name if isinstance(body, For) else draw(st.sampled_from(names))))
        case "kind":
            return draw(st.sampled_from([Parallel, Vectorize, Unroll]))(loop)
        case "bind":
            return Bind(loop, draw(st.sampled_from(["block_x", "thread_x", "thread_y", "vthread"])))
        case "annotate":
            return Annotate(draw(st.sampled_from([loop, block])), "note", draw(st.sampled_from([1, None])))
        case "partition":
            return LoopPartition(loop, (draw(st.integers(1, max(1, extent - 1))),))
        case "decompose":
            return DecomposeReduction(block, loop)
        case "rfactor":
            return Rfactor(block, loop)
        case "inline":
            return ComputeInline(block)
        case "layout":
            return TransformBlockLayout(block, draw(a_layout(len(find_block(func, block).iters))))
        case "tiles":
            shape = {b.name: b.shape for b in (*func.params, *func.locals)}
            buffer = draw(st.sampled_from([b.name for b in func.locals or func.params]))
            tile = draw(st.integers(1, 4))
            dim = draw(st.integers(0, len(shape[buffer]) - 1))
            unfold = layout.UnfoldDim(dim, tile, draw(st.integers(1, tile)))
            return TransformLayout(buffer, layout.Layout((unfold,)))
        case "attach":
            local = st.sampled_from([b.name for b in func.locals or func.params])
            return Attach(draw(local), draw(local), draw(st.integers(0, 1)))
        case "pad":
            count = len(find_block(func, block).iters)
            return PadEinsum(block, tuple(draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))))
        case "pad_apart":
            return DecomposePadding(block, loop)
        case "roll":
            stored = [n.buffer.name for n in walk_stmts(find_block(func, block)) if isinstance(n, Store)]
            return RollingBuffer(block, stored[0])
        case "sample":
            parts = tuple(d for d in range(1, extent + 1) if extent % d == 0)
            inner = draw(st.sampled_from(parts or (1,)))
            tile = SamplePerfectTile(loop, 2, 8, (extent // inner, inner))
            place = SampleComputeLocation(block, draw(st.sampled_from(["root", "inline", loop])))
            either = SampleCategorical(((Unroll(loop),), (Split(loop, (None, 2)),)), draw(st.integers(0, 1)))
            return draw(st.sampled_from([tile, place, either]))
        case "blockize":
            return Blockize(loop)
        case "merge":
            return Merge((loop, draw(st.sampled_from(names))))
        case "distribute":
            return Distribute(loop)
        case _:
            return draw(st.sampled_from([ComputeAt, ReverseComputeAt]))(block, loop)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_legal_trace_keeps_the_meaning(data: st.DataObject) -> None:
    func = PROGRAMS[data.draw(st.sampled_from(sorted(PROGRAMS)))]
    s = Schedule(single(func))
    for _ in range(data.draw(st.integers(1, 8))):
        step = data.draw(a_step(s.module.funcs[0]))
        try:
            s.apply(step)
        except ScheduleError as e:
            assert str(e).startswith(str(step))
    check(func, *s.trace)
