"""The model in which layers have their forms, by operators that other engines know too.

int8 is QuantizeLinear and DequantizeLinear before the layer's own operator; blocks are com.microsoft.MatMulNBits with
accuracy_level 4, which quantises activations by the same blocks; bf16 is a Cast of the weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tilewright.quantize.forms import BLOCK, LayerForm
from tilewright.quantize.layers import Layer
from tilewright.quantize.model_file import names_read, opset_of, refill
from tilewright.quantize.quantizer import Quantizer
from tilewright.support.arrays import Array

_CONTRIB = "com.microsoft"
_HALVES = 13  # the first opset whose Cast knows bf16
_PER_AXIS = 13  # the first opset whose own QuantizeLinear and DequantizeLinear have an axis
_BYTES = 4  # accuracy_level of MatMulNBits: activations are bytes


def quantize_of(tensor: str) -> str:
    """The name of the node that makes bytes of what several layers may read."""
    return f"{tensor}/quantize"


def can_write(model: ModelProto, form: LayerForm) -> bool:
    """Are there operators for the form, of the version that the model uses?"""
    return form is not LayerForm.BF16 or opset_of(model) >= _HALVES


def write_forms(
    model: ModelProto, layers: Sequence[Layer], forms: Mapping[str, LayerForm], quantizer: Quantizer
) -> ModelProto:
    return _Writer(model, layers, forms, quantizer).made()


class _Writer:
    """Nodes that are made for a layer have its name, a slash, and what they are for."""

    def __init__(
        self, model: ModelProto, layers: Sequence[Layer], forms: Mapping[str, LayerForm], quantizer: Quantizer
    ) -> None:
        self._model, self._quantizer, self._forms = model, quantizer, forms
        self._layers = {
            layer.node: layer
            for layer in layers
            if forms.get(layer.name, LayerForm.FLOAT) is not LayerForm.FLOAT
        }
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}
        self._bytes: dict[str, str] = {}  # tensors that are quantised: what restores them
        self._domain = "" if opset_of(model) >= _PER_AXIS else _CONTRIB

    def made(self) -> ModelProto:
        for at, node in enumerate(self._model.graph.node):
            layer = self._layers.get(at)
            if layer is None:
                self._nodes.append(node)
                continue
            match self._forms[layer.name]:
                case LayerForm.INT8:
                    self._write_bytes(node, layer)
                case LayerForm.INT8_BLOCKS | LayerForm.INT4_BLOCKS as form:
                    self._write_blocks(node, layer, form)
                case LayerForm.BF16:
                    self._write_halves(node, layer)
                case LayerForm.FLOAT:
                    self._nodes.append(node)
        out = ModelProto()
        out.CopyFrom(self._model)
        needed = {i for n in self._nodes for i in names_read(n)} | {o.name for o in out.graph.output}
        given = {i.name for i in out.graph.input}
        kept = [t for t in out.graph.initializer if t.name in needed or t.name in given]
        refill(out.graph.initializer, (*kept, *self._constants.values()))
        refill(out.graph.node, self._nodes)
        if any(n.domain == _CONTRIB for n in self._nodes) and not any(
            o.domain == _CONTRIB for o in out.opset_import
        ):
            out.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
        return out

    # ------------------------------------------------------------------------------------------------------- forms

    def _write_bytes(self, node: NodeProto, layer: Layer) -> None:
        scale, weights = self._quantizer.scale(layer.reads), self._quantizer.weights(layer, LayerForm.INT8)
        assert weights.scales is not None
        codes = self._constant(layer, "codes", layer.as_stored(weights.codes))
        scales = self._constant(layer, "scales", weights.scales)
        zeros = self._constant(layer, "zeros", np.zeros(layer.outputs, np.int8))
        restored = self._op(
            layer, "DequantizeLinear", "weights", codes, scales, zeros, domain=self._domain, axis=layer.axis
        )
        inputs = [self._restored(layer.reads), restored]
        bias = self._whole_bias(layer, scale.step * weights.scales) or self._bias(node, layer, LayerForm.INT8)
        self._nodes.append(_with_inputs(node, [*inputs, *([bias] if bias else [])]))

    def _write_blocks(self, node: NodeProto, layer: Layer, form: LayerForm) -> None:
        weights = self._quantizer.weights(layer, form)
        assert weights.scales is not None
        blocks = layer.products // BLOCK
        codes = self._constant(layer, "codes", weights.codes.reshape(layer.outputs, blocks, -1))
        scales = self._constant(layer, "scales", weights.scales.reshape(-1))
        bias = self._bias(node, layer, form)
        total = f"{layer.name}/total" if bias else node.output[0]
        attributes: dict[str, Any] = {"K": layer.products, "N": layer.outputs, "bits": form.bits}
        self._nodes.append(
            helper.make_node(
                "MatMulNBits",
                [layer.reads, codes, scales],
                [total],
                name=layer.name,
                domain=_CONTRIB,
                block_size=BLOCK,
                accuracy_level=_BYTES,
                **attributes,
            )
        )
        if bias:
            self._nodes.append(
                helper.make_node("Add", [total, bias], [node.output[0]], name=f"{layer.name}/add")
            )

    def _write_halves(self, node: NodeProto, layer: Layer) -> None:
        weights = self._quantizer.weights(layer, LayerForm.BF16)
        halves = self._constant(layer, "halves", layer.as_stored(weights.codes))
        wide = self._op(layer, "Cast", "weights", halves, to=TensorProto.FLOAT)
        bias = self._bias(node, layer, LayerForm.BF16)
        self._nodes.append(_with_inputs(node, [layer.reads, wide, *([bias] if bias else [])]))

    # ----------------------------------------------------------------------------------------------------- their parts

    def _restored(self, tensor: str) -> str:
        """The tensor after it has been bytes; shared by all layers that read it."""
        if tensor not in self._bytes:
            scale = self._quantizer.scale(tensor)
            step = self._stored(f"{tensor}/step", np.float32(scale.step))
            zero = self._stored(f"{tensor}/zero", np.uint8(scale.zero))
            made, back = f"{tensor}/bytes", f"{tensor}/restored"
            for kind, source, result, name in (
                ("QuantizeLinear", tensor, made, quantize_of(tensor)),
                ("DequantizeLinear", made, back, f"{tensor}/dequantize"),
            ):
                self._nodes.append(helper.make_node(kind, [source, step, zero], [result], name=name))
            self._bytes[tensor] = back
        return self._bytes[tensor]

    def _bias(self, node: NodeProto, layer: Layer, form: LayerForm) -> str:
        """What is added to the sums, and what the form takes off; nothing if there is neither."""
        if not layer.has_offset:
            return node.input[2] if len(node.input) > 2 else ""
        return self._constant(layer, "bias", self._added(layer, form))

    def _whole_bias(self, layer: Layer, steps: Array) -> str:
        """The same as whole numbers of the units of the sums, as other engines want it beside bytes; nothing if it is
        not known, or too large for them.
        """
        if not layer.has_offset:
            return ""
        whole = np.rint(self._added(layer, LayerForm.INT8).astype(np.float64) / steps)
        if np.abs(whole).max(initial=0.0) > np.iinfo(np.int32).max:
            return ""
        parts = {"codes": whole.astype(np.int32), "scales": steps, "zeros": np.zeros(len(steps), np.int32)}
        names = [self._constant(layer, f"bias.{what}", array) for what, array in parts.items()]
        return self._op(layer, "DequantizeLinear", "bias", *names, domain=self._domain, axis=0)

    def _added(self, layer: Layer, form: LayerForm) -> Array:
        offset = self._quantizer.offset(layer, form)
        return offset if layer.bias is None else layer.bias + offset

    def _op(
        self, layer: Layer, kind: str, what: str, *inputs: str, domain: str = "", **attributes: Any
    ) -> str:
        name = f"{layer.name}/{what}"
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def _constant(self, layer: Layer, what: str, value: Array) -> str:
        return self._stored(f"{layer.name}/{what}", value)

    def _stored(self, name: str, value: Any) -> str:
        self._constants[name] = numpy_helper.from_array(np.asarray(value), name)
        return name


def _with_inputs(node: NodeProto, inputs: Iterable[str]) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    refill(made.input, inputs)
    return made
