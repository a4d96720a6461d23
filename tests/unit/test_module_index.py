"""The Funcs of a Module by name, block and buffer: what steps hand on is what is there."""

import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, select
from tilewright.ir.layout import Layout, ReorderDims, UnfoldDim
from tilewright.schedule.step import Step
from tilewright.schedule.steps import Attach, JoinFuncs, StoreAt, TransformLayout
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Call, Func, Module
from tilewright.tir.verify import verify_module

F32 = DType.F32


def chain(length: int) -> Module:
    """t0 … are computed one from the other, p and q from the last; `cat` puts these side by side."""
    source = Buffer("x", (4, 8), F32)
    made: list[Buffer] = []
    funcs: list[Func] = []
    for name in (*(f"t{n}" for n in range(length)), "p", "q"):
        f = FuncBuilder(f"make_{name}")
        before = f.use(made[min(len(made), length) - 1] if made else source)
        made.append(f.compute(name, (4, 8), lambda i, j, before=before: before[i, j] * 2))
        funcs.append(f.finish(made[-1]))
    f = FuncBuilder("join")
    a, b = f.use(made[-2]), f.use(made[-1])
    cat = f.compute("cat", (8, 8), lambda i, j: select(i < 4, a[i, j], b[i - 4, j]))
    funcs.append(f.finish(cat))
    f = FuncBuilder("last")
    out = f.compute("out", (8, 8), lambda i, j: f.use(cat)[i, j] + 1)
    funcs.append(f.finish(out))
    program = tuple(Call(f.name, f.params) for f in funcs)
    return Module(tuple(funcs), program, (source,), (out,), temps=(*made, cat))


def check(module: Module) -> None:
    verify_module(module)
    for f in module.funcs:
        assert module.func(f.name) is f
        for block in f.names.blocks:
            assert module.func_of_block(block) is f
        for b in (*f.params, *f.locals):
            assert module.buffer(b.name) is b
            assert {u.name for u in module.users(b)} == {
                g.name for g in module.funcs if b in (*g.params, *g.locals)
            }
    fresh = Module(
        module.funcs, module.program, module.inputs, module.outputs, module.constants, module.temps
    )
    assert module.func("last") is fresh.func("last")
    mine, anew = module.known_index, fresh.known_index
    assert mine is not None and anew is not None
    assert mine.funcs.items() == anew.funcs.items() and mine.calls.items() == anew.calls.items()
    assert mine.blocks.items() == anew.blocks.items() and mine.buffers.items() == anew.buffers.items()
    assert {b: set(u) for b, u in mine.users.items()} == {b: set(u) for b, u in anew.users.items()}


STEPS = (
    TransformLayout("t3", Layout((ReorderDims((1, 0)),))),
    JoinFuncs("make_t1", "make_t2"),
    StoreAt("cat", "p"),
    StoreAt("cat_high", "q"),  # after which nothing is left of its Func
    TransformLayout("t0", Layout((UnfoldDim(1, 4, 3),))),  # which is copied
    Attach("t3", "cat", 0),
)


def test_what_steps_hand_on() -> None:
    module = chain(5)
    with pytest.raises(KeyError):
        module.func("elsewhere")
    assert module.buffer("elsewhere") is None and module.func_of_block("elsewhere") is None
    check(module)
    for step in STEPS:
        module = step.apply(module)
        check(module)
    assert "join" not in {f.name for f in module.funcs}


@pytest.mark.parametrize("step", [*STEPS[:3], *STEPS[4:5]], ids=lambda s: type(s).__name__)
def test_a_step_leaves_the_others_as_they_are(step: Step) -> None:
    before = chain(50)
    after = step.apply(before)
    check(after)
    known = {id(f) for f in before.funcs}
    assert len([f for f in after.funcs if id(f) not in known]) <= 3
    calls = {id(c) for c in before.program}
    assert len([c for c in after.program if id(c) not in calls]) <= 3
