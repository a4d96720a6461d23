"""All kernel families. Where several fit a Func, the cheapest point of all is the default.

Families whose space takes long to span come after those that may leave them nothing to gain (`Request.limit`).
"""

from tilewright.families.attention.space import attention_space
from tilewright.families.bands.apart import apart_space
from tilewright.families.bands.space import bands_space
from tilewright.families.elementwise.space import elementwise_space
from tilewright.families.family import Family
from tilewright.families.gemm.space import gemm_space
from tilewright.families.ordered.space import ordered_space
from tilewright.families.recurrent.space import recurrent_space
from tilewright.families.reduce.space import reduce_space
from tilewright.families.split_k.space import split_k_space
from tilewright.families.tensor.space import tensor_space
from tilewright.families.window.space import window_space
from tilewright.families.winograd.space import winograd_space

FAMILIES: tuple[Family, ...] = (
    recurrent_space,
    winograd_space,
    ordered_space,
    bands_space,
    apart_space,
    attention_space,
    split_k_space,
    gemm_space,
    window_space,
    reduce_space,
    elementwise_space,
    tensor_space,
)
