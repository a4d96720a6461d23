"""What is decided about a program: values that print as they are written in a trace, and are read back from it.

    Group(func='relu_1', values=('conv2d_1', 'relu_1'))      nodes that become one Func, by the values that they make
    Algorithm(name='Winograd …', funcs=('relu_1', 'relu_5')) how Funcs compute, where there are several ways
    Join(first='conv2d_3', second='relu_4')                  two Funcs that become one
    ChannelsLast(group='relu_1', buffers=('conv0', 'relu1')) the layout of what a group makes
    BufferLayout(buffer='relu_1__relu1', layout=Layout((PadDim(1, 0, 16),)))
                                                             any layout of a buffer, over its shape as stated
    Kernel(calls=('relu_1', 'relu_5'), family='gemm', rows=6, vectors=2)
                                                             the schedule of a Func, for all calls of equal Funcs
    RangeKernel(calls=('relu_1',), dim='rows', most=8, family='gemm', rows=1, vectors=4)
                                                             another one where an open dimension is at most so large
    Beside(calls=('mul_3', 'mul_8'))                         kernels of one part that a team shares together
    Narrower(dims=('height',), sizes=(320,))                 a program of its own where dimensions are at most so large

Passes that always pay are no decisions, and leave nothing here. Nor do estimates: the same choices are the same text.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tilewright.ir.layout import Layout
from tilewright.schedule.step import Step, value_text
from tilewright.support.artifact import SizeBox


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that become one Func, by the first value that each makes. The Func is named after the last value that
    others need. `repeated` are nodes that it computes for itself, as all others do that read them.
    """

    func: str
    values: tuple[str, ...]
    repeated: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"Group(func={self.func!r}, values={value_text(self.values)}"
        return f"{text}, repeated={value_text(self.repeated)})" if self.repeated else f"{text})"


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The algorithm of Funcs that have several; one that no decision names computes what is written."""

    name: str
    funcs: tuple[str, ...]

    def __str__(self) -> str:
        return value_text(self)


@dataclass(frozen=True, slots=True)
class Join:
    """Two Funcs, called one after the other, that become one (`schedule/steps/join_funcs.py`)."""

    first: str
    second: str

    def __str__(self) -> str:
        return value_text(self)


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """Buffers whose channels go behind their pixels: those that a group makes, by their names in it; without a group,
    by their full names.
    """

    group: str
    buffers: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """As the Module calls them."""
        return tuple(f"{self.group}__{b}" if self.group else b for b in self.buffers)

    def __str__(self) -> str:
        return value_text(self)


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """The layout of a buffer, by its full name: a map of the shape that the model states."""

    buffer: str
    layout: Layout

    @property
    def group(self) -> str:
        """The group that makes the buffer."""
        return self.buffer.rpartition("__")[0]

    def __str__(self) -> str:
        return value_text(self)


@dataclass(frozen=True, slots=True)
class Kernel:
    """How Funcs that are equal up to renaming run: a point of a family's space, and steps that are taken after it.

    Steps name loops and blocks of the first call. They set the parallel grain (`Coarsen`), or are all of the schedule
    (`family='unscheduled'`).
    """

    calls: tuple[str, ...]
    family: str
    knobs: tuple[tuple[str, int], ...] = ()
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return f"Kernel({', '.join([f'calls={value_text(self.calls)}', *_point_text(self)])})"


@dataclass(frozen=True, slots=True)
class RangeKernel:
    """How Funcs run where an open dimension is at most so large, in place of what `Kernel` says. Of several, the first
    that fits counts.
    """

    calls: tuple[str, ...]
    dim: str
    most: int
    family: str
    knobs: tuple[tuple[str, int], ...] = ()
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        head = f"calls={value_text(self.calls)}, dim={self.dim!r}, most={self.most}"
        return f"RangeKernel({', '.join([head, *_point_text(self)])})"


def _point_text(d: "Kernel | RangeKernel") -> list[str]:
    items = [f"family={d.family!r}", *(f"{name}={value}" for name, value in d.knobs)]
    return [*items, f"steps={value_text(d.steps)}"] if d.steps else items


@dataclass(frozen=True, slots=True)
class Beside:
    """Calls of kernels of one part that a team shares as if they were parts of one (`search/beside.py`)."""

    calls: tuple[str, ...]

    def __str__(self) -> str:
        return value_text(self)


@dataclass(frozen=True, slots=True)
class Narrower:
    """A program of its own for open dimensions that are at most so large. What is decided of it stands behind it."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def box(self) -> SizeBox:
        return tuple(zip(self.dims, self.sizes, strict=True))

    def __str__(self) -> str:
        return value_text(self)


Decision: TypeAlias = (
    Group | Algorithm | Join | ChannelsLast | BufferLayout | Kernel | RangeKernel | Beside | Narrower
)
