"""Validation of scheduled programs: each condition, where it holds and where it does not."""

import pytest
from schedule_programs import PROGRAMS, conv, elementwise, matmul

import tilewright.schedule.validate as validate_module
from tilewright.ir.expr import Scope
from tilewright.schedule.bindings import Binding
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sites import Site
from tilewright.schedule.steps import CacheRead, ComputeAt, LoopPartition, Reorder, Split
from tilewright.schedule.trace import replay
from tilewright.schedule.validate import BlockKind, Validator, check_valid, validate
from tilewright.schedule.verdict import Certainty
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, single
from tilewright.tir.parser import parse_func


def program(text: str) -> Func:
    return parse_func("@func\n" + text)


def one_block(bindings: str, loops: str = "for i in range(4):") -> Func:
    return program(f"""
def f(A: f32[4, 8], B: out(f32[4, 8])):
    {loops}
        with block("B"):
            {bindings}
            B[u, v] = A[u, v]
""")


# ------------------------------------------------------------------------------------------------------------ bindings


def test_a_diagonal_is_no_binding() -> None:
    func = one_block("u = spatial(4, i); v = spatial(8, i * 2)".replace("; ", "\n            "))
    assert validate(func).blocks["B"].affine_binding.is_broken
    with pytest.raises(ScheduleError, match=r"B\[0, 1\] is in the domain of B, and is never written"):
        check_valid(func)


def test_quotient_and_remainder_are_a_binding() -> None:
    func = one_block("u = spatial(4, i // 8)\n            v = spatial(8, i % 8)", "for i in range(32):")
    validity = validate(func)
    assert validity.blocks["B"].affine_binding and validity.is_valid
    check_valid(func)


def test_instances_outside_of_the_domain_are_found() -> None:
    func = one_block("u = spatial(4, i // 8)\n            v = spatial(8, i % 9)", "for i in range(32):")
    with pytest.raises(ScheduleError, match="is outside of the domain"):
        check_valid(func)


def test_a_loop_that_repeats_updates_is_found() -> None:
    func = program("""
def rows(X: i32[4, 8], S: out(i32[4])):
    for i in range(4):
        for k in range(8):
            for again in range(2):
                with block("S"):
                    vi = spatial(4, i)
                    vk = reduce(8, k)
                    with init():
                        S[vi] = 0
                    S[vi] = S[vi] + X[vi, vk]
""")
    assert validate(func).blocks["S"].kind is BlockKind.OPAQUE
    with pytest.raises(ScheduleError, match="more than once"):
        check_valid(func)


def test_a_whole_reduction_may_be_repeated() -> None:
    s = Schedule(single(matmul(relu=True)))
    s.compute_at("C", "D_j")
    validity = validate(s.module.funcs[0])
    assert validity.is_valid and validity.blocks["C"].kind is BlockKind.REDUCTION


def test_a_reduction_that_does_not_start_with_init_is_found() -> None:
    func = program("""
def rows(X: i32[4, 8], S: out(i32[4])):
    for i in range(4):
        for k in range(8):
            with block("S"):
                vi = spatial(4, i)
                vk = reduce(8, 7 - k)
                with init():
                    S[vi] = 0
                S[vi] = S[vi] + X[vi, vk]
""")
    assert validate(func).blocks["S"].affine_binding  # one to one, but the wrong way round
    with pytest.raises(ScheduleError, match="updates a result before its init has run"):
        check_valid(func)


# --------------------------------------------------------------------------------------------------------- region cover


PIPELINE = """
def f(X: f32[8], Z: out(f32[8])):
    Y = alloc(f32[8])
    for i in range(8):
        with block("Y"):
            v = spatial(8, i)
            Y[v] = X[v] + 1
    for j in range(8):
        with block("Z"):
            w = spatial(8, j)
            Z[w] = Y[w] * 2
"""


def test_a_pipeline_is_covered() -> None:
    validity = validate(program(PIPELINE))
    assert validity.is_valid and validity.stage_pipeline
    assert validity.blocks["Z"].region_cover and validity.blocks["Y"].kind is BlockKind.COMPLETE


def test_reading_what_is_not_written_yet_is_found() -> None:
    func = program("""
def f(X: f32[8], Z: out(f32[8])):
    Y = alloc(f32[9])
    for i in range(8):
        with block("Y"):
            v = spatial(8, i)
            Y[v] = X[v] + 1
        with block("Z"):
            w = spatial(8, i)
            Z[w] = Y[w + 1] * 2
""")
    validity = validate(func)
    assert validity.blocks["Z"].region_cover.is_broken and not validity.stage_pipeline
    with pytest.raises(ScheduleError, match=r"Z reads Y\[1\] before anything has written it") as e:
        check_valid(func)
    assert "for i in range(8)" in str(e.value)


