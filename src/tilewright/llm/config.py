"""What a decoder is made of, from the `config.json` that its weights come with.

The networks of these names are of one shape: blocks of attention over a cache of keys and values and of a gated
MLP, with root mean square norms and rotated positions. They differ in which products have a bias and whether
queries and keys are normalised.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.support.errors import UserError

# By the name of the architecture: products that always have a bias, those that have one if `attention_bias` is set,
# and are queries and keys normalised?
_ARCHITECTURES: Mapping[str, tuple[str, str, bool]] = {
    "LlamaForCausalLM": ("", "qkvo", False),
    "MistralForCausalLM": ("", "", False),
    "Qwen2ForCausalLM": ("qkv", "", False),
    "Qwen3ForCausalLM": ("", "qkvo", True),
}


@dataclass(frozen=True, slots=True)
class Rotation:
    """How far each pair of elements of a head turns from one position to the next."""

    theta: float
    kind: str = "default"  # or linear, llama3
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def frequencies(self, size: int) -> NDArray[np.float32]:
        """Of the pairs of a head of `size` elements."""
        own = self.theta ** (-np.arange(0, size, 2, dtype=np.float64) / size)
        match self.kind:
            case "linear":
                own = own / self.factor
            case "llama3":  # slow ones are stretched, quick ones are not, and those between in part
                turns = self.original * own / (2 * math.pi)
                kept = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
                own = own * (kept + (1 - kept) / self.factor)
            case _:
                pass
        return own.astype(np.float32)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """`biased` has a letter for each product with a bias: of queries, keys, values, the output of attention (qkvo), and
    m for the MLP. `context` is how many positions the network was made for.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    rotation: Rotation
    epsilon: float
    biased: str
    has_head_norms: bool
    is_tied: bool
    context: int
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = (self.hidden, self.layers, self.heads, self.kv_heads, self.head_size, self.intermediate)
        if min(*sizes, self.vocabulary, self.context) < 1:
            raise UserError(f"a decoder with a size below 1: {self}")
        if self.heads % self.kv_heads:
            raise UserError(f"{self.heads} heads cannot share the keys of {self.kv_heads}")
        if self.head_size % 2:
            raise UserError(f"heads of {self.head_size} elements cannot be rotated in pairs")


def read_config(folder: Path) -> DecoderConfig:
    """The decoder of a folder, from its `config.json` and `generation_config.json`."""
    path = folder / "config.json"
    config = read_json(path)
    if config is None:
        raise UserError(
            "there is no config.json",
            where=str(folder),
            hint="name the folder of a model as it is published: config.json, *.safetensors, tokenizer.json",
        )
    found = config_of(config, str(path))
    more = read_json(folder / "generation_config.json") or {}
    stops = dict.fromkeys((*found.stops, *_stops(more.get("eos_token_id"), str(path))))
    return replace(found, stops=tuple(stops))


def config_of(config: Mapping[str, Any], where: str = "config.json") -> DecoderConfig:
    """The decoder of what a `config.json` says."""
    values = _Values(config, where)
    architecture = next(iter(config.get("architectures") or ()), "")
    if architecture not in _ARCHITECTURES:
        raise UserError(
            f"the architecture {architecture or 'none'!r} is not known",
            where=where,
            hint=f"known are: {', '.join(_ARCHITECTURES)}",
        )
    always, if_asked, has_head_norms = _ARCHITECTURES[architecture]
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UserError(f"the activation {activation!r} is not supported: silu is", where=where)
    heads, hidden = values.count("num_attention_heads"), values.count("hidden_size")
    if config.get("head_dim") is None and hidden % heads:
        raise UserError(f"{hidden} elements do not make {heads} heads", where=where)
    context = values.count("max_position_embeddings", 2048)
    if (config.get("use_sliding_window") or architecture.startswith("Mistral")) and (
        window := config.get("sliding_window")
    ):
        context = min(context, int(window))  # within the window there is no difference
    return DecoderConfig(
        hidden=hidden,
        layers=values.count("num_hidden_layers"),
        heads=heads,
        kv_heads=values.count("num_key_value_heads", heads),
        head_size=values.count("head_dim", hidden // heads),
        intermediate=values.count("intermediate_size"),
        vocabulary=values.count("vocab_size"),
        rotation=_rotation(config, context, where),
        epsilon=values.real("rms_norm_eps", 1e-6),
        biased=always
        + (if_asked if config.get("attention_bias") else "")
        + ("m" if config.get("mlp_bias") else ""),
        has_head_norms=has_head_norms,
        is_tied=bool(config.get("tie_word_embeddings", False)),
        context=context,
        stops=_stops(config.get("eos_token_id"), where),
    )


def _rotation(config: Mapping[str, Any], context: int, where: str) -> Rotation:
    """Newer files have one dictionary, older ones the base and the scaling apart."""
    found: Any = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise UserError("the rotation of positions is no dictionary", where=where)
    given = cast(dict[str, Any], found)
    both = _Values({"rope_theta": config.get("rope_theta", 10000.0), **given}, where)
    kind = str(given.get("rope_type") or given.get("type") or "default")
    if kind not in ("default", "linear", "llama3"):
        raise UserError(
            f"a rotation of positions of the kind {kind!r} is not supported",
            where=where,
            hint="default, linear and llama3 are",
        )
    if float(given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UserError("heads of which only a part is rotated are not supported", where=where)
    return Rotation(
        theta=both.real("rope_theta", 10000.0),
        kind=kind,
        factor=both.real("factor", 1.0),
        low=both.real("low_freq_factor", 1.0),
        high=both.real("high_freq_factor", 4.0),
        original=both.count("original_max_position_embeddings", context),
    )


def _stops(given: Any, where: str) -> tuple[int, ...]:
    """Tokens that end a text: none, one or several."""
    stops = cast(list[Any], given) if isinstance(given, list) else [] if given is None else [given]
    if not all(isinstance(n, int) for n in stops):
        raise UserError(f"eos_token_id: {given!r} are no tokens", where=where)
    return tuple(stops)


def read_json(path: Path) -> dict[str, Any] | None:
    """The dictionary in a file; None if there is no such file."""
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as e:
        raise UserError(f"cannot read it: {e.strerror or e}", where=str(path)) from e
    except ValueError as e:
        raise UserError(f"it is no JSON: {e}", where=str(path)) from e
    if not isinstance(found, dict):
        raise UserError("it holds no dictionary", where=str(path))
    return found  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True, slots=True)
class _Values:
    """Reads values, and says which is wrong."""

    given: Mapping[str, Any]
    where: str

    def count(self, name: str, default: int | None = None) -> int:
        value = self.given.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{name}: {value!r} is no positive number", where=self.where)
        return value

    def real(self, name: str, default: float) -> float:
        value = self.given.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise UserError(f"{name}: {value!r} is no positive number", where=self.where)
        return float(value)
