"""A step of an import: where its values come from, and what its errors say."""

from __future__ import annotations

import pytest

from dovetail import Builder
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.shared.steps import imported_step, missing_rules
from dovetail.ir.origin import Origin


def test_a_step_has_its_origins_and_those_around_it_are_back_after_it() -> None:
    builder = Builder("import", lines=False)
    recorder, around, own = builder.recorder, (Origin("module", "outer"),), (Origin("module", "inner"),)
    recorder.place = around
    with imported_step(builder, "add", "inner", own):
        assert recorder.place == own
        with imported_step(builder, "mul", "", None):
            assert recorder.place == own
    assert recorder.place == around
    with pytest.raises(LoadError), imported_step(builder, "add", "inner", own):
        raise ValueError
    assert recorder.place == around


def test_errors_name_the_operator_and_its_place() -> None:
    builder = Builder("import", lines=False)
    with (
        pytest.raises(LoadError, match="add cannot be imported: 'axis'") as raised,
        imported_step(builder, "add", "layers.0", None),
    ):
        raise KeyError("axis")
    assert raised.value.where == "layers.0"
    for where, told in (("", "layers.0"), ("layers.0.inner", "layers.0.inner")):
        with pytest.raises(UnsupportedError) as refused, imported_step(builder, "add", "layers.0", None):
            raise UnsupportedError("no", hint="", where=where)
        assert refused.value.where == told


def test_operators_without_a_rule_are_counted_the_most_frequent_first() -> None:
    told = missing_rules([("fft", "a"), ("sort", ""), ("sort", "b")])
    assert told == "2 operators are not supported:\n  sort: 2 times\n  fft: 1 time, first at a"
    assert missing_rules([("fft", "")]).startswith("1 operator is not supported:")
