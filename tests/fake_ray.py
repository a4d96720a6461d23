"""Ray as far as tuning uses it, in this process: nodes that say what they are, and that can be lost at a given call."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.tuning.cluster_node import NodeReport


class FakeRayError(Exception):
    pass


@dataclass(eq=False)
class FakeNode:
    """`calls` are the methods of its actors that were called. It is lost at the call that `dies_at` is true of."""

    name: str
    cores: int = 1
    report: Callable[[NodeReport], NodeReport] = lambda r: r
    dies_at: Callable[["FakeNode", str], bool] = lambda node, method: False
    is_alive: bool = True
    calls: list[str] = field(default_factory=list[str])

    @staticmethod
    def unlike(name: str) -> "FakeNode":
        return FakeNode(name, report=lambda r: replace(r, target="another"))

    @staticmethod
    def dying(name: str, method: str, count: int = 1) -> "FakeNode":
        """Lost at the call of a method."""
        return FakeNode(name, dies_at=lambda n, m: m == method and n.calls.count(m) == count)


@dataclass(eq=False)
class FakeReference:
    node: FakeNode
    call: Callable[[], Any]


class FakeActor:
    def __init__(self, node: FakeNode, made: Any, cpus: int) -> None:
        self.node, self.made, self.cpus = node, made, cpus

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> FakeReference:
            return FakeReference(self.node, lambda: self.answer(method, arguments))

        return SimpleNamespace(remote=remote)

    def answer(self, method: str, arguments: Sequence[Any]) -> Any:
        node = self.node
        node.calls.append(method)
        if node.dies_at(node, method):
            node.is_alive = False
        if not node.is_alive:
            raise FakeRayError("The actor died because its node has died.\nMore about it.")
        answer = getattr(self.made, method)(*arguments)
        return node.report(answer) if method == "report" else answer


class FakeRay:
    """Use `install`. Requests are answered one by one, in the order in which they are waited for."""

    def __init__(self, *nodes: FakeNode) -> None:
        self._nodes = {n.name: n for n in nodes}
        self.exceptions = SimpleNamespace(RayError=FakeRayError)
        self.actors: list[FakeActor] = []
        self.is_started = False
        self.options: dict[str, Any] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "FakeRay":
        def on_node(node: str, soft: bool) -> str:
            assert not soft
            return node

        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=on_node)
        monkeypatch.setitem(sys.modules, "ray", self)
        monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
        return self

    def is_initialized(self) -> bool:
        return self.is_started

    def init(self, **options: Any) -> None:
        self.is_started, self.options = True, options

    def shutdown(self) -> None:
        self.is_started = False

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": n.name,
                "NodeManagerHostname": n.name,
                "NodeManagerAddress": "10.0.0.1",
                "Alive": n.is_alive,
                "Resources": {"CPU": n.cores} if n.cores else {},
            }
            for n in self._nodes.values()
        ]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: next(iter(self._nodes)))

    def remote(self, kind: type[Any]) -> Any:
        def options(num_cpus: int, scheduling_strategy: str) -> Any:
            def make(*arguments: Any) -> FakeActor:
                self.actors.append(FakeActor(self._nodes[scheduling_strategy], kind(*arguments), num_cpus))
                return self.actors[-1]

            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def put(self, value: Any) -> Any:
        return value

    def wait(
        self, references: Sequence[FakeReference], num_returns: int, timeout: float
    ) -> tuple[list[FakeReference], list[FakeReference]]:
        assert num_returns == 1 and timeout >= 0
        return [references[0]], list(references[1:])

    def get(self, reference: FakeReference) -> Any:
        return reference.call()

    def kill(self, actor: FakeActor) -> None:
        for part in ("_candidates", "_inside"):
            if hasattr(actor.made, part):
                getattr(actor.made, part).close()
        self.actors.remove(actor)
