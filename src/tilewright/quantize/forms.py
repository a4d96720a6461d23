"""The forms that a layer's weights, and what they are multiplied with, may have."""

from collections.abc import Mapping
from enum import StrEnum

BLOCK = 32  # weights that share a scale, and activations


class LayerForm(StrEnum):
    FLOAT = "float32"
    INT8 = "int8"  # activations u8 with a scale for the tensor, weights s8 with one for each output
    INT8_BLOCKS = (
        "int8 blocks"  # weights and activations in blocks along the sums, each with a scale of its own
    )
    INT4_BLOCKS = "int4 blocks"  # the same with weights of 4 bits
    BF16 = "bf16"  # weights in 16 bits; sums and activations stay as they are

    @property
    def has_blocks(self) -> bool:
        return self in (LayerForm.INT8_BLOCKS, LayerForm.INT4_BLOCKS)

    @property
    def bits(self) -> int:
        """Of a weight."""
        match self:
            case LayerForm.FLOAT:
                return 32
            case LayerForm.BF16:
                return 16
            case LayerForm.INT8 | LayerForm.INT8_BLOCKS:
                return 8
            case LayerForm.INT4_BLOCKS:
                return 4


ALLOWED: Mapping[str, tuple[LayerForm, ...]] = {
    "auto": (LayerForm.INT8, LayerForm.INT8_BLOCKS, LayerForm.INT4_BLOCKS, LayerForm.BF16),
    "8": (LayerForm.INT8, LayerForm.INT8_BLOCKS),
    "4": (LayerForm.INT4_BLOCKS,),
}
"""The forms besides floats, by what `--bits` says."""
