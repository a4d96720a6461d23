"""Timed schedules with their features: what models are trained on and judged by."""

from dataclasses import dataclass

from tilewright.learned.candidates import KernelCandidates
from tilewright.support.arrays import FloatArray
from tilewright.training.rows import KernelKey


@dataclass(frozen=True, slots=True, eq=False)
class KernelSamples:
    """The timed schedules of one kernel, in one program, on one machine, with one number of threads."""

    key: KernelKey
    program: str
    source: str  # as in `KernelRow`
    kind: str  # what it computes: "convolution", "stem", "depthwise", "attention", "gemm", "memory-bound", …
    threads: int
    candidates: KernelCandidates
    seconds: FloatArray
    noise: FloatArray  # of the seconds, relative

    def __len__(self) -> int:
        return len(self.seconds)
