"""Engines that give values to compare: ours, and those that it is held to.

An engine prepares a model, from a file or in memory, and gives a function from inputs to outputs by name.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from tilewright.api import load
from tilewright.cli.peers import OnnxRuntimePeer
from tilewright.frontend.onnx.load import OnnxModel
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret_graph
from tilewright.ops.accuracy import Accuracy
from tilewright.ops.hostop import HostValue, HostValues
from tilewright.runtime.session import Session
from tilewright.sessions.staged import Staged
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

EngineModel: TypeAlias = Path | ModelProto
RunEngine: TypeAlias = Callable[[HostValues], dict[str, HostValue]]


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    def prepare(self, model: EngineModel) -> RunEngine: ...


class Ours:
    """Compiles without the cache: parts of a model are not worth keeping."""

    name = "tilewright"

    def __init__(self, threads: int | None, target: str, accuracy: Accuracy | None = None) -> None:
        self._threads, self._target, self._accuracy = threads, target, accuracy

    def prepare(self, model: EngineModel) -> RunEngine:
        session = load(
            model, threads=self._threads, target=self._target, accuracy=self._accuracy, cache=False
        )
        return lambda values: dict(session.run(values))  # pyright: ignore[reportArgumentType]


class Ort:
    """ONNX Runtime, as fast as it is by default."""

    name = OnnxRuntimePeer.name

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def prepare(self, model: EngineModel) -> RunEngine:
        source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
        session = OnnxRuntimePeer(source, self._threads)

        def run(values: HostValues) -> dict[str, HostValue]:
            with _as_user_error("ONNX Runtime cannot run the model"):
                return dict(session({n: v for n, v in values.items() if v is not None}))  # pyright: ignore

        return run


class OnnxReference:
    """The reference of ONNX itself: Python, and slow."""

    name = "onnx.reference"

    def prepare(self, model: EngineModel) -> RunEngine:
        with _as_user_error("onnx.reference cannot load the model"):
            evaluator = ReferenceEvaluator(model if isinstance(model, ModelProto) else str(model))

        def run(values: HostValues) -> dict[str, HostValue]:
            with _as_user_error("onnx.reference cannot run the model"), np.errstate(all="ignore"):
                found = cast("list[Any]", evaluator.run(None, dict(values)))  # pyright: ignore[reportUnknownMemberType]
            return dict(zip(cast("list[str]", evaluator.output_names), found, strict=True))

        return run


class OwnReference:
    """The numpy reference of every op, on the graph as it was imported: no pass, schedule or native code has a part in
    it. What the host runs is the same code as in a session.
    """

    name = "reference"

    def prepare(self, model: EngineModel) -> RunEngine:
        def run(values: HostValues) -> dict[str, HostValue]:
            with OnnxModel(model) as found, np.errstate(all="ignore"):
                staged = Staged(found.scope, lambda graph: cast(Session, _Interpreted(graph)))
                return dict(zip(found.scope.outputs, staged.run(values), strict=True))

        return run


class _Interpreted:
    """What `Staged` needs of a session."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def call(self, inputs: Sequence[Array]) -> list[Array]:
        names = [v.name for v in self._graph.inputs]
        return list(interpret_graph(self._graph, dict(zip(names, inputs, strict=True))).values())

    def close(self) -> None:
        pass


def make_reference(name: str, threads: int) -> Engine:
    """By its name on the command line."""
    match name:
        case "ort":
            return Ort(threads)
        case "onnx":
            return OnnxReference()
        case _:
            return OwnReference()


@contextmanager
def _as_user_error(what: str) -> Generator[None]:
    """Errors of other engines share no base class: each becomes a UserError that says `what` failed."""
    try:
        yield
    except UserError:
        raise
    except Exception as e:
        lines = str(e).strip().splitlines() or [type(e).__name__]
        raise UserError(f"{what}: {lines[0]}") from e
