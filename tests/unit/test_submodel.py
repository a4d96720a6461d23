"""Models taken apart, and smaller ones made of the parts."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from tilewright.cli.feeds import read_array
from tilewright.cli.submodel import ModelParts, write_case
from tilewright.support.errors import UserError

DIAMOND = """
<ir_version: 9, opset_import: ["" : 18]>
m (float[2, N] x) => (float[2, N] y)
<float[1] w = {2.0}, int64[2] s = {-1, 2}> {
    a = Mul(x, w)
    b = Reshape(a, s)
    c = Neg(a)
    d = NonZero(c)
    e = Shape(d)
    y = Add(c, w)
}
"""
X = np.ones((2, 3), np.float32)


def parts_of(model: str | ModelProto, folder: Path) -> ModelParts:
    path = folder / "m.onnx"
    proto = parser.parse_model(model) if isinstance(model, str) else model
    path.write_bytes(proto.SerializeToString())
    return ModelParts(path)


def test_what_nodes_use_and_give(tmp_path: Path) -> None:
    with parts_of(DIAMOND, tmp_path) as parts:
        assert [n.op_type for n in parts.nodes] == ["Mul", "Reshape", "Neg", "NonZero", "Shape", "Add"]
        assert parts.uses == [("x",), ("a",), ("a",), ("c",), ("d",), ("c",)]
        assert parts.ancestors(4) == [0, 2, 3, 4]
        assert parts.taken([2, 5]) == ["a"]
        assert parts.taken([0, 1]) == ["x"]
        assert parts.last_use["a"] == 2
        assert parts.title(0) == "Mul_0"
        assert [parts.weight_bytes(i) for i in (0, 1, 2)] == [4, 16, 0]


def test_a_cut_model_has_what_its_nodes_need_and_runs(tmp_path: Path) -> None:
    with parts_of(DIAMOND, tmp_path) as parts:
        model = parts.cut([1, 2], ["b", "c"], {"a": X})
    assert [i.name for i in model.graph.input] == ["a"]
    assert [t.name for t in model.graph.initializer] == ["s"]
    found: Any = ReferenceEvaluator(model).run(None, {"a": X})
    assert [v.shape for v in found] == [(3, 2), (2, 3)]


def test_sizes_are_known_as_far_as_shapes_are(tmp_path: Path) -> None:
    with parts_of(DIAMOND, tmp_path) as parts:
        # What NonZero gives depends on data; that it has two rows does not.
        assert parts.output_bytes(range(6), {"x": X}) == [24, 24, 24, None, 16, 24]
        values = {"c": X, "d": np.zeros((2, 6), np.int64)}
        assert parts.output_bytes([4, 5], values) == [16, 24]


def test_large_weights_and_constants_are_read_from_the_file(tmp_path: Path) -> None:
    """The importer leaves them in the file; a smaller model has them itself."""
    big = np.arange(40_000, dtype=np.float32)
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> m (float[40000] x) => (float[40000] y) '
        "{ c = Constant() a = Add(x, c) y = Add(a, w) }"
    )
    model.graph.node[0].attribute.append(helper.make_attribute("value", numpy_helper.from_array(big)))
    model.graph.initializer.append(numpy_helper.from_array(2 * big, "w"))
    with parts_of(model, tmp_path) as parts:
        cut = parts.cut(range(3), ["y"], {"x": big})
    (found,) = ReferenceEvaluator(cut).run(None, {"x": big})  # pyright: ignore
    np.testing.assert_array_equal(found, 4 * big)


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn, np.bool_, object]
)
def test_weights_of_all_types_survive(dtype: Any, tmp_path: Path) -> None:
    values = np.array(["a", "é", ""], object) if dtype is object else np.array([1, 0, 1]).astype(dtype)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["w"], ["y"])],
            "m",
            [],
            [onnx.ValueInfoProto(name="y")],
            [numpy_helper.from_array(values, "w")],
        )
    )
    with parts_of(model, tmp_path) as parts:
        (weight,) = parts.cut([0], ["y"], {}).graph.initializer
    again = numpy_helper.to_array(weight)
    assert again.dtype == values.dtype
    np.testing.assert_array_equal(again, values)


def test_a_model_with_a_cycle_is_refused(tmp_path: Path) -> None:
    text = (
        '<ir_version: 9, opset_import: ["" : 18]> m (float[1] x) => (float[1] y) { y = Add(x, z) z = Neg(y) }'
    )
    with pytest.raises(UserError, match="cycle"):
        parts_of(text, tmp_path)


def test_test_data_are_read_as_inputs(tmp_path: Path) -> None:
    with parts_of(DIAMOND, tmp_path) as parts:
        model = parts.cut([0], ["a"], {"x": X})
    write_case(tmp_path / "case", model, {"x": X, "s": [X, X]}, {"a": 2 * X, "none": None})
    data = tmp_path / "case" / "test_data_set_0"
    np.testing.assert_array_equal(read_array(str(data / "input_0.pb")), X)
    np.testing.assert_array_equal(read_array(str(data / "output_0.pb")), 2 * X)
    sequence = onnx.SequenceProto.FromString((data / "input_1.pb").read_bytes())
    assert len(numpy_helper.to_list(sequence)) == 2


def test_a_file_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pb"
    bad.write_bytes(b"\xff" * 20)
    for path in (bad, tmp_path / "absent.pb"):
        with pytest.raises(UserError, match="cannot read a tensor"):
            read_array(str(path))
    bad.write_bytes(onnx.TensorProto(data_type=1, dims=[5], raw_data=b"1234").SerializeToString())
    with pytest.raises(UserError, match="raw data has 4 bytes"):
        read_array(str(bad))


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        write_case(tmp_path / "file" / "case", ModelProto(), {}, {})
