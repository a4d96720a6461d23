"""Layers, ranges, weights and plans of `tilewright quantize`; and that written models do what their simulation does."""

from functools import partial
from itertools import product
from math import inf, sqrt
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.quantize_models import convolutions, model_of, products, samples_of
from tilewright.api import load
from tilewright.quantize.error import relative_error
from tilewright.quantize.forms import LayerForm
from tilewright.quantize.layers import find_layers
from tilewright.quantize.model_file import read_whole
from tilewright.quantize.plan import Option, choose_forms
from tilewright.quantize.quantized_model import largest_weight
from tilewright.quantize.quantizer import Quantizer
from tilewright.quantize.ranges import ByteScale, Observer, observe
from tilewright.quantize.simulation import Simulation
from tilewright.quantize.weights import in_form
from tilewright.quantize.write import can_write, write_forms
from tilewright.support.errors import UserError
from tilewright.target.target import AVX2, AVX512_VNNI, AVX_VNNI

LOAD = partial(load, threads=1, cache=False)


def whole(model: ModelProto, folder: Path) -> ModelProto:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return read_whole(path)


# --------------------------------------------------------------------------------------------------------------- layers


def test_layers_are_found_and_others_say_why() -> None:
    found = find_layers(convolutions())
    assert [(n.name, n.outputs, n.products) for n in found.found] == [
        ("first", 32, 144),
        ("second", 64, 32),
        ("gemm", 64, 1024),
        ("matmul", 32, 64),
    ]
    assert list(found.others) == ["apart"]
    assert "filtered apart" in found.others["apart"]
    first, second, gemm, matmul = found.found
    assert first.bias is not None and first.has_offset
    assert second.bias is None and second.has_offset
    assert gemm.has_offset and not matmul.has_offset


def test_rows_of_weights_go_back_to_where_they_were() -> None:
    for layer in find_layers(convolutions()).found:
        np.testing.assert_array_equal(layer.as_stored(layer.rows), layer.weights)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (helper.make_node("MatMul", ["x", "x"], ["y"], name="n"), "no constant weights"),
        (helper.make_node("MatMul", ["x", "half"], ["y"], name="n"), "float16"),
        (helper.make_node("MatMul", ["x", "stack"], ["y"], name="n"), "no matrix"),
        (helper.make_node("Gemm", ["x", "w"], ["y"], name="n", alpha=2.0), "scaled"),
    ],
)
def test_what_is_no_layer(node: object, why: str) -> None:
    square = np.ones((4, 4), np.float32)
    weights = {"w": square, "half": square.astype(np.float16), "stack": square[None]}
    found = find_layers(model_of([node], weights, [4, 4]))  # pyright: ignore[reportArgumentType]
    assert not found.found
    assert why in found.others["n"]


def test_constants_are_read_as_initializers_and_nodes_get_names(tmp_path: Path) -> None:
    model = products()
    stored = model.graph.initializer[0]
    model.graph.node.insert(0, helper.make_node("Constant", [], [stored.name], value=stored))
    del model.graph.initializer[0]
    for node in model.graph.node:
        node.name = ""
    made = whole(model, tmp_path)
    assert len(find_layers(made).found) == 2
    names = [n.name for n in made.graph.node]
    assert all(names) and len(set(names)) == len(names)


def test_a_model_from_before_quantize_linear_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="opset 9"):
        whole(convolutions(opset=9), tmp_path)


# ------------------------------------------------------------------------------------------------- ranges and weights


def test_zero_is_a_byte_exactly() -> None:
    for low, high in ((-1.0, 3.0), (0.5, 2.0), (-2.0, -1.0), (0.0, 0.0)):
        assert ByteScale.of(low, high).restored(np.zeros(3, np.float32)).tolist() == [0, 0, 0]


def test_ranges_clip_what_is_rare() -> None:
    values = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    values[0, 0] = 8.0
    seen = Observer(-1)
    for part in np.split(values, 4):
        seen.see(part)
    scale = seen.scale()
    assert 3 < (255 - scale.zero) * scale.step < 6
    np.testing.assert_allclose(seen.mean, values.mean(axis=0), atol=1e-6)


def test_numbers_that_are_not_finite_are_not_seen() -> None:
    seen = Observer(-1)
    seen.see(np.array([[1.0, np.inf], [-1.0, np.nan]], np.float32))
    scale = seen.scale()
    assert 0 < scale.step < 0.01
    assert np.isfinite(seen.mean).all()


def test_a_tensor_of_zeros_has_a_scale(tmp_path: Path) -> None:
    model = whole(products(), tmp_path)
    scales, _ = observe(model, find_layers(model).found, [{"x": np.zeros((8, 64), np.float32)}], LOAD)
    assert scales["x"].step > 0


