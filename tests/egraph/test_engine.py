"""The e-graph: classes, congruence, and proofs that say which rules made two values equal."""

from __future__ import annotations

import numpy as np

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.egraph.engine import EGraph, egraph_of
from dovetail.egraph.proof import Application, matched
from dovetail.ir.leaf import constant, input, param

A, B, C = (input(name, f32[2, 3]) for name in "abc")
W = param("w", f32[2, 3])


def says(root: Value, result: Value, rule: str = "given") -> Application:
    return Application(rule, "", "exact", root, result, (root,))


def test_equal_operands_make_equal_values() -> None:
    egraph = egraph_of([ops.exp(A + C), ops.exp(B + C)])
    assert egraph.find(ops.exp(A + C)) is not egraph.find(ops.exp(B + C))
    egraph.apply(says(A, B))
    egraph.rebuild()
    assert egraph.find(ops.exp(A + C)) is egraph.find(ops.exp(B + C))


def test_congruence_goes_all_the_way_up_and_nodes_stay_canonical() -> None:
    left, right = A, B
    for _ in range(50):
        left, right = ops.exp(left) + C, ops.exp(right) + C
    egraph = egraph_of([left, right])
    before = len(egraph.leaders)
    egraph.apply(says(A, B))
    egraph.rebuild()
    assert egraph.find(left) is egraph.find(right)
    assert len(egraph.leaders) == before - 101
    for node in egraph.nodes:
        assert egraph.canonical(node) is node


def test_a_value_that_is_added_later_joins_the_class_that_it_is_congruent_to() -> None:
    egraph = egraph_of([ops.exp(A), B])
    egraph.apply(says(A, B))
    egraph.rebuild()
    assert egraph.add(ops.exp(B)) is egraph.find(ops.exp(A))
    assert [s.application.rule for s in egraph.explain(ops.exp(A), ops.exp(B))] == ["given"]


def test_what_came_first_stands_for_a_class_but_a_constant_goes_before() -> None:
    egraph = egraph_of([ops.exp(A), ops.tanh(A)])
    egraph.apply(says(ops.tanh(A), ops.exp(A)))
    assert egraph.find(ops.tanh(A)) is ops.exp(A)
    zero = constant(np.zeros((2, 3)), f32)
    egraph.apply(says(ops.exp(A), zero))
    egraph.rebuild()
    assert egraph.find(ops.tanh(A)) is zero


def test_values_of_different_types_are_never_one() -> None:
    egraph = egraph_of([A, input("other", f32[3])])
    assert not egraph.apply(says(A, input("other", f32[3])))


def test_constness_spreads_to_what_is_computed_from_constants() -> None:
    egraph = egraph_of([ops.exp(W), ops.exp(A), A + ops.exp(W)])
    assert egraph.is_constant(ops.exp(W)) and not egraph.is_constant(ops.exp(A))
    egraph.apply(says(A, W))
    egraph.rebuild()
    assert egraph.is_constant(ops.exp(A)) and egraph.is_constant(A + ops.exp(W))


def test_a_size_that_only_an_input_tells_is_not_known_early() -> None:
    assert not egraph_of([param("p", f32["n"])]).is_constant(param("p", f32["n"]))


def test_a_proof_lists_the_rules_on_the_way_and_no_others() -> None:
    egraph = egraph_of([ops.exp(A), ops.tanh(A), ops.relu(A), ops.neg(A)])
    egraph.apply(says(ops.exp(A), ops.tanh(A), "first"))
    egraph.apply(says(ops.tanh(A), ops.relu(A), "second"))
    egraph.apply(says(ops.tanh(A), ops.neg(A), "aside"))
    steps = egraph.explain(ops.exp(A), ops.relu(A))
    assert [(s.application.rule, s.before, s.after) for s in steps] == [
        ("first", ops.exp(A), ops.tanh(A)),
        ("second", ops.tanh(A), ops.relu(A)),
    ]
    assert egraph.explain(ops.exp(A), ops.exp(A)) == []


def test_a_proof_of_congruence_proves_the_operands() -> None:
    egraph = egraph_of([ops.exp(ops.neg(A) + B), ops.exp(ops.relu(A) + ops.tanh(B))])
    egraph.apply(says(ops.neg(A), ops.relu(A), "left"))
    egraph.apply(says(B, ops.tanh(B), "right"))
    egraph.rebuild()
    steps = egraph.explain(ops.exp(ops.neg(A) + B), ops.exp(ops.relu(A) + ops.tanh(B)))
    assert {s.application.rule for s in steps} == {"left", "right"}


def test_what_a_pattern_matched_is_spelled_with_the_values_that_it_took() -> None:
    inner, other = ops.neg(A), ops.relu(A)
    found = Application("r", "", "exact", ops.exp(inner), B, (ops.exp(inner), other), ((inner, other),))
    assert matched(found) is ops.exp(ops.relu(A))


def test_an_application_says_whether_it_was_news() -> None:
    egraph = EGraph()
    assert egraph.apply(says(ops.exp(A), ops.tanh(A)))
    assert not egraph.apply(says(ops.exp(A), ops.tanh(A)))
    assert egraph.producers[ops.tanh(A)].rule == "given" and ops.exp(A) not in egraph.producers
