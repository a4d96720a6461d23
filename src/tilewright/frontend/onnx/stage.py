"""A model stage by stage.

A stage is what can be compiled once the types of some values are known: a native graph, and then the nodes that the
host runs on its results. What depends on those is the next stage, imported when their types are known. A model
without host nodes is one stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.frontend.onnx.custom_ops import RunNode
from tilewright.frontend.onnx.nodes import NodeSite
from tilewright.graph.graph import Graph
from tilewright.ops.hostop import HostValue
from tilewright.ops.opdef import TensorType
from tilewright.support.errors import Hint, MultipleProgramsError

_SHOWN = 100  # nodes listed in a message


class Opaque:
    """A value that only the host can hold: a sequence, an optional, strings, numbers of a few bits."""


OPAQUE = Opaque()

Given: TypeAlias = TensorType | Opaque  # what is known of a value before it is computed


@dataclass(frozen=True, slots=True, eq=False)
class HostCall:
    """A node that the host runs, after its inputs (names, empty for an absent one) and what its bodies use. A `plugin`
    runs the bodies, too: it takes what they use as further inputs.
    """

    step: NodeSite
    captured: tuple[str, ...]
    why: str
    run: RunNode
    plugin: str = ""
    moves_only: bool = False  # of an op that computes nothing numpy could warn of

    @property
    def inputs(self) -> Sequence[str]:
        return (*self.step.node.input, *self.captured) if self.plugin else self.step.node.input

    @property
    def outputs(self) -> Sequence[str]:
        return self.step.node.output


@dataclass(frozen=True, slots=True, eq=False)
class ModelStage:
    """`graph` gives the values `made`; `known` holds what was worked out while importing, and `aliases` further names
    of values that were given. Then `hosts` run, in any order; then `rest` is imported, with all of these given.
    """

    graph: Graph
    made: Mapping[str, int]  # the number of the output that has the value of this name
    known: Mapping[str, HostValue]
    aliases: Mapping[str, str]
    lists: Mapping[str, tuple[str, ...]]  # sequences of values with these names
    hosts: tuple[HostCall, ...]
    rest: tuple[NodeSite, ...]


class HostNodes(MultipleProgramsError):
    """The model cannot become one native program, because the host has to run some of its nodes."""

    def __init__(self, hosts: Sequence[HostCall], rest: int) -> None:
        self.hosts = tuple(hosts)
        lines = [f"{h.step.title}: {h.step.node.op_type}: {h.why}" for h in hosts[:_SHOWN]]
        after = [f"and {rest} nodes that come after them"] if rest else []
        super().__init__(
            "\n  ".join(["some nodes of the model run on the host:", *lines, *after]),
            hint=Hint(
                "tilewright.load runs such models; they cannot be compiled to a file",
                command="`tilewright run` runs such models; they cannot be compiled to a file",
            ),
        )
