"""Long reductions with few results are divided into chunks, which a team shares, where that pays."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from native import BEST, every_target, run_native
from onnx import ModelProto, TensorProto, helper

from tilewright.compiler import compile
from tilewright.cost.parallel import few_parts, shared_seconds, team_seconds
from tilewright.families.parallel import parts_of
from tilewright.families.split_k.recipe import divide_reduction, divided_iter
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, UnaryOp, unary
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.trace import replay
from tilewright.search.default import choose_schedule, schedule_func, spaces
from tilewright.target.machine import SHIPPED
from tilewright.target.target import AVX2, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func

F32 = DType.F32
Sound = Callable[[Func], Func]


def gemm(rows: int, k: int, cols: int) -> Func:
    """X · W + B."""
    b = FuncBuilder("gemm")
    x, w, bias = b.param("X", (rows, k), F32), b.param("W", (k, cols), F32), b.param("B", (cols,), F32)
    c = b.reduce("C", (rows, cols), (k,), lambda i, j, n: (x[i, n], w[n, j]))
    return b.finish(b.compute("Y", (rows, cols), lambda i, j: c[i, j] + bias[j]))


def reduction(shape: Sequence[int], axes: Sequence[int], combine: str = "sum") -> Func:
    """Over some axes, and doubled."""
    b = FuncBuilder("reduction")
    x = b.param("X", tuple(shape), F32)
    kept = [n for d, n in enumerate(shape) if d not in axes]

    def element(*at: Expr) -> Expr:
        spatial, reduce = list(at[: len(kept)]), list(at[len(kept) :])
        return x[tuple(reduce.pop(0) if d in axes else spatial.pop(0) for d in range(len(shape)))]

    c = b.reduce("C", kept, [shape[d] for d in axes], element, combine)
    return b.finish(b.compute("Y", kept, lambda *i: c[i] * 2))


def softmax(size: int) -> Func:
    """Of one row."""
    b = FuncBuilder("softmax")
    x = b.param("X", (size,), F32)
    most = b.reduce("most", (), (size,), lambda i: x[i], "max")
    e = b.compute("e", (size,), lambda i: unary(UnaryOp.EXP, x[i] - most[()]))
    total = b.reduce("total", (), (size,), lambda i: e[i])
    return b.finish(b.compute("Y", (size,), lambda i: e[i] / total[()]))


def rule_of(func: Func, target: Target = AVX2) -> str:
    return spaces(func, target)[0].family


def small_integers(func: Func) -> list[np.ndarray]:
    """Every order of a sum of these gives the same bits."""
    rng = np.random.default_rng(0)
    return [rng.integers(-2, 3, p.shape).astype(np.float32) for p in func.params if p not in func.outputs]


# ----------------------------------------------------------------------------------------------------------- the recipe


@pytest.mark.parametrize(
    "func",
    [
        gemm(2, 12, 5),
        reduction((12, 5), (0,)),
        reduction((6, 10), (0, 1)),
        reduction((5, 12), (1,), "max"),
    ],
    ids=["gemm", "columns", "everything", "max"],
)
def test_chunks_are_summed_apart_and_then_together(func: Func, sound: Sound) -> None:
    s = Draft(single(func))
    over = divided_iter(find_block(s.func, "C"))
    assert over is not None
    part = divide_reduction(s, "C", over, 3)
    divided = sound(s.func)
    (buffer,) = [b for b in divided.locals if b.name == part]
    assert buffer.shape[0] == 3  # a chunk's results are together
    arrays = small_integers(func)
    np.testing.assert_array_equal(run_func(divided, *arrays)[0], run_func(func, *arrays)[0])


def test_chunks_are_those_of_the_farthest_steps() -> None:
    over = divided_iter(find_block(reduction((4, 8, 6), (0, 1, 2)), "C"))
    assert over is not None and over.extent == 4


# ------------------------------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    "func",
    [
        gemm(8, 8192, 8),
        gemm(1, 16384, 16),
        softmax(1 << 16),
    ],
    ids=["gemm", "one row", "softmax"],
)
def test_few_results_of_many_steps_are_divided(func: Func) -> None:
    assert rule_of(func) == "split_k"


@pytest.mark.parametrize(
    "func",
    [
        reduction((1 << 19,), (0,)),
        reduction((32768, 16), (0,)),
        reduction((2, 512, 512), (1, 2)),
        reduction((1 << 19,), (0,), "max"),
    ],
    ids=["everything", "columns", "two channels", "max"],
)
def test_what_one_sweep_sums_is_divided_by_its_own_family(func: Func) -> None:
    chosen = choose_schedule(func, AVX2)
    assert chosen.family == "stream" and chosen.decisions["split"] >= 16


@pytest.mark.parametrize(
    "func",
    [
        gemm(256, 256, 256),
        gemm(1, 2048, 1000),
        gemm(8, 256, 8),
        reduction((64, 4096), (1,)),
        reduction((49, 1024), (0,)),
        reduction((1024,), (0,)),
        softmax(1000),
    ],
    ids=["large", "many columns", "short", "rows", "channels", "few elements", "short softmax"],
)
def test_what_has_parts_enough_or_is_over_soon_is_not_divided(func: Func) -> None:
    assert rule_of(func) != "split_k"


def test_a_team_has_parts_for_all() -> None:
    func = gemm(8, 8192, 8)
    assert parts_of(schedule_func(func, AVX2).func, "C_part") >= 8


@every_target
@pytest.mark.parametrize(
    "func",
    [gemm(8, 8192, 8), reduction((1 << 17, 3), (0,)), softmax(1 << 16)],
    ids=["gemm", "sum", "softmax"],
)
def test_divided_results_are_right(func: Func, target: Target) -> None:
    s = schedule_func(func, target)
    assert same_func(replay(single(func), s.trace).funcs[0], s.func)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(p.shape).astype(np.float32) for p in func.params if p not in func.outputs]
    (out,) = run_native(s.func, inputs, target)
    x = inputs[0].astype(np.float64)
    if func.name == "gemm":
        want = x @ inputs[1] + inputs[2]
    elif func.name == "reduction":
        want = 2 * x.sum(0)
    else:
        want = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    assert np.abs(out - want).max() <= 2e-6 * np.abs(want).max() + 1e-6 * np.sqrt(x.size)


def test_native_code_and_the_interpreter_agree_to_the_bit() -> None:
    func = gemm(1, 8192, 16)
    scheduled = schedule_func(func, BEST).func
    assert scheduled.block("C_part") is not None
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(p.shape).astype(np.float32) for p in func.params if p not in func.outputs]
    (out,) = run_native(scheduled, arrays, BEST)
    np.testing.assert_array_equal(out, run_func(scheduled, *arrays)[0])


# --------------------------------------------------------------------------------------------------------------- teams


def model() -> ModelProto:
    """A long GEMM, and a sum of all of another input."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16384])
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, [16384, 8])
    y, z = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("y", [4, 8]), ("z", [1, 1])))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("ReduceSum", ["w"], ["z"])]
    graph = helper.make_graph(nodes, "divided", [x, w], [y, z])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_every_team_computes_the_same_bits() -> None:
    made = compile(model())
    rng = np.random.default_rng(3)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (4, 16384)), ("w", (16384, 8)))}
    results: list[dict[str, np.ndarray]] = []
    for threads in (1, 2, 3):
        with made.session(threads) as session:
            results.append({n: a.copy() for n, a in session.run(feeds).items()})
    for other in results[1:]:
        for name, array in results[0].items():
            np.testing.assert_array_equal(array, other[name])
    np.testing.assert_allclose(
        results[0]["y"], feeds["x"].astype(np.float64) @ feeds["w"], rtol=1e-4, atol=1e-3
    )


def test_a_sum_of_one_row_compiles() -> None:
    """The loop over one row is no parallel loop."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 40000])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])
    graph = helper.make_graph([helper.make_node("ReduceSum", ["x"], ["y"])], "sum", [x], [y])
    made = compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    with made.session(1) as session:
        assert session.run({"x": np.ones((1, 40000), np.float32)})["y"] == 40000


def test_the_slowest_of_a_team_decides() -> None:
    assert shared_seconds(1.0, 1, 4, SHIPPED) == 1.0
    assert shared_seconds(1.0, 16, 1, SHIPPED) == 1.0
    assert 0.5 < shared_seconds(1.0, 64, 2, SHIPPED) < 0.51
    assert shared_seconds(1.0, 3, 2, SHIPPED) > 0.66
    assert team_seconds(1.0, 48, SHIPPED) < team_seconds(1.0, 5, SHIPPED) < team_seconds(1.0, 2, SHIPPED)
    assert few_parts(16) == 1.0 < few_parts(4)
