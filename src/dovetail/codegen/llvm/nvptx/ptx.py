"""Kernels of the loop language as LLVM's text for NVIDIA GPUs, which LLVM compiles to PTX.

A scheduled kernel becomes `ptx_kernel void name(pointers, sizes)`. Blocks take tiles in turn where there are fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.gpu.printer import GpuPrinter, function, notes, parameters
from dovetail.codegen.llvm.gpu.printer import attributes as attributes_of
from dovetail.codegen.llvm.gpu.scopes import Scopes
from dovetail.codegen.llvm.handles import I64
from dovetail.codegen.llvm.maths.remainder import with_exact_remainders
from dovetail.codegen.llvm.nvptx import nvvm, persistent, pipeline, tensor_cores, words
from dovetail.codegen.llvm.nvptx.machine import NVPTX
from dovetail.errors import GraphError
from dovetail.ir.dtype import i64
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.ir import (
    MAP_BYTES,
    Alloc,
    AllocBarriers,
    Arrive,
    AwaitPhase,
    AwaitProducts,
    Barrier,
    ClusterBarrier,
    CopyBox,
    CopyBulk,
    ExpectBytes,
    Expr,
    FenceShared,
    GridBarrier,
    Kernel,
    LoadMatrices,
    MultiplyShared,
    PipelineStatement,
    Receive,
    Roles,
    Statement,
    Store,
    SubGrid,
    TensorMap,
    Threaded,
    WarpBarrier,
)


class _Printer(GpuPrinter):
    """Prints the body of one scheduled kernel."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel, NVPTX)
        # Persistent kernels without a warp that copies have no register to spare.
        self.text.takes_halves = bool(kernel.stream)
        self.since, self.part = "", 0
        self.has_maps = False
        """Whether tensor maps are on their way."""

    def threaded(self, statement: Threaded) -> None:
        match statement:
            case LoadMatrices():
                target = self.address(statement.target, statement.target_at)
                source = self.address(statement.source, statement.source_at)
                tensor_cores.load_matrices(self.text, target, source, transposed=statement.transposed)
            case Roles():
                self.roles(statement)
            case AllocBarriers() | CopyBox() | CopyBulk() | ExpectBytes() | Arrive() | AwaitPhase() | WarpBarrier():
                self.pipelined(statement)
            case FenceShared():
                tensor_cores.fence(self.text)
            case AwaitProducts():
                tensor_cores.await_products(self.text, self.pointers[statement.sums.pointer], statement.columns)
            case MultiplyShared():
                sums, left = self.pointers[statement.sums.pointer], self.address(statement.left, statement.left_at)
                right = self.address(statement.right, statement.right_at)
                tensor_cores.multiply_shared(self.text, sums, left, right, statement)
            case Barrier():
                self.barrier()
            case ClusterBarrier(ordered):
                self.text.emit(nvvm.CLUSTER_BARRIER if ordered else nvvm.CLUSTER_START)
            case SubGrid():
                persistent.sub_grid(self, statement)
            case GridBarrier():
                persistent.grid_barrier(self, statement)
            case Receive():
                words.receive(self, statement)
            case _:
                super().threaded(statement)

    def store(self, statement: Store) -> None:
        tensor = statement.tensor
        if tensor.space != "stamped":
            return super().store(statement)
        value = self.value(statement.value)
        words.send(self, self.address(tensor, statement.at), value, tensor.dtype)

    def barrier(self) -> None:
        assert self.kernel.launch is not None, "it was checked"
        if self.threads == LANES and self.threads < self.kernel.launch.block:
            return pipeline.warp_barrier(self.text)
        if self.threads < self.kernel.launch.block:
            return self.text.emit(persistent.barrier_of_some(self.kernel, self.threads))
        self.machine.barrier(self.text)

    def roles(self, statement: Roles) -> None:
        first = self.text.icmp("ult", I64(self.indices["warp"]), statement.warps)
        more, fewer = statement.registers or (None, None)
        self.text.either(
            first,
            lambda: self.role(statement.body, more, "inc"),
            lambda: self.role(statement.other, fewer, "dec"),
        )

    def role(self, body: Sequence[Statement], registers: int | None, change: str) -> None:
        if registers is not None:
            pipeline.set_registers(self.text, registers, change)
        self.statements(body)

    def pipelined(self, statement: PipelineStatement) -> None:
        match statement:
            case AllocBarriers(name, count, arrivals, is_new, offset):
                self.allocate(Alloc(name, i64, count, "shared", offset))
                if not is_new:
                    return
                with self.text.when(self.text.icmp("eq", I64(self.indices["thread"]), 0)):
                    self.prefetch_maps()
                    pipeline.initialise(self.text, self.pointers[name], count, arrivals)
                self.barrier()
            case CopyBox():
                target = self.address(statement.target, statement.target_at)
                source = self.map_of(statement.source)
                at, taps = [self.value(x) for x in statement.at], [self.value(x) for x in statement.taps]
                slot = self.slot(statement.barrier, statement.slot)
                pipeline.copy_box(self.text, target, source, at, taps, slot, statement.blocks)
            case CopyBulk():
                target = self.address(statement.target, statement.target_at)
                source = self.address(statement.source, statement.source_at)
                slot = self.slot(statement.barrier, statement.slot)
                once = statement.evict_first
                pipeline.copy_bulk(self.text, target, source, statement.nbytes, slot, evict_first=once)
            case ExpectBytes(barrier, at, count):
                pipeline.expect(self.text, self.slot(barrier, at), count)
            case Arrive(barrier, at, 1):
                pipeline.arrive(self.text, self.slot(barrier, at))
            case Arrive(barrier, at):
                pipeline.arrive_at(self.text, self.slot(barrier, at), self.indices["lane"])
            case AwaitPhase(barrier, at, phase):
                pipeline.await_phase(self.text, self.slot(barrier, at), self.value(phase))
            case WarpBarrier(warps):
                if warps == 1:
                    return pipeline.warp_barrier(self.text)
                pipeline.group_barrier(self.text, self.indices["warp"])

    def map_of(self, source: TensorMap) -> str:
        """The address of a tensor map."""
        kernel = self.kernel
        argument = len(kernel.pointers) + len(kernel.sizes) + kernel.maps.index(source)
        return pipeline.map_of(self.text, kernel.name, argument)

    def prefetch_maps(self) -> None:
        """Prefetch all tensor maps, once, while barriers are initialised."""
        if not self.has_maps:
            self.has_maps = True
            for source in self.kernel.maps:
                pipeline.prefetch_map(self.text, self.map_of(source))

    def slot(self, barrier: str, at: Expr) -> str:
        """The place of a barrier in shared memory."""
        return pipeline.slot(self.text, self.pointers[barrier], self.value(at))


