"""A program: a compiled plan and its parameters."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, Unpack, cast, overload

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import BindError, DovetailError, NeedsValueError, SizeError, UnsupportedError
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.solve import solve_symbols
from dovetail.ir.value import Value
from dovetail.passes.specialize import symbols_of
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan
from dovetail.progress import phase
from dovetail.renamed import old_fields
from dovetail.runtime.binding import (
    by_name,
    check_donated,
    check_named,
    check_params,
    found_in,
    refuse_missing,
    size_key,
)
from dovetail.runtime.bound import MOST_SPECIALIZED, Binding
from dovetail.runtime.cases import Case, Cases, case_of_sizes
from dovetail.runtime.placement import (
    Place,
    check_donated_arrays,
    check_place,
    copied_to_host_memory,
    has_device_arrays,
    on_host,
    stand_ins,
    with_adopted,
)
from dovetail.runtime.quantize import Quantized
from dovetail.runtime.reports import Reports
from dovetail.settings import Settings, SettingsOptions, settings_of
from dovetail.targets.runtime.arrays.array_library import ArrayLibrary
from dovetail.targets.runtime.arrays.device_array import DeviceArray, host_array
from dovetail.targets.runtime.building.lru import LRU
from dovetail.targets.runtime.building.weights import Weights, owned
from dovetail.targets.target import Executable, Marking, OnDevice, Runner, quick_runs

if TYPE_CHECKING:
    from dovetail.report.measured import Measured
    from dovetail.report.report import Report

Specializer: TypeAlias = Callable[[Mapping[str, int]], "Program"]
"""Compiles the source graph anew with these sizes: fused, legalised, planned and reported again."""

Inputs: TypeAlias = Mapping[str, Array | DeviceArray]
"""Arrays of the host or of the device, by the names of inputs."""
_PARAMETER = "it is a parameter: give it to bind"


class Calling(Protocol):
    """How a function that a graph comes from is called."""

    def inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs of the graph for a call of the function."""
        ...

    def result(self, outputs: Sequence[Any]) -> Any:
        """What the function gives, of the outputs of the graph in their order."""
        ...


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or an output: its name, its dtype and its shape."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    """Numbers; a symbolic size is text, such as "batch"."""

    @classmethod
    def of(cls, value: Value, name: str = "") -> TensorSpec:
        """Return the record of a value; an input has its own name."""
        shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
        return cls(name or str(value.attrs["name"]), value.dtype, shape)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype of arrays for it."""
        return self.dtype.numpy

    @property
    def text(self) -> str:
        """Its type as text: f32[batch, 8]."""
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


