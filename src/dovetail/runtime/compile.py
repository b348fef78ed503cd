"""Compiling: a graph through the pipeline, the plan and the report to a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail import library
from dovetail import ops as primitives
from dovetail.declare.fused import FusedOp
from dovetail.errors import GateError, OptionError
from dovetail.ir.collector import collector_paused
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.passes.claims import Dispatch
from dovetail.passes.pipeline import Lowered, Setup, lower
from dovetail.passes.specialize import specialize
from dovetail.plan.plan import Plan, make_plan
from dovetail.report.build import build_report
from dovetail.report.record import Report
from dovetail.runtime.load import load
from dovetail.runtime.program import Program
from dovetail.settings import Settings, settings_of
from dovetail.targets import Target, target_named


@dataclass(frozen=True, slots=True)
class Compilation:
    """Everything that one compilation made, for those who want to look inside."""

    written: Graph
    lowered: Lowered
    plan: Plan
    setup: Setup

    def report(self) -> Report:
        """What fused, what did not and why."""
        with collector_paused():
            return build_report(self.lowered, self.plan, self.setup)


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked for, checked."""

    target: Target
    setup: Setup
    settings: Settings
    require: Mapping[str, int]
    require_clean: bool

    def compilation(self, graph: Graph) -> Compilation:
        """Lower and plan a graph."""
        with collector_paused():
            lowered = lower(graph, self.setup)
            plan = make_plan(lowered.graph, target=self.target.name, options=_plan_options(self.setup))
        return Compilation(graph, lowered, plan, self.setup)


def compile(
    graph: Graph | str | os.PathLike[str],
    *,
    target: str = "cpu",
    ops: Iterable[FusedOp[...]] = (),
    without: Iterable[str] = (),
    dispatch: Mapping[str, Dispatch] | None = None,
    require: Mapping[str, int] | Sequence[str] = (),
    require_clean: bool = False,
    sizes: Mapping[str, int] | None = None,
    params: Mapping[str, Array] | None = None,
    **options: Any,
) -> Program:
    """Compile a graph, or the graph in a file, to a program.

    `ops` are declared ops of your own, preferred to the library's. `without` switches passes and rules off by name.
    `require` names rules that must fire, with how often; `require_clean` refuses any miss that cost did not decide.
    `sizes` says what symbols count as in estimates. Other keywords are fields of `Settings`.
    """
    request = make_request(
        target=target,
        ops=ops,
        without=without,
        dispatch=dispatch,
        require=require,
        require_clean=require_clean,
        sizes=sizes,
        **options,
    )
    written = graph if isinstance(graph, Graph) else load(graph, ops=ops)
    return _program(written, request, params)


def make_request(
    *,
    target: str = "cpu",
    ops: Iterable[FusedOp[...]] = (),
    without: Iterable[str] = (),
    dispatch: Mapping[str, Dispatch] | None = None,
    require: Mapping[str, int] | Sequence[str] = (),
    require_clean: bool = False,
    sizes: Mapping[str, int] | None = None,
    **options: Any,
) -> Request:
    """The options of `compile`, checked."""
    settings = settings_of(options, os.environ)
    chosen = target_named(target)
    own = tuple(ops)
    vocabulary = (*own, *(op for op in library.ALL if op.name not in {o.name for o in own}))
    known: Mapping[str, Size] = dict(sizes or {})
    setup = Setup(
        claims=chosen.claims(own),
        ops=vocabulary,
        groups=library.GROUPS,
        without=frozenset(without),
        policy=_checked_policy(dispatch or {}, vocabulary),
        strict=settings.strict,
        sizes=known,
        verify_each_pass=settings.verify_each_pass,
    )
    wanted = require if isinstance(require, Mapping) else dict.fromkeys(require, 1)
    names = {op.name for op in vocabulary} | {g.name for g in setup.groups} | {"region", "batched_region"}
    for rule in wanted:
        if rule not in names:
            raise OptionError(f"there is no rule {rule!r} to require", hint=f"the rules are {', '.join(sorted(names))}")
    return Request(chosen, setup, settings, wanted, require_clean)


def _program(written: Graph, request: Request, params: Mapping[str, Array] | None) -> Program:
    made = request.compilation(written)
    if request.require or request.require_clean:
        check_gates(made.report(), request.require, request.require_clean)
    if request.settings.print_report:
        print(made.report(), file=sys.stderr)

    def specializer(sizes: Mapping[str, int]) -> Program:
        return _program(specialize(written, sizes), replace(request, require={}, require_clean=False), None)

    return Program(
        made.plan,
        request.target.compile(made.plan),
        report=made.report,
        specializer=specializer if made.plan.symbols else None,
        params=params,
    )


def check_gates(report: Report, require: Mapping[str, int], require_clean: bool) -> None:
    """Required fusions that are missing, and misses where none is allowed, are one error that lists them."""
    short = [
        f"  {rule}: {report.count(rule)} of {count}" for rule, count in require.items() if report.count(rule) < count
    ]
    if short:
        why = [f"  {m.rule} at {m.node}: {m.reason}: {m.message}" for m in report.missed if m.rule in require]
        raise GateError("required fusions are missing:\n" + "\n".join([*short, *why]), hint="see the reasons above")
    if require_clean and not report.is_clean:
        lines = [f"  {m.rule} at {m.node}: {m.reason}: {m.message}" for m in report.lost]
        raise GateError(f"{len(lines)} fusions were missed:\n" + "\n".join(lines), hint="see the reasons above")


def _checked_policy(dispatch: Mapping[str, Dispatch], declared: Sequence[FusedOp[...]]) -> dict[str, Dispatch]:
    known = {"*", "region"} | {op.name for op in primitives.ALL} | {op.name for op in declared}
    for name, wish in dispatch.items():
        if name not in known:
            raise OptionError(f"there is no op {name!r} to dispatch", hint="use an op's name, or * for all others")
        if wish not in ("prefer_native", "force_common", "force_native"):
            raise OptionError(
                f"{name} is to be dispatched {wish!r}", hint="prefer_native, force_common or force_native"
            )
    return dict(dispatch)


def _plan_options(setup: Setup) -> dict[str, Any]:
    """What changes the code beside the graph; it goes into the fingerprint."""
    return {"strict": setup.strict}


def scan(graph: Graph, **options: Any) -> Report:
    """The report of compiling a graph, without a program; `options` are those of `compile`."""
    return make_request(**options).compilation(graph).report()
