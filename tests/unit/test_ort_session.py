"""`tilewright.ort` against ONNX Runtime: the same names, types, results and errors."""

import inspect
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as real
import pytest
from onnx import TensorProto, helper

import tilewright.ort as ours
from tilewright.ort import inference_session

BOTH = pytest.mark.parametrize("ort", [real, ours], ids=["real", "ours"])
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 11


def tensor(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(inputs: Any, outputs: Any, nodes: Any, initializers: Any = ()) -> bytes:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializers), doc_string="of a graph")
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made.producer_name, made.domain, made.model_version, made.doc_string = "tests", "a.b", 7, "of a model"
    helper.set_model_props(made, {"key": "value", "": "empty"})
    return made.SerializeToString()


def open_relu() -> bytes:
    return model(
        [tensor("x", ["batch", 3, None])],
        [tensor("y", ["batch", 3, None])],
        [helper.make_node("Relu", ["x"], ["y"])],
    )


def closed_sum(shape: Any = (2, 3)) -> bytes:
    return model(
        [tensor("a", shape), tensor("b", shape)],
        [tensor("sum", shape), tensor("double", None)],
        [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Add", ["sum", "sum"], ["double"])],
    )


def weighted() -> bytes:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [2.0, 3.0])
    return model(
        [tensor("x", [2]), tensor("w", [2])],
        [tensor("y", [2])],
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [weight],
    )


def described(args: Any) -> list[tuple[str, str, list[Any]]]:
    return [(a.name, a.type, a.shape) for a in args]


def test_every_public_name_is_there() -> None:
    missing = [n for n in dir(real) if not n.startswith("_") and not hasattr(ours, n)]
    assert not missing
    state = real.capi.onnxruntime_pybind11_state
    ours_state = ours.capi.onnxruntime_pybind11_state
    errors = [n for n, c in vars(state).items() if inspect.isclass(c) and issubclass(c, Exception)]
    assert not [n for n in errors if n not in vars(ours_state)]


@pytest.mark.parametrize(
    "name", ["InferenceSession", "OrtValue", "IOBinding", "SessionOptions", "RunOptions"]
)
def test_every_method_that_programs_use_is_there(name: str) -> None:
    # Of the accelerators and of ONNX Runtime's own files; nobody without these calls them.
    others = {
        *("release_captured_graph", "set_ep_dynamic_options", "get_tuning_results", "set_tuning_results"),
        *("run_with_ortvaluevector", "get_provider_graph_assignment_info", "get_input_epdevices"),
        *("create_ortvalue_from_shape_and_type", "get_initializer_location_func_wrapper"),
        *("get_input_memory_infos", "get_output_memory_infos"),
        *("ort_value_from_sparse_tensor", "as_sparse_tensor", "get_outputs_as_ortvaluevector"),
        *("add_external_initializers_from_files_in_memory", "add_provider_for_devices"),
        *("set_ep_context_data_read_func", "clear_ep_context_data_read_func", "set_load_cancellation_flag"),
        *("set_provider_selection_policy", "set_provider_selection_policy_delegate", "add_active_adapter"),
    }
    there = {n for n in dir(getattr(real, name)) if not n.startswith("_")}
    assert there - set(dir(getattr(ours, name))) <= others


@pytest.mark.parametrize(
    "name", [n for n, c in vars(ours).items() if isinstance(c, type(ours.ExecutionMode))]
)
def test_enumerations_have_the_same_numbers(name: str) -> None:
    theirs = {k: int(v) for k, v in getattr(real, name).__members__.items()}
    mine = {k: int(v) for k, v in getattr(ours, name).__members__.items()}
    assert mine == theirs


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_options_have_the_same_defaults(name: str) -> None:
    theirs, mine = getattr(real, name)(), getattr(ours, name)()
    names = [n for n in dir(theirs) if not n.startswith("_") and not callable(getattr(theirs, n))]
    assert len(names) >= 5
    for n in names:
        want = getattr(theirs, n)
        assert getattr(mine, n) == (int(want) if hasattr(want, "__members__") else want), n


