"""What becomes of the numbers of a model: activations by their ranges, weights by their rows; each weight once."""

from collections.abc import Mapping

import numpy as np

from tilewright.quantize.forms import LayerForm
from tilewright.quantize.layers import Layer
from tilewright.quantize.ranges import ByteScale
from tilewright.quantize.weights import MOST, RowWeights, in_form
from tilewright.support.arrays import Array


class Quantizer:
    """`scales` are of the tensors that layers read, by name, and `means` those of their channels. Weights of 8 bits for
    rows are at most `largest`.
    """

    def __init__(
        self, scales: Mapping[str, ByteScale], means: Mapping[str, Array], largest: int = MOST
    ) -> None:
        self._scales, self._means, self._largest = scales, means, largest
        self._weights: dict[tuple[str, LayerForm], RowWeights] = {}

    def scale(self, tensor: str) -> ByteScale:
        return self._scales[tensor]

    def weights(self, layer: Layer, form: LayerForm) -> RowWeights:
        key = layer.name, form
        if key not in self._weights:
            self._weights[key] = in_form(layer.rows, form, self._largest)
        return self._weights[key]

    def offset(self, layer: Layer, form: LayerForm) -> Array:
        """What is added to the results of a layer so that their mean stays what it was with its own weights; zeros if
        nothing can be added.
        """
        if not layer.has_offset:
            return np.zeros(layer.outputs, np.float32)
        mean = self._means[layer.reads]
        lost = (layer.rows - self.weights(layer, form).floats).reshape(layer.outputs, len(mean), -1)
        return (lost.sum(axis=2) @ mean).astype(np.float32)
