"""transform_block_layout: other iterators for a block, other loops around it."""

from schedule_programs import check, check_native, conv, elementwise, matmul, outline, row_sum

from tilewright.ir.layout import FuseDims, Layout, ReorderDims, SplitDim
from tilewright.schedule import steps
from tilewright.schedule.find import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import Blockize, Parallel, TransformBlockLayout
from tilewright.tir.func import single
from tilewright.tir.printer import print_stmt
from tilewright.tir.stmt import IterKind


def test_split() -> None:
    func = check_native(matmul(m=8), TransformBlockLayout("C", Layout((SplitDim(0, 4),))))
    assert outline(func.body) == [
        "for C_i_0 in range(2):",
        "    for C_i_1 in range(4):",
        "        for C_j in range(6):",
        "            for C_k in range(5):",
        "                C(C_vi_0 = C_i_0, C_vi_1 = C_i_1, C_vj = C_j, C_vk = reduce(C_k))",
    ]
    assert print_stmt(find_block(func, "C").body) == (
        "C[C_vi_0 * 4 + C_vi_1, C_vj] = C[C_vi_0 * 4 + C_vi_1, C_vj] + A[C_vi_0 * 4 + C_vi_1, C_vk] * B[C_vk, C_vj]"
    )


def test_fuse() -> None:
    func = check_native(matmul(), TransformBlockLayout("C", Layout((FuseDims(0, 2),))))
    assert outline(func.body)[-1].strip() == "C(C_vi_f = C_i_f, C_vk = reduce(C_k))"
    assert "C[C_vi_f // 6, C_vi_f % 6]" in print_stmt(find_block(func, "C"))


def test_reorder() -> None:
    func = check_native(matmul(), TransformBlockLayout("C", Layout((ReorderDims((2, 1, 0)),))))
    assert outline(func.body)[0] == "for C_k in range(5):"
    assert [it.kind for it in find_block(func, "C").iters] == [
        IterKind.REDUCE,
        IterKind.SPATIAL,
        IterKind.SPATIAL,
    ]


def test_a_convolution_becomes_a_product() -> None:
    """FuseDims rows and columns, and the window with the channels."""
    func = check_native(conv(), TransformBlockLayout("Y", Layout((FuseDims(1, 2), FuseDims(2, 3)))))
    assert outline(func.body)[-1].strip() == "Y(Y_vo = Y_o, Y_vh_f = Y_h_f, Y_vc_f = reduce(Y_c_f))"
    assert find_block(func, "Y").init is not None


def test_tiles_in_order() -> None:
    layout = Layout((SplitDim(0, 4), SplitDim(2, 3), SplitDim(4, 5), ReorderDims((0, 2, 4, 1, 3, 5))))
    func = check_native(matmul(m=8, k=10), TransformBlockLayout("C", layout))
    assert outline(func.body)[-1].strip() == (
        "C(C_vi_0 = C_i_0, C_vj_0 = C_j_0, C_vk_0 = reduce(C_k_0), C_vi_1 = C_i_1, C_vj_1 = C_j_1, "
        "C_vk_1 = reduce(C_k_1))"
    )


def test_there_and_back() -> None:
    layout = Layout((SplitDim(0, 4), FuseDims(0, 2)))
    func = check_native(matmul(m=8), TransformBlockLayout("C", layout))
    assert "A[C_vi_0_f, C_vk]" in print_stmt(find_block(func, "C"))


def test_a_fuse_of_one_changes_nothing() -> None:
    func = check(matmul(), TransformBlockLayout("C", Layout((FuseDims(1, 1),))))
    assert outline(func.body) == outline(matmul().body)


def test_loops_in_another_order_than_the_iterators() -> None:
    func = check_native(
        matmul(), steps.Reorder(("C_k", "C_i")), TransformBlockLayout("C", Layout((FuseDims(0, 2),)))
    )
    assert outline(func.body)[0] == "for C_i_f in range(42):"


def test_a_transposing_block() -> None:
    func = check_native(
        elementwise(), TransformBlockLayout("W", Layout((ReorderDims((1, 0)), FuseDims(0, 2))))
    )
    assert outline(func.body)[-2:] == ["for W_j_f in range(40):", "    W(W_vj_f = W_j_f)"]


def test_a_tile_as_a_whole() -> None:
    trace = (
        steps.Split("C_i", (None, 4)),
        steps.Split("C_j", (None, 3)),
        steps.Reorder(("C_i_0", "C_j_0", "C_k", "C_i_1", "C_j_1")),
        Blockize("C_i_1"),
        TransformBlockLayout("C_o", Layout((FuseDims(0, 2),))),
        Parallel("C_i_0_f"),
    )
    func = check_native(matmul(m=8), *trace)
    assert outline(func.body)[0] == "for C_i_0_f in parallel(4):"


def test_the_schedule_tells_the_loops() -> None:
    s = Schedule(single(row_sum(columns=12)))
    assert s.transform_block_layout("S", Layout((SplitDim(1, 4), ReorderDims((1, 0, 2))))) == (
        "S_k_0",
        "S_i",
        "S_k_1",
    )
