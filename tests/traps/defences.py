"""The defence behind each trap test, and the smallest change that takes it away."""

from __future__ import annotations

from tests.traps import (
    defences_broadcast_and_dtypes,
    defences_control_flow,
    defences_cost,
    defences_egraph_rules,
    defences_expansion,
    defences_guards,
    defences_outputs_and_uses,
    defences_reports,
    defences_shapes_plan_keys,
    defences_tests,
)
from tests.traps.removal import Defence

DEFENCES: tuple[Defence, ...] = (
    *defences_outputs_and_uses.DEFENCES,
    *defences_guards.DEFENCES,
    *defences_broadcast_and_dtypes.DEFENCES,
    *defences_expansion.DEFENCES,
    *defences_control_flow.DEFENCES,
    *defences_egraph_rules.DEFENCES,
    *defences_shapes_plan_keys.DEFENCES,
    *defences_reports.DEFENCES,
    *defences_cost.DEFENCES,
    *defences_tests.DEFENCES,
)
"""Every defence, one or more for each trap test."""
