"""merge: loops side by side become one."""

from schedule_programs import check, check_native, elementwise, matmul, outline, softmax

from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import DecomposeReduction, Distribute, LoopPartition, Merge, Parallel, Split
from tilewright.schedule.trace import replay
from tilewright.tir.compare import same_func
from tilewright.tir.func import single
from tilewright.tir.parser import parse_func


def test_two_nests_become_one() -> None:
    func = check_native(matmul(relu=True), Merge(("C_j", "D_j")))
    assert outline(func.body) == [
        "for C_i in range(7):",
        "    for C_j in range(6):",
        "        for C_k in range(5):",
        "            C(C_vi = C_i, C_vj = C_j, C_vk = reduce(C_k))",
        "        D(D_vi = C_i, D_vj = C_j)",
    ]


def test_the_outer_loops_only() -> None:
    func = check_native(matmul(relu=True), Merge(("C_i", "D_i")), Parallel("C_i"))
    assert outline(func.body)[0] == "for C_i in parallel(7):"
    assert outline(func.body)[-2:] == ["    for D_j in range(6):", "        D(D_vi = C_i, D_vj = D_j)"]


def test_three_loops() -> None:
    func = check_native(softmax(), Merge(("M_i", "E_i", "S_i", "Y_i")))
    assert [line for line in outline(func.body) if not line.startswith(" ")] == ["for M_i in range(3):"]


def test_two_of_three() -> None:
    func = check_native(elementwise(), Merge(("Y_i", "Z_i")), Merge(("Y_j", "Z_j")))
    assert outline(func.body)[:4] == [
        "for Y_i in range(5):",
        "    for Y_j in range(8):",
        "        Y(Y_vi = Y_i, Y_vj = Y_j)",
        "        Z(Z_vi = Y_i, Z_vj = Y_j)",
    ]


def test_reductions_that_have_nothing_in_common() -> None:
    func = parse_func("""
@func
def two(A: i32[4, 5], S: out(i32[4]), T: out(i32[4])):
    for i in range(4):
        for k in range(5):
            with block("S"):
                vi = spatial(4, i)
                vk = reduce(5, k)
                with init():
                    S[vi] = 0
                S[vi] = S[vi] + A[vi, vk]
        for l in range(5):
            with block("T"):
                wi = spatial(4, i)
                wk = reduce(5, l)
                with init():
                    T[wi] = 0
                T[wi] = max(T[wi], A[wi, wk])
""")
    assert [line.strip() for line in outline(check_native(func, Merge(("k", "l"))).body)][
        1
    ] == "for k in range(5):"


def test_merge_undoes_distribute() -> None:
    before = replay(single(matmul(relu=True)), (Merge(("C_i", "D_i")),)).funcs[0]
    after = replay(single(before), (Distribute("C_i"), Merge(("C_i", "C_i_d1")))).funcs[0]
    assert same_func(before, after)


def test_init_meets_its_updates_again() -> None:
    check_native(
        matmul(),
        DecomposeReduction("C", "C_i"),
        Merge(("C_j_init", "C_j")),
    )


def test_parts_of_a_partitioned_loop_are_apart() -> None:
    func = check_native(matmul(m=8), LoopPartition("C_i", (4,)), Merge(("C_i_p0", "C_i_p1")))
    assert outline(func.body)[0] == "for C_i_p0 in range(4):"


def test_split_loops_with_predicates() -> None:
    check_native(
        matmul(relu=True), Split("C_i", (None, 4)), Split("D_i", (None, 4)), Merge(("C_i_1", "D_i_1"))
    )


def test_the_schedule_has_a_method() -> None:
    s = Schedule(single(matmul(relu=True)))
    s.merge("C_i", "D_i")
    assert s.trace == (Merge(("C_i", "D_i")),)
    check(matmul(relu=True), *s.trace)
