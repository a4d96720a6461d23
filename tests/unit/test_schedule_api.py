"""tw.Schedule as a researcher uses it: programs between steps, undo, saved traces, refusals that show the place."""

import os
import re
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.ir.layout import FuseDims, Layout, PadDim, ReorderDims, SplitDim
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import STEPS, Split, Unroll
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.schedule.trace import parse_trace
from tilewright.support.errors import ScheduleError, UserError
from tilewright.tir.compare import same_func
from tilewright.tir.func import Module, single

M, N, K = 8, 8, 4


@tw.func
def matmul(A: tw.f32[M, K], B: tw.f32[K, N], C: tw.out(tw.f32[M, N])):
    for i, j, k in tw.grid(M, N, K):
        with tw.init():
            C[i, j] = 0.0
        C[i, j] = tw.fma(A[i, k], B[k, j], C[i, j])


def scheduled() -> Schedule:
    s = Schedule(matmul)
    i0, i1 = s.split("i", (None, 4))
    s.reorder(i0, "j", "k", i1)
    s.unroll(i1)
    return s


def test_methods_of_steps_are_called_like_them() -> None:
    """A step needs no method, `apply` takes it; those that there are lead to a step of their name."""
    steps = {c.__name__.lower() for c in STEPS}
    others = {
        name for name in vars(Schedule) if not name.startswith("_") and name.replace("_", "") not in steps
    }
    assert others == {
        *("apply", "at", "func", "load", "module", "save", "settled", "show", "trace", "trace_text"),
        *("transaction", "undo"),
    }


def test_a_func_or_a_module() -> None:
    module = single(matmul)
    assert Schedule(matmul).func is matmul
    assert Schedule(module).module is module
    several = Module((matmul, scheduled().func), module.program, module.inputs, module.outputs)
    with pytest.raises(UserError, match="the module has 2 functions"):
        _ = Schedule(several).func
    assert str(Schedule(several).at()).count("@func") == 2


def test_show_prints_the_program_after_any_step(capsys: pytest.CaptureFixture[str]) -> None:
    s = scheduled()
    s.show()
    assert capsys.readouterr().out == str(s.func)
    s.show(step=0)
    assert capsys.readouterr().out == str(matmul)
    s.show(step=1)
    split = Schedule(matmul)
    split.split("i", (None, 4))
    assert capsys.readouterr().out == str(split.func)
    for step in (-1, 4):
        with pytest.raises(UserError, match=f"there is no step {step}"):
            s.show(step=step)


def test_steps_of_before_cannot_be_shown() -> None:
    done = scheduled()
    s = Schedule(done.module, done.trace)
    s.unroll("k")
    assert s.at(3) is done.func and s.at(4) is s.func
    with pytest.raises(UserError, match="there is no step 2"):
        s.at(2)
    s.undo()
    with pytest.raises(UserError, match="no step to take back"):
        s.undo()


def test_undo_takes_the_last_step_back() -> None:
    s = scheduled()
    before = s.module
    s.parallel("j")
    assert str(s.undo()) == "Parallel(loop='j')"
    assert s.module is before and len(s.trace) == 3
    s.undo()
    s.undo()
    assert str(s.undo()).startswith("Split") and s.func is matmul and s.trace == ()
    with pytest.raises(UserError, match="no step to take back"):
        s.undo()


def test_a_failed_transaction_leaves_no_step_behind() -> None:
    s = scheduled()
    done, states = s.trace, [s.at(n) for n in range(4)]
    with pytest.raises(ScheduleError, match="nowhere"), s.transaction():
        s.split("j", (None, 2))
        s.undo()
        s.undo()  # of what was before
        s.split("k", (None, 2))
        s.unroll("nowhere")
    assert s.trace == done and [s.at(n) for n in range(4)] == states
    assert str(s.undo()).startswith("Unroll") and s.func is states[2]


def test_a_transaction_keeps_its_steps() -> None:
    s = scheduled()
    with s.transaction():
        s.split("j", (None, 2))
        with pytest.raises(ScheduleError), s.transaction():
            s.unroll("k")
            s.unroll("nowhere")
        s.unroll("j_1")
    assert [type(step).__name__ for step in s.trace[3:]] == ["Split", "Unroll"]
    assert s.undo() == Unroll("j_1") and s.at(4) is s.func


