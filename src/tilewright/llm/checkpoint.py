"""Where the weights of a decoder come from: files of safetensors, or random numbers.

Both are read a few rows at a time, as float32, by the names that published models have.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tilewright.llm.config import DecoderConfig
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError

Floats = NDArray[np.float32]

_TYPES = ("F32", "F16", "BF16")
_DEVIATION = 0.5  # of the sum of a random row's products with numbers of deviation 1; given


class DecoderWeights(Protocol):
    def read(self, name: str, start: int, stop: int) -> Floats:
        """Rows `start` to `stop` of a tensor."""
        ...


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a decoder, by the names of published models."""
    c = config
    width, kv_width = c.heads * c.head_size, c.kv_heads * c.head_size
    products = {
        "self_attn.q_proj": ("q", width, c.hidden),
        "self_attn.k_proj": ("k", kv_width, c.hidden),
        "self_attn.v_proj": ("v", kv_width, c.hidden),
        "self_attn.o_proj": ("o", c.hidden, width),
        "mlp.gate_proj": ("m", c.intermediate, c.hidden),
        "mlp.up_proj": ("m", c.intermediate, c.hidden),
        "mlp.down_proj": ("m", c.hidden, c.intermediate),
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocabulary, c.hidden)}
    for n in range(c.layers):
        layer = f"model.layers.{n}"
        for name, (letter, rows, columns) in products.items():
            found[f"{layer}.{name}.weight"] = (rows, columns)
            if letter in c.biased:
                found[f"{layer}.{name}.bias"] = (rows,)
        found[f"{layer}.input_layernorm.weight"] = found[f"{layer}.post_attention_layernorm.weight"] = (
            c.hidden,
        )
        if c.has_head_norms:
            found[f"{layer}.self_attn.q_norm.weight"] = found[f"{layer}.self_attn.k_norm.weight"] = (
                c.head_size,
            )
    found["model.norm.weight"] = (c.hidden,)
    if not c.is_tied:
        found["lm_head.weight"] = (c.vocabulary, c.hidden)
    return found


class RandomWeights:
    """The same numbers for the same seed, whatever is read in which order, a row at a time or all at once."""

    def __init__(self, config: DecoderConfig, seed: int = 0) -> None:
        self._shapes, self._seed = tensor_shapes(config), seed

    def read(self, name: str, start: int, stop: int) -> Floats:
        shape = self._shapes[name]
        bits = np.random.Philox(key=[self._seed, crc32(name.encode())])
        random = np.random.Generator(bits)
        if len(shape) == 1:
            own = random.standard_normal(shape, np.float32)[start:stop]
            return 1 + 0.1 * own if name.endswith("norm.weight") else 0.1 * own
        # Uniform numbers take one draw each, so that a row begins at a known place.
        bits.advance(start * shape[1] // 4)
        skipped = start * shape[1] % 4
        count = (stop - start) * shape[1]
        words = bits.random_raw(count + skipped)[skipped:]
        own = (words >> 40).astype(np.float32) * np.float32(2**-23) - 1
        return (own * np.float32(_DEVIATION * (3 / shape[1]) ** 0.5)).reshape(stop - start, shape[1])


class CheckpointFiles(Closing):
    """The tensors of all `*.safetensors` of a folder. UserError if one that the decoder has is missing, or has another
    shape.
    """

    def __init__(self, folder: Path, config: DecoderConfig) -> None:
        try:
            safetensors: Any = import_module("safetensors")
        except ImportError as e:
            raise UserError(
                "reading weights needs the package safetensors", hint="pip install 'tilewright[llm]'"
            ) from e
        self._slices: dict[str, Any] = {}
        self._stack = ExitStack()
        self._wanted = tensor_shapes(config)
        paths = checkpoint_paths(folder)
        with ExitStack() as stack:
            for path in paths:
                try:
                    file = stack.enter_context(safetensors.safe_open(str(path), framework="numpy"))
                except (OSError, safetensors.SafetensorError) as e:
                    raise UserError(f"it is no file of safetensors: {e}", where=str(path)) from e
                for name in file.keys() & self._wanted.keys():
                    self._slices[name] = file.get_slice(name)
            self._check(folder)
            self._stack = stack.pop_all()

    def _check(self, folder: Path) -> None:
        missing = sorted(self._wanted.keys() - self._slices.keys())
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(
                f"the weights have no {missing[0]}{more}",
                where=str(folder),
                hint="config.json describes another model, or a file of the weights is missing",
            )
        for name, found in self._slices.items():
            shape, wanted = tuple(found.get_shape()), self._wanted[name]
            if shape != wanted:
                raise UserError(
                    f"{name} is {list(shape)}, and config.json makes it {list(wanted)}", where=str(folder)
                )
            if found.get_dtype() not in _TYPES:
                raise UserError(
                    f"{name} is {found.get_dtype()}: weights must be {', '.join(_TYPES)}",
                    where=str(folder),
                    hint="take the model as it was published, before somebody quantised it",
                )

    def read(self, name: str, start: int, stop: int) -> Floats:
        return np.asarray(self._slices[name][start:stop]).astype(np.float32)

    def close(self) -> None:
        self._slices.clear()
        self._stack.close()


class GivenWeights:
    """Arrays by their names."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    def read(self, name: str, start: int, stop: int) -> Floats:
        return self._arrays[name][start:stop].astype(np.float32)


def checkpoint_paths(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        others = [*folder.glob("*.bin"), *folder.glob("*.pth"), *folder.glob("*.gguf")]
        raise UserError(
            "there are no weights (*.safetensors)",
            where=str(folder),
            hint=f"{others[0].name} is of another format: fetch the model as safetensors"
            if others
            else "fetch them, or ask for random ones",
        )
    return found
