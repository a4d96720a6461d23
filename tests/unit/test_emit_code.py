"""Code of tensor intrinsics in odd company: interpreter = native, to the bit, or an error that says why not."""

from collections.abc import Iterator

import numpy as np
import pytest
from native import HAS_AVX2, arrays_of, check, check_same_bits, program

from tilewright.codegen.kernel import kernel_ir
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Var
from tilewright.support.errors import InternalError
from tilewright.target import intrinsics
from tilewright.target.intrinsic import ANYWHERE, EmitContext, Intrinsic, Operand, state
from tilewright.target.target import AVX2, BASELINE
from tilewright.tir.passes.unroll_loops import unroll_loops

pytestmark = pytest.mark.skipif(not HAS_AVX2, reason="this machine has no AVX2")


def dot(c: str, at: str = "0", row: str = "0") -> str:
    """The lines of an Emit that adds to eight elements of `c` from `at` on."""

    def place(j: str) -> str:
        return f"{c}[{j}]" if at == "0" else f"{c}[{at} + {j}]"

    return f"""\
with emit("x86.i16.dot2_8", [{place("0")}, {place("1")}], [A[{row}, 0], A[{row}, 1]],
          [B[{row}, 0, 0], B[{row}, 1, 0], B[{row}, 0, 1]]):
    for j{c} in range(8):
        for k{c} in range(2):
            {place("j" + c)} = {place("j" + c)} + cast(i32, A[{row}, k{c}]) * cast(i32, B[{row}, j{c}, k{c}])
"""


def indented(text: str, depth: int) -> str:
    return "".join("    " * depth + line + "\n" for line in text.splitlines())


HEAD = "def f(A: i16[5, 2], B: i16[5, 8, 2], X: i32[16], Y: out(i32[16])):\n"


def test_registers_that_are_wider_than_what_is_written_around() -> None:
    text = f"""{HEAD}\
    with alloc(i32[8], "register") as T:
        for a in vectorized(4):
            T[a] = X[a]
        for b in vectorized(4):
            T[4 + b] = X[4 + b]
        for r in range(5):
{indented(dot("T", row="r"), 3)}\
        for c in vectorized(4):
            Y[c] = T[c]
        for d in vectorized(4):
            Y[4 + d] = T[4 + d]
        for e in range(8):
            Y[8 + e] = X[e]
"""
    check(program(text), AVX2)


@pytest.mark.parametrize("at", ["3", "8"])
def test_elements_in_the_middle_of_registers(at: str) -> None:
    text = f"""{HEAD}\
    with alloc(i32[16], "register") as T:
        for a in vectorized(8):
            T[a] = X[a]
        for b in vectorized(8):
            T[8 + b] = X[8 + b]
        for r in range(5):
{indented(dot("T", at, "r"), 3)}\
        for c in vectorized(8):
            Y[c] = T[c]
        for d in vectorized(8):
            Y[8 + d] = T[8 + d]
"""
    check(program(text), AVX2)


def test_under_a_condition() -> None:
    text = f"""{HEAD}\
    with alloc(i32[8], "register") as T:
        for a in vectorized(8):
            T[a] = X[a]
        for r in range(5):
            if X[r] < i32(0):
{indented(dot("T", row="r"), 4)}\
        for c in vectorized(8):
            Y[c] = T[c]
    for e in range(8):
        Y[8 + e] = X[e]
"""
    func = program(text)
    check(func, AVX2)
    check(func, AVX2, X=np.where(np.arange(16) % 2 == 0, -1, 1))


def test_what_was_loaded_before_is_stale_after() -> None:
    text = f"""{HEAD}\
    for a in range(16):
        Y[a] = X[a]
    Y[15] = Y[0] + Y[1]
{indented(dot("Y"), 1)}\
    Y[14] = Y[0] + Y[1]
"""
    check(program(text), AVX2)


def test_inside_of_a_vectorized_loop() -> None:
    text = f"""{HEAD}\
    for a in range(16):
        Y[a] = X[a]
    for v in vectorized(2):
{indented(dot("Y", "v * 8"), 2)}\
"""
    check(program(text), AVX2)


