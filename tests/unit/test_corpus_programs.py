"""Generated programs: valid, of the sizes that were asked for, and always the same."""

from math import prod

import onnx
import pytest

from tilewright.driver.trace import ProgramTrace
from tilewright.frontend.onnx.load import load_graph
from tilewright.ops.accuracy import Accuracy
from tilewright.support.program import leaves
from tilewright.target.target import AVX2
from tilewright.training.programs import FAMILIES, GeneratedProgram, generated
from tilewright.tuning.program_source import ProgramSource

TURN = 14  # programs after which families come again


def test_the_same_number_is_the_same_program() -> None:
    one = GeneratedProgram(3, 8).make().SerializeToString()
    found = {name: model.SerializeToString() for name, _, model in generated(3, 9)}
    assert len(found) == 9
    assert found["transposed-3-00008"] == one
    assert GeneratedProgram(4, 8).make().SerializeToString() != one
    assert GeneratedProgram(3, 8 + TURN).make().SerializeToString() != one


def test_all_families_come_in_turn() -> None:
    assert {GeneratedProgram(0, n).family for n in range(TURN)} == FAMILIES.keys()


@pytest.mark.parametrize("number", range(2 * TURN))
def test_shapes_are_as_onnx_infers_them(number: int) -> None:
    model = GeneratedProgram(1, number).make()
    onnx.checker.check_model(model, full_check=True)  # pyright: ignore[reportUnknownMemberType]
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    assert inferred.output and inferred.input
    for o in (*inferred.output, *inferred.input):
        shape = [d.dim_value for d in o.type.tensor_type.shape.dim]
        assert all(shape) and prod(shape) <= 1 << 25, o.name


@pytest.mark.parametrize("number", [2, 3, 6, 13])
def test_a_program_becomes_several_kernels_of_native_code(number: int) -> None:
    program = GeneratedProgram(2, number)
    with ProgramSource(load_graph(program.make()), AVX2, Accuracy.of("exact")) as source:
        assert source.is_one_segment()
        calls = list(leaves(source.until("groups", ProgramTrace()).current.program))
    assert 3 <= len(calls) <= 40
