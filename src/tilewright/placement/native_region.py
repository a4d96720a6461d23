"""Native code for a region that a plugin gave up: compiled from the region's own model, for the same sizes."""

from collections.abc import Callable, Mapping, Sequence

from onnx import ModelProto

from tilewright.frontend.onnx.open_import import following
from tilewright.graph.graph import Graph
from tilewright.ops.accuracy import Accuracy
from tilewright.placement.regions import GuardedRegion, NativeRegion, externals_of
from tilewright.plugins.isolation import region_graph
from tilewright.runtime.machine import default_threads
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.program import dtype_of
from tilewright.runtime.session import Session
from tilewright.support.arrays import OpaqueArray, Shapes
from tilewright.support.artifact import Artifact


def native_or_plugin(
    artifact: Artifact,
    threads: int | None,
    compiled: Callable[[Graph, Accuracy], Artifact],
    *,
    strict: bool,
) -> dict[str, GuardedRegion]:
    """The code of the external calls of a program. What a plugin gives up is `compiled`, as accurately as that."""
    count = default_threads() if threads is None else threads

    def native(model: bytes, constants: Mapping[str, OpaqueArray], shapes: Shapes) -> NativeRegion:
        graph = region_graph(ModelProto.FromString(model), constants, shapes)
        with following(artifact.manifest.guards):
            made = compiled(graph, Accuracy.of(artifact.manifest.options.get("accuracy")))
        return _ready(made, count)

    return externals_of(artifact, count, native, strict=strict)


def _ready(artifact: Artifact, threads: int) -> NativeRegion:
    specs = artifact.manifest.given, artifact.manifest.outputs
    takes, gives = (tuple(map(dtype_of, side)) for side in specs)
    if artifact.manifest.dims:
        return NativeRegion(OpenSession(artifact, threads).call, takes, gives)
    session = Session(artifact, threads)

    def run(inputs: Sequence[OpaqueArray], outputs: Sequence[OpaqueArray], sizes: Mapping[str, int]) -> None:
        feeds = {s.name: a for s, a in zip(session.inputs, inputs, strict=True)}
        session.run(feeds, {s.name: a for s, a in zip(session.outputs, outputs, strict=True)})

    return NativeRegion(run, takes, gives)