def test_without_the_instruction_in_the_middle_of_registers() -> None:
    text = f"""{HEAD}\
    with alloc(i32[16], "register") as T:
        for a in vectorized(4):
            T[a] = X[a]
        for b in vectorized(12):
            T[4 + b] = X[4 + b]
        for r in range(5):
{indented(dot("T", "3", "r"), 3)}\
        for c in vectorized(16):
            Y[c] = T[c]
"""
    check(program(text), BASELINE)


REARRANGED = (
    "other elements of B than its body does: a step rearranged the buffer or the body after Tensorize"
)


def test_a_buffer_that_was_rearranged_after_tensorize() -> None:
    body = dot("Y").replace("B[0, jY, kY]", "B[kY, jY, 0]")
    with pytest.raises(InternalError, match=REARRANGED):
        kernel_ir(program(HEAD + indented(body, 1)))


def test_a_body_that_does_more() -> None:
    body = dot("Y") + "    Y[9] = cast(i32, B[4, 0, 0])\n"
    with pytest.raises(InternalError, match="other elements of Y than its body does"):
        kernel_ir(program(HEAD + indented(body, 1)))


def test_a_body_that_was_unrolled() -> None:
    body = dot("Y").replace("for kY in range(2)", "for kY in unrolled(2)")
    check(unroll_loops(program(HEAD + indented(body, 1))), AVX2)


def test_neighbours_at_a_distance_that_changes() -> None:
    body = indented(dot("Y").replace("B[0, 1, 0]", "B[0, r, 0]"), 2)
    with pytest.raises(InternalError, match="neighbours in B are not a fixed distance apart"):
        kernel_ir(program(f"{HEAD}    for r in range(2):\n{body}"))


def test_an_intrinsic_that_is_not_in_the_table() -> None:
    with pytest.raises(InternalError, match=r"no code for the tensor intrinsic 'x86\.i16\.dot3'"):
        kernel_ir(program(HEAD + indented(dot("Y").replace("dot2_8", "dot3"), 1)))


# ---------------------------------------------------------------------------------------- operands that are spread out


def _write(c: EmitContext) -> None:
    for row in range(2):
        both = c.op(f"fadd <4 x float> {c.get(0, 4 * row, 4)}, {c.get(1, 4 * row, 4)}")
        c.put(0, 4 * row, 4, both)


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """C[i, j] += A[i, j] for elements that are anywhere."""
    i, j = Var("i"), Var("j")
    c, a = Buffer("C", (2, 4), DType.F32), Buffer("A", (2, 4), DType.F32)
    made = Intrinsic(
        "test.add",
        state("add", (c, a), {i: 2, j: 4}, {}, c[i, j], c[i, j] + a[i, j]),
        (Operand("C", ANYWHERE), Operand("A", ANYWHERE)),
        frozenset(),
        emitter=_write,
    )
    monkeypatch.setattr(intrinsics.ADDED, "items", {})
    intrinsics.register_intrinsics(made)
    yield


SPREAD = """\
with emit("test.add", [T[3, 1], T[1, 1], T[3, 3]], [X[0, 2], X[1, 2], X[0, 4]]):
    for i in range(2):
        for j in range(4):
            T[3 - i * 2, 1 + j * 2] = T[3 - i * 2, 1 + j * 2] + X[i, 2 + j * 2]
"""


@pytest.mark.usefixtures("spread")
def test_elements_with_gaps_in_memory() -> None:
    func = program(f"def f(X: f32[2, 9], T: out(f32[4, 8])):\n{indented(SPREAD, 1)}")
    check_same_bits(func, arrays_of(func, T=np.arange(32)), AVX2)


@pytest.mark.usefixtures("spread")
def test_elements_with_gaps_in_registers() -> None:
    loads = "".join(f"for a{r} in vectorized(8):\n    T[{r}, a{r}] = X[0, {r}]\n" for r in range(4))
    stores = "".join(f"for b{r} in vectorized(8):\n    Y[{r}, b{r}] = T[{r}, b{r}]\n" for r in range(4))
    text = f"""\
def f(X: f32[2, 9], Y: out(f32[4, 8])):
    with alloc(f32[4, 8], "register") as T:
{indented(loads, 2)}\
        for r in range(3):
{indented(SPREAD, 3)}\
{indented(stores, 2)}\
"""
    check(program(text), AVX2)
