"""Emit: printed, parsed, digested, interpreted and lowered as its body; its operands follow every rewrite."""

import numpy as np

from tilewright.ir.expr import Buffer, Load, Var, as_index
from tilewright.tir.digest import func_digest
from tilewright.tir.interp import run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.rewrite import redirect, substitute_stmt
from tilewright.tir.stmt import Emit, walk_stmts
from tilewright.tir.verify import verify_func

TEXT = """\
@func
def double(X: f32[4, 8], Y: out(f32[4, 8])):
    for i in range(4):
        with emit("some.move", [Y[i, 0], Y[i, 1]], [X[i, 0], X[i, 1]]):
            for j in range(8):
                Y[i, j] = X[i, j] + X[i, j]
"""


def test_round_trip() -> None:
    func = parse_func(TEXT)
    verify_func(func, lowered=True)
    assert print_func(func) == TEXT


def test_it_means_its_body() -> None:
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    (y,) = run_func(parse_func(TEXT), x)
    np.testing.assert_array_equal(y, x + x)


def test_the_digest_tells_intrinsics_apart() -> None:
    other = parse_func(TEXT.replace("some.move", "another"))
    assert func_digest(parse_func(TEXT), []) != func_digest(other, [])


def test_operands_follow_rewrites() -> None:
    func = parse_func(TEXT)
    emit = next(s for s in walk_stmts(func.body) if isinstance(s, Emit))
    i = next(v for v in (Var("i"),))
    moved = substitute_stmt(emit, {i: as_index(3)})
    assert isinstance(moved, Emit)
    assert all(e.indices[0] is as_index(3) for places in moved.operands for e in places)
    x = func.params[0]
    other = Buffer("Z", x.shape, x.dtype)
    swapped = redirect(emit, {x: other})
    assert isinstance(swapped, Emit)
    assert [e.buffer for e in swapped.operands[1]] == [other, other]
    assert all(isinstance(e, Load) for e in swapped.operands[0])
