"""The functions that cells of recurrent networks apply, by the names that ONNX has for them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.expr import Expr, UnaryOp, unary
from tilewright.ops.core.activation import (
    Elu,
    HardSigmoid,
    LeakyRelu,
    Relu,
    Sigmoid,
    Softplus,
    Softsign,
    ThresholdedRelu,
)
from tilewright.ops.core.elementwise import Pointwise
from tilewright.ops.core.pointwise import Tanh
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class Affine(Pointwise):
    alpha: float = 1.0
    beta: float = 0.0

    def scalar(self, x: Expr) -> Expr:
        return x * self.alpha + self.beta

    def array(self, x: Array) -> Array:
        return x * self.alpha + self.beta


@dataclass(frozen=True, slots=True)
class ScaledTanh(Pointwise):
    alpha: float = 1.0
    beta: float = 1.0

    def scalar(self, x: Expr) -> Expr:
        return self.alpha * unary(UnaryOp.TANH, x * self.beta)

    def array(self, x: Array) -> Array:
        return self.alpha * np.tanh(x * self.beta)


# And how many of alpha and beta they take.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Pointwise], int]] = {
    "affine": (Affine, 2),
    "elu": (Elu, 1),
    "hardsigmoid": (HardSigmoid, 2),
    "leakyrelu": (LeakyRelu, 1),
    "relu": (Relu, 0),
    "scaledtanh": (ScaledTanh, 2),
    "sigmoid": (Sigmoid, 0),
    "softplus": (Softplus, 0),
    "softsign": (Softsign, 0),
    "tanh": (Tanh, 0),
    "thresholdedrelu": (ThresholdedRelu, 1),
}


def functions(names: Sequence[str], alphas: Iterable[float], betas: Iterable[float]) -> tuple[Pointwise, ...]:
    """The functions of these names, in any case. Each that has an alpha takes the next one, or its default where no
    more are given; so for beta.
    """
    given = iter(alphas), iter(betas)
    found: list[Pointwise] = []
    for name in names:
        if name.lower() not in _FUNCTIONS:
            raise UserError(f"there is no activation {name!r}", hint=f"there are: {', '.join(_FUNCTIONS)}")
        make, takes = _FUNCTIONS[name.lower()]
        scales: dict[str, float] = {}
        for attribute, values in list(zip(("alpha", "beta"), given, strict=True))[:takes]:
            value = next(values, None)
            if value is not None:
                scales[attribute] = float(np.float32(value))
        found.append(make(**scales))
    return tuple(found)
