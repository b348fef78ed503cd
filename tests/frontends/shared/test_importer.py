"""What imports share: where the values of a step come from, what its errors say, symbols, operators without a rule."""

from __future__ import annotations

import pytest

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.shared.importer import MOST_LISTED, Importer, refuse
from dovetail.ir.origin import Origin


def test_a_step_has_its_origins_and_those_around_it_are_back_after_it() -> None:
    importer = Importer("import")
    recorder, around, own = importer.builder.recorder, (Origin("module", "outer"),), (Origin("module", "inner"),)
    recorder.place = around
    with importer.step("add", lambda: "inner", own):
        assert recorder.place == own
        with importer.step("mul", str, None):
            assert recorder.place == own
    assert recorder.place == around
    with pytest.raises(LoadError), importer.step("add", lambda: "inner", own):
        raise ValueError
    assert recorder.place == around


def test_errors_name_the_operator_and_its_place() -> None:
    importer = Importer("import")
    with (
        pytest.raises(LoadError, match="add cannot be imported: 'axis'") as raised,
        importer.step("add", lambda: "layers.0", None),
    ):
        raise KeyError("axis")
    assert raised.value.where == "layers.0"
    for where, told in (("", "layers.0"), ("layers.0.inner", "layers.0.inner")):
        with pytest.raises(UnsupportedError) as refused, importer.step("add", lambda: "layers.0", None):
            raise UnsupportedError("no", hint="", where=where)
        assert refused.value.where == told


def test_operators_without_a_rule_are_counted_the_most_frequent_first() -> None:
    refuse([], "")
    with pytest.raises(UnsupportedError) as raised:
        refuse([("fft", "a"), ("sort", ""), ("sort", "b"), ("sort", "c")], "see the list")
    assert raised.value.hint == "see the list"
    assert raised.value.message == (
        "2 operators of this model are not supported:\n  sort: 3 times, first at b, c\n  fft: 1 time, at a"
    )
    with pytest.raises(UnsupportedError, match=r"^1 operator of this model is not supported:\n  fft: 1 time"):
        refuse([("fft", "")], "")
    with pytest.raises(UnsupportedError, match="and 2 more operators"):
        refuse([(f"op{i}", "") for i in range(MOST_LISTED + 2)], "")


def test_a_fresh_symbol_is_none_of_those_that_are_taken() -> None:
    importer = Importer("import")
    importer.symbols |= {"n", "n_1"}
    assert [str(importer.fresh(name)) for name in ("n", "n", "a b", "1", "")] == ["n_2", "n_3", "a_b", "n_1_1", "n_4"]
