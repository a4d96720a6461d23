"""Spaces of any Func with the costs of a learned model, as the default schedule and the tuner take them."""

from tilewright.families.space import Space
from tilewright.learned.features import kernel_features
from tilewright.learned.guarded import GuardedModel
from tilewright.learned.space import LearnedSpace
from tilewright.target.target import Target
from tilewright.tir.func import Func


class Refiner:
    """A `search.default.Refine`. Spaces of one Func follow each other, so that its own features are computed once."""

    def __init__(self, model: GuardedModel) -> None:
        self._model = model
        self._asked: tuple[Func, Target, frozenset[str]] | None = None
        self._kernel: dict[str, float] = {}

    def __call__(self, space: Space, func: Func, target: Target, constants: frozenset[str]) -> Space:
        return LearnedSpace(space, self._features(func, target, constants), self._model.corrections)

    def _features(self, func: Func, target: Target, constants: frozenset[str]) -> dict[str, float]:
        asked = func, target, constants
        if self._asked is None or self._asked[0] is not func or self._asked != asked:
            self._asked, self._kernel = asked, kernel_features(func, target, constants)
        return self._kernel
