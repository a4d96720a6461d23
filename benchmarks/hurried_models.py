"""Transformers as a hurried user exports them: `python -m benchmarks.hurried_models FOLDER` (needs torch, transformers,
onnxscript).

Small configurations with random weights, through torch's default exporter, with the attention that transformers takes
by itself, constants left as they are, batch and sequence open. Each is written as `NAME.onnx`, with inputs of two
different sizes and PyTorch's outputs as `NAME.npz` (`a.in.NAME`, `a.out.0`, `b.in.NAME`, …).
"""

# pyright: basic, reportMissingImports=false

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf

SIZES = {"a": (1, 12), "b": (3, 7)}  # batch and sequence
VOCABULARY = 97
HEADS: dict[str, Any] = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)


def _ids(batch: int, sequence: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, VOCABULARY, (batch, sequence))}


def _masked_ids(batch: int, sequence: int) -> dict[str, Any]:
    mask = torch.ones((batch, sequence), dtype=torch.int64)
    mask[:, -2:] = 0
    return {**_ids(batch, sequence), "attention_mask": mask}


def _images(size: int) -> Any:
    return lambda batch, _: {"pixel_values": torch.randn((batch, 3, size, size))}


def _sound(batch: int, _: int) -> dict[str, Any]:
    return {"input_features": torch.randn((batch, 16, 60))}


def zoo() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    """By name: the model, a function of batch and sequence that makes its inputs, and which axes are open."""
    text = {"input_ids": {0: "batch", 1: "sequence"}}
    masked = {**text, "attention_mask": {0: "batch", 1: "sequence"}}
    image = {"pixel_values": {0: "batch"}}
    words = dict(vocab_size=VOCABULARY, max_position_embeddings=64)
    return {
        "bert": (hf.BertModel(hf.BertConfig(**HEADS, **words)), _masked_ids, masked),
        "distilbert": (
            hf.DistilBertModel(hf.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, **words)),
            _masked_ids,
            masked,
        ),
        "gpt2": (
            hf.GPT2LMHeadModel(
                hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64)
            ),
            _masked_ids,
            masked,
        ),
        "vit": (hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=8, **HEADS)), _images(32), image),
        "swin": (
            hf.SwinModel(
                hf.SwinConfig(
                    image_size=32, patch_size=2, window_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4]
                )
            ),
            _images(32),
            image,
        ),
        "convnext": (
            hf.ConvNextModel(hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1])),
            _images(64),
            image,
        ),
        "whisper_encoder": (
            hf.models.whisper.modeling_whisper.WhisperEncoder(
                hf.WhisperConfig(
                    d_model=32,
                    encoder_layers=2,
                    encoder_attention_heads=4,
                    encoder_ffn_dim=64,
                    num_mel_bins=16,
                    max_source_positions=30,
                    vocab_size=VOCABULARY,
                    pad_token_id=0,
                    bos_token_id=1,
                    eos_token_id=2,
                    decoder_start_token_id=1,
                )
            ),
            _sound,
            {"input_features": {0: "batch"}},
        ),
        "llama": (
            hf.LlamaForCausalLM(hf.LlamaConfig(**HEADS, **words, num_key_value_heads=2)),
            _masked_ids,
            masked,
        ),
        "t5_encoder": (
            hf.T5EncoderModel(
                hf.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=VOCABULARY)
            ),
            _masked_ids,
            masked,
        ),
    }


class _Plain(torch.nn.Module):
    """The model with tensors for outputs, without the cache of a decoder."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Any) -> Any:
        more = (
            {"use_cache": False}
            if hasattr(self.model.config, "use_cache") and "input_ids" in self.names
            else {}
        )
        out = self.model(**dict(zip(self.names, values, strict=True)), **more, return_dict=True)
        return tuple(v for v in out.values() if isinstance(v, torch.Tensor))


def export(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    model, feeds, axes = zoo()[name]
    inputs = {key: feeds(*size) for key, size in SIZES.items()}
    names = list(inputs["a"])
    plain = _Plain(model.eval(), names).eval()
    dynamic = tuple({axis: torch.export.Dim.DYNAMIC for axis in axes[n]} for n in names)
    path, example = (
        str(folder / f"{name}.onnx"),
        tuple(inputs["b"].values()),
    )  # 1 would be taken for a constant
    common: dict[str, Any] = {"input_names": names, "external_data": False}
    try:
        torch.onnx.export(plain, example, path, dynamic_shapes=(dynamic,), optimize=False, **common)
    except Exception:  # torch cannot trace it with open shapes: the exporter before that one can
        torch.onnx.export(plain, example, path, dynamic_axes=axes, dynamo=False, opset_version=18, **common)
        print(f"{name}: by the older exporter")
    arrays: dict[str, Any] = {}
    with torch.no_grad():
        for key, given in inputs.items():
            for n, value in given.items():
                arrays[f"{key}.in.{n}"] = value.numpy()
            for i, value in enumerate(plain(*given.values())):
                arrays[f"{key}.out.{i}"] = value.numpy()
    np.savez(folder / f"{name}.npz", **arrays)


def main() -> int:
    warnings.filterwarnings("ignore")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in sys.argv[2:] or zoo():
        try:
            export(name, folder)
            print(f"{name}: written")
        except Exception as e:
            failed += 1
            print(f"{name}: {type(e).__name__}: {str(e)[:300]}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
