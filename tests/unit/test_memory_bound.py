"""The groups of `benchmarks.memory_bound`, and the loop that stands for memory."""

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from benchmarks.memory_bound import judged
from benchmarks.memory_bound_cases import CASES
from benchmarks.stream_engine import mix, stream_kernel
from benchmarks.suite_results import Cell, against
from tilewright.frontend.onnx.load import load_graph


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if not c.is_open])
def test_a_group_has_the_shapes_that_it_says(name: str) -> None:
    graph = load_graph(CASES[name].build())
    assert [v.shape for v in graph.inputs] == [tuple(s) for s in CASES[name].inputs.values()]
    assert [v.shape for v in graph.outputs] == [tuple(CASES[name].output)]


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.is_open])
def test_an_open_group_gives_no_more_rows_than_it_says(name: str) -> None:
    case = CASES[name]
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in case.inputs.items()}
    (y,) = tw.load(case.build(), threads=1).run(feeds).values()
    assert 0 < y.shape[0] <= case.output[0] and y.shape[1:] == tuple(case.output[1:])


def test_what_must_be_read_may_be_less_than_there_is() -> None:
    assert CASES["gather_rows_30522x768"].read_bytes == CASES["gather_rows_30522x768"].written_bytes


@pytest.mark.parametrize(("read", "written"), [(1, 1), (3, 1), (1, 2), (1000, 1), (1, 1000)])
def test_the_loop_reads_and_writes_in_the_same_mix(read: int, written: int) -> None:
    unit = 4 * 64 * 6
    kernel = stream_kernel(read * unit, written * unit, threads=2)
    (x,), (y,) = [p for p in kernel.func.params if p not in kernel.func.outputs], kernel.func.outputs
    reads, writes = mix(read, written)
    if max(read, written) <= 8:
        assert (x.bytes, y.bytes) == (read * unit, written * unit)
    assert x.shape[2] == reads and (y.shape[2] == writes if len(y.shape) == 4 else writes == 1)
    given = np.random.default_rng(0).integers(0, 9, x.shape).astype(np.float32)
    sums = given.sum(axis=2, keepdims=True)
    want = np.broadcast_to(sums, y.shape) if len(y.shape) == 4 else sums.sum(axis=(1, 2))
    np.testing.assert_array_equal(kernel(given), want)


def test_a_bound_program_runs_again() -> None:
    kernel = stream_kernel(4096, 4096, threads=1)
    x, y = np.ones((16, 1, 1, 64), np.float32), np.zeros((16, 1, 1, 64), np.float32)
    bound = kernel.bind(x, out=y)
    bound.run()
    x *= 3
    bound.run()
    assert (y == 3).all()


@pytest.mark.parametrize(("name", "is_right"), [("dft_16x400", True), ("dft_16x1024", False)])
def test_what_the_reference_is_wrong_by_is_not_held_against_us(name: str, is_right: bool) -> None:
    ours = Cell(1.0, (1.0,), error=1.2e-4)
    row = {"tilewright": replace(ours, ours=ours), "ort": Cell(2.0, (2.0,), ours=ours)}
    found = against(judged({name: {1: row}})[name][1], "ort")
    assert found is not None and (found.value == 2.0) is is_right
