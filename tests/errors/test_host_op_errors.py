"""What ops of the host refuse: one test per mistake."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, TypeProto, ValueInfoProto, helper

import tilewright as tw
from tilewright.ops.host.strings import compile_pattern
from tilewright.support.errors import UserError

F32 = TensorProto.FLOAT


def type_of(value: Any) -> TypeProto:
    if isinstance(value, list):
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, None))
    number = TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_type_proto(number, value.shape)


def run(op: str, *values: Any, outputs: int = 1, domain: str = "", **attrs: Any) -> None:
    names = [f"x{i}" for i in range(len(values))]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_value_info(n, type_of(v)) for n, v in zip(names, values, strict=True)],
        [ValueInfoProto(name=o) for o in node.output],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    m = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    tw.load(m, threads=1).run(dict(zip(names, values, strict=True)))


def ml(op: str, *values: Any, outputs: int = 1, **attrs: Any) -> None:
    run(op, *values, outputs=outputs, domain="ai.onnx.ml", **attrs)


PIECES = [np.zeros(2, np.float32), np.ones(2, np.float32)]
X = np.ones((2, 3), np.float32)
WORDS = np.array(["a", "b"], object)


@pytest.mark.parametrize("at", [2, -3])
def test_a_position_outside_of_the_sequence(at: int) -> None:
    with pytest.raises(UserError, match=f"no position {at} in a sequence of 2 elements"):
        run("SequenceAt", PIECES, np.array(at))


def test_erasing_from_an_empty_sequence() -> None:
    with pytest.raises(UserError, match="nothing can be erased"):
        run("SequenceErase", [])


def test_joining_an_empty_sequence() -> None:
    with pytest.raises(UserError, match="an empty sequence cannot be joined"):
        run("ConcatFromSequence", [], axis=0)


def test_joining_elements_of_different_types() -> None:
    with pytest.raises(UserError, match="different types"):
        run("ConcatFromSequence", [PIECES[0], np.ones(2, np.int64)], axis=0)


@pytest.mark.parametrize("sizes", [np.array([1, 1, 2]), np.array([-1, 4]), np.array(0)])
def test_splitting_into_sizes_that_do_not_fit(sizes: Any) -> None:
    with pytest.raises(UserError, match="slices of"):
        run("SplitToSequence", X, sizes, axis=1)


def test_a_tensor_is_no_sequence() -> None:
    with pytest.raises(UserError, match="input 0 is not a sequence"):
        run("SequenceLength", X)


def test_stop_words_in_a_matrix() -> None:
    with pytest.raises(UserError, match=r"they should be \[C\] or \[1, C\]"):
        run("StringNormalizer", np.array([["a"], ["b"]], object))


def test_an_unknown_change_of_case() -> None:
    with pytest.raises(UserError, match="should be NONE, LOWER or UPPER"):
        run("StringNormalizer", WORDS, case_change_action="TITLE")


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        (r"(a)\1", "an escape that is not supported"),
        (r"\pL+", "an escape that is not supported"),
        (r"a\Z", "an escape that is not supported"),
        (r"[\d\p{Greek}]", "an escape that is not supported"),
        (r"[[:alpha:]]+", "a named class"),
        (r"a(?=b)", "a kind of group"),
        (r"a(?<!b)", "a kind of group"),
        (r"(?>ab)", "a kind of group"),
        (r"(?P<n>a)(?P=n)", "a kind of group"),
        (r"(?x)a", "a kind of group"),
        (r"a++", "repeats a repetition"),
        (r"a{1,2}+", "repeats a repetition"),
        (r"a(", "no regular expression"),
        (r"*a", "no regular expression"),
    ],
)
def test_a_pattern_that_re2_does_not_have_or_reads_differently(pattern: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        compile_pattern(pattern)


@pytest.mark.parametrize("pattern", [r"\++", r"[+*+]", r"(?im:a)B", r"(?P<n>a|b)+?", r"\x41\z", r"[]\]]"])
def test_patterns_that_mean_the_same_to_both(pattern: str) -> None:
    compile_pattern(pattern)


def test_a_vocabulary_that_its_counts_do_not_divide() -> None:
    pool = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "pool_int64s": [1, 2, 3],
    }
    with pytest.raises(UserError, match="do not divide a pool of 3"):
        run("TfIdfVectorizer", np.array([1, 2]), ngram_counts=[0, 2], ngram_indexes=[0, 1], **pool)
    with pytest.raises(UserError, match="1 ngram_indexes for 3 n-grams"):
        run("TfIdfVectorizer", np.array([1, 2]), ngram_counts=[0], ngram_indexes=[0], **pool)
    with pytest.raises(UserError, match="ngram_indexes are from 0 to"):
        run("TfIdfVectorizer", np.array([1, 2]), ngram_counts=[0], ngram_indexes=[0, 1, 1 << 60], **pool)


def test_labels_without_values() -> None:
    with pytest.raises(UserError, match="2 keys have 1 values"):
        ml("LabelEncoder", WORDS, keys_strings=["a", "b"], values_int64s=[1])
    with pytest.raises(UserError, match="there are no values"):
        ml("LabelEncoder", WORDS, keys_strings=["a", "b"])


def test_an_element_that_is_no_category() -> None:
    with pytest.raises(UserError, match="none of the categories"):
        ml("OneHotEncoder", WORDS, cats_strings=["a"], zeros=0)
    with pytest.raises(UserError, match="have no such categories"):
        ml("OneHotEncoder", X, cats_strings=["a"])


def test_a_column_that_does_not_exist() -> None:
    with pytest.raises(UserError, match="columns 0 to 3 of 3"):
        ml("ArrayFeatureExtractor", X, np.array([0, 3]))


def test_as_many_values_as_columns() -> None:
    with pytest.raises(UserError, match="2 values for rows"):
        ml("Scaler", X, offset=[1.0, 2.0], scale=[1.0])
    with pytest.raises(UserError, match="2 values to impute"):
        ml("Imputer", X, imputed_value_floats=[1.0, 2.0])
    with pytest.raises(UserError, match="2 labels for rows"):
        ml("ZipMap", X, classlabels_int64s=[1, 2])


def test_features_of_absurd_number() -> None:
    with pytest.raises(UserError, match="inputdimensions are"):
        ml("FeatureVectorizer", X, inputdimensions=[1 << 60])


def test_coefficients_that_do_not_fit_the_columns() -> None:
    with pytest.raises(UserError, match="2 coefficients and 1 intercepts for 1 scores of 3 columns"):
        ml("LinearRegressor", X, coefficients=[1.0, 2.0], intercepts=[0.0])
    with pytest.raises(UserError, match="3 labels for 2 scores"):
        ml(
            "LinearClassifier", X, outputs=2,
            coefficients=[0.0] * 6, intercepts=[0.0] * 2, classlabels_ints=[1, 2, 3],
        )  # fmt: skip


def test_an_unknown_transform_or_kernel() -> None:
    with pytest.raises(UserError, match="post_transform is 'CUBE'"):
        ml("LinearRegressor", X, coefficients=[1.0] * 3, post_transform="CUBE")
    with pytest.raises(UserError, match="kernel_type is 'CUBE'"):
        ml(
            "SVMRegressor", X,
            kernel_type="CUBE", n_supports=1, support_vectors=[1.0] * 3, coefficients=[1.0], rho=[0.0],
        )  # fmt: skip
