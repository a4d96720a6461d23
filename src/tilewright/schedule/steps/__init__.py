"""All schedule steps. A trace can hold these; a new step is one file and one line here."""

from tilewright.schedule.step import Step
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.annotate import Annotate
from tilewright.schedule.steps.bind import Bind
from tilewright.schedule.steps.blockize import Blockize
from tilewright.schedule.steps.cache_read import CacheRead
from tilewright.schedule.steps.cache_write import CacheWrite
from tilewright.schedule.steps.coarsen import Coarsen
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.compute_inline import ComputeInline
from tilewright.schedule.steps.decompose_padding import DecomposePadding
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.distribute import Distribute
from tilewright.schedule.steps.drop_unit_iters import DropUnitIters
from tilewright.schedule.steps.fill_border import FillBorder
from tilewright.schedule.steps.fold_padding import FoldPadding
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.fuse_iters import FuseIters
from tilewright.schedule.steps.iterate_over import IterateOver
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.schedule.steps.loop_kind import Parallel, Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.merge import Merge
from tilewright.schedule.steps.online_softmax import OnlineSoftmax
from tilewright.schedule.steps.pad_einsum import PadEinsum
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.reverse_compute_at import ReverseComputeAt
from tilewright.schedule.steps.reverse_compute_inline import ReverseComputeInline
from tilewright.schedule.steps.rfactor import Rfactor
from tilewright.schedule.steps.rolling_buffer import RollingBuffer
from tilewright.schedule.steps.sample_categorical import SampleCategorical
from tilewright.schedule.steps.sample_compute_location import SampleComputeLocation
from tilewright.schedule.steps.sample_perfect_tile import SamplePerfectTile
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.stage import Stage
from tilewright.schedule.steps.store_at import StoreAt
from tilewright.schedule.steps.tensorize import Tensorize
from tilewright.schedule.steps.transform_block_layout import TransformBlockLayout
from tilewright.schedule.steps.transform_layout import TransformLayout

STEPS: tuple[type[Step], ...] = (
    # loops
    Split,
    Fuse,
    Reorder,
    LoopPartition,
    Distribute,
    Merge,
    AddUnitLoop,
    Parallel,
    Coarsen,
    Vectorize,
    Unroll,
    Bind,
    Annotate,
    # reductions
    DecomposeReduction,
    Rfactor,
    OnlineSoftmax,
    # where a block runs
    ComputeAt,
    ReverseComputeAt,
    ComputeInline,
    ReverseComputeInline,
    # what a block runs over, and the buffers it uses
    Blockize,
    TransformBlockLayout,
    FuseIters,
    DropUnitIters,
    IterateOver,
    Reindex,
    Stage,
    CacheRead,
    CacheWrite,
    SetScope,
    TransformLayout,
    FoldPadding,
    StoreAt,
    PadEinsum,
    DecomposePadding,
    FillBorder,
    RollingBuffer,
    # what is one kernel
    JoinFuncs,
    # tensor instructions
    Tensorize,
    # decisions of a search
    SamplePerfectTile,
    SampleCategorical,
    SampleComputeLocation,
)
