"""One program in which every layer can have every form: what a mixture of forms does to the results, without compiling
it.

Weights are inputs of the program. What a layer reads is chosen when it runs: the tensor, the tensor after it has been
bytes, or after its blocks have been. Bytes are restored to floats, whose sums differ from exact ones by roundings only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tilewright.quantize.forms import BLOCK, LayerForm
from tilewright.quantize.layers import Layer
from tilewright.quantize.model_file import names_read, opset_of, refill
from tilewright.quantize.quantizer import Quantizer
from tilewright.quantize.session import InputSample, LoadModel
from tilewright.support.arrays import Array
from tilewright.support.closing import Closing

Forms: TypeAlias = Mapping[str, LayerForm]  # by the names of layers; others are floats

_PREFIX = "tilewright/"
_STEPS = 127.0  # of a block's largest magnitude


@dataclass(frozen=True, slots=True)
class _Switches:
    """The inputs of the program that say how a layer is computed."""

    weights: str
    bytes: str
    blocks: str
    offset: str


class Simulation(Closing):
    def __init__(
        self,
        model: ModelProto,
        layers: Sequence[Layer],
        quantizer: Quantizer,
        load: LoadModel,
    ) -> None:
        self._layers, self._quantizer = layers, quantizer
        self._switches = {
            layer.name: _Switches(
                *(f"{_PREFIX}{n}.{what}" for what in ("weights", "bytes", "blocks", "offset"))
            )
            for n, layer in enumerate(layers)
        }
        self._operands_of: dict[tuple[str, LayerForm], tuple[Array, Array]] = {}
        self._session = load(_Rewriting(model, layers, quantizer, self._switches).made())

    def close(self) -> None:
        self._session.close()

    def run(self, forms: Forms, sample: InputSample) -> dict[str, Array]:
        """The results of the model where its layers have these forms."""
        feeds: dict[str, Any] = dict(sample)
        for layer in self._layers:
            form, names = forms.get(layer.name, LayerForm.FLOAT), self._switches[layer.name]
            weights, offset = self._operands(layer, form)
            feeds[names.weights], feeds[names.offset] = weights, offset
            feeds[names.bytes] = np.array(form is LayerForm.INT8)
            feeds[names.blocks] = np.array(form.has_blocks)
        return dict(self._session.run(feeds))

    def _operands(self, layer: Layer, form: LayerForm) -> tuple[Array, Array]:
        key = layer.name, form
        if key not in self._operands_of:
            rows, offset = self._quantizer.weights(layer, form).floats, self._quantizer.offset(layer, form)
            self._operands_of[key] = layer.as_stored(rows), layer.across_outputs(offset)
        return self._operands_of[key]


class _Rewriting:
    def __init__(
        self,
        model: ModelProto,
        layers: Sequence[Layer],
        quantizer: Quantizer,
        switches: Mapping[str, _Switches],
    ) -> None:
        self._model, self._quantizer = model, quantizer
        self._layers = {layer.node: (layer, switches[layer.name]) for layer in layers}
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []
        self._inputs: list[Any] = []
        self._restored: dict[tuple[str, bool], str] = {}
        self._count = 0

    def made(self) -> ModelProto:
        out = ModelProto()
        out.CopyFrom(self._model)
        for at, node in enumerate(self._model.graph.node):
            found = self._layers.get(at)
            if found is None:
                self._nodes.append(node)
            else:
                self._switch(node, *found)
        weights = {layer.weight for layer, _ in self._layers.values()}
        needed = {i for n in self._nodes for i in names_read(n)} | {o.name for o in out.graph.output}
        kept = [t for t in out.graph.initializer if t.name in needed or t.name not in weights]
        refill(out.graph.node, self._nodes)
        refill(out.graph.initializer, (*kept, *self._constants))
        out.graph.input.extend(self._inputs)
        del out.graph.value_info[:]  # of values that others make now
        return out

    def _switch(self, node: NodeProto, layer: Layer, names: _Switches) -> None:
        bytes_, blocks = (self._given(n, TensorProto.BOOL, []) for n in (names.bytes, names.blocks))
        x = layer.reads
        if layer.can_be(LayerForm.INT8_BLOCKS):
            x = self._op("Where", blocks, self._after_blocks(layer.reads, layer.products), x)
        x = self._op("Where", bytes_, self._after_bytes(layer.reads), x)
        weights = self._given(names.weights, TensorProto.FLOAT, layer.weights.shape)
        offset = self._given(
            names.offset, TensorProto.FLOAT, layer.across_outputs(np.zeros(layer.outputs)).shape
        )
        made = NodeProto()
        made.CopyFrom(node)
        made.input[0], made.input[1] = x, weights
        total = self._name()
        made.output[0] = total
        self._nodes += [made, helper.make_node("Add", [total, offset], [node.output[0]])]

    def _after_bytes(self, x: str) -> str:
        """Shared by all that read it."""
        key = x, False
        if key not in self._restored:
            scale = self._quantizer.scale(x)
            step, zero = self._constant(scale.step), self._constant(np.uint8(scale.zero))
            codes = self._op("QuantizeLinear", x, step, zero)
            self._restored[key] = self._op("DequantizeLinear", codes, step, zero)
        return self._restored[key]

    def _after_blocks(self, x: str, length: int) -> str:
        key = x, True
        if key not in self._restored:
            shape = self._constant(np.array([-1, length // BLOCK, BLOCK], np.int64))
            parts = self._op("Reshape", x, shape)
            low, high = (self._constant(np.float32(n)) for n in (np.finfo(np.float32).tiny, _STEPS))
            axes = self._constant(np.array([2], np.int64))
            magnitude = self._op("Abs", parts)
            if opset_of(self._model) < 18:
                peak = self._op("ReduceMax", magnitude, axes=[2])
            else:
                peak = self._op("ReduceMax", magnitude, axes)
            step = self._op("Div", self._op("Max", peak, low), high)
            codes = self._op("Round", self._op("Div", parts, step))
            restored = self._op("Mul", codes, step)
            self._restored[key] = self._op("Reshape", restored, self._op("Shape", x))
        return self._restored[key]

    def _given(self, name: str, kind: int, shape: Sequence[int]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def _constant(self, value: Any) -> str:
        name = self._name()
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = self._name()
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def _name(self) -> str:
        self._count += 1
        return f"{_PREFIX}value{self._count}"
