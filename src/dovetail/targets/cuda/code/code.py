"""Machine code of GPU kernels: LLVM text to PTX to what the device runs, kept in the store between processes.

PTX is found by the text, the architecture and LLVM; machine code by the PTX, the architecture and the driver. Kernels
are compiled in threads: LLVM and the driver's assembler run without Python's lock.

The driver gives machine code away only through its linker, which assembles PTX as a part of a larger program: the
instructions that move registers between warps are ignored then, and some registers stay unused. Kernels with such
instructions, and persistent ones, which use every register, are loaded from PTX, and the driver's own cache keeps their
code (a step of Qwen3-0.6B: 0.494 to 0.465 ms). So are all kernels but those of Hopper: as a part of a program they take
up to twice the registers, and attention with wide heads spills (Ada, 128 features and a mask: 255 registers and 488
bytes, by itself 226 and none).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import Thread
from typing import TypeVar

import llvmlite  # pyright: ignore[reportMissingTypeStubs]

from dovetail.codegen.llvm.nvptx import nvvm
from dovetail.errors import DovetailError
from dovetail.targets.cuda.driver.driver import Driver, LoadedModule
from dovetail.targets.gpu.kernel import RESIDENT, GpuKernel
from dovetail.targets.runtime.building.store import CodeStore, StoreKey
from dovetail.version import __version__

MOST_THREADS = 8
"""Threads that compile for one program."""
_WHOLE = ("setmaxnreg", f".entry {RESIDENT}(")
"""Text in PTX that the driver loads as it is."""
_LINKED = ".target sm_90"
"""Text in PTX that is linked instead."""
T = TypeVar("T")
R = TypeVar("R")


def toolchain() -> Mapping[str, str]:
    """What decides the PTX of a text."""
    options = " ".join(nvvm.OPTIONS)
    return {"llvm": str(llvmlite.__version__), "options": options, "dovetail": __version__}


def ptx_of(kernels: Iterable[GpuKernel], device: Driver, store: CodeStore | None) -> dict[str, str]:
    """The PTX of each distinct kernel by its text."""
    distinct = {kernel.text: kernel for kernel in kernels}

    def compiled(kernel: GpuKernel) -> str:
        parts = {"text": digest(kernel.text.encode()), "architecture": device.architecture, **toolchain()}
        return _kept(store, StoreKey("ptx", parts), lambda: device.ptx(kernel).encode()).decode()

    return dict(zip(distinct, in_threads(compiled, distinct.values(), lambda kernel: len(kernel.text)), strict=True))


def modules_of(ptx: Iterable[str], device: Driver, store: CodeStore | None) -> dict[str, LoadedModule]:
    """Loaded code by its PTX."""
    distinct = list(dict.fromkeys(ptx))
    return dict(zip(distinct, in_threads(lambda text: _module(text, device, store), distinct, len), strict=True))


def is_whole(ptx: str) -> bool:
    """Whether a kernel is assembled by itself, and not by the driver's linker."""
    return _LINKED not in ptx or any([mark in ptx for mark in _WHOLE])


def _module(ptx: str, device: Driver, store: CodeStore | None) -> LoadedModule:
    if is_whole(ptx):
        return LoadedModule(device, ptx.encode())
    parts = {"ptx": digest(ptx.encode()), "architecture": device.architecture, "driver": str(device.version)}
    key = StoreKey("cubin", parts)
    try:
        return LoadedModule(device, _kept(store, key, lambda: device.assembled(ptx)))
    except DovetailError:
        if device.lost is not None:
            raise
    # A linker that does not take the PTX, or code in the store that the driver refuses: the driver assembles it.
    return LoadedModule(device, ptx.encode())


def _kept(store: CodeStore | None, key: StoreKey, make: Callable[[], bytes]) -> bytes:
    """Return the stored content, or make and store it; a damaged entry is none."""
    content = None if store is None else store.get(key)
    if content is None:
        content = make()
        if store is not None:
            store.put(key, content)
    return content


def digest(content: bytes) -> str:
    """Return the digest of a text."""
    return hashlib.blake2b(content, digest_size=20).hexdigest()


def in_threads(work: Callable[[T], R], items: Iterable[T], size: Callable[[T], int] | None = None) -> list[R]:
    """The results of work for each item, in their order; the first error is raised. Large items start first, so that no
    thread is left with one at the end."""
    listed = list(items)
    threads = min(len(listed), MOST_THREADS, os.cpu_count() or 1)
    if threads <= 1:
        return [work(item) for item in listed]
    waiting = sorted(range(len(listed)), key=lambda at: 0 if size is None else size(listed[at]))
    results: dict[int, R] = {}
    failed: dict[int, BaseException] = {}

    def take() -> None:
        while waiting and not failed:
            with suppress(IndexError):  # another thread took the last one
                at = waiting.pop()
                try:
                    results[at] = work(listed[at])
                except BaseException as error:
                    failed[at] = error

    # An executor would import more than the rest of a call from the cache needs.
    begun = [Thread(target=take, name="cuda compiler") for _ in range(threads)]
    for thread in begun:
        thread.start()
    for thread in begun:
        thread.join()
    if failed:
        raise failed[min(failed)]
    return [results[at] for at in range(len(listed))]


__all__ = ["digest", "in_threads", "is_whole", "modules_of", "ptx_of", "toolchain"]
