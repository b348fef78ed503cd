"""Inputs and sizes that are the same in every run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.dtypes import f32, i64
from dovetail.errors import BindError, DovetailError, LoadError, NeedsValueError, OptionError
from dovetail.frontends.onnx import import_model
from tests.frontends.onnx.build import assert_like_onnxruntime, model, node

PICK = model(
    [node("Gather x i -> y", axis=1)],
    {"x": f32["n", "m"], "i": i64["k"]},
    ["y"],
)


def ones(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ones(shape, np.float32)


def test_sizes_become_numbers_everywhere() -> None:
    graph = import_model(PICK, fixed={"n": 2, "k": 4})
    assert [str(v.type) for v in graph.inputs] == ["f32[2, m]", "i64[4]"]
    assert str(graph.outputs["y"].type) == "f32[2, 4]"


def test_an_array_tells_the_sizes_of_its_type() -> None:
    made = model(["Add x z -> y"], {"x": f32["n", 3], "z": f32["n", 3]}, ["y"])
    graph = import_model(made, fixed={"z": ones(5, 3)})
    assert [str(v.type) for v in graph.inputs] == ["f32[5, 3]"]
    with pytest.raises(BindError, match="n is"):
        import_model(made, fixed={"z": ones(5, 3), "n": 4})


@pytest.mark.slow
def test_numbers_take_the_dtype_of_their_input() -> None:
    assert_like_onnxruntime(PICK, {"x": ones(2, 3)}, fixed={"i": np.array([2, 0])})
    graph = import_model(PICK, fixed={"i": [2, 0]})  # pyright: ignore[reportArgumentType]
    assert str(graph.outputs["y"].type) == "f32[n, 2]"


@pytest.mark.parametrize(
    ("fixed", "error"),
    [
        ({"z": 1}, OptionError),
        ({"n": -1}, OptionError),
        ({"n": 2.0}, OptionError),
        ({"n": True}, OptionError),
        ({"n": ones(1)}, OptionError),
        ({"i": ones(3)}, BindError),
        ({"i": np.ones((1, 1), np.int64)}, BindError),
        ({"i": "words"}, BindError),
        ({"i": 2**80}, BindError),
        ({"i": [[1], [1, 2]]}, BindError),
    ],
)
def test_what_does_not_fit_is_refused(fixed: dict[str, object], error: type[DovetailError]) -> None:
    with pytest.raises(error) as caught:
        import_model(PICK, fixed=fixed)  # pyright: ignore[reportArgumentType]
    assert caught.value.hint


def test_the_default_of_an_input_can_be_replaced() -> None:
    made = model(["Add x b -> y"], {"x": f32[2], "b": f32[2]}, ["y"], initializers={"b": ones(2)})
    for fixed, wanted in (({}, 2.0), ({"b": 4 * ones(2)}, 5.0)):
        result = dovetail.compile(import_model(made, fixed=fixed)).run({"x": ones(2)})
        np.testing.assert_array_equal(result["y"], [wanted, wanted])


def test_compile_and_scan_take_it_with_a_path(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(PICK.SerializeToString())
    assert [str(v.type) for v in dovetail.compile(path, fixed={"n": 2}).graph.inputs] == ["f32[2, m]", "i64[k]"]
    assert dovetail.explain(path, fixed={"n": 2}).graph == "model"
    graph = dovetail.load(path)
    with pytest.raises(OptionError, match="fixed with a graph"):
        dovetail.compile(graph, fixed={"n": 2})
    dovetail.save(graph, tmp_path / "saved")
    with pytest.raises(OptionError, match="no ONNX model"):
        dovetail.load(tmp_path / "saved", fixed={"n": 2})
    with pytest.raises(LoadError):
        dovetail.load(tmp_path / "none.onnx", fixed={"n": 2})


def test_sizes_that_decide_the_structure_are_asked_for() -> None:
    """A branch on a size whose sides have different ranks, neither of which says what the size is."""
    then = model(["Unsqueeze x a -> t"], {}, ["t"], initializers={"a": np.array([0])}).graph
    other = model(["Identity x -> e"], {}, ["e"]).graph
    nodes = ["Shape x -> s", node("Gather s z -> d", axis=0), "Equal d o -> c"]
    branch = node("If c -> y", then_branch=then, else_branch=other)
    numbers = {"z": np.array(0), "o": np.array(1)}
    made = model([*nodes, branch], {"x": f32["n", 3]}, ["y"], initializers=numbers)
    with pytest.raises(NeedsValueError, match="n") as caught:
        import_model(made)
    assert caught.value.sizes == ("n",) and "'n': number" in caught.value.hint
    for n, shape in ((1, (1, 1, 3)), (2, (2, 3))):
        program = dovetail.compile(import_model(made, fixed={"n": n}))
        assert program.run({"x": ones(n, 3)})["y"].shape == shape
