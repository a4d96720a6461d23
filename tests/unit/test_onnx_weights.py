"""Weights that are read past protobuf: the same tensors as protobuf gives, from any file."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.frontend.onnx import weights as onnx_weights
from tilewright.frontend.onnx.file import LIMITS, read_model
from tilewright.frontend.onnx.load import load_graph
from tilewright.frontend.onnx.weights import LARGE, cut_weights
from tilewright.support.errors import UserError

RNG = np.random.default_rng(0)


def model(large: int = LARGE // 4 + 3) -> onnx.ModelProto:
    """y = x + w + v + c: a large initializer, a small one, and a large constant of a node."""
    w, v, c = (RNG.standard_normal(n).astype(np.float32) for n in (large, 1, large))
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(c, "w")),
            helper.make_node("Add", ["x", "w"], ["a"]),
            helper.make_node("Add", ["a", "v"], ["b"]),
            helper.make_node("Add", ["b", "c"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [large])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [large])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def constants(source: "Path | bytes | onnx.ModelProto") -> dict[str, np.ndarray]:
    return {v.name: a for v, a in load_graph(source).constants.items()}


def saved(folder: Path, data: bytes) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(data)
    return path


def test_graphs_are_the_same_as_from_bytes(tmp_path: Path) -> None:
    data = model().SerializeToString()
    got, want = constants(saved(tmp_path, data)), constants(data)
    assert list(got) == list(want) and len(got) == 3
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
        assert not got[name].flags.writeable
        assert got[name].size == 1 or got[name].ctypes.data % 64 == 0


def test_protobuf_does_not_see_large_weights(tmp_path: Path) -> None:
    path = saved(tmp_path, model().SerializeToString())
    proto, reader = read_model(path, LIMITS)
    with_data = [len(t.raw_data) for t in proto.graph.initializer]
    reader.close()
    assert with_data[0] < 100 and with_data[1] == 4


def test_what_is_not_cut_is_the_same_to_the_byte(tmp_path: Path) -> None:
    """With tokens put back, what protobuf gets is the file itself."""
    data = model().SerializeToString()
    path = saved(tmp_path, data)
    with open(path, "rb") as f:
        cut = cut_weights(f, len(data))
        assert cut is not None
        rest, weights = cut
        assert len(rest) < len(data) // 10 and len(weights.places) == 2
        parsed = onnx.ModelProto.FromString(rest)
        for t in (parsed.graph.initializer[0], parsed.graph.node[0].attribute[0].t):
            array = weights.try_read(t.raw_data)
            assert array is not None
            t.raw_data = array.tobytes()
        assert parsed.SerializeToString() == data


def test_a_tensor_may_be_read_twice(tmp_path: Path) -> None:
    proto, reader = read_model(saved(tmp_path, model().SerializeToString()), LIMITS)
    arrays = [reader.read(proto.graph.initializer[0]) for _ in range(3)]
    reader.close()
    assert all(np.array_equal(a, arrays[0]) for a in arrays)
    assert len({a.ctypes.data for a in arrays}) == 3


def test_merged_messages_mean_what_they_mean_to_protobuf(tmp_path: Path) -> None:
    """A file may hold a message in several parts, and a field twice: the last one counts."""
    whole = model()
    [w, v] = whole.graph.initializer
    tensor = w.SerializeToString() + TensorProto(raw_data=w.raw_data[::-1]).SerializeToString()
    del whole.graph.initializer[0]
    graph = b"\x2a" + varint(len(tensor)) + tensor  # GraphProto.initializer
    data = whole.SerializeToString() + b"\x3a" + varint(len(graph)) + graph  # ModelProto.graph, once more
    got, want = constants(saved(tmp_path, data)), constants(data)
    assert list(got) == list(want) and want["w"].tobytes() == w.raw_data[::-1] and v.name in want
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


def varint(n: int) -> bytes:
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def test_damaged_files_are_left_to_protobuf(tmp_path: Path) -> None:
    data = model().SerializeToString()
    for damaged in (data[:-1], data[: len(data) // 2], data + b"\x0b", data + b"\xff" * 12, data[:3]):
        with pytest.raises(UserError, match=r"not an ONNX model|has no graph"):
            load_graph(saved(tmp_path, damaged))


def test_random_bytes_never_crash_a_scan(tmp_path: Path) -> None:
    data = bytearray(model().SerializeToString())
    head = bytes(data[:200])
    for seed in range(60):
        rng = np.random.default_rng(seed)
        data[:200] = head
        for at in rng.integers(0, 200, 3):
            data[at] = rng.integers(0, 256)
        path = saved(tmp_path, bytes(data))
        outcomes: list[object] = []
        for source in (path, bytes(data)):
            try:
                outcomes.append({n: a.tobytes() for n, a in constants(source).items()})
            except UserError as e:
                outcomes.append(e.message.replace(str(path), "the given bytes"))
        assert outcomes[0] == outcomes[1]


def test_many_small_fields_are_left_to_protobuf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_weights, "_MAX_FIELDS", 4)
    data = model().SerializeToString()
    with open(saved(tmp_path, data), "rb") as f:
        assert cut_weights(f, len(data)) is None
    assert len(constants(tmp_path / "m.onnx")) == 3


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path, model().SerializeToString())
    proto, reader = read_model(path, LIMITS)
    os.truncate(path, 1000)
    with pytest.raises(UserError, match="cut off while it was read"):
        reader.read(proto.graph.initializer[0])
    reader.close()
