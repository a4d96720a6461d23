"""Kernels of one part that a team shares together: which are found, how calls move for them, and what they compute."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import BEST
from onnx import ModelProto

from tests.onnx_cases import Model, random_feeds
from tilewright.compiler import CompiledModel, compile
from tilewright.driver.decisions import Beside
from tilewright.driver.kernels import Item, NativeKernel, calls_of
from tilewright.driver.trace import ProgramTrace
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr
from tilewright.search.beside import find_beside, put_beside
from tilewright.support.artifact import KernelCall, Place, Segment, Slot
from tilewright.support.errors import InternalError, ScheduleError, UserError
from tilewright.support.program import leaves
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Call, External, Func, Module

MICRO = 1e-6


def module(reads: Mapping[str, Sequence[str]], outside: Sequence[str] = (), size: int = 16) -> Module:
    """Calls in order, each of which makes the value of its name out of those that it reads; of `outside`, by code that
    is not ours.
    """
    buffers: dict[str, Buffer] = {}
    funcs: list[Func] = []
    steps: list[Call | External] = []
    for name, used in reads.items():
        inputs = tuple(buffers.setdefault(n, Buffer(n, (size,), DType.F32)) for n in used)
        if name in outside:
            buffers[name] = Buffer(name, (size,), DType.F32)
            steps.append(External(name, inputs, (buffers[name],)))
            continue
        b = FuncBuilder(name)
        made = _sum(b, name, [b.use(n) for n in inputs])
        func = b.finish(made)
        buffers[name] = func.outputs[0]
        funcs.append(func)
        steps.append(Call(name, func.params))
    used = {n for names in reads.values() for n in names}
    inputs = tuple(b for n, b in buffers.items() if n not in reads)
    outputs = tuple(b for n, b in buffers.items() if n in reads and n not in used)
    temps = tuple(b for n, b in buffers.items() if n in reads and n in used)
    return Module(tuple(funcs), tuple(steps), inputs, outputs, (), temps)


def _sum(b: FuncBuilder, name: str, given: Sequence[Buffer]) -> Buffer:
    def value(*i: Expr) -> Expr:
        total = given[0][i]
        for x in given[1:]:
            total = total + x[i]
        return total + 1

    return b.compute(name, given[0].shape, value)


def order(m: Module) -> list[str]:
    return [c.func if isinstance(c, Call) else c.key for c in leaves(m.program)]


def found(m: Module, short: Mapping[str, float]) -> list[tuple[str, ...]]:
    return find_beside(m, {n: t * MICRO for n, t in short.items()}, BEST.for_threads(1))


PAIRS = {"a": ["x"], "long": ["a"], "b": ["y"], "last": ["long", "b"]}


def test_short_kernels_that_are_independent_are_found() -> None:
    assert found(module(PAIRS), {"a": 4.0, "b": 4.0}) == [("a", "b")]


def test_kernels_that_are_shorter_than_a_meeting_stay_as_they_are() -> None:
    assert found(module(PAIRS), {"a": 0.2, "b": 0.2}) == []


def test_a_kernel_that_is_longer_than_all_others_has_nothing_to_share() -> None:
    assert found(module(PAIRS), {"a": 9.0, "b": 0.5}) == []


def test_kernels_whose_time_a_team_spends_on_others_stay_as_they_are() -> None:
    """The other workers are at `long` while the caller's is at these."""
    m = module({"a": ["x"], "long": ["x"], "b": ["y"], "last": ["a", "b", "long"]}, size=1 << 20)
    assert found(m, {"a": 4.0, "b": 4.0}) == []


def test_kernels_that_depend_on_each_other_are_not_found() -> None:
    assert found(module({"a": ["x"], "b": ["a"], "c": ["b"]}), {"a": 2.0, "b": 2.0, "c": 4.0}) == []


def test_kernels_of_one_depth_go_together() -> None:
    """a1 may run beside b0 too; but then neither a0 with a1 nor b0 with b1."""
    chains = {"a0": ["x"], "b0": ["a0"], "a1": ["y"], "b1": ["a1"]}
    assert found(module(chains), dict.fromkeys(chains, 4.0)) == [("a0", "a1"), ("b0", "b1")]


def test_a_call_moves_up_to_the_other() -> None:
    assert order(put_beside(module(PAIRS), ("a", "b"))) == ["a", "b", "long", "last"]


def test_a_call_moves_down_behind_what_the_other_needs() -> None:
    m = module({"a": ["x"], "long": ["y"], "b": ["long"], "last": ["a", "b"]})
    assert order(put_beside(m, ("a", "b"))) == ["long", "a", "b", "last"]


