"""The models of `benchmarks.torch_compile`: of transformers, timm and torchvision with random weights, and our own.

Each entry makes a module in eval mode and its example arguments. Sizes are those of the published models, with one
image, or one sequence of moderate length.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

Made: TypeAlias = tuple[Any, tuple[Any, ...]]


def _torch() -> Any:
    return import_module("torch")


def _tokens(vocabulary: int, length: int) -> Any:
    torch = _torch()
    return torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(1))


def _image(size: int = 224, channels: int = 3) -> Any:
    torch = _torch()
    return torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(1))


def _first_output(model: Any) -> Any:
    """A module that gives the first of a transformer's outputs: results are plain tensors."""
    torch = _torch()

    class FirstOutput(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]  (a base of torch)
            self.model = model

        def forward(self, *args: Any) -> Any:
            return self.model(*args, return_dict=False)[0]

    return FirstOutput()


def _transformer(config: str, model: str, length: int, **sizes: Any) -> Made:
    t = import_module("transformers")
    made = getattr(t, config)(**sizes)
    return _first_output(getattr(t, model)(made)), (_tokens(made.vocab_size, length),)


def _bert() -> Made:
    return _transformer("BertConfig", "BertModel", 128)


def _minilm() -> Made:
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return _transformer("BertConfig", "BertModel", 128, **sizes)


def _distilbert() -> Made:
    return _transformer("DistilBertConfig", "DistilBertModel", 128)


def _deberta() -> Made:
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
    more = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 128}
    return _transformer("DebertaV2Config", "DebertaV2Model", 64, vocab_size=32000, **sizes, **more)


def _gpt2() -> Made:
    return _transformer("GPT2Config", "GPT2Model", 128, use_cache=False)


def _llama() -> Made:
    sizes = {
        "vocab_size": 32000,
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    return _transformer("LlamaConfig", "LlamaModel", 128, use_cache=False, **sizes)


def _t5() -> Made:
    return _transformer("T5Config", "T5EncoderModel", 128, num_layers=6)


def _clip_text() -> Made:
    return _transformer("CLIPTextConfig", "CLIPTextModel", 77)


def _whisper() -> Made:
    t, torch = import_module("transformers"), _torch()
    sizes = {
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
        "decoder_layers": 1,
        "max_source_positions": 500,
    }
    encoder = t.WhisperModel(t.WhisperConfig(**sizes)).encoder
    features = torch.randn(1, 80, 1000, generator=torch.Generator().manual_seed(1))
    return _first_output(encoder), (features,)


def _timm(name: str, size: int = 224) -> Made:
    """Some heads begin with zeros, with which every answer would be right."""
    model, torch = import_module("timm").create_model(name, pretrained=False), _torch()
    for p in model.parameters():
        if not p.any():
            torch.nn.init.normal_(p, std=0.02)
    return model, (_image(size),)


def _torchvision(name: str) -> Made:
    return getattr(import_module("torchvision.models"), name)(weights=None), (_image(),)


def _mlp() -> Made:
    nn, torch = _torch().nn, _torch()
    layers: list[Any] = []
    for _ in range(3):
        layers += [nn.Linear(512, 512), nn.GELU()]
    model = nn.Sequential(*layers, nn.LayerNorm(512), nn.Linear(512, 10))
    return model, (torch.randn(8, 512, generator=torch.Generator().manual_seed(1)),)


def _block(before: int, after: int) -> Any:
    nn = _torch().nn
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1),
        nn.GroupNorm(8, after),
        nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1),
        nn.GroupNorm(8, after),
        nn.SiLU(),
    )


def _unet() -> Made:
    """Two levels down and up with skip connections, as diffusion models have them; attention in the middle."""
    torch = _torch()
    nn = torch.nn

    class Attention(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]  (a base of torch)
            self.norm = nn.GroupNorm(8, width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            n, c, h, w = x.shape
            rows = self.norm(x).flatten(2).transpose(1, 2)
            q, k, v = self.qkv(rows).view(n, h * w, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
            made = nn.functional.scaled_dot_product_attention(q, k, v)
            rows = self.out(made.transpose(1, 2).reshape(n, h * w, c))
            return x + rows.transpose(1, 2).reshape(n, c, h, w)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]  (a base of torch)
            self.time = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 256))
            self.first, self.second, self.middle = _block(4, 64), _block(64, 128), _block(128, 256)
            self.down = nn.ModuleList([nn.Conv2d(c, c, 3, stride=2, padding=1) for c in (64, 128)])
            self.attention = Attention(256)
            self.up = nn.ModuleList(
                [nn.ConvTranspose2d(256, 128, 2, stride=2), nn.Conv2d(128, 64, 3, padding=1)]
            )
            self.third, self.fourth = _block(256, 128), _block(128, 64)
            self.last = nn.Conv2d(64, 4, 1)

        def forward(self, x: Any, t: Any) -> Any:
            a = self.first(x)
            b = self.second(self.down[0](a))
            c = self.middle(self.down[1](b)) + self.time(t)[:, :, None, None]
            c = self.attention(c)
            b = self.third(torch.cat([self.up[0](c), b], 1))
            wide = nn.functional.interpolate(b, scale_factor=2.0, mode="nearest")
            return self.last(self.fourth(torch.cat([self.up[1](wide), a], 1)))

    g = torch.Generator().manual_seed(1)
    return UNet(), (torch.randn(1, 4, 64, 64, generator=g), torch.randn(1, 64, generator=g))


MODELS: dict[str, Callable[[], Made]] = {
    "bert": _bert,
    "minilm": _minilm,
    "distilbert": _distilbert,
    "deberta": _deberta,
    "gpt2": _gpt2,
    "llama": _llama,
    "t5_encoder": _t5,
    "whisper_encoder": _whisper,
    "clip_text": _clip_text,
    "vit_small": lambda: _timm("vit_small_patch16_224"),
    "deit_tiny": lambda: _timm("deit_tiny_patch16_224"),
    "mixer": lambda: _timm("mixer_s16_224"),
    "convnext": lambda: _timm("convnext_tiny"),
    "resnet18": lambda: _torchvision("resnet18"),
    "resnet50": lambda: _torchvision("resnet50"),
    "mobilenet_v2": lambda: _torchvision("mobilenet_v2"),
    "mobilenet_v3": lambda: _torchvision("mobilenet_v3_large"),
    "efficientnet": lambda: _torchvision("efficientnet_b0"),
    "unet": _unet,
    "mlp": _mlp,
}


def make(name: str) -> Made:
    """A model in eval mode with the same random weights in every process."""
    torch = _torch()
    _allow_torchvision()
    torch.manual_seed(0)
    model, args = MODELS[name]()
    _settle(model)
    return model.eval(), args


@cache
def _allow_torchvision() -> None:
    """torchvision's wheels are built for CUDA, and cannot load their operators beside a torch without it. No model here
    uses them, but importing torchvision needs some to be declared.
    """
    torch = _torch()
    found = find_spec("torchvision")
    folder = Path(found.origin).parent if found is not None and found.origin else Path()
    try:
        torch.ops.load_library(str(folder / "_C.so"))
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}", "(Tensor boxes, Tensor scores, float most) -> Tensor"
            )


def _settle(model: Any) -> None:
    """Statistics as training leaves them: those of a new model would hide that they are read at all."""
    torch = _torch()
    g = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.copy_(torch.randn(module.num_features, generator=g) * 0.1)
            module.running_var.copy_(torch.rand(module.num_features, generator=g) + 0.5)
