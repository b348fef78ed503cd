"""Code that is compiled before it is asked for: it is taken once, and what cannot be compiled is nobody's error yet."""

from __future__ import annotations

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu import jit
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.jit import load, machine_code
from dovetail.targets.runtime.building.code_cache import CodeCache
from dovetail.targets.runtime.building.compiler import Module


def function(name: str, number: int) -> SharedFunction:
    return SharedFunction(name, f"define i64 @{name}() {{\n  ret i64 {number}\n}}")


def taken(name: str, code: CodeCache = BACKEND.code) -> bytes | None:
    """What was made of a function, once the thread has begun it."""
    while not code.is_precompiling(name):
        time.sleep(0.001)
    return code.precompiled(name)


def test_what_was_precompiled_is_taken_once() -> None:
    BACKEND.code.precompile([function("precompiled_seven", 7)], None)
    made = taken("precompiled_seven")
    assert made is not None
    code = load([made])
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("precompiled_seven"))() == 7
    assert BACKEND.code.precompiled("precompiled_seven") is None


def test_what_cannot_be_compiled_is_not_there() -> None:
    BACKEND.code.precompile([SharedFunction("precompiled_nonsense", "define nonsense")], None)
    assert taken("precompiled_nonsense") is None


def test_what_is_not_begun_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program compiles it itself; the thread leaves it out."""
    release, compiled = threading.Event(), list[str]()
    code = CodeCache(BACKEND.code.compiler)

    def slow(self: CodeCache, module: Module, store: Any) -> bytes:
        compiled.append(module.name)
        release.wait(60)
        return b"made"

    monkeypatch.setattr(CodeCache, "compile", slow)
    code.precompile([function(f"precompiled_{i}", i) for i in range(3)], None)
    while not compiled:
        time.sleep(0.001)
    assert code.precompiled("precompiled_1") is None
    release.set()
    assert taken("precompiled_2", code) == taken("precompiled_0", code) == b"made"
    assert compiled == ["precompiled_0", "precompiled_2"]


def text_of(number: int) -> str:
    """A function with much to do for LLVM."""
    lines = [f"  %x{i + 1} = mul i64 %x{i}, {number + i}" for i in range(200)]
    return "\n".join([f"define i64 @made_{number}(i64 %x0) {{", *lines, "  ret i64 %x200", "}"])


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_anew")
def test_threads_that_compile_at_once_make_what_one_makes() -> None:
    texts = [text_of(number) for number in range(24)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(machine_code, texts))
    assert together == [machine_code(text) for text in texts]


@pytest.mark.usefixtures("compiled_anew")
def test_every_module_has_a_context_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM shares numbers and types within a context without a lock: threads in one bring the process down."""
    seen: list[Any] = []
    parse = jit.parsed

    def noted(text: str) -> Any:
        seen.append(parse(text))
        return seen[-1]

    monkeypatch.setattr(jit, "parsed", noted)
    for number in range(2):
        machine_code(text_of(number))
    contexts = [module._context for module in seen]
    assert contexts[0] is not contexts[1] and jit.llvm.get_global_context() not in contexts
