"""Scores by the compiled program of a cost model, in batches of as many rows as it was compiled for."""

import numpy as np

from tilewright.runtime.session import Session
from tilewright.support.arrays import FloatArray


class CompiledScorer:
    """What rows the last batch has no use for are rows that were there before, whatever they are."""

    def __init__(self, session: Session) -> None:
        (given,), (made,) = session.inputs, session.outputs
        self._rows = given.shape[0]
        self._features = np.zeros(given.shape, np.float32)
        self._scores = np.zeros(made.shape, np.float32)
        bound = session.bind({given.name: self._features}, {made.name: self._scores})
        self._bound = bound

    def __call__(self, features: FloatArray) -> FloatArray:
        out = np.zeros(len(features))
        for start in range(0, len(features), self._rows):
            some = features[start : start + self._rows]
            self._features[: len(some)] = some
            self._bound.run()
            out[start : start + len(some)] = self._scores[: len(some)]
        return out
