"""Random models with open dimensions are right at all sizes, or refused with a reason.

A failure prints its seed and the smallest model that shows it. Longer searches: `python -m tests.fuzz.open_campaign`.
"""

from collections import Counter

import pytest

from tests.fuzz.open_campaign import check, check_apart, check_seed
from tests.fuzz.open_models import OpenModel, RandomOpenModel
from tests.fuzz.open_rules import random_open_model
from tilewright.support.sizes import Dim, sym_int

QUICK = 2  # tests of as many seeds each
MORE = range(QUICK, 4)  # in long runs
SEEDS = 8
# Of models that found faults: a group without nodes, a read before the beginning of an input, a recurrence of one step,
# a joined part without elements, and rows that are computed from an axis and taken for those of a buffer.
FOUND = (308, 527, 896, 450093, 450108)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


@pytest.mark.parametrize("n", [*range(QUICK), *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_random_open_models(n: int) -> None:
    found = [check_seed(s) for s in range(n * SEEDS, (n + 1) * SEEDS)]
    wrong = [text for outcome, text in found if outcome.kind == "wrong"]
    assert not wrong, "\n".join(wrong)
    assert sum(outcome.kind == "right" for outcome, _ in found) >= SEEDS // 2


@pytest.mark.parametrize("seed", FOUND)
def test_models_that_found_faults(seed: int) -> None:
    outcome, text = check_apart(seed)
    assert outcome.kind == "right", text or outcome.text


@pytest.mark.slow
@pytest.mark.parametrize("n", range(20))
def test_many_random_open_models(n: int) -> None:
    found = [check_apart(s) for s in range(10_000 + 100 * n, 10_000 + 100 * (n + 1))]
    wrong = [text for outcome, text in found if outcome.kind == "wrong"]
    assert not wrong, "\n".join(wrong)


# --------------------------------------------------------------------------------------------------- the fuzzer itself


def test_open_models_are_reproducible_and_open() -> None:
    operators = Counter[str]()
    for seed in range(60):
        made = random_open_model(seed)
        assert made.model.SerializeToString() == random_open_model(seed).model.SerializeToString()
        dims = {d.dim_param for v in made.model.graph.input for d in v.type.tensor_type.shape.dim}
        assert dims - {""} == made.dims.keys()
        operators.update(n.op_type for n in made.model.graph.node)
    assert len(operators) > 50


def test_a_model_that_nobody_follows_is_refused_with_a_reason() -> None:
    n = Dim("n", 1, 9)
    m = OpenModel(0)
    x = m.input(sym_int(n))
    model = m.finish(m.op("NonZero", x))
    outcome = check(RandomOpenModel(model, {"n": n}), 0)
    assert outcome.kind == "refused"
    assert "host" in outcome.text
