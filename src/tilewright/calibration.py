"""Running a graph to look at its values, at the speed of native code: for plugins that calibrate."""

from collections.abc import Iterable, Iterator

from tilewright.compiler import compile_graph
from tilewright.graph.graph import Graph
from tilewright.placement.observed import watched
from tilewright.placement.options import CalibrationSample
from tilewright.runtime.cache import default_cache
from tilewright.support.arrays import Array
from tilewright.target.names import resolve_target


def values_of(graph: Graph, samples: Iterable[CalibrationSample]) -> Iterator[dict[str, Array]]:
    """All values of a graph that are no constants, by name, for each sample of its inputs."""
    made = [v for n in graph.nodes for v in n.outputs]
    program = compile_graph(resolve_target("native"), watched(graph, made), cache=default_cache())
    with program.session() as session:
        for sample in samples:
            yield {**sample, **session.run(sample)}
