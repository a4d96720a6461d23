"""All schedule steps. A trace can hold these; a new step is one file and one line here."""

from tilewright.schedule.step import Step
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Parallel, Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.rfactor import Rfactor
from tilewright.schedule.steps.split import Split

STEPS: tuple[type[Step], ...] = (
    # loops
    Split,
    Fuse,
    Reorder,
    LoopPartition,
    Parallel,
    Vectorize,
    Unroll,
    # reductions
    DecomposeReduction,
    Rfactor,
)
