"""What a search for the best point of design spaces is: something that proposes points and is told their times.

`Evolution` (`search/evolve.py`) is the one that tuning uses. `Annealing` (`search/anneal.py`) is another, which
`python -m benchmarks.strategies` compares with it.
"""

from typing import Protocol

from tilewright.search.evolve import Proposal


class Strategy(Protocol):
    """Points are proposed once. All is deterministic, given a seed and the times that are told."""

    @property
    def size(self) -> int:
        """Points that it chooses from."""
        ...

    @property
    def best(self) -> tuple[Proposal, float] | None:
        """The quickest point that it was told of, and its time."""
        ...

    def propose(self, count: int) -> list[Proposal]:
        """Up to `count` points that were never proposed; fewer when there are no more."""
        ...

    def tell(self, p: Proposal, seconds: float) -> None:
        """The measured time of a point; infinite if the candidate failed."""
        ...
