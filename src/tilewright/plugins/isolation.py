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
from tilewright.frontend.onnx.load import OnnxModel, load_graph
from tilewright.frontend.onnx.open_import import import_sized
from tilewright.graph.external import No, Plugin, Region
from tilewright.graph.graph import Graph
from tilewright.graph.passes.partition import offer
from tilewright.graph.value_spec import value_spec
from tilewright.plugins.registry import by_reference, reference
from tilewright.runtime.manifest import Entry, dim_from_json, dim_to_json, spec_from_json, spec_to_json
from tilewright.support.arrays import Array, Shapes
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.support.frames import pack
from tilewright.support.pool import Pool, ProcessLate, module_command
from tilewright.support.sizes import dims_in

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
        if not name and not region.is_open:
            return _compiled(plugin, region, calibration)
        try:
            model = to_model(region.graph, weights=False)
        except UserError as e:
            if not region.is_open:
                raise
            return No(e.message)  # nor could native code take over
        if not name:
            return _compiled(plugin, region, calibration)
        groups = [region.constants, *calibration]
        dims = sorted({d for v in region.graph.inputs for d in dims_in(v.shape)})
        head = {
            "plugin": name,
            "key": region.key,
            "arrays": [{n: [a.dtype.name, list(a.shape)] for n, a in group.items()} for group in groups],
            "dims": [dim_to_json(d) for d in dims],
            "inputs": [spec_to_json(value_spec(v)) for v in region.graph.inputs] if dims else [],
        }
        blobs = [model.SerializeToString()]
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
    dims = {d.name: d for d in map(dim_from_json, Entry(head["dims"], "dims").items())}
    inputs = [spec_from_json(e, dims) for e in Entry(head["inputs"], "inputs").items()]
    region = read_region(plugin, head["key"], proto, constants, {s.name: s.extents for s in inputs})
    made = _compiled(plugin, region, calibration)
    return pack({"error": made.reason}) if isinstance(made, No) else pack({"error": ""}, [made])


def read_region(
    plugin: Plugin, key: str, model: ModelProto, constants: Mapping[str, Array], shapes: Shapes | None = None
) -> Region:
    """The region that a model is, with its constants, as the plugin has taken it. `shapes` are those of its inputs if
    sizes are open.
    """
    graph = region_graph(model, constants, shapes or {}, (plugin,))
    regions: Sequence[Region] = offer(graph, plugin).regions
    if len(regions) != 1:
        raise UserError(f"the plugin {plugin.name} takes {len(regions)} parts of what it had taken as one")
    return replace(regions[0], key=key, graph=graph)


def region_graph(
    model: ModelProto,
    constants: Mapping[str, Array],
    shapes: Shapes,
    custom_ops: Sequence[Plugin] = (),
) -> Graph:
    """The graph of a region that was written without weights; `shapes` are those of its inputs if sizes are open."""
    whole = with_weights(model, constants)
    if not shapes:
        return load_graph(whole, custom_ops=custom_ops)
    with OnnxModel(whole, custom_ops=custom_ops) as found:
        return import_sized(found, shapes)


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
