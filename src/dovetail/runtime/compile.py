"""Compiling: a graph through the pipeline, the plan and the report to a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Unpack, overload

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine, largest_bytes, streamed_bytes
from dovetail.declare.fused import FusedOp
from dovetail.errors import GateError, OptionError
from dovetail.ir.collector import collector_paused
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.passes.claims import Dispatch
from dovetail.passes.pipeline import Lowered, Setup, lower
from dovetail.passes.specialize import specialize
from dovetail.plan.emitted import Emitted
from dovetail.plan.plan import Plan, Step, make_plan
from dovetail.plan.served import Served
from dovetail.progress import phase
from dovetail.renamed import old_options
from dovetail.runtime.budget import Planned, within
from dovetail.runtime.cached import CachedProgram, keep, program_key, program_store, restore
from dovetail.runtime.cases import Case, graph_of_case
from dovetail.runtime.in_memory import Described, OnnxModel, is_torch
from dovetail.runtime.keepers import keepers
from dovetail.runtime.options import CompileOptions, RequestOptions
from dovetail.runtime.program import Program
from dovetail.runtime.quantize import Quantize, QuantizeKind, quantized
from dovetail.runtime.reports import Reports
from dovetail.runtime.request import Request, make_request
from dovetail.runtime.rounding import rounding_errors
from dovetail.runtime.source import Source, graph_of, of_graph, source_of
from dovetail.settings import PRECISIONS, Settings, SettingsOptions
from dovetail.targets import Target
from dovetail.targets.target import Considered

if TYPE_CHECKING:
    from dovetail.report.record import LaunchEntry
    from dovetail.report.report import Report
    from dovetail.runtime.module import ModuleProgram


@dataclass(frozen=True, slots=True)
class Compilation:
    """Everything that one compilation made, for those who want to look inside."""

    written: Graph
    lowered: Lowered
    plan: Plan
    setup: Setup
    target: Target
    machine: Machine
    """What prices kernels, by where their tensors lie; that of the setup decides, and moves all of them alike."""
    settings: Settings

    def report(self, sizes: Mapping[str, int] | None = None, params: Mapping[str, Array] | None = None) -> Report:
        """What fused, what did not and why; `sizes` gives sizes to symbols, in addition to those of the setup.

        Errors of kernels that round are measured on `params`, or those that the graph came with.
        """
        from dovetail.report.build import build_report  # imported when a report is asked for

        known = {**self.setup.sizes, **(sizes or {})}
        setup = replace(self.setup, sizes=known)
        with collector_paused(), phase("report"):
            served = dict[Value, Served]() if self.target.variants is None else self.target.variants(self.plan, known)
            errors = rounding_errors(self.plan.graph, served, params)
            made = build_report(self.lowered, self.plan, setup, self.machine, served, keepers, self._emitted(), errors)
            return replace(made, launches=self._launches([kernel.name for kernel in made.kernels]))

    def _emitted(self) -> Callable[[], Sequence[Emitted]] | None:
        """What reads back the kernels that the compiler of the target made, where it makes some of its own."""
        emitted = self.target.emitted
        return None if emitted is None or self.plan.symbols else lambda: emitted(self.plan, self.settings)

    def _launches(self, names: Sequence[str]) -> Callable[[], tuple[LaunchEntry, ...]] | None:
        """What tells the launches of steps with these names, where the target has something to tell."""
        from dovetail.report.record import LaunchEntry

        def told() -> tuple[LaunchEntry, ...]:
            named = dict(zip(self.plan.steps, names, strict=True))
            return tuple(
                LaunchEntry(
                    *(named[step], step.value.op.name, row.kind, row.name, row.taken),
                    *(row.reason, row.condition, row.found, row.expected, row.hint, row.seconds),
                )
                for step, rows in self.launches().items()
                for row in rows
            )

        return None if self.target.launches is None else told

    def launches(self) -> Mapping[Step, Sequence[Considered]]:
        """For each step of a run, the ways that were tried to give it no launch of its own."""
        told = self.target.launches
        return {} if told is None else dict(zip(self.plan.phase("run"), told(self.plan, self.settings), strict=True))

    def considered(
        self, step: Step, launches: Mapping[Step, Sequence[Considered]] | None = None
    ) -> tuple[Considered, ...]:
        """The kernel variants that the target considered for a step, and its launches, which are asked for unless they
        are given; none for what the bind phase computes."""
        if step.phase == "bind" or self.target.considered is None:
            return ()
        shared = self.launches() if launches is None else launches
        return *self.target.considered(self.plan, step), *shared.get(step, ())


class TorchModule(Protocol):
    """A torch.nn.Module, as far as types have to tell it from a graph."""

    def named_parameters(self) -> Any: ...


class TorchProgram(Protocol):
    """A torch.export.ExportedProgram, as far as types have to tell it from a graph."""

    @property
    def graph_signature(self) -> Any: ...


class JaxLowered(Protocol):
    """What `jax.jit(f).lower(…)` gives, as far as types have to tell it."""

    def compiler_ir(self, dialect: str | None = None) -> Any: ...


class JaxExported(Protocol):
    """What `jax.export.export(…)(…)` gives, as far as types have to tell it."""

    def mlir_module(self) -> str: ...


Compiled: TypeAlias = Graph | str | os.PathLike[str] | bytes | OnnxModel | Described | JaxLowered | JaxExported
"""What is compiled, but for modules of torch: a graph, the path of a file, an ONNX model, a function of JAX."""


@overload
def compile(
    graph: Compiled,
    *,
    target: str | Target = "cpu",
    ops: Iterable[FusedOp[...]] = (),
    without: Iterable[str] = (),
    dispatch: Mapping[str, Dispatch] | None = None,
    require: Mapping[str, int] | Sequence[str] = (),
    require_clean: bool = False,
    assume_sizes: Mapping[str, int] | None = None,
    params: Mapping[str, Array] | None = None,
    fixed: Mapping[str, Array | int] | None = None,
    quantize: Quantize | QuantizeKind | None = None,
    **options: Unpack[SettingsOptions],
) -> Program: ...
@overload
def compile(
    graph: TorchModule | TorchProgram,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Any = None,
    custom_ops: Mapping[str, FusedOp[...] | Callable[..., Any]] | None = None,
    quantize: Quantize | QuantizeKind | None = None,
    **options: Unpack[RequestOptions],
) -> ModuleProgram: ...


@old_options(sizes="assume_sizes", quantise="quantize")
def compile(
    graph: Any,
    *arguments: Any,
    target: str | Target = "cpu",
    ops: Iterable[FusedOp[...]] = (),
    without: Iterable[str] = (),
    dispatch: Mapping[str, Dispatch] | None = None,
    require: Mapping[str, int] | Sequence[str] = (),
    require_clean: bool = False,
    assume_sizes: Mapping[str, int] | None = None,
    params: Mapping[str, Array] | None = None,
    fixed: Mapping[str, Array | int] | None = None,
    quantize: Quantize | QuantizeKind | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Any = None,
    custom_ops: Mapping[str, FusedOp[...] | Callable[..., Any]] | None = None,
    **options: Unpack[SettingsOptions],
) -> Program | ModuleProgram:
    """Compile a graph, the graph in a file, an ONNX model in memory, a torch module or an exported program.

    `target` is the name of a target, or one of your own. `ops` are declared ops of yours, preferred to the library's.
    `without` switches passes and rules off by name. `require` names rules that must fire, with how often;
    `require_clean` refuses any miss that cost did not decide. `assume_sizes` says what symbols count as in estimates.
    `fixed` is what has one value in every run of an ONNX file: inputs as arrays, symbolic sizes as numbers. A torch
    module is exported for a call with `args` and `kwargs`; `dynamic` names the sizes that may change, as in
    `{"x": {0: "batch"}}`, and True lets all of them. `custom_ops` gives custom operators of torch their bodies, as in
    `{"mylib::scaled": scaled}`: a declared op, or a function of values. `quantize` stores the weights of products in 8
    or 4 bits; `program.quantized` says what that changes. Other keywords are fields of `Settings`.
    """
    if arguments:
        spelled = "args=(x,)" if len(arguments) == 1 else "args=(x, y)"
        if is_torch(graph):
            hint = f"pass the arguments of the example call as a tuple: compile(module, {spelled})"
        else:
            hint = "lower a function of JAX first: compile(jax.jit(f).lower(*args))"
        raise OptionError(f"compile has {len(arguments) + 1} arguments without a name", hint=hint)
    if target == "xla" and hasattr(graph, "in_tree"):
        target = _placed(graph)
    own = [body for body in (custom_ops or {}).values() if isinstance(body, FusedOp)]

    def requested() -> Request:
        request = make_request(
            target=target,
            ops=(*ops, *own) if own else ops,
            without=without,
            dispatch=dispatch,
            require=require,
            require_clean=require_clean,
            assume_sizes=assume_sizes,
            **options,
        )
        if request.target.warm_up is not None:
            request.target.warm_up(request.settings)
        return request

    if is_torch(graph):
        if fixed or params:
            raise OptionError(
                "fixed or params with a torch module", hint="the module has its weights; pass args and kwargs"
            )
        return _module_program(graph, args, kwargs, dynamic, custom_ops, requested(), quantize)
    if args or kwargs or dynamic or custom_ops:
        if callable(graph) and not hasattr(graph, "graph_signature"):
            raise OptionError(
                f"the function {getattr(graph, '__name__', type(graph).__name__)} to compile",
                hint="lower it with JAX: compile(jax.jit(f).lower(*args)); or pass a torch.nn.Module",
            )
        raise OptionError(
            "args, kwargs, dynamic or custom_ops without a torch module", hint="they say how a module is read"
        )
    # One pause for all phases: where a pause ends, the collector walks what was made meanwhile.
    with collector_paused():
        request = requested()
        source = source_of(graph, ops, fixed, program_store(request))
        made = _program(source, request, params) if quantize is None else _quantized(source, request, params, quantize)
    if hasattr(graph, "in_tree"):
        from dovetail.frontends.jax.calling import Calling  # JAX is there, where its function is

        made.calling = Calling(graph, made.graph.inputs)
    return made


def _placed(function: Any) -> str | Target:
    """The target of a function of JAX: the mesh that its `in_shardings` name, where they split an argument."""
    from dovetail.frontends.jax.calling import placement_in  # JAX is there, where its function is

    mesh, place = placement_in(function)
    if not place or all(size == 1 for size in mesh.values()):
        return "xla"
    from dovetail.targets.xla.target import target as placed_on  # few functions are placed

    return placed_on(mesh=mesh, place=place)


def _module_program(
    module: TorchModule | TorchProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic: Any,
    custom_ops: Mapping[str, FusedOp[...] | Callable[..., Any]] | None,
    request: Request,
    quantize: Quantize | QuantizeKind | None,
) -> ModuleProgram:
    from dovetail.runtime.module import ModuleProgram  # torch is imported for torch's modules alone
    from dovetail.runtime.module_source import module_source

    source, imported = module_source(module, args, kwargs, dynamic, program_store(request), custom_ops)
    program = _program(source, request, None) if quantize is None else _quantized(source, request, None, quantize)
    return ModuleProgram(program, imported)


def _quantized(
    source: Source, request: Request, params: Mapping[str, Array] | None, how: Quantize | QuantizeKind
) -> Program:
    """The program of a source whose weights become blocks."""
    whole = source.graph()
    source.finish()
    arrays = {**whole.params, **source.params, **(params or {})}
    narrow, told = quantized(replace(whole, params=arrays), how if isinstance(how, Quantize) else Quantize(how))
    program = _program(of_graph(narrow, program_store(request)), request, None)
    program.quantized = told
    return program


@old_options(sizes="assume_sizes")
def explain(graph: Compiled, **options: Unpack[CompileOptions]) -> Report:
    """Return the report of compiling a graph, without a program; `options` are those of `compile`."""
    return compilation_of(graph, **options).report()


def compilation_of(graph: Compiled, **options: Unpack[CompileOptions]) -> Compilation:
    """Lower and plan what `compile` takes, with its options."""
    graph = graph_of(graph) if is_torch(graph) else graph
    source = source_of(graph, options.get("ops", ()), options.pop("fixed", None))
    return compilation(source.graph(), make_request(**options))


def compilation(graph: Graph, request: Request, *, history: bool = False, worth: float | None = None) -> Compilation:
    """Lower and plan a graph; `history` keeps every edit, to be replayed and verified.

    `worth` is that of a byte that a backward pass saves, in seconds.
    """
    claims = request.setup.claims
    with collector_paused():
        sizes = request.setup.sizes
        streamed = streamed_bytes(graph.values, sizes)
        machine = request.machine().streaming(streamed)
        even = claims.machine.streaming(streamed).flat(2 * largest_bytes(graph.values, sizes))
        setup = replace(request.setup, claims=replace(claims, machine=even), worth=worth, history=history)

        def planned(setup: Setup) -> Planned:
            lowered = lower(graph, setup)
            with phase("plan"):
                return Planned(setup, lowered, make_plan(lowered.graph, target=claims, options=_plan_options(setup)))

        made = planned(setup)
        if request.settings.memory:
            made = within(request.settings.memory, made, planned)
        plan = replace(made.plan, memory_limit=request.settings.memory_limit)
    return Compilation(graph, made.lowered, plan, made.setup, request.target, machine, request.settings)


def check_gates(report: Report, require: Mapping[str, int], require_clean: bool) -> None:
    """Required fusions that are missing, and misses where none is allowed, are one error that lists them."""
    short = [
        f"  {rule}: {report.count(rule)} of {count}" for rule, count in require.items() if report.count(rule) < count
    ]
    if short:
        why = _why_missing(report, [rule for rule, count in require.items() if report.count(rule) < count])
        why += [f"  {d.op}: {d.reason}" for d in report.dispatch if d.op in require and d.outcome == "common"]
        what = "a required fusion is missing" if len(short) == 1 else "required fusions are missing"
        none = "no place" if not any(report.count(rule) for rule in require) else "no other place"
        hint = "see the reasons above" if why else f"{none} in the model looks like one: check the rule and the model"
        raise GateError(f"{what}:\n" + "\n".join([*short, *why]), hint=hint)
    if require_clean and not report.is_clean:
        lines = [f"  {m.rule} at {m.node}: {m.reason}: {m.message}" for m in report.lost]
        what = "1 fusion was missed" if len(lines) == 1 else f"{len(lines)} fusions were missed"
        raise GateError(f"{what}:\n" + "\n".join(lines), hint="see the reasons above")


def _why_missing(report: Report, rules: Sequence[str]) -> list[str]:
    """Each place where a rule was missed or nearly fits; else the kernels that it would have joined."""
    listed: list[str] = []
    for rule in rules:
        found = [m for m in (*report.missed, *report.near) if m.rule == rule]
        listed += [f"  {rule} at {m.node}: {m.reason}: {m.message}" for m in found]
        if not found:
            apart = [b for b in report.boundaries if b.rule == rule]
            listed += [f"  {rule} of {b.producer} and {b.consumer}: {b.reason}: {b.message}" for b in apart]
    return listed


def program_of(made: Compilation, request: Request, params: Mapping[str, Array] | None = None) -> Program:
    """Return the program of a compilation: nothing is lowered or planned again."""
    return _program(of_graph(made.written), request, params, made)


def priced(made: Compilation, request: Request) -> Compilation:
    """Return the compilation with prices by the figures of the machine as they are known now."""
    machine = request.machine().streaming(streamed_bytes(made.written.values, request.setup.sizes))
    return replace(made, machine=machine)


def _program(
    source: Source, request: Request, params: Mapping[str, Array] | None, made: Compilation | None = None
) -> Program:
    store = program_store(request)
    key = None if store is None else program_key(source, request)
    told = bool(request.require) or request.require_clean or request.settings.print_report
    anew = store is None or key is None or told or made is not None
    kept = None if anew or store is None or key is None else restore(source, key, request, store)

    def again(sizes: Mapping[str, int] | None = None) -> Report:
        return compilation(source.graph(), request).report(sizes, params)

    if kept is None:
        if request.target.precompile is not None:
            request.target.precompile(source.graph().values, request.settings)
        if made is None:
            made = compilation(source.graph(), request)
        if request.require or request.require_clean:
            check_gates(made.report(), request.require, request.require_clean)
        if request.settings.print_report:
            print(made.report(), file=sys.stderr)
        kept = CachedProgram(made.plan, request.target.compile(made.plan, request.settings))
        reports = Reports(partial(made.report, params=params), again)
        if store is not None and key is not None:
            keep(kept, key, request, store)
    else:
        reports = Reports(again)

    def specializer(sizes: Mapping[str, int]) -> Program:
        special = of_graph(specialize(source.graph(), sizes), store)
        return _program(special, replace(request, require={}, require_clean=False), None)

    def case(wanted: Case) -> Program:
        special = of_graph(graph_of_case(source.graph(), wanted), store)
        return _program(special, replace(request, require={}, require_clean=False), None)

    source.finish()
    return Program(
        kept.plan,
        kept.executable,
        report=reports,
        specializer=specializer if kept.plan.symbols else None,
        params=params,
        any_size=request.target.any_size,
        case=case,
    )


def _plan_options(setup: Setup) -> dict[str, Any]:
    """What changes the code beside the graph; it goes into the fingerprint."""
    precision = {} if setup.precision == PRECISIONS[0] else {"precision": setup.precision}
    return {"strict": setup.strict, **precision}


__all__ = [
    "Compilation",
    "Request",
    "check_gates",
    "compilation",
    "compilation_of",
    "compile",
    "explain",
    "make_request",
    "priced",
    "program_of",
]
