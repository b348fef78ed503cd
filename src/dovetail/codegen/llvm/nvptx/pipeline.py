"""Barriers in shared memory and copies by the tensor memory accelerator, as PTX: LLVM has no intrinsics for all."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.nvptx import nvvm

_SHARED = f"ptr addrspace({nvvm.SHARED})"
_REGISTERS = {"i16": "h", "i32": "r", "i64": "l"}


def place(t: Builder, pointer: str) -> str:
    """A pointer to shared memory as the i32 that instructions take."""
    return t.let(f"ptrtoint {_SHARED} {pointer} to i32")


def slot(t: Builder, barriers: str, index: str) -> str:
    """The place of one barrier of several."""
    return place(t, t.let(f"getelementptr i64, {_SHARED} {barriers}, i64 {index}"))


def initialise(t: Builder, barriers: str, count: int, arrivals: int) -> None:
    """Set barriers to the start of phase 0, for copies of the TMA as well; one thread does it."""
    for index in range(count):
        _do(t, f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", f"i32 {slot(t, barriers, str(index))}")
    t.emit(nvvm.assembly("fence.mbarrier_init.release.cluster;"))


def expect(t: Builder, barrier: str, nbytes: int) -> None:
    _do(t, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {nbytes};", f"i32 {barrier}")


def arrive(t: Builder, barrier: str) -> None:
    _do(t, "mbarrier.arrive.shared::cta.b64 _, [$0];", f"i32 {barrier}")


def arrive_at(t: Builder, barrier: str, block: str) -> None:
    """Arrive at the barrier of a block of the cluster, an i64, at the same place as one of this block."""
    lines = (
        "{",
        ".reg .b32 there;",
        "mapa.shared::cluster.u32 there, $0, $1;",
        "mbarrier.arrive.shared::cluster.b64 _, [there];",
        "}",
    )
    narrow = t.let(f"trunc i64 {block} to i32")
    _do(t, "\\0A".join(lines), f"i32 {barrier}", f"i32 {narrow}")


def await_phase(t: Builder, barrier: str, phase: str) -> None:
    """Wait until a barrier has left a phase, an i64."""
    lines = (
        "{",
        ".reg .pred left;",
        "AGAIN:",
        "mbarrier.try_wait.parity.shared::cta.b64 left, [$0], $1;",
        "@!left bra AGAIN;",
        "}",
    )
    parity = t.let(f"trunc i64 {phase} to i32")
    _do(t, "\\0A".join(lines), f"i32 {barrier}", f"i32 {parity}")


def map_of(t: Builder, kernel: str, argument: int) -> str:
    """The address of a tensor map among the arguments of a kernel, by the name that LLVM gives to it."""
    # LLVM would copy an argument by value to the stack as soon as its address is used.
    lines = ("{", ".reg .b64 at;", f"mov.b64 at, {kernel}_param_{argument};", "cvta.param.u64 $0, at;", "}")
    text = "\\0A".join(lines)
    return t.let(f'call i64 asm "{text}", "=l"()')


def word_of(t: Builder, kernel: str, argument: int, offset: str) -> str:
    """A word of an argument by value, some bytes after its start: it comes through the cache of constants."""
    name = f"{kernel}_param_{argument}"
    lines = ("{", ".reg .b64 at;", f"mov.b64 at, {name};", "add.u64 at, at, $1;", "ld.param.b64 $0, [at];", "}")
    text = "\\0A".join(lines)
    return t.let(f'call i64 asm "{text}", "=l,l"(i64 {offset})')


def prefetch_map(t: Builder, source: str) -> None:
    """Fetch a tensor map, so that the first copy need not wait for it."""
    _do(t, "prefetch.tensormap [$0];", f"i64 {source}")


def copy_box(
    t: Builder, target: str, source: str, at: Sequence[str], taps: Sequence[str], barrier: str, blocks: int = 1
) -> None:
    """Copy a box from an index along each axis on, innermost first; pixels of images where there are `taps`.

    All blocks of a cluster of `blocks` get it.
    """
    rank, mode = len(at), "im2col" if taps else "tile"
    name = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"
    indices = [f"i32 {t.let(f'trunc i64 {index} to i32')}" for index in at]
    offsets = [f"i16 {t.let(f'trunc i64 {tap} to i16')}" for tap in taps]
    places = [f"${2 + i}" for i in range(rank)]
    name += ".multicast::cluster" if blocks > 1 else ""
    text = f"{name} [$0], [$1, {{{', '.join(places)}}}], [${2 + rank}]"
    if taps:
        text += f", {{{', '.join(f'${3 + rank + i}' for i in range(len(taps)))}}}"
    if blocks > 1:
        text += f", ${3 + rank + len(taps)}"
        offsets.append(f"i16 {(1 << blocks) - 1}")
    _do(t, f"{text};", f"i32 {place(t, target)}", f"i64 {source}", *indices, f"i32 {barrier}", *offsets)


def copy_bulk(t: Builder, target: str, source: str, nbytes: int, barrier: str, *, evict_first: bool = False) -> None:
    """Copy contiguous bytes of global memory, with a hint to L2 to evict them first."""
    name = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    address = t.let(f"ptrtoint ptr addrspace({nvvm.GLOBAL}) {source} to i64")
    operands = [f"i32 {place(t, target)}", f"i64 {address}", f"i32 {barrier}"]
    if not evict_first:
        return _do(t, f"{name} [$0], [$1], {nbytes}, [$2];", *operands)
    _do(t, f"{name}.L2::cache_hint [$0], [$1], {nbytes}, [$2], $3;", *operands, f"i64 {t.let(nvvm.EVICT_FIRST)}")


def set_registers(t: Builder, count: int, change: str) -> None:
    """Give a warpgroup more (inc) or fewer (dec) registers for each of its threads."""
    t.emit(nvvm.assembly(f"setmaxnreg.{change}.sync.aligned.u32 {count};", ""))


def warp_barrier(t: Builder) -> None:
    t.use(f"declare void @{nvvm.WARP_BARRIER}(i32)")
    t.emit(f"call void @{nvvm.WARP_BARRIER}(i32 -1)")


def group_barrier(t: Builder, warp: str) -> None:
    """A barrier of the warpgroup of a warp, an i64; barrier 0 is that of the whole block."""
    narrow = t.let(f"trunc i64 {warp} to i32")
    group = t.let(f"lshr i32 {narrow}, 2")
    _do(t, "bar.sync $0, 128;", f"i32 {t.let(f'add i32 {group}, 1')}")


def _do(t: Builder, text: str, *operands: str) -> None:
    constraints = ",".join([_REGISTERS[x.partition(" ")[0]] for x in operands] + ["~{memory}"])
    t.emit(nvvm.assembly(text, constraints, ", ".join(operands)))


__all__ = [
    "arrive", "arrive_at", "await_phase", "copy_box", "copy_bulk", "expect", "initialise", "map_of", "place",
    "prefetch_map", "set_registers", "slot", "warp_barrier", "word_of",
]  # fmt: skip
