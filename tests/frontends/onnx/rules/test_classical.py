"""Operators of ai.onnx.ml: trees, linear models and what prepares their features, beside onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import dovetail
from dovetail.adapters.onnxruntime_peer import Peer
from dovetail.dtypes import f32, f64, i64
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from tests.covering import covering
from tests.frontends.onnx.build import assert_like_onnxruntime, by_dovetail, model, node
from tests.tolerances import assert_close

Array = NDArray[Any]
FILES = Path(__file__).parents[3] / "data" / "sklearn"
DOMAINS = {"ai.onnx.ml": 2}


def classical(description: str, inputs: dict[str, Any], outputs: list[str], **attributes: Any) -> onnx.ModelProto:
    made = node(description, domain="ai.onnx.ml", **attributes)
    return model([made], inputs, outputs, opset=15, domains=DOMAINS)


def forest(
    seed: int, trees: int, depth: int, modes: tuple[str, ...] = ("BRANCH_LEQ",), missing: bool = False
) -> dict[str, Any]:
    """Random trees over five features, and the ids of their leaves."""
    rng = np.random.default_rng(seed)
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing")
    columns: dict[str, list[Any]] = {name: [] for name in names}

    def grow(tree: int, level: int) -> int:
        row: dict[str, Any] = dict.fromkeys(names, 0) | {"treeids": tree, "values": 0.0, "modes": "LEAF"}
        row["nodeids"] = sum(t == tree for t in columns["treeids"])
        place = len(columns["treeids"])
        for name in names:
            columns[name].append(row[name])
        if level and rng.random() < 0.85:
            columns["featureids"][place] = int(rng.integers(0, 5))
            columns["values"][place] = float(np.float32(rng.integers(-4, 5) / 4))
            columns["modes"][place] = str(rng.choice(modes))
            columns["missing"][place] = int(missing and rng.random() < 0.5)
            columns["truenodeids"][place] = grow(tree, level - 1)
            columns["falsenodeids"][place] = grow(tree, level - 1)
        return row["nodeids"]

    for tree in range(trees):
        grow(tree, depth)
    tracks = columns.pop("missing")
    found: dict[str, Any] = {f"nodes_{name}": column for name, column in columns.items()}
    return found | ({"nodes_missing_value_tracks_true": tracks} if missing else {})


def leaves(nodes: dict[str, Any]) -> list[tuple[int, int]]:
    listed = zip(nodes["nodes_treeids"], nodes["nodes_nodeids"], nodes["nodes_modes"], strict=True)
    return [(tree, place) for tree, place, mode in listed if mode == "LEAF"]


def weighed(nodes: dict[str, Any], kind: str, ids: list[int], weights: Callable[[int], Array]) -> dict[str, Any]:
    """Weights for some columns of every leaf."""
    rows = [(tree, place, i) for tree, place in leaves(nodes) for i in ids]
    by_name = dict(zip(("treeids", "nodeids", "ids"), map(list, zip(*rows, strict=True)), strict=True))
    return {f"{kind}_{name}": column for name, column in by_name.items()} | {
        f"{kind}_weights": [float(w) for w in weights(len(rows))]
    }


def rows(*, nan: bool = False) -> list[dict[str, Array]]:
    """Features on and around the thresholds."""
    rng = np.random.default_rng(3)
    found = [(rng.integers(-5, 6, (batch, 5)) / 4).astype(np.float32) for batch in (1, 40)]
    if nan:
        found[1][::3, 1] = np.nan
    return [{"x": x} for x in found]


RNG = np.random.default_rng(9)


@pytest.mark.slow
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("base", [False, True])
def test_classifiers_of_several_classes(post: str, base: bool) -> None:
    nodes = forest(1, 7, 5)
    given = weighed(nodes, "class", [0, 1, 2], lambda n: RNG.normal(size=n))
    more = {"base_values": [0.25, -0.5, 1.0]} if base else {}
    made = classical("TreeEnsembleClassifier x -> label scores", {"x": f32["b", 5]}, ["label", "scores"], **nodes,
                     **given, **more, classlabels_int64s=[10, 20, 30], post_transform=post)  # fmt: skip
    assert_like_onnxruntime(made, *rows())


@pytest.mark.slow
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("base", [False, True])
def test_classifiers_of_one_score(post: str, positive: bool, base: bool) -> None:
    nodes = forest(2, 4, 4)
    given = weighed(nodes, "class", [0], lambda n: RNG.uniform(0, 0.2, n) if positive else RNG.normal(size=n))
    more = {"base_values": [0.125]} if base else {}
    made = classical("TreeEnsembleClassifier x -> label scores", {"x": f32["b", 5]}, ["label", "scores"], **nodes,
                     **given, **more, classlabels_int64s=[10, 20], post_transform=post)  # fmt: skip
    assert_like_onnxruntime(made, *rows())


@pytest.mark.slow
@pytest.mark.parametrize("post", ["NONE", "SOFTMAX"])
def test_classifiers_of_two_scores(post: str) -> None:
    nodes = forest(3, 5, 6)
    given = weighed(nodes, "class", [0, 1], lambda n: RNG.uniform(0, 1, n))
    made = classical("TreeEnsembleClassifier x -> label scores", {"x": f32["b", 5]}, ["scores"], **nodes, **given,
                     classlabels_int64s=[0, 1], post_transform=post)  # fmt: skip
    assert_like_onnxruntime(made, *rows())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE", "mixed"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE"])
def test_regressors(mode: str, missing: bool, aggregate: str) -> None:
    modes = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE") if mode == "mixed" else (mode,)
    nodes = forest(4, 6, 5, modes, missing)
    given = weighed(nodes, "target", [0, 1], lambda n: RNG.normal(size=n))
    made = classical("TreeEnsembleRegressor x -> y", {"x": f32["b", 5]}, ["y"], **nodes, **given, n_targets=2,
                     aggregate_function=aggregate, base_values=[0.5, -1.0])  # fmt: skip
    assert_like_onnxruntime(made, *rows(nan=True))


def test_trees_that_nothing_is_known_of_are_refused() -> None:
    nodes = forest(4, 2, 3)
    given = weighed(nodes, "target", [0], lambda n: RNG.normal(size=n))
    inputs = {"x": f32["b", 5]}
    with pytest.raises(UnsupportedError, match="MIN"):
        import_model(
            classical("TreeEnsembleRegressor x -> y", inputs, ["y"], **nodes, **given, aggregate_function="MIN")
        )
    looped = {**nodes, "nodes_truenodeids": [0] * len(nodes["nodes_truenodeids"])}
    with pytest.raises((UnsupportedError, LoadError)):
        import_model(classical("TreeEnsembleRegressor x -> y", inputs, ["y"], **looped, **given))
    given = weighed(nodes, "class", [0, 1], lambda n: RNG.normal(size=n))
    with pytest.raises(UnsupportedError, match="strings"):
        import_model(classical("TreeEnsembleClassifier x -> l s", inputs, ["s"], **nodes, **given,
                               classlabels_strings=["a", "b"]))  # fmt: skip


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_models(post: str) -> None:
    weights = {"coefficients": RNG.normal(size=15).tolist(), "intercepts": [0.5, -1.0, 0.25]}
    if post == "NONE":
        made = classical("LinearRegressor x -> y", {"x": f32["b", 5]}, ["y"], **weights, targets=3)
        assert_like_onnxruntime(made, *rows())
    made = classical("LinearClassifier x -> label scores", {"x": f32["b", 5]}, ["label", "scores"], **weights,
                     classlabels_ints=[3, 5, 8], multi_class=1, post_transform=post)  # fmt: skip
    assert_like_onnxruntime(made, *rows())


@pytest.mark.parametrize(
    ("description", "attributes"),
    [
        ("Scaler x -> y", {"offset": [1.0, 2.0, 0.0, -1.0, 0.5], "scale": [2.0, 0.5, 1.0, 3.0, -1.0]}),
        ("Scaler x -> y", {"offset": [0.5], "scale": [2.0]}),
        ("Normalizer x -> y", {"norm": "MAX"}),
        ("Normalizer x -> y", {"norm": "L1"}),
        ("Normalizer x -> y", {"norm": "L2"}),
        ("Binarizer x -> y", {"threshold": 0.25}),
        ("Imputer x -> y", {"imputed_value_floats": [7.0], "replaced_value_float": float("nan")}),
        ("Imputer x -> y", {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0, 5.0], "replaced_value_float": 0.25}),
        ("LabelEncoder x -> y", {"keys_floats": [0.25, 0.5, 0.25], "values_int64s": [4, 5, 6], "default_int64": 9}),
        ("LabelEncoder x -> y", {"keys_floats": [float("nan"), 0.5], "values_int64s": [4, 5]}),
        ("LabelEncoder x -> y", {"keys_floats": [0.25, 0.5], "values_floats": [4.0, 5.5], "default_float": -2.0}),
    ],
)
def test_features(description: str, attributes: dict[str, Any]) -> None:
    feeds = [{"x": np.abs(feed["x"]) + np.float32(0.125 * ("MAX" in attributes.values()))} for feed in rows()]
    if "nan" in str(attributes):
        feeds[1]["x"][::3, 2] = np.nan
    assert_like_onnxruntime(classical(description, {"x": f32["b", 5]}, ["y"], **attributes), *feeds)


def test_features_are_extracted_and_vectorised() -> None:
    made = model([node("ArrayFeatureExtractor x i -> t", domain="ai.onnx.ml"),
                  node("FeatureVectorizer t z -> y", domain="ai.onnx.ml", inputdimensions=[2, 3])],
                 {"x": f32["b", 5], "i": i64[2], "z": f32["b", 3]}, ["y"], opset=15, domains=DOMAINS)  # fmt: skip
    feeds = [{**feed, "i": np.array([3, 1]), "z": feed["x"][:, :3]} for feed in rows()]
    assert_like_onnxruntime(made, *feeds)


@pytest.mark.slow
def test_features_of_doubles() -> None:
    nodes = forest(6, 3, 4)
    given = weighed(nodes, "target", [0], lambda n: RNG.normal(size=n))
    made = classical("TreeEnsembleRegressor x -> y", {"x": f64["b", 5]}, ["y"], **nodes, **given, n_targets=1)
    assert_like_onnxruntime(made, *({"x": feed["x"].astype(np.float64)} for feed in rows()))


@pytest.mark.parametrize(
    "attributes",
    [
        {"keys_floats": [0.25, 0.5, 0.25], "values_int64s": [4, 5, 6], "default_int64": 9},
        {"keys_floats": [float("nan"), 0.25], "values_floats": [4.0, 5.0], "default_float": -2.0},
        {"keys_tensor": np.array([0.25, 0.5, 0.5], np.float32), "values_tensor": np.array([1, 2, 3], np.int16)},
    ],
)
def test_of_two_equal_keys_the_last_counts_since_version_4(attributes: dict[str, Any]) -> None:
    """The standard is the judge: onnxruntime takes the first, as it does in version 2."""
    tensors: dict[str, Any] = {k: numpy_helper.from_array(a) for k, a in attributes.items() if k.endswith("_tensor")}
    if tensors:
        tensors["default_tensor"] = numpy_helper.from_array(np.array([7], np.int16))
    made = model([node("LabelEncoder x -> y", domain="ai.onnx.ml", **{**attributes, **tensors})], {"x": f32["b", 5]},
                 ["y"], opset=21, domains={"ai.onnx.ml": 4})  # fmt: skip
    x = np.array([[0.25, 0.5, 0.75, np.nan, 0.25]], np.float32)
    keys, values = ([*attributes[f"{side}{kind}"]] for side, kind in _kinds(attributes))
    default = attributes.get("default_int64", attributes.get("default_float", 7))
    found = {str(float(k)): v for k, v in zip(keys, values, strict=True)}
    (result,) = by_dovetail(made, {"x": x})
    assert result["y"].tolist() == [[found.get(str(float(e)), default) for e in x[0]]]


def _kinds(attributes: dict[str, Any]) -> list[tuple[str, str]]:
    sides = [(side, name) for side in ("keys_", "values_") for name in attributes if name.startswith(side)]
    return [(side, name.removeprefix(side)) for side, name in sides]


def machine(seed: int, groups: tuple[int, ...], kernel: str, degree: float = 3.0) -> dict[str, Any]:
    """A random support vector machine over five features; of one group, a regression."""
    rng = np.random.default_rng(seed)
    total, pairs = sum(groups), max(1, len(groups) * (len(groups) - 1) // 2)
    return {
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.125, degree],
        "support_vectors": rng.normal(size=total * 5).tolist(),
        "coefficients": rng.normal(size=total * max(1, len(groups) - 1)).tolist(),
        "rho": rng.normal(size=pairs).tolist(),
    }


KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vector_regressors(kernel: str, one_class: int) -> None:
    given = machine(1, (17,), kernel, degree=2.0)
    made = classical("SVMRegressor x -> y", {"x": f32["b", 5]}, ["y"], **given, n_supports=17, one_class=one_class)
    assert_like_onnxruntime(made, *rows(), scale=4)
    given = {"coefficients": [0.5, -1.0, 0.25, 2.0, 1.0], "rho": [0.125], "kernel_params": [0.3, 0.1, 3.0]}
    assert_like_onnxruntime(classical("SVMRegressor x -> y", {"x": f32["b", 5]}, ["y"], **given), *rows())


@pytest.mark.parametrize(
    ("kernel", "groups", "probable"), covering(KERNELS, [(4, 6), (3, 5, 2), (2, 3, 4, 5)], (False, True))
)
def test_support_vector_classifiers(kernel: str, groups: tuple[int, ...], probable: bool) -> None:
    given = machine(2, groups, kernel)
    pairs = len(given["rho"])
    if probable:
        given |= {"prob_a": (-RNG.uniform(0.5, 2, pairs)).tolist(), "prob_b": RNG.normal(size=pairs).tolist()}
    made = classical("SVMClassifier x -> label scores", {"x": f32["b", 5]}, ["label", "scores"], **given,
                     vectors_per_class=groups, classlabels_ints=[3, 5, 8, 9][: len(groups)])  # fmt: skip
    assert_like_onnxruntime(made, *rows(), scale=16)


@pytest.mark.slow
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_support_vector_scores_are_transformed(post: str) -> None:
    for groups in ((4, 6), (3, 5, 2)):
        if len(groups) == 2 and post == "SOFTMAX":
            continue
        made = classical("SVMClassifier x -> label scores", {"x": f32["b", 5]}, ["label", "scores"],
                         **machine(3, groups, "RBF"), vectors_per_class=groups, post_transform=post,
                         classlabels_ints=[0, 1, 2][: len(groups)])  # fmt: skip
        assert_like_onnxruntime(made, *rows(), scale=4)
    linear = {"coefficients": RNG.normal(size=15).tolist(), "rho": [0.5], "kernel_params": [0.3, 0.1, 3.0]}
    made = classical("SVMClassifier x -> label scores", {"x": f32["b", 5]}, ["label", "scores"], **linear,
                     classlabels_ints=[4, 5, 6], post_transform=post)  # fmt: skip
    assert_like_onnxruntime(made, *rows(), scale=4)


def test_machines_that_nothing_is_known_of_are_refused() -> None:
    given = machine(3, (4, 6), "RBF")
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"kernel_type": "WAVE"}, "WAVE"),
        ({"coefficients": [1.0]}, "classes"),
        ({"vectors_per_class": [4, 3, 3]}, "groups"),
        ({"post_transform": "SOFTMAX"}, "SOFTMAX"),
    )
    for change, told in changes:
        attributes = {"classlabels_ints": [0, 1], "vectors_per_class": [4, 6], **given, **change}
        made = classical("SVMClassifier x -> label scores", {"x": f32["b", 5]}, ["scores"], **attributes)
        with pytest.raises((UnsupportedError, LoadError), match=told):
            import_model(made)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FILES.glob("*.onnx")), ids=lambda path: path.stem)
def test_models_as_scikit_learn_exports_them(path: Path) -> None:
    """Written by skl2onnx 1.20 of models of scikit-learn 1.9. A ZipMap gives the matrix of its scores."""
    program = dovetail.compile(dovetail.load(path), target="cpu")
    (given,) = program.graph.inputs
    peer, rng = Peer(path, threads=1), np.random.default_rng(4)
    for batch in (1, 33):
        feed = {given.attrs["name"]: rng.normal(size=(batch, 5)).astype(np.float32)}
        found = program.run(feed)
        for name, wanted in peer.run(feed).items():
            assert found[name].shape == wanted.shape and found[name].dtype == wanted.dtype
            assert_close(found[name], wanted, i64 if wanted.dtype == np.int64 else f32, scale=16)
