"""A program is a model and a trace: what was decided prints, is read back, replayed and changed."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache as cache_results
from pathlib import Path
from random import Random

import numpy as np
import pytest
from onnx import ModelProto

from examples.models import mlp, transformer_encoder
from tests.onnx_cases import Model, random_feeds
from tilewright import api
from tilewright.compiler import CompiledModel, compile
from tilewright.driver.decisions import Algorithm, ChannelsLast, Decision, Group, Join, Kernel
from tilewright.driver.trace import SECTIONS, ProgramTrace
from tilewright.lowered import lowered
from tilewright.runtime.file import chunks
from tilewright.schedule.steps import Coarsen, Split
from tilewright.search.default import spaces
from tilewright.support.errors import UserError
from tilewright.target.names import resolve_target
from tilewright.tir.stmt import LoopKind, loops


def image_network() -> ModelProto:
    """Convolutions of all kinds, a pool, a residual, and a dense layer."""
    m = Model()
    x = m.input(1, 3, 20, 20)
    y = m.op("Relu", m.op("Conv", x, m.weight(16, 3, 3, 3), pads=[1] * 4))
    y = m.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    z = m.op("Relu", m.op("Conv", y, m.weight(16, 16, 3, 3), pads=[1] * 4))
    z = m.op(
        "Clip", m.op("Conv", z, m.weight(16, 1, 3, 3), pads=[1] * 4, group=16), m.constant(np.float32(0))
    )
    y = m.op("Add", m.op("Conv", z, m.weight(16, 16, 1, 1)), y)
    y = m.op("Flatten", m.op("GlobalAveragePool", y))
    return m.finish(m.op("Softmax", m.op("Gemm", y, m.weight(16, 10))))


MODELS = {
    "images": image_network(),
    "dense": mlp((24, 16, 16, 8), batch=3),
    "tokens": transformer_encoder(layers=1, hidden=32, heads=2, tokens=12),
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@cache_results
def compiled(name: str) -> CompiledModel:
    """As it is compiled without a trace: once for all tests."""
    return compile(MODELS[name])


def program(made: CompiledModel) -> bytes:
    return b"".join(map(bytes, chunks(made.artifact)))


def run(model: ModelProto, made: CompiledModel) -> list[np.ndarray]:
    with made.session(2) as session:
        return list(session.run(random_feeds(model)).values())


@pytest.mark.parametrize("name", MODELS)
def test_a_replay_is_the_same_program_byte_by_byte(name: str, tmp_path: Path) -> None:
    made = compiled(name)
    path = tmp_path / "plan.trace"
    made.trace.save(path)
    again = compile(MODELS[name], trace=path)
    assert program(again) == program(made)
    assert again.trace == made.trace == ProgramTrace.parse(str(made.trace))
    assert made.artifact.manifest.options["trace"] == str(made.trace)


@pytest.mark.parametrize("name", MODELS)
def test_every_section_is_there_and_names_the_call_of_each_kernel_once(name: str) -> None:
    trace = compiled(name).trace
    assert list(trace.sections) == [name for name in SECTIONS if name != "ranges"]  # nothing is open
    calls = [c for d in trace.sections["kernels"] if isinstance(d, Kernel) for c in d.calls]
    assert sorted(calls) == sorted(f.name for f in lowered(MODELS[name]).funcs)


def test_a_section_that_is_missing_is_decided_and_one_that_is_empty_decides() -> None:
    model = MODELS["images"]
    whole = compiled("images").trace
    assert whole.sections["layouts"] and whole.sections["groups"]
    rest = {n: s for n, s in whole.sections.items() if n != "kernels"}
    assert compile(model, trace=ProgramTrace(rest)).trace == whole
    plain = compile(model, trace=ProgramTrace({"layouts": (), "algorithms": ()})).trace
    assert plain.sections["layouts"] == plain.sections["algorithms"] == ()


def test_another_grouping_leaves_the_names_of_the_rest_alone() -> None:
    model = MODELS["images"]
    groups = compiled("images").trace.sections["groups"]
    first = groups[0]
    assert isinstance(first, Group) and len(first.values) > 1
    made = compile(model, trace=ProgramTrace({"groups": groups[1:]}))
    names = [g.func for g in made.trace.sections["groups"] if isinstance(g, Group)]
    assert set(names) >= {g.func for g in groups if isinstance(g, Group)}
    np.testing.assert_allclose(run(model, made)[0], run(model, compiled("images"))[0], rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("section", "decision", "why"),
    [
        ("groups", Group("y", ("nothing",)), "no node of this model makes 'nothing'"),
        ("algorithms", Algorithm("Winograd", ("nothing",)), "has no Func nothing"),
        ("joins", Join("a", "b"), "not called once each"),
        ("layouts", ChannelsLast("a", ("b",)), "a__b is no buffer"),
        ("kernels", Kernel(("nothing",), "gemm"), "no kernel nothing"),
        ("kernels", Join("a", "b"), "among Kernel decisions"),
    ],
)
def test_a_foreign_trace_is_refused_and_the_decision_named(
    section: str, decision: Decision, why: str
) -> None:
    with pytest.raises(UserError, match=why) as refused:
        compile(MODELS["images"], trace=ProgramTrace({section: (decision,)}))
    assert refused.value.where == str(decision)


def test_a_kernel_of_another_family_or_point_is_refused() -> None:
    made = compiled("dense")
    kernel = made.trace.sections["kernels"][0]
    assert isinstance(kernel, Kernel) and kernel.knobs
    for wrong, why in (
        (replace(kernel, family="winograd", knobs=()), "does not fit"),
        (replace(kernel, knobs=kernel.knobs[1:]), "other knobs"),
        (replace(kernel, knobs=tuple((n, 999) for n, _ in kernel.knobs)), "no such point"),
        (replace(kernel, steps=(Split("nowhere", (None, 2)),)), "no loop or block is named 'nowhere'"),
    ):
        with pytest.raises(UserError, match=why):
            compile(MODELS["dense"], trace=ProgramTrace({"kernels": (wrong,)}))


def test_a_group_that_a_value_leaves_and_enters_again_is_refused() -> None:
    m = Model()
    x = m.input(4, 8)
    a = m.op("Relu", x)
    b = m.op("MatMul", a, m.weight(8, 8))
    c = m.op("Add", a, b)
    with pytest.raises(UserError, match="comes back"):
        compile(m.finish(c), trace=ProgramTrace({"groups": (Group(c, (a, c)),)}))


def test_a_view_that_readers_repeat_does_not_leave_its_group() -> None:
    """Rows beside their neighbours: both slices read what was gathered, and are stored nowhere."""
    m = Model()
    x = m.op("Gather", m.weight(20, 8), m.constant(np.arange(6, dtype=np.int64)[None] % 5), axis=0)
    i = m.input(1, 6, 8)
    x = m.op("Mul", i, x)

    def rows(first: int, end: int) -> str:
        return m.op("Slice", x, *(m.constant(np.array([n], np.int64)) for n in (first, end, 1)))

    pads = m.constant(np.array([0, 0, 0, 0, 1, 0], np.int64))
    y = m.op("Concat", m.op("Pad", rows(1, 6), pads), x, m.op("Pad", rows(0, 5), pads), axis=2)
    model = m.finish(m.op("MatMul", y, m.weight(24, 4)))
    made = compile(model)
    assert program(compile(model, trace=ProgramTrace.parse(str(made.trace)))) == program(made)
    joined = Group(y, (x, y))
    forced = compile(model, trace=ProgramTrace({"groups": (joined,)}))
    assert np.allclose(run(model, forced), run(model, made))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Kernel(calls=('a',), family='gemm')", "a line is a"),
        ("[nothing]", "no section"),
        ("[joins]\n[joins]", "stands here twice"),
        ("[joins]\nKernel(calls=('a',), family='gemm')", "only Join decisions"),
        ("[kernels]\nKernel(calls=(1,), family='gemm')", "another kind of value"),
        ("[kernels]\nKernel(calls=('a',), family='gemm', rows='six')", "another kind of value"),
        ("[kernels]\nKernel(calls=('a',))", "missing 1 required positional argument"),
        ("[groups]\nGroup(func=open('x'), values=())", "not known"),
        ("[groups\n", "not in Python syntax"),
    ],
)
def test_text_that_is_no_trace_is_refused(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        ProgramTrace.parse(text)


def test_an_accuracy_that_forbids_an_algorithm_refuses_its_trace() -> None:
    m = Model()
    x = m.input(1, 64, 28, 28)
    model = m.finish(m.op("Conv", x, m.weight(64, 64, 3, 3), pads=[1] * 4))
    made = compile(model)
    assert made.trace.sections["algorithms"]
    with pytest.raises(UserError, match="more than the accuracy allows"):
        compile(model, accuracy="exact", trace=made.trace)


def test_load_takes_a_trace_and_keeps_its_program_apart(tmp_path: Path) -> None:
    model = MODELS["dense"]
    kernels = tuple(
        replace(k, family="unscheduled", knobs=())
        for k in compiled("dense").trace.sections["kernels"]
        if isinstance(k, Kernel)
    )
    slow = ProgramTrace({"kernels": kernels})
    for _ in range(2):  # compiled, and from the cache
        with api.load(model) as quick, api.load(model, trace=slow) as plain:
            assert quick.run(random_feeds(model)).keys() == plain.run(random_feeds(model)).keys()


# ---------------------------------------------------------------------------------------------------- random changes


def changed(model: ModelProto, trace: ProgramTrace, rng: Random) -> ProgramTrace:
    """The trace with one decision taken otherwise. What comes after it is left to the compiler."""
    section = rng.choice([n for n, s in trace.sections.items() if s])
    decisions = list(trace.sections[section])
    at = rng.randrange(len(decisions))
    d = decisions[at]
    match d:
        case Kernel():
            decisions = [_other_kernel(model, trace, d, rng)]
        case Group() if at + 1 < len(decisions) and rng.random() < 0.5:
            other = decisions.pop(at + 1)
            assert isinstance(other, Group)
            decisions[at] = Group(other.func, d.values + other.values)
        case Group() if len(d.values) > 1:
            decisions[at] = replace(d, values=d.values[1:])
        case ChannelsLast() if len(d.buffers) > 1:
            decisions[at] = replace(
                d, buffers=tuple(b for b in d.buffers if rng.random() < 0.5) or d.buffers[:1]
            )
        case _:
            decisions.pop(at)
    before = list(SECTIONS)[: list(SECTIONS).index(section)]
    return ProgramTrace({**{n: trace.sections[n] for n in before}, section: tuple(decisions)})


def _other_kernel(model: ModelProto, trace: ProgramTrace, d: Kernel, rng: Random) -> Kernel:
    module = lowered(model)
    target = resolve_target("native")
    constants = frozenset(c.buffer.name for c in module.constants)
    found = spaces(module.func(d.calls[0]), target, constants)
    if not found or rng.random() < 0.2:
        return replace(d, family=rng.choice(("block_by_block", "unscheduled")), knobs=())
    space = rng.choice(found)
    points, _ = space.ranked()
    if not len(points):
        return replace(d, family="unscheduled", knobs=())
    point = space.decisions(points[rng.randrange(len(points))])
    kernel = Kernel(d.calls, space.family, tuple(point.items()))
    shared = [
        n for n in loops(space.build(point).func.body) if n.kind is LoopKind.PARALLEL and n.extent % 2 == 0
    ]
    return (
        replace(kernel, steps=(Coarsen(shared[0].var.name, 2),)) if shared and rng.random() < 0.5 else kernel
    )


@pytest.mark.parametrize("changes", [5, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_whatever_is_decided_the_results_are_right(name: str, changes: int) -> None:
    """A decision that cannot be taken is refused; all others change the time that a run takes, and nothing else."""
    model, rng = MODELS[name], Random(name)
    made = compiled(name)
    expected = run(model, made)
    taken = 0
    for _ in range(changes):
        trace = changed(model, made.trace, rng)
        try:
            other = compile(model, trace=trace)
        except UserError as e:
            assert e.where is not None
            continue
        taken += 1
        for a, b in zip(run(model, other), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=str(trace))
    assert taken >= changes // 2
