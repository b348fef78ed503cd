"""The CPU target: JIT-compiled kernels, and NumPy on the host for steps without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dovetail import ops
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.plan.plan import Plan, Step
from dovetail.plan.served import Served
from dovetail.settings import BF16, Settings
from dovetail.targets.cpu.attention.early import early_functions, early_in_training
from dovetail.targets.cpu.backend import BACKEND, lacks_bf16
from dovetail.targets.cpu.claims import claims
from dovetail.targets.cpu.code_view import CODE
from dovetail.targets.cpu.gemm.f32.early import early_products
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.jit import toolchain
from dovetail.targets.cpu.measure.calibration import machine_of
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.cpu.select import TABLE
from dovetail.targets.cpu.threads.pool import check_system, warm_up
from dovetail.targets.runtime.building.build import builder_of
from dovetail.targets.runtime.building.serial import NotSerializable, from_bytes, to_bytes
from dovetail.targets.runtime.building.store import store_of
from dovetail.targets.runtime.building.variants import variants
from dovetail.targets.target import Considered, Executable, Serializer, Target


def _compile(plan: Plan, settings: Settings) -> Executable:
    check_system()
    return NativeGraph(plan, threads=settings.threads or None, store=store_of(settings))


def _key_parts() -> Mapping[str, str]:
    """What decides machine code, and the device: its caches and threads decide how work is tiled."""
    return {**toolchain(), "device": repr(host_device())}


def _to_bytes(executable: Executable) -> bytes | None:
    assert isinstance(executable, NativeGraph), "made here"
    try:
        return to_bytes(executable.plan, executable.built.jobs, BACKEND)
    except NotSerializable:
        return None


def _from_bytes(plan: Plan, content: bytes, settings: Settings) -> Executable:
    check_system()
    store = store_of(settings)
    built = from_bytes(plan, content, BACKEND, store)
    return NativeGraph(plan, threads=settings.threads or None, store=store, built=built)


def _warm_up(settings: Settings) -> None:
    warm_up(settings.threads or None, store_of(settings))


def _precompile(values: Iterable[Value], settings: Settings) -> None:
    """Matrix products share a GEMM block or the kernel of weights of a run, and attentions share functions.

    Both take as long to compile as a graph to be lowered.
    """
    values, device = list(values), host_device()
    products = [v for v in values if v.op is ops.matmul]
    if products:
        functions = [
            *early_products(values, device, in_bf16=settings.precision == BF16),
            *early_functions(products, device),
        ]
        functions += early_in_training(values, device)
        BACKEND.code.precompile(functions, store_of(settings))


def _variants(plan: Plan, sizes: Mapping[str, Size]) -> Mapping[Value, Served]:
    return variants(plan, sizes, BACKEND)


def _considered(plan: Plan, step: Step) -> Sequence[Considered]:
    """The rows of the selection table, as selection read them."""
    return TABLE.considered(step, builder_of(plan, BACKEND).locations, host_device(), BACKEND.machine)


TARGET = Target(
    "cpu",
    claims,
    _compile,
    any_size=True,
    machine=machine_of,
    variants=_variants,
    considered=_considered,
    code=CODE,
    serializer=Serializer(_key_parts, _to_bytes, _from_bytes),
    precompile=_precompile,
    lacks_bf16=lacks_bf16,
    warm_up=_warm_up,
)

__all__ = ["TARGET"]
