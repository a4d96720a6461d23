"""Compiling regions apart from the compiler: a plugin that crashes, hangs or exits takes nobody along.

The other process gets the plugin's class by name, and the region as an ONNX model with its constants; it asks the
plugin about the region again, which gives the same units. A plugin that cannot be had by name (its class is inside of
a function, or it was made with arguments) compiles in this process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from onnx import ModelProto, numpy_helper

from tilewright.frontend.onnx.export import to_model
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.external import No, Plugin, Region
from tilewright.graph.passes.partition import offer
from tilewright.plugins.registry import by_reference, reference
from tilewright.support.arrays import Array
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.support.frames import pack
from tilewright.support.pool import Pool, ProcessLate, module_command

TIMEOUT = 600.0  # seconds for one region


class RegionCompiler(Closing):
    """Lets plugins compile, in one process for all regions; another is started when that has died."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._pool = Pool(module_command("tilewright.plugins.worker"))

    def compile(
        self, plugin: Plugin, region: Region, calibration: Sequence[Mapping[str, Array]] = ()
    ) -> bytes | No:
        """What the plugin makes of the region, or why it made nothing."""
        name = reference(plugin)
        if not name:
            return _compiled(plugin, region, calibration)
        groups = [region.constants, *calibration]
        head = {
            "plugin": name,
            "key": region.key,
            "arrays": [{n: [a.dtype.name, list(a.shape)] for n, a in group.items()} for group in groups],
        }
        blobs = [to_model(region.graph, weights=False).SerializeToString()]
        blobs += [np.ascontiguousarray(a).tobytes() for group in groups for a in group.values()]
        request = self._pool.submit(pack(head, blobs), self._timeout)
        self._pool.wait(request)
        if isinstance(request.failure, ProcessLate):
            return No(f"its compiler took more than {self._timeout:g} s")
        if request.answer is None:
            return No(f"its compiler crashed: {request.failure}")
        head, results = request.answer
        return No(head["error"]) if head["error"] else results[0]

    def close(self) -> None:
        self._pool.close()


def compile_request(head: Any, blobs: list[bytes]) -> bytes:
    """The other side of `RegionCompiler.compile`."""
    model, *arrays = blobs
    plugin = by_reference(head["plugin"])
    proto = ModelProto.FromString(model)
    data = iter(arrays)
    constants, *calibration = [
        {name: np.frombuffer(next(data), np.dtype(d)).reshape(shape) for name, (d, shape) in group.items()}
        for group in head["arrays"]
    ]
    made = _compiled(plugin, read_region(plugin, head["key"], proto, constants), calibration)
    return pack({"error": made.reason}) if isinstance(made, No) else pack({"error": ""}, [made])


def read_region(plugin: Plugin, key: str, model: ModelProto, constants: Mapping[str, Array]) -> Region:
    """The region that a model is, with its constants, as the plugin has taken it."""
    graph = load_graph(with_weights(model, constants), custom_ops=(plugin,))
    regions: Sequence[Region] = offer(graph, plugin).regions
    if len(regions) != 1:
        raise UserError(f"the plugin {plugin.name} takes {len(regions)} parts of what it had taken as one")
    return replace(regions[0], key=key, graph=graph)


def with_weights(model: ModelProto, constants: Mapping[str, Array]) -> ModelProto:
    """A model that was written without weights, with them."""
    out = ModelProto()
    out.CopyFrom(model)
    for tensor in out.graph.initializer:
        if tensor.name in constants:
            tensor.CopyFrom(numpy_helper.from_array(constants[tensor.name], tensor.name))
    return out


def _compiled(plugin: Plugin, region: Region, calibration: Sequence[Mapping[str, Array]]) -> bytes | No:
    try:
        prepared = plugin.prepare(region, calibration)
        blob = cast(object, plugin.compile(prepared, prepared.constants))
    except Exception as e:  # whatever a plugin does, the compiler goes on
        return No(f"its compiler failed: {type(e).__name__}: {e}")
    if not isinstance(blob, bytes):
        return No(f"its compiler gave {type(blob).__name__} instead of bytes")
    return blob
