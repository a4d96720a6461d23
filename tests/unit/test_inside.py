"""Candidates inside of a program: timed where they stand, held to what the compiled kernels make, and blamed alone."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.compiler import compilation
from tilewright.driver.trace import ProgramTrace
from tilewright.driver.workers import Workers
from tilewright.frontend.onnx.load import load_graph
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.cache import NO_CACHE
from tilewright.search.default import spaces
from tilewright.support.artifact import Place, Segment, Slot
from tilewright.support.compiling import compiling
from tilewright.target.target import native
from tilewright.training.net import Net
from tilewright.tuning.candidate import DEFAULT, Maker, Task
from tilewright.tuning.insides import Insides, site_specs
from tilewright.tuning.sites import SitedProgram, sited
from tilewright.tuning.trial import Candidate, TrialStatus

F32 = TensorProto.FLOAT


def three_layers() -> ModelProto:
    """Two equal layers and another one."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (48, 48), "w1": (48, 48), "w2": (48, 16)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()
    ]
    nodes = [
        node
        for n, (source, made) in enumerate((("x", "a"), ("a", "b"), ("b", "y")))
        for node in (
            helper.make_node("MatMul", [source, f"w{n}"], [f"m{n}"]),
            helper.make_node("Relu", [f"m{n}"], [made]),
        )
    ]
    x, y = (helper.make_tensor_value_info(n, F32, s) for n, s in (("x", [32, 48]), ("y", [32, 16])))
    graph = helper.make_graph(nodes, "layers", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def sited_layers() -> SitedProgram:
    return sited_model(three_layers())


def sited_model(model: ModelProto) -> SitedProgram:
    target = native()
    with compiling(), Workers(target, 1) as pool:
        c = compilation(target, Accuracy.of(None), NO_CACHE, pool, None)
        c.given = ProgramTrace().with_section("beside", ())
        made = c.run_graph(load_graph(model, None), "")
    return sited(c, made)


@pytest.fixture(scope="module")
def program() -> SitedProgram:
    return sited_layers()


def candidate(program: SitedProgram, site: int) -> Candidate:
    """What compilation does by itself, as a candidate."""
    func, constants = program.funcs[program.sites[site].task]
    with compiling():
        made, _ = Maker(Task("key", func, constants, native(), spaces)).make(DEFAULT, {})
    return made


def test_a_border_that_another_kernel_fills_is_nobody_s_result() -> None:
    """What kernels of a site hand on to each other may lie there before: the memory is free until it is written."""
    net = Net(np.random.default_rng(0))
    net.conv(net.same("Relu", net.conv(net.input(1, 16, 24, 24), 32, (3, 3))), 16, (3, 3))
    program = sited_model(net.model("convolutions"))
    first, _ = site_specs(program)
    (framed,) = first.outputs
    assert framed.shape == (1, 26, 26, 32) and framed.part == ((0, 1), (1, 25), (1, 25), (0, 32))
    with Insides(1) as inside:
        inside.prepare(program, 1)
        (found,) = inside.run([(0, candidate(program, 0))], 1)
        assert (found.status, found.message) == (TrialStatus.OK, "")


def test_equal_layers_are_sites_of_one_task(program: SitedProgram) -> None:
    first, second, third = program.sites
    assert first.task == second.task != third.task
    assert program.calls_of(first.task) == [0, 1]
    calls = [c for s in program.artifact.program if isinstance(s, Segment) for c in s.calls]
    assert [s.first for s in program.sites] == [0, first.count, first.count + second.count]
    assert sum(s.count for s in program.sites) == len(calls)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_compiled_takes_as_long_as_itself(program: SitedProgram, threads: int) -> None:
    with Insides(threads) as inside:
        inside.prepare(program, 3)
        assert len(inside.seconds) == 3
        found = inside.run([(n, candidate(program, n)) for n in range(3)], 5)
    assert [o.status for o in found] == [TrialStatus.OK] * 3, [o.message for o in found]
    assert all(0.1 < o.ratio < 10 for o in found)


def test_a_wrong_candidate_is_found_and_spoils_no_other(program: SitedProgram) -> None:
    """The second reads what the first would have made wrong, had that not been replaced."""
    right = candidate(program, 0)
    nowhere = Slot(Place.ARENA, 0)
    calls = tuple(
        replace(c, args=tuple(nowhere if s.place is Place.OUTPUT else s for s in c.args)) for c in right.calls
    )
    wrong = replace(right, calls=calls, arena_bytes=1 << 20)
    with Insides(1) as inside:
        inside.prepare(program, 1)
        first, second = inside.run([(0, wrong), (1, right)], 2)
    assert first.status is TrialStatus.WRONG_RESULT  # it writes nothing
    assert second.status is TrialStatus.OK


def test_one_that_crashes_is_blamed_and_the_others_run(program: SitedProgram) -> None:
    right = candidate(program, 1)
    beyond = Slot(Place.ARENA, 1 << 45)  # all memory
    crashing = replace(
        right, calls=tuple(replace(c, args=tuple(beyond for _ in c.args)) for c in right.calls)
    )
    with Insides(1) as inside:
        inside.prepare(program, 1)
        found = inside.run([(0, right), (1, crashing), (2, candidate(program, 2))], 2)
    assert found[1].status is TrialStatus.RUN_ERROR
    assert [found[0].status, found[2].status] == [TrialStatus.OK, TrialStatus.OK]


def test_whole_programs_take_turns(program: SitedProgram) -> None:
    with Insides(2) as inside:
        found = inside.compare([program.artifact] * 2, rounds=3, seconds=0.01, tolerance=1e-6)
        assert not isinstance(found, str)
        assert [len(s.rounds) for s in found] == [3, 3]
        zeros = tuple(np.zeros_like(c) for c in program.artifact.constants)
        other = replace(program.artifact, constants=zeros)
        assert "wrong_result" in str(
            inside.compare([program.artifact, other], rounds=1, seconds=0.01, tolerance=1e-6)
        )
