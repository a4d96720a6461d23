"""The least that a memory-bound group costs: a loop that reads and writes as many bytes, in the same mix, as an engine
among others. It takes its turns with them, so that limits and times are neighbours.
"""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.memory_bound_cases import CASES
from tilewright.build import Executable, build
from tilewright.cli.catalogue import Peer
from tilewright.cli.guest.job import EngineJob
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.schedule.schedule import Schedule
from tilewright.support.progress import OnProgress
from tilewright.tir.build import FuncBuilder

STREAMS = Peer("streams", "The same streams", "benchmarks.stream_engine:StreamEngine", (), "")

_CHUNK = 64  # elements of a stream that follow each other in an iteration: four lines
_MOST = 8  # times as much may be read as written, or written as read; beyond that the smaller part is nothing
_PARTS = 32
_LANES = 8


def mix(read: int, written: int) -> tuple[int, int]:
    """Chunks read and written in an iteration."""
    if read > _MOST * written:
        return _MOST, 1
    if written > _MOST * read:
        return 1, _MOST
    return max(1, round(read / written)), max(1, round(written / read))


def stream_kernel(read: int, written: int, threads: int) -> Executable:
    """Of this many bytes: each iteration adds up the chunks that it reads, and writes the sum to each that it writes.
    Where hardly anything is written, all iterations of a part write to one place.
    """
    reads, writes = mix(read, written)
    iterations = max(1, max(read, written) // (4 * _CHUNK * max(reads, writes)))
    parts = next(n for n in range(min(_PARTS, iterations), 0, -1) if iterations % n == 0)
    each = iterations // parts
    b = FuncBuilder("streams")
    x = b.param("x", (parts, each, reads, _CHUNK), DType.F32)

    def summed(p: Expr, i: Expr, e: Expr) -> Expr:
        out = x[p, i, 0, e]
        for r in range(1, reads):
            out = out + x[p, i, r, e]
        return out

    def to_one_place(p: Expr, e: Expr, i: Expr) -> Expr:
        return summed(p, i, e)

    def to_each(p: Expr, i: Expr, _: Expr, e: Expr) -> Expr:
        return summed(p, i, e)

    if read > _MOST * written:
        y = b.reduce("y", (parts, _CHUNK), (each,), to_one_place)
    else:
        y = b.compute("y", (parts, each, writes, _CHUNK), to_each, axes=("p", "i", "w", "e"))
    s = Schedule(b.finish(y))
    if read > _MOST * written:
        s.reorder("y_i", "y_e")
        s.decompose_reduction("y", "y_i")
    s.parallel("y_p")
    vectors, lanes = s.split("y_e", (None, _LANES))
    s.vectorize(lanes)
    s.unroll(vectors)
    return build(s, threads=threads)


class StreamEngine:
    version = ""

    def __init__(self, job: EngineJob, progress: OnProgress) -> None:
        case = CASES[Path(job.model).stem]
        self._bound = stream_kernel(case.read_bytes, case.written_bytes, job.threads).bind()
        self._outputs = len(job.outputs)

    def bind(self, feeds: dict[str, NDArray[Any]]) -> None:
        """It reads numbers of its own."""

    def run(self) -> None:
        self._bound.run()

    def results(self) -> list[None]:
        """Nothing that could be compared."""
        return [None] * self._outputs