def test_what_earlier_iterations_wrote_counts_in_serial_loops_only() -> None:
    text = """
def f(X: f32[8], Z: out(f32[8])):
    Y = alloc(f32[9])
    for z in range(1):
        with block("start"):
            s = spatial(1, z)
            Y[s] = 0
    for i in range(8):
        with block("Y"):
            v = spatial(8, i)
            Y[v + 1] = X[v] + 1
        with block("Z"):
            w = spatial(8, i)
            Z[w] = Y[w] * 2
"""
    assert validate(program(text)).blocks["Z"].region_cover
    racing = program(text.replace("for i in range(8)", "for i in parallel(8)"))
    assert validate(racing).blocks["Z"].region_cover.is_broken


def test_partial_results_do_not_cover() -> None:
    func = program("""
def f(X: f32[4, 8], Z: out(f32[4])):
    S = alloc(f32[4])
    for i in range(4):
        for k in range(8):
            with block("S"):
                vi = spatial(4, i)
                vk = reduce(8, k)
                with init():
                    S[vi] = 0
                S[vi] = S[vi] + X[vi, vk]
            with block("Z"):
                w = spatial(4, i)
                Z[w] = S[w]
""")
    with pytest.raises(ScheduleError, match="S is read inside k, over which S still reduces"):
        check_valid(func)


def test_large_programs_are_recognised_without_counting() -> None:
    s = Schedule(single(matmul(m=960, n=1000, k=512, relu=True)))
    i0, _ = s.split("D_i", (None, 7))
    s.split("D_j", (None, 16))
    s.compute_at("C", i0)
    validity = validate(s.module.funcs[0])
    assert validity.is_valid and validity.blocks["D"].region_cover and validity.stage_pipeline
    assert validity.blocks["D"].affine_binding
    assert validity.blocks["C"].affine_binding.state is not Certainty.FAILS or "runs over" in (
        validity.blocks["C"].affine_binding.reason
    )


# ------------------------------------------------------------------------------------------------------ kinds, scopes


def test_blocks_that_write_together_are_opaque() -> None:
    s = Schedule(single(matmul()))
    s.decompose_reduction("C", "C_k")
    validity = validate(s.module.funcs[0])
    assert validity.blocks["C"].reason == "C_init writes C too"
    assert validity.is_valid and validity.stage_pipeline


def test_overwriting_what_was_read_is_no_pipeline() -> None:
    func = program("""
def f(X: f32[8], Z: out(f32[8])):
    Y = alloc(f32[8])
    for i in range(8):
        with block("Y"):
            v = spatial(8, i)
            Y[v] = X[v] + 1
    for j in range(8):
        with block("Z"):
            w = spatial(8, j)
            Z[w] = Y[w] * 2
    for k in range(8):
        with block("again"):
            u = spatial(8, k)
            Y[u] = X[u]
""")
    validity = validate(func)
    assert validity.is_valid
    assert validity.stage_pipeline.reason == "again overwrites Y, which Z has read"


def test_launches_that_do_not_fit_are_found() -> None:
    func = program(PIPELINE.replace("for j in range(8)", "for j in vthread(8)"))
    assert validate(func).threading
    func = one_block(
        "u = spatial(4, i)\n            v = spatial(8, j)", "for i in vthread(4):\n     for j in thread_x(8):"
    )
    check_valid(func)
    wide = program("""
def f(A: f32[2048], B: out(f32[2048])):
    for i in thread_x(2048):
        with block("B"):
            v = spatial(2048, i)
            B[v] = A[v]
""")
    with pytest.raises(ScheduleError, match="2048 iterations"):
        check_valid(wide)


def test_explanations_name_what_does_not_hold() -> None:
    s = Schedule(single(conv()))
    s.compute_at("P", "Y_h")
    text = validate(s.module.funcs[0]).explain()
    assert text.startswith("conv: valid\n  P: complete\n    affine binding fails: instance")


# ------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_what_is_remembered_is_what_is_found_anew(name: str) -> None:
    func, known = PROGRAMS[name], Validator()
    assert known.validate(func).same_as(validate(func))
    assert known.validate(func).same_as(validate(func))


def test_unchanged_blocks_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = validate_module.binding

    def look(site: Site) -> Binding:
        looked.append(site.block.name)
        return real(site)

    monkeypatch.setattr(validate_module, "binding", look)
    known, func = Validator(), elementwise()
    known.validate(func)
    assert looked == ["Y", "Z", "W"]
    looked.clear()
    changed = replay(single(func), (Split("Z_i", (None, 2)), Split("Z_j", (None, 4)))).funcs[0]
    known.validate(changed)
    assert looked == ["Z"]


def test_a_trace_is_valid_at_every_step() -> None:
    module, known = single(matmul(relu=True)), Validator()
    for step in (
        CacheRead("C", "B", Scope.LOCAL),
        Split("D_i", (None, 3)),
        Split("D_j", (None, 4)),
        Reorder(("D_i_0", "D_j_0", "D_i_1", "D_j_1")),
        ComputeAt("C", "D_j_0"),
        ComputeAt("C_B_in", "D_j_0"),
        LoopPartition("D_i_0", (2,)),
    ):
        module = step.apply(module)
        validity = known.validate(module.funcs[0])
        assert validity.is_valid, validity.explain()
        assert validity.same_as(validate(module.funcs[0]))
