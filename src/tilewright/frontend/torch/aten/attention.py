"""Attention as scores, softmax and weighted sum, which become one kernel (`graph/passes/attention.py`)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.frontend.torch.element_types import is_bool
from tilewright.frontend.torch.emitter import NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator


def _sdpa(
    e: NodeEmitter,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> str:
    if dropout_p:
        raise UnsupportedOperator("attention with dropout")
    factor = scale if scale is not None else 1 / math.sqrt(q.extent(q.rank - 1))
    if attn_mask is None and q.rank == 4 and not (is_causal and k.shape[2] != q.shape[2]):
        return e.op("Attention", q, k, v, scale=float(factor), is_causal=int(is_causal))
    if is_causal:
        raise UnsupportedOperator("causal attention of other ranks, or with fewer keys than queries")
    if enable_gqa and q.shape[-3] != k.shape[-3]:
        if q.rank != 4:
            raise UnsupportedOperator("heads that share keys, without a batch")
        return e.op("Attention", q, k, v, attn_mask, scale=float(factor))
    perm = [*range(k.rank - 2), k.rank - 1, k.rank - 2]
    scaled = e.op("Mul", q, e.number(factor, q.dtype))
    logits = e.op("MatMul", scaled, e.op("Transpose", k, perm=perm))
    if attn_mask is not None and is_bool(attn_mask.dtype):
        logits = e.op("Where", attn_mask, logits, e.number(float("-inf"), q.dtype))
    elif attn_mask is not None:
        logits = e.op("Add", logits, e.to(attn_mask, q.dtype))
    return e.op("MatMul", e.op("Softmax", logits, axis=-1), v)


def _flash(
    e: NodeEmitter,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[str | None, ...]:
    return _sdpa(e, q, k, v, attn_mask, dropout_p, is_causal, scale=scale), None


ENTRIES: Mapping[str, Callable[..., Any]] = {
    "aten.scaled_dot_product_attention.default": _sdpa,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _flash,
}
