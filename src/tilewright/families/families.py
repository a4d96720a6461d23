"""All kernel families. Where several fit a Func, the cheapest point of all is the default.

Families whose space takes long to span come after those that may leave them nothing to gain (`ScheduleRequest.limit`).
"""

from tilewright.families.bands.apart import apart_space
from tilewright.families.bands.space import bands_space
from tilewright.families.block_products.space import block_products_space
from tilewright.families.chain.space import chain_space
from tilewright.families.family import Family
from tilewright.families.gemm.space import gemm_space
from tilewright.families.ordered.space import ordered_space
from tilewright.families.recurrent.space import recurrent_space
from tilewright.families.split_k.space import split_k_space
from tilewright.families.stream.map_space import map_space
from tilewright.families.stream.space import stream_space
from tilewright.families.tensor.space import tensor_space
from tilewright.families.tiles.space import tiles_space
from tilewright.families.window.space import window_space
from tilewright.families.winograd.space import winograd_space
from tilewright.support.extensions import Additions

FAMILIES: tuple[Family, ...] = (
    recurrent_space,
    winograd_space,
    ordered_space,
    bands_space,
    apart_space,
    chain_space,
    block_products_space,
    split_k_space,
    tiles_space,
    gemm_space,
    window_space,
    stream_space,
    map_space,
    tensor_space,
)
ADDED: Additions[Family] = Additions("kernel family")


def register_family(name: str, family: Family) -> None:
    """Make a family of another package known. `name` is that of its spaces (`Space.family`)."""
    ADDED.add({name: family}, ())


def all_families() -> tuple[Family, ...]:
    """Ours, then those of others, which so know what there is to beat (`ScheduleRequest.limit`)."""
    return (*FAMILIES, *ADDED.items.values())
