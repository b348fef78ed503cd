"""The records of branches and loops in a launch table: the names of their 64-bit fields, and status codes."""

from __future__ import annotations

_TABLES = ("before", "condition", "trip", "end", "moves")
LOOP_RECORD = ("limit", "flag", "status", *(f"{table}{field}" for table in _TABLES for field in "#@"))
"""A loop: the most trips; the address of its condition, or 0; the address of the status; then the length (#) and the
address (@) of each table. `condition` computes the condition, `end` runs after trips 1, 3, 5… and copies what they
carried to the results, `moves` lists the launch arguments that change from trip to trip."""
BRANCH_RECORD = ("flag", "status", "then#", "then@", "otherwise#", "otherwise@")
"""A branch. A table of length -1 is not compiled: the host runs the step."""
MOVE_RECORD = ("argument", "even", "odd", "step")
"""A launch argument that changes: its address, its value in trips 0, 2, 4… and in the others, what each trip adds."""

ASKS_HOST, ENDLESS = 1, 2
"""Status codes: the host runs the step by its meaning, or a loop exceeds the trip limit."""

__all__ = ["ASKS_HOST", "BRANCH_RECORD", "ENDLESS", "LOOP_RECORD", "MOVE_RECORD"]
