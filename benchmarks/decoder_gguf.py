"""A decoder that was written as ONNX in blocks of 4 bits, as the file of llama.cpp: the same codes, in Q4_0.

Its scales are float16 there, and all else is the same. The package gguf writes the file.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.llm.checkpoint import DecoderWeights, tensor_shapes
from tilewright.llm.config import DecoderConfig
from tilewright.quantize.blocks import Blocks, quantize_rows

_BLOCK = 32  # weights that share a scale; given by Q4_0
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(
    path: Path, config: DecoderConfig, weights: DecoderWeights, architecture: str = "qwen2"
) -> None:
    gguf: Any = import_module("gguf")
    file = gguf.GGUFWriter(path, architecture)
    file.add_vocab_size(config.vocabulary)
    file.add_context_length(config.context)
    file.add_embedding_length(config.hidden)
    file.add_block_count(config.layers)
    file.add_feed_forward_length(config.intermediate)
    file.add_head_count(config.heads)
    file.add_head_count_kv(config.kv_heads)
    file.add_rope_freq_base(config.rotation.theta)
    file.add_layer_norm_rms_eps(config.epsilon)
    file.add_tokenizer_model("none")
    for name, shape in tensor_shapes(config).items():
        rows = weights.read(name, 0, shape[0])
        if len(shape) == 1:
            file.add_tensor(_name(name), rows)
        else:
            packed = _q4_0(quantize_rows(rows, 4, _BLOCK))
            file.add_tensor(_name(name), packed, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, _, layer, *middle, kind = name.split(".")
    return f"blk.{layer}.{_NAMES['.'.join(middle)]}.{kind}"


def _q4_0(blocks: Blocks) -> NDArray[Any]:
    """Each block: its scale in two bytes, and sixteen bytes, of which each has an element of either half."""
    count, width = blocks.codes.shape
    pairs = blocks.codes.reshape(-1, _BLOCK // 2)
    codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(-1, _BLOCK)
    halves = np.bitwise_or(codes[:, : _BLOCK // 2], np.left_shift(codes[:, _BLOCK // 2 :], np.uint8(4)))
    scales = blocks.scales.reshape(-1, 1).astype(np.float16).view(np.uint8)
    return np.concatenate([scales, halves], 1).reshape(count, 2 * width // _BLOCK * (_BLOCK // 2 + 2))
