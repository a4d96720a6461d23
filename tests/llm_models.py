"""A small language model with random weights, as a published one: shared by tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.llm.checkpoint import RandomWeights, tensor_shapes
from tilewright.llm.config import config_of

TINY: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 300,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "eos_token_id": 299,
}


def write_folder(folder: Path, *, has_weights: bool = True, **changes: Any) -> Path:
    """config.json and, with the package safetensors, weights."""
    folder.mkdir(exist_ok=True)
    values = {**TINY, **changes}
    (folder / "config.json").write_text(json.dumps(values))
    if has_weights:
        from safetensors.numpy import save_file  # noqa: PLC0415

        config = config_of(values)
        weights = RandomWeights(config)
        tensors = {n: weights.read(n, 0, s[0]) for n, s in tensor_shapes(config).items()}
        save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, str(folder / "model.safetensors"))
    return folder


def write_tokenizer(folder: Path) -> None:
    """Bytes as tokens, of which 0 to 255 are the characters of GPT-2's table."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
