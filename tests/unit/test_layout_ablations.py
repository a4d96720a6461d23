"""Ablations of layouts: all ways compile, force what they say, and compute the same."""

from collections.abc import Iterator

import numpy as np
import pytest
from test_program_structures import images

from benchmarks.layout_ablations import BACKWARD, ELIMINATED, FORWARD, LOOPS, ablated
from tilewright.driver.decisions import ChannelsLast
from tilewright.driver.trace import ProgramTrace
from tilewright.frontend.onnx.load import load_graph
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.cache import NO_CACHE
from tilewright.target.target import native
from tilewright.tuning.program_source import ProgramSource


@pytest.fixture(scope="module")
def source() -> Iterator[ProgramSource]:
    with ProgramSource(load_graph(images(), None), native(), Accuracy.of(None), NO_CACHE) as found:
        yield found


def last(trace: ProgramTrace) -> set[str]:
    return {n for d in trace.sections["layouts"] if isinstance(d, ChannelsLast) for n in d.names}


@pytest.mark.slow  # it is `python -m benchmarks.layout_ablations` that relies on it
def test_ways_force_what_they_say_and_compute_the_same(source: ProgramSource) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((1, 16, 28, 28)).astype(np.float32)}
    own = source.compile(ProgramTrace(), {})[1]
    with own.session() as session:
        expected = session.run(x)["y"]
    found = {way: (layout, source.compile(trace, {})[1]) for way, layout, trace in ablated(source)}
    assert list(found) == [LOOPS, ELIMINATED, FORWARD, BACKWARD]
    for way, (layout, program) in found.items():
        with program.session() as session:
            np.testing.assert_allclose(session.run(x)["y"], expected, rtol=1e-3, atol=1e-4, err_msg=way)
        assert layout != "as stated" or not last(program.trace)
    assert last(found[FORWARD][1].trace) >= last(own.trace)
    groups = found[ELIMINATED][1].trace.sections["groups"]
    assert len(groups) == 10 and len(own.trace.sections["groups"]) == 5