@BOTH
def test_options_refuse_what_does_not_fit(ort: Any) -> None:
    options = ort.SessionOptions()
    with pytest.raises(TypeError):
        options.intra_op_num_threads = "many"
    with pytest.raises(TypeError):
        options.graph_optimization_level = 1
    with pytest.raises(AttributeError):
        options.intra_op_threads = 1
    with pytest.raises(TypeError):
        options.add_session_config_entry("key", 1)
    with pytest.raises(RuntimeError, match="does not have configuration with key: key"):
        options.get_session_config_entry("key")
    options.add_session_config_entry("key", "value")
    assert options.get_session_config_entry("key") == "value"
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="Failed to load library"):
        options.register_custom_ops_library("/nonexistent/library.so")


KINDS = [k for k in ("FLOAT16", "DOUBLE", "INT8", "UINT8", "INT32", "INT64", "BOOL", "STRING", "BFLOAT16")]


@pytest.mark.parametrize("kind", KINDS)
def test_types_are_written_alike(kind: str) -> None:
    number = TensorProto.DataType.Value(kind)
    data = model(
        [tensor("x", ["n", None, 2, 0], number)],
        [tensor("y", ["n", None, 2, 0], number)],
        [helper.make_node("Identity", ["x"], ["y"])],
    )
    theirs, mine = real.InferenceSession(data), ours.InferenceSession(data)
    assert described(mine.get_inputs()) == described(theirs.get_inputs())
    assert described(mine.get_outputs()) == described(theirs.get_outputs())
    assert str(mine.get_inputs()[0]) == str(theirs.get_inputs()[0])


def test_sequences_and_optionals_are_written_alike() -> None:
    outputs = [
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["n"]),
        helper.make_value_info(
            "o", helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
        ),
    ]
    data = model(
        [tensor("x", ["n"])],
        outputs,
        [
            helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
            helper.make_node("Optional", ["x"], ["o"]),
        ],
    )
    theirs, mine = real.InferenceSession(data), ours.InferenceSession(data)
    assert described(mine.get_outputs()) == described(theirs.get_outputs())
    want, got = (s.run(["s"], {"x": X[0, 0]})[0] for s in (theirs, mine))
    assert isinstance(got, list)
    np.testing.assert_array_equal(got, want)


def test_metadata_is_that_of_the_model() -> None:
    data = open_relu()
    theirs, mine = (o.InferenceSession(data).get_modelmeta() for o in (real, ours))
    for name in [n for n in dir(theirs) if not n.startswith("_")]:
        assert getattr(mine, name) == getattr(theirs, name), name


def test_known_shapes_of_outputs_are_told_though_the_model_does_not() -> None:
    theirs, mine = (o.InferenceSession(closed_sum()) for o in (real, ours))
    assert described(mine.get_outputs()) == described(theirs.get_outputs())


@BOTH
def test_results_come_in_the_order_that_is_asked_for(ort: Any) -> None:
    session = ort.InferenceSession(closed_sum())
    feeds = {"b": X[0, :2, :3].copy(), "a": X[1, :2, :3].copy()}
    first, second = session.run(None, feeds)
    np.testing.assert_array_equal(second, first * 2)
    np.testing.assert_array_equal(session.run(["double"], feeds)[0], second)
    assert [r.tolist() for r in session.run(("double", "sum"), feeds)] == [second.tolist(), first.tolist()]
    assert session.run([], feeds)[1].flags.c_contiguous


@BOTH
def test_shapes_may_vary(ort: Any) -> None:
    session = ort.InferenceSession(open_relu())
    for batch, length in ((2, 4), (5, 4), (3, 7), (2, 4)):
        x = np.random.default_rng(batch).normal(size=(batch, 3, length)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.maximum(x, 0))
        assert y.flags.c_contiguous
    (y,) = session.run(None, {"x": X.tolist()})
    np.testing.assert_array_equal(y, np.maximum(X, 0))


def fault(ort: Any, what: Callable[[Any], Any]) -> tuple[str, str]:
    with pytest.raises(Exception) as caught:  # whichever: that is what is compared
        what(ort)
    return type(caught.value).__name__, str(caught.value)


