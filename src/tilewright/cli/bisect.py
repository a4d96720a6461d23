"""Finds the node at which our results part from those of a reference.

Two questions are asked of every node, in an order in which they can run, until there is an answer:

    different   does its result differ, each engine having computed all that comes before by itself?
    wrong       does its result differ on equal inputs, namely the reference's?

A node that is wrong is a mistake in that node; one that is merely different has been handed small errors that grew. If
no node is either, and the model's outputs still differ, then the mistake is in how nodes are compiled together: here
every result is asked for, so that less is fused than in the whole model.

Nodes are gone through in windows: models of a few nodes, whose outputs are all results of those. At any time only the
results of one window are held, and what later nodes need of earlier ones. A window is as long as `memory` allows, or
one node. Nodes inside of subgraphs are not looked at: a loop is one node.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from onnx import ModelProto

from tilewright.cli.difference import Difference, Tolerance
from tilewright.cli.engines import Engine, RunEngine
from tilewright.cli.submodel import ModelParts
from tilewright.ops.hostop import HostValue, HostValues
from tilewright.support.errors import UserError
from tilewright.support.progress import OnProgress

_AHEAD = 128  # nodes of a window at most
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


@dataclass(frozen=True, slots=True)
class Found:
    """A node, and how far its result is off."""

    index: int
    node: str
    op_type: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class Bisection:
    """`peak_bytes` of intermediate results were held at most."""

    nodes: int
    windows: int
    peak_bytes: int
    different: Found | None
    wrong: Found | None


@dataclass(frozen=True, slots=True, eq=False)
class Reproducer:
    """A small model that gives another result than the reference: `expected` is that one's."""

    model: ModelProto
    inputs: Mapping[str, HostValue]
    expected: Mapping[str, HostValue]
    difference: Difference


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Nodes `at` to `end` (exclusive) as a model; what the reference gives it, and what it makes of that."""

    at: int
    end: int
    model: ModelProto
    given: dict[str, HostValue]
    wanted: dict[str, HostValue]


class Bisector:
    """For one model and its inputs. `memory`: bytes of intermediate results to hold at once."""

    def __init__(
        self,
        parts: ModelParts,
        feeds: HostValues,
        ours: Engine,
        reference: Engine,
        tolerance: Tolerance,
        memory: int,
        progress: OnProgress | None = None,
    ) -> None:
        self._parts, self._feeds = parts, feeds
        self._ours, self._reference = ours, reference
        self._tolerance, self._memory, self._progress = tolerance, memory, progress
        self._theirs: dict[str, HostValue] = {}  # what the reference has computed, and later nodes use
        self._own: dict[str, HostValue] = {}  # the same, computed by ourselves
        self._peak = 0

    # ---------------------------------------------------------------------------------------------------- the search

    def search(self) -> Bisection:
        """Both answers; it ends with the window in which a result is different."""
        windows = 0
        different: Found | None = None
        wrong: Found | None = None
        self._own = dict(self._feeds)
        for w in self._windows(len(self._parts.nodes)):
            windows += 1
            if self._is_random(w.at):
                self._go_on(w, w.wanted)
                continue
            run = self._prepare(self._ours, w)
            wrong = wrong or self._first_wrong(
                w, run(w.given)
            )  # those results are gone when the next are made
            got = run({n: self._own[n] for n in w.given})
            self._count(w.wanted, got)
            different = self._first_difference(w, got)
            self._go_on(w, got)
            if different is not None:
                break
        self._own = {}
        return Bisection(len(self._parts.nodes), windows, self._peak, different, wrong)

    def _go_on(self, w: _Window, got: HostValues) -> None:
        self._own = self._live({**self._own, **got}, w.end)
        if self._progress is not None:
            self._progress("bisect", w.end, len(self._parts.nodes))

    def _first_difference(self, w: _Window, got: HostValues) -> Found | None:
        return next(self._differences(w, got), None)

    def _first_wrong(self, w: _Window, got: HostValues) -> Found | None:
        """Errors grow inside of a window too: what differs there is tried alone."""
        values = {**w.given, **w.wanted}
        self._count(values, got)
        for found in self._differences(w, got):
            model = self._parts.cut([found.index], self._parts.gives[found.index], values)
            taken = {n: values[n] for n in self._parts.taken([found.index])}
            alone = replace(w, at=found.index, end=found.index + 1, model=model)
            again = self._first_difference(alone, self._prepare(self._ours, alone)(taken))
            if again is not None:
                return again
        return None

    def _differences(self, w: _Window, got: HostValues) -> Iterator[Found]:
        for i in range(w.at, w.end):
            names = self._parts.gives[i]
            d = self._tolerance.worst({n: got[n] for n in names}, {n: w.wanted[n] for n in names})
            if not self._tolerance.allows(d):
                yield Found(i, self._parts.title(i), self._parts.nodes[i].op_type, d)

    # ------------------------------------------------------------------------------------------------------- windows

    def _windows(self, stop: int) -> Iterator[_Window]:
        """The nodes before `stop`, as the reference computes them."""
        self._theirs = dict(self._feeds)
        at = 0
        while at < stop:
            end = min(self._end(at), stop)
            nodes = range(at, end)
            given = {n: self._theirs[n] for n in self._parts.taken(nodes)}
            model = self._parts.cut(nodes, [n for i in nodes for n in self._parts.gives[i]], given)
            w = _Window(at, end, model, given, {})
            w.wanted.update(self._prepare(self._reference, w)(given))
            self._count(w.wanted)
            yield w
            self._theirs = self._live({**self._theirs, **w.wanted}, end)
            at = end
        self._theirs = {}

    def _end(self, at: int) -> int:
        """Where the window that starts at a node ends."""
        room = (self._memory - self._held()) // 2  # for the reference's results, and for ours
        nodes = range(at, min(at + _AHEAD, len(self._parts.nodes)))
        sizes = self._parts.output_bytes(nodes, self._theirs)
        for i, size in zip(nodes, sizes, strict=True):
            is_last = size is None or self._is_random(i)
            room -= self._parts.weight_bytes(i) + (size or 0)
            if is_last or room < 0:
                return max(i, at + 1)
        return nodes.stop

    def _prepare(self, engine: Engine, w: _Window) -> RunEngine:
        """Messages name the window, since engines do not always name the node."""
        first, last = self._parts.title(w.at), self._parts.title(w.end - 1)
        where = f"node {first!r}" if first == last else f"nodes {first!r} to {last!r}"

        def blame(e: UserError) -> UserError:
            return UserError(e.message, where=e.where or where, hint=e.hint)

        try:
            run = engine.prepare(w.model)
        except UserError as e:
            raise blame(e) from e

        def guarded(values: HostValues) -> dict[str, HostValue]:
            try:
                return run(values)
            except UserError as e:
                raise blame(e) from e

        return guarded

    def _live(self, values: HostValues, end: int) -> dict[str, HostValue]:
        """What nodes from `end` on use."""
        last = self._parts.last_use
        return {n: v for n, v in values.items() if last.get(n, -1) >= end}

    def _is_random(self, i: int) -> bool:
        """Engines roll their own dice: we go on from the reference's numbers. Such a node is a window of its own."""
        node = self._parts.nodes[i]
        is_training = node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2])
        return node.op_type in _RANDOM or is_training

    def _held(self, *more: HostValues) -> int:
        """Bytes of intermediate results that are held now. What several hold counts once."""
        everything = (self._theirs, self._own, *more)
        arrays = {id(v): v for values in everything for n, v in values.items() if n not in self._feeds}
        return sum(map(_bytes, arrays.values()))

    def _count(self, *more: HostValues) -> None:
        self._peak = max(self._peak, self._held(*more))

    # ----------------------------------------------------------------------------------------- a model that shows it

    def reproduce(self, output: str) -> Reproducer | None:
        """The fewest nodes before (and with) the one that gives `output` which make it differ, on the reference's
        inputs; None if not even all of them do. Only the one result is asked for, as in the whole model.
        """
        chain = self._parts.ancestors(self._parts.makers[output])
        enough = 1
        while (found := self._try(chain[-enough:], output)) is None:
            if enough >= len(chain):
                return None
            enough = min(2 * enough, len(chain))
        too_few = enough // 2
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            fewer = self._try(chain[-middle:], output)
            if fewer is None:
                too_few = middle
            else:
                enough, found = middle, fewer
        return found

    def _try(self, nodes: list[int], output: str) -> Reproducer | None:
        inputs = self._reference_values(self._parts.taken(nodes))
        model = self._parts.cut(nodes, [output], inputs)
        w = _Window(nodes[0], nodes[-1] + 1, model, inputs, {})
        expected = self._prepare(self._reference, w)(inputs)
        d = self._tolerance.worst(self._prepare(self._ours, w)(inputs), expected)
        return None if self._tolerance.allows(d) else Reproducer(model, inputs, expected, d)

    def _reference_values(self, names: list[str]) -> dict[str, HostValue]:
        """What the reference has for these, computed again: all intermediate results were never held."""
        found = {n: self._feeds[n] for n in names if n in self._feeds}
        missing = {n: self._parts.makers[n] for n in names if n not in found}
        for w in self._windows(max(missing.values(), default=-1) + 1):
            found |= {n: v for n, v in w.wanted.items() if n in missing}
        return found


def _bytes(value: HostValue) -> int:
    if isinstance(value, list):
        return sum(map(_bytes, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0
