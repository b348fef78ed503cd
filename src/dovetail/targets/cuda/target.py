"""NVIDIA GPUs as a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

from dovetail.declare.cost import Machine
from dovetail.errors import DovetailError, UnsupportedError
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.plan.plan import Plan, Step
from dovetail.plan.served import Served
from dovetail.settings import Settings
from dovetail.targets.cuda.claims import CLAIMS, claims
from dovetail.targets.runtime.building.step_signature import stored_as
from dovetail.targets.runtime.building.store import store_of
from dovetail.targets.target import CodeView, Considered, Executable, Notation, Serializer, Target

if TYPE_CHECKING:
    from dovetail.targets.cuda.driver.driver import Driver


def _driver() -> Driver:
    """The driver of this process; code generation for GPUs is imported when a program is compiled for one."""
    from dovetail.targets.cuda.driver.driver import driver

    return driver()


def _start(device: Callable[[], Driver]) -> None:
    """Start a driver, if there is one: that takes some 0.2 s, without Python's lock."""
    with suppress(DovetailError):  # where it is needed, the error is raised again
        device()


def _considered(plan: Plan, step: Step, device: Callable[[], Driver]) -> Sequence[Considered]:
    """Return the kernels for a step, on an H200 where no device is."""
    from dovetail.targets.cuda.driver.architectures import H200
    from dovetail.targets.gpu.select import TABLE
    from dovetail.targets.gpu.steps import locations_of

    try:
        here = device().description
    except UnsupportedError:
        here = H200
    return TABLE.considered(step, locations_of(plan), here, CLAIMS.machine)


def _launches(plan: Plan, settings: Settings, device: Callable[[], Driver]) -> Sequence[Sequence[Considered]]:
    """For each step of a run, whether a product next to it computes it, and where it is one of layers that repeat,
    whether these are passes of one kernel; and of products whether cuBLASLt computes them. Nothing where there is no
    device, which decides."""
    from dovetail.targets.cuda.library.considered import Libraries
    from dovetail.targets.cuda.runs.run import choices_of

    try:
        here = device()
    except UnsupportedError:
        return [() for _ in plan.phase("run")]
    libraries = Libraries(settings.libraries, settings.tune, store_of(settings), here)
    return choices_of(plan, here.description, lambda steps: libraries.considered(plan, steps))


def _variants(plan: Plan, sizes: Mapping[str, Size]) -> Mapping[Value, Served]:
    """The steps that run on the host, products that read blocks, and where a family raised, what it said."""
    from dovetail.kernels.loops.body import steps_without_code
    from dovetail.targets.cuda.driver.architectures import H200
    from dovetail.targets.gpu.select import TABLE
    from dovetail.targets.gpu.steps import locations_of

    locations = locations_of(plan)
    scalars = locations.target.scalars
    steps = [s for s in plan.phase("run") if TABLE.select(s, locations, H200, CLAIMS.machine) is None]
    values = [step.value for step in steps]
    on_host = {v: Served(None, why=locations.refused.get(v, ""), lacks=steps_without_code(v, scalars)) for v in values}
    stored = [v for v in locations.costs if any([stored_as(x) is not None for x in v.operands])]
    raised = {v: Served(why=why) for v, why in locations.refused.items()}
    return {
        **raised,
        **on_host,
        **{v: Served("blocks", locations.costs[v], why=locations.refused.get(v, "")) for v in stored},
    }


LLVM = Notation("llvm", "LLVM", "LLVM, as it is compiled")
PTX = Notation("ptx", "PTX", "PTX for this device, or for an H200 without one")
SASS = Notation("sass", "machine code", "machine code, where nvdisasm or cuobjdump is found")


def target_for(device: Callable[[], Driver]) -> Target:
    """The target with its device; programs can be compiled without one, and are stored with one."""

    def compiled(plan: Plan, settings: Settings) -> Executable:
        from dovetail.targets.cuda.runs.run import CudaGraph

        return CudaGraph(plan, device, store_of(settings), None, settings.tune, settings.libraries)

    def key_parts() -> Mapping[str, str]:
        from dovetail.targets.cuda.code.code import toolchain

        for name in ("cuda.runs.run", "gpu.stored"):
            import_module(f"dovetail.targets.{name}")  # stored programs need them: the driver may still start
        try:
            here = device()
            described = f"{here.description}, traced" if here.traced else repr(here.description)
        except UnsupportedError:
            described = "none"
        return {**toolchain(), "device": described}

    def to_bytes(executable: Executable) -> bytes | None:
        from dovetail.targets.cuda.runs.run import CudaGraph
        from dovetail.targets.gpu import stored

        assert isinstance(executable, CudaGraph), "made here"
        try:
            here = device()
        except UnsupportedError:
            return None
        return stored.to_bytes(executable.plan, *executable.built(here))

    def from_bytes(plan: Plan, content: bytes, settings: Settings) -> Executable:
        from dovetail.targets.cuda.runs.run import CudaGraph
        from dovetail.targets.gpu import stored

        compiled = stored.from_bytes(plan, content)
        return CudaGraph(plan, device, store_of(settings), compiled, settings.tune, settings.libraries)

    def machine(settings: Settings) -> Machine:
        try:
            here = device()
        except UnsupportedError:
            return CLAIMS.machine
        from dovetail.targets.cuda.driver.calibration import machine_of

        return machine_of(here, settings)

    def warm_up(settings: Settings) -> None:
        # What the driver imports is loaded before, so that neither thread waits for a module of the other.
        import_module("dovetail.targets.cuda.driver.driver")
        Thread(target=_start, args=(device,), name="cuda driver").start()

    def listing(plan: Plan, step: Step, notation: Notation) -> str:
        from dovetail.targets.cuda.code import code_view

        return code_view.listing(plan, step, notation.name, device)

    def texts(plan: Plan) -> Iterable[str | None]:
        from dovetail.targets.cuda.code import code_view

        return code_view.texts(plan, device)

    return Target(
        "cuda",
        claims,
        compiled,
        any_size=True,
        variants=_variants,
        machine=machine,
        warm_up=warm_up,
        code=CodeView("cuda", (LLVM, PTX, SASS), listing, texts),
        considered=lambda plan, step: _considered(plan, step, device),
        launches=lambda plan, settings: _launches(plan, settings, device),
        serializer=Serializer(key_parts, to_bytes, from_bytes),
    )


TARGET = target_for(_driver)

__all__ = ["TARGET", "target_for"]