@pytest.mark.parametrize(
    ("form", "most"),
    [
        (LayerForm.INT8, 0.012),
        (LayerForm.INT8_BLOCKS, 0.008),
        (LayerForm.INT4_BLOCKS, 0.12),
        (LayerForm.BF16, 0.003),
    ],
)
def test_weights_are_near_what_they_were(form: LayerForm, most: float) -> None:
    rows = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
    error = np.square(in_form(rows, form).floats - rows).mean() ** 0.5
    assert 0 < error < most


def test_rows_of_bytes_are_no_worse_than_those_of_the_largest() -> None:
    rows = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    rows[3] = 0
    plain = np.abs(rows).max(axis=1, keepdims=True) / 127
    codes = np.rint(np.divide(rows, plain, out=np.zeros_like(rows), where=plain > 0))
    made = in_form(rows, LayerForm.INT8)
    errors = [np.square(floats - rows).sum(axis=1) for floats in (made.floats, codes * plain)]
    assert (errors[0] <= errors[1] * (1 + 1e-5)).all()
    assert np.abs(made.codes).max() <= 127


# --------------------------------------------------------------------------------------------------------------- errors


def test_the_error_is_that_of_the_worst_output_over_all_samples() -> None:
    right = {"a": np.array([3.0, 4.0]), "b": np.array([1.0]), "n": np.array([7])}
    off = {"a": np.array([3.0, 4.5]), "b": np.array([1.2]), "n": np.array([8])}
    assert relative_error([(right, right)]) == 0
    assert relative_error([(off, right)]) == pytest.approx(0.2)
    assert relative_error([(off, right), (right, right)]) == pytest.approx(0.2 / sqrt(2))


def test_numbers_that_are_not_finite_have_to_be_the_same() -> None:
    right = {"a": np.array([1.0, np.nan, np.inf])}
    assert relative_error([(right, right)]) == 0
    assert relative_error([({"a": np.array([1.0, np.nan, 1.0])}, right)]) == inf
    assert relative_error([({"a": np.array([np.nan, np.nan, np.inf])}, right)]) == inf
    assert relative_error([({"a": np.array([1.0])}, {"a": np.array([0.0])})]) == inf


# ---------------------------------------------------------------------------------------------------------------- plans


def random_options(seed: int) -> dict[str, list[Option]]:
    random = np.random.default_rng(seed)
    forms = (LayerForm.INT8, LayerForm.INT8_BLOCKS, LayerForm.BF16)
    return {
        f"l{n}": [Option(f, float(random.uniform(0, 1)), float(random.uniform(0, 0.01))) for f in forms]
        for n in range(5)
    }


@pytest.mark.parametrize("seed", range(20))
def test_plans_keep_their_bound_and_are_near_the_best(seed: int) -> None:
    options, bound = random_options(seed), 0.01
    plan = choose_forms(options, bound)
    assert sum(o.square for o in plan.values()) <= bound**2
    own = [[Option(LayerForm.FLOAT, 0, 0), *o] for o in options.values()]
    every = [p for p in product(*own) if sum(o.square for o in p) <= bound**2]
    best = max(sum(o.saved for o in p) for p in every)
    dearest = max(o.saved for p in own for o in p)
    assert best - dearest <= sum(o.saved for o in plan.values()) <= best + 1e-9


def test_a_layer_gets_the_form_that_saves_most_where_errors_allow_it() -> None:
    options = {"a": [Option(LayerForm.BF16, 1.0, 0.001), Option(LayerForm.INT8, 3.0, 0.01)], "b": []}
    assert choose_forms(options, 1.0)["a"].form is LayerForm.INT8
    assert choose_forms(options, 0.005)["a"].form is LayerForm.BF16
    assert choose_forms(options, 0.0005) == {}


def test_forms_that_save_nothing_are_not_taken() -> None:
    assert (
        choose_forms({"a": [Option(LayerForm.INT8, 0.0, 0.0), Option(LayerForm.BF16, -1.0, 0.0)]}, 1.0) == {}
    )


# ------------------------------------------------------------------------------------ what is written is what was meant


@pytest.mark.parametrize(
    "form", [LayerForm.INT8, LayerForm.INT8_BLOCKS, LayerForm.INT4_BLOCKS, LayerForm.BF16]
)
@pytest.mark.parametrize("make", [convolutions, products])
def test_models_do_what_their_simulation_does(make: object, form: LayerForm, tmp_path: Path) -> None:
    model = whole(make(), tmp_path)  # pyright: ignore[reportCallIssue, reportUnknownArgumentType]
    layers = find_layers(model).found
    samples = samples_of(model, 3)
    quantizer = Quantizer(*observe(model, layers, samples, LOAD))
    forms = {layer.name: form for layer in layers if layer.can_be(form)}
    written = write_forms(model, layers, forms, quantizer)
    with Simulation(model, layers, quantizer, LOAD) as simulation, LOAD(written) as session:
        right = simulation.run({}, samples[0])
        meant = simulation.run(forms, samples[0])
        found = session.run(samples[0])
    with LOAD(model) as floats:
        assert relative_error([(right, floats.run(samples[0]))]) < 1e-5
    lost = relative_error([(meant, right)])
    assert lost > 1e-4
    # Not the error of the form: some values are rounded another way, because biases are whole numbers.
    assert relative_error([(found, meant)]) < 0.4 * lost


