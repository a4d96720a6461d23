"""Profiles: what a kernel does is counted from its loops, and how long it takes is measured as it is run."""

import numpy as np
import pytest

from examples.models import mlp
from tilewright.cli.peak import Limits, measure_limits
from tilewright.cli.profile import KernelProfile, profile
from tilewright.cost.traffic import must_move
from tilewright.profiling.call_times import kernel_calls, one_by_one
from tilewright.profiling.flops import count_flops
from tilewright.stages import Stages, stages
from tilewright.support.artifact import KernelCall, Place, Segment, Slot
from tilewright.support.program import Branch, While
from tilewright.target.target import native
from tilewright.tir.parser import parse_func

# ------------------------------------------------------------------------------------------------------------ counting

MATMUL = """\
@func
def matmul(A: f32[4, 8], B: f32[8, 16], C: out(f32[4, 16])):
    for i in range(4):
        for j in range(16):
            C[i, j] = 0.0
            for k in range(8):
                C[i, j] = fma(A[i, k], B[k, j], C[i, j])
"""

WINDOW = """\
@func
def window(X: f32[10], Y: out(f32[4])):
    for i in range(4):
        Y[i] = X[2 * i + 1]
"""

GATHER = """\
@func
def gather(T: f32[1000, 4], I: i64[3], Y: out(f32[3, 4])):
    for i in range(3):
        for j in range(4):
            Y[i, j] = T[I[i], j]
"""


def test_a_product_touches_its_operands_once_and_its_sum_twice() -> None:
    func = parse_func(MATMUL)
    assert count_flops(func.body) == 2 * 4 * 16 * 8
    assert must_move(func) == 4 * (4 * 8 + 8 * 16 + 2 * 4 * 16)


def test_a_window_touches_its_box_or_less() -> None:
    assert must_move(parse_func(WINDOW)) == 4 * (4 + 4)


def test_a_gather_touches_what_it_takes_and_not_the_table() -> None:
    assert must_move(parse_func(GATHER)) == 4 * 12 + 8 * 3 + 4 * 12


# -------------------------------------------------------------------------------------------------------------- timing


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    path = tmp_path_factory.mktemp("profile") / "mlp.onnx"
    path.write_bytes(mlp((64, 128, 32)).SerializeToString())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", "off")
        return stages(path)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_kernel_has_its_time_and_work(compiled: Stages, threads: int) -> None:
    feeds = {"x": np.ones((1, 64), np.float32)}
    made = profile(compiled.artifact, feeds, target=native(), threads=threads, seconds=0, stages=compiled)
    called = [c.kernel for c in kernel_calls(compiled.artifact.program)]
    assert sorted(k.name for k in made.kernels for _ in range(k.calls)) == sorted(called)
    assert [k.seconds for k in made.kernels] == sorted((k.seconds for k in made.kernels), reverse=True)
    products = 2 * (64 * 128 + 128 * 32)
    assert products <= sum(k.flops or 0 for k in made.kernels) < 1.5 * products
    weights = 4 * (64 * 128 + 128 * 32)
    assert weights <= sum(k.nbytes or 0 for k in made.kernels) < 1.5 * weights
    assert all("→" in k.layout for k in made.kernels)
    assert sum(k.algorithm.startswith("contraction") for k in made.kernels) >= 2
    assert made.total > 0 and made.runs >= 5
    assert made.total == pytest.approx(made.inside + made.outside)


def test_a_program_without_its_source_has_times_only(compiled: Stages) -> None:
    feeds = {"x": np.ones((1, 64), np.float32)}
    made = profile(compiled.artifact, feeds, target=native(), threads=1, seconds=0)
    assert all(k.flop_rate is None and k.byte_rate is None and k.seconds >= 0 for k in made.kernels)
    assert made.as_json()["kernels"][0]["of_peak"] is None


def test_calls_become_segments_wherever_they_are() -> None:
    a, b = (KernelCall(n, 1, ()) for n in "ab")
    flag = Slot(Place.ARENA, 0)
    program = (Segment((a, b)), Branch(flag, (Segment((a, a)),), ()), While(flag, (Segment((b, a)),)))
    assert one_by_one(program) == (
        Segment((a,)),
        Segment((b,)),
        Branch(flag, (Segment((a,)), Segment((a,))), ()),
        While(flag, (Segment((b,)), Segment((a,)))),
    )
    assert "".join(c.kernel for c in kernel_calls(program)) == "abaaba"


def test_limits_are_of_all_cores_together() -> None:
    found = measure_limits(native(), 1, seconds=0)
    assert found.flop_rate > 1e8 and found.byte_rate > 1e8
    assert Limits(1.0, 5.0).best(Limits(2.0, 4.0)) == Limits(2.0, 5.0)


def test_a_kernel_too_short_to_be_seen_has_no_rates() -> None:
    k = KernelProfile("tiny", 1, 1, 0.0, 8, 64, "elementwise", "1 → 1")
    assert k.flop_rate is None
    assert k.byte_rate is None
