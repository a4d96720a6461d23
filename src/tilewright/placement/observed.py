"""What flows into the regions of plugins when a model runs on samples of its user's: data to calibrate with."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.graph.external import Region
from tilewright.graph.graph import Graph, Value
from tilewright.ops.opdef import TensorType
from tilewright.placement.options import CalibrationSample
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import SymInt

_log = logging.getLogger("tilewright")


def watched(graph: Graph, values: Sequence[Value]) -> Graph:
    """The graph with these values as its outputs."""
    return replace(graph, outputs=tuple(values), output_names=(), checks=None)


@dataclass(slots=True, eq=False)
class Observed:
    """The values of `graph` for each of the samples; `build` makes native code of a graph. Samples whose shapes are not
    those that the graph was made for are left out.
    """

    graph: Graph
    samples: Sequence[CalibrationSample]
    build: Callable[[Graph], Session | OpenSession]
    _seen: dict[Value, list[Array]] = field(default_factory=dict[Value, list[Array]])

    def __post_init__(self) -> None:
        self.samples = [s for s in self.samples if self._fits(s)]
        self._seen = {v: [s[v.name] for s in self.samples] for v in self.graph.inputs}

    def look(self, regions: Sequence[Region]) -> None:
        """See the inputs of all of them at once: each look takes a compilation. What native code cannot compute
        together may still be seen one by one.
        """
        with suppress(UserError):
            self._see([v for region in regions for v in region.graph.inputs])

    def inputs_of(self, region: Region) -> list[dict[str, Array]]:
        """The inputs of a region, by name, for each sample; nothing if native code cannot compute them."""
        try:
            self._see(region.graph.inputs)
        except UserError as e:
            _log.warning("%s is not calibrated: %s", region.key, e.message)
            return []
        return [{v.name: self._seen[v][i] for v in region.graph.inputs} for i in range(len(self.samples))]

    def _see(self, values: Sequence[Value]) -> None:
        missing = [v for v in dict.fromkeys(values) if v not in self._seen]
        if missing and self.samples:
            with self.build(watched(self.graph, missing)) as session:
                runs = [session.run(s) for s in self.samples]
            self._seen.update((v, [np.asarray(r[v.name], order="C") for r in runs]) for v in missing)

    def _fits(self, sample: CalibrationSample) -> bool:
        names = {v.name for v in self.graph.inputs}
        if set(sample) != names:
            raise UserError(
                f"a sample to calibrate with has {', '.join(sorted(sample)) or 'nothing'}",
                hint=f"the model takes {', '.join(sorted(names)) or 'nothing'}",
            )
        wrong = [v for v in self.graph.inputs if not _is_of(sample[v.name], v.type)]
        if wrong:
            given = TensorType.of(sample[wrong[0].name])
            _log.warning("a sample to calibrate with is left out: %r is given %s", wrong[0], given)
        return not wrong


def _is_of(array: Array, type: TensorType) -> bool:
    """Is it of the type? An open size may be any of its range; whether sizes fit each other is seen when it runs."""
    given = TensorType.of(array)
    if given.dtype is not type.dtype or len(given.shape) != len(type.shape):
        return False
    return all(
        m.size.bounds[0] <= n <= m.size.bounds[1] if isinstance(m, SymInt) else n == m
        for n, m in zip(given.shape, type.shape, strict=True)
    )
