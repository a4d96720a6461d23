"""Ten transformers with random weights as ONNX files, for `benchmarks.fingerprint`.

    python benchmarks/export_transformers.py FOLDER

It runs in an environment of its own, which has torch and transformers. Two layers show every kind of kernel that a deep
model has, so that is how deep they are.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

_SHAPE = {"hidden_size": 384, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 1536}
_VOCABULARY = 8000
_TOKENS = 64


class Sample(NamedTuple):
    """A model of transformers, and the name of the input that it is exported with."""

    config: str
    model: str
    input: str
    arguments: dict[str, Any]


def _text(config: str, model: str, **arguments: Any) -> Sample:
    return Sample(config, model, "input_ids", {"vocab_size": _VOCABULARY, **arguments})


SAMPLES: dict[str, Sample] = {
    "albert": _text("AlbertConfig", "AlbertModel", embedding_size=128, **_SHAPE),
    "clip_text": _text("CLIPTextConfig", "CLIPTextModel", **_SHAPE),
    "distilbert": _text(
        "DistilBertConfig", "DistilBertModel", dim=384, n_layers=2, n_heads=6, hidden_dim=1536
    ),
    "llama": _text("LlamaConfig", "LlamaModel", num_key_value_heads=2, **_SHAPE),
    "mobilebert": _text("MobileBertConfig", "MobileBertModel", num_hidden_layers=2),
    "opt": _text(
        "OPTConfig",
        "OPTModel",
        hidden_size=384,
        word_embed_proj_dim=384,
        num_hidden_layers=2,
        num_attention_heads=6,
        ffn_dim=1536,
    ),
    "roberta": _text("RobertaConfig", "RobertaModel", **_SHAPE),
    "swin": Sample("SwinConfig", "SwinModel", "pixel_values", {"depths": [2, 2], "num_heads": [3, 6]}),
    "t5_encoder": _text(
        "T5Config", "T5EncoderModel", d_model=384, num_layers=2, num_heads=6, d_ff=1536, d_kv=64
    ),
    "whisper_encoder": Sample(
        "WhisperConfig",
        "WhisperModel",
        "input_features",
        {"d_model": 384, "encoder_layers": 2, "decoder_layers": 1, "max_source_positions": 250},
    ),
}


def _input(sample: Sample, torch: Any) -> Any:
    match sample.input:
        case "pixel_values":
            return torch.randn(1, 3, 224, 224)
        case "input_features":
            return torch.randn(1, 80, 500)
        case _:
            return torch.randint(3, 1000, (1, _TOKENS))


def export(name: str, folder: Path) -> None:
    torch, transformers = import_module("torch"), import_module("transformers")
    sample = SAMPLES[name]
    torch.manual_seed(0)
    config = getattr(transformers, sample.config)(**sample.arguments)
    config._attn_implementation = "eager"
    config.use_cache = False
    model = getattr(transformers, sample.model)(config)
    if sample.input == "input_features":
        model = model.encoder
    wrapped = _tensors_only(model.eval(), torch)
    with torch.no_grad():
        for is_newer in (False, True):  # each of torch's two exporters knows models that the other does not
            try:
                torch.onnx.export(
                    wrapped,
                    (_input(sample, torch),),
                    str(folder / f"{name}.onnx"),
                    input_names=[sample.input],
                    output_names=["hidden"],
                    opset_version=18,
                    dynamo=is_newer,
                    external_data=False,
                )
                return
            except torch.onnx.errors.UnsupportedOperatorError:
                pass


def _tensors_only(model: Any, torch: Any) -> Any:
    """The model with one positional input and one tensor as its result."""
    name = model.main_input_name

    def forward(_: Any, x: Any) -> Any:
        return model(**{name: x}, return_dict=False)[0]

    kind: Callable[[], Any] = type("TensorsOnly", (torch.nn.Module,), {"forward": forward})
    wrapped = kind()
    wrapped.model = model
    return wrapped


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in SAMPLES:
        if not (folder / f"{name}.onnx").exists():
            export(name, folder)
            print(name, flush=True)


if __name__ == "__main__":
    main()