RUNS: dict[str, Callable[[Any], Any]] = {
    "missing": lambda s: s.run(None, {}),
    "another name": lambda s: s.run(None, {"z": X}),
    "one too many": lambda s: s.run(None, {"x": X, "z": X}),
    "rank": lambda s: s.run(None, {"x": X[0]}),
    "dimension": lambda s: s.run(None, {"x": X.reshape(2, 4, 3)}),
    "float64": lambda s: s.run(None, {"x": X.astype(np.float64)}),
    "int64": lambda s: s.run(None, {"x": X.astype(np.int64)}),
    "number": lambda s: s.run(None, {"x": 1.0}),
    "output": lambda s: s.run(["q"], {"x": X}),
    "feeds in a list": lambda s: s.run(None, [X]),
}


@pytest.mark.parametrize("what", RUNS)
def test_mistakes_of_a_run_are_the_same_errors(what: str) -> None:
    theirs, mine = (fault(o.InferenceSession(open_relu()), RUNS[what]) for o in (real, ours))
    assert mine == theirs


def unknown_op(domain: str = "") -> bytes:
    return model(
        [tensor("x", [1])], [tensor("y", None)], [helper.make_node("Foo", ["x"], ["y"], domain=domain)]
    )


LOADS: dict[str, Callable[[Any], Any]] = {
    "no file": lambda o: o.InferenceSession("/nonexistent/model.onnx"),
    "no file, as a path": lambda o: o.InferenceSession(Path("/nonexistent/model.onnx")),
    "a folder": lambda o: o.InferenceSession("/"),
    "garbage": lambda o: o.InferenceSession(b"hello, world"),
    "cut off": lambda o: o.InferenceSession(open_relu()[:-3]),
    "nothing": lambda o: o.InferenceSession(b""),
    "a number": lambda o: o.InferenceSession(3),
    "an unknown operator": lambda o: o.InferenceSession(unknown_op()),
    "an unknown domain": lambda o: o.InferenceSession(unknown_op("my.domain")),
    "a loose end": lambda o: o.InferenceSession(
        model([tensor("x", [1])], [tensor("y", None)], [helper.make_node("Relu", ["q"], ["y"])])
    ),
}


@pytest.mark.parametrize("what", LOADS)
def test_mistakes_of_a_model_are_the_same_errors(what: str) -> None:
    real.set_default_logger_severity(4)
    theirs, mine = (fault(o, LOADS[what]) for o in (real, ours))
    assert mine == theirs


@BOTH
def test_initializers_that_are_inputs_may_be_fed(ort: Any) -> None:
    session = ort.InferenceSession(weighted())
    assert [a.name for a in session.get_inputs()] == ["x"]
    assert described(session.get_overridable_initializers()) == [("w", "tensor(float)", [2])]
    x, w = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [3, 5]
    assert session.run(None, {"x": x, "w": w})[0].tolist() == [11, 22]
    assert session.run(None, {"x": x})[0].tolist() == [3, 5]


@BOTH
def test_initializers_may_be_given_in_options(ort: Any) -> None:
    options = ort.SessionOptions()
    value = ort.OrtValue.ortvalue_from_numpy(np.array([10, 20], np.float32))
    options.add_initializer("w", value)
    session = ort.InferenceSession(weighted(), options)
    assert session.run(None, {"x": np.array([1, 2], np.float32)})[0].tolist() == [11, 22]


@BOTH
def test_dimensions_may_be_fixed_by_name(ort: Any) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 5)
    session = ort.InferenceSession(open_relu(), options)
    assert session.get_inputs()[0].shape == [5, 3, None]
    with pytest.raises(
        ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="index: 0 Got: 2 Expected: 5"
    ):
        session.run(None, {"x": X})
    assert session.run(None, {"x": np.ones((5, 3, 1), np.float32)})[0].shape == (5, 3, 1)


@BOTH
def test_a_run_that_is_to_end_ends(ort: Any) -> None:
    session, options = ort.InferenceSession(open_relu()), ort.RunOptions()
    session.run(None, {"x": X}, options)
    options.terminate = True
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="terminate flag"):
        session.run(None, {"x": X}, options)


