"""Calls of LLVM that take long run without the lock of llvmlite, so that threads compile at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import llvmlite.binding as _untyped  # pyright: ignore[reportMissingTypeStubs]
import pytest

from dovetail.targets.cpu import jit
from dovetail.targets.cpu.isa import host
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.runtime.building.llvm_calls import parsed

llvm: Any = _untyped
LONG = ("LLVMPY_ParseAssembly", "LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory")
KERNEL = """
target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @k(ptr addrspace(1) %x) {
  store i32 NUMBER, ptr addrspace(1) %x
  ret void
}
"""
FUNCTION = "define i32 @f(i32 %x) { %y = add i32 %x, 1 ret i32 %y }"


class Watched:
    """A function of LLVM that notes whether llvmlite's lock is held when it is called."""

    def __init__(self, function: Any, is_held: Callable[[], bool], found: set[tuple[str, bool]], name: str) -> None:
        self.plain = getattr(function, "_cfn", function)
        self.note: Callable[[], None] = lambda: found.add((name, is_held()))

    def _cfn(self, *given: Any) -> Any:
        self.note()
        return self.plain(*given)

    def __call__(self, *given: Any) -> Any:
        with llvm.ffi.lib._lock:
            return self._cfn(*given)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Long calls by name, and whether the lock was held."""
    depth, found = [0], set[tuple[str, bool]]()

    def deeper() -> None:
        depth[0] += 1

    def back() -> None:
        depth[0] -= 1

    for name in LONG:
        function = Watched(getattr(llvm.ffi.lib, name), lambda: depth[0] > 0, found, name)
        monkeypatch.setitem(llvm.ffi.lib._fntab, name, function)
    llvm.ffi.register_lock_callback(deeper, back)
    yield found
    llvm.ffi.unregister_lock_callback(deeper, back)


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_long_calls_run_without_the_lock(target: str, calls: set[tuple[str, bool]]) -> None:
    if target == "cpu":
        jit.emit(FUNCTION, vectorize=True, optimize=True, here=host())
    else:
        assert ".entry k" in to_ptx(KERNEL.replace("NUMBER", "7"), "sm_90a")
    assert calls == {(name, False) for name in LONG}


@pytest.mark.slow
def test_threads_compile_what_one_thread_does() -> None:
    texts = [KERNEL.replace("NUMBER", str(number)) for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(partial(to_ptx, architecture="sm_90a"), texts))
    assert together == [to_ptx(text, "sm_90a") for text in texts]


def test_text_that_is_none_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="parsing error"):
        parsed("define i32 @f(")
