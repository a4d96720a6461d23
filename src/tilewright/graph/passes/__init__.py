"""What happens to a graph between import and lowering, as one list.

Each pass is a function from graph to graph in a file of its own, with a line here. `group` and `lower`, which end the
graph's life, are called by the compiler afterwards: they take the external regions too.
"""

from collections.abc import Callable
from typing import TypeAlias

from tilewright.graph.graph import Graph
from tilewright.graph.passes.attention import prepare_attention
from tilewright.graph.passes.divide_transforms import divide_transforms
from tilewright.graph.passes.drop_unread_columns import drop_unread_columns
from tilewright.graph.passes.eliminate_common import eliminate_common
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fuse_batch_norm import fuse_batch_norm
from tilewright.graph.passes.fuse_padding import fuse_padding
from tilewright.graph.passes.halves_to_floats import halves_to_floats
from tilewright.graph.passes.join_contractions import join_contractions
from tilewright.graph.passes.multiply_by_inverse_roots import multiply_by_inverse_roots
from tilewright.graph.passes.pool_first import pool_first
from tilewright.graph.passes.recognise_activations import recognise_activations
from tilewright.graph.passes.recognise_softmax import recognise_softmax
from tilewright.graph.passes.simplify import simplify
from tilewright.graph.passes.sink_reshapes import sink_reshapes
from tilewright.graph.passes.trim_windows import trim_windows
from tilewright.support.errors import UserError
from tilewright.support.extensions import Additions

GraphPass: TypeAlias = Callable[[Graph], Graph]

PIPELINE: tuple[GraphPass, ...] = (
    fold_constants,  # shape arithmetic and transposed weights become constants
    simplify,  # no-ops go, chains of movement collapse
    divide_transforms,  # before what cleans up contractions and movement
    drop_unread_columns,
    fuse_padding,  # before batch norms look for the convolution
    trim_windows,
    fuse_batch_norm,
    pool_first,  # once nothing is between the convolution and the pool
    recognise_activations,
    recognise_softmax,
    multiply_by_inverse_roots,
    sink_reshapes,  # after activations are one node each: then all operands follow
    simplify,  # reshapes have met
    join_contractions,
    halves_to_floats,  # patterns are recognised, and chains of contractions are not
    prepare_attention,  # once softmax is one node, and nothing but its scores is between two MatMuls
    eliminate_common,  # before grouping, which would hide equal nodes in different groups
    eliminate_dead,  # what the passes above have left behind
)
# Each with the one that it runs before.
ADDED: Additions[tuple[GraphPass, GraphPass]] = Additions("graph pass")


def register_pass(run: GraphPass, before: GraphPass = eliminate_common) -> None:
    """Make a pass of another package known. It runs before the (first) one of ours that is named."""
    if before not in PIPELINE:
        raise UserError(
            f"{before.__name__} is no pass of ours",
            hint=f"one of {', '.join(dict.fromkeys(p.__name__ for p in PIPELINE))}",
        )
    ADDED.add({run.__name__: (run, before)}, {p.__name__ for p in PIPELINE})


def all_passes() -> tuple[GraphPass, ...]:
    """Ours and those of others, in order."""
    passes = list(PIPELINE)
    for run, before in ADDED.items.values():
        passes.insert(passes.index(before), run)
    return tuple(passes)


def prepare(graph: Graph, after: Callable[[str, Graph], None] | None = None) -> Graph:
    """Run the passes in order. `after(name, graph)` sees the graph after each, for printing and checking."""
    for step in all_passes():
        graph = step(graph)
        if after is not None:
            after(step.__name__, graph)
    return graph
