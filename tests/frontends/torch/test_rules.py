"""The table of rules, and type promotion as torch has it. The table needs no torch."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest

from dovetail.errors import UnsupportedError
from dovetail.frontends.torch.importing.promotion import common_dtype
from dovetail.frontends.torch.rules import REGISTRY
from dovetail.ir import leaf
from dovetail.ir.type import TensorType


def test_every_operator_has_one_rule_that_says_what_it_computes() -> None:
    assert len(REGISTRY.by_name) == len(REGISTRY.all()), "an operator has two rules"
    whole = [rule.op.startswith("higher_order.") or rule.op.count(".") >= 2 for rule in REGISTRY.all()]
    assert all(whole) and all(rule.doc for rule in REGISTRY.all())


@pytest.mark.slow
def test_rules_do_not_import_torch() -> None:
    code = "import dovetail.frontends.torch.rules, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_rules_are_named_as_torch_names_operators() -> None:
    torch: Any = pytest.importorskip("torch")
    strangers: list[str] = []
    for rule in REGISTRY.all():
        namespace, packet, *overload = rule.op.split(".")
        found = getattr(getattr(torch.ops, namespace), packet, None)
        found = getattr(found, overload[0], None) if overload else found
        if found is None and namespace in ("aten", "higher_order"):
            strangers.append(rule.op)
    assert not strangers


def test_promotion_agrees_with_torch() -> None:
    torch: Any = pytest.importorskip("torch")
    from dovetail.frontends.torch.reading.package import dtypes

    ours = {
        t: d
        for t, d in dtypes().items()
        if d.name in ("bool", "u8", "i8", "i16", "i32", "i64", "bf16", "f16", "f32", "f64", "c64")
    }
    for (a, da), (b, db) in itertools.product(ours.items(), repeat=2):
        for left, right in itertools.product((0, 1), repeat=2):
            wanted = torch.result_type(torch.ones((2,) * left, dtype=a), torch.ones((2,) * right, dtype=b))
            operands = [leaf.input("x", TensorType(da, (2,) * left)), leaf.input("y", TensorType(db, (2,) * right))]
            try:
                found = common_dtype(operands)
            except UnsupportedError:
                assert wanted is torch.complex128
                continue
            assert wanted not in dtypes() or found is dtypes()[wanted], (a, b, left, right)
        for number in (True, 1, 1.0, 1j):
            wanted = torch.result_type(torch.ones(2, dtype=a), number)
            if wanted in dtypes():
                assert common_dtype([leaf.input("x", TensorType(da, (2,))), number]) is dtypes()[wanted], (a, number)
