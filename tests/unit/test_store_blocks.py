"""Blocks that are one store, and those that are more."""

import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Var, const
from tilewright.support.errors import InternalError
from tilewright.tir.stmt import Block, Iter, Seq, Store, store_blocks

BUFFER = Buffer("X", (4,), DType.F32)
AXIS = Var("i")
STORE = Store(BUFFER, (AXIS,), const(1.0, DType.F32))


def block(name: str, body: Store | Seq) -> Block:
    return Block(name, (Iter(AXIS, 4),), (AXIS,), body)


def test_a_block_gives_its_single_store() -> None:
    assert block("one", STORE).store is STORE
    assert block("one", STORE).try_store is STORE


def test_a_block_of_several_statements_has_no_single_store() -> None:
    several = block("several", Seq((STORE, STORE)))
    assert several.try_store is None
    with pytest.raises(InternalError, match="the body of block several is not a single store"):
        _ = several.store


def test_blocks_of_several_statements_are_skipped() -> None:
    one = block("one", STORE)
    assert list(store_blocks(Seq((block("several", Seq((STORE, STORE))), one)))) == [(one, STORE)]
