"""The CPU: kernels that are compiled on the spot, and NumPy where there is none yet."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail import ops
from dovetail.ir.value import Value
from dovetail.plan.plan import Plan
from dovetail.settings import Settings
from dovetail.targets.cpu.claims import claims
from dovetail.targets.cpu.gemm.block import block_function
from dovetail.targets.cpu.gemm.micro_kernel import tile_of
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.jit import toolchain
from dovetail.targets.cpu.measure.calibration import machine_of
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.cpu.threads.pool import call_up
from dovetail.targets.runtime import serial as record
from dovetail.targets.runtime.code_cache import foresee
from dovetail.targets.runtime.code_view import CODE
from dovetail.targets.runtime.store import store_of
from dovetail.targets.runtime.variants import forms
from dovetail.targets.target import Executable, Keeping, Target


def _compile(plan: Plan, settings: Settings) -> Executable:
    return NativeGraph(plan, threads=settings.threads or None, store=store_of(settings))


def _kept(executable: Executable) -> bytes | None:
    assert isinstance(executable, NativeGraph), "made here"
    try:
        return record.to_bytes(executable.plan, executable.ready.jobs)
    except record.NotKept:
        return None


def _restored(plan: Plan, content: bytes, settings: Settings) -> Executable:
    store = store_of(settings)
    ready = record.from_bytes(plan, content, store)
    return NativeGraph(plan, threads=settings.threads or None, store=store, ready=ready)


def _prepare(settings: Settings) -> None:
    call_up(settings.threads or None, store_of(settings))


def _foresee(values: Iterable[Value], settings: Settings) -> None:
    """Products share one cell, which takes as long to compile as a graph to be lowered."""
    if any(v.op is ops.matmul for v in values):
        foresee(block_function(tile_of(host_device()))[0], store_of(settings))


TARGET = Target(
    "cpu",
    claims,
    _compile,
    any_size=True,
    machine=machine_of,
    forms=forms,
    code=CODE,
    keeping=Keeping(toolchain, _kept, _restored),
    foresee=_foresee,
    prepare=_prepare,
)

__all__ = ["TARGET"]
