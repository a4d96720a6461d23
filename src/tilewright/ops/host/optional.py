"""Optionals: a value, or nothing. The host holds them as the value itself, or None."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph
from tilewright.ops.spec import OpenType
from tilewright.support.errors import UserError

_WHY = "optionals are held by the host"


@dataclass(frozen=True, slots=True)
class Optional(HostOp):
    """The input as an optional; nothing, if there is no input."""

    onnx = ("Optional",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        return (inputs[0] if inputs else None,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("Optional", (np.ones(2, np.float32),))
        yield HostSample("Optional", ([np.ones(2, np.float32), np.zeros(3, np.float32)],))
        yield HostSample("Optional", (), {"type": OpenType(DType.F32)})


@dataclass(frozen=True, slots=True)
class OptionalHasElement(HostOp):
    """Is there a value? What is no optional is one."""

    onnx = ("OptionalHasElement",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        return (np.array(bool(inputs) and inputs[0] is not None),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("OptionalHasElement", (np.ones(2, np.float32),))
        yield HostSample("OptionalHasElement", ([np.ones(2, np.float32)],))
        yield HostSample("OptionalHasElement", ())


@dataclass(frozen=True, slots=True)
class OptionalGetElement(HostOp):
    """The value, which has to be there."""

    onnx = ("OptionalGetElement",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        if inputs[0] is None:
            raise UserError("the optional is empty")
        return (inputs[0],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("OptionalGetElement", (np.ones(2, np.float32),))
        yield HostSample("OptionalGetElement", ([np.ones(2, np.float32)],))