class Signature(tuple[TensorSpec, ...]):
    """Inputs or outputs in their order; `signature["x"]` is the one of a name."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return tuple(self)[cast(int, key)]
        for spec in self:
            if spec.name == key:
                return spec
        raise KeyError(key)

    @property
    def names(self) -> tuple[str, ...]:
        """The names in their order."""
        return tuple(spec.name for spec in self)


@old_fields(quantised="quantized")
class Program:
    """Runs a plan. `specialize` gives a new program; `bind` puts parameters into this one.

    Arrays of parameters that their owner can write to are copied; read-only arrays are taken as they are. To change a
    parameter, bind it again. A run that is under way ends with the parameters that it began with.
    """

    def __init__(
        self,
        plan: Plan,
        executable: Executable | None,
        *,
        report: Callable[..., Report] | None = None,
        specializer: Specializer | None = None,
        params: Mapping[str, Array] | None = None,
        any_size: bool = False,
        case: Callable[[Case], Program] | None = None,
    ) -> None:
        """`params` go before those that the graph came with. A symbolic plan with a specializer needs no executable.

        `report` may be given the sizes of symbols. `any_size`: the executable runs at every size, and the program is
        specialised only on request.
        """
        self.plan = plan
        self.calling: Calling | None = None
        """How the function that the graph comes from is called with positional arguments, where it is known."""
        self.quantized: Quantized | None = None
        """What became of the weights, where `compile` quantized them."""
        self.reports = report if isinstance(report, Reports) else Reports(report)
        self._executable = executable
        self._specializer = specializer
        self._any_size = any_size
        self._cases = Cases(case, MOST_SPECIALIZED)
        self._inputs = by_name(plan.graph.inputs)
        self._donated = tuple(plan.graph.donated.values())
        self._declared = by_name(plan.graph.parameters)
        self._signature = by_name(plan.graph.signature)
        came = Weights(plan.graph.params).only(self._declared)
        fitting = {name: array for name, array in self._check(came).items() if array is not came[name]}
        self._binding: Binding[Program] = Binding(
            came.joined(fitting).joined(owned(self._check(params or {}))), self._declared
        )
        self._symbols = symbols_of(plan.graph)[0] if plan.symbols else set[str]()
        self._compiled: LRU[Program] = LRU(MOST_SPECIALIZED)
        """Specialised and not bound: they serve whatever parameters are bound later."""
        self._lock = threading.Lock()

    @property
    def graph(self) -> Graph:
        """The graph that the plan runs."""
        return self.plan.graph

    @cached_property
    def report(self) -> Report:
        """What fused, what did not and why; it is written when it is first read."""
        return self.reports()

    @property
    def params(self) -> Mapping[str, Array]:
        """The parameters that are bound so far. Those that a target keeps in its own layout alone are made again."""
        return dict(self._binding.params)

    @property
    def inputs(self) -> Signature:
        """The inputs in their order: names, dtypes and shapes, in which symbols are names of sizes that may vary."""
        return Signature(map(TensorSpec.of, self.graph.inputs))

    @property
    def outputs(self) -> Signature:
        """The outputs in their order."""
        return Signature(TensorSpec.of(value, name) for name, value in self.graph.outputs.items())

    def __call__(self, /, *arrays: Any, **inputs: Any) -> Any:
        """The outputs by name; inputs are given in their order, or by name. A function of JAX is called as in JAX, too:
        with positional arguments it takes and gives the function's own structures."""
        if arrays and self.calling is not None:
            found = self.run(self.calling.inputs(arrays, inputs))
            return self.calling.result([found[name] for name in self.graph.outputs])
        if arrays:
            inputs = self._named(arrays, inputs)
        return self.run(inputs)

    def _named(
        self, arrays: tuple[Array | DeviceArray, ...], inputs: dict[str, Array | DeviceArray]
    ) -> dict[str, Array | DeviceArray]:
        names = list(self._inputs)
        listed = ", ".join(names) or "none"
        if len(arrays) > len(names):
            raise BindError(f"{len(arrays)} arrays for {len(names)} inputs", hint=f"the inputs are {listed}")
        named = dict(zip(names, arrays, strict=False))
        if twice := [name for name in named if name in inputs]:
            raise BindError(f"two arrays for {', '.join(twice)}", hint=f"the inputs are, in their order, {listed}")
        return named | inputs

    @overload
    def run(self, inputs: Inputs) -> dict[str, Array]: ...
    @overload
    def run(self, inputs: Inputs, *, outputs: Literal["host"]) -> dict[str, Array]: ...
    @overload
    def run(self, inputs: Inputs, *, outputs: Literal["device"]) -> dict[str, DeviceArray]: ...

    def run(self, inputs: Inputs, *, outputs: Place = "host") -> dict[str, Array] | dict[str, DeviceArray]:
        """The outputs by name, in arrays of the caller's own: on the host, or on the device that computes them.

        Inputs are NumPy arrays or arrays on the device, ours or another library's, used where they are. An output
        with a donated input is what was given for that input, which the run has overwritten.
        """
        binding = self._binding
        if outputs == "host":
            if binding.case_of_shapes and (case := binding.case_before(inputs, self._inputs)) is not None:
                return case.run(inputs)
            try:
                if binding.quick is not None and (found := binding.quick(cast(Any, inputs))) is not None:
                    return found
            except SizeError as error:
                if self._donated and not self._symbols.issuperset(error.symbols):
                    raise  # the run has begun, and has overwritten what was donated
            if not has_device_arrays(inputs):
                return self._run_checked(cast(Mapping[str, Array], inputs), binding)
        elif binding.quick_on_device is not None and (there := binding.quick_on_device(inputs)) is not None:
            return there
        check_place(outputs)
        return self._run_placed(inputs, outputs, binding)

    def to_device(self, inputs: Mapping[str, Array]) -> dict[str, DeviceArray]:
        """Copies of arrays for some inputs, in the memory of the device that runs the program."""
        arrays = check_named("input", inputs, self._inputs, self._declared, _PARAMETER)
        runner = self._device_runner(self._binding)
        put = copied_to_host_memory if runner is None else runner.to_device
        return {name: put(array, self._inputs[name]) for name, array in arrays.items()}

    def _device_runner(self, binding: Binding[Program]) -> OnDevice | None:
        """The runner, where it has memory that the host cannot address."""
        self._refuse_unbound(binding)
        runner = None if self._specializes else self._ready(binding)
        return runner if isinstance(runner, OnDevice) else None

    def _run_placed(self, inputs: Inputs, outputs: Place, binding: Binding[Program]) -> Any:
        """A run with device arrays among its inputs or for its outputs."""
        runner, asked = self._device_runner(binding), inputs
        inputs = with_adopted(inputs)
        found: Mapping[str, Array | DeviceArray]
        if runner is None:
            found = self.run(on_host(inputs))
        else:
            arrays = check_named("input", stand_ins(inputs, runner.device), self._inputs, self._declared, _PARAMETER)
            refuse_missing("input", arrays, self._inputs, "pass an array for each input")
            there = check_donated_arrays(self._donated, inputs, outputs)
            check_donated(there, cast(Mapping[str, Array], inputs), arrays)
            given = {n: a if isinstance(a := inputs[n], DeviceArray) else arrays[n] for n in self._inputs}
            found = runner.run(given) if outputs == "host" else runner.run_on_device(given)
        donated, declared = self.graph.donated, self.graph.outputs
        results: dict[str, Array | DeviceArray] = {}
        for name, value in declared.items():
            taken = inputs[donated[name]] if name in donated else None
            result = asked[donated[name]] if isinstance(taken, DeviceArray) else found[name]
            on_device = outputs == "device" and isinstance(result, np.ndarray)
            results[name] = host_array(cast(Array, result), value.dtype) if on_device else result
        return results

    def launch(self, arrays: Sequence[Any], library: ArrayLibrary) -> dict[str, Any] | None:
        """What `run` gives, for and in arrays of a library, in the order of the inputs; None if `run` must check."""
        try:
            return self._binding.launch(arrays, library)
        except SizeError as error:
            if self._donated and not self._symbols.issuperset(error.symbols):
                raise  # the run has begun, and has overwritten what was donated
        return None

    def undonated(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs with copies of those that are donated: a run of these leaves the caller's arrays as they are."""
        return {name: np.array(a, order="C") if name in self._donated else a for name, a in inputs.items()}

    def _run_checked(self, inputs: Mapping[str, Array], binding: Binding[Program]) -> dict[str, Array]:
        self._refuse_unbound(binding)
        overriding = self._overriding(inputs, binding)
        if overriding is not None:
            return overriding.run({name: a for name, a in inputs.items() if name in overriding._inputs})
        arrays = self._checked(inputs)
        try:
            if self._specializes:
                special = self._specialized(self._sizes(arrays, binding), binding)
                return special._run(arrays, special._binding)
            return self._run(arrays, binding)
        except SizeError as error:
            fitting = self._fitting(error, arrays, binding)
            if fitting is None:
                raise
        found = fitting.run(arrays)
        binding.remember(tuple([a.shape for a in arrays.values()]), fitting)
        return found

    def _sizes(self, arrays: Mapping[str, Array], binding: Binding[Program]) -> dict[str, int]:
        found = solve_symbols([*binding.symbolic, *found_in(arrays, self._inputs)])
        return {name: size for name, size in found.items() if name in self._symbols}

    def _fitting(self, error: SizeError, arrays: Mapping[str, Array], binding: Binding[Program]) -> Program | None:
        """The program for sizes that this one refuses; None where there is none."""
        sizes = self._sizes(arrays, binding)
        if self._donated and not self._symbols.issuperset(error.symbols):
            return None  # the run has begun, and has overwritten what was donated
        case = case_of_sizes(error, sizes)
        return None if case is None else self._cased(case, binding)

    def _overriding(self, inputs: Mapping[str, Array], binding: Binding[Program]) -> Program | None:
        """The program for a run that gives arrays for defaults of the model; None where it gives none."""
        names = frozenset(name for name in inputs if name not in self._inputs)
        if not names or self._cases.compiler is None:
            return None
        try:
            return self._cased(Case(free=names), binding, refuse=NeedsValueError)
        except NeedsValueError as error:
            fixed = {n: np.ascontiguousarray(inputs[n]) for n in error.inputs if n in names}
            return self._cased(Case(free=frozenset(names - fixed.keys()), fixed=fixed), binding) if fixed else None

    def _cased(
        self, case: Case, binding: Binding[Program], refuse: type[DovetailError] | tuple[()] = ()
    ) -> Program | None:
        """The program of a case with the parameters of this one; None where the model has no such case."""

        def bound() -> Program | None:
            program = self._cases.get(case, refuse)
            mine = Weights() if program is None else binding.given.only(program._declared)
            return program._alike().bind(mine) if program is not None and mine else program

        return binding.cases.get(case.key, bound)

    def _checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        inputs = on_host(inputs) if has_device_arrays(inputs) else inputs
        arrays = check_named("input", inputs, self._inputs, self._declared, _PARAMETER)
        refuse_missing("input", arrays, self._inputs, "pass an array for each input")
        if self._donated:
            check_donated(self._donated, inputs, arrays)
        return {name: arrays[name] for name in self._inputs}

    def profile(self, inputs: Mapping[str, Array], *, runs: int = 20) -> Measured:
        """Where the time of this many runs goes, by kernel; arrays of donated inputs stay as they are."""
        program, arrays, sizes = self._for(self.undonated(inputs))
        runner = program._marking()
        from dovetail.runtime.profile import measured, record  # reports are imported when one is asked for

        recorded = record(lambda: runner.run(arrays), lambda: runner.run_marked(arrays)[1], runs)
        report = program.reports(sizes) if sizes else program.report
        return measured(recorded, program.plan, report, threads=runner.threads, sizes=sizes)

    def run_marked(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Sequence[Mark]]:
        """The outputs by name, and when each step ran and on which threads."""
        program, arrays, _ = self._for(inputs)
        return program._marking().run_marked(arrays)

    def _for(self, inputs: Mapping[str, Array]) -> tuple[Program, dict[str, Array], dict[str, int]]:
        """The program that runs these inputs, the arrays that it is given, and the sizes of its symbols."""
        binding = self._binding
        self._refuse_unbound(binding)
        arrays = self._checked(inputs)
        if not self._symbols:
            return self, arrays, {}
        sizes = self._sizes(arrays, binding)
        try:
            for constraint in self.graph.constraints:
                constraint.bind(sizes)
        except SizeError as error:
            fitting = self._fitting(error, arrays, binding)
            if fitting is None:
                raise
            return fitting._for(arrays)
        return (self._specialized(sizes, binding), arrays, {}) if self._specializes else (self, arrays, sizes)

    def _marking(self) -> Marking:
        runner = self._ready(self._binding)
        if not isinstance(runner, Marking):
            raise UnsupportedError(f"{self.plan.target} does not tell when its steps run", hint="profile on cpu")
        return runner

    def bind(self, params: Mapping[str, Array]) -> Program:
        """Put these parameters in place of those before, and run the bind phase once all are there; gives itself."""
        checked = self._check(params)
        given = params if isinstance(params, Weights) else owned(checked)
        with self._lock:
            binding = Binding[Program](self._binding.given.joined(given), self._declared)
            if len(binding.params) == len(self._declared) and not self._specializes:
                self._ready(binding)
            self._binding = binding
        return self

    def specialize(self, sizes: Mapping[str, int]) -> Program:
        """The program compiled for these sizes, with the parameters of this one and a report of its own."""
        if self._specializer is None:
            why = "was made without a specializer" if self._symbols else "has no symbols"
            raise BindError(f"{self.graph.name} {why}", hint="compile a graph with symbolic sizes to specialise it")
        try:
            return self._specialized(sizes, self._binding)
        except SizeError as error:
            case = case_of_sizes(error, sizes)
            fitting = None if case is None else self._cased(case, self._binding)
            if case is None or fitting is None:
                raise
        rest = {name: size for name, size in sizes.items() if name not in case.sizes}
        return fitting.specialize(rest) if rest else fitting

    @property
    def cases(self) -> tuple[str, ...]:
        """The cases that were compiled so far: sizes that break what this program takes for granted."""
        return tuple(map(str, self._cases.compiled))

    @property
    def _specializes(self) -> bool:
        return bool(self._symbols) and self._specializer is not None and not self._any_size

    def _specialized(self, sizes: Mapping[str, int], binding: Binding[Program]) -> Program:
        specializer = self._specializer
        assert specializer is not None, "asked for by callers that have one"
        key = tuple(sorted((name, size_key(size)) for name, size in sizes.items()))

        def bound() -> Program:
            compiled = self._compiled.get(key, lambda: specializer(dict(sizes)))
            mine = binding.given.only(compiled._declared)
            return compiled._alike().bind(mine) if mine else compiled

        return binding.specialized.get(key, bound)

    def _alike(self) -> Program:
        """Another program of the same plan, to be bound on its own."""
        return Program(
            self.plan,
            self._executable,
            report=lambda *sizes: self.reports(*sizes) if sizes else self.report,
            specializer=self._specializer,
            any_size=self._any_size,
            case=self._cases.compiler,
        )

    def _run(self, arrays: Mapping[str, Array], binding: Binding[Program]) -> dict[str, Array]:
        self._refuse_unbound(binding)
        return self._ready(binding).run({name: arrays[name] for name in self._inputs})

    def _ready(self, binding: Binding[Program]) -> Runner:
        """The bind phase, run once."""
        with binding.lock:
            if binding.runner is None:
                if self._executable is None:
                    unknown = ", ".join(self.plan.symbols)
                    raise BindError(
                        f"{self.graph.name} has sizes that are not known: {unknown}",
                        hint="specialise it before it runs",
                    )
                with phase("bind"):
                    binding.runner = self._executable.bind(binding.params)
                binding.quick, binding.quick_on_device = quick_runs(binding.runner)
            return binding.runner

    def _refuse_unbound(self, binding: Binding[Program]) -> None:
        if len(binding.params) != len(self._declared):
            refuse_missing("parameter", binding.params, self._declared, "bind them: program.bind({name: array})")

    def _check(self, params: Mapping[str, Array]) -> dict[str, Array]:
        kept = self._signature if self.plan.symbols else self._declared
        return check_params(params, self._signature, kept, self._inputs)

    def save(
        self, path: str | os.PathLike[str], *, isa: str | Sequence[str] = "native", settings: Settings | None = None
    ) -> None:
        """Write machine code, plan and packed weights to one file, which `Program.load` reads without LLVM and onnx.

        `isa` names sets of instructions: "native" is all that this processor has, "avx512", "avx2" and "sse" are for
        every processor that has these. A file with several is loaded by what fits best.
        """
        from dovetail.runtime.saved import save_program  # few programs are saved

        self._refuse_unbound(self._binding)
        isas = isa.split("+") if isinstance(isa, str) else list(isa)
        save_program(path, self.plan, self._binding.params, isas, settings or settings_of({}, os.environ))

    @staticmethod
    def load(path: str | os.PathLike[str], **options: Unpack[SettingsOptions]) -> Program:
        """The program in a file that `save` wrote, with its weights mapped; keywords are fields of `Settings`.

        A file holds machine code: load those alone that you trust.
        """
        from dovetail.runtime.saved import load_parts

        plan, runner = load_parts(path, settings_of(options, os.environ))
        return SavedProgram(plan, _Bound(runner), any_size=True)

    def _repr_html_(self) -> str:
        """The program in a notebook: its inputs, its outputs and the summary of its report."""
        rows = [
            f"<tr><td>{kind}</td><td><code>{escape(spec.name)}</code></td><td><code>{escape(spec.text)}</code></td></tr>"
            for kind, specs in (("input", self.inputs), ("output", self.outputs))
            for spec in specs
        ]
        return f"<b>{escape(repr(self))}</b><table>{''.join(rows)}</table>"

    def __reduce__(self) -> Any:
        raise BindError("a program cannot be pickled", hint="save the graph, and compile it where it is needed")

    def __repr__(self) -> str:
        return f"<program {self.graph.name} for {self.plan.target}: {len(self.plan.steps)} steps>"


@dataclass(frozen=True, slots=True)
class _Bound:
    """An executable whose parameters are bound for good."""

    runner: Runner

    def bind(self, params: Mapping[str, Array]) -> Runner:
        """What runs it."""
        return self.runner


class SavedProgram(Program):
    """A program from a file: it runs, and has neither its weights as they were nor a graph to compile again."""

    @property
    def params(self) -> Mapping[str, Array]:
        """A file has packed weights alone."""
        raise _without("parameters in their own layout")

    @property
    def report(self) -> Report:
        """A file has no report."""
        raise _without("report")

    def bind(self, params: Mapping[str, Array]) -> Program:
        """A file has its weights packed."""
        raise _without("parameters to bind anew")

    def save(
        self, path: str | os.PathLike[str], *, isa: str | Sequence[str] = "native", settings: Settings | None = None
    ) -> None:
        """A file is copied, not saved again."""
        raise _without("parameters to pack again: copy the file")


def _without(what: str) -> BindError:
    return BindError(
        f"a program from a file has no {what}",
        hint="compile the model for it: the file has machine code, the plan and packed weights alone",
    )


__all__ = ["MOST_SPECIALIZED", "Executable", "Program", "Runner", "Signature", "Specializer", "TensorSpec"]
