"""Names that moved: every old one works until the version that removes it, and warns with the new one."""

from __future__ import annotations

import inspect
import pickle
import re
import warnings
from importlib import import_module
from typing import Any, cast, get_type_hints

import numpy as np
import pytest

import dovetail
from dovetail import errors, ops, renamed
from dovetail.dtypes import f32
from dovetail.graphs import param
from dovetail.ops.primitive import Primitive
from dovetail.runtime.options import CompileOptions
from dovetail.settings import Settings, SettingsOptions
from dovetail.train import SGD, AdamW, Group, Trainer, lora, merged

MODULES = ("dovetail.language", "dovetail.train", "dovetail.programs")
"""Modules that register old names and options when they are imported."""

for _module in MODULES:
    import_module(_module)
NAMES = [(module, old, new) for module, table in renamed.NAMES.items() for old, new in table.items()]


def resolved(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.mark.parametrize(("module", "old", "new"), NAMES, ids=[f"{m}.{o}" for m, o, _ in NAMES])
def test_an_old_name_is_the_new_one_and_warns(module: str, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{old} is now {new}; .* {renamed.REMOVED_IN}") as seen:
        found = getattr(import_module(module), old)
    assert found is resolved(new) and seen[0].filename == __file__
    assert old not in import_module(module).__all__


def test_this_version_is_older_than_the_one_that_removes_names() -> None:
    now, removed = _release(dovetail.__version__), _release(renamed.REMOVED_IN)
    assert now < removed


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without what names a pre-release: 0.1.0 of 0.1.0.dev7+g1a2b3c."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    assert numbers is not None, version
    return tuple(int(number) for number in numbers[0].split("."))


def _takes(function: Any) -> set[str]:
    known: set[str] = set()
    for parameter in inspect.signature(inspect.unwrap(function)).parameters.values():
        known |= set(get_type_hints(CompileOptions)) if parameter.kind is parameter.VAR_KEYWORD else {parameter.name}
    return known


@pytest.mark.parametrize("entry", renamed.OPTIONS, ids=lambda e: e.function.__qualname__)
def test_an_old_option_names_one_that_there_is(entry: renamed.OldOptions) -> None:
    assert entry.names
    for old, new in entry.names.items():
        if not entry.fields:
            assert new in _takes(entry.function) and old not in _takes(entry.function) - set(
                SettingsOptions.__annotations__
            )
        with pytest.warns(DeprecationWarning, match=f"option {old} of f is now {new}"):
            assert renamed.with_new_names("f", entry.names, {old: 1, "x": 2}) == {new: 1, "x": 2}
        with pytest.raises(errors.OptionError, match=f"of which {old} is an old name"):
            renamed.with_new_names("f", entry.names, {old: 1, new: 2})


@pytest.mark.slow
def test_old_options_work() -> None:
    x = dovetail.input("x", f32["rows", 4])
    graph = dovetail.Graph.of(ops.relu(x @ param("w", f32[4, 3])))
    with pytest.warns(DeprecationWarning, match="option sizes of explain is now assume_sizes") as seen:
        old = cast(Any, dovetail.explain)(graph, sizes={"rows": 64})
    assert seen[0].filename == __file__
    assert old.predicted_seconds == dovetail.explain(graph, assume_sizes={"rows": 64}).predicted_seconds
    with pytest.warns(DeprecationWarning, match="quantise of compile is now quantize"):
        wide = param("v", f32[128, 128])
        made = cast(Any, dovetail.compile)(
            dovetail.Graph.of(dovetail.input("x", f32[4, 128]) @ wide),
            params={"v": np.ones((128, 128), np.float32)},
            quantise="int8",
        )
    with pytest.warns(DeprecationWarning, match="Program.quantised is now quantized"):
        assert made.quantised is made.quantized is not None


def test_old_fields_work_however_often() -> None:
    for kind in (SGD, AdamW):
        for _ in range(3):
            with pytest.warns(
                DeprecationWarning, match=f"option (rate|decay) of {kind.__name__} is now (lr|weight_decay)"
            ):
                one = cast(Any, kind)(rate=0.5, decay=0.25)
            assert one == kind(lr=0.5, weight_decay=0.25)
            with pytest.warns(DeprecationWarning, match="rate is now lr"):
                assert one.rate == 0.5
    with pytest.warns(DeprecationWarning):
        assert cast(Any, Group)("w", rate=0.5) == Group("w", lr_scale=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert AdamW(0.5) == AdamW(lr=0.5)


@pytest.mark.slow
def test_the_momentum_of_batch_norms_is_not_that_of_the_optimizer() -> None:
    x, labels = dovetail.input("x", f32[2, 4]), "mean_squared"
    graph = dovetail.Graph.of(x @ param("w", f32[4, 3]))
    assert "momentum" not in inspect.signature(Trainer).parameters
    with pytest.warns(DeprecationWarning, match="option momentum of Trainer is now batch_norm_momentum"):
        cast(Any, Trainer)(graph, labels, momentum=0.9)


def test_merging_needs_the_graph_and_no_number() -> None:
    graph = dovetail.Graph.of(dovetail.input("x", f32[2, 4]) @ param("w", f32[4, 3]))
    weights = {"w": np.zeros((4, 3), np.float32)}
    adapted = lora(graph, "w", rank=2, alpha=6.0)
    pair = {"w.lora_a": np.ones((4, 2), np.float32), "w.lora_b": np.ones((2, 3), np.float32)}
    np.testing.assert_array_equal(merged(adapted, {**weights, **pair})["w"], np.full((4, 3), 2 * 3.0))
    x = np.ones((2, 4), np.float32)
    by_pairs = dovetail.evaluate(adapted, {"x": x}, params={**weights, **pair})["y"]
    by_sum = dovetail.evaluate(graph, {"x": x}, params=merged(adapted, {**weights, **pair}))["y"]
    np.testing.assert_array_equal(by_pairs, by_sum)
    with pytest.raises(errors.OptionError, match=r"no pair w\.lora_b, and so no scale"):
        merged(graph, {**weights, **pair})
    with pytest.warns(DeprecationWarning, match="merged"):
        old = merged(graph, {**weights, **pair}, rank=2, alpha=6.0)
    np.testing.assert_array_equal(old["w"], np.full((4, 3), 6.0))


def test_the_facade_is_a_dozen_names() -> None:
    assert len(dovetail.__all__) <= 16
    assert set(dovetail.__all__) <= set(dir(dovetail))
    for name in dovetail.MODULES:
        assert name in dir(dovetail)
        assert import_module(f"dovetail.{name}").__all__ if name not in ("blocks", "library", "inspect") else True


def test_primitives_and_functions_of_values_are_all_that_ops_offers() -> None:
    offered = {name: getattr(ops, name) for name in ops.__all__}
    assert len(ops.__all__) == len(offered) and dir(ops) == sorted(offered)
    results = {"ALL", "Looped", "Scanned"}
    for name, found in offered.items():
        if name not in {*results, "subgraph"} and not isinstance(found, Primitive):
            assert inspect.isfunction(found) and found.__module__.startswith("dovetail.ops."), name
            assert "Value" in str(inspect.signature(found)), name
    assert set(ops.ALL) <= set(offered.values())
    leaked = ("np", "math", "itertools", "Callable", "FAMILY", "leaf", "NoRuleError", "annotations")
    assert not [name for name in leaked if hasattr(ops, name)]


def test_the_options_are_the_settings() -> None:
    hints = get_type_hints(SettingsOptions)
    fields = get_type_hints(Settings)
    assert hints.keys() == fields.keys()
    for name, kind in hints.items():
        choices = Settings.__dataclass_fields__[name].metadata["choices"]
        assert kind is fields[name] or kind.__args__ == choices, name


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_survive_a_pickle(name: str) -> None:
    kind: type[errors.DovetailError] = getattr(errors, name)
    more = {p: {"str": "x", "int": 3, "bool": True}.get(v.annotation, ("s",))
            for p, v in inspect.signature(kind).parameters.items() if p != "message"}  # fmt: skip
    error = cast(Any, kind)("what", **more)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error)
    assert (again.hint, again.where, again.args) == (error.hint, error.where, error.args)
    assert again.exit_code == error.exit_code


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("UnsupportedError", [NotImplementedError]),
        ("NeedsValueError", [NotImplementedError]),
        ("LoadError", [OSError, ValueError]),
        ("OptionError", [ValueError]),
        ("BudgetError", [ValueError]),
        ("BindError", [ValueError]),
        ("ParseError", [ValueError]),
        ("OutOfMemoryError", [MemoryError]),
    ],
)
def test_handlers_of_python_s_own_errors_catch_them(name: str, kinds: list[type[Exception]]) -> None:
    assert all(issubclass(getattr(errors, name), kind) for kind in kinds)
