"""Structures of programs: others than the compiler's own, and the best of several mixed segment by segment."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.driver.decisions import Algorithm, ChannelsLast, Join
from tilewright.driver.trace import ProgramTrace
from tilewright.frontend.onnx.load import load_graph
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.cache import NO_CACHE
from tilewright.target.target import native
from tilewright.tuning.program_source import ProgramSource
from tilewright.tuning.sites import SitedProgram, sited
from tilewright.tuning.structures import (
    MeasuredStructure,
    Structure,
    mixed,
    other_algorithms,
    other_joins,
    other_layouts,
)

F32 = TensorProto.FLOAT


def images() -> ModelProto:
    """3x3 convolutions that Winograd may compute, and a depthwise one between pointwise ones, which may be joined."""
    rng = np.random.default_rng(0)
    weights: list[TensorProto] = []
    nodes: list[NodeProto] = []

    def conv(source: str, made: str, cin: int, cout: int, k: int, group: int = 1) -> None:
        w = rng.standard_normal((cout, cin // group, k, k)) / np.sqrt(cin * k * k / group)
        weights.append(numpy_helper.from_array(w.astype(np.float32), f"w_{made}"))
        nodes.append(
            helper.make_node("Conv", [source, f"w_{made}"], [f"c_{made}"], pads=[k // 2] * 4, group=group)
        )
        nodes.append(helper.make_node("Relu", [f"c_{made}"], [made]))

    conv("x", "a", 16, 32, 3)
    conv("a", "b", 32, 32, 3)
    conv("b", "c", 32, 96, 1)
    conv("c", "d", 96, 96, 3, 96)
    conv("d", "y", 96, 24, 1)
    x, y = (
        helper.make_tensor_value_info(n, F32, s) for n, s in (("x", [1, 16, 28, 28]), ("y", [1, 24, 28, 28]))
    )
    graph = helper.make_graph(nodes, "images", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture(scope="module")
def source() -> Iterator[ProgramSource]:
    with ProgramSource(load_graph(images(), None), native(), Accuracy.of(None), NO_CACHE) as found:
        yield found


@pytest.fixture(scope="module")
def own(source: ProgramSource) -> SitedProgram:
    return compiled(source, ProgramTrace())


@pytest.fixture(scope="module")
def programs(source: ProgramSource, own: SitedProgram) -> list[SitedProgram]:
    """The compiler's own and all others."""
    return [own, *(compiled(source, s.trace) for s in others(source, own))]


def compiled(source: ProgramSource, trace: ProgramTrace) -> SitedProgram:
    return sited(*source.compile(ProgramTrace({**trace.sections, "beside": ()}), {}))


def others(source: ProgramSource, own: SitedProgram) -> list[Structure]:
    target = native().for_threads(1)
    found = list(
        other_algorithms(source.until("groups", own.trace), own.trace, target, source.accuracy.allows)
    )
    found += other_layouts(source.until("joins", own.trace), own.trace, target)
    found += other_joins(source.until("algorithms", own.trace), own.trace, target)
    return found


def test_all_structures_compute_the_same(source: ProgramSource, own: SitedProgram) -> None:
    found = others(source, own)
    kinds = {s.why for s in found}
    assert {"algorithms of rank 2", "layouts as stated"} <= kinds
    assert kinds & {"no joins", "all joins"}
    x = np.random.default_rng(1).standard_normal((1, 16, 28, 28)).astype(np.float32)
    wanted: Any = tw.load(images(), cache=False).run({"x": x})["y"]
    for s in found:
        got: Any = tw.load(images(), cache=False, trace=s.trace).run({"x": x})["y"]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-4, err_msg=s.why)


def test_the_mix_takes_from_each_structure_what_is_quickest(
    source: ProgramSource, own: SitedProgram, programs: list[SitedProgram]
) -> None:
    """The second structure computes its first Func in no time, and all others slowly."""
    other = programs[1]
    first = own.sites[0].func
    assert other.sites[0].func == first
    slow = {s.func: 1.0 for s in other.sites}
    found = [
        MeasuredStructure(own.trace, {s.func: 1e-3 for s in own.sites}),
        MeasuredStructure(other.trace, {**slow, first: 1e-6}),
    ]
    grouped = source.until("groups", own.trace).current
    trace, seconds = mixed(found, grouped, native())
    algorithms = [
        {f: d.name for d in t.sections["algorithms"] if isinstance(d, Algorithm) for f in d.funcs}
        for t in (trace, own.trace, other.trace)
    ]
    assert algorithms[0].get(first) == algorithms[2].get(first) != algorithms[1].get(first)
    rest = [s.func for s in own.sites[1:]]
    assert {f: algorithms[0].get(f) for f in rest} == {f: algorithms[1].get(f) for f in rest}
    assert 1e-3 < seconds < 1e-2
    assert [s.func for s in compiled(source, trace).sites] == [s.func for s in own.sites]


@pytest.mark.parametrize("to_compile", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_what_is_joined_in_one_structure_is_one_segment(
    source: ProgramSource, own: SitedProgram, programs: list[SitedProgram], to_compile: int
) -> None:
    """A Func of a joined segment is never taken from another structure than the rest of it."""
    rng = np.random.default_rng(2)
    grouped = source.until("groups", own.trace).current
    for n in range(8):
        found = [MeasuredStructure(p.trace, {s.func: float(rng.random()) for s in p.sites}) for p in programs]
        trace, _ = mixed(found, grouped, native())
        joins = {str(d) for d in trace.sections["joins"]}
        assert joins in [{str(d) for d in p.trace.sections["joins"] if isinstance(d, Join)} for p in programs]
        if n < to_compile:
            compiled(source, trace)


def test_a_conversion_costs_what_reading_and_writing_costs(
    source: ProgramSource, own: SitedProgram, programs: list[SitedProgram]
) -> None:
    """Where layouts differ a little gain is not worth it: all stay with one structure."""
    whys = [s.why for s in others(source, own)]
    other = programs[1 + whys.index("layouts as stated")]
    assert any(isinstance(d, ChannelsLast) for d in own.trace.sections["layouts"])
    found = [
        MeasuredStructure(own.trace, {s.func: 1e-6 for s in own.sites}),
        MeasuredStructure(other.trace, {s.func: 1e-6 - 1e-12 * (n % 2) for n, s in enumerate(other.sites)}),
    ]
    trace, _ = mixed(found, source.until("groups", own.trace).current, native())
    kept = {str(d) for d in trace.sections["layouts"]}
    assert kept in [{str(d) for d in p.sections["layouts"]} for p in (own.trace, other.trace)]
