"""The table of operators says what the rules and ONNX's definitions say."""

from __future__ import annotations

from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Ints, rule
from dovetail.frontends.onnx.rules import REGISTRY
from dovetail.frontends.onnx.table import page, rows
from dovetail.ir.value import Value
from tests.golden import Golden


def test_the_page_in_docs_is_what_the_rules_say(golden: Golden) -> None:
    golden.file("docs/operators.md", page(rows()))


def test_every_rule_has_a_line_of_its_own_words() -> None:
    silent = {r.op for r in REGISTRY.all() if not r.doc}
    assert not silent, f"no docstring: {sorted(silent)}"


def test_the_family_of_each_operator_is_what_the_rules_say(golden: Golden) -> None:
    golden.file("src/dovetail/frontends/onnx/rules/families.py", REGISTRY.index_text())


def test_rules_are_found_by_their_operator() -> None:
    every = REGISTRY.all()
    assert all(r in REGISTRY.of(r.op) for r in every)
    assert sum(len(REGISTRY.of(op)) for op in {r.op for r in every}) == len(every)
    assert REGISTRY.of("NoSuchOperator") == () == REGISTRY.of("com.microsoft.Abs")


@rule("Squeeze", until=12)
def older(n: Node, x: Value, *, axes: tuple[int, ...] | None = None) -> Value:
    """Older."""
    return x


@rule("Squeeze", since=13)
def newer(n: Node, x: Value, axes: Ints | None = None) -> Value:
    """Newer | better."""
    return x


@rule("Odd", domain="mine")
def odd(n: Node, x: Value) -> Value:
    """Odd."""
    return x


@rule("Gather")
def gather(n: Node, x: Value, indices: Value) -> Value:
    """Without its axis."""
    return x


def test_rules_become_rows() -> None:
    listed = {(row.domain, row.name): row for row in rows((*older, *newer, *odd, *gather))}
    squeeze = listed["", "Squeeze"]
    assert (squeeze.how, squeeze.versions, squeeze.known) == ("rule", "1 to 12, 13+", ("axes",))
    assert (squeeze.attributes, squeeze.refused, squeeze.doc) == (("axes",), (), "Newer | better.")
    assert listed["mine", "Odd"].versions == "1+"
    assert listed["", "Gather"].refused == ("axis",)
    assert listed["", "Softsign"].how == "body" and listed["", "StringConcat"].how == "none"
    assert listed["", "Upsample"].doc == "deprecated"
    shown = page(listed.values())
    assert "| Squeeze | 1 to 12, 13+ | axes | axes |  | Newer \\| better. |" in shown
    assert "## mine\n" in shown and "StringConcat" in shown.split("## Not supported")[1]
