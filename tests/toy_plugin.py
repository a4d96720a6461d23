"""A plugin for tests: numpy runs what it takes, by the references of our ops."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import ModelProto

from tilewright.frontend.onnx.export import to_model
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.external import YES, Answer, Capabilities, No, Order, Plugin, Region, RunRegion, Unit
from tilewright.graph.interp import interpret_graph
from tilewright.ir.dtype import DType
from tilewright.plugins.isolation import with_weights
from tilewright.plugins.registry import register_plugin, unregister_plugin
from tilewright.plugins.worker import answer_region
from tilewright.support.arrays import Array
from tilewright.support.frames import unpack


class Numpy(Plugin):
    """Takes MatMuls, sums and activations. Its code is the ONNX model without weights."""

    name = "numpy"
    version = "1"
    takes = ("MatMul", "Add", "Relu")

    def supports(self, unit: Unit) -> Answer:
        return YES if unit.name in self.takes else No(f"numpy does not care for {unit.name}")

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        return to_model(region.graph, weights=False).SerializeToString()

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        graph = load_graph(with_weights(ModelProto.FromString(blob), constants))

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            feeds = {
                v.name: self.stated(a).astype(v.type.dtype.numpy)
                for v, a in zip(graph.inputs, inputs, strict=True)
            }
            for result, out in zip(interpret_graph(graph, feeds).values(), outputs, strict=True):
                self.stated(out)[...] = result

        return run

    def stated(self, array: Array) -> Array:
        """The array as the model has it."""
        is_transposed = self.order is Order.CHANNELS_LAST and array.ndim > 2
        return np.moveaxis(array, -1, 1) if is_transposed else array


class ChannelsLast(Numpy):
    name = "last"
    order = Order.CHANNELS_LAST
    takes = ("Conv", "Relu")


class Short(Numpy):
    """Its device has half precision only."""

    name = "short"
    dtypes: ClassVar = {DType.F32: DType.F16}


class ShortLast(Short):
    name = "short_last"
    order = Order.CHANNELS_LAST
    takes = ("Conv", "Relu")


class InPlace(Numpy):
    """Reads everything before it writes anything."""

    name = "in_place"
    capabilities = Capabilities(in_place=True)
    takes = ("Relu", "Neg", "Abs")


class FailingInPlace(InPlace):
    name = "failing_in_place"

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            outputs[0][...] = 7
            raise RuntimeError("the device is on fire")

        return run


class Settled(Numpy):
    """Compiles for shapes that stay."""

    name = "settled"
    capabilities = Capabilities(dynamic_shapes=False)


class Sized(Numpy):
    """Takes regions with open sizes, in which it imports the region anew for each set of shapes."""

    name = "sized"
    capabilities = Capabilities(open_sizes=True)
    takes = ("MatMul", "Add", "Relu", "Reshape", "Transpose", "Expand", "Range", "Concat")
    seen: ClassVar[list[tuple[tuple[int, ...], ...]]] = []  # shapes of inputs, in the order of runs

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        model = with_weights(ModelProto.FromString(blob), constants)
        names = [i.name for i in model.graph.input]

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            assert all(a.flags.c_contiguous for a in (*inputs, *outputs))
            stated = [self.stated(a) for a in inputs]
            Sized.seen.append(tuple(a.shape for a in stated))
            graph = load_graph(model, {n: a.shape for n, a in zip(names, stated, strict=True)})
            feeds = {v.name: a.astype(v.type.dtype.numpy) for v, a in zip(graph.inputs, stated, strict=True)}
            for result, out in zip(interpret_graph(graph, feeds).values(), outputs, strict=True):
                self.stated(out)[...] = result

        return run


class SizedLast(Sized):
    name = "sized_last"
    order = Order.CHANNELS_LAST
    takes = ("Conv", "Relu")


class SizedShort(Sized):
    name = "sized_short"
    dtypes: ClassVar = {DType.F32: DType.F16}


class Clipping(Numpy):
    """Keeps its inputs within what it has seen when it was calibrated."""

    name = "clipping"
    bounds: ClassVar[list[float]] = []

    def prepare(self, region: Region, calibration: Sequence[Mapping[str, Array]]) -> Region:
        if not calibration:
            raise ValueError("nothing to calibrate with")
        Clipping.bounds = [
            max(float(np.abs(sample[v.name]).max()) for sample in calibration) for v in region.graph.inputs
        ]
        return region

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        head = np.array(Clipping.bounds, np.float64).tobytes()
        return bytes([len(Clipping.bounds)]) + head + super().compile(region, constants)

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        end = 1 + 8 * blob[0]
        bounds = np.frombuffer(blob[1:end])
        inner = super().load(blob[end:], constants, threads)

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            inner([np.clip(a, -b, b) for a, b in zip(inputs, bounds, strict=True)], outputs)

        return run


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

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            outputs[0][...] = 7  # half of the work is done
            raise RuntimeError("the device is on fire")

        return run


class Unloadable(Numpy):
    name = "unloadable"

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        raise RuntimeError("no driver")


class PoolHere:
    """Takes the place of the process in which plugins compile: the same messages, answered in this one."""

    def __init__(self, _: Sequence[str]) -> None:
        pass

    def submit(self, body: bytes, _: float) -> Any:
        return SimpleNamespace(answer=unpack(answer_region(*unpack(body))), failure=None)

    def wait(self, _: Any) -> None:
        pass

    def close(self) -> None:
        pass


def compile_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins compile in this process, for tests of what becomes of that: to start another takes longer than all
    the rest of them. That it is another, and what becomes of it, is tried by test_plugins, test_plugin_commands and
    test_open_engines.
    """
    monkeypatch.setattr("tilewright.plugins.isolation.Pool", PoolHere)


@contextmanager
def registered(
    kinds: Iterable[type[Plugin]], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Iterator[None]:
    """These plugins are known, and what is kept is kept in a folder."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
    monkeypatch.setenv("TILEWRIGHT_DB", str(folder / "tuning.db"))
    plugins = [kind() for kind in kinds]
    for p in plugins:
        register_plugin(p)
    yield
    for p in plugins:
        unregister_plugin(p.name)