def test_a_settled_schedule_has_no_past() -> None:
    s = scheduled()
    done = s.settled()
    assert done.module is s.module and done.trace == s.trace
    done.parallel("j")
    assert len(done.trace) == 4 and len(s.trace) == 3
    done.undo()
    with pytest.raises(UserError, match="no step to take back"):
        done.undo()


def test_the_text_of_a_schedule_is_its_trace() -> None:
    s = scheduled()
    assert str(s) == s.trace_text() and parse_trace(str(s)) == s.trace


def test_older_traces_spell_layouts_otherwise() -> None:
    older = "Layout(primitives=(Split(dim=1, factor=4), Pad(0, 1, 0), Reorder(order=(1, 0, 2)), Fuse(0, 2)))"
    steps = (SplitDim(1, 4), PadDim(0, 1, 0), ReorderDims((1, 0, 2)), FuseDims(0, 2))
    assert parse_trace(f"TransformLayout('T', {older})") == (TransformLayout("T", Layout(steps)),)


def test_saved_and_loaded(tmp_path: Path) -> None:
    s = scheduled()
    path = tmp_path / "gemm.trace"
    path.write_text("what was there before")
    s.save(path)
    assert os.listdir(tmp_path) == ["gemm.trace"], "nothing else is left"
    again = Schedule.load(matmul, path)
    assert again.trace == s.trace and same_func(again.func, s.func)
    again.undo()
    assert same_func(again.func, s.at(2))  # pyright: ignore


def test_a_saved_trace_may_be_edited(tmp_path: Path) -> None:
    path = tmp_path / "gemm.trace"
    scheduled().save(path)
    path.write_text(
        path.read_text().replace("(None, 4))", "(None, 2))  # smaller").replace("# end", "\n# end")
    )
    assert Schedule.load(matmul, path).trace[0] == Split("i", (None, 2))


# ------------------------------------------------------------------------------------------------------ refusals


def test_a_refused_step_marks_the_place_and_changes_nothing() -> None:
    s = scheduled()
    before, trace = s.module, s.trace
    with pytest.raises(ScheduleError) as e:
        s.vectorize("k")
    assert s.module is before and s.trace == trace
    text = str(e.value)
    assert text.startswith("Vectorize(loop='k'): k feeds the reduce iterator C_vk of C")
    assert re.search(r"\| +for k in range\(4\): +<-- here", text)


@pytest.mark.parametrize("take", [lambda s: s.split("x", (None, 2)), lambda s: s.compute_inline("D")])
def test_an_unknown_name_is_refused_with_the_loops_there_are(take: object) -> None:
    s = scheduled()
    with pytest.raises(ScheduleError) as e:
        take(s)  # pyright: ignore
    assert "| for i_0 in range(2):" in str(e.value) and "|             for i_1 in unrolled(4):" in str(
        e.value
    )


def test_a_trace_of_another_program(tmp_path: Path) -> None:
    @tw.func
    def other(X: tw.f32[4], Y: tw.out(tw.f32[4])):
        for i in range(4):
            Y[i] = X[i]

    scheduled().save(tmp_path / "gemm.trace")
    with pytest.raises(ScheduleError, match=r"step 2 of .*gemm.trace does not fit this program: Reorder"):
        Schedule.load(other, tmp_path / "gemm.trace")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a trace"),
        (b"\x00\xff\x80binary", "not a trace"),
        (b"hello: world\n", "not a trace"),
        (b"# tilewright trace, version 99\n# end\n", "not a trace that this version can read"),
        (b"# tilewright trace, version 1\nSplit(loop='i', factors=(None, 4))\n", "cut off"),
        (b"# tilewright trace, version 1\nSplit(loop='i', fac\n# end\n", "not in Python syntax"),
        (b"# tilewright trace, version 1\n__import__('os').abort()\n# end\n", "is not known here"),
        (b"# tilewright trace, version 1\nSplit(loop='i', factor=2)\n# end\n", "Split: "),
    ],
)
def test_a_file_that_is_no_trace(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.trace"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)) as e:
        Schedule.load(matmul, path)
    assert str(path) in str(e.value)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        Schedule.load(matmul, tmp_path / "missing.trace")


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be saved: No such file"):
        scheduled().save(tmp_path / "missing" / "gemm.trace")