def test_a_call_between_that_needs_one_and_makes_the_other_is_in_the_way() -> None:
    m = module({"a": ["x"], "between": ["a"], "b": ["between"]})
    with pytest.raises(ScheduleError, match="cannot run side by side"):
        put_beside(m, ("a", "b"))


def test_nothing_moves_over_external_code() -> None:
    m = module({"a": ["x"], "code": ["y"], "b": ["z"]}, outside=["code"])
    assert found(m, {"a": 4.0, "b": 4.0}) == []
    with pytest.raises(ScheduleError, match="cannot run side by side"):
        put_beside(m, ("a", "b"))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sets(st.integers(0, 14), max_size=2), min_size=2, max_size=15), st.randoms())
def test_whatever_moves_comes_after_what_it_needs(graph: list[set[int]], rng: np.random.Generator) -> None:
    reads = {f"f{n}": ["x", *(f"f{i}" for i in used if i < n)] for n, used in enumerate(graph)}
    m = module(reads)
    for names in found(m, {n: rng.choice((0.01, 1.0, 6.0)) for n in reads}):
        m = put_beside(m, names)
        at = order(m)
        first = at.index(names[0])
        assert at[first : first + len(names)] == list(names)
        assert not any(n in reads[other] for n in names for other in names)
    done = {"x"}
    for name in order(m):
        assert done.issuperset(reads[name])
        done.add(name)
    assert done == {"x", *reads}


# ------------------------------------------------------------------------------------------------------------- calls


def item(reads: Buffer, writes: Buffer, beside: bool = False) -> Item:
    b = FuncBuilder("f")
    x = b.param("x", (16,), DType.F32)
    func = b.finish(_sum(b, "y", [x]))
    return Item(NativeKernel("f", func, 1, "", b""), (reads, writes), beside=beside)


def test_workers_meet_before_all_that_run_side_by_side() -> None:
    x, a, b, c = (Buffer(n, (16,), DType.F32) for n in "xabc")
    slots = {v: Slot(Place.ARENA, 64 * n) for n, v in enumerate((x, a, b, c))}
    calls = calls_of([item(x, a), item(x, b), item(a, c, beside=True)], slots)
    assert [(k.barrier, k.beside) for k in calls] == [(True, False), (False, False), (False, True)]


def test_what_depends_on_what_runs_beside_it_is_refused() -> None:
    x, a, b = (Buffer(n, (16,), DType.F32) for n in "xab")
    slots = {v: Slot(Place.ARENA, 64 * n) for n, v in enumerate((x, a, b))}
    with pytest.raises(InternalError, match="depends on what runs beside it"):
        calls_of([item(x, a), item(a, b, beside=True)], slots)


# ---------------------------------------------------------------------------------------------------------- programs


def several(n: int = 8, size: int = 600) -> ModelProto:
    """Curves of several signals, each too short to be shared, and then all of them together."""
    m = Model()
    made = [m.op("Tanh", m.op("Sin", m.input(1, size + 64 * i))) for i in range(n)]
    return m.finish(m.op("Concat", *made, axis=1))


TARGET = "x86-64-v3"  # what is too short to be shared depends on it


def calls_in(made: CompiledModel) -> list[KernelCall]:
    return [c for s in leaves(made.artifact.program) if isinstance(s, Segment) for c in s.calls]


@pytest.fixture(scope="module")
def model() -> ModelProto:
    return several()


def test_results_are_the_same_to_the_bit_with_any_number_of_threads(model: ModelProto) -> None:
    made = compile(model, target=TARGET)
    apart = compile(model, target=TARGET, trace=ProgramTrace({"beside": ()}))
    (decision,) = made.trace.sections["beside"]
    assert isinstance(decision, Beside) and len(decision.calls) == 8
    assert [c.beside for c in calls_in(made)][:8] == [False, *[True] * 7]
    assert len(calls_in(made)) == len(calls_in(apart)) and not any(c.beside for c in calls_in(apart))
    feeds = random_feeds(model)
    with apart.session(1) as session:
        (want,) = session.run(feeds).values()
    for threads in (1, 2, 4):
        with made.session(threads) as session:
            for _ in range(20):
                (got,) = session.run(feeds).values()
                assert np.array_equal(got, want)


def test_what_was_decided_is_replayed_and_nonsense_refused(model: ModelProto) -> None:
    made = compile(model, target=TARGET)
    again = compile(model, target=TARGET, trace=ProgramTrace.parse(str(made.trace)))
    assert again.trace == made.trace
    assert [(c.kernel, c.args) for c in calls_in(again)] == [(c.kernel, c.args) for c in calls_in(made)]
    with pytest.raises(UserError, match="nothing is no kernel of one part"):
        compile(model, target=TARGET, trace=ProgramTrace({"beside": (Beside(("nothing",)),)}))
