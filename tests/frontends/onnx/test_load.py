"""Model files become graphs, whatever way they are reached; what is no model is refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import dovetail
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model, load_model
from dovetail.frontends.onnx.file.read import read_model
from dovetail.frontends.onnx.file.wire import check_content
from dovetail.frontends.onnx.importing.supported import NEWEST, OLDEST, opsets_of
from dovetail.ir.dtype import f32
from tests.frontends.onnx.build import model, node

X = {"x": f32["n", 4]}


def test_a_file_and_its_external_data(tmp_path: Path) -> None:
    w = np.arange(40_000, dtype=np.float32)
    made = model(["Add x w -> y"], {"x": f32["n", 40_000]}, ["y"], initializers={"w": w})
    path = tmp_path / "model.onnx"
    cast(Any, onnx).save_model(made, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size >= w.nbytes
    program = dovetail.compile(path, target="reference")
    assert np.array_equal(program.run({"x": np.ones((1, 40_000), np.float32)})["y"][0], w + 1)
    assert load_model(path).outputs.keys() == {"y"}


def test_the_suffix_may_be_written_in_capitals(tmp_path: Path) -> None:
    path = tmp_path / "MODEL.ONNX"
    path.write_bytes(model(["Relu x -> y"], X, ["y"]).SerializeToString())
    assert list(dovetail.load(path).outputs) == ["y"]


def test_what_another_file_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content, words in ((b"PK\x03\x04....", "zip"), (b"version https://git-lfs.github.com/spec/v1", "git lfs pull")):
        path.write_bytes(content)
        with pytest.raises(LoadError) as caught:
            read_model(path)
        assert words in caught.value.hint


@pytest.mark.parametrize("opset", [OLDEST, 6, 13, 22, NEWEST])
def test_opsets_that_are_read(opset: int) -> None:
    assert opsets_of([helper.make_opsetid("", opset)]) == {"": opset}


def test_an_opset_that_stands_twice_in_one_version_is_one() -> None:
    twice = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx", 13)]
    assert opsets_of(twice) == {"": 13}


def test_all_unknown_operators_are_listed_at_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        import_model(model(["Unheard x -> a", "Unseen a -> b", "Relu b -> y"], X, ["y"]))
    assert "Unheard" in caught.value.message and "Unseen" in caught.value.message
    assert "Relu" not in caught.value.message


def test_functions_may_be_called_many_times() -> None:
    imports = [helper.make_opsetid("", 21)]
    own = helper.make_function("own", "f", ["a"], ["b"], [node("Relu a -> b")], imports)
    nodes = [node(f"f {'x' if i == 0 else f'v{i}'} -> v{i + 1}", domain="own") for i in range(300)]
    graph = import_model(model(nodes, X, ["v300"], domains={"own": 1}, functions=[own]))
    assert graph.count() >= 2


def test_messages_are_short_and_printable() -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"], name="n" * 3000)], X, ["y"])
    made.graph.node[0].attribute.append(helper.make_attribute("beta", 1.0))
    with pytest.raises(UnsupportedError) as caught:
        import_model(made)
    assert len(str(caught.value)) < 1000


def test_bytes_that_are_a_model_pass_the_walk() -> None:
    tensor = helper.make_tensor("w", TensorProto.INT64, [3], [1, 2, 3])
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.initializer.append(tensor)
    made.metadata_props.add(key="a", value="b" * 1000)
    check_content(made.SerializeToString())


@pytest.mark.slow
def test_weights_do_not_count_as_structure() -> None:
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[1 << 21], float_data=[0.5] * (1 << 21)))
    made.graph.initializer.append(TensorProto(name="v", data_type=7, dims=[1 << 20], int64_data=[1] * (1 << 20)))
    check_content(made.SerializeToString())
