"""Tilewright behind ONNX's own interface, `onnx.backend.base`: for ONNX's test suite, and for tools written against it.

    from onnx.backend.test import BackendTest
    from tilewright.backend import TilewrightBackend

    globals().update(BackendTest(TilewrightBackend, __name__).test_cases)

Inputs and outputs are arrays; a sequence is a list, a map a dict, and an empty optional is None.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, defs, helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from tilewright.api import load
from tilewright.frontend.onnx.load import OnnxModel
from tilewright.frontend.onnx.scope import OPSETS
from tilewright.frontend.onnx.values import type_of
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.sessions.dynamic import DynamicSession
from tilewright.support.errors import UserError

_OPTIONS = (  # of `load`
    "shapes",
    "threads",
    "target",
    "accuracy",
    "plugins",
    "placement",
    "strict",
    "cache",
    "progress",
    "variants",
    "dims",
)


class TilewrightRep(BackendRep):
    """A model that is ready to run."""

    def __init__(self, session: Session | DynamicSession | OpenSession) -> None:
        self.session = session
        self._inputs = [s.name for s in session.inputs]
        self._result = namedtupledict("Outputs", [s.name for s in session.outputs])

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in the model's order, which can also be asked for by name. `inputs` are by name, or a sequence
        in the model's order; a single array is the only input.
        """
        return self._result(*self.session.run(self._feeds(inputs)).values())

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        values = cast("Sequence[Any]", (inputs,) if isinstance(inputs, np.ndarray) else inputs)
        if len(values) != len(self._inputs):
            raise UserError(
                f"{len(values)} inputs were given, and the model takes {len(self._inputs)}",
                hint=f"it takes {', '.join(self._inputs) or 'none'}",
            )
        return dict(zip(self._inputs, values, strict=True))


class TilewrightBackend(Backend):
    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Are there no nodes in it that nothing here can run? Some faults show only when it is prepared."""
        if not cls.supports_device(device):
            return False
        try:
            OnnxModel(model).close()
        except UserError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> TilewrightRep:
        """A model to be run repeatedly. Keyword arguments that `tilewright.load` has are handed on to it; others mean
        something to ONNX's test runner only.
        """
        if not cls.supports_device(device):
            raise UserError(f"there is no device {device!r}", hint="use CPU")
        return TilewrightRep(load(model, **{k: kwargs[k] for k in _OPTIONS if k in kwargs}))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """One node on the values of the inputs that it has; `opset_version` says what it means. What is known of the
        outputs is not needed.
        """
        names = [n for n in node.input if n]
        values: list[Any] = [inputs[n] for n in names] if isinstance(inputs, Mapping) else list(inputs)
        if len(values) != len(names):
            raise UserError(f"{len(values)} inputs were given, and the node takes {len(names)}")
        graph = helper.make_graph(
            [node],
            node.name or node.op_type,
            [
                ValueInfoProto(name=n, type=type_of(v))
                for n, v in dict(zip(names, values, strict=True)).items()
            ],
            [ValueInfoProto(name=n) for n in node.output if n],
        )
        opsets = [helper.make_opsetid(node.domain, _opset(node, kwargs.get("opset_version")))]
        if node.domain not in ("", "ai.onnx"):  # bodies of functions use ONNX's own operators
            opsets.append(helper.make_opsetid("", _newest()))
        model = helper.make_model(graph, opset_imports=opsets)
        return cls.run_model(model, dict(zip(names, values, strict=True)), device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        try:
            return Device(device).type == DeviceType.CPU
        except (AttributeError, ValueError):  # no such kind of device, or no such number
            return False


def _opset(node: NodeProto, given: int | None) -> int:
    if given is not None:
        return given
    if node.domain in ("", "ai.onnx"):
        return _newest()
    is_known = defs.has(node.op_type, node.domain)
    return defs.get_schema(node.op_type, node.domain).since_version if is_known else 1


def _newest() -> int:
    return min(defs.onnx_opset_version(), OPSETS[-1])


is_compatible = TilewrightBackend.is_compatible
prepare = TilewrightBackend.prepare
run_model = TilewrightBackend.run_model
run_node = TilewrightBackend.run_node
supports_device = TilewrightBackend.supports_device
