"""For tests of models: which fusions a program must have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from dovetail.report.record import Node
from dovetail.report.report import Report
from dovetail.runtime.program import Program

_PATH = re.compile(r"(?<=[./])")


def assert_fused(program: Program | Report, where: str = "*", *, rule: str, count: int | None = None) -> None:
    """Every place that `where` names has a kernel that the rule made, alone or inside a larger one.

    Places are the user's words for nodes: module paths, names of ONNX nodes. `*.mlp` names layers.0.mlp with all that
    is in it. `count` is how many such kernels there are in all these places together.
    """
    report = program if isinstance(program, Report) else program.report
    made = [f for f in report.fused if rule == f.rule or rule in f.chain]
    asked = {scope for kernel in report.kernels for scope in _scopes(kernel.nodes, where)}
    has = {scope for entry in made for scope in _scopes(entry.nodes, where)}
    if where != "*" and not asked:
        named = sorted({n.where for k in report.kernels for n in k.nodes if n.where})
        raise AssertionError(
            f"no node of {report.graph} lies at {where!r}; some that there are: {', '.join(named[:5])}"
        )
    if where != "*" and asked - has:
        raise AssertionError(f"{rule} made no kernel at {', '.join(sorted(asked - has)[:5])}{_refused(report, rule)}")
    found = [f for f in made if where == "*" or _scopes(f.nodes, where)]
    if not found or (count is not None and len(found) != count):
        wanted = "some" if count is None else str(count)
        raise AssertionError(f"{rule} made {len(found)} kernels at {where!r}, not {wanted}{_refused(report, rule)}")


def _scopes(nodes: Iterable[Node], where: str) -> set[str]:
    """The shortest paths that a pattern names, of nodes that lie there or further inside."""
    found: set[str] = set()
    for node in nodes:
        for words in node.where.split(", "):
            pieces = _PATH.split(words)
            paths = ("".join(pieces[: i + 1]) for i in range(len(pieces)))
            scope = next((p.rstrip("./") for p in paths if fnmatchcase(p.rstrip("./"), where)), None)
            if scope is not None:
                found.add(scope)
    return found


def _refused(report: Report, rule: str) -> str:
    """The first miss of the rule, as its report has it."""
    miss = next((m for m in report.missed if m.rule == rule), None)
    return "" if miss is None else f"\n  {miss.reason}: {miss.message}\n  hint: {miss.hint}"


__all__ = ["assert_fused"]
