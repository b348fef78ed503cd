"""Kernels of the loop language as LLVM's text for NVIDIA GPUs, which LLVM compiles to PTX.

A scheduled kernel becomes `ptx_kernel void name(pointers, sizes)`. Blocks take tiles in turn where there are fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64
from dovetail.codegen.llvm.loops import CONTRACTED, Printer
from dovetail.codegen.llvm.maths import functions
from dovetail.codegen.llvm.maths.remainder import with_exact_remainders
from dovetail.codegen.llvm.nvptx import exchange, fp8, near, nvvm, permuted, pipeline, tensor_cores, words
from dovetail.codegen.llvm.nvptx import persistent as resident
from dovetail.codegen.llvm.nvptx.scopes import Scopes
from dovetail.errors import GraphError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_, f32, f64, i64, u32
from dovetail.kernels.loops.analysis import SHARED_ALIGNMENT, everything, shared_bytes
from dovetail.kernels.loops.ir import (
    MAP_BYTES,
    Alloc,
    AllocBarriers,
    AllReduce,
    Amend,
    Arrive,
    AtomicUpdate,
    AwaitCopies,
    AwaitPhase,
    AwaitProducts,
    Ballot,
    Barrier,
    Call,
    ClusterBarrier,
    CommitCopies,
    CopyAsync,
    CopyBox,
    CopyBulk,
    ExpectBytes,
    Expr,
    Extent,
    FenceShared,
    FromLane,
    GridBarrier,
    Kernel,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    MultiplyShared,
    Name,
    NarrowMatrices,
    Number,
    Pipeline,
    Prefetch,
    Receive,
    Roles,
    ScaleMatrices,
    Statement,
    Store,
    SubGrid,
    Tensor,
    TensorMap,
    Threaded,
    ThreadIndex,
    WarpBarrier,
)
from dovetail.kernels.loops.policy import ScalarSupport

LANES, VECTOR = 32, 16
SUPPORT: ScalarSupport = scalar.support(functions.has_on_gpu, inexact=(("rem", f64),))
"""What kernels for GPUs compute with: there is no C library."""
_INSTRUCTIONS = {**near.FUNCTIONS, **fp8.FUNCTIONS, **permuted.FUNCTIONS, **resident.CLOCKS}
"""Ops of the loop language that GPUs alone have."""


class _Printer(Printer):
    """Prints the body of one scheduled kernel."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.text.rounds_to_bf16 = True
        # Resident kernels without a warp that copies have no register left for it.
        self.text.takes_halves = bool(kernel.stream)
        self.since, self.part = "", 0
        if kernel.launch is None:
            raise GraphError(f"{kernel.name} has no launch shape", hint="schedule the kernel for a GPU first")
        self.kernel, self.threads, self.blocks = kernel, kernel.launch.block, kernel.launch.grid
        self.globals, self.scopes = dict[str, str](), Scopes(kernel)
        self.dynamic = 0 if kernel.launch.shared_bytes else None
        """Where the next allocation of dynamic shared memory is; None where all of it is static."""
        self.has_maps = False
        """Whether tensor maps are on their way."""
        self.spaces: dict[str, str] = {name: f"ptr addrspace({nvvm.GLOBAL})" for name in kernel.pointers}
        thread, block = self.special(nvvm.THREAD), self.special(nvvm.BLOCK)
        self.indices = {
            "thread": self.wide(thread),
            "block": self.wide(block),
            "lane": self.wide(self.text.let(f"and i32 {thread}, {LANES - 1}")),
            "warp": self.wide(self.text.let(f"lshr i32 {thread}, {LANES.bit_length() - 1}")),
        }
        counts = {"thread": self.threads, "lane": LANES, "warp": self.threads // LANES}
        self.counts = {kind: str(count) for kind, count in counts.items()}
        self.counts["block"] = self.wide(self.special(nvvm.BLOCKS))

    def special(self, register: str) -> str:
        """A special register, an i32."""
        self.text.use(f"declare i32 @{register}()")
        return self.text.let(f"call i32 @{register}()")

    def wide(self, x: str) -> str:
        return self.text.let(f"zext i32 {x} to i64")

    def index(self, expr: ThreadIndex) -> str:
        return self.indices[expr.kind]

    def pointer(self, tensor: Tensor) -> str:
        return self.spaces[tensor.pointer]

    def apart(self, tensor: Tensor) -> str:
        return self.scopes.of(tensor.pointer)

    def marked(self, loop: Loop) -> str:
        """LLVM vectorises no loops for a GPU. A loop of products by a warpgroup stays a loop."""
        # The assembler would unroll a dozen iterations of hundreds of registers: two seconds instead of a tenth of one.
        is_rolled = loop.rolled or any(isinstance(s, MultiplyShared) for s in everything(loop.body))
        return resident.ROLLED if is_rolled else ""

    def iterations(self, statement: Loop) -> None:
        if statement.kind == "unrolled":
            extent = statement.extent
            if not isinstance(extent, Extent) or not isinstance(extent.size, int):
                raise GraphError(f"the loop over {statement.variable} is unrolled without end", hint="fix its extent")
            for step in range(extent.size):
                self.names[statement.variable] = str(step)
                self.statements(statement.body)
        elif statement.kind == "block" and self.has_a_block_for_each(statement):
            self.names[statement.variable] = self.indices["block"]
            self.statements(statement.body)
        elif statement.kind in self.indices:
            first, step = self.indices[statement.kind], self.counts[statement.kind]
            note = self.marked(statement)
            with self.text.loop(I64(first), I64(self.value(statement.extent)), note, step=I64(step)) as variable:
                self.names[statement.variable] = variable
                self.statements(statement.body)
        else:
            super().iterations(statement)

    def has_a_block_for_each(self, statement: Loop) -> bool:
        """Whether the launch has exactly one block for each iteration."""
        return statement.extent == Extent(self.blocks)

    def stride(self, stride: Size, dtype: DType) -> str:
        """LLVM joins loads of neighbours where it sees that the first is aligned: a size tells no divisor of itself."""
        is_known = isinstance(stride, int) or dtype is not f32 or any(factor % VECTOR for _, factor in stride.terms)
        return super().stride(stride, dtype) if is_known else self.text.let(f"and i64 {self.size(stride)}, {-VECTOR}")

    def one(self, expr: Expr) -> str:
        """Quotients of 16-bit floats may be off by 2 units of f32 before they are rounded, which is far faster."""
        if isinstance(expr, Call) and expr.op in _INSTRUCTIONS:
            return _INSTRUCTIONS[expr.op](self.text, *[self.printed[id(x)] for x in expr.operands])
        if not isinstance(expr, Call) or expr.op != "div" or expr.dtype not in scalar.NARROW:
            return super().one(expr)
        x, y = [scalar.cast(self.text, self.printed[id(v)], v.dtype, f32) for v in expr.operands]
        divisor = expr.operands[1]
        if isinstance(divisor, Number) and divisor.reciprocal is not None:
            found = self.text.let(f"fmul float {x}, {scalar.literal(divisor.reciprocal, f32)}")
        else:
            found = near.quotient(self.text, x, y)
        return scalar.cast(self.text, found, f32, expr.dtype)

    def threaded(self, statement: Threaded) -> None:
        match statement:
            case CopyAsync():
                inside = self.value(statement.inside)
                target = self.address(statement.target, statement.target_at)
                source = self.address(statement.source, statement.source_at)
                tensor_cores.copy(self.text, target, source, inside, statement.nbytes)
            case Prefetch():
                source = self.address(statement.source, statement.source_at)
                tensor_cores.prefetch(self.text, source, self.value(statement.nbytes))
            case CommitCopies():
                tensor_cores.commit(self.text)
            case AwaitCopies():
                tensor_cores.wait(self.text, statement.pending)
            case LoadMatrices() | ScaleMatrices() | NarrowMatrices() | MultiplyMatrices():
                tensor_cores.matrices(self.text, self.address, statement)
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
            case Alloc():
                self.allocate(statement)
            case Barrier():
                self.barrier()
            case ClusterBarrier(ordered):
                self.text.emit(nvvm.CLUSTER_BARRIER if ordered else nvvm.CLUSTER_START)
            case SubGrid():
                resident.sub_grid(self, statement)
            case GridBarrier():
                resident.grid_barrier(self, statement)
            case Receive():
                words.receive(self, statement)
            case Amend():
                pass  # a kernel that copies nothing ahead has nothing to amend
            case AllReduce():
                slot, _ = self.slots[statement.name]
                exchange.all_reduce(self.text, slot, statement, CONTRACTED)
            case FromLane():
                found = self.value(Name(statement.source, statement.dtype))
                lane = self.value(statement.lane)
                self.keep(statement.name, exchange.from_lane(self.text, found, statement.dtype, lane), statement.dtype)
            case Ballot():
                self.keep(statement.name, exchange.ballot(self.text, self.value(Name(statement.source, bool_))), u32)
            case AtomicUpdate():
                value = self.value(statement.value)
                address = self.address(statement.tensor, statement.at)
                pointer = self.pointer(statement.tensor)
                exchange.atomic_update(self.text, statement.op, pointer, address, value, statement.tensor.dtype)

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
            return self.text.emit(resident.barrier_of_some(self.kernel, self.threads))
        self.text.use(f"declare void @{nvvm.BARRIER}()")
        self.text.emit(f"call void @{nvvm.BARRIER}()")

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

    def pipelined(self, statement: Pipeline) -> None:
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
        """Fetch all tensor maps, once, while barriers are made."""
        if not self.has_maps:
            self.has_maps = True
            for source in self.kernel.maps:
                pipeline.prefetch_map(self.text, self.map_of(source))

    def slot(self, barrier: str, at: Expr) -> str:
        """The place of a barrier in shared memory."""
        return pipeline.slot(self.text, self.pointers[barrier], self.value(at))

    def allocate(self, statement: Alloc) -> None:
        name, kind = statement.pointer, f"[{statement.count} x {scalar.stored(statement.dtype)}]"
        if statement.space == "private":
            if name not in self.pointers:
                self.pointers[name], self.spaces[name] = self.text.alloca(kind), "ptr"
            return
        self.spaces[name] = pointer = f"ptr addrspace({nvvm.SHARED})"
        if self.dynamic is not None:
            at = statement.offset if statement.offset is not None else self.dynamic
            self.dynamic = at + shared_bytes([statement])
            whole = f"external addrspace({nvvm.SHARED}) global [0 x i8], align {SHARED_ALIGNMENT}"
            self.globals[nvvm.DYNAMIC] = f"@{nvvm.DYNAMIC} = {whole}"
            self.pointers[name] = self.text.let(f"getelementptr i8, {pointer} @{nvvm.DYNAMIC}, i64 {at}")
            return
        self.pointers[name] = f"@{self.kernel.name}.{name}"
        space = f"internal addrspace({nvvm.SHARED}) global"
        self.globals[name] = f"{self.pointers[name]} = {space} {kind} undef, align 16"


def module(kernel: Kernel, alignment: Mapping[str, int]) -> str:
    """A scheduled kernel as a whole module; `alignment` gives the bytes that each pointer is a multiple of."""
    shape = kernel.launch
    if shape is None:
        raise GraphError(f"{kernel.name} has no launch shape", hint="schedule the kernel for a GPU first")
    attributes = f"nounwind {nvvm.threads(shape.block, resident.blocks_at_once(kernel, shape), shape.cluster)}"
    if kernel.counter:
        printers, found = resident.functions(kernel, alignment, _Printer, _attributes, attributes)
    else:
        printers, found = _functions(kernel, alignment, attributes)
    functions = [_function(head, text) for head, text in found]
    uses = dict.fromkeys(use for printer in printers for use in printer.text.uses)
    globals = {name: text for printer in printers for name, text in printer.globals.items()}
    lines = [nvvm.header(), near.library(uses), *globals.values(), *functions, *resident.notes(functions)]
    return with_exact_remainders("\n".join([*lines, *Scopes(kernel).notes]) + "\n")


def _functions(
    kernel: Kernel, alignment: Mapping[str, int], attributes: str
) -> tuple[list[_Printer], list[tuple[str, Builder]]]:
    """The kernel, and its body where that is a function."""
    body = _Printer(kernel)
    body.statements(kernel.body)
    body.text.ret()
    pointers = [f"{body.spaces[n]}{_attributes(kernel, n, alignment)} %p{i}" for i, n in enumerate(kernel.pointers)]
    given = ", ".join([*pointers, *(f"i64 %s{i}" for i in range(len(kernel.sizes)))])
    maps = [f"ptr byval([{MAP_BYTES} x i8]) align 64 %m{i}" for i in range(len(kernel.maps))]
    entry = f"define {nvvm.KERNEL} void @{kernel.name}({', '.join([given, *maps])}) {attributes}"
    if kernel.launch is None or not kernel.launch.dependent:
        return [body], [(entry, body.text)]
    before = _waiting(kernel, alignment)
    inner = f"define internal void @{kernel.name}.body({given}) alwaysinline convergent nounwind"
    return [body, before], [(inner, body.text), (entry, before.text)]


def _waiting(kernel: Kernel, alignment: Mapping[str, int]) -> _Printer:
    """A kernel that starts before the one before it has ended: what it does early, the wait, a call of its body.

    Pointers to what other kernels write pass through an instruction after the wait. Otherwise LLVM may load through
    them before it, as what a kernel only reads counts as constant; its `noalias` arguments become scopes in the call.
    """
    found = _Printer(kernel)
    found.statements(kernel.early)
    found.text.emit(nvvm.AWAIT_KERNELS)
    found.text.emit(nvvm.START_NEXT_KERNEL)
    arguments: list[str] = []
    for i, name in enumerate(kernel.pointers):
        kind, pointer = found.spaces[name], f"%p{i}"
        if name not in kernel.constants:
            pointer = found.text.let(f'call {kind} asm sideeffect "mov.b64 $0, $1;", "=l,l"({kind} {pointer})')
            found.text.use("declare void @llvm.assume(i1)")
            aligned = f'"align"({kind} {pointer}, i64 {alignment.get(name, 1)})'
            found.text.emit(f"call void @llvm.assume(i1 true) [ {aligned} ]")
        arguments.append(f"{kind} {pointer}")
    arguments += [f"i64 %s{i}" for i in range(len(kernel.sizes))]
    found.text.emit(f"call void @{kernel.name}.body({', '.join(arguments)})")
    found.text.ret()
    return found


def _function(head: str, text: Builder) -> str:
    return "\n".join([f"{head} {{", "entry:", *text.allocas, *map(str, text.lines), "}"])


def _attributes(kernel: Kernel, name: str, alignment: Mapping[str, int]) -> str:
    aligned = f" align {alignment.get(name, 1)}"
    if name in kernel.shared:
        return aligned
    return f" noalias{'' if name in kernel.written else ' readonly'}{aligned}"


__all__ = ["LANES", "SUPPORT", "module"]
