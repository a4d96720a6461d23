"""What a learned performance model sees of a kernel and of the schedules that it may have."""

from dataclasses import dataclass
from typing import Protocol

from tilewright.support.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class KernelGraph:
    """A kernel as its dataflow graph: buffers, and the operations of its blocks between them."""

    opcodes: IntArray  # of each node, an index of `kernel_graph.OPCODES`
    nodes: FloatArray  # a row for each, columns as `kernel_graph.NODE_FEATURES` names them
    edges: IntArray  # rows (from, to): who reads what


@dataclass(frozen=True, slots=True, eq=False)
class KernelCandidates:
    """Schedules of one kernel for one number of threads."""

    features: FloatArray  # a row for each, columns as `features.FEATURES` names them
    costs: FloatArray  # seconds, by the closed form of its family
    graph: KernelGraph | None = None  # of the kernel, where it was asked for


class CostModel(Protocol):
    """Predicts times of schedules. Within a kernel predictions rank; models that are trained to rank alone may be off
    by a factor that is the same for all schedules of a kernel.
    """

    @property
    def name(self) -> str: ...

    def log_seconds(self, candidates: KernelCandidates) -> FloatArray:
        """The natural logarithm of the seconds of each."""
        ...
