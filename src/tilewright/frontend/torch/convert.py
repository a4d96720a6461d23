"""An FX graph of ATen operators becomes an ONNX model.

Every call is written by the function that `table.py` has for its operator. Calls that cannot be written are collected
with the reason, and then there is no model: callers divide the graph (`dynamo/partition.py`) and convert the parts.
Placeholders that are given arrays become weights; open extents become named dimensions, and numbers that depend on
them nodes over the shapes of inputs.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, cast

from tilewright.frontend.onnx.held_model import HeldModel
from tilewright.frontend.torch.element_types import onnx_element_type
from tilewright.frontend.torch.emitter import DynamicSize, Extent, NodeEmitter, Tensor, Written
from tilewright.frontend.torch.table import OPERATORS
from tilewright.frontend.torch.unsupported import UnsupportedOperator
from tilewright.support.arrays import Array

AsArray: TypeAlias = Callable[[Any], Array]


@dataclass(frozen=True, slots=True)
class FromInput:
    """A result that is a placeholder of the graph itself."""

    index: int


@dataclass(frozen=True, slots=True)
class FromModel:
    """A result that is an output of the model; a number if it `is_size`."""

    index: int
    is_size: bool = False


@dataclass(frozen=True, slots=True)
class Fixed:
    """A result that is the same always: None, or a number."""

    value: Any


Result: TypeAlias = FromInput | FromModel | Fixed


@dataclass(frozen=True, slots=True)
class UnsupportedCall:
    """A call that PyTorch has to run."""

    node: str
    operator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.reason})"


@dataclass(frozen=True, slots=True, eq=False)
class ConvertedGraph:
    """`model` is None if there are unsupported calls. `inputs` are the placeholders that the model takes, in order, and
    `names` what it calls them; `dims` has the open dimensions of its inputs by name, each with the least and the most
    that PyTorch knows of it (None if nothing).
    """

    model: HeldModel | None
    inputs: tuple[int, ...]
    names: tuple[str, ...]
    results: tuple[Result, ...]
    dims: Mapping[str, tuple[int, int | None]]
    unsupported: tuple[UnsupportedCall, ...]


def convert_graph(
    graph: Any,
    attributes: Callable[[str], Any],
    tensor_array: AsArray,
    weights: Mapping[int, Any] | None = None,
    numbers: Mapping[int, int] | None = None,
    input_names: Mapping[int, str] | None = None,
    weight_names: Mapping[int, str] | None = None,
) -> ConvertedGraph:
    """`graph` is a torch.fx.Graph. `weights` are tensors of placeholders by number, `numbers` the values of those that
    are ints. `attributes` gives the tensor that a `get_attr` node names.
    """
    return _Conversion(
        graph, attributes, tensor_array, weights or {}, numbers or {}, input_names or {}, weight_names or {}
    ).run()


def operator_name(target: Any) -> str:
    """`aten.add.Tensor`, `operator.mul`, `torch.sym_max`."""
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", "")
    if module in ("_operator", "operator"):
        return f"operator.{name}"
    if module == "torch" or name.startswith("sym_"):
        return f"torch.{name}"
    return str(target)


@cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(OPERATORS[name])


@dataclass(slots=True)
class _Conversion:
    graph: Any
    attributes: Callable[[str], Any]
    tensor_array: AsArray
    weights: Mapping[int, Any]
    numbers: Mapping[int, int]
    input_names: Mapping[int, str]
    weight_names: Mapping[int, str]
    emitter: NodeEmitter = field(default_factory=NodeEmitter)
    values: dict[Any, Any] = field(default_factory=dict[Any, Any])
    inputs: list[int] = field(default_factory=list[int])
    names: list[str] = field(default_factory=list[str])
    dims: dict[str, tuple[int, int | None]] = field(default_factory=dict[str, tuple[int, int | None]])
    symbols: dict[str, tuple[Tensor, int]] = field(default_factory=dict[str, tuple[Tensor, int]])
    unsupported: list[UnsupportedCall] = field(default_factory=list[UnsupportedCall])

    def run(self) -> ConvertedGraph:
        nodes = list(self.graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        for i, node in enumerate(placeholders):
            self._placeholder(i, node)
        for i, node in enumerate(placeholders):
            if node not in self.values:
                self.values[node] = self._number(i, node)
        for node in nodes:
            match node.op:
                case "get_attr":
                    self._attribute(node)
                case "call_function":
                    self._call(node)
                case "call_method" | "call_module":
                    self._fail(node, f"a call of {node.target}, which is no operator of ATen")
                case _:
                    pass
        results = () if self.unsupported else self._results(nodes[-1], placeholders)
        model = None if self.unsupported else self.emitter.model("torch")
        return ConvertedGraph(
            model,
            tuple(self.inputs),
            tuple(self.names),
            results,
            self.dims,
            tuple(self.unsupported),
        )

    # ------------------------------------------------------------------------------------------------ inputs

    def _placeholder(self, i: int, node: Any) -> None:
        """Tensors; numbers come afterwards, because they are looked for among the extents of these."""
        val = node.meta.get("val")
        if i in self.weights:
            array = self.tensor_array(self.weights[i])
            name = self.emitter.weight(self.weight_names.get(i, node.name), array)
            self.values[node] = Tensor(name, str(self.weights[i].dtype), tuple(array.shape))
            return
        if not hasattr(val, "dtype"):
            return
        name = self.emitter.reserve(self.input_names.get(i, node.name))
        shape = tuple(_plain(n) for n in val.shape)
        tensor = self.values[node] = Tensor(name, str(val.dtype), shape)
        try:
            onnx_element_type(val.dtype)
        except UnsupportedOperator:
            return  # fails where it is read
        self.inputs.append(i)
        self.names.append(name)
        self.emitter.input(name, val.dtype, [self._dim(n, tensor, a) for a, n in enumerate(shape)])

    def _dim(self, extent: Any, tensor: Tensor, axis: int) -> int | str:
        if isinstance(extent, int):
            return extent
        name = str(extent)
        if not name.isidentifier():  # a formula, which ONNX cannot say: a dimension of its own
            name = f"{tensor.name}.{axis}"
        self.symbols.setdefault(str(extent), (tensor, axis))
        self.dims.setdefault(name, _range(extent))
        return name

    def _number(self, i: int, node: Any) -> Any:
        if i in self.numbers:
            return self.numbers[i]
        val = node.meta.get("val")
        found = self.symbols.get(str(val))
        if found is not None:
            return self.emitter.size(*found)
        return val if val is None or isinstance(val, bool | int | float | str) else _Absent(str(val))

    def _attribute(self, node: Any) -> None:
        tensor = self.attributes(node.target)
        try:
            name = self.emitter.weight(str(node.target), self.tensor_array(tensor))
        except (UnsupportedOperator, TypeError, RuntimeError) as e:
            self._fail(node, str(e))
            return
        self.values[node] = Tensor(name, str(tensor.dtype), tuple(tensor.shape))

    # ------------------------------------------------------------------------------------------------- calls

    def _call(self, node: Any) -> None:
        e = self.emitter
        name = operator_name(node.target)
        mark = e.mark()
        e.origin = _title(node)
        try:
            if name == "operator.getitem":
                self.values[node] = self._item(node)
                return
            self.values[node] = self._written(node, name)
        except UnsupportedOperator as error:
            e.back_to(mark)
            self._fail(node, str(error))

    def _item(self, node: Any) -> Any:
        items, index = self.values.get(node.args[0]), node.args[1]
        found: Any = cast("tuple[Any, ...]", items)[index] if isinstance(items, tuple) else None
        if found is None:
            raise UnsupportedOperator("its further results are asked for")
        return found

    def _written(self, node: Any, name: str) -> Any:
        write = OPERATORS.get(name)
        if write is None:
            raise UnsupportedOperator("not supported")
        outs = _types(node.meta.get("val"))
        for out in outs:
            onnx_element_type(out.dtype)
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(v) for k, v in node.kwargs.items()}
        self.emitter.outs = outs
        known = _signature(name)
        try:
            known.bind(self.emitter, *args, **kwargs)
        except TypeError:
            kwargs = {k: v for k, v in kwargs.items() if v is not None}
            try:
                known.bind(self.emitter, *args, **kwargs)
            except TypeError as error:
                raise UnsupportedOperator(f"called with further arguments: {error}") from error
        written: Written = write(self.emitter, *args, **kwargs)
        if isinstance(written, tuple):
            return tuple(
                None if w is None else Tensor(w, o.dtype, o.shape)
                for w, o in zip(written, outs, strict=False)
            )
        return Tensor(written, outs[0].dtype, outs[0].shape) if isinstance(written, str) else written

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, list | tuple):
            return [self._argument(a) for a in cast("Sequence[Any]", arg)]
        if hasattr(arg, "meta") and hasattr(arg, "target"):
            value = self.values.get(arg)
            if isinstance(value, _Absent):
                raise UnsupportedOperator(f"the number {value.text}, which no shape of an input tells")
            if isinstance(value, Tensor):
                onnx_element_type(value.dtype)
            return value
        return arg

    def _fail(self, node: Any, reason: str) -> None:
        """The types that it gives are known all the same, so that what comes after it can be tried."""
        self.unsupported.append(UnsupportedCall(node.name, operator_name(node.target), reason))
        val = node.meta.get("val")
        named = [Tensor(self.emitter.reserve(node.name), t.dtype, t.shape) for t in _types(val)]
        self.values[node] = tuple(named) if isinstance(val, list | tuple) else (named or [None])[0]

    # ----------------------------------------------------------------------------------------------- results

    def _results(self, output: Any, placeholders: Sequence[Any]) -> tuple[Result, ...]:
        given = output.args[0]
        flat: list[Any] = list(cast("Sequence[Any]", given)) if isinstance(given, list | tuple) else [given]
        places: dict[Any, Result] = {}
        made: list[Result] = []
        count = 0
        for node in flat:
            if node in placeholders:
                made.append(FromInput(placeholders.index(node)))
                continue
            value = self.values.get(node) if hasattr(node, "meta") else node
            if not isinstance(value, Tensor | DynamicSize):
                made.append(Fixed(value))
                continue
            if node not in places:
                name = self.emitter.reserve(f"output_{count}")
                is_size = isinstance(value, DynamicSize)
                self.emitter.output(name, value.name, "torch.int64" if is_size else value.dtype)
                places[node] = FromModel(count, is_size)
                count += 1
            made.append(places[node])
        return tuple(made)


@dataclass(frozen=True, slots=True)
class _Absent:
    """A number that nothing in the graph tells."""

    text: str


def _plain(extent: Any) -> Any:
    """An int where a symbolic number is one."""
    if isinstance(extent, int):
        return extent
    node = getattr(extent, "node", None)
    known = node.maybe_as_int() if node is not None and hasattr(node, "maybe_as_int") else None
    return extent if known is None else known


def _range(extent: Any) -> tuple[int, int | None]:
    """What PyTorch knows of a symbolic extent."""
    try:
        found = extent.node.shape_env.bound_sympy(extent.node.expr)
        low, high = found.lower, found.upper
        most = int(high) if high.is_integer and high.is_finite and int(high) < 2**31 else None
        return max(int(low), 0), most
    except (AttributeError, TypeError, ValueError, OverflowError):
        return 1, None


def _types(val: Any) -> tuple[Tensor, ...]:
    """What a call gives, without names; numbers are no tensors."""
    if isinstance(val, list | tuple):
        return tuple(t for v in cast("Sequence[Any]", val) for t in _types(v))
    if not hasattr(val, "dtype"):
        return ()
    return (Tensor("", str(val.dtype), tuple(_plain(n) for n in val.shape)),)


_MODULE = re.compile(r"L\['(?:self|fn|mod)'\]\.?")


def _title(node: Any) -> str:
    """Where the call stands in the model: the path of its module, and its own name."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    path = _MODULE.sub("", paths[-1]) if paths else ""
    path = re.sub(r"_modules\['([^']*)'\]", r"\1", path).replace("._orig_mod", "").strip(".")
    return f"{path}/{node.name}" if path else str(node.name)


__all__ = ["ConvertedGraph", "Extent", "Fixed", "FromInput", "FromModel", "UnsupportedCall", "convert_graph"]
