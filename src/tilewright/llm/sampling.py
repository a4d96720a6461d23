"""Which token follows: the likeliest, or a random one of the likeliest."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class Sampling:
    """A temperature of 0 takes the likeliest token. Otherwise logits are divided by it, and a token is drawn from the
    `top_k` likeliest (0: all), and of these from the fewest that have the share `top_p` of the probability together.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf") or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UserError(
                f"cannot sample with temperature {self.temperature}, top-k {self.top_k} and top-p {self.top_p}",
                hint="the temperature is at least 0, top-k at least 0, and top-p above 0 and at most 1",
            )


class Sampler:
    """Draws tokens one after the other. The same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def next(self, logits: NDArray[Any]) -> int:
        """A token, for the logits of all tokens."""
        own = self._sampling
        if own.temperature == 0:
            return int(logits.argmax())
        tokens, weights = _powers(logits, own.temperature, own.top_k)
        total = weights.sum()
        if own.top_p < 1:
            # Those left out here have less than 1 - top_p together: they are not among the ones that are looked for.
            kept = weights >= total * (1 - own.top_p) / len(weights)
            tokens, weights = tokens[kept], weights[kept]
            order = np.argsort(np.negative(weights), kind="stable")
            sums: NDArray[np.float64] = weights[order].cumsum()
            count = int(np.searchsorted(sums, own.top_p * float(total))) + 1
            tokens, weights = tokens[order[:count]], weights[order[:count]]
        sums = weights.cumsum()
        at = int(np.searchsorted(sums, self._random.random() * float(sums[-1]), side="right"))
        return int(tokens[min(at, len(tokens) - 1)])


def _powers(
    logits: NDArray[Any], temperature: float, top_k: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The tokens that may be drawn, in order of their numbers, and how likely each is over the likeliest."""
    flat: NDArray[np.float64] = logits.astype(np.float64).reshape(-1)
    if 0 < top_k < len(flat):
        tokens = np.sort(np.argpartition(flat, len(flat) - top_k)[len(flat) - top_k :])
        flat = flat[tokens]
    else:
        tokens = np.arange(len(flat))
    return tokens, np.exp((flat - float(flat.max())) / temperature)
