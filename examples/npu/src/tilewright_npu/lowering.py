"""A region becomes an image: places in memory, tilings, instructions.

Inputs and outputs of the region are float32 as Tilewright hands them over, channels last; what layers hand to each
other is int8. A value that is needed inside and outside is stored both ways.
"""

from dataclasses import replace
from math import prod

from tilewright.graph.external import No, Order, Region
from tilewright.graph.graph import Value
from tilewright.support.errors import UserError
from tilewright_npu.calibration import Affine, Ranges
from tilewright_npu.constants import Constants
from tilewright_npu.emitter import Emitter
from tilewright_npu.image import Image
from tilewright_npu.layer_code import emit_layer
from tilewright_npu.layers import Layer, layer_of
from tilewright_npu.machine import Machine
from tilewright_npu.tiler import choose
from tilewright_npu.tiling import Numbers, Place
from tilewright_npu.timeline import ENTRY

_ALIGNED = 64  # bytes


def lower(region: Region, ranges: Ranges | None, machine: Machine) -> Image:
    """Without ranges the image takes as long as any, and computes nothing of use."""
    return _Lowering(region, ranges, machine).image()


def layers_of(region: Region) -> list[Layer]:
    """In an order in which they can run: a unit runs when its last node does."""
    index = {n: i for i, n in enumerate(region.graph.nodes)}
    out: list[Layer] = []
    for unit in sorted(region.units, key=lambda u: max(index[n] for n in u.nodes)):
        layer = layer_of(unit)
        if isinstance(layer, No):
            raise UserError(f"{unit.name}: {layer.reason}")
        out.append(layer)
    return out


class _Lowering:
    def __init__(self, region: Region, ranges: Ranges | None, machine: Machine) -> None:
        self._region, self._ranges, self._machine = region, ranges, machine
        self._top = 0  # of the memory in use
        self._layers = layers_of(region)
        self._makers = {layer.result: layer for layer in self._layers}
        read = {v for layer in self._layers for v in (layer.x, layer.residual)}
        graph = region.graph
        self._wide = {v: self._room(4 * v.size) for v in (*graph.inputs, *graph.outputs)}
        self._narrow = {v: self._room(v.size) for v in self._makers if v in read}

    def image(self) -> Image:
        out, graph = Emitter(), self._region.graph
        constants = tuple(self._emit(out, layer) for layer in self._layers)
        inputs, outputs = (tuple(self._wide[v] for v in vs) for vs in (graph.inputs, graph.outputs))
        return Image(self._region.key, self._top, inputs, outputs, constants, tuple(out.code()))

    def _emit(self, out: Emitter, layer: Layer) -> Constants:
        residual = layer.residual
        results = [self._place(layer.result, layer, False)] if layer.result in self._narrow else []
        results += [self._place(layer.result, layer, True)] if layer.result in self._wide else []
        added = None if residual is None else self._place(residual, layer, residual not in self._narrow)
        work = layer.work(self._place(layer.x, layer, layer.x not in self._narrow), added, tuple(results))
        tiling = choose(work, self._machine).tiling
        weights, table = self._room(work.weight_bytes), self._room(work.outputs * ENTRY)
        emit_layer(out, replace(work, weights=weights, table=table, numbers=self._numbers(layer)), tiling)
        x = self._affine(layer.x)
        return Constants(
            *(layer.weights.name, layer.form, layer.alpha, tuple((v.name, f) for v, f in layer.biases)),
            *(weights, table, tiling.outputs, tiling.channels, x.scale, x.zero),
            self._affine(layer.result).scale if layer.result in self._narrow else 0.0,
            0.0 if residual is None else self._affine(residual).scale,
        )

    # ------------------------------------------------------------------------------------------------------ memory

    def _room(self, size: int) -> int:
        at, self._top = self._top, -(-(self._top + size) // _ALIGNED) * _ALIGNED
        return at

    def _place(self, value: Value, layer: Layer, is_wide: bool) -> Place:
        """A value as a layer sees it. Bytes lie as the layer that makes them writes them best."""
        is_turned = self._region.order is Order.CHANNELS_LAST if is_wide else self._makers[value].is_image
        steps = _steps(value.shape, is_turned)
        n, h, w, c = (0 if d is None else steps[d] for d in layer.dims(len(value.shape)))
        return Place((self._wide if is_wide else self._narrow)[value], (n, h, w, c), is_wide)

    # ----------------------------------------------------------------------------------------------------- numbers

    def _affine(self, value: Value) -> Affine:
        return Affine() if self._ranges is None else Affine.of(*self._ranges[value.name])

    def _numbers(self, layer: Layer) -> Numbers:
        x = self._affine(layer.x)
        out = self._affine(layer.result) if layer.result in self._narrow else Affine()
        residual = Affine() if layer.residual is None else self._affine(layer.residual)
        return Numbers(
            factor=1 / x.scale,
            zero=x.zero,
            residual_factor=1 / residual.scale,
            residual_zero=residual.zero,
            out_zero=out.zero,
            low=out.zero if layer.relu else -128,
            relu=layer.relu,
        )


def _steps(shape: tuple[int, ...], is_turned: bool) -> list[int]:
    """How far apart neighbours along each dimension are; if it is turned, dimension 1 is the last in memory."""
    rank = len(shape)
    order = [0, *range(2, rank), 1] if is_turned and rank > 2 else list(range(rank))
    steps = [0] * rank
    for n, d in enumerate(order):
        steps[d] = prod(shape[e] for e in order[n + 1 :])
    return steps
