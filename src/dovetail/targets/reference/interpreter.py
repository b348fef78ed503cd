"""The NumPy interpreter that judges every other target. Its code is in the shared runtime: each target runs its bind
phase and its host steps with it."""

from dovetail.targets.runtime.calls.interpreter import Result, evaluate, evaluate_in_turn, evaluate_values

__all__ = ["Result", "evaluate", "evaluate_in_turn", "evaluate_values"]
