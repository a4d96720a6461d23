"""An audit of reduction loops as they come out of LLVM: what the schedule kept in registers stays there.

In the loop over k of a tile with MR rows and NV vectors of columns, a step is MR broadcasts, NV vector loads and MR·NV
multiply-adds. There is no store and no access to the stack: either would mean that accumulators were spilled.
"""

import pytest
from assembly import Instruction, Loop, innermost_loops
from native import kernels_of, program

from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.objects import compile_assembly
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Fma, Load, UnaryOp, free_vars, maximum, unary
from tilewright.ir.expr import walk as walk_expr
from tilewright.search.default import schedule_func
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import For, LoopKind, Store, loops, walk_stmts

F32 = DType.F32


def dense(m: int, n: int, k: int, epilogue: str = "none") -> Func:
    b = FuncBuilder("dense")
    x, w, bias = b.param("X", (m, k), F32), b.param("W", (k, n), F32), b.param("bias", (n,), F32)
    y = b.reduce("C", (m, n), (k,), lambda i, j, k: (x[i, k], w[k, j]))

    def value(i: Expr, j: Expr) -> Expr:
        t = y[i, j] + bias[j]
        return maximum(t, 0) if epilogue == "relu" else t * 0.5 * (unary(UnaryOp.ERF, t * 0.70710678) + 1.0)

    return b.finish(y if epilogue == "none" else b.compute("D", (m, n), value))


def conv(channels: int, filters: int, size: int, window: int) -> Func:
    b = FuncBuilder("conv")
    wide = size + window - 1
    x, w = b.param("X", (wide, wide, channels), F32), b.param("W", (window, window, channels, filters), F32)
    c = b.reduce(
        "C",
        (size, size, filters),
        (window, window, channels),
        lambda i, j, o, r, s, k: (x[i + r, j + s, k], w[r, s, k, o]),
    )
    return b.finish(b.compute("Y", (size, size, filters), lambda i, j, o: maximum(c[i, j, o], 0)))


class Step:
    """What a reduction loop should do, read off the lowered program: its multiply-adds, and its distinct loads."""

    def __init__(self, loop: For) -> None:
        self.fma = 0
        broadcasts, vectors, accumulators = set[Load](), set[Load](), set[Load]()
        for lane in loops(loop.body):
            for s in (s for s in walk_stmts(lane.body) if isinstance(s, Store)):
                assert isinstance(s.value, Fma), s
                self.fma += 1
                for ld in (n for n in walk_expr(s.value) if isinstance(n, Load)):
                    if ld.buffer is s.buffer:
                        accumulators.add(ld)
                    elif lane.var in set[object]().union(*(free_vars(i) for i in ld.indices)):
                        vectors.add(ld)
                    else:
                        broadcasts.add(ld)
        self.broadcasts, self.vectors, self.accumulators = len(broadcasts), len(vectors), len(accumulators)

    @property
    def unroll(self) -> int:
        return self.fma // self.accumulators


def reduction_loops(func: Func) -> list[For]:
    """The innermost loops of a lowered kernel that multiply and add in vectors."""
    serial = [n for n in loops(func.body) if n.kind is not LoopKind.VECTORIZED and n.extent > 1]
    return [
        n
        for n in serial
        if all(o.kind is LoopKind.VECTORIZED for o in loops(n.body))
        and any(isinstance(s, Store) and isinstance(s.value, Fma) for s in walk_stmts(n.body))
    ]


def audit(loop: Loop, step: Step) -> list[str]:
    """What is wrong with a reduction loop."""
    count = loop.count
    wrong = [
        (count("is_fma") != step.fma, f"{count('is_fma')} multiply-adds, not {step.fma}"),
        (count("is_store") > 0, f"{count('is_store')} stores"),
        (count("touches_stack") > 0, f"{count('touches_stack')} accesses to the stack"),
        (
            count("is_broadcast") != step.broadcasts,
            f"{count('is_broadcast')} broadcasts, not {step.broadcasts}",
        ),
        (
            count("is_load") != step.broadcasts + step.vectors,
            f"{count('is_load')} loads, not {step.broadcasts} + {step.vectors}",
        ),
    ]
    return [text for bad, text in wrong if bad]


def audited(func: Func) -> list[tuple[Step, list[str]]]:
    """Each reduction loop of a lowered kernel with what is wrong with its code."""
    steps = [Step(n) for n in reduction_loops(func)]
    found = [n for n in innermost_loops(compile_assembly(kernel_ir(func), AVX2)) if n.has_fma]
    assert len(found) == len(steps), (
        f"{len(found)} loops with multiply-adds in the code, {len(steps)} in the program"
    )
    return [(step, audit(loop, step)) for loop, step in zip(found, steps, strict=True)]


CASES = {
    "gemm": (dense(24, 64, 96), ()),
    "gemm-constant": (dense(24, 64, 96), ("W",)),
    "gemm-odd": (dense(23, 40, 70), ("W",)),
    "gemm-narrow": (dense(24, 8, 64), ("W",)),
    "gemm-deep": (dense(48, 512, 1024), ()),
    "dense-relu": (dense(32, 96, 64, "relu"), ("W", "bias")),
    "dense-gelu": (dense(32, 96, 64, "gelu"), ("W", "bias")),
    "conv-3x3": (conv(16, 32, 14, 3), ("W",)),
    "conv-1x1": (conv(64, 32, 14, 1), ("W",)),
}


