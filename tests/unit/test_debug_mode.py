"""Debug mode names the step that did something it must not."""

from dataclasses import dataclass, replace

import pytest
from schedule_programs import elementwise, matmul

from tilewright.gir.movement import Movement
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Var, as_index
from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.find import find_block, find_loop
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import FuncStep
from tilewright.schedule.steps.stream_elements import StreamElements
from tilewright.schedule.steps.stream_rows import StreamRows
from tilewright.support.errors import InternalError, ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Iter, LoopKind, Store, seq


@dataclass(frozen=True, slots=True)
class Shorten(FuncStep):
    """A step that is wrong: the loop leaves out its last iteration."""

    loop: str

    def anchor(self) -> str:
        return self.loop

    def rewrite(self, func: Func) -> Func:
        loop = find_loop(func, self.loop)
        return replace_stmt(func, loop, replace(loop, extent=loop.extent - 1))


@dataclass(frozen=True, slots=True)
class Flatten(FuncStep):
    """Another one: an iterator is bound to 0, and its loop races."""

    loop: str
    block: str

    def anchor(self) -> str:
        return self.loop

    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        func = replace_stmt(func, block, replace(block, bindings=(as_index(0), *block.bindings[1:])))
        loop = find_loop(func, self.loop)
        return replace_stmt(func, loop, replace(loop, kind=LoopKind.PARALLEL))


def test_good_steps_pass() -> None:
    s = Schedule(matmul(relu=True), debug=True)
    i, _ = s.split("D_i", (None, 3))
    s.compute_at("C", i)
    s.decompose_reduction("C", "C_2")
    s.parallel(i)
    assert len(s.trace) == 4


def test_a_step_that_leaves_elements_unwritten_is_named() -> None:
    s = Schedule(elementwise(), debug=True)
    with pytest.raises(
        InternalError, match=r"Shorten\(loop='Z_j'\) makes chain invalid: W reads Z\[0, 7\]"
    ) as e:
        s.apply(Shorten("Z_j"))
    assert "<-- here" in str(e.value)
    assert s.trace == ()


def test_a_step_that_leaves_out_a_part_of_a_reduction_is_named() -> None:
    s = Schedule(matmul(), debug=True)
    with pytest.raises(InternalError, match="leaves out points of its reduction"):
        s.apply(Shorten("C_k"))


def test_a_step_that_breaks_a_rule_is_named() -> None:
    s = Schedule(matmul(relu=True), debug=True)
    with pytest.raises(InternalError, match=r"Flatten\(.*\) breaks a rule of programs"):
        s.apply(Flatten("D_i", "D"))


def test_refusals_stay_refusals() -> None:
    s = Schedule(matmul(), debug=True)
    with pytest.raises(ScheduleError, match="feeds the reduce iterator"):
        s.vectorize("C_k")


def test_a_program_that_was_wrong_before_is_not_blamed_on_a_step() -> None:
    wrong = Shorten("C_k").rewrite(matmul())
    s = Schedule(wrong, debug=True)
    s.split("C_i", (None, 2))
    assert len(s.trace) == 1


@pytest.mark.parametrize(("setting", "is_on"), [("1", True), ("0", False), ("", False)])
def test_the_environment_turns_it_on(setting: str, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEBUG", setting)
    s = Schedule(elementwise())
    if is_on:
        with pytest.raises(InternalError):
            s.apply(Shorten("Z_j"))
    else:
        s.apply(Shorten("Z_j"))


@dataclass(frozen=True, slots=True)
class ThroughMemory(StreamRows):
    """A rewrite that is wrong though it computes the same: the result goes through memory once more."""

    def rewrite(self, func: Func) -> Func:
        made = StreamRows.rewrite(self, func)
        (out,) = made.outputs
        again = Buffer(f"{out.name}_again", out.shape, out.dtype)
        copies = copied(out, again, "there"), copied(again, out, "back")
        return replace(made, body=seq(made.body, *copies), locals=(*made.locals, again))


@dataclass(frozen=True, slots=True)
class Twice(StreamElements):
    """Likewise: each element is made twice."""

    def rewrite(self, func: Func) -> Func:
        made = StreamElements.rewrite(self, func)
        return made.with_body(For(Var("again"), 2, made.body))


def copied(source: Buffer, target: Buffer, name: str) -> For:
    i, v = Var(f"{name}_i"), Var(f"{name}_v")
    block = Block(name, (Iter(v, source.shape[0]),), (i,), Store(target, (v,), source[v]))
    return For(i, source.shape[0], block)


def sums() -> Func:
    b = FuncBuilder("sums")
    x = b.param("X", (64, 32), DType.F32)
    return b.finish(b.reduce("Y", (64,), (32,), lambda i, k: x[i, k]))


def test_a_rewrite_of_a_flow_graph_that_moves_more_is_named() -> None:
    Schedule(sums(), debug=True).apply(StreamRows(("Y",), 8, 16))
    with pytest.raises(
        InternalError, match=r"ThroughMemory.*moves more than the blocks did: 9216 B of memory"
    ):
        Schedule(sums(), debug=True).apply(ThroughMemory(("Y",), 8, 16))


def turned() -> Func:
    b = FuncBuilder("turned")
    x = b.param("X", (32, 64), DType.F32)
    return b.finish(b.compute("Y", (64, 32), lambda i, j: x[j, i]))


def test_a_rewrite_of_elements_that_moves_more_is_named() -> None:
    Schedule(turned(), debug=True).apply(StreamElements("Y", 8, parts=4))
    with pytest.raises(
        InternalError, match=r"Twice.*moves more than the block did: 16384 B of memory in 8192"
    ):
        Schedule(turned(), debug=True).apply(Twice("Y", 8))


def test_a_value_kept_in_scratch_pays_for_one_in_memory() -> None:
    blocks, kept = Movement(100, 0, 0), Movement(90, 10, 0)
    assert kept < blocks
