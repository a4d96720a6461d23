"""oneDNN as a plugin: GEMMs and convolutions with what follows them, pools, and what lies between.

A unit becomes one primitive. The code of a region describes its primitives, as JSON, without weights.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.graph.external import YES, Answer, No, Pattern, Plugin, Region, RunRegion, Unit
from tilewright.graph.graph import Node, Value
from tilewright.ir.dtype import DType
from tilewright.ops.core import activation, movement, pieces, pointwise, pool, reduce
from tilewright.ops.core.arithmetic import Add, Mul
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import Op
from tilewright.plugins.onednn import library as dnnl
from tilewright.plugins.onednn.chains import Link, chain_patterns, read_chain
from tilewright.plugins.onednn.library import INFERENCE, PACKAGE, AlgKind
from tilewright.plugins.onednn.program import PrimitiveProgram, PrimitiveStep, TensorArg
from tilewright.plugins.packages import installed_version
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_LARGEST = float(np.finfo(np.float32).max)
_FUNCTIONS: Mapping[type[Op], Callable[[Any], tuple[int, float, float]]] = {
    activation.Relu: lambda op: (AlgKind.RELU, 0.0, 0.0),
    activation.LeakyRelu: lambda op: (AlgKind.RELU, op.alpha, 0.0),
    activation.Clip: lambda op: (AlgKind.CLIP, _bound(op.low, -_LARGEST), _bound(op.high, _LARGEST)),
    activation.Elu: lambda op: (AlgKind.ELU, op.alpha, 0.0),
    activation.Sigmoid: lambda op: (AlgKind.LOGISTIC, 0.0, 0.0),
    activation.HardSigmoid: lambda op: (AlgKind.HARD_SIGMOID, op.alpha, op.beta),
    activation.HardSwish: lambda op: (AlgKind.HARD_SWISH, 1 / 6, 0.5),
    activation.Swish: lambda op: (AlgKind.SWISH, op.alpha, 0.0),
    activation.Gelu: lambda op: (AlgKind.GELU_TANH if op.tanh else AlgKind.GELU_ERF, 0.0, 0.0),
    pointwise.Tanh: lambda op: (AlgKind.TANH, 0.0, 0.0),
}
_CONTRACTIONS = ("convolution_forward", "inner_product_forward", "matmul")
_OPERATIONS: Mapping[type[Op], AlgKind] = {Add: AlgKind.ADD, Mul: AlgKind.MUL}


class OneDnn(Plugin):
    name = "onednn"
    version = installed_version(PACKAGE)

    def is_available(self) -> Answer:
        try:
            dnnl.engine()
        except UserError as e:
            return No(e.message)
        return YES

    def patterns(self) -> Sequence[Pattern]:
        functions = [name for kind in _FUNCTIONS for name in kind.onnx]
        return chain_patterns(("Conv", "MatMul", "Gemm"), functions, self.supports)

    def supports(self, unit: Unit) -> Answer:
        step = _step(unit)
        made = step.described(lambda o: dnnl.plain(o.shape, o.is_transposed))
        if made and step.kind in _CONTRACTIONS and made.implementation().startswith("ref"):
            return No("oneDNN has only reference code for it")
        return YES

    def accepts(self, region: Region) -> Answer:
        has_work = any(isinstance(n.op, Conv | MatMul | Gemm) for n in region.graph.nodes)
        return YES if has_work else No("there is no GEMM and no convolution next to it")

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        place = {n: i for i, n in enumerate(region.graph.nodes)}
        steps = [_step(u) for u in sorted(region.units, key=lambda u: place[u.nodes[-1]])]
        ends = [[_seen(v, 0) for v in values] for values in (region.graph.inputs, region.graph.outputs)]
        return json.dumps([steps, ends], default=asdict).encode()

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        steps, ends = json.loads(blob, object_hook=TensorArg.read)
        return PrimitiveProgram([PrimitiveStep(*s) for s in steps], ends, constants, threads)


def _bound(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _seen(value: Value, role: int, shape: Sequence[int] = (), **flags: bool) -> TensorArg:
    return TensorArg(role, value.name, tuple(shape or value.shape or (1,)), **flags)


def _step(unit: Unit) -> PrimitiveStep:
    """The primitive of a unit; UserError says why there is none."""
    for v in (*unit.inputs, *unit.outputs):
        if v.type.dtype is not DType.F32 or not v.size:
            raise UserError(f"dtype {v.type.dtype.value}" if v.size else "an empty tensor")
    result, *others = unit.outputs
    if others or all(unit.constant(v) is not None for v in unit.inputs):
        raise UserError("it has several results" if others else "it is constant")
    chain = read_chain(unit)
    step = _first(unit, chain.head, _seen(result, dnnl.RESULT, is_free=True))
    for link in chain.links:
        step = _followed(step, link, chain.head.outputs[0].shape)
    return step


def _first(unit: Unit, node: Node, result: TensorArg) -> PrimitiveStep:
    op, (x, *more) = node.op, node.inputs
    source = _seen(x, dnnl.SOURCE)
    match op:
        case Conv():
            return _convolution(op, unit, node, result)
        case MatMul() | Gemm():
            return _matmul(op, unit, node, result)
        case pool.MaxPool(window=w, indexed=False):
            return _pool(AlgKind.MAX, w, source, result)
        case pool.AveragePool(window=w, include_pad=is_counted):
            return _pool(AlgKind.MEAN_WITH_PADDING if is_counted else AlgKind.MEAN, w, source, result)
        case reduce.ReduceMean(axes=axes) | reduce.ReduceMax(axes=axes) if (
            axes == (2, 3, 4)[: len(x.shape) - 2]
        ):
            ones, none = (1,) * len(axes), (0,) * len(axes)
            kind = AlgKind.MAX if isinstance(op, reduce.ReduceMax) else AlgKind.MEAN
            result = replace(result, shape=(*x.shape[:2], *ones))
            return _pool(kind, Window(x.shape[2:], ones, ones, none, none), source, result)
        case pieces.Concat(axis=axis):
            sources = [_seen(v, dnnl.LIST + i) for i, v in enumerate(node.inputs)]
            return PrimitiveStep("concat", (axis,), sources, result)
        case movement.Reshape() | movement.Identity():
            return PrimitiveStep("reshape", (), (source,), result)
        case Add() | Mul():
            if x.shape != more[0].shape:
                raise UserError("operands of different shapes")
            other = _seen(more[0], dnnl.OTHER_SOURCE, is_free=True)
            return PrimitiveStep("binary", (_OPERATIONS[type(op)],), (source, other), result)
        case _ if type(op) in _FUNCTIONS and not more:
            algorithm, *parameters = _FUNCTIONS[type(op)](op)
            return PrimitiveStep("eltwise_forward", (INFERENCE, algorithm), (source,), result, (), parameters)
        case _:
            raise UserError(f"oneDNN is not used for {type(op).__name__}")


def _convolution(op: Conv, unit: Unit, node: Node, result: TensorArg) -> PrimitiveStep:
    x, w, *bias = node.inputs
    if unit.constant(w) is None:
        raise UserError("dynamic weights")
    by_group = (op.group, w.shape[0] // op.group, *w.shape[1:])
    weights = _seen(w, dnnl.WEIGHTS, w.shape if op.group == 1 else by_group, is_free=True)
    tensors = (_seen(x, dnnl.SOURCE, is_free=True), weights, *([_seen(v, dnnl.BIAS) for v in bias] or [None]))
    window = (op.window.strides, [d - 1 for d in op.window.dilations], op.window.before, op.window.after)
    how = (INFERENCE, AlgKind.DIRECT_CONVOLUTION)
    return PrimitiveStep("convolution_forward", how, tensors, result, window)


def _matmul(op: MatMul | Gemm, unit: Unit, node: Node, result: TensorArg) -> PrimitiveStep:
    a, b, *c = node.inputs
    transposed, out = (False, False), node.outputs[0].shape
    if isinstance(op, Gemm):
        if op.alpha != 1 or (c and op.beta != 1):
            raise UserError("alpha or beta other than 1")
        transposed = op.trans_a, op.trans_b
    if min(len(a.shape), len(b.shape)) < 2:
        raise UserError("a vector")
    is_packed = len(b.shape) == 2 and unit.constant(b) is not None
    rows, columns, depth = out[-2], out[-1], a.shape[-2 if transposed[0] else -1]
    if is_packed:  # all rows go together, and the weights are transposed
        shapes = (a.size // depth, depth), (columns, depth), (a.size // depth, columns)
        kind, numbers, transposed = "inner_product_forward", (INFERENCE,), (transposed[0], not transposed[1])
    else:
        ends = (*a.shape[:-2], rows, depth), (*b.shape[:-2], depth, columns), out
        kind, numbers, shapes = "matmul", (), tuple((1,) * (len(out) - len(s)) + s for s in ends)
    left = _seen(a, dnnl.SOURCE, shapes[0], is_transposed=transposed[0], is_free=is_packed)
    right = _seen(b, dnnl.WEIGHTS, shapes[1], is_transposed=transposed[1], is_free=is_packed)
    step = PrimitiveStep(
        kind, numbers, (left, right, None), replace(result, shape=shapes[2], is_free=is_packed)
    )
    return _followed(step, Link(Add(), c[0]), out) if c else step


def _pool(kind: AlgKind, w: Window, source: TensorArg, result: TensorArg) -> PrimitiveStep:
    axes = enumerate(zip(source.shape[2:], result.shape[2:], strict=True))
    reached = [(p - 1) * w.strides[d] + w.reach(d) - w.before[d] - n for d, (n, p) in axes]
    after = [max(pair) for pair in zip(w.after, reached, strict=True)]
    if kind is AlgKind.MEAN_WITH_PADDING and after != list(w.after):
        raise UserError("windows that reach beyond the padding")
    window = (w.strides, w.kernel, [d - 1 for d in w.dilations], w.before, after)
    return PrimitiveStep("pooling_forward", (INFERENCE, kind), (source,), result, window)


def _followed(step: PrimitiveStep, link: Link, shape: tuple[int, ...]) -> PrimitiveStep:
    """The step with what is done to each element of its result, which the model has in this shape."""
    kind, other = type(link.op), link.other
    if step.kind not in _CONTRACTIONS or kind not in (_FUNCTIONS if other is None else _OPERATIONS):
        raise UserError(f"{kind.__name__} is not what oneDNN does after {step.kind}")
    if other is None:
        return step._replace(posts=(*step.posts, (*_FUNCTIONS[kind](link.op), None)))
    axis = 1 if step.kind == _CONTRACTIONS[0] else -1
    own = (1,) * (len(shape) - len(other.shape)) + other.shape
    seen = [1] * len(step.result.shape)
    seen[axis] = own[axis]
    if own == shape:
        seen = step.result.shape
    elif len(own) != len(shape) or prod(own) != own[axis] or own[axis] not in (1, shape[axis]):
        raise UserError(f"{other.type} is neither as large as the result nor has it a number per channel")
    is_free = step.result.is_free and own == shape
    operand = _seen(other, dnnl.post_op(len(step.posts)), seen, is_free=is_free)
    return step._replace(posts=(*step.posts, (_OPERATIONS[kind], 0.0, 0.0, operand)))
