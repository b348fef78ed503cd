"""Places that differ in a number are one."""

from __future__ import annotations

from dovetail.report.fold_names import fold_names


def test_what_differs_is_a_star_and_what_all_have_stays() -> None:
    assert fold_names(["layers.0.attn.2", "layers.1.attn.2"]) == ["layers.*.attn.2"]
    assert fold_names(["Add_17 (Add)", "Add_3 (Add)", "Mul_7 (Mul)"]) == ["Add_* (Add)", "Mul_7 (Mul)"]
    assert fold_names(["/encoder/layer.3/MatMul", "/encoder/layer.11/MatMul"]) == ["/encoder/layer.*/MatMul"]


def test_words_with_digits_are_words() -> None:
    assert fold_names(["f32[1, 8] and conv2d", "f32[1, 9] and conv2d"]) == ["f32[1, *] and conv2d"]
    assert fold_names(["conv2d", "conv3d"]) == ["conv2d", "conv3d"]


def test_each_place_is_told_once_and_odd_names_stay_as_they_are() -> None:
    assert fold_names(["a", "b", "a"]) == ["a", "b"]
    assert fold_names([]) == [] and fold_names(["*.1", "*.1"]) == ["*.1"]
    assert fold_names(["odd\0 1", "odd\0 2"])[0].startswith("odd")
