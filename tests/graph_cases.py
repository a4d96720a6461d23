"""What tests of graphs share: values to build them from, and checks that a change or a lowering keeps their meaning."""

from collections.abc import Callable

import numpy as np

from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import ExternalRegion
from tilewright.graph.graph import Graph, Value
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.group import FusionGroup, group
from tilewright.graph.passes.lower import lower_graph
from tilewright.graph.verify import verify_graph
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array
from tilewright.support.program import leaves
from tilewright.tir.func import Module
from tilewright.tir.interp import interpret_module
from tilewright.tir.stmt import blocks, loops

F32 = DType.F32
WINDOW = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))  # a 3×3 convolution that keeps the extents
RNG = np.random.default_rng(5)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def f32(*shape: int) -> TensorType:
    return TensorType(F32, shape)


def names(graph: Graph) -> list[str]:
    return [type(n.op).__name__ for n in graph.nodes]


def groups(graph: Graph, *regions: ExternalRegion) -> list[str]:
    return [
        " ".join(type(n.op).__name__ for n in g.nodes) if isinstance(g, FusionGroup) else g.key
        for g in group(graph, regions)
    ]


def feeds_of(graph: Graph) -> dict[str, Array]:
    def feed(v: Value) -> Array:
        if v.type.dtype.is_int:
            return RNG.integers(0, 3, v.shape).astype(v.type.dtype.numpy)
        return RNG.standard_normal(v.shape).astype(v.type.dtype.numpy)

    return {v.name: feed(v) for v in graph.inputs}


def check_pass(graph: Graph, step: Callable[[Graph], Graph]) -> Graph:
    """Apply a pass and hold the result to what it was made from."""
    after = step(graph)
    verify_graph(after)
    assert after.output_names == graph.output_names
    assert [v.type for v in after.outputs] == [v.type for v in graph.outputs]
    feeds = feeds_of(graph)
    want, got = interpret_graph(graph, feeds), interpret_graph(after, feeds)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)
    return after


def check_lowered(graph: Graph, *regions: ExternalRegion) -> Module:
    """Lower and hold the Module to the graph; names must be unique identifiers."""
    return check_module(graph, lower_graph(graph, regions), *regions)


def check_module(graph: Graph, module: Module, *regions: ExternalRegion) -> Module:
    """The same, of a Module that was lowered already."""
    feeds = feeds_of(graph)

    def external(region: ExternalRegion) -> Callable[[list[Array]], list[Array]]:
        inner = Graph(region.key, region.inputs, region.outputs, region.nodes)

        def run(arrays: list[Array]) -> list[Array]:
            given = dict(zip((v.name for v in region.inputs), arrays, strict=True))
            return list(interpret_graph(inner, given).values())

        return run

    given = {b.name: feeds[v.name] for b, v in zip(module.inputs, graph.inputs, strict=True)}
    results = interpret_module(module, given, {r.key: external(r) for r in regions})
    got = [results[b.name] for b in module.outputs]
    for (name, want), array in zip(interpret_graph(graph, feeds).items(), got, strict=True):
        np.testing.assert_allclose(array, want, rtol=1e-4, atol=1e-5, err_msg=name)

    bodies = [f.body for f in module.funcs]
    spelled = [b.name for f in bodies for b in blocks(f)] + [n.var.name for f in bodies for n in loops(f)]
    spelled += [it.var.name for f in bodies for b in blocks(f) for it in b.iters]
    assert len(spelled) == len(set(spelled))
    buffers = {*module.inputs, *module.outputs, *module.temps, *(c.buffer for c in module.constants)}
    buffers.update(b for f in module.funcs for b in f.locals)
    assert len({b.name for b in buffers}) == len(buffers)
    assert all(name.isidentifier() for name in [*spelled, *(b.name for b in buffers)])
    assert all(set(c.args) <= buffers for c in leaves(module.program) if hasattr(c, "args"))
    return module


def layers(n: int) -> Graph:
    """Every second node is a MatMul."""
    b = GraphBuilder()
    x = b.input("x", f32(4, 8))
    for i in range(n):
        x = b.apply(Relu(), b.apply(MatMul(), x, b.constant(f"w{i}", floats(8, 8))))
    return b.finish(x)
