"""Kernels whose blocks all run at the same time: barriers of the grid, and passes with pointers from a table."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.gpu.printer import ROLLED
from dovetail.codegen.llvm.handles import I1, I64
from dovetail.codegen.llvm.nvptx import nvvm, pipeline, words
from dovetail.ir.dim import Size
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.analysis import everything, pointers_in
from dovetail.kernels.loops.ir import (
    CopyAsync,
    Expr,
    GridBarrier,
    Kernel,
    Launch,
    Receive,
    Statement,
    SubGrid,
    Tensor,
)
from dovetail.kernels.loops.persistent.kernel import NEXT
from dovetail.kernels.loops.persistent.passes import part_in
from dovetail.kernels.loops.persistent.stream import THREADS, registers_of

_POINTER = f"ptr addrspace({nvvm.GLOBAL})"
_AWAIT = "\\0A".join(
    (
        "{",
        ".reg .b64 found;",
        ".reg .b32 polls;",
        ".reg .pred arrived, late;",
        "mov.b32 polls, 0;",
        "setp.ne.u32 late, polls, 0;",
        "AGAIN:",
        "ld.acquire.gpu.global.u64 found, [$1];",
        "setp.ge.u64 arrived, found, $2;",
        "@arrived bra DONE;",
        "add.u32 polls, polls, 1;",
        f"setp.gt.u32 late, polls, {words.MOST_POLLS};",
        "@!late bra AGAIN;",
        "DONE:",
        "selp.b32 $0, 1, 0, late;",
        "}",
    )
)


class BodyPrinter(Protocol):
    """What prints the statements of a kernel for threads of a GPU."""

    text: Builder
    kernel: Kernel
    threads: int
    blocks: Size
    indices: dict[str, str]
    counts: dict[str, str]
    pointers: dict[str, str]
    spaces: dict[str, str]
    names: dict[str, str]
    globals: dict[str, str]
    since: str
    part: int

    def address(self, tensor: Tensor, at: Sequence[Expr]) -> str: ...
    def statements(self, body: Sequence[Statement]) -> None: ...
    def barrier(self) -> None: ...


def sub_grid(printer: BodyPrinter, statement: SubGrid) -> None:
    t, blocks = printer.text, _blocks(printer.kernel)
    own = printer.indices["block"]
    if statement.first:
        own = t.let(f"urem i64 {t.let(f'add i64 {own}, {blocks - statement.first}')}, {blocks}")
    with _where(t, statement.threads < printer.threads, I64(printer.indices["thread"]), statement.threads):
        if statement.blocks > blocks:
            with t.loop(I64(own), statement.blocks, step=blocks) as index:
                _run(printer, statement, index)
        else:
            with _where(t, statement.blocks < blocks, I64(own), statement.blocks):
                _run(printer, statement, own)


def _run(printer: BodyPrinter, statement: SubGrid, block: str) -> None:
    """The body with the indices and counts of its own launch."""
    before = printer.threads, printer.blocks, printer.indices, printer.counts
    threads = statement.threads
    printer.threads, printer.blocks = threads, statement.blocks
    printer.indices = {**printer.indices, "block": block}
    if statement.is_rare or any(isinstance(s, CopyAsync) for s in everything(statement.body)):
        printer.indices |= _own_indices(printer)
    own = {"block": str(statement.blocks), "thread": str(threads), "warp": str(threads // LANES)}
    printer.counts = {**printer.counts, **own}
    printer.statements(statement.body)
    if statement.blocks > _blocks(printer.kernel):
        # Shared memory is written again in the next turn.
        printer.barrier()
    printer.threads, printer.blocks, printer.indices, printer.counts = before


def _own_indices(printer: BodyPrinter) -> dict[str, str]:
    """The indices of threads as values of one part, which copies and so has many addresses, or runs in few passes. LLVM
    would compute all that follows from them before the first pass, and that is more than there are registers."""
    t = printer.text
    narrow = t.let(f"trunc i64 {printer.indices['thread']} to i32")
    own = t.let(nvvm.assembly("mov.b32 $0, $1;", "=r,r", f"i32 {narrow}", "i32"))
    # LLVM knows how large a lane is, and folds quotients of it.
    indices = {
        "lane": t.let(f"and i32 {own}, {LANES - 1}"),
        "thread": own,
        "warp": t.let(f"lshr i32 {own}, {LANES.bit_length() - 1}"),
    }
    return {kind: t.let(f"zext i32 {index} to i64") for kind, index in indices.items()}


@contextmanager
def _where(t: Builder, is_checked: bool, index: I64, end: int) -> Generator[None]:
    """What those with an index below an end do."""
    if not is_checked:
        yield
        return
    with t.when(t.icmp("ult", index, end)):
        yield


def grid_barrier(printer: BodyPrinter, statement: GridBarrier) -> None:
    """One thread of each block counts it and waits for the others.

    The barrier of the block orders what its threads wrote before the release; what others wrote is seen by the thread
    that acquires it, and by those that meet it at the second barrier.
    """
    t, counter = printer.text, f"{_POINTER} {printer.pointers[printer.kernel.counter]}"
    printer.barrier()
    if any(isinstance(s, Receive) and s.pause for s in everything(printer.kernel.body)):
        printer.since = words.now(t)
    if statement.number is None:
        return printer.statements(statement.meanwhile)
    with t.when(_is_first(printer)):
        t.emit(nvvm.assembly("red.release.gpu.global.add.u64 [$0], 1;", "l,~{memory}", counter))
    printer.statements(statement.meanwhile)
    expected = t.let(f"add i64 %arrived, {statement.number * _blocks(printer.kernel)}")
    with t.when(_is_first(printer)):
        late = t.let(nvvm.assembly(_AWAIT, "=r,l,l,~{memory}", f"{counter}, i64 {expected}", "i32"))
        with t.when(I1(t.let(f"icmp ne i32 {late}, 0"))):
            words.stop(printer, at_barrier=True)
    printer.barrier()


def barrier_of_some(kernel: Kernel, threads: int) -> str:
    """A barrier of the first threads of a block."""
    assert kernel.launch is not None, "it was checked"
    # Threads that have left a part with fewer of them wait at another barrier than those within it.
    computes = bool(kernel.stream) and threads == kernel.launch.block - THREADS
    return nvvm.assembly(f"bar.sync {2 if computes else 1}, {threads};")


def blocks_at_once(kernel: Kernel, launch: Launch) -> int | None:
    """Blocks that a multiprocessor should hold, where the assembler needs to know: registers that a thread has at first
    follow from it, and it lets warps give some to others where it knows them alone."""
    return launch.resident if launch.resident > 1 or kernel.stream else None


def clock(t: Builder) -> str:
    """Cycles of a multiprocessor, and nanoseconds of the device in the upper half: the clock changes with what runs.
    What threads do stays on its side of it."""
    lines = ("{", ".reg .b32 cycles, time;", "mov.u32 cycles, %clock;", "mov.u32 time, %globaltimer_lo;")
    text = "\\0A".join((*lines, "mov.b64 $0, {cycles, time};", "}"))
    return t.let(nvvm.assembly(text, "=l,~{memory}", "", "i64"))


def clock_after(t: Builder, due: str) -> str:
    """Cycles of a multiprocessor, once they are no fewer than `due`."""
    lines = ("{", ".reg .pred early;", "AGAIN:", "mov.u64 $0, %clock64;", "setp.lt.s64 early, $0, $1;")
    text = "\\0A".join((*lines, "@early bra AGAIN;", "}"))
    return t.let(nvvm.assembly(text, "=&l,l,~{memory}", f"i64 {due}", "i64"))


CLOCKS: Mapping[str, Callable[..., str]] = MappingProxyType({"clock": clock, "clock_after": clock_after})
"""By the ops of the loop language."""


def _is_first(printer: BodyPrinter) -> I1:
    return printer.text.icmp("eq", I64(printer.indices["thread"]), 0)


def functions(
    kernel: Kernel,
    alignment: Mapping[str, int],
    make: Callable[[Kernel], BodyPrinter],
    attributes_of: Callable[[Kernel, str, Mapping[str, int]], str],
    attributes: str,
) -> tuple[Sequence[BodyPrinter], list[tuple[str, Builder]]]:
    """A pass as a function, and the kernel that calls it for each."""
    plain = kernel.pointers[: kernel.table.start]
    following = [NEXT + name for name in kernel.tabled]
    seen = replace(kernel, pointers=(*plain, *kernel.tabled, *following))
    body = make(seen)
    body.threads -= THREADS if kernel.stream else 0
    registers = registers_of(body.threads) if kernel.stream else None
    body.names["pass"] = "%pass"
    for s in kernel.body:
        body.statements((s,))
        body.part += part_in(s) is not None
    body.text.ret()
    entry = make(seen)
    table = _Table(entry, len(plain), alignment)
    for index, name in enumerate(kernel.tabled):
        entry.pointers[NEXT + name] = table.pointer(index, name, "0")
    entry.statements(kernel.early)
    numbers = [f"i64 %s{i}" for i in range(len(kernel.sizes))]
    t, blocks = entry.text, _blocks(kernel)
    passes = len([s for s in kernel.body if isinstance(s, GridBarrier) and s.number is not None])
    counter = f"{_POINTER} {entry.pointers[kernel.counter]}"

    def computing() -> None:
        if kernel.launch is not None and kernel.launch.dependent:
            # Only constants were read so far, and the warp that copies reads nothing else.
            t.emit(nvvm.AWAIT_KERNELS)
            t.emit(nvvm.START_NEXT_KERNEL)
        counted = t.let(nvvm.assembly("ld.relaxed.gpu.global.u64 $0, [$1];", "=l,l,~{memory}", counter, "i64"))
        # Launches before this one counted every block of each barrier; some of this one may have come to the first.
        before = t.let(f"sub i64 {counted}, {t.let(f'urem i64 {counted}, {blocks}')}")
        stamp = words.stamp(t, t.let(f"udiv i64 {counted}, {(passes * kernel.passes + 1) * blocks}"))
        if registers is not None:
            pipeline.set_registers(t, registers[0], "inc")
        with t.loop(0, kernel.passes, ROLLED) as number:
            later = _following(t, number, kernel)
            passed = [f"{_POINTER} {entry.pointers[name]}" for name in plain]
            for at in (number, later):
                passed += [f"{_POINTER} {table.pointer(i, n, str(at))}" for i, n in enumerate(kernel.tabled)]
            passed += numbers
            arrived = t.let(f"add i64 {before}, {t.let(f'mul i64 {number}, {passes * blocks}')}")
            t.emit(f"call void @{kernel.name}.body({', '.join(passed)}, i64 {number}, i64 {arrived}, i32 {stamp})")
        with t.when(_is_first(entry)):
            # Every block has read the counter by now but for those that add to it later themselves.
            t.emit(nvvm.assembly("red.relaxed.gpu.global.add.u64 [$0], 1;", "l,~{memory}", counter))

    def copying() -> None:
        if registers is not None:
            pipeline.set_registers(t, registers[1], "dec")
        with t.when(t.icmp("ult", I64(entry.indices["thread"]), body.threads + LANES)):
            _streaming(entry, table, kernel)

    if kernel.stream:
        is_last = t.icmp("uge", I64(entry.indices["thread"]), body.threads)
        t.either(is_last, copying, computing)
    else:
        computing()
    t.ret()
    known = dict(alignment) | {NEXT + name: alignment.get(name, 1) for name in kernel.tabled}
    spelled = [f"{_POINTER}{attributes_of(seen, n, known)} %p{i}" for i, n in enumerate(seen.pointers)]
    table_of = [f"ptr byval([{len(kernel.tabled) * kernel.passes} x i64]) align 8 %table"] if kernel.tabled else []
    inner = ", ".join([*spelled, *numbers, "i64 %pass", "i64 %arrived", f"i32 {words.STAMP}"])
    outer = ", ".join([*spelled[: len(plain)], *table_of, *numbers])
    heads = (
        f"define internal void @{kernel.name}.body({inner}) alwaysinline convergent nounwind",
        f"define {nvvm.KERNEL} void @{kernel.name}({outer}) {attributes}",
    )
    return (body, entry), [(heads[0], body.text), (heads[1], entry.text)]


def _streaming(printer: BodyPrinter, table: _Table, kernel: Kernel) -> None:
    """All passes of the warp that copies: its threads are counted from 0."""
    t, threads, indices = printer.text, printer.threads, printer.indices
    printer.threads, printer.indices = LANES, {**indices, "thread": indices["lane"], "warp": "0"}
    with t.loop(0, kernel.passes, ROLLED) as number:
        printer.names["pass"] = number
        later = _following(t, number, kernel)
        for s in kernel.stream:
            # It has few registers: pointers are loaded where they are used.
            used = pointers_in((s,))
            for index, name in enumerate(kernel.tabled):
                for own, at in ((name, number), (NEXT + name, later)):
                    if own in used:
                        printer.pointers[own] = table.pointer(index, name, at)
            printer.statements((s,))
    printer.threads, printer.indices = threads, indices


def _following(t: Builder, number: str, kernel: Kernel) -> str:
    """The pass after one; the last one stays."""
    later = t.let(f"add i64 {number}, 1")
    return t.let(f"select i1 {t.let(f'icmp ult i64 {later}, {kernel.passes}')}, i64 {later}, i64 {number}")


class _Table:
    """The pointers of all passes among the arguments of a kernel."""

    def __init__(self, printer: BodyPrinter, argument: int, alignment: Mapping[str, int]) -> None:
        self.t, self.alignment, self.width = printer.text, alignment, len(printer.kernel.tabled)
        self.name, self.argument = printer.kernel.name, argument

    def pointer(self, index: int, name: str, number: str) -> str:
        """One pointer of a pass."""
        t = self.t
        at = t.let(f"add i64 {t.let(f'mul i64 {number}, {8 * self.width}')}, {8 * index}")
        word = pipeline.word_of(t, self.name, self.argument, at)
        pointer = t.let(f"inttoptr i64 {word} to {_POINTER}")
        t.use("declare void @llvm.assume(i1)")
        aligned = f'"align"({_POINTER} {pointer}, i64 {self.alignment.get(name, 1)})'
        t.emit(f"call void @llvm.assume(i1 true) [ {aligned} ]")
        return pointer


def _blocks(kernel: Kernel) -> int:
    assert kernel.launch is not None and isinstance(kernel.launch.grid, int), "all blocks run at once"
    return kernel.launch.grid


__all__ = [
    "CLOCKS", "BodyPrinter", "barrier_of_some", "blocks_at_once", "clock", "clock_after", "functions",
    "grid_barrier", "sub_grid",
]  # fmt: skip
