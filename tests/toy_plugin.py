"""A plugin for tests: numpy runs what it takes, by the references of our ops."""

import os
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto

from tilewright.frontend.onnx import load_graph
from tilewright.frontend.onnx_export import to_model
from tilewright.graph.external import YES, Answer, No, Order, Plugin, Region, Run, Unit
from tilewright.graph.interp import interpret
from tilewright.ops.opdef import Array
from tilewright.plugins.isolation import with_weights


class Numpy(Plugin):
    """Takes products, sums and activations. Its code is the ONNX model without weights."""

    name = "numpy"
    version = "1"
    takes = ("MatMul", "Add", "Relu")

    def supports(self, unit: Unit) -> Answer:
        return YES if unit.name in self.takes else No(f"numpy does not care for {unit.name}")

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        return to_model(region.graph, weights=False).SerializeToString()

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> Run:
        graph = load_graph(with_weights(ModelProto.FromString(blob), constants))

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            feeds = {v.name: self.stated(a) for v, a in zip(graph.inputs, inputs, strict=True)}
            for result, out in zip(interpret(graph, feeds).values(), outputs, strict=True):
                self.stated(out)[...] = result

        return run

    def stated(self, array: Array) -> Array:
        """The array as the model has it."""
        is_turned = self.order is Order.CHANNELS_LAST and array.ndim > 2
        return np.moveaxis(array, -1, 1) if is_turned else array


class ChannelsLast(Numpy):
    name = "last"
    order = Order.CHANNELS_LAST
    takes = ("Conv", "Relu")


class Crashing(Numpy):
    """Its compiler ends the process."""

    name = "crashing"

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        os.abort()


class Refusing(Numpy):
    """Its compiler gives up."""

    name = "refusing"

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        raise ValueError("out of luck")


class Failing(Numpy):
    """Loads, and fails when it runs."""

    name = "failing"

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> Run:
        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            outputs[0][...] = 7  # half of the work is done
            raise RuntimeError("the device is on fire")

        return run


class Unloadable(Numpy):
    name = "unloadable"

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> Run:
        raise RuntimeError("no driver")
