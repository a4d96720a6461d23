"""One test per mistake that a recurrent op refuses, named after the mistake."""

from typing import Any

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ops.core.recurrent import Recurrent
from tilewright.ops.core.recurrent_cells import GRU, LSTM, RNN
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

X, W, R = (4, 2, 3), (1, 20, 3), (1, 20, 5)  # of an LSTM with 5 units


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def refused(cls: type[Recurrent], *inputs: Array | None, **attrs: Any) -> str:
    """What is said about a node."""
    with pytest.raises(UserError) as e:
        made = cls.sample(*inputs, **attrs)
        made.op.infer([TensorType.of(x) for x in made.inputs])
    return e.value.message


def lstm(**attrs: Any) -> str:
    return refused(LSTM, zeros(*X), zeros(*W), zeros(*R), **attrs)


def test_unknown_direction() -> None:
    assert "the direction 'sideways' is none of forward, reverse, bidirectional" in lstm(direction="sideways")


def test_unknown_layout() -> None:
    assert "the layout 2 is neither 0 nor 1" in lstm(layout=2)


def test_unknown_activation() -> None:
    assert "there is no activation 'Swish'" in lstm(activations=["Sigmoid", "Swish", "Tanh"])


def test_too_few_activations() -> None:
    said = lstm(activations=["Sigmoid", "Tanh"])
    assert said == "2 activations are given, but a forward LSTM has 3"


def test_activations_of_one_direction_for_two() -> None:
    said = refused(
        GRU,
        zeros(*X),
        zeros(2, 15, 3),
        zeros(2, 15, 5),
        direction="bidirectional",
        activations=["Sigmoid", "Tanh"],
    )
    assert said == "2 activations are given, but a bidirectional GRU has 4"


def test_hidden_size_that_is_not_that_of_the_weights() -> None:
    assert lstm(hidden_size=6) == "hidden_size is 6, but R is for 5"


def test_negative_clip() -> None:
    assert "the clip threshold -1.0 is negative" in lstm(clip=-1.0)


def test_clip_that_is_no_number() -> None:
    assert "the clip threshold nan is negative" in lstm(clip=float("nan"))


def test_no_output() -> None:
    assert lstm(outputs=0) == "the node has no output"


def test_more_outputs_than_states() -> None:
    assert "has no 3 outputs" in refused(RNN, zeros(*X), zeros(1, 5, 3), zeros(1, 5, 5), outputs=3)


def test_input_without_a_batch() -> None:
    assert refused(LSTM, zeros(4, 3), zeros(*W), zeros(*R)) == "X has 2 axes instead of 3"


def test_weights_of_another_cell() -> None:
    said = refused(LSTM, zeros(*X), zeros(1, 15, 3), zeros(1, 20, 5))
    assert "W should have the shape [1, 20, 3]" in said


def test_weights_for_one_direction_of_two() -> None:
    assert "W should have the shape [2, 20, 3]" in lstm(direction="bidirectional")


def test_recurrent_weights_that_are_not_square() -> None:
    assert "R should have the shape [1, 24, 6]" in refused(LSTM, zeros(*X), zeros(1, 24, 3), zeros(1, 20, 6))


def test_bias_without_the_recurrent_half() -> None:
    said = refused(LSTM, zeros(*X), zeros(*W), zeros(*R), zeros(1, 20))
    assert "B should have the shape [1, 40]" in said


def test_initial_state_of_another_batch() -> None:
    said = refused(LSTM, zeros(*X), zeros(*W), zeros(*R), None, None, zeros(1, 3, 5))
    assert "initial_h should have the shape [1, 2, 5]" in said


def test_initial_state_in_the_other_layout() -> None:
    said = refused(LSTM, zeros(*X), zeros(*W), zeros(*R), None, None, zeros(1, 4, 5), layout=1)
    assert "initial_h should have the shape [4, 1, 5]" in said


def test_peepholes_of_another_size() -> None:
    said = refused(LSTM, zeros(*X), zeros(*W), zeros(*R), None, None, None, None, zeros(1, 20))
    assert "P should have the shape [1, 15]" in said


def test_lengths_that_are_no_integers() -> None:
    said = refused(LSTM, zeros(*X), zeros(*W), zeros(*R), None, zeros(2), runtime=[4])
    assert "sequence_lens has the wrong element type" in said


def test_lengths_of_another_batch() -> None:
    said = refused(LSTM, zeros(*X), zeros(*W), zeros(*R), None, np.array([1, 2, 3], np.int32), runtime=[4])
    assert "sequence_lens should have the shape [2]" in said


def test_element_types_that_differ() -> None:
    said = refused(LSTM, zeros(*X), zeros(*W), zeros(*R).astype(np.float64))
    assert "R has the wrong element type" in said


def test_integers() -> None:
    op = LSTM.sample(zeros(*X), zeros(*W), zeros(*R)).op
    with pytest.raises(UserError, match="X has the wrong element type"):
        op.infer([TensorType(DType.I32, s) for s in (X, W, R)])


def test_no_steps() -> None:
    assert "there are no steps, or nothing in them" in refused(LSTM, zeros(0, 2, 3), zeros(*W), zeros(*R))


def test_no_units() -> None:
    assert "nothing in them" in refused(LSTM, zeros(*X), zeros(1, 0, 3), zeros(1, 0, 0))