@BOTH
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_providers(ort: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in (
        None,
        [],
        ["CPUExecutionProvider"],
        ["CUDAExecutionProvider", ("CPUExecutionProvider", {})],
    ):
        session = ort.InferenceSession(open_relu(), providers=wanted)
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert list(session.get_provider_options()) == ["CPUExecutionProvider"]
    assert ort.InferenceSession(open_relu(), providers=["FooExecutionProvider"]).get_providers()
    assert "EP Error Unknown Provider Type: FooExecutionProvider" in capsys.readouterr().out
    with pytest.raises(ValueError, match="same length"):
        ort.InferenceSession(
            open_relu(), providers=["CPUExecutionProvider"], provider_options=[], enable_fallback=0
        )
    assert "CPUExecutionProvider" in ort.get_available_providers()


def test_other_providers_are_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="Specified provider 'CUDAExecutionProvider' is not in available"):
        ours.InferenceSession(open_relu(), providers=["CUDAExecutionProvider"])
    own = ours.InferenceSession(open_relu(), providers=["TilewrightExecutionProvider"])
    assert own.get_providers() == ["TilewrightExecutionProvider", "CPUExecutionProvider"]


@BOTH
def test_values(ort: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())
    assert (value.shape(), value.data_type(), value.element_type()) == ([2, 3, 4], "tensor(float)", 1)
    assert (value.device_name(), value.is_tensor(), value.has_value()) == ("cpu", True, True)
    assert (value.is_sparse_tensor(), value.is_tensor_sequence()) == (False, False)
    assert value.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(value), X)
    value.update_inplace(X * 2)
    np.testing.assert_array_equal(value.numpy(), X * 2)
    np.testing.assert_array_equal(np.asarray(value), X * 2)
    with pytest.raises(RuntimeError, match="does not match the size"):
        value.update_inplace(X[0])
    with pytest.raises(RuntimeError, match="Can't allocate memory on the device"):
        ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    empty = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64)
    assert (empty.shape(), empty.data_type()) == ([2, 3], "tensor(int64)")
    session = ort.InferenceSession(open_relu())
    (result,) = session.run_with_ort_values(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(X)})
    np.testing.assert_array_equal(result.numpy(), np.maximum(X, 0))
    np.testing.assert_array_equal(ort.OrtValue.from_dlpack(X.copy()).numpy(), X)


@BOTH
def test_bindings(ort: Any) -> None:
    session = ort.InferenceSession(closed_sum())
    a, b = X[0, :2, :3].copy(), X[1, :2, :3].copy()
    out = np.zeros((2, 3), np.float32)
    binding = session.io_binding()
    with pytest.raises(RuntimeError, match="At least one output"):
        session.run_with_iobinding(binding)
    with pytest.raises(RuntimeError, match="Failed to find NodeArg with name: q"):
        binding.bind_cpu_input("q", a)
    binding.bind_cpu_input("a", a)
    binding.bind_input("b", "cpu", 0, np.float32, b.shape, b.ctypes.data)
    binding.bind_output("double")
    binding.bind_output("sum", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out, a + b)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], (a + b) * 2)
    np.testing.assert_array_equal(binding.get_outputs()[1].numpy(), a + b)
    other = ort.OrtValue.ortvalue_from_shape_and_type((2, 3), np.float32)
    binding.bind_ortvalue_output("sum", other)
    binding.bind_ortvalue_input("a", ort.OrtValue.ortvalue_from_numpy(b))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(other.numpy(), b + b)
    with pytest.raises(ValueError, match="session that created it"):
        ort.InferenceSession(closed_sum()).run_with_iobinding(binding)
    binding.clear_binding_outputs()
    with pytest.raises(RuntimeError, match="At least one output"):
        session.run_with_iobinding(binding)


def test_a_binding_may_write_to_what_it_reads() -> None:
    session = ours.InferenceSession(closed_sum())
    a, b = X[0, :2, :3].copy(), X[1, :2, :3].copy()
    want = a + b
    binding = session.io_binding()
    binding.bind_cpu_input("a", a)
    binding.bind_cpu_input("b", b)
    binding.bind_ortvalue_output("sum", ours.OrtValue.ortvalue_from_numpy(a))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(a, want)


