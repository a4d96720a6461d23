"""Networks with open dimensions, and the sizes that `benchmarks.open_shapes` calls them with.

`benchmarks/export_open_models.py` writes their files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.fingerprint import bench_home

Sizes: TypeAlias = dict[str, int]
Input: TypeAlias = dict[str, Any]  # as `benchmarks.engines.open_calls` takes it


@dataclass(frozen=True, slots=True)
class OpenCase:
    """`dims` are the ranges that ours is loaded with, `sample` the sizes whose static programs are measured too;
    `varied` is the dimension of calls in random order, through the whole of its range.
    """

    name: str
    inputs: Sequence[Input]
    dims: Mapping[str, tuple[int, ...]]
    sample: Sequence[Sizes]
    varied: str = ""

    @property
    def model(self) -> Path:
        return bench_home() / "open_models" / f"{self.name}.onnx"

    def sizes_at(self, value: int) -> Sizes:
        return {**self.sample[0], self.varied: value}

    def text(self, sizes: Sizes) -> str:
        """The sizes that are not the same everywhere."""
        free = [n for n in sizes if len({s[n] for s in self.sample}) > 1]
        return " x ".join(str(sizes[n]) for n in free)


def _input(name: str, dtype: str, fill: str, *shape: "int | str", is_cache: bool = False) -> Input:
    return {"name": name, "dtype": dtype, "fill": fill, "shape": list(shape), "is_cache": is_cache}


_LENGTHS = (1, 2, 3, 5, 8, 13, 17, 24, 33, 48, 64, 65, 96, 100, 128)
_IMAGES = ((64, 64), (160, 320), (320, 320), (480, 640), (640, 640))
_WIDTHS = (32, 96, 320, 640, 960)

MINILM = OpenCase(
    "minilm",
    (
        _input("input_ids", "int64", "words", "batch", "sequence"),
        _input("attention_mask", "int64", "ones", "batch", "sequence"),
        _input("token_type_ids", "int64", "zeros", "batch", "sequence"),
    ),
    {"batch": (1, 4), "sequence": (1, 128)},
    [{"batch": 1, "sequence": n} for n in _LENGTHS],
    "sequence",
)
DETECTOR = OpenCase(
    "detector",
    (_input("image", "float32", "normal", 1, 3, "height", "width"),),
    {"height": (32, 640, 32), "width": (32, 640, 32)},
    [{"height": h, "width": w} for h, w in _IMAGES],
)
RECOGNISER = OpenCase(
    "recogniser",
    (_input("image", "float32", "normal", 1, 3, 48, "width"),),
    {"width": (32, 960, 8)},
    [{"width": w} for w in _WIDTHS],
)


def _decoder(name: str, layers: int, heads: int, prompt: int = 128, tokens: int = 256) -> OpenCase:
    caches = [f"past_key_values.{i}.{x}" for i in range(layers) for x in ("key", "value")]
    return OpenCase(
        name,
        (
            _input("input_ids", "int64", "words", 1, "sequence"),
            _input("attention_mask", "int64", "ones", 1, "total"),
            *(_input(n, "float32", "normal", 1, heads, "past", 64, is_cache=True) for n in caches),
        ),
        {
            "sequence": (1, prompt),
            "past": (0, prompt + tokens),
            "total": (1, 2 * prompt + tokens),
        },
        [
            {"sequence": 1, "past": prompt, "total": prompt + 1},
            {"sequence": prompt, "past": 0, "total": prompt},
        ],
    )


TEXTS = (MINILM,)
IMAGES = (DETECTOR, RECOGNISER)
DECODERS = (_decoder("gpt2_decode", 12, 12), _decoder("llama_decode", 8, 4))
