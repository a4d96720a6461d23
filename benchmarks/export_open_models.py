"""Networks with open dimensions and random weights as ONNX files, for `benchmarks.open_shapes`.

    python benchmarks/export_open_models.py [FOLDER]      # $BENCH_HOME/open_models unless given; keeps what is there

It runs in an environment of its own, which has torch, transformers and onnx. torch's older exporter writes them,
as it wrote most files that people have.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Axes: TypeAlias = dict[str, dict[int, str]]


class Exported(NamedTuple):
    """A module with what `torch.onnx.export` needs; `axes` are the open dimensions."""

    model: Any
    arguments: tuple[Any, ...]
    inputs: Sequence[str]
    outputs: Sequence[str]
    axes: Axes


def module(torch: Any, forward: Callable[..., Any], **parts: Any) -> Any:
    """A module of these parts, which are given to `forward` before its inputs."""

    def run(_: Any, *inputs: Any) -> Any:
        return forward(parts, *inputs)

    made: Any = type("Parts", (torch.nn.Module,), {"forward": run})()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def minilm(torch: Any) -> Exported:
    """MiniLM of six layers: batch and sequence are open."""
    transformers: Any = import_module("transformers")
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    names = ("input_ids", "attention_mask", "token_type_ids")

    def forward(parts: Any, *inputs: Any) -> Any:
        return parts["bert"](**dict(zip(names, inputs, strict=True))).last_hidden_state

    model = module(torch, forward, bert=transformers.BertModel(config))
    ones = torch.ones((2, 17), dtype=torch.long)
    axes = {n: {0: "batch", 1: "sequence"} for n in (*names, "hidden")}
    return Exported(model, (torch.randint(3, 1000, (2, 17)), ones, 0 * ones), names, ("hidden",), axes)


def _decoder(torch: Any, model: Any, layers: int, heads: int, width: int) -> Exported:
    """What appends the keys and values of `sequence` tokens to those of `past` ones."""
    past = [f"past_key_values.{i}.{x}" for i in range(layers) for x in ("key", "value")]
    present = [n.replace("past_key_values", "present") for n in past]

    def forward(parts: Any, tokens: Any, mask: Any, *caches: Any) -> Any:
        pairs = [(caches[2 * i], caches[2 * i + 1]) for i in range(layers)]
        cache: Any = import_module("transformers").DynamicCache(pairs)
        found = parts["model"](input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True)
        kept = [t for layer in found.past_key_values.layers for t in (layer.keys, layer.values)]
        return (found.logits, *kept)

    arguments = (
        torch.randint(3, 1000, (1, 5)),
        torch.ones((1, 21), dtype=torch.long),
        *(torch.randn(1, heads, 16, width) for _ in past),
    )
    axes: Axes = {"input_ids": {1: "sequence"}, "attention_mask": {1: "total"}, "logits": {1: "sequence"}}
    axes |= {n: {2: "past"} for n in past} | {n: {2: "total"} for n in present}
    made = module(torch, forward, model=model)
    return Exported(made, arguments, ("input_ids", "attention_mask", *past), ("logits", *present), axes)


def gpt2_decode(torch: Any) -> Exported:
    transformers: Any = import_module("transformers")
    config = transformers.GPT2Config(attn_implementation="eager")
    return _decoder(torch, transformers.GPT2LMHeadModel(config), 12, 12, 64)


def llama_decode(torch: Any) -> Exported:
    transformers: Any = import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        attn_implementation="eager",
    )
    return _decoder(torch, transformers.LlamaForCausalLM(config), 8, 4, 64)


def _conv(torch: Any, taken: int, given: int, size: int = 3, stride: Any = 1, groups: int = 1) -> Any:
    """A convolution with its normalisation and activation."""
    nn = torch.nn
    own = nn.Conv2d(taken, given, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(own, nn.BatchNorm2d(given), nn.Hardswish())


def _residual(torch: Any, width: int) -> Any:
    def forward(parts: Any, x: Any) -> Any:
        return x + parts["inner"](x)

    inner = torch.nn.Sequential(_conv(torch, width, width // 2, 1), _conv(torch, width // 2, width))
    return module(torch, forward, inner=inner)


def detector(torch: Any) -> Exported:
    """Three scales of features, joined from the coarsest to the finest, and a head for each: height and width are open,
    as multiples of 32.
    """
    nn, widths = torch.nn, (16, 32, 64, 128, 256)
    steps = [
        nn.Sequential(_conv(torch, a, b, stride=2), _residual(torch, b))
        for a, b in zip((3, *widths[:-1]), widths, strict=True)
    ]
    own = {
        **{f"stage{i}": s for i, s in enumerate(steps)},
        "join4": _conv(torch, 256 + 128, 128, 1),
        "join3": _conv(torch, 128 + 64, 64, 1),
        **{
            f"head{i}": nn.Sequential(_conv(torch, c, 64), nn.Conv2d(64, 84, 1))
            for i, c in enumerate(widths[2:])
        },
    }

    def doubled(x: Any) -> Any:
        return nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")

    def forward(parts: Any, x: Any) -> Any:
        found: list[Any] = []
        for i in range(5):
            x = parts[f"stage{i}"](x)
            found.append(x)
        four = parts["join4"](torch.cat([doubled(found[4]), found[3]], 1))
        three = parts["join3"](torch.cat([doubled(four), found[2]], 1))
        heads = [parts[f"head{i}"](f) for i, f in enumerate((three, four, found[4]))]
        return torch.cat([torch.flatten(h, 2) for h in heads], 2).sigmoid()

    axes = {"image": {2: "height", 3: "width"}}
    arguments = (torch.randn(1, 3, 320, 320),)
    return Exported(module(torch, forward, **own), arguments, ("image",), ("boxes",), axes)


def recogniser(torch: Any) -> Exported:
    """Lines of text of height 48, whose width is open: separable convolutions, then layers of a transformer over
    columns of 8 pixels.
    """
    nn, widths, columns, signs = torch.nn, (16, 32, 64, 128, 256), 120, 6625
    strides: tuple[Any, ...] = (1, 2, (2, 1), 2)
    blocks: list[Any] = []
    for a, b, stride in zip(widths[:-1], widths[1:], strides, strict=True):
        blocks += [_conv(torch, a, a, stride=stride, groups=a), _conv(torch, a, b, 1)]
        blocks += [_conv(torch, b, b, 5, groups=b), _conv(torch, b, b, 1)]
    images = nn.Sequential(
        _conv(torch, 3, widths[0], stride=2),
        *blocks,
        nn.AvgPool2d((3, 1), (3, 1)),
        nn.Conv2d(widths[-1], columns, 1),
    )

    def attention(parts: Any, x: Any) -> Any:
        b, n, d = x.shape
        q, k, v = parts["qkv"](parts["first"](x)).reshape(b, n, 3, 8, d // 8).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-1, -2) * (d // 8) ** -0.5, -1)
        x = x + parts["out"]((weights @ v).transpose(1, 2).reshape(b, n, d))
        return x + parts["mlp"](parts["second"](x))

    def layer() -> Any:
        mlp = nn.Sequential(nn.Linear(columns, 4 * columns), nn.GELU(), nn.Linear(4 * columns, columns))
        first, second = nn.LayerNorm(columns), nn.LayerNorm(columns)
        qkv, out = nn.Linear(columns, 3 * columns), nn.Linear(columns, columns)
        return module(torch, attention, first=first, second=second, qkv=qkv, out=out, mlp=mlp)

    text = nn.Sequential(layer(), layer(), nn.LayerNorm(columns), nn.Linear(columns, signs))

    def forward(parts: Any, x: Any) -> Any:
        return torch.softmax(parts["text"](parts["images"](x).flatten(2).transpose(1, 2)), -1)

    made = module(torch, forward, images=images, text=text)
    return Exported(made, (torch.randn(1, 3, 48, 320),), ("image",), ("signs",), {"image": {3: "width"}})


MODELS = {f.__name__: f for f in (minilm, detector, recogniser, gpt2_decode, llama_decode)}


def export(name: str, folder: Path) -> None:
    torch: Any = import_module("torch")
    torch.manual_seed(0)
    made = MODELS[name](torch)
    with torch.no_grad():
        torch.onnx.export(
            made.model.eval(),
            made.arguments,
            str(folder / f"{name}.onnx"),
            input_names=list(made.inputs),
            output_names=list(made.outputs),
            dynamic_axes=made.axes,
            opset_version=17,
            dynamo=False,
        )


def main() -> None:
    home = os.environ.get("BENCH_HOME", "~/.cache/tilewright-bench")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else f"{home}/open_models").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        if not (folder / f"{name}.onnx").exists():
            export(name, folder)
            print(name, flush=True)


if __name__ == "__main__":
    main()
