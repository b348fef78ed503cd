"""LLVM as a JIT compiler: text to machine code in memory, for this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.targets.cpu import fp16_fallback
from dovetail.targets.cpu.isa import Host, host, host_device
from dovetail.targets.runtime.building.llvm_calls import emitted, llvm, parsed
from dovetail.targets.runtime.building.llvm_calls import optimize as optimize_module
from dovetail.targets.runtime.building.store import CodeStore, StoreKey
from dovetail.version import __version__

_process_code: list[Compiled] = []
"""Code that lives as long as the process: fallbacks that any kernel may call."""
_of_thread = threading.local()
"""The target machines of a thread by host. LLVM describes a processor anew for each machine, which takes 1 ms."""
_lock = threading.Lock()
"""All loaded code shares LLVM's global context; a module that is compiled has a context of its own."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code in memory; freed with this object."""

    engine: Any

    def address(self, function: str) -> int:
        address = int(self.engine.get_function_address(function))
        assert address, f"{function} was compiled"
        return address


def compile_text(
    text: str, *, vectorize: bool = True, optimize: bool = True, store: CodeStore | None = None
) -> Compiled:
    """Machine code of a module in LLVM's text form; without `optimize` only `alwaysinline` functions are inlined."""
    return load([machine_code(text, vectorize=vectorize, optimize=optimize, store=store)])


def machine_code(
    text: str,
    *,
    vectorize: bool = True,
    optimize: bool = True,
    store: CodeStore | None = None,
    here: Host | None = None,
) -> bytes:
    """The object file of a module: from the store, or compiled and put there. `here` may be another machine."""
    key = None if store is None else code_key(text, vectorize=vectorize, optimize=optimize, here=here)
    kept = None if store is None or key is None else store.get(key)
    if kept is not None:
        return kept
    code = emit(text, vectorize=vectorize, optimize=optimize, here=here or host())
    if store is not None and key is not None:
        store.put(key, code)
    return code


def emit(text: str, *, vectorize: bool, optimize: bool, here: Host) -> bytes:
    """The object file of a module for a machine: LLVM compiles it now. The one way into LLVM's code generation."""
    return emitted(*_optimized(text, vectorize, optimize, here), is_object=True)


def load(objects: Iterable[bytes]) -> Compiled:
    """Object files in memory, ready to run. They may call each other, and functions that `define` announced."""
    _define_fp16_fallback()
    return _loaded(objects)


@cache
def _define_fp16_fallback() -> None:
    """Define the conversions of f16 where LLVM calls functions for them."""
    if not host_device().has("f16_conversion"):
        code = _loaded([machine_code(fp16_fallback.TEXT, vectorize=False)])
        _process_code.append(code)
        for name in fp16_fallback.NAMES:
            define(name, code.address(name))


def _loaded(objects: Iterable[bytes]) -> Compiled:
    with _lock:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(host()))
        for code in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return Compiled(engine)


def code_key(text: str, *, vectorize: bool, optimize: bool, here: Host | None = None) -> StoreKey:
    """The key of machine code in the store."""
    return StoreKey(
        "code",
        {
            "text": hashlib.blake2b(text.encode(), digest_size=20).hexdigest(),
            "passes": f"optimize={optimize} vectorize={vectorize}",
            **toolchain(here),
        },
    )


@cache
def toolchain(there: Host | None = None) -> Mapping[str, str]:
    """What decides the machine code of a text: the processor, LLVM and this package."""
    import llvmlite  # pyright: ignore[reportMissingTypeStubs]

    here = there or host()
    return {
        "host": f"{here.triple} {here.cpu} {here.vector_bits}",
        "features": hashlib.blake2b(here.features.encode(), digest_size=8).hexdigest(),
        "llvm": f"{'.'.join(map(str, llvm.llvm_version_info))} {llvmlite.__version__}",
        "dovetail": __version__,
    }


def define(name: str, address: int) -> None:
    """Announce a function to code that is loaded later; a later definition of a name replaces it."""
    with _lock:
        llvm.add_symbol(name, address)


def assembly(text: str, *, vectorize: bool = True, optimize: bool = True, here: Host | None = None) -> str:
    """The assembly of a module, for people and for tests of register spills; `here` may be another machine."""
    if here is not None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    module, machine = _optimized(text, vectorize, optimize, here or host())
    return machine.emit_assembly(module)


def _optimized(text: str, vectorize: bool, optimize: bool, here: Host) -> tuple[Any, Any]:
    machine, heading = _of_this_thread(here)
    module = parsed(heading + text)
    if not optimize and "alwaysinline" not in text:
        return module, machine
    tuning = llvm.create_pipeline_tuning_options(speed_level=2 if optimize else 0)
    tuning.loop_vectorization = vectorize
    tuning.slp_vectorization = False
    tuning.loop_unrolling = vectorize
    optimize_module(module, machine, tuning)
    return module, machine


def _of_this_thread(here: Host) -> tuple[Any, str]:
    """The target machine with which this thread compiles, and the lines by which a module names it.

    A thread that calls LLVM waits for Python's lock after each call: one call to parse names the machine, too.
    """
    known: dict[Host, tuple[Any, str]] = _of_thread.__dict__.setdefault("machines", {})
    if here not in known:
        machine = _machine(here)
        lines = f'target datalayout = "{machine.target_data}"\ntarget triple = "{here.triple}"\n'
        known[here] = machine, lines
    return known[here]


def _machine(here: Host) -> Any:
    """A new target machine; code in memory owns its machine."""
    target = llvm.Target.from_triple(here.triple)
    return target.create_target_machine(
        cpu=here.cpu, features=here.features, opt=2, reloc="static", codemodel="jitdefault", jit=True
    )
