"""What classic models do with their scores at the end: transform them, and choose labels (domain ai.onnx.ml)."""

import numpy as np

from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_NEAR_ZERO = 1e-7  # what SOFTMAX_ZERO leaves at zero


def post_transform(node: OnnxNode) -> str:
    """The transform of a node, by name; TreeEnsemble numbers them."""
    given = node.attrs.get("post_transform", "NONE")
    if isinstance(given, int) and 0 <= given < len(TRANSFORMS):
        return TRANSFORMS[given]
    if given not in TRANSFORMS:
        raise UserError(f"post_transform is {given!r}", hint=f"it should be one of {', '.join(TRANSFORMS)}")
    return str(given)


def transformed(scores: Array, how: str) -> Array:
    """Scores of shape [rows, classes]."""
    with np.errstate(all="ignore"):
        match how:
            case "LOGISTIC":
                return logistic(scores)
            case "SOFTMAX":
                return _shares(np.exp(scores - _largest(scores)))
            case "SOFTMAX_ZERO":
                largest = _largest(scores)
                is_zero = np.abs(scores) <= _NEAR_ZERO
                return _shares(np.where(is_zero, scores * np.exp(-largest), np.exp(scores - largest)))
            case "PROBIT":
                return _probit(scores)
            case _:
                return scores


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), which must not overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small / (1 + small), 1 / (1 + small))


def _largest(scores: Array) -> Array:
    return scores.max(-1, keepdims=True, initial=-np.inf)


def _shares(x: Array) -> Array:
    total = x.sum(-1, keepdims=True)
    return np.where(total == 0, x.dtype.type(0.5), x / np.where(total == 0, 1, total))


def _probit(x: Array) -> Array:
    """The quantile of the normal distribution, by Winitzki's approximation of the inverse error function, which is
    what other engines use: it is right to two or three digits.
    """
    a = 0.147
    y = 2 * x - 1
    log = np.log((1 - y) * (1 + y))
    half = 2 / (np.pi * a) + log / 2
    root = np.sqrt(np.sqrt(half * half - log / a) - half)
    return np.sqrt(2, dtype=x.dtype) * np.where(y < 0, -root, root)


def class_labels(node: OnnxNode, integers: str) -> Array:
    """The labels of a classifier's classes: strings, or integers in the attribute of that name."""
    strings = node.attrs.get("classlabels_strings")
    return np.array(strings, object) if strings else np.array(node.attrs.get(integers) or [], np.int64)