@pytest.mark.parametrize("name", CASES)
def test_reduction_loops_hold_loads_and_multiply_adds_only(name: str) -> None:
    func, constants = CASES[name]
    kernels, _ = kernels_of(schedule_func(func, AVX2, frozenset(constants)).func, AVX2)
    seen = [pair for k in kernels for pair in audited(k)]
    assert seen, "no reduction loop was found"
    for step, problems in seen:
        assert not problems, (step.fma, step.unroll, problems)
        # A tile of MR x NV: a step loads a row of B and a column of A, and multiplies each with each.
        rows, vectors = step.broadcasts / step.unroll, step.vectors / step.unroll
        assert rows <= step.accumulators and rows * vectors == step.accumulators, (rows, vectors)
    assert max(step.accumulators for step, _ in seen) >= 8, "too few accumulators to fill the pipeline"


IN_MEMORY = """
def dense(A: f32[4, 96], B: f32[96, 8], D: out(f32[4, 8])):
    with alloc(f32[4, 8], "{scope}") as C:
        for z in vectorized(8):
            C[0, z] = f32(0)
            C[1, z] = f32(0)
            C[2, z] = f32(0)
            C[3, z] = f32(0)
        for k in range(96):
            for j in vectorized(8):
                C[0, j] = fma(A[0, k], B[k, j], C[0, j])
                C[1, j] = fma(A[1, k], B[k, j], C[1, j])
                C[2, j] = fma(A[2, k], B[k, j], C[2, j])
                C[3, j] = fma(A[3, k], B[k, j], C[3, j])
{save}
"""
# A loop over the rows of a buffer in memory needs it to have addresses.
ROLLED = """        for i in range(4):
            for j2 in vectorized(8):
                D[i, j2] = C[i, j2]"""
UNROLLED = "\n".join(
    f"        for j{i} in vectorized(8):\n            D[{i}, j{i}] = C[{i}, j{i}]" for i in range(4)
)


def test_the_audit_fails_on_accumulators_in_memory() -> None:
    ((step, problems),) = audited(program(IN_MEMORY.format(scope="local", save=ROLLED)))
    assert (step.fma, step.broadcasts, step.vectors, step.unroll) == (4, 4, 1, 1)
    assert (
        "4 stores" in problems and "4 accesses to the stack" in problems
    ) or "8 accesses to the stack" in problems
    ((_, problems),) = audited(program(IN_MEMORY.format(scope="register", save=UNROLLED)))
    assert not problems


# ---------------------------------------------------------------------------------------------------- the parser


LOOPS = """
kernel:
	pushq	%rbp
	xorl	%eax, %eax
.LBB0_1:                                # =>This Loop Header: Depth=1
	vmovups	(%rdi,%rax,4), %ymm0
	xorl	%ecx, %ecx
.LBB0_2:                                #   Parent Loop BB0_1 Depth=1
	vbroadcastss	-4(%rsi,%rcx,4), %ymm1
	vfmadd231ps	32(%rdx), %ymm1, %ymm0  # ymm0 = (ymm1 * mem) + ymm0
	leaq	8(%rdx), %rdx
	cmpq	$7, 8(%rsp)
	incq	%rcx
	jne	.LBB0_2
	vmovups	%ymm0, (%rdi,%rax,4)
	jmp	.LBB0_1
.LBB0_4:
	vmovups	%ymm0, 64(%rsp)                # 32-byte Spill
	vbroadcastss	%xmm1, %ymm1
	jne	.LBB0_4
	retq
"""


def test_parser_finds_innermost_loops() -> None:
    first, second = innermost_loops(LOOPS)
    assert (first.label, second.label) == (".LBB0_2", ".LBB0_4")
    assert [first.count(w) for w in ("is_fma", "is_load", "is_store", "is_broadcast", "touches_stack")] == [
        1,
        3,
        0,
        1,
        1,
    ]
    assert [second.count(w) for w in ("is_fma", "is_load", "is_store", "is_broadcast", "touches_stack")] == [
        0,
        0,
        1,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("line", "load", "store"),
    [
        ("\tvmovaps\t%ymm1, %ymm2", False, False),
        ("\tvmovaps\t(%rax), %ymm2", True, False),
        ("\tvmovups\t%ymm2, 16(%rax,%rcx,8)", False, True),
        ("\tmovq\t.Lname(%rip), %rax", True, False),
        ("\taddq\t$8, (%rax)", False, True),
        ("\tleaq\t(%rax,%rcx), %rdx", False, False),
        ("\tcmpl\t(%rax), %ecx", True, False),
        ("\tprefetcht0\t(%rax)", False, False),
        ("\tpushq\t%rbx", False, True),
        ("\tvextractf128\t$1, %ymm0, (%rdi)", False, True),
    ],
)
def test_parser_tells_loads_from_stores(line: str, load: bool, store: bool) -> None:
    parsed = Instruction.parse(line)
    assert parsed is not None and (parsed.is_load, parsed.is_store) == (load, store)
