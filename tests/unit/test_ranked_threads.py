"""Kernels are ranked by one core's time, or for the threads that a program is compiled for."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.models import mlp
from tests.onnx_cases import random_feeds
from tilewright import api
from tilewright.compiler import compile
from tilewright.cost.parallel import few_parts, least_shared, ranked_seconds, shared_seconds, usual_share
from tilewright.driver.trace import ProgramTrace
from tilewright.families.space import Space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, DimSize, UnaryOp, unary
from tilewright.search.default import choose_schedule, spaces
from tilewright.support.errors import UserError
from tilewright.target.machine import SHIPPED
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.rewrite import redirect
from tilewright.tuning.candidate import Task

F32 = DType.F32


def gemm(rows: int, k: int, cols: int) -> Func:
    b = FuncBuilder("gemm")
    x, w = b.param("X", (rows, k), F32), b.param("W", (k, cols), F32)
    return b.finish(b.reduce("Y", (rows, cols), (k,), lambda i, j, n: (x[i, n], w[n, j])))


def powers(rows: int, cols: int) -> Func:
    b = FuncBuilder("powers")
    x = b.param("X", (rows, cols), F32)
    return b.finish(b.compute("Y", (rows, cols), lambda i, j: unary(UnaryOp.EXP, x[i, j])))


def best(space: Space) -> float:
    return float(space.ranked()[1][0])


def test_one_thread_is_one_cores_time() -> None:
    alone, parts = np.array([1e-3, 1e-6, 2.0]), np.array([2.0, 16.0, 5.0])
    expected = [a * few_parts(p) for a, p in zip(alone, parts, strict=True)]
    assert ranked_seconds(alone, parts, SHIPPED).tolist() == expected


def test_several_take_as_long_as_who_has_most_parts() -> None:
    m = SHIPPED.for_threads(4)
    alone = np.array([1e-3, 1e-3, 1e-3])
    got = ranked_seconds(alone, np.array([4.0, 5.0, 64.0]), m)
    assert got.tolist() == pytest.approx([shared_seconds(1e-3, p, 4, m) for p in (4, 5, 64)])
    assert got[1] > 1.5 * got[0] > 1.5 * got[2]


def test_what_is_too_small_or_whole_is_not_shared() -> None:
    m = SHIPPED.for_threads(2)
    small = 0.9 * least_shared(m)
    assert ranked_seconds(np.array([small, 1.0]), np.array([64.0, 1.0]), m).tolist() == [small, 1.0]


@pytest.mark.parametrize(
    "func",
    [gemm(96, 512, 64), gemm(384, 384, 384), powers(256, 256), gemm(1, 2048, 2048)],
    ids=["rows", "square", "powers", "weights"],
)
def test_more_threads_are_quicker_in_every_family(func: Func) -> None:
    one = {s.family: best(s) for s in spaces(func, AVX2)}
    four = {s.family: best(s) for s in spaces(func, AVX2.for_threads(4))}
    assert one.keys() == four.keys()  # what is a point does not depend on who runs it
    for family, seconds in one.items():
        assert four[family] < seconds, family


def test_memory_does_not_get_quicker_with_threads() -> None:
    """Four cores read no faster than two where two read all that there is."""
    func, fast = gemm(1, 4096, 4096), replace(AVX2, machine=replace(AVX2.machine, memory_rates=(9e9,) * 4))
    one, four = (min(best(s) for s in spaces(func, t, frozenset({"W"}))) for t in (fast, fast.for_threads(4)))
    assert one / 1.4 < four < 1.1 * one


def test_balance_counts_where_threads_are_known() -> None:
    """Of 5 rows of tiles two threads get 3 and 2; one core does not care."""
    func = gemm(30, 4096, 16)
    chosen = [choose_schedule(func, AVX2.for_threads(n), frozenset({"W"})) for n in (1, 2)]
    assert chosen[0].family == chosen[1].family == "gemm" or chosen[1].family == "split_k"
    assert chosen[0].decisions != chosen[1].decisions


# -------------------------------------------------------------------------------------------------------- compilation


def test_a_program_is_made_for_threads_and_runs_with_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    model = mlp((64, 256, 256, 8), batch=6)
    any_number, two = compile(model), compile(model, threads=2)
    assert any_number.trace.machine.endswith("for any number of threads")
    assert two.trace.machine.endswith("for 2 threads")
    assert two.artifact.manifest.options["machine"] == two.trace.machine
    assert compile(model, threads=1).trace.machine == any_number.trace.machine
    for section in ("groups", "algorithms", "joins", "layouts"):
        assert two.trace.sections[section] == any_number.trace.sections[section]
    feeds = random_feeds(model)
    results: list[bytes] = []
    for threads in (1, 2, 3):
        with two.session(threads) as session:
            results.append(b"".join(v.tobytes() for v in session.run(feeds).values()))
    assert len(set(results)) == 1
    with pytest.raises(UserError, match="threads = 0"):
        compile(model, threads=0)


def test_how_many_threads_a_session_has_does_not_decide_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or results would depend on it: `load` promises the same bits for any number."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    model = mlp((16, 16, 8), batch=2)
    api.load(model, threads=1).close()
    monkeypatch.setattr(api, "_compiler", lambda: pytest.fail("it was compiled again"))
    api.load(model, threads=2).close()


def test_load_takes_a_target_for_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    model = mlp((16, 16, 8), batch=2)
    for n in (1, 2):
        api.load(model, target=AVX2.for_threads(n)).close()
    assert len(list(tmp_path.rglob("*.tw"))) == 2


def test_the_machine_of_a_trace_decides_nothing() -> None:
    text = "# machine: some; for 2 threads\n[layouts]\n"
    trace = ProgramTrace.parse(text)
    assert str(trace) == text
    assert trace == ProgramTrace({"layouts": ()})
    assert trace.digest == ProgramTrace({"layouts": ()}).digest


def test_tuning_ranks_for_the_threads_that_candidates_run_on() -> None:
    func = gemm(96, 512, 64)
    task = Task("key", func, frozenset(), AVX2, spaces, threads=4)
    ranked = {s.family: best(s) for s in task.design_spaces()}
    assert ranked == {s.family: best(s) for s in spaces(func, AVX2.for_threads(4))}


def test_parts_along_an_open_dimension_count_as_at_a_usual_size() -> None:
    """Blocks of 128 rows at most are no parts to rely on, so that a team shares columns."""
    fixed = gemm(128, 1536, 384)
    sizes = (DimSize("n", 1, 128), None)
    x, y = fixed.params[0], fixed.outputs[0]
    opened = {b: Buffer(b.name, b.shape, b.dtype, b.scope, sizes) for b in (x, y)}
    func = replace(
        fixed,
        params=tuple(opened.get(b, b) for b in fixed.params),
        body=redirect(fixed.body, opened),
        outputs=(opened[y],),
    )
    assert usual_share(opened[y], [0]) == pytest.approx(128**0.5 / 128)
    assert usual_share(opened[y], [1]) == 1.0
    found = [choose_schedule(f, AVX2, frozenset({"W"})).decisions for f in (fixed, func)]
    parts = [d["columns_outside"] or d["chunk"] for d in found]
    assert found[0]["rows"] == found[1]["rows"] and not parts[0] and parts[1]


def test_weights_of_one_row_are_not_asked_for_ahead() -> None:
    """They come from memory in order, and the tile waits for them whatever it does; of more rows, they are."""
    found = {rows: choose_schedule(gemm(rows, 3072, 1536), AVX2, frozenset({"W"})) for rows in (1, 6)}
    assert {rows: (f.family, f.decisions["prefetch"]) for rows, f in found.items()} == {
        1: ("gemm", 0),
        6: ("gemm", 32),
    }
