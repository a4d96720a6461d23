"""What a config.json says, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.llm.config import Rotation, config_of, read_config
from tilewright.support.errors import UserError

QWEN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "eos_token_id": 151645,
}


def test_qwen2_has_a_bias_of_queries_keys_and_values() -> None:
    found = config_of(QWEN)
    assert (found.head_size, found.biased, found.is_tied, found.stops) == (64, "qkv", True, (151645,))
    assert not found.has_head_norms and found.rotation == Rotation(1e6, original=32768)


def test_newer_files_have_the_rotation_in_a_dictionary() -> None:
    given = {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0}
    found = config_of({**QWEN, "rope_theta": None, "rope_parameters": given})
    assert found.rotation == Rotation(5e5, "linear", 4.0, original=32768)


def test_llama_has_a_bias_only_if_it_says_so() -> None:
    llama = {**QWEN, "architectures": ["LlamaForCausalLM"]}
    assert config_of(llama).biased == ""
    assert config_of({**llama, "attention_bias": True, "mlp_bias": True}).biased == "qkvom"


def test_qwen3_normalises_queries_and_keys() -> None:
    found = config_of({**QWEN, "architectures": ["Qwen3ForCausalLM"], "head_dim": 128})
    assert found.has_head_norms and found.head_size == 128 and found.biased == ""


def test_a_window_bounds_the_context() -> None:
    """Within it, attention is the same with a window and without."""
    assert (
        config_of({**QWEN, "architectures": ["MistralForCausalLM"], "sliding_window": 4096}).context == 4096
    )


def test_slow_pairs_turn_slower_with_llama3() -> None:
    plain = Rotation(5e5).frequencies(64)
    found = Rotation(5e5, "llama3", 8.0, 1.0, 4.0, 8192).frequencies(64)
    np.testing.assert_allclose(found[0], plain[0])  # a turn is much shorter than the old context
    np.testing.assert_allclose(found[-1], plain[-1] / 8, rtol=1e-6)
    assert np.all(found <= plain) and np.all(found >= plain / 8 * (1 - 1e-6))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 897}, "14 heads"),
        ({"num_key_value_heads": 3}, "14 heads cannot share the keys of 3"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"partial_rotary_factor": 0.5}, "a part is rotated"),
        ({"eos_token_id": "x"}, "eos_token_id"),
    ],
)
def test_what_is_not_supported_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        config_of({**QWEN, **change})


def test_tokens_that_end_a_text_come_from_both_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [151645, 151643]}))
    assert read_config(tmp_path).stops == (151645, 151643)


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="no JSON"):
        read_config(tmp_path)
