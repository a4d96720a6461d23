"""All schedule steps: what is imported here is what a trace can hold. A new step is one file and one line here."""

from tilewright.schedule.step import Step
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop as AddUnitLoop
from tilewright.schedule.steps.annotate import Annotate as Annotate
from tilewright.schedule.steps.attach import Attach as Attach
from tilewright.schedule.steps.bind import Bind as Bind
from tilewright.schedule.steps.blockize import Blockize as Blockize
from tilewright.schedule.steps.cache_read import CacheRead as CacheRead
from tilewright.schedule.steps.cache_write import CacheWrite as CacheWrite
from tilewright.schedule.steps.coarsen import Coarsen as Coarsen
from tilewright.schedule.steps.compute_at import ComputeAt as ComputeAt
from tilewright.schedule.steps.compute_inline import ComputeInline as ComputeInline
from tilewright.schedule.steps.decompose_padding import DecomposePadding as DecomposePadding
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction as DecomposeReduction
from tilewright.schedule.steps.distribute import Distribute as Distribute
from tilewright.schedule.steps.drop_unit_iters import DropUnitIters as DropUnitIters
from tilewright.schedule.steps.fill_border import FillBorder as FillBorder
from tilewright.schedule.steps.fold_padding import FoldPadding as FoldPadding
from tilewright.schedule.steps.fuse import Fuse as Fuse
from tilewright.schedule.steps.fuse_iters import FuseIters as FuseIters
from tilewright.schedule.steps.iterate_over import IterateOver as IterateOver
from tilewright.schedule.steps.join_funcs import JoinFuncs as JoinFuncs
from tilewright.schedule.steps.loop_kind import Parallel as Parallel
from tilewright.schedule.steps.loop_kind import Unroll as Unroll
from tilewright.schedule.steps.loop_kind import Vectorize as Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition as LoopPartition
from tilewright.schedule.steps.merge import Merge as Merge
from tilewright.schedule.steps.pad_einsum import PadEinsum as PadEinsum
from tilewright.schedule.steps.reindex import Reindex as Reindex
from tilewright.schedule.steps.reorder import Reorder as Reorder
from tilewright.schedule.steps.reverse_compute_at import ReverseComputeAt as ReverseComputeAt
from tilewright.schedule.steps.reverse_compute_inline import ReverseComputeInline as ReverseComputeInline
from tilewright.schedule.steps.rfactor import Rfactor as Rfactor
from tilewright.schedule.steps.rolling_buffer import RollingBuffer as RollingBuffer
from tilewright.schedule.steps.rolling_update import RollingUpdate as RollingUpdate
from tilewright.schedule.steps.sample_categorical import SampleCategorical as SampleCategorical
from tilewright.schedule.steps.sample_compute_location import SampleComputeLocation as SampleComputeLocation
from tilewright.schedule.steps.sample_perfect_tile import SamplePerfectTile as SamplePerfectTile
from tilewright.schedule.steps.set_scope import SetScope as SetScope
from tilewright.schedule.steps.split import Split as Split
from tilewright.schedule.steps.stage import Stage as Stage
from tilewright.schedule.steps.store_at import StoreAt as StoreAt
from tilewright.schedule.steps.stream_elements import StreamElements as StreamElements
from tilewright.schedule.steps.stream_rows import StreamRows as StreamRows
from tilewright.schedule.steps.stream_windows import StreamWindows as StreamWindows
from tilewright.schedule.steps.tensorize import Tensorize as Tensorize
from tilewright.schedule.steps.transform_block_layout import TransformBlockLayout as TransformBlockLayout
from tilewright.schedule.steps.transform_layout import TransformLayout as TransformLayout
from tilewright.support.extensions import Additions

STEPS: tuple[type[Step], ...] = tuple(
    c for c in list(globals().values()) if isinstance(c, type) and issubclass(c, Step) and c is not Step
)
ADDED: Additions[type[Step]] = Additions("step")


def register_step(step: type[Step]) -> None:
    """Make a step of another package known: traces can hold it then, and be read again."""
    ADDED.add({step.__name__: step}, {s.__name__ for s in STEPS})


def step_classes() -> dict[str, type[Step]]:
    """All steps by name."""
    return {s.__name__: s for s in STEPS} | ADDED.items
