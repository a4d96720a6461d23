"""The contract with those who bring a code generator of their own.

A plugin claims parts of a model. It is asked about *units*: a node of the graph, a node of the model that the importer
has written as several (a whole attention, say), or a match of one of the plugin's own patterns. It answers yes, or why
not. Neighbouring units become regions, as large as they can be without a path that leaves one and comes back. Which
regions are left to whom is decided by time (`tilewright.placement.place`).

    class Mine(Plugin):
        name = "mine"

        def supports(self, unit: Unit) -> Answer:
            return YES if unit.name == "MatMul" else No("only MatMul")

        def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes: ...

        def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion: ...

`compile` runs ahead of time, in a process of its own: one that crashes takes nobody along. Its bytes are kept with the
program, and `load` gets them back, perhaps on another day, with the constants by name: they stay where the program has
them, are shared, and must not be part of the bytes. `RunRegion` is called with the inputs and outputs of the region in
order, arrays that speak DLPack, and fills the outputs.

A plugin is found by the entry point group `tilewright.plugins`, or registered with `register_plugin` of
`tilewright.plugins.registry`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import ClassVar, TypeAlias

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.origin import ModelNode, Origin
from tilewright.graph.surroundings import Surroundings
from tilewright.ir.dtype import DType
from tilewright.ops.hostop import HostValue
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array
from tilewright.support.sizes import is_open

RunRegion: TypeAlias = Callable[[Sequence[Array], Sequence[Array]], None]
"""Reads the inputs and fills the outputs. The arrays are views of the program's memory: they must not be kept."""

HostRun: TypeAlias = Callable[[Sequence[HostValue]], Sequence[HostValue]]
"""Runs a node by itself: from its inputs (None: left out), which must not be written to or kept, to its outputs (None:
left out). After the inputs comes what its subgraphs use of the values around them, sorted by name."""


@dataclass(frozen=True, slots=True)
class Yes:
    """The plugin takes it."""


@dataclass(frozen=True, slots=True)
class No:
    """The plugin does not take it, and why, in words for the user."""

    reason: str


YES = Yes()
Answer: TypeAlias = Yes | No


@unique
class Order(Enum):
    """How the values on the border of a region lie in memory."""

    AS_STATED = "as stated"
    CHANNELS_LAST = "channels last"  # of rank 3 and more: dimension 1 becomes the last


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What may be asked of a plugin.

    `threads`: a run may use as many threads as `load` is given; otherwise it is given one.
    `dynamic_shapes`: it compiles again for each new set of shapes of a model whose shapes are left open; otherwise it
    gets nothing of such a model.
    `open_sizes`: it compiles regions in which sizes are known only when they run (`Region.is_open`), once for all;
    otherwise it gets nothing of a program for ranges of dimensions.
    `in_place`: a run has read all its inputs before it writes an output, so that these may lie in the same memory.
    """

    threads: bool = True
    dynamic_shapes: bool = True
    in_place: bool = False
    open_sizes: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What a plugin is asked about. `name` is the operator as the model spells it, with its domain unless that is
    ONNX's own; or the name of a pattern. `origin` is the node of the model, if it is one.
    """

    name: str
    graph: Graph
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    origin: Origin | None = None

    def constant(self, value: Value) -> Array | None:
        """The array of a value that is known at compile time."""
        return self.graph.constants.get(value)


