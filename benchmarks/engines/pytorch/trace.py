"""Calls of PyTorch, recorded while shapes are known.

`torch.fx` records calls, but its proxies know no shapes, which operators of ONNX ask for all the time. Here a proxy has
a value: that of the inputs which the recording is made with. Weights and other constants are tensors, as they are.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
fx: Any = import_module("torch.fx")


class Recorded(fx.Proxy):
    """A result of a recorded call. What depends on its numbers must be recorded; its shape and type are known."""

    value: Any

    @property
    def shape(self) -> Any:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def dtype(self) -> Any:
        return self.value.dtype


class Recorder(fx.Tracer):
    """Runs each call that it records."""

    def __init__(self) -> None:
        fx.Tracer.__init__(self)
        self.root: Any = torch.nn.Module()
        self.graph: Any = fx.Graph(tracer_cls=Recorder)
        self.tensor_attrs: dict[Any, str] = {}

    def proxy(self, node: Any) -> Recorded:
        return Recorded(node, self)

    def record(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> Recorded:
        return self.create_proxy(kind, target, args, kwargs)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **rest: Any) -> Any:
        made: Any = fx.Tracer.create_proxy(self, kind, target, args, kwargs, *more, **rest)
        if kind in ("call_function", "call_method"):
            plain: Any = fx.node.map_aggregate((args, kwargs), _value)
            call: Any = target if kind == "call_function" else getattr(torch.Tensor, target)
            made.value = call(*plain[0], **plain[1])
        return made

    def add_input(self, name: str, value: Any) -> Recorded:
        made = self.record("placeholder", name)
        made.value = value
        return made

    def finish(self, outputs: list[Any]) -> Any:
        """The module of what was recorded and is used."""
        self.graph.output(self.create_arg(outputs))
        self.graph.eliminate_dead_code()
        return fx.GraphModule(self.root, self.graph)


def _value(argument: Any) -> Any:
    return argument.value if isinstance(argument, Recorded) else argument


def is_known(value: Any) -> bool:
    """Is it a constant, or left out?"""
    return not isinstance(value, Recorded)


def numbers(value: Any) -> list[int]:
    """Of a shape, of axes."""
    if isinstance(value, Recorded):
        raise TypeError("a shape or an axis depends on the values of the inputs")
    return [int(v) for v in torch.as_tensor(value).reshape(-1).tolist()]