@BOTH
def test_profiling_writes_a_trace(ort: Any, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = ort.InferenceSession(open_relu(), options)
    session.run(None, {"x": X})
    assert session.get_profiling_start_time_ns() > 0
    path = Path(session.end_profiling())
    assert path.name.startswith("profile_")
    events = json.loads(path.read_text())
    assert {"session_initialization", "model_run"} <= {e["name"] for e in events}
    assert all(e["ph"] == "X" and e["dur"] >= 0 for e in events)
    assert ort.InferenceSession(open_relu()).end_profiling() == ""


@BOTH
def test_text_is_taken_in_both_of_numpys_types(ort: Any) -> None:
    data = model(
        [tensor("x", [2], TensorProto.STRING)],
        [tensor("y", [2], TensorProto.STRING)],
        [helper.make_node("Identity", ["x"], ["y"])],
    )
    session = ort.InferenceSession(data)
    for texts in (np.array(["a", "bc"]), np.array(["a", "bc"], object)):
        assert session.run(None, {"x": texts})[0].tolist() == ["a", "bc"]


@BOTH
def test_a_run_may_be_left_to_another_thread(ort: Any) -> None:
    session, done = ort.InferenceSession(open_relu()), threading.Event()
    found: list[Any] = []

    def take(results: Any, user_data: Any, error: str) -> None:
        found.extend([results, user_data, error])
        done.set()

    session.run_async(None, {"x": X}, take, "mine")
    assert done.wait(60)
    np.testing.assert_array_equal(found[0][0], np.maximum(X, 0))
    assert found[1:] == ["mine", ""]


def test_sessions_run_in_several_threads() -> None:
    session = ours.InferenceSession(open_relu())
    faults: list[str] = []

    def work(batch: int) -> None:
        x = np.full((batch, 3, 4), batch, np.float32)
        for _ in range(50):
            (y,) = session.run(None, {"x": x})
            if y.shape != x.shape or not (y == batch).all():
                faults.append(f"{batch}: {y}")

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_threads_are_those_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ours.SessionOptions()
    options.intra_op_num_threads = 1
    seen: list[int | None] = []
    load = inference_session.OwnProgram

    def noted(model: Any, threads: int | None, *rest: Any) -> Any:
        seen.append(threads)
        return load(model, threads, *rest)

    monkeypatch.setattr(inference_session, "OwnProgram", noted)
    ours.InferenceSession(open_relu(), options)
    ours.InferenceSession(open_relu())
    options.use_per_session_threads = False
    ours.set_global_thread_pool_sizes(2, 1)
    ours.InferenceSession(open_relu(), options)
    assert seen == [1, None, 2]


# ------------------------------------------------------------------------------------- what others have to run


SQUARES = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)


def contrib() -> bytes:
    """An operator of ONNX Runtime's own that Tilewright does not have."""
    graph = helper.make_graph(
        [
            helper.make_node("UnfoldTensor", ["x"], ["t"], domain="com.microsoft", size=2),
            helper.make_node("Relu", ["t"], ["y"]),
        ],
        "graph",
        [tensor("x", [2, 3, 3])],
        [tensor("y", [2, 3, 2, 2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def test_what_is_not_supported_goes_to_onnx_runtime_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(contrib())
    want = real.InferenceSession(path).run(None, {"x": SQUARES})[0]
    with caplog.at_level(logging.WARNING, "tilewright"):
        for _ in range(2):
            session = ours.InferenceSession(path)
            np.testing.assert_array_equal(session.run(None, {"x": SQUARES})[0], want)
    assert "run by ONNX Runtime" in repr(session)
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert str(path) in said[0]
    assert "UnfoldTensor" in said[0]


def test_without_onnx_runtime_it_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_session, "is_installed", lambda: False)
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.NotImplemented, match="pip install onnxruntime"):
        ours.InferenceSession(contrib())


def test_falling_back_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ours.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.NotImplemented, match="falling back"):
        ours.InferenceSession(contrib(), options)
    monkeypatch.setenv("TILEWRIGHT_ORT_FALLBACK", "0")
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.NotImplemented, match="falling back"):
        ours.InferenceSession(contrib())


