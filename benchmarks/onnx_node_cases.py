"""The node cases of ONNX's own test suite, run one by one and judged as ONNX's runner judges them.

They are made, not read, which takes some seconds. So one process makes them, and sends each as a packet to a process
that runs it.
"""

import re
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from onnx import ModelProto, SequenceProto, TensorProto, numpy_helper
from onnx.backend.base import Backend
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from tilewright.backend import TilewrightBackend
from tilewright.support.errors import UserError
from tilewright.support.frames import pack

_EXPANDED = re.compile(
    r"_expanded(_ver\d+)?$"
)  # the same case, with the node replaced by its function's body
_NODE = re.compile(r" in (the )?node .*")  # which names the case's values; the operator is said elsewhere


@lru_cache(maxsize=1)  # it takes some seconds
def load_cases() -> dict[str, TestCase]:
    """All node cases by name, in the suite's order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about infinities and NaN that are meant
        return {case.name: case for case in load_model_tests(kind="node")}


def op_of(name: str, cases: dict[str, TestCase]) -> str:
    """The operator that a case is about, with its domain unless that is ONNX's."""
    case = cases.get(_EXPANDED.sub("", name), cases[name])
    assert case.model is not None
    node = case.model.graph.node[0]
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


# ------------------------------------------------------------------------------------------------------------- packets


def pack_case(case: TestCase) -> bytes:
    assert case.model is not None and case.data_sets is not None
    kinds: list[list[list[str]]] = []
    blobs = [case.model.SerializeToString()]
    for data_set in case.data_sets:
        values = [[_packed(v) for v in side] for side in data_set]
        kinds.append([[kind for kind, _ in side] for side in values])
        blobs += [blob for side in values for _, blob in side]
    return pack({"name": case.name, "rtol": case.rtol, "atol": case.atol, "kinds": kinds}, blobs)


def unpack_case(head: Any, blobs: list[bytes]) -> TestCase:
    model, *values = blobs
    rest = iter(values)
    data_sets = [[[_unpacked(k, next(rest)) for k in side] for side in kinds] for kinds in head["kinds"]]
    name: str = head["name"]
    return TestCase(
        name=name,
        model_name=name,
        url=None,
        model_dir=None,
        model=ModelProto.FromString(model),
        data_sets=cast(Any, data_sets),
        kind="node",
        rtol=head["rtol"],
        atol=head["atol"],
    )


def as_value(value: Any) -> Any:
    """Values of short types are tensors in the suite, others are arrays."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _packed(value: Any) -> tuple[str, bytes]:
    if value is None:
        return "nothing", b""
    if isinstance(value, list):
        return "sequence", numpy_helper.from_list(value).SerializeToString()  # pyright: ignore[reportUnknownArgumentType]
    tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(value)
    return "tensor", tensor.SerializeToString()


def _unpacked(kind: str, blob: bytes) -> Any:
    match kind:
        case "nothing":
            return None
        case "sequence":
            return numpy_helper.to_list(SequenceProto.FromString(blob))
        case _:
            return numpy_helper.to_array(TensorProto.FromString(blob))


# ---------------------------------------------------------------------------------------------------------------- runs


def run_case(case: TestCase, backend: type[Backend] = TilewrightBackend) -> str:
    """What is wrong with the result; empty if nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _run(case, backend)
    except UserError as e:
        return _NODE.sub("", _summary(e.message))
    except AssertionError as e:
        return f"wrong: {_summary(str(e))}"
    except Exception as e:
        return f"{type(e).__name__}: {_summary(str(e))}"
    return ""


def _run(case: TestCase, backend: type[Backend]) -> None:
    assert case.model is not None and case.data_sets is not None
    prepared = backend.prepare(case.model, "CPU", threads=1)
    assert prepared is not None
    for data_set in case.data_sets:
        inputs, expected = ([as_value(v) for v in side] for side in data_set)
        results = prepared.run(inputs)
        _check_lengths(expected, results)
        Runner.assert_similar_outputs(expected, results, case.rtol, case.atol)


def _check_lengths(expected: Sequence[Any], results: Sequence[Any]) -> None:
    """ONNX's runner compares as many elements of a sequence as the result has, be they too few."""
    for want, got in zip(expected, results, strict=False):
        if isinstance(want, list):
            length = len(cast("list[Any]", got)) if isinstance(got, list) else None
            wanted = len(cast("list[Any]", want))
            assert length == wanted, f"a sequence of {length}, not of {wanted}"


def _summary(text: str) -> str:
    """The first line that says something; with what follows, if it only announces that."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "without a message"
    return " ".join(lines[:3]) if lines[0].endswith(":") else lines[0]
