"""The rows of a corpus: kernels, and schedules of them that were timed.

Rows are addressed by content. A kernel is the text of its Func and which of its params are constants; a trial adds the
family and knobs of the schedule, and the digest of the code that was run. Nothing in them depends on the version of
the compiler, so that an edited compiler still finds its rows: features are computed from the text when they are needed,
and a schedule that no family offers any more is left out then.
"""

from dataclasses import dataclass
from typing import NewType

KernelKey = NewType("KernelKey", str)  # `driver.passes.task_key`


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A Func. `program` is the first in which it was seen: splits are by program."""

    key: KernelKey
    text: str  # as `print_func` has it
    constants: tuple[str, ...]  # names of params
    program: str
    source: str  # "network", or the generated family that the program is of


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A schedule of a kernel that was timed inside of a program, in turns with the program as it was compiled: weights
    are as cold there as in a run, and caches are as the kernels before it leave them.
    """

    kernel: KernelKey
    program: str
    machine: str  # processor, and digest of the target
    threads: int
    family: str
    decisions: str  # the knobs by name, as JSON with sorted keys
    code: str  # digest of the objects that were run; empty if there were none
    status: str  # `TrialStatus`
    seconds: float  # of the compiled schedule, times the median ratio; nan if it failed
    compiled_seconds: float  # of the schedule that the program was compiled with, at the same sites
    ratios: tuple[float, ...]  # over what was compiled, run by run
    versions: str

    @property
    def noise(self) -> float:
        """Of the median ratio, relative: the half-width of its 68 % interval, from the spread of the ratios."""
        n = len(self.ratios)
        if n < 2:
            return float("nan")
        ordered = sorted(self.ratios)
        low, high = ordered[int(0.16 * (n - 1))], ordered[-1 - int(0.16 * (n - 1))]
        middle = ordered[n // 2]
        return 1.25 * (high - low) / 2 / middle / n**0.5
