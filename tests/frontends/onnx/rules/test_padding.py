"""Padding and cropping, against onnxruntime: every mode, amounts of every sign, symbols, older opsets."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f32, i32
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node


def x_of(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(0, 1, 0, 2), (2, 0, 1, 3), (0, -1, 0, 2), (-1, 1, 0, -2), (0, -1, 0, -1)])
def test_pad(mode: str, pads: tuple[int, ...]) -> None:
    m = model([node("Pad x p -> y", mode=mode)], {"x": f32["r", "c"]}, ["y"], opset=19, initializers={"p": ints(*pads)})
    assert_like_onnxruntime(m, {"x": x_of(3, 4)}, {"x": x_of(4, 5)})


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pad_by_more_than_there_is(mode: Literal["edge", "reflect", "wrap"]) -> None:
    m = model([node("Pad x p -> y", mode=mode)], {"x": f32["n"]}, ["y"], opset=19, initializers={"p": ints(7, 5)})
    for size in (1, 2, 3, 4):
        x = x_of(size)
        (result,) = by_dovetail(m, {"x": x})
        assert np.array_equal(result["y"], np.pad(x, (7, 5), mode=mode))


@pytest.mark.slow
def test_pad_with_a_number_along_named_axes() -> None:
    m = model(
        ["Pad x p v a -> y"],
        {"x": i32["a", 2, "c"]},
        ["y"],
        opset=18,
        initializers={"p": ints(1, 0, 0, 2), "v": np.array(7, np.int32), "a": ints(-1, 0)},
    )
    assert_like_onnxruntime(m, *({"x": x_of(*s).astype(np.int32)} for s in ((2, 2, 3), (1, 2, 1))))


@pytest.mark.slow
def test_pad_of_old_by_attributes() -> None:
    m = model(
        [node("Pad x -> y", pads=[0, 1, 2, 0], value=1.5), node("Pad x -> z", pads=[0, 1, 1, 0], mode="reflect")],
        {"x": f32["r", 3]},
        ["y", "z"],
        opset=10,
    )
    assert_like_onnxruntime(m, {"x": x_of(2, 3)}, {"x": x_of(4, 3)})


def test_pad_up_to_a_size() -> None:
    m = model(
        ["Shape x -> n", "Sub eight n -> missing", "Concat zero missing -> p", "Pad x p -> y"],
        {"x": f32["n"]},
        ["y"],
        initializers={"eight": ints(8), "zero": ints(0)},
    )
    m.graph.node[2].attribute.append(node("Concat a -> b", axis=0).attribute[0])
    assert_like_onnxruntime(m, {"x": x_of(3)}, {"x": x_of(8)})


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_by_amounts_that_the_run_finds(mode: str) -> None:
    m = model(
        ["ReduceMax z front -> top", node("Cast top -> k", to=7), "Neg k -> minus", node("Concat k minus -> p", axis=0),
         node("Concat minus k -> q", axis=0), node("Pad x p -> y", mode=mode), node("Pad x q -> w", mode=mode)],
        {"x": f32["n"], "z": f32["m"]},
        ["y", "w"],
        opset=19,
        initializers={"front": ints(0)},
    )  # fmt: skip
    assert_like_onnxruntime(m, *({"x": x_of(5), "z": np.array([k], np.float32)} for k in (0, 1, 2, -2)))


@pytest.mark.parametrize(
    ("nodes", "error"),
    [
        ([node("Pad x p -> y", mode="mirror")], UnsupportedError),
        (["Pad x q -> y"], LoadError),
        (["Pad x p _ a -> y"], LoadError),
    ],
)
def test_pad_that_cannot_be_is_refused(nodes: list[Any], error: type[Exception]) -> None:
    given = {"p": ints(1, 0, 0, 1), "q": ints(1, 1), "a": ints(1, -1)}
    with pytest.raises(error):
        import_model(model(nodes, {"x": f32[2, 3]}, ["y"], opset=19, initializers=given))


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "shape"), [(None, (4, 5)), ([1], (3,)), ([-2], (7,)), ([1, 0], (4, 4))])
def test_center_crop_pad(axes: list[int] | None, shape: tuple[int, ...]) -> None:
    along: dict[str, Any] = {} if axes is None else {"axes": axes}
    nodes = [node("CenterCropPad x s -> y", **along)]
    m = model(nodes, {"x": f32["r", "c"]}, ["y"], opset=18, initializers={"s": ints(*shape)})
    for r, c in ((3, 4), (4, 3), (7, 8), (4, 5)):
        x = x_of(r, c) + 1
        expected = x
        for axis, size in zip(axes or (0, 1), shape, strict=True):
            expected = _fitted(expected, axis, size)
        (result,) = by_dovetail(m, {"x": x})
        assert np.array_equal(result["y"], expected)


def _fitted(x: Array, axis: int, size: int) -> Array:
    lines = list(np.moveaxis(x, axis, 0))
    while len(lines) > size:
        del lines[-1 if (len(lines) - size) % 2 else 0]
    missing = size - len(lines)
    for i in range(missing):
        lines.insert(len(lines) if (missing - i) % 2 else 0, np.zeros_like(lines[0]))
    return np.moveaxis(np.array(lines), 0, axis)
