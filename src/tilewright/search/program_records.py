"""What is recorded of whole programs: the best of a model, kernels timed inside of it, and how far a tuning is."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.families.space import KnobValues

RUNNING, DONE, INTERRUPTED = "running", "done", "interrupted"  # of a tuning


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """The outcome of tuning a program: the trace that it is compiled with from now on. Empty: stay with the default.

    `model` is a key by content that the caller makes: of the graph as it is compiled, of accuracy, and of whatever else
    the trace depends on.
    """

    model: str
    threads: int
    trace: str
    seconds: float  # of a run; infinite if it was not measured
    untuned_seconds: float
    status: str = "ok"
    versions: str = f"tilewright {__version__}"
    is_stale: bool = field(default=False, compare=False)  # recorded with other rules; not stored


@dataclass(frozen=True, slots=True)
class InsideTrial:
    """One kernel of a program with another schedule, as long as the program or the kernel took with it."""

    model: str
    threads: int
    task: str
    rule: str
    decisions: "KnobValues"
    seconds: float | None  # None: it failed
    default_seconds: float | None  # of the default at the same time
    status: str = "ok"
    message: str = ""
    is_stale: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """How far a tuning is. Its last row counts."""

    tuning: str  # which one
    model: str  # key by content of what is tuned
    threads: int
    budget: float  # seconds
    used: float  # seconds of it
    trials: int
    status: str = RUNNING
    versions: str = f"tilewright {__version__}"
