"""Models with open dimensions in the interpreter, at one size after another."""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto

from tests.onnx_cases import Array
from tilewright.frontend.onnx.load import OnnxModel
from tilewright.frontend.onnx.open_import import following, import_open
from tilewright.graph.passes import prepare
from tilewright.graph.passes.lower import lower_graph
from tilewright.support.sizes import Dim, size_of
from tilewright.tir.interp import interpret_module
from tilewright.tir.passes.place_sizes import size_buffer


class OpenInterpreter:
    """A model as it is lowered: what lies beyond sizes is not finite, or a large number."""

    def __init__(self, model: ModelProto, dims: Mapping[str, Dim]) -> None:
        self._dims = dims
        with OnnxModel(model) as found:
            opened = import_open(found, dims)
        self._guards = opened.guards
        with following(opened.guards):
            self._graph = prepare(opened.graph)
            self._module = lower_graph(self._graph)

    def allows(self, at: Mapping[str, int]) -> bool:
        """Do these sizes keep the guards of the model?"""
        return all(g.holds(at) for g in self._guards)

    def run(self, feeds: Mapping[str, Array], at: Mapping[str, int]) -> dict[str, Array]:
        given: dict[str, Array] = {
            size_buffer(d.name).name: np.array([at[d.name] // d.multiple]) for d in self._dims.values()
        }
        inputs = zip(self._graph.inputs, self._module.inputs, strict=False)  # without sizes
        given |= {b.name: _at_capacity(feeds[v.name], b.shape) for v, b in inputs}
        named = {b.name for b in self._module.inputs}
        got = interpret_module(self._module, {n: a for n, a in given.items() if n in named})
        results: dict[str, Array] = {}
        for name, value, b in zip(
            self._graph.output_names, self._graph.outputs, self._module.outputs, strict=True
        ):
            shape = [size_of(n).evaluate(at) for n in value.shape]
            results[name] = got[b.name][tuple(map(slice, shape))]
        return results


def _at_capacity(array: Array, shape: Sequence[int]) -> Array:
    made = np.full(shape, np.nan if array.dtype.kind == "f" else 99, array.dtype)
    made[tuple(map(slice, array.shape))] = array
    return made
