"""Checking proofs: a step is real if its rule, asked again about nothing but what it matched, says the same."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.egraph.engine import egraph_of
from dovetail.egraph.proof import Application, matched
from dovetail.egraph.rules import RuleSet


def is_real(application: Application, rules: Iterable[RuleSet]) -> bool:
    """Whether one of these rules, on the matched values alone, makes of them what the application says."""
    egraph = egraph_of([matched(application, value) for value in application.covers])
    for each in rules:
        for found in each.applications(egraph, egraph.nodes):
            if found.rule == application.rule and found.result is application.result:
                return True
    return False
