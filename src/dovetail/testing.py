"""For tests: which fusions a program must have, the laws of a declared op, and a process that remembers nothing."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from dovetail import library
from dovetail.declare import FusedOp
from dovetail.derive import gradient_laws, laws
from dovetail.derive.laws import LawError
from dovetail.grad.walk import forget as forget_pulls
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.passes.canonicalize import canonicalize
from dovetail.report.record import Node
from dovetail.report.report import Report
from dovetail.runtime.program import Program
from dovetail.targets.reference.interpreter import evaluate

if TYPE_CHECKING:
    from dovetail.targets.xla.explain.explained import Explained

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
        raise AssertionError(f"no node of {report.graph} is at {where!r}; some nodes are at: {', '.join(named[:5])}")
    if where != "*" and asked - has:
        raise AssertionError(f"{rule} made no kernel at {', '.join(sorted(asked - has)[:5])}{_refused(report, rule)}")
    found = [f for f in made if where == "*" or _scopes(f.nodes, where)]
    if not found or (count is not None and len(found) != count):
        wanted = "some" if count is None else str(count)
        raise AssertionError(f"{rule} made {len(found)} kernels at {where!r}, not {wanted}{_refused(report, rule)}")


def assert_placed(explained: Explained, **counts: int) -> None:
    """A placement has exactly these collectives: `assert_placed(explain_placement(…), all_reduce=4)`."""
    wanted = {kind.replace("_", "-"): count for kind, count in counts.items()}
    found = dict(explained.counts)
    if {k: n for k, n in found.items() if n} != {k: n for k, n in wanted.items() if n}:
        reasons = "".join(f"\n  {count} × {c.kind} at {c.place}: {c.why}" for c, count in explained.groups())
        raise AssertionError(f"collectives are {found}, not {wanted}{reasons}")


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


def check_op(op: FusedOp[...]) -> None:
    """Every law holds of every variant and guard of a declared op; `LawError` says which one does not, and where.

    Arguments are drawn from the `shapes` line of the declaration, the same ones every time. The judge is the reference
    interpreter in float64.
    """
    for variant in op.variants:
        laws.check_meaning(op, variant, seed=1, evaluate=lifted)
        if variant.spelling:
            with np.errstate(all="ignore"):
                laws.check_range(op, variant, seed=6, evaluate=evaluate)
        elif op.back is not None:
            with np.errstate(all="ignore"):
                gradient_laws.check_backward(op, variant, seed=7, evaluate=lifted)
            gradient_laws.check_built_again(op, variant, seed=8)
    for variant in op.patterns:
        laws.check_recognition(op, variant, seed=2, canonical=canonicalize, parts=parts_of(op))
        laws.check_round_trip(op, variant, seed=3, canonical=canonicalize)
        laws.check_operand_order(op, variant, seed=4, canonical=canonicalize)
        laws.check_inner_outputs(op, variant, seed=5, evaluate=lifted, canonical=canonicalize)
    for guard in op.guards:
        laws.check_guard(op, guard, canonicalize)
        if guard.remedy is not None:
            laws.check_remedy(op, guard)


def lifted(graph: Graph, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """What a graph computes in float64."""
    return evaluate(graph, feeds, lift=True)


def parts_of(op: FusedOp[...]) -> list[FusedOp[...]]:
    """The declared ops that an op is made of, in the order in which they are looked for: the library's, then others."""
    found: dict[FusedOp[...], None] = {}
    pending = list(op.parts)
    while pending:
        part = pending.pop()
        if part not in found:
            found[part] = None
            pending += part.parts
    rank = {part: at for at, part in enumerate(library.ALL)}
    # What is found last is deepest, and must be looked for first.
    return sorted(reversed(found), key=lambda part: rank.get(part, len(rank)))


def forget(*ops: FusedOp[...]) -> None:
    """Drop what this process has inferred and interned: traces of declared ops, scalar constants, unused values.

    For tests that change how types or constants are computed. Pass ops of your own; those of the library are included.
    """
    for op in {*library.ALL, *ops}:
        op.forget()
    leaf.forget_scalars()
    forget_pulls()
    gc.collect()


__all__ = ["LawError", "assert_fused", "assert_placed", "check_op", "forget", "lifted", "parts_of"]
