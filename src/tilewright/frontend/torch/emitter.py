"""An ONNX model under construction, and what functions that write operators see of it.

A function of `frontend/torch/aten` gets a `NodeEmitter` and the arguments of one call, as the operator's schema has
them: tensors are `Tensor`s, sizes that are known only when the model runs are `DynamicSize`s, anything else is as it
was. It writes nodes and returns the name of the result, or a tuple of names.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from tilewright.frontend.onnx.held_model import HeldModel, weight_token
from tilewright.frontend.torch.element_types import is_float, numpy_type, onnx_element_type, promoted
from tilewright.frontend.torch.unsupported import UnsupportedOperator
from tilewright.support.arrays import Array

OPSET = 24
_IR_VERSION = 11
_BESIDE = 4096  # bytes; larger constants are held beside the protobuf


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the ONNX graph; extents of `shape` that are no int are open. `dtype` is PyTorch's, as it prints."""

    name: str
    dtype: str
    shape: tuple[Any, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def axis(self, axis: int) -> int:
        """Counted from the first."""
        return axis + max(self.rank, 1) if axis < 0 else axis

    def axes(self, axes: "int | Sequence[int] | None") -> list[int]:
        """Counted from the first; all of them if there are none."""
        if axes is None or (not isinstance(axes, int) and not axes):
            return list(range(self.rank))
        return [self.axis(a) for a in ([axes] if isinstance(axes, int) else axes)]

    def extent(self, axis: int) -> int:
        """UnsupportedOperator if it is open."""
        n = self.shape[axis]
        if not isinstance(n, int):
            raise UnsupportedOperator(f"an open extent ({n}) where a number is needed")
        return n


@dataclass(frozen=True, slots=True)
class DynamicSize:
    """A number that is known when the model runs: the only element of an int64 vector."""

    name: str


Extent: TypeAlias = int | DynamicSize
Written: TypeAlias = "str | DynamicSize | tuple[str | None, ...]"


class NodeEmitter:
    """Nodes are named after where in the PyTorch model they come from (`origin`)."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._weights: dict[bytes, Array] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._names: set[str] = set()
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self.origin = ""
        self.outs: tuple[Tensor, ...] = ()  # what the call being written gives: types and shapes

    # ------------------------------------------------------------------------------------------------- nodes

    def op(self, op_type: str, *inputs: "str | Tensor | DynamicSize | None", **attrs: Any) -> str:
        """A node with one output."""
        return self.ops(1, op_type, *inputs, **attrs)[0]

    def ops(
        self, count: int, op_type: str, *inputs: "str | Tensor | DynamicSize | None", **attrs: Any
    ) -> list[str]:
        names = [x if isinstance(x, str) else "" if x is None else x.name for x in inputs]
        while names and not names[-1]:
            names.pop()
        title = self.origin or op_type
        outputs = [self._fresh(title) for _ in range(count)]
        given = {k: v for k, v in attrs.items() if v is not None}
        node = helper.make_node(op_type, names, outputs, name=outputs[0], **given)
        self._nodes.append(node)
        return outputs

    def cast(self, x: "str | Tensor", source: str, target: object) -> str:
        name = x if isinstance(x, str) else x.name
        if source == str(target):
            return name
        return self.op("Cast", name, to=onnx_element_type(target))

    def to(self, x: Tensor, target: object) -> str:
        return self.cast(x, x.dtype, target)

    def _fresh(self, title: str) -> str:
        name, i = title, 0
        while name in self._names:
            i += 1
            name = f"{title}.{i}"
        self._names.add(name)
        return name

    # --------------------------------------------------------------------------------------------- constants

    def number(self, value: "bool | int | float", dtype: object) -> str:
        """A constant of rank 0."""
        with np.errstate(over="ignore"):
            return self.constant(np.array(value).astype(numpy_type(dtype)))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def constant(self, array: Array) -> str:
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (array.dtype.name, array.shape, array.tobytes()) if array.nbytes <= _BESIDE else None
        if key is not None and key in self._constants:
            return self._constants[key]
        name = self._fresh("constant")
        self._keep(name, array)
        if key is not None:
            self._constants[key] = name
        return name

    def weight(self, name: str, array: Array) -> str:
        """A constant with a name of its own; a large one is not copied."""
        fresh = self._fresh(name)
        self._keep(fresh, array)
        return fresh

    def _keep(self, name: str, array: Array) -> None:
        tensor = TensorProto(
            name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype)
        )
        if array.nbytes > _BESIDE:
            tensor.raw_data = weight_token(len(self._weights))
            self._weights[tensor.raw_data] = array
        else:
            tensor.raw_data = np.ascontiguousarray(array).tobytes()
        self._initializers.append(tensor)

    # ------------------------------------------------------------------------------------------------- sizes

    def size(self, x: Tensor, axis: int) -> Extent:
        """An extent of a tensor, as a number if it is one."""
        axis = x.axis(axis)
        n = x.shape[axis]
        return n if isinstance(n, int) else DynamicSize(self.op("Shape", x, start=axis, end=axis + 1))

    def sizes(self, extents: Iterable[Any]) -> str:
        """A vector of extents."""
        parts = list(extents)
        if all(isinstance(n, int) for n in parts):
            return self.integers(*parts)
        names = [n.name if isinstance(n, DynamicSize) else self.integers(n) for n in parts]
        return names[0] if len(names) == 1 else self.op("Concat", *names, axis=0)

    def shape_of(self, x: Tensor) -> str:
        """The shape of a tensor, as a vector."""
        return self.sizes(self.size(x, i) for i in range(x.rank))

    def counted(self, n: Extent) -> str:
        """A size, or a number, as an int64 vector of one."""
        return n.name if isinstance(n, DynamicSize) else self.integers(n)

    # ---------------------------------------------------------------------------------------------- operands

    @property
    def out(self) -> Tensor:
        """What the call gives first."""
        return self.outs[0]

    def common(self, *operands: "Tensor | DynamicSize | bool | int | float") -> tuple[list[str], str]:
        """Operands brought to the type that PyTorch computes them in, and that type."""
        tensors = [(x.dtype, x.rank) for x in operands if isinstance(x, Tensor)]
        numbers = [x for x in operands if isinstance(x, bool | int | float)]
        numbers += [1 for x in operands if isinstance(x, DynamicSize)]
        dtype = promoted(tensors, numbers)
        return [self.operand(x, dtype) for x in operands], dtype

    def operand(self, x: "Tensor | DynamicSize | bool | int | float", dtype: object) -> str:
        if isinstance(x, Tensor):
            return self.to(x, dtype)
        if isinstance(x, DynamicSize):
            scalar = self.op("Reshape", x, self.constant(np.array([], np.int64)))
            return self.cast(scalar, "torch.int64", dtype)
        return self.number(x, dtype)

    def floating(self, x: Tensor) -> tuple[str, str]:
        """A tensor as floats, as functions like exp take it, and their type."""
        dtype = x.dtype if is_float(x.dtype) else "torch.float32"
        return self.to(x, dtype), dtype

    # ------------------------------------------------------------------------------------------------- model

    def reserve(self, name: str) -> str:
        return self._fresh(name)

    def input(self, name: str, dtype: object, shape: Sequence[int | str]) -> None:
        self._inputs.append(helper.make_tensor_value_info(name, onnx_element_type(dtype), list(shape)))

    def output(self, name: str, value: str, dtype: object) -> None:
        """A result under a name that nothing else has."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        info = ValueInfoProto(name=name)
        info.type.tensor_type.elem_type = onnx_element_type(dtype)
        self._outputs.append(info)

    def model(self, title: str) -> HeldModel:
        graph = GraphProto(
            name=title,
            node=self._nodes,
            initializer=self._initializers,
            input=self._inputs,
            output=self._outputs,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        proto = ModelProto(
            ir_version=_IR_VERSION, producer_name="tilewright", graph=graph, opset_import=opsets
        )
        return HeldModel(proto, self._weights)

    def mark(self) -> int:
        """Where the graph ends now, for `back_to`."""
        return len(self._nodes)

    def back_to(self, mark: int) -> None:
        """Drop the nodes after it: what a call had written before it turned out to be unsupported."""
        del self._nodes[mark:]