@dataclass(frozen=True, slots=True, eq=False)
class CustomNode:
    """A node of the model whose operator native code does not know, with the types of its inputs (None: left out) and
    those of their values that are known at compile time.
    """

    node: ModelNode
    opsets: Mapping[str, int]
    inputs: tuple[TensorType | None, ...]
    constants: tuple[Array | None, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A node in a pattern: one of these operators, over parts in the order of its inputs (None: any value). Inputs that
    are not given may be anything. Of an operator with two inputs that may be exchanged, both orders are tried.
    """

    names: str | tuple[str, ...]
    inputs: "tuple[Part | None, ...]" = ()

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.names,) if isinstance(self.names, str) else self.names


def _always(unit: Unit) -> Answer:
    return YES


@dataclass(frozen=True, slots=True)
class Pattern:
    """Nodes that a plugin takes together, such as a convolution and the activation after it. `root` is the last.
    Nothing that is computed inside may be needed outside.
    """

    name: str
    root: Part
    check: Callable[[Unit], Answer] = _always


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A part of a model for a plugin: a graph of its own, with the names of the model. `order` and `dtypes` say how its
    inputs and outputs cross the border, if not as the graph has them.

    Extents that are open are ints which know their size (`tilewright.support.sizes.SymInt`); as numbers they are the
    largest that they may be. A run gets arrays of the sizes in use.
    """

    key: str
    graph: Graph
    units: tuple[Unit, ...]
    order: Order = Order.AS_STATED
    dtypes: Mapping[DType, DType] = field(default_factory=dict[DType, DType])

    def seen(self, value: Value) -> TensorType:
        """The type of an input or output as the plugin gets it."""
        shape = value.shape
        if self.order is Order.CHANNELS_LAST and len(shape) > 2:
            shape = (shape[0], *shape[2:], shape[1])
        return TensorType(self.dtypes.get(value.type.dtype, value.type.dtype), shape)

    @property
    def is_open(self) -> bool:
        """Are there sizes in it that are known only when it runs?"""
        graph = self.graph
        return any(is_open(v.shape) for v in (*graph.inputs, *(v for n in graph.nodes for v in n.outputs)))

    @property
    def constants(self) -> dict[str, Array]:
        """By name; nobody may write to them."""
        return {v.name: array for v, array in self.graph.constants.items()}


class Plugin(ABC):
    """Says what it takes, compiles it ahead of time, and runs it. All but three methods have defaults."""

    name: ClassVar[str]
    version: ClassVar[str] = "0"  # what was compiled by another version is compiled again
    capabilities: ClassVar[Capabilities] = Capabilities()
    order: ClassVar[Order] = Order.AS_STATED
    dtypes: ClassVar[
        Mapping[DType, DType]
    ] = {}  # what crosses the border as something else: {DType.F64: DType.F32}

    def is_available(self) -> Answer:
        """Is what it needs installed? Asked once, before anything else."""
        return YES

    def patterns(self) -> Sequence[Pattern]:
        """In order of priority: what an earlier one has matched, a later one does not get."""
        return ()

    @abstractmethod
    def supports(self, unit: Unit) -> Answer: ...

    def infer(self, node: CustomNode) -> Sequence[TensorType] | No:
        """The types that an operator gives that native code does not know. A model with one can be loaded only if a
        plugin says."""
        return No(f"{self.name} does not say what {node.node.op_type} gives")

    def host(self, node: ModelNode, opsets: Mapping[str, int]) -> HostRun | No:
        """What runs a node whose results are known only when it runs, or that native code does not know and `infer`
        has nothing to say about. It is called between native programs, with values as the host holds them.
        """
        return No(f"{self.name} does not run {node.op_type} by itself")

    def accepts(self, region: Region) -> Answer:
        """A last word, when the region is known: it may be too small to pay, say."""
        return YES

    def prepare(self, region: Region, calibration: Sequence[Mapping[str, Array]]) -> Region:
        """The plugin's own passes, such as quantization; the border stays as it is. For each sample of data that the
        user gave, `calibration` has the region's inputs, by name, as the graph has them.
        """
        return region

    def seconds(self, region: Region, threads: int) -> float | None:
        """A hint: how long a run takes, if the plugin can say without running it. `placement="model"` goes by it. Where
        a plugin takes many regions, those that native code is estimated to be quicker with are not given away.
        """
        return None

    @abstractmethod
    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes: ...

    @abstractmethod
    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion: ...


@dataclass(frozen=True, slots=True, eq=False)
class ExternalRegion:
    """Nodes that external code runs, known by `key`. `nodes` in graph order; `inputs` come from outside of the region;
    `outputs` are used outside of it. Convex: no path leaves it and comes back.
    """

    key: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def make_external_region(graph: Graph, key: str, nodes: Iterable[Node]) -> ExternalRegion:
    """The region of these nodes, with the values that cross its border."""
    around = Surroundings(graph)
    ordered = around.ordered(set(nodes))
    return ExternalRegion(key, ordered, around.inputs(ordered), around.outputs(ordered))
