"""Layouts with factors: which buffers are offered them, that programs compute the same under them, and that a trace
that has them is the same program again.
"""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from onnx import ModelProto

from tests.onnx_cases import Model, random_feeds
from tilewright.compiler import CompiledModel, compile
from tilewright.driver.decisions import BufferLayout, ChannelsLast
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.driver.trace import ProgramTrace
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.passes import prepare
from tilewright.graph.passes.lower import lower_graph
from tilewright.ir.layout import CropDim, Layout, PadDim, ReorderDims
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.file import chunks
from tilewright.search.layout_labels import channel_blocks, column_blocks, padded_rows
from tilewright.search.layouts import find_images, lay_out
from tilewright.support.errors import UserError
from tilewright.target.target import native
from tilewright.tir.func import Module
from tilewright.tir.interp import interpret_module
from tilewright.tir.stmt import blocks
from tilewright.tir.verify import verify_module


def images() -> ModelProto:
    """A bordered convolution between pointwise ones, and a residual."""
    m = Model()
    x = m.op("Relu", m.op("Conv", m.input(1, 3, 5, 6), m.weight(32, 3, 1, 1)))
    y = m.op("Relu", m.op("Conv", x, m.weight(32, 32, 3, 3), pads=[1] * 4, strides=[1, 1]))
    y = m.op("Add", m.op("Conv", y, m.weight(32, 32, 1, 1), m.weight(32)), x)
    return m.finish(m.op("Conv", y, m.weight(4, 32, 1, 1)))


def layers() -> ModelProto:
    """Two products with a function between them, by rows of 1 KiB."""
    m = Model()
    x = m.op("Tanh", m.op("Add", m.op("MatMul", m.input(6, 8), m.weight(8, 256)), m.weight(256)))
    return m.finish(m.op("MatMul", x, m.weight(256, 8)))


MODELS = {"images": images(), "layers": layers()}


@cache
def module_of(name: str) -> Module:
    return lower_graph(prepare(load_graph(MODELS[name], None)))


Labels = Callable[[Module], "dict[str, Layout]"]


def padded(module: Module) -> dict[str, Layout]:
    return padded_rows(module)


def in_blocks(module: Module) -> dict[str, Layout]:
    found = channel_blocks(module, find_images(module), 16) | column_blocks(module, 16)
    return {b.name: layout for b, layout in found.items()}


def last_and_padded(module: Module) -> dict[str, Layout]:
    return {b.name: Layout((ReorderDims((0, 2, 3, 1)), PadDim(3, 0, 16))) for b in find_images(module)}


CASES = [("layers", padded), ("layers", in_blocks), ("images", in_blocks), ("images", last_and_padded)]


@pytest.mark.parametrize(("name", "labels"), CASES)
def test_what_is_computed_stays_the_same(name: str, labels: Labels) -> None:
    before = module_of(name)
    found = labels(before)
    assert found
    buffers = {b.name: b for f in before.funcs for b in (*f.params, *f.locals)}
    after, _ = lay_out(before, {}, {buffers[n]: layout for n, layout in found.items()})
    verify_module(after)
    feeds = random_feeds(MODELS[name])
    want, got = interpret_module(before, feeds), interpret_module(after, feeds)
    for made, value in want.items():
        np.testing.assert_array_equal(got[made], value)


def test_iterators_go_over_blocks_and_over_what_is_in_them() -> None:
    module = module_of("layers")
    after, _ = lay_out(module, {}, column_blocks(module, 16))
    products = [b for f in after.funcs for b in blocks(f.body) if b.is_reduction]
    assert [[it.extent for it in b.iters] for b in products] == [[6, 16, 16, 8], [6, 8, 16, 16]]


def test_rows_that_share_no_sets_stay_as_they_are() -> None:
    m = Model()
    x = m.op("Tanh", m.op("MatMul", m.input(6, 8), m.weight(8, 240)))
    model = m.finish(m.op("MatMul", x, m.weight(240, 8)))
    assert padded_rows(lower_graph(prepare(load_graph(model, None)))) == {}


def test_what_a_norm_reads_is_not_in_blocks() -> None:
    m = Model()
    x = m.op("MatMul", m.input(6, 8), m.weight(8, 256))
    x = m.op("LayerNormalization", x, m.weight(256), m.weight(256), axis=-1)
    model = m.finish(m.op("MatMul", x, m.weight(256, 8)))
    assert column_blocks(lower_graph(prepare(load_graph(model, None))), 16) == {}


# ---------------------------------------------------------------------------------------------------------- the trace


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def program(made: CompiledModel) -> bytes:
    return b"".join(map(bytes, chunks(made.artifact)))


def results(model: ModelProto, made: CompiledModel) -> list[np.ndarray]:
    with made.session(2) as session:
        return list(session.run(random_feeds(model)).values())


def joined(name: str) -> tuple[ProgramTrace, Module]:
    """Without other algorithms or joins: what a trace decides before layouts, and the program then."""
    given = ProgramTrace({"algorithms": (), "joins": ()})
    context = PassContext(native(), Accuracy.of(None).allows)
    state = run_passes(ProgramState(load_graph(MODELS[name], None)), context, given, until="joins")
    return state.trace, state.current


@cache
def stated(name: str) -> list[np.ndarray]:
    return results(MODELS[name], compile(MODELS[name], trace=ProgramTrace({"algorithms": (), "layouts": ()})))


@pytest.mark.parametrize(("name", "labels"), CASES)
def test_a_trace_with_factors_is_read_back_and_replayed(name: str, labels: Labels) -> None:
    model = MODELS[name]
    trace, module = joined(name)
    section = tuple(BufferLayout(b, layout) for b, layout in labels(module).items())
    assert section
    made = compile(model, trace=trace.with_section("layouts", section))
    assert made.trace.sections["layouts"] == section
    again = compile(model, trace=ProgramTrace.parse(str(made.trace)))
    assert program(again) == program(made)
    assert again.trace == made.trace
    for got, want in zip(results(model, made), stated(name), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


def test_a_layout_that_does_not_fit_is_refused_and_the_decision_named() -> None:
    trace, module = joined("images")
    image = next(b.name for b in find_images(module) if b in module.temps)
    group, _, short = image.rpartition("__")
    row = Layout((PadDim(3, 0, 16),))
    for decisions, why in (
        ((BufferLayout("nothing", row),), "no buffer 'nothing'"),
        ((BufferLayout(module.inputs[0].name, row),), "input or output"),
        ((BufferLayout(module.outputs[0].name, row),), "input or output"),
        ((BufferLayout(image, Layout((PadDim(7, 0, 16),))),), "does not fit a shape"),
        ((BufferLayout(image, Layout((CropDim(1, 0, 1),))),), "have a place"),
        ((BufferLayout(image, row), BufferLayout(image, row)), "another decision"),
        ((ChannelsLast(group, (short,)), BufferLayout(image, row)), "another decision"),
    ):
        with pytest.raises(UserError, match=why) as refused:
            compile(MODELS["images"], trace=trace.with_section("layouts", decisions))
        assert refused.value.where == str(decisions[-1])


@pytest.mark.parametrize("layout", ["1", "Layout((1,))", "Layout((SplitDim('a', 2),))", "SplitDim(1, 2)"])
def test_text_that_is_no_layout_is_refused(layout: str) -> None:
    with pytest.raises(UserError, match="another kind of value"):
        ProgramTrace.parse(f"[layouts]\nBufferLayout('b', {layout})")