def test_shapes_that_only_onnx_runtime_takes(caplog: pytest.LogCaptureFixture) -> None:
    """One name for two sizes: ONNX Runtime warns and broadcasts."""
    data = model(
        [tensor("a", ["n", 3]), tensor("b", ["n", 3])],
        [tensor("y", ["n", 3])],
        [helper.make_node("Add", ["a", "b"], ["y"])],
    )
    session = ours.InferenceSession(data)
    a, b = np.ones((2, 3), np.float32), np.ones((1, 3), np.float32)
    assert session.run(None, {"a": a, "b": a})[0].shape == (2, 3)
    assert "run by Tilewright" in repr(session)
    with caplog.at_level(logging.WARNING, "tilewright"):
        np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], a + b)
    assert "run by ONNX Runtime" in caplog.text


def test_a_run_that_both_refuse_leaves_our_program_in_place() -> None:
    data = model(
        [tensor("a", ["m", "k"]), tensor("b", ["l", "n"])],
        [tensor("y", ["m", "n"])],
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
    )
    session = ours.InferenceSession(data)
    a, b = np.ones((2, 3), np.float32), np.ones((4, 5), np.float32)
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.Fail, match="MatMul dimension mismatch"):
        session.run(None, {"a": a, "b": b})
    assert "run by Tilewright" in repr(session)
    assert session.run(None, {"a": a, "b": a.T})[0].tolist() == [[3, 3], [3, 3]]


def test_names_that_only_onnx_runtime_has_are_its_own() -> None:
    assert ours.SparseTensor is real.SparseTensor
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = ours.no_such_name


def test_severities_are_levels_of_logging() -> None:
    logger = logging.getLogger("tilewright")
    before, handlers = logger.level, list(logger.handlers)
    try:
        ours.set_default_logger_severity(3)
        assert not logger.isEnabledFor(logging.WARNING)
        ours.set_default_logger_severity(0)
        assert logger.isEnabledFor(logging.DEBUG)
        with pytest.raises(RuntimeError, match="severity"):
            ours.set_default_logger_severity(9)
    finally:
        logger.setLevel(before)
        logger.handlers[:] = handlers


def test_the_optimised_model_that_is_asked_for_can_be_loaded(tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ours.InferenceSession(open_relu(), options)
    (y,) = real.InferenceSession(tmp_path / "optimised.onnx").run(None, {"x": X})
    np.testing.assert_array_equal(y, np.maximum(X, 0))


def branching(output: str) -> bytes:
    """What a number decides: Relu or Neg."""

    def body(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [tensor(op, None)])

    sixteen = helper.make_tensor("sixteen", TensorProto.INT64, [], [16])
    return model(
        [tensor("x", ["n"]), tensor("rate", [], TensorProto.INT64)],
        [tensor(output, ["n"])],
        [
            helper.make_node("Equal", ["rate", "sixteen"], ["is"]),
            helper.make_node("If", ["is"], [output], then_branch=body("Relu"), else_branch=body("Neg")),
        ],
        [sixteen],
    )


@BOTH
def test_a_number_may_decide_what_runs(ort: Any) -> None:
    session = ort.InferenceSession(branching("y"))
    x = np.array([-1, 2], np.float32)
    for rate, want in ((16, [0, 2]), (8, [1, -2]), (16, [0, 2]), *((n, [1, -2]) for n in range(8))):
        assert session.run(None, {"x": x, "rate": np.array(rate, np.int64)})[0].tolist() == want
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="tensor\\(int32\\)"):
        session.run(None, {"x": x, "rate": np.array(16, np.int32)})
    with pytest.raises(ValueError, match="missing from input feed"):
        session.run(None, {"rate": np.array(16, np.int64)})


def test_what_a_number_decides_is_one_program_for_its_value(caplog: pytest.LogCaptureFixture) -> None:
    session = ours.InferenceSession(branching("z"))
    with caplog.at_level(logging.INFO, "tilewright"):
        session.run(None, {"x": X[0, 0], "rate": np.array(16, np.int64)})
    assert "compiling for x [4]" in caplog.text
    assert "the host runs a part" not in caplog.text
