"""Values in Python: slices, comparisons, `.T`, `.reshape`, help, and no silent truth."""

from __future__ import annotations

import pydoc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail import Builder, library, ops
from dovetail.dtypes import f32
from dovetail.errors import TraceError, TypeRuleError

A = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
PARTS = st.one_of(
    st.integers(-3, 2),
    st.none(),
    st.builds(slice, st.none() | st.integers(-4, 4), st.none() | st.integers(-4, 4), st.sampled_from([None, 1, 2, -1])),
)


@st.composite
def indices(draw: st.DrawFn) -> Any:
    parts: list[Any] = draw(st.lists(PARTS, max_size=4))
    while sum(p is not None for p in parts) > 3:
        parts.pop(next(i for i, p in enumerate(parts) if p is not None))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), ...)
    return tuple(parts) if len(parts) != 1 or draw(st.booleans()) else parts[0]


@given(index=indices())
def test_indices_mean_what_they_mean_in_numpy(index: Any) -> None:
    b = Builder("g")
    b.output("y", b.input("x", f32[3, 4, 5])[index])
    found = dovetail.evaluate(b.graph(), {"x": A})["y"]
    np.testing.assert_array_equal(found, A[index])
    assert found.shape == A[index].shape


def test_transpose_reshape_and_comparisons() -> None:
    b = Builder("g")
    x = b.input("x", f32[3, 4, 5])
    made = {"t": x.T, "r": x.reshape(12, 5), "s": x.reshape((-1, 10)), "f": ops.reshape(x, (60,))}
    made |= {"lt": x < 7.0, "le": x <= 7.0, "gt": x > 7.0, "ge": x >= x * 2.0}
    for name, value in made.items():
        b.output(name, value)
    want = {"t": A.T, "r": A.reshape(12, 5), "s": A.reshape(-1, 10), "f": A.reshape(60)}
    want |= {"lt": A < 7, "le": A <= 7, "gt": A > 7, "ge": A >= A * 2}
    found = dovetail.evaluate(b.graph(), {"x": A})
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_value_has_no_truth() -> None:
    x = Builder("g").input("x", f32[2])
    with pytest.raises(TraceError, match="not known while a graph is written") as caught:
        bool(x)
    assert "ops.where" in caught.value.hint
    with pytest.raises(TraceError):
        assert x < 1.0 and x > 0.0


@pytest.mark.parametrize("index", ["a", 1.5, (0, 0, 0, 0), (..., ...), True])
def test_other_indices_are_refused(index: Any) -> None:
    with pytest.raises(TypeRuleError):
        Builder("g").input("x", f32[2, 3])[index]


def test_help_is_about_the_op() -> None:
    assert "relu(x)" in pydoc.plain(pydoc.render_doc(ops.relu))
    assert "axis" in pydoc.plain(pydoc.render_doc(ops.concat))
    assert "softmax" in pydoc.plain(pydoc.render_doc(library.softmax)).splitlines()[2]
