"""Pieces of concatenations that their readers compute on the way: in one buffer, with the values that they had."""

from collections.abc import Sequence

import numpy as np
import pytest
from test_layouts import conv
from test_store_at import module_of

from tests.onnx_cases import Model, check_model, random_feeds
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.passes import prepare
from tilewright.graph.passes.lower import lower_graph
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Select, cast, select
from tilewright.schedule.trace import replay
from tilewright.search.layouts import find_images, lay_out
from tilewright.search.pieces import attach_pieces, find_rows
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, Module
from tilewright.tir.interp import interpret_module
from tilewright.tir.stmt import blocks
from tilewright.tir.verify import verify_module

_INNER = 16  # i32 elements of a row: 64 bytes, the least that is attached


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if small ones were worth it too."""
    monkeypatch.setattr("tilewright.search.pieces._LEAST_BYTES", 0)


def chosen(pieces: Sequence[Buffer], dim: int, at: tuple[Expr, ...], start: int = 0) -> Expr:
    """The element of a concatenation."""
    first, *rest = pieces
    here = first[(*at[:dim], at[dim] - start, *at[dim + 1 :])]
    end = start + first.shape[dim]
    return select(at[dim] < end, here, chosen(rest, dim, at, end)) if rest else here


class Network:
    """Kernels that make pieces of an input, and others that read some of them as one."""

    def __init__(self, dim: int, inner: int = _INNER) -> None:
        self.dim, self._inner = dim, inner
        self.funcs: list[Func] = []
        self.x = FuncBuilder("none", "in_").param("x", self._shape(1), DType.I32)

    def _shape(self, rows: int) -> tuple[int, ...]:
        return tuple(rows if d == self.dim else n for d, n in enumerate((3, 2, self._inner)))

    def piece(self, rows: int, of: Buffer | None = None) -> Buffer:
        b = FuncBuilder(f"make{len(self.funcs)}", f"m{len(self.funcs)}_")
        source = b.use(self.x if of is None else of)
        scale = len(self.funcs) + 2

        def value(*at: Expr) -> Expr:
            first = tuple(i % source.shape[d] for d, i in enumerate(at))
            return source[first] * scale + cast(DType.I32, at[self.dim])

        made = b.compute("t", self._shape(rows), value)
        self.funcs.append(b.finish(made))
        return made

    def read(self, *pieces: Buffer) -> None:
        b = FuncBuilder(f"read{len(self.funcs)}", f"r{len(self.funcs)}_")
        used = [b.use(p) for p in pieces]
        rows = sum(p.shape[self.dim] for p in pieces)
        made = b.compute("y", self._shape(rows), lambda *at: chosen(used, self.dim, at) * 3 + 1)
        self.funcs.append(b.finish(made))

    def module(self) -> Module:
        temps = [b.name for f in self.funcs if f.name.startswith("make") for b in f.outputs]
        return module_of(*self.funcs, temps=tuple(temps))


def attached(module: Module, kept: Sequence[Buffer] = ()) -> Module:
    """With its pieces side by side; all results are what they were."""
    after, steps = attach_pieces(module, kept)
    verify_module(after)
    assert replay(module, steps).temps == after.temps
    (x,) = module.inputs
    feeds = {x.name: np.arange(x.size, dtype=np.int32).reshape(x.shape) - 5}
    want, got = interpret_module(module, feeds), interpret_module(after, feeds)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)
    return after


def rows(module: Module, dim: int) -> list[int]:
    return [b.shape[dim] for b in module.temps]


def choices(module: Module) -> int:
    """How many readers still choose among buffers."""
    return sum(1 for f in module.funcs for b in blocks(f.body) for _ in find_rows(b))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_whoever_reads_all_before_it_reads_a_range_of_one_buffer(dim: int) -> None:
    n = Network(dim)
    made = [n.piece(16)]
    for _ in range(3):
        made.append(n.piece(16 if dim == 2 else 2))
        n.read(*made)
    done = attached(n.module())
    assert rows(done, dim) == [sum(p.shape[dim] for p in made)]
    assert choices(done) == 0
    assert not any(isinstance(b.store.value, Select) for f in done.funcs for b in blocks(f.body))


def test_a_run_in_the_middle_is_read_too() -> None:
    n = Network(1)
    a, b, c, d = (n.piece(k) for k in (1, 2, 3, 4))
    n.read(a, b, c, d)
    n.read(b, c)
    done = attached(n.module())
    assert rows(done, 1) == [10] and choices(done) == 0


def test_a_piece_has_one_place() -> None:
    n = Network(1)
    a, b, c = (n.piece(k) for k in (2, 3, 4))
    n.read(a, b, c)
    n.read(c, a)
    n.read(a, a)
    done = attached(n.module())
    assert rows(done, 1) == [9] and choices(done) == 0


def test_what_is_made_of_a_piece_is_not_stored_beside_it() -> None:
    n = Network(1)
    a, b = n.piece(2), n.piece(3)
    c = n.piece(4, of=b)
    d = n.piece(5)
    n.read(a, b, c, d)
    done = attached(n.module())
    assert sorted(rows(done, 1)) == [5, 9]
    assert choices(done) == 1


def test_pieces_that_are_kept_stay_apart() -> None:
    n = Network(1)
    made = [n.piece(k) for k in (2, 3, 4)]
    n.read(*made)
    assert rows(attached(n.module(), kept=made[1:2]), 1) == [2, 3, 4]


def test_less_than_a_cache_line_side_by_side_stays_apart() -> None:
    n = Network(2)
    n.read(n.piece(16), n.piece(15))
    assert rows(attached(n.module()), 2) == [16, 15]


def dense_block(m: Model) -> str:
    """Each layer scales all before it, mixes channels, and adds as many as fill a cache line."""
    made = [conv(m, m.input(1, 3, 3, 3), 3, 16)]
    for _ in range(3):
        width = 16 * len(made)
        x = m.op("Concat", *made, axis=1) if len(made) > 1 else made[0]
        narrow = conv(m, m.op("Relu", m.op("Mul", x, m.weight(width, 1, 1))), width, 16, kernel=1)
        made.append(conv(m, m.op("Relu", narrow), 16, 16))
    return m.op("Relu", m.op("Concat", *made, axis=1))


def test_a_dense_block_has_one_buffer_of_its_final_width() -> None:
    m = Model()
    model = m.finish(dense_block(m))
    before = lower_graph(prepare(load_graph(model, None)))
    after, _ = lay_out(before, find_images(before))
    verify_module(after)
    assert choices(after) == 0
    assert sum(1 for b in after.temps if b.shape[-1] == 64) == 1
    feeds = random_feeds(model)
    want, got = interpret_module(before, feeds), interpret_module(after, feeds)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)


@pytest.mark.slow
def test_a_dense_block_runs() -> None:
    m = Model()
    check_model(m.finish(dense_block(m)))


def test_few_bytes_are_left_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(0)
    pieces = [network.piece(2) for _ in range(2)]
    network.read(*pieces)
    module = network.module()
    assert attach_pieces(module, ())[1]
    monkeypatch.setattr("tilewright.search.pieces._LEAST_BYTES", 1 << 20)
    assert not attach_pieces(module, ())[1]