def test_other_engines_read_what_is_written(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = whole(convolutions(), tmp_path)
    layers = find_layers(model).found
    samples = samples_of(model, 2)
    quantizer = Quantizer(*observe(model, layers, samples, LOAD))
    mixed = {
        "first": LayerForm.INT8,
        "second": LayerForm.BF16,
        "gemm": LayerForm.INT8_BLOCKS,
        "matmul": LayerForm.INT4_BLOCKS,
    }
    written = write_forms(model, layers, mixed, quantizer)
    with LOAD(written) as session:
        ours = session.run(samples[0])
    theirs = onnxruntime.InferenceSession(written.SerializeToString()).run(None, samples[0])
    assert relative_error([(ours, {"y": theirs[0]})]) < 0.02


def test_models_from_before_scales_had_an_axis(tmp_path: Path) -> None:
    model = whole(convolutions(opset=11), tmp_path)
    layers = find_layers(model).found
    samples = samples_of(model, 2)
    quantizer = Quantizer(*observe(model, layers, samples, LOAD))
    written = write_forms(model, layers, {layer.name: LayerForm.INT8 for layer in layers}, quantizer)
    with LOAD(written) as session, LOAD(model) as floats:
        assert 0 < relative_error([(session.run(samples[0]), floats.run(samples[0]))]) < 0.03


def test_weights_in_halves_take_half_the_bytes(tmp_path: Path) -> None:
    model = whole(products(), tmp_path)
    layers = find_layers(model).found
    quantizer = Quantizer(*observe(model, layers, samples_of(model, 2), LOAD))
    written = write_forms(model, layers, {layer.name: LayerForm.BF16 for layer in layers}, quantizer)
    kept = {t.name: t for t in written.graph.initializer}
    assert "w0" not in kept and "w1" not in kept
    assert len(kept["up/halves"].raw_data) == 64 * 128 * np.dtype(ml_dtypes.bfloat16).itemsize


def test_biases_that_no_whole_number_holds_stay_floats(tmp_path: Path) -> None:
    model = convolutions()
    for tensor in model.graph.initializer:
        if tensor.name == "w0":
            weights = numpy_helper.to_array(tensor).copy()
            weights[0], weights[1] = 0, weights[1] * 1e-12
            tensor.CopyFrom(numpy_helper.from_array(weights, "w0"))
    model = whole(model, tmp_path)
    layers = find_layers(model).found
    samples = samples_of(model, 2)
    quantizer = Quantizer(*observe(model, layers, samples, LOAD))
    written = write_forms(model, layers, {"first": LayerForm.INT8}, quantizer)
    assert not any(n.name == "first/bias" for n in written.graph.node)
    with LOAD(written) as session, LOAD(model) as floats:
        assert relative_error([(session.run(samples[0]), floats.run(samples[0]))]) < 0.02


def test_nothing_is_left_that_nobody_reads(tmp_path: Path) -> None:
    model = whole(convolutions(), tmp_path)
    layers = find_layers(model).found
    quantizer = Quantizer(*observe(model, layers, samples_of(model, 2), LOAD))
    written = write_forms(model, layers, {layer.name: LayerForm.INT8 for layer in layers}, quantizer)
    read = {name for node in written.graph.node for name in node.input}
    assert {t.name for t in written.graph.initializer} <= read


def test_halves_need_a_cast_that_knows_them(tmp_path: Path) -> None:
    assert can_write(whole(convolutions(), tmp_path), LayerForm.BF16)
    assert not can_write(whole(convolutions(opset=11), tmp_path), LayerForm.BF16)


def test_weights_are_as_small_as_the_processor_wants_them() -> None:
    """Where pairs of products of bytes are summed up in 16 bits."""
    assert largest_weight(AVX2) == 64 and largest_weight(AVX512_VNNI) == largest_weight(AVX_VNNI) == 127
    rows = np.random.default_rng(2).standard_normal((4, 32)).astype(np.float32)
    small, whole = (in_form(rows, LayerForm.INT8, n) for n in (64, 127))
    assert np.abs(small.codes).max() == 64
    errors = [float(np.square(w.floats - rows).mean()) for w in (whole, small)]
    assert errors[0] < errors[1] < 6 * errors[0]
