"""ONNX files at a glance: what counts, what does not, and what is left to those who read them whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dovetail.frontends.onnx import load_model
from dovetail.frontends.onnx.file.skim import HASHED, Skimmed, skim
from dovetail.ir.literal import Array

LARGE = np.arange(HASHED, dtype=np.float32).reshape(128, -1)
SMALL = np.arange(6, dtype=np.float32)
SIZES = np.array([2, 3], np.int64)


def model(large: Array = LARGE, small: Array = SMALL, sizes: Array = SIZES, act: str = "Relu") -> onnx.ModelProto:
    arrays = {"large": large, "small": small, "sizes": sizes}
    nodes = [
        helper.make_node("MatMul", ["x", "large"], ["a"]),
        helper.make_node(act, ["a"], ["b"]),
        helper.make_node("Reshape", ["small", "sizes"], ["c"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 128])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "bc"],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def seen(tmp_path: Path) -> Callable[[onnx.ModelProto | bytes], Skimmed | None]:
    def look(of: onnx.ModelProto | bytes) -> Skimmed | None:
        path = tmp_path / "model.onnx"
        path.write_bytes(of if isinstance(of, bytes) else of.SerializeToString())
        return skim(path)

    return look


Look = Callable[[onnx.ModelProto | bytes], Skimmed | None]


def digest(found: Skimmed | None) -> str:
    assert found is not None
    return found.digest


def test_numbers_of_large_arrays_do_not_count_and_all_else_does(seen: Look) -> None:
    base = digest(seen(model()))
    assert digest(seen(model(large=LARGE * 2))) == base
    others = [
        model(large=LARGE.reshape(-1, 128).copy()),
        model(large=LARGE[:-1]),
        model(large=LARGE.view(np.int32)),
        model(small=SMALL + 1),
        model(sizes=SIZES[::-1].copy()),
        model(act="Tanh"),
    ]
    found = [digest(seen(other)) for other in others]
    assert len({base, *found}) == 1 + len(others)


def test_arrays_are_those_that_the_importer_reads(seen: Look, tmp_path: Path) -> None:
    found = seen(model())
    assert found is not None and found.places.keys() == {"large", "small", "sizes"} and found.large == {"large"}
    reading = found.read(found.places)
    reading.finish()
    for name, array in {"large": LARGE, "small": SMALL, "sizes": SIZES}.items():
        np.testing.assert_array_equal(reading.arrays[name], array)
        assert reading.arrays[name].dtype == array.dtype and not reading.arrays[name].flags.writeable
    for name, array in load_model(tmp_path / "model.onnx").params.items():
        np.testing.assert_array_equal(reading.arrays[name], array)


@pytest.mark.slow
def test_a_file_may_be_written_anew_once_it_is_read(seen: Look, tmp_path: Path) -> None:
    wide = np.arange(1 << 21, dtype=np.float32).reshape(128, -1)
    found = seen(model(large=wide))
    assert found is not None
    reading = found.read(["large"])
    reading.finish()
    (tmp_path / "model.onnx").write_bytes(b"")
    np.testing.assert_array_equal(reading.arrays["large"], wide)


def test_structure_is_the_model_without_large_arrays(seen: Look) -> None:
    proto = model()
    found = seen(proto)
    assert found is not None
    (large,) = (t for t in proto.graph.initializer if t.name == "large")
    large.ClearField("raw_data")
    assert onnx.ModelProto.FromString(found.structure()) == proto
    assert len(found.structure()) < 1000


def test_a_model_may_be_much_larger_than_what_is_hashed(seen: Look) -> None:
    many = [LARGE + i for i in range(5)]
    proto = model()
    for index, array in enumerate(many):
        proto.graph.initializer.append(numpy_helper.from_array(array, f"more.{index}"))
    found = seen(proto)
    assert found is not None
    np.testing.assert_array_equal(found.read(["more.3"]).arrays["more.3"], many[3])


def test_arrays_that_are_no_plain_bytes_are_left_out_and_count(seen: Look) -> None:
    def with_numbers(numbers: Array) -> onnx.ModelProto:
        proto = model()
        proto.graph.initializer.append(helper.make_tensor("listed", TensorProto.FLOAT, numbers.shape, numbers))
        return proto

    first, second = seen(with_numbers(LARGE)), seen(with_numbers(LARGE + 1))
    assert first is not None and second is not None
    assert "listed" not in first.places and first.digest != second.digest


def test_external_data_is_left_out(seen: Look) -> None:
    proto = model()
    tensor = proto.graph.initializer.add(name="far", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    found = seen(proto)
    assert found is not None and "far" not in found.places


def test_wrong_lengths_and_names_are_left_to_the_importer(seen: Look) -> None:
    short = model()
    short.graph.initializer[0].raw_data = short.graph.initializer[0].raw_data[:-4]
    found = seen(short)
    assert found is not None and "large" not in found.places
    twice = model()
    twice.graph.initializer.append(twice.graph.initializer[0])
    assert seen(twice) is None


def test_what_is_no_model_is_none(seen: Look, tmp_path: Path) -> None:
    whole = model().SerializeToString()
    assert seen(b"") is None and seen(b"\xff" * 64) is None and skim(tmp_path / "none.onnx") is None
    assert skim(tmp_path) is None
    assert seen(whole + whole) is None  # two graphs, which protobuf merges
    for cut in range(1, len(whole), max(1, len(whole) // 97)):
        found = seen(whole[:cut])
        assert found is None or cut < 16, "half a model"
