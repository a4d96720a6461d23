"""Sequences that are known piece by piece when a model is imported, as exporters use them for `split`.

Such a sequence is a tuple of names, and the nodes that make it or take it apart stand for others: the host has no part
in them. Whoever else uses it, the host makes a list of the pieces for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from tilewright.frontend.onnx.nodes import NodeSite
from tilewright.ops.axes import normal_axis
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array

Pieces: TypeAlias = tuple[str, ...]

MAKERS = ("SplitToSequence", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceEmpty")
TAKERS = ("SequenceAt", "SequenceLength", "ConcatFromSequence")


class Sequences:
    """The sequences of a stage. `types` and `constant` answer for names of tensors; None if there is no answer."""

    def __init__(
        self, type_of: Callable[[str], TensorType | None], constant: Callable[[str], Array | None]
    ) -> None:
        self._type_of, self._constant = type_of, constant
        self.known: dict[str, Pieces] = {}

    def expand(self, step: NodeSite, attrs: Mapping[str, Any]) -> list[NodeSite] | None:
        """The nodes that this one stands for; None if its sequence, or a position in it, is not known."""
        kind = step.node.op_type
        if step.domain or kind not in (*MAKERS, *TAKERS):
            return None
        if kind == "SplitToSequence":
            return self._split(step, attrs)
        if kind in ("SequenceEmpty", "SequenceConstruct"):
            if any(self._type_of(n) is None for n in step.node.input):
                return None
            return self._define(step, tuple(step.node.input))
        pieces = self.known.get(step.node.input[0])
        return None if pieces is None else self._use(step, kind, pieces, attrs)

    def _use(
        self, step: NodeSite, kind: str, pieces: Pieces, attrs: Mapping[str, Any]
    ) -> list[NodeSite] | None:
        (output, *_), inputs = step.node.output, list(step.node.input)
        if kind == "SequenceLength":
            return [_constant(step, np.array(len(pieces), np.int64), output)]
        if kind == "ConcatFromSequence":
            return self._concat(step, pieces, attrs) if pieces else None
        given = inputs[2 if kind == "SequenceInsert" else 1 :]
        at = None
        if given and given[0]:
            found = self._constant(given[0])
            if found is None:
                return None
            extent = len(pieces) + (kind == "SequenceInsert")
            at = normal_axis(
                int(found.item()) + (kind == "SequenceInsert" and found.item() < 0), extent, "position"
            )
        match kind:
            case "SequenceAt":
                return None if at is None else [_step(step, "Identity", [pieces[at]], [output])]
            case "SequenceInsert":
                if self._type_of(inputs[1]) is None:
                    return None
                at = len(pieces) if at is None else at
                return self._define(step, (*pieces[:at], inputs[1], *pieces[at:]))
            case _:
                if not pieces:
                    return None
                at = len(pieces) - 1 if at is None else at
                return self._define(step, (*pieces[:at], *pieces[at + 1 :]))

    def _define(self, step: NodeSite, pieces: Pieces) -> list[NodeSite]:
        self.known[step.node.output[0]] = pieces
        return []

    def _split(self, step: NodeSite, attrs: Mapping[str, Any]) -> list[NodeSite] | None:
        node = step.node
        x = self._type_of(node.input[0])
        if x is None:
            return None
        axis = normal_axis(int(attrs.get("axis", 0)), x.rank)
        extent, squeezed = x.shape[axis], False
        if len(node.input) > 1 and node.input[1]:
            split = self._constant(node.input[1])
            if split is None:
                return None
            sizes = [int(n) for n in split.reshape(-1)]
            if split.ndim == 0:
                each = sizes[0]
                if each <= 0:
                    return None
                sizes = [min(each, extent - at) for at in range(0, extent, each)]
        else:
            sizes, squeezed = [1] * extent, not attrs.get("keepdims", 1)
        if sum(sizes) != extent or min(sizes, default=0) < 0 or len(sizes) > 4096:
            return None  # the host says what is wrong
        names = [f"{step.scope}{i}" for i in range(len(sizes))]
        cut = [f"{n}.cut" for n in names] if squeezed else names
        made = [_constant(step, np.array(sizes, np.int64), f"{step.scope}sizes")]
        made.append(_step(step, "Split", [node.input[0], f"{step.scope}sizes"], cut, axis=axis))
        if squeezed:
            made.append(_constant(step, np.array([axis], np.int64), f"{step.scope}axes"))
            axes = f"{step.scope}axes"
            made += [_step(step, "Squeeze", [c, axes], [n]) for c, n in zip(cut, names, strict=True)]
        self._define(step, tuple(names))
        return made

    def _concat(self, step: NodeSite, pieces: Pieces, attrs: Mapping[str, Any]) -> list[NodeSite]:
        axis, (output, *_) = int(attrs["axis"]), step.node.output
        if not attrs.get("new_axis", 0):
            return [_step(step, "Concat", pieces, [output], axis=axis)]
        axes = f"{step.scope}axes"
        longer = [f"{step.scope}{i}" for i in range(len(pieces))]
        made = [_constant(step, np.array([axis], np.int64), axes)]
        made += [_step(step, "Unsqueeze", [p, axes], [n]) for p, n in zip(pieces, longer, strict=True)]
        return [*made, _step(step, "Concat", longer, [output], axis=axis)]


def _step(step: NodeSite, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> NodeSite:
    node: NodeProto = helper.make_node(kind, inputs, outputs, **attrs)
    return NodeSite(node, {"": max(step.opset, 13)}, f"{step.name}/{kind}", step.depth + 1)


def _constant(step: NodeSite, value: Array, output: str) -> NodeSite:
    return _step(step, "Constant", [], [output], value=numpy_helper.from_array(value))
