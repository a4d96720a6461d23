"""The rule for reductions that a tensor intrinsic computes: a point is an intrinsic and a mapping onto it.

Float contractions have a rule of their own (`contraction_space`), which tiles around the intrinsic more finely. This
one takes what is left: products of bytes, and whatever a new family of intrinsics is about.
"""

import numpy as np

from tilewright.schedule.recipes.draft import Draft
from tilewright.search.materialize import apply_mapping
from tilewright.search.prepare import prepared, schedule_rest
from tilewright.search.space import Costs, Decisions, Knob, Points, Space
from tilewright.search.tensorize import Candidate, tensorize_candidates
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import blocks


class TensorizeSpace(Space):
    rule = "tensorize"

    def __init__(self, start: Draft, block: str, candidates: list[Candidate], target: Target) -> None:
        self._start, self._block, self._candidates, self._target = start, block, candidates, target
        self.knobs = (Knob("candidate", tuple(range(len(candidates)))),)

    def points(self) -> Points:
        return np.arange(len(self._candidates), dtype=np.int64)[:, None]

    def cost(self, points: Points) -> Costs:
        return np.array([self._candidates[int(n)].seconds for n in points[:, 0]])

    def build(self, decisions: Decisions) -> Draft:
        s = Draft(self._start.module, self._start.trace)
        names = {b.name for b in blocks(s.func.body)}
        chosen = self._candidates[decisions["candidate"]]
        apply_mapping(s, self._block, chosen.mapping, chosen.intrinsic)
        schedule_rest(s, names, self._target)
        return s


def tensorize_space(func: Func, target: Target, constants: frozenset[str]) -> Space | None:
    """The space of a Func with one reduction, if an intrinsic of the target computes it."""
    start = prepared(func)
    reductions = [b for b in blocks(start.func.body) if b.is_reduction]
    if len(reductions) != 1:
        return None
    (block,) = reductions
    candidates = tensorize_candidates(start.func, block.name, target, constants=constants)
    return TensorizeSpace(start, block.name, candidates, target) if candidates else None
