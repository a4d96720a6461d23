"""Which tokens are drawn, and how often."""

import numpy as np
import pytest

from tilewright.llm.sampling import Sampler, Sampling
from tilewright.support.errors import UserError

LOGITS = np.log(np.array([[0.1, 0.4, 0.05, 0.3, 0.15]], np.float32))


def shares(sampling: Sampling, draws: int = 4000) -> list[float]:
    sampler = Sampler(sampling)
    return (np.bincount([sampler.next(LOGITS) for _ in range(draws)], minlength=5) / draws).tolist()


def test_no_temperature_takes_the_likeliest() -> None:
    assert shares(Sampling(), 3) == [0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), [0.1, 0.4, 0.05, 0.3, 0.15]),
        (Sampling(0.5), [0.0351, 0.5614, 0.0088, 0.3158, 0.0789]),  # squares
        (Sampling(1.0, top_k=2), [0, 4 / 7, 0, 3 / 7, 0]),
        (Sampling(1.0, top_k=9), [0.1, 0.4, 0.05, 0.3, 0.15]),
        (Sampling(1.0, top_p=0.75), [0, 4 / 8.5, 0, 3 / 8.5, 1.5 / 8.5]),
        (Sampling(1.0, top_p=0.01), [0, 1, 0, 0, 0]),
        (Sampling(1.0, top_k=3, top_p=0.8), [0, 4 / 7, 0, 3 / 7, 0]),  # shares are of the three
    ],
)
def test_tokens_come_as_often_as_they_should(sampling: Sampling, expected: list[float]) -> None:
    np.testing.assert_allclose(shares(sampling), expected, atol=0.03)


def test_a_seed_decides() -> None:
    drawn: list[list[int]] = []
    for seed in (1, 1, 2):
        sampler = Sampler(Sampling(1.0, seed=seed))
        drawn.append([sampler.next(LOGITS) for _ in range(20)])
    first, again, other = drawn
    assert first == again != other


def test_logits_that_are_far_apart() -> None:
    assert Sampler(Sampling(1e-3, top_p=0.9)).next(np.array([[-np.inf, 900.0, 1000.0]], np.float32)) == 2


@pytest.mark.parametrize("given", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_what_cannot_be(given: dict[str, float]) -> None:
    with pytest.raises(UserError, match="cannot sample"):
        Sampling(**given)  # pyright: ignore[reportArgumentType]
