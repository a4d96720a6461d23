"""Models as exporters of scikit-learn, LightGBM and their like write them: they agree with onnxruntime."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

import tilewright as tw
from tilewright.support.errors import UserError

F32, I64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
ML = "ai.onnx.ml"
info = helper.make_tensor_value_info


def ml(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Any:
    return helper.make_node(op, inputs, outputs, domain=ML, **attrs)


def model(nodes: list[Any], inputs: list[Any], outputs: list[str], version: int = 3) -> ModelProto:
    graph = helper.make_graph(nodes, "classic", inputs, [ValueInfoProto(name=o) for o in outputs])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def check(m: ModelProto, *many: dict[str, Any]) -> None:
    judge = ort.InferenceSession(m.SerializeToString())
    with tw.load(m, threads=1) as session:
        for feeds in many:
            for g, w in zip(session.run(feeds).values(), judge.run(None, feeds), strict=True):
                if isinstance(w, list):
                    assert g == [pytest.approx(row, rel=1e-4, abs=1e-5) for row in w]
                elif w.dtype.kind == "f":
                    assert g.dtype == w.dtype
                    np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
                else:
                    np.testing.assert_array_equal(g, w)


def forest(trees: int, depth: int, columns: int, rng: np.random.Generator) -> dict[str, list[Any]]:
    """Full trees with random splits."""
    out: dict[str, list[Any]] = {
        f"nodes_{n}": []
        for n in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    inner, total = 2**depth - 1, 2 ** (depth + 1) - 1
    for t in range(trees):
        for n in range(total):
            is_leaf = n >= inner
            out["nodes_treeids"].append(t)
            out["nodes_nodeids"].append(n)
            out["nodes_featureids"].append(0 if is_leaf else int(rng.integers(columns)))
            out["nodes_values"].append(0.0 if is_leaf else float(np.float32(rng.standard_normal())))
            out["nodes_modes"].append("LEAF" if is_leaf else "BRANCH_LEQ")
            out["nodes_truenodeids"].append(0 if is_leaf else 2 * n + 1)
            out["nodes_falsenodeids"].append(0 if is_leaf else 2 * n + 2)
    return out


def votes(trees: int, depth: int, targets: int, what: str, rng: np.random.Generator) -> dict[str, list[Any]]:
    places = [
        (t, n, k)
        for t in range(trees)
        for n in range(2**depth - 1, 2 ** (depth + 1) - 1)
        for k in range(targets)
    ]
    return {
        f"{what}_treeids": [t for t, _, _ in places],
        f"{what}_nodeids": [n for _, n, _ in places],
        f"{what}_ids": [k for _, _, k in places],
        f"{what}_weights": (rng.random(len(places)) / trees).astype(np.float32).tolist(),
    }


def test_a_random_forest_with_strings_as_labels() -> None:
    rng = np.random.default_rng(1)
    attrs = {**forest(20, 5, 6, rng), **votes(20, 5, 3, "class", rng)}
    labels = ["setosa", "versicolor", "virginica"]
    m = model(
        [
            ml("Scaler", ["x"], ["scaled"], offset=[0.5] * 6, scale=[2.0] * 6),
            ml(
                "TreeEnsembleClassifier",
                ["scaled"],
                ["label", "scores"],
                classlabels_strings=labels,
                post_transform="NONE",
                **attrs,
            ),
            ml("Normalizer", ["scores"], ["shares"], norm="L1"),
            ml("ZipMap", ["shares"], ["probabilities"], classlabels_strings=labels),
        ],
        [info("x", F32, ["n", 6])],
        ["label", "probabilities"],
    )
    check(m, *({"x": rng.standard_normal((n, 6)).astype(np.float32)} for n in (1, 300, 7)))


def test_gradient_boosting() -> None:
    rng = np.random.default_rng(2)
    attrs = {**forest(40, 4, 5, rng), **votes(40, 4, 1, "target", rng)}
    m = model(
        [ml("TreeEnsembleRegressor", ["x"], ["y"], n_targets=1, base_values=[0.25], **attrs)],
        [info("x", F32, ["n", 5])],
        ["y"],
    )
    check(m, *({"x": rng.standard_normal((n, 5)).astype(np.float32)} for n in (1, 64)))


def test_a_pipeline_of_columns() -> None:
    """Numbers are imputed and scaled, categories become columns, and a linear model takes both."""
    rng = np.random.default_rng(3)
    m = model(
        [
            ml(
                "Imputer",
                ["x"],
                ["full"],
                imputed_value_floats=[1.0, 2.0],
                replaced_value_float=float("nan"),
            ),
            ml("Scaler", ["full"], ["scaled"], offset=[0.5, 1.0], scale=[2.0, 0.5]),
            ml("OneHotEncoder", ["city"], ["hot"], cats_strings=["Bern", "Oslo", "Rome"], zeros=1),
            helper.make_node("Reshape", ["hot", "flat"], ["columns"]),
            helper.make_node("Concat", ["scaled", "columns"], ["features"], axis=1),
            ml(
                "LinearClassifier",
                ["features"],
                ["label", "scores"],
                coefficients=rng.standard_normal(10).astype(np.float32).tolist(),
                intercepts=[0.1, -0.1],
                classlabels_ints=[0, 1],
                post_transform="LOGISTIC",
            ),
            ml("Normalizer", ["scores"], ["shares"], norm="L1"),
            helper.make_node("Cast", ["label"], ["whole"], to=I64),
            ml("LabelEncoder", ["whole"], ["word"], keys_int64s=[0, 1], values_strings=["no", "yes"]),
        ],
        [info("x", F32, ["n", 2]), info("city", STRING, ["n", 1])],
        ["word", "shares"],
    )
    m.graph.initializer.append(helper.make_tensor("flat", I64, [2], [-1, 3]))
    x = rng.standard_normal((3, 2)).astype(np.float32)
    x[1, 0] = np.nan
    city = np.array([["Rome"], ["Bern"], ["Paris"]], object)
    check(m, {"x": x, "city": city}, {"x": x[:1], "city": city[:1]})


def broken(**changes: list[Any]) -> ModelProto:
    rng = np.random.default_rng(4)
    attrs = {**forest(1, 1, 1, rng), **votes(1, 1, 1, "target", rng), **changes}
    return model(
        [ml("TreeEnsembleRegressor", ["x"], ["y"], n_targets=1, **attrs)], [info("x", F32, [1, 1])], ["y"]
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"nodes_truenodeids": [9, 0, 0]}, "leads to a node that it does not have"),
        ({"nodes_truenodeids": [0, 0, 0]}, "cannot be reached"),
        ({"nodes_truenodeids": [2, 0, 0]}, "more than one root"),
        ({"nodes_nodeids": [0, 1, 1]}, "two nodes of one number"),
        ({"nodes_modes": ["BRANCH_LEQ", "LEAF", "TWIG"]}, "the mode 'TWIG'"),
        ({"nodes_values": [0.5]}, "lists that describe the same things"),
        ({"nodes_featureids": [-1, 0, 0]}, "before the first"),
        ({"nodes_featureids": [3, 0, 0]}, "look at 4 columns: there are 1"),
        ({"target_ids": [0, 1]}, "vote for 0 to 1 of 1 targets"),
    ],
)
def test_trees_that_make_no_sense(changes: dict[str, list[Any]], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        tw.load(broken(**changes), threads=1).run({"x": np.zeros((1, 1), np.float32)})


def test_a_cycle_of_nodes_is_no_tree() -> None:
    cycle = {
        "nodes_treeids": [0] * 5,
        "nodes_nodeids": [0, 1, 2, 3, 4],
        "nodes_featureids": [0] * 5,
        "nodes_values": [0.5] * 5,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LEQ", "BRANCH_LEQ"],
        "nodes_truenodeids": [1, 0, 0, 4, 3],
        "nodes_falsenodeids": [2, 0, 0, 4, 3],
    }
    with pytest.raises(UserError, match="two parents"):
        tw.load(broken(**cycle), threads=1).run({"x": np.zeros((1, 1), np.float32)})


def test_numbers_that_overflow_are_no_warning() -> None:
    m = model(
        [
            ml("LinearRegressor", ["x"], ["big"], coefficients=[3e38, 3e38], post_transform="LOGISTIC"),
            ml("OneHotEncoder", ["x"], ["hot"], cats_int64s=[1, 2]),
        ],
        [info("x", F32, ["n", 2])],
        ["big", "hot"],
    )
    with tw.load(m, threads=1) as session:
        got = session.run({"x": np.array([[5.0, np.inf], [-np.inf, np.nan]], np.float32)})
    np.testing.assert_array_equal(got["big"], [[1.0], [np.nan]])
    assert not got["hot"].any()