def module(kernel: Kernel, alignment: Mapping[str, int]) -> str:
    """A scheduled kernel as a whole module; `alignment` gives the bytes that each pointer is a multiple of."""
    shape = kernel.launch
    if shape is None:
        raise GraphError(f"{kernel.name} has no launch shape", hint="schedule the kernel for a GPU first")
    attributes = f"nounwind {nvvm.threads(shape.block, persistent.blocks_at_once(kernel, shape), shape.cluster)}"
    if kernel.counter:
        printers, functions = persistent.functions(kernel, alignment, _Printer, attributes_of, attributes)
    else:
        printers, functions = _functions(kernel, alignment, attributes)
    texts = [function(head, text) for head, text in functions]
    uses = dict.fromkeys(use for printer in printers for use in printer.text.uses)
    globals = {name: text for printer in printers for name, text in printer.globals.items()}
    lines = [NVPTX.header(), NVPTX.approximations.library(uses), *globals.values(), *texts, *notes(texts)]
    return with_exact_remainders("\n".join([*lines, *Scopes(kernel).notes]) + "\n")


def _functions(
    kernel: Kernel, alignment: Mapping[str, int], attributes: str
) -> tuple[list[_Printer], list[tuple[str, Builder]]]:
    """The kernel, and its body where that is a function."""
    body = _Printer(kernel)
    body.statements(kernel.body)
    body.text.ret()
    passed = ", ".join(parameters(body, alignment))
    maps = [f"ptr byval([{MAP_BYTES} x i8]) align 64 %m{i}" for i in range(len(kernel.maps))]
    entry = f"define {nvvm.KERNEL} void @{kernel.name}({', '.join([passed, *maps])}) {attributes}"
    if kernel.launch is None or not kernel.launch.dependent:
        return [body], [(entry, body.text)]
    before = _waiting(kernel, alignment)
    inner = f"define internal void @{kernel.name}.body({passed}) alwaysinline convergent nounwind"
    return [body, before], [(inner, body.text), (entry, before.text)]


def _waiting(kernel: Kernel, alignment: Mapping[str, int]) -> _Printer:
    """A kernel that starts before the one before it has ended: what it does early, the wait, a call of its body.

    Pointers to what other kernels write pass through an instruction after the wait. Otherwise LLVM may load through
    them before it, as what a kernel only reads counts as constant; its `noalias` arguments become scopes in the call.
    """
    printer = _Printer(kernel)
    printer.statements(kernel.early)
    printer.text.emit(nvvm.AWAIT_KERNELS)
    printer.text.emit(nvvm.START_NEXT_KERNEL)
    arguments: list[str] = []
    for i, name in enumerate(kernel.pointers):
        kind, pointer = printer.spaces[name], f"%p{i}"
        if name not in kernel.constants:
            pointer = printer.text.let(f'call {kind} asm sideeffect "mov.b64 $0, $1;", "=l,l"({kind} {pointer})')
            printer.text.use("declare void @llvm.assume(i1)")
            aligned = f'"align"({kind} {pointer}, i64 {alignment.get(name, 1)})'
            printer.text.emit(f"call void @llvm.assume(i1 true) [ {aligned} ]")
        arguments.append(f"{kind} {pointer}")
    arguments += [f"i64 %s{i}" for i in range(len(kernel.sizes))]
    printer.text.emit(f"call void @{kernel.name}.body({', '.join(arguments)})")
    printer.text.ret()
    return printer


__all__ = ["module"]
