"""A program: a compiled plan and its parameters."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, overload

import numpy as np

from dovetail.errors import BindError, OptionError, UnsupportedError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.solve import solve_symbols
from dovetail.ir.value import Value
from dovetail.passes.specialize import symbols_of
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan
from dovetail.progress import phase
from dovetail.runtime.binding import by_name, check_donated, check_named, found_in, refuse_missing
from dovetail.runtime.placement import (
    Place,
    check_donated_arrays,
    check_place,
    copied_to_host_memory,
    has_device_arrays,
    on_host,
    stand_ins,
)
from dovetail.targets.runtime.device_array import DeviceArray, host_array
from dovetail.targets.runtime.lru import LRU
from dovetail.targets.runtime.weights import Weights
from dovetail.targets.target import Executable, Marking, OnDevice, Quick, Runner

if TYPE_CHECKING:
    from dovetail.report.measured import Measured
    from dovetail.report.report import Report

Specializer: TypeAlias = Callable[[Mapping[str, int]], "Program"]
"""Compiles the source graph anew with these sizes: fused, legalised, planned and reported again."""

Inputs: TypeAlias = Mapping[str, Array | DeviceArray]
"""Arrays of the host or of the device, by the names of inputs."""
_PARAMETER = "it is a parameter: give it to bind"
MOST_SPECIALIZED = 8
"""How many sizes a symbolic program keeps compiled."""


class _Binding:
    """The parameters of a program, and what was made of them. It is replaced as a whole, never changed."""

    def __init__(self, params: Weights, declared: Mapping[str, Value]) -> None:
        self.params = params
        solve_symbols(found_in(params.cells, declared, bare=True))
        self.symbolic = [f for f in found_in(params.cells, declared) if not f.type.is_static]
        """Parameters whose shapes tell symbols, together with those of the inputs."""
        self.specialized: LRU[Program] = LRU(MOST_SPECIALIZED)
        self.runner: Runner | None = None
        self.quick: Callable[[Mapping[str, Array]], dict[str, Array] | None] | None = None
        """Of the runner, where it has one and it runs at the sizes of the inputs."""
        self.lock = threading.Lock()


class Program:
    """Runs a plan. `specialize` gives a new program; `bind` puts parameters into this one.

    Arrays of parameters are taken as they are, not copied: to change one, bind it again. A run that is under way ends
    with the parameters that it began with.
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
    ) -> None:
        """`params` go before those that the graph came with. A symbolic plan with a specializer needs no executable.

        `report` may be given the sizes of symbols. `any_size`: the executable runs at every size, and the program is
        specialised only on request.
        """
        self.plan = plan
        self._make_report = report
        self._executable = executable
        self._specializer = specializer
        self._any_size = any_size
        self._inputs = by_name(plan.graph.inputs)
        self._donated = tuple(plan.graph.donated.values())
        self._declared = by_name(plan.graph.parameters)
        came = Weights(plan.graph.params).only(self._declared)
        fitting = {name: array for name, array in self._check(came).items() if array is not came[name]}
        self._binding = _Binding(came.joined({**fitting, **self._check(params or {})}), self._declared)
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
        return self._reported()

    def _reported(self, *sizes: Mapping[str, int]) -> Report:
        if self._make_report is None:
            raise OptionError(
                f"{self.graph.name} was made without a report", hint="make programs with dovetail.compile"
            )
        return self._make_report(*sizes)

    @property
    def params(self) -> Mapping[str, Array]:
        """The parameters that are bound so far. Those that a target keeps in its own layout alone are made again."""
        return dict(self._binding.params)

    def __call__(self, **inputs: Array | DeviceArray) -> dict[str, Array]:
        """The outputs by name; inputs are given by keyword."""
        return self.run(inputs)

    @overload
    def run(self, inputs: Inputs) -> dict[str, Array]: ...
    @overload
    def run(self, inputs: Inputs, *, outputs: Literal["host"]) -> dict[str, Array]: ...
    @overload
    def run(self, inputs: Inputs, *, outputs: Literal["device"]) -> dict[str, DeviceArray]: ...

    def run(self, inputs: Inputs, *, outputs: Place = "host") -> dict[str, Array] | dict[str, DeviceArray]:
        """The outputs by name, in arrays of the caller's own: on the host, or on the device that computes them.

        Inputs are NumPy arrays or device arrays, which are used where they are. An output with a donated input is what
        was given for that input, which the run has overwritten.
        """
        binding = self._binding
        if outputs == "host":
            if binding.quick is not None and (found := binding.quick(cast(Any, inputs))) is not None:
                return found
            if not has_device_arrays(inputs):
                return self._run_checked(cast(Mapping[str, Array], inputs), binding)
        check_place(outputs)
        return self._run_placed(inputs, outputs, binding)

    def to_device(self, inputs: Mapping[str, Array]) -> dict[str, DeviceArray]:
        """Copies of arrays for some inputs, in the memory of the device that runs the program."""
        arrays = check_named("input", inputs, self._inputs, self._declared, _PARAMETER)
        runner = self._device_runner(self._binding)
        put = copied_to_host_memory if runner is None else runner.to_device
        return {name: put(array, self._inputs[name]) for name, array in arrays.items()}

    def _device_runner(self, binding: _Binding) -> OnDevice | None:
        """The runner, where it has memory that the host cannot address."""
        self._refuse_unbound(binding)
        runner = None if self._specializes else self._ready(binding)
        return runner if isinstance(runner, OnDevice) else None

    def _run_placed(self, inputs: Inputs, outputs: Place, binding: _Binding) -> Any:
        """A run with device arrays among its inputs or for its outputs."""
        runner = self._device_runner(binding)
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
            result = taken if isinstance(taken, DeviceArray) else found[name]
            on_device = outputs == "device" and not isinstance(result, DeviceArray)
            results[name] = host_array(cast(Array, result), value.dtype) if on_device else result
        return results

    def undonated(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs with copies of those that are donated: a run of these leaves the caller's arrays as they are."""
        return {name: np.array(a, order="C") if name in self._donated else a for name, a in inputs.items()}

    def _run_checked(self, inputs: Mapping[str, Array], binding: _Binding) -> dict[str, Array]:
        self._refuse_unbound(binding)
        arrays = self._checked(inputs)
        if self._specializes:
            sizes = solve_symbols([*binding.symbolic, *found_in(arrays, self._inputs)])
            special = self._specialized({n: s for n, s in sizes.items() if n in self._symbols}, binding)
            return special._run(arrays, special._binding)
        return self._run(arrays, binding)

    def _checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        inputs = on_host(inputs) if has_device_arrays(inputs) else inputs
        arrays = check_named("input", inputs, self._inputs, self._declared, _PARAMETER)
        refuse_missing("input", arrays, self._inputs, "pass an array for each input")
        if self._donated:
            check_donated(self._donated, inputs, arrays)
        return {name: arrays[name] for name in self._inputs}

    def profile(self, inputs: Mapping[str, Array], *, runs: int = 20) -> Measured:
        """Run so often, and say where the time goes: by kernel, in the words of the graph as written.

        Arrays of donated inputs are copied first, and stay as they are.
        """
        program, arrays, sizes = self._for(self.undonated(inputs))
        runner = program._marking()
        from dovetail.runtime.profile import measured, record  # reports are imported when one is asked for

        recorded = record(lambda: runner.run(arrays), lambda: runner.run_marked(arrays)[1], runs)
        report = program._reported(sizes) if sizes else program.report
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
        found = solve_symbols([*binding.symbolic, *found_in(arrays, self._inputs)])
        sizes = {n: s for n, s in found.items() if n in self._symbols}
        return (self._specialized(sizes, binding), arrays, {}) if self._specializes else (self, arrays, sizes)

    def _marking(self) -> Marking:
        runner = self._ready(self._binding)
        if not isinstance(runner, Marking):
            raise UnsupportedError(f"{self.plan.target} does not tell when its steps run", hint="profile on cpu")
        return runner

    def bind(self, params: Mapping[str, Array]) -> Program:
        """Put these parameters in place of those before, and run the bind phase once all are there; gives itself."""
        checked = self._check(params)
        with self._lock:
            binding = _Binding(self._binding.params.joined(checked), self._declared)
            if len(binding.params) == len(self._declared) and not self._specializes:
                self._ready(binding)
            self._binding = binding
        return self

    def specialize(self, sizes: Mapping[str, int]) -> Program:
        """The program compiled for these sizes, with the parameters of this one and a report of its own."""
        if self._specializer is None:
            why = "was made without a specializer" if self._symbols else "has no symbols"
            raise BindError(f"{self.graph.name} {why}", hint="compile a graph with symbolic sizes to specialise it")
        return self._specialized(sizes, self._binding)

    @property
    def _specializes(self) -> bool:
        return bool(self._symbols) and self._specializer is not None and not self._any_size

    def _specialized(self, sizes: Mapping[str, int], binding: _Binding) -> Program:
        specializer = self._specializer
        assert specializer is not None, "asked for by callers that have one"
        key = tuple(sorted((name, _key(size)) for name, size in sizes.items()))

        def bound() -> Program:
            compiled = self._compiled.get(key, lambda: specializer(dict(sizes)))
            mine = binding.params.only(compiled._declared)
            return compiled._alike().bind(mine) if mine else compiled

        return binding.specialized.get(key, bound)

    def _alike(self) -> Program:
        """Another program of the same plan, to be bound on its own."""
        return Program(
            self.plan,
            self._executable,
            report=lambda *sizes: self._reported(*sizes) if sizes else self.report,
            specializer=self._specializer,
            any_size=self._any_size,
        )

    def _run(self, arrays: Mapping[str, Array], binding: _Binding) -> dict[str, Array]:
        self._refuse_unbound(binding)
        return self._ready(binding).run({name: arrays[name] for name in self._inputs})

    def _ready(self, binding: _Binding) -> Runner:
        """The bind phase, run once."""
        with binding.lock:
            if binding.runner is None:
                if self._executable is None:
                    raise BindError(
                        f"{self.graph.name} has sizes that are not known: {', '.join(self.plan.symbols)}",
                        hint="specialise it before it runs",
                    )
                with phase("bind"):
                    binding.runner = self._executable.bind(binding.params)
                binding.quick = binding.runner.quick if isinstance(binding.runner, Quick) else None
            return binding.runner

    def _refuse_unbound(self, binding: _Binding) -> None:
        if len(binding.params) != len(self._declared):
            refuse_missing("parameter", binding.params, self._declared, "bind them: program.bind({name: array})")

    def _check(self, params: Mapping[str, Array]) -> dict[str, Array]:
        return check_named("parameter", params, self._declared, self._inputs, "it is an input: give it to run")

    def __repr__(self) -> str:
        return f"<program {self.graph.name} for {self.plan.target}: {len(self.plan.steps)} steps>"


def _key(size: object) -> Any:
    """A size as a key; what is no size is left to the specializer to refuse."""
    try:
        return repr(size) if isinstance(size, bool) else operator.index(cast(Any, size))
    except TypeError:
        return repr(size)


__all__ = ["MOST_SPECIALIZED", "Executable", "Program", "Runner", "Specializer"]
