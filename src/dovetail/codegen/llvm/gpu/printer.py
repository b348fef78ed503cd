"""Scheduled kernels of the loop language as LLVM's text for any GPU; blocks take tiles in turn where they are fewer."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.gpu import exchange, matrices
from dovetail.codegen.llvm.gpu.machine import DYNAMIC, GLOBAL, SHARED, Machine, Register
from dovetail.codegen.llvm.gpu.scopes import Scopes
from dovetail.codegen.llvm.handles import I64
from dovetail.codegen.llvm.loops import CONTRACTED, Printer
from dovetail.codegen.llvm.maths import functions
from dovetail.errors import GraphError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_, f32, f64
from dovetail.kernels.loops.analysis import SHARED_ALIGNMENT, everything, shared_bytes
from dovetail.kernels.loops.ir import (
    Alloc,
    AllReduce,
    Amend,
    AtomicUpdate,
    AwaitCopies,
    Ballot,
    Barrier,
    Call,
    CommitCopies,
    CopyAsync,
    Expr,
    Extent,
    FromLane,
    Kernel,
    Loop,
    MultiplyMatrices,
    MultiplyShared,
    Name,
    NarrowMatrices,
    Number,
    Prefetch,
    ScaleMatrices,
    Tensor,
    Threaded,
    ThreadIndex,
    WarpBarrier,
)
from dovetail.kernels.loops.policy import ScalarSupport

VECTOR = 16
SUPPORT: ScalarSupport = scalar.support(functions.has_on_gpu, inexact=(("rem", f64),))
"""What kernels for GPUs compute with: there is no C library."""
ROLLED = ", !llvm.loop !0"
"""Marks a loop that LLVM does not unroll."""


class GpuPrinter(Printer):
    """Prints the body of one scheduled kernel for a machine."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        super().__init__(kernel)
        self.machine = machine
        self.text.rounds_to_bf16 = machine.rounds_to_bf16
        if kernel.launch is None:
            raise GraphError(f"{kernel.name} has no launch shape", hint="schedule the kernel for a GPU first")
        lanes = machine.lanes
        if kernel.launch.warp != lanes:
            raise GraphError(
                f"{kernel.name} for warps of {kernel.launch.warp}",
                hint=f"schedule it for a device with warps of {lanes}",
            )
        self.kernel, self.threads, self.blocks = kernel, kernel.launch.block, kernel.launch.grid
        self.globals, self.scopes = dict[str, str](), Scopes(kernel)
        self.dynamic = 0 if kernel.launch.shared_bytes else None
        """Where the next allocation of dynamic shared memory is; None where all of it is static."""
        self.spaces: dict[str, str] = {name: f"ptr addrspace({GLOBAL})" for name in kernel.pointers}
        thread, block = self.special("thread"), self.special("block")
        self.indices = {
            "thread": self.wide(thread),
            "block": self.wide(block),
            "lane": self.wide(self.text.let(f"and i32 {thread}, {lanes - 1}")),
            "warp": self.wide(self.text.let(f"lshr i32 {thread}, {lanes.bit_length() - 1}")),
        }
        counts = {"thread": self.threads, "lane": lanes, "warp": self.threads // lanes}
        self.counts = {kind: str(count) for kind, count in counts.items()}
        self.counts["block"] = self.wide(self.special("blocks"))

    def special(self, register: Register) -> str:
        """A special register, an i32."""
        return self.machine.number(self.text, register)

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
        return ROLLED if is_rolled else ""

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
        """LLVM joins loads of neighbours where it sees that the first is aligned: sizes have no known divisor."""
        is_known = isinstance(stride, int) or dtype is not f32 or any(factor % VECTOR for _, factor in stride.terms)
        return super().stride(stride, dtype) if is_known else self.text.let(f"and i64 {self.size(stride)}, {-VECTOR}")

    def one(self, expr: Expr) -> str:
        """Quotients of 16-bit floats may be off by 2 units of f32 before they are rounded, which is far faster."""
        if isinstance(expr, Call) and expr.op in self.machine.functions:
            return self.machine.functions[expr.op](self.text, *[self.printed[id(x)] for x in expr.operands])
        if not isinstance(expr, Call) or expr.op != "div" or expr.dtype not in scalar.NARROW:
            return super().one(expr)
        x, y = [scalar.cast(self.text, self.printed[id(v)], v.dtype, f32) for v in expr.operands]
        divisor = expr.operands[1]
        if isinstance(divisor, Number) and divisor.reciprocal is not None:
            quotient = self.text.let(f"fmul float {x}, {scalar.literal(divisor.reciprocal, f32)}")
        else:
            quotient = self.machine.approximations.quotient(self.text, x, y)
        return scalar.cast(self.text, quotient, f32, expr.dtype)

    def threaded(self, statement: Threaded) -> None:
        machine, t = self.machine, self.text
        match statement:
            case CopyAsync():
                inside = self.value(statement.inside)
                target = self.address(statement.target, statement.target_at)
                source = self.address(statement.source, statement.source_at)
                machine.copy(t, target, source, inside, statement.nbytes)
            case Prefetch():
                source = self.address(statement.source, statement.source_at)
                machine.prefetch(t, source, self.value(statement.nbytes))
            case CommitCopies():
                machine.commit(t)
            case AwaitCopies():
                machine.await_copies(t, statement.pending)
            case ScaleMatrices():
                target = self.address(statement.target, statement.target_at)
                matrices.scale(t, target, self.address(statement.source, statement.source_at), statement.target.dtype)
            case NarrowMatrices():
                target = self.address(statement.target, statement.target_at)
                matrices.narrow(t, target, self.address(statement.source, statement.source_at), statement.target.dtype)
            case MultiplyMatrices():
                sums = self.address(statement.sums, statement.sums_at)
                left = self.address(statement.left, statement.left_at)
                machine.multiply(t, statement.by, left, self.address(statement.right, statement.right_at), sums)
            case Alloc():
                self.allocate(statement)
            case Barrier():
                machine.barrier(t)
            case WarpBarrier(1):
                machine.warp_barrier(t)
            case Amend():
                pass  # a kernel that copies nothing ahead has nothing to amend
            case AllReduce():
                slot, _ = self.slots[statement.name]
                exchange.all_reduce(machine, t, slot, statement, CONTRACTED)
            case FromLane():
                own = self.value(Name(statement.source, statement.dtype))
                lane = self.value(statement.lane)
                moved = exchange.from_lane(machine, t, own, statement.dtype, lane)
                self.keep(statement.name, moved, statement.dtype)
            case Ballot(name, source, dtype):
                self.keep(name, machine.ballot(t, self.value(Name(source, bool_)), dtype), dtype)
            case AtomicUpdate():
                value = self.value(statement.value)
                address = self.address(statement.tensor, statement.at)
                pointer = self.pointer(statement.tensor)
                exchange.atomic_update(machine, t, statement.op, pointer, address, value, statement.tensor.dtype)
            case _:
                raise GraphError(
                    f"{type(statement).__name__} on {machine.architecture}", hint="choose a kernel that does without"
                )

    def allocate(self, statement: Alloc) -> None:
        name, kind = statement.pointer, f"[{statement.count} x {scalar.stored(statement.dtype)}]"
        if statement.space == "private":
            if name not in self.pointers:
                self.pointers[name], self.spaces[name] = self.text.alloca(kind), "ptr"
            return
        self.spaces[name] = pointer = f"ptr addrspace({SHARED})"
        if self.dynamic is not None:
            at = statement.offset if statement.offset is not None else self.dynamic
            self.dynamic = at + shared_bytes([statement])
            whole = f"external addrspace({SHARED}) global [0 x i8], align {SHARED_ALIGNMENT}"
            self.globals[DYNAMIC] = f"@{DYNAMIC} = {whole}"
            self.pointers[name] = self.text.let(f"getelementptr i8, {pointer} @{DYNAMIC}, i64 {at}")
            return
        self.pointers[name] = f"@{self.kernel.name}.{name}"
        space = f"internal addrspace({SHARED}) global"
        self.globals[name] = f"{self.pointers[name]} = {space} {kind} undef, align 16"


def parameters(printer: GpuPrinter, alignment: Mapping[str, int]) -> list[str]:
    """The pointers and sizes of a kernel as parameters of a function."""
    kernel = printer.kernel
    names = enumerate(kernel.pointers)
    pointers = [f"{printer.spaces[name]}{attributes(kernel, name, alignment)} %p{i}" for i, name in names]
    return [*pointers, *(f"i64 %s{i}" for i in range(len(kernel.sizes)))]


def attributes(kernel: Kernel, name: str, alignment: Mapping[str, int]) -> str:
    aligned = f" align {alignment.get(name, 1)}"
    if name in kernel.shared:
        return aligned
    return f" noalias{'' if name in kernel.written else ' readonly'}{aligned}"


def function(head: str, text: Builder, private: str = "") -> str:
    """A function; what a thread has for itself is in an address space of its own on some machines."""
    allocas = text.allocas if not private else [line for each in text.allocas for line in _cast(each, private)]
    return "\n".join([f"{head} {{", "entry:", *allocas, *map(str, text.lines), "}"])


def _cast(alloca: str, space: str) -> tuple[str, str]:
    name, _, kind = alloca.strip().partition(" = alloca ")
    return (
        f"  {name}.own = alloca {kind}, addrspace({space})",
        f"  {name} = addrspacecast ptr addrspace({space}) {name}.own to ptr",
    )


def notes(functions: list[str]) -> list[str]:
    """What a module says of loops that LLVM does not unroll, where it has some."""
    is_rolled = any([ROLLED in text for text in functions])
    return ["!0 = distinct !{!0, !1}", '!1 = !{!"llvm.loop.unroll.disable"}'] if is_rolled else []


__all__ = ["ROLLED", "SUPPORT", "GpuPrinter", "attributes", "function", "notes", "parameters"]
