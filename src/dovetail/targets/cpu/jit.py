"""LLVM: text to machine code in memory, for the machine that runs this."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite  # pyright: ignore[reportMissingTypeStubs]
import llvmlite.binding as _untyped  # pyright: ignore[reportMissingTypeStubs]

from dovetail.targets.store import Key, Store
from dovetail.version import __version__

llvm: Any = _untyped
_lock = threading.Lock()
"""LLVM's contexts are shared, and llvmlite's calls are not safe from several threads at once."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine: its processor's name, what it can do, and how wide its vectors are."""

    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int

    @property
    def lanes(self) -> int:
        """Elements of f32 in a vector."""
        return self.vector_bits // 32

    @property
    def sums_bytes(self) -> bool:
        """Whether four products of bytes are added to each of 16 sums at once."""
        return self.vector_bits == 512 and "+avx512vnni" in self.features.split(",")

    @property
    def is_arm(self) -> bool:
        return self.triple.startswith(("aarch64", "arm64"))


@cache
def host() -> Host:
    """The machine that this runs on."""
    _initialize()
    found: dict[str, bool] = dict(llvm.get_host_cpu_features())
    triple = llvm.get_process_triple()
    bits, registers = _vectors(triple, found)
    # LLVM likes 256 bits on machines that slowed down at 512; those of today do not.
    features = llvm.get_host_cpu_features().flatten() + (",-prefer-256-bit" if bits == 512 else "")
    return Host(triple, llvm.get_host_cpu_name(), features, bits, registers)


def _vectors(triple: str, features: dict[str, bool]) -> tuple[int, int]:
    if triple.startswith(("aarch64", "arm64")):
        return 128, 32
    if features.get("avx512f") and features.get("avx512vl"):
        return 512, 32
    return (256, 16) if features.get("avx2") and features.get("fma") else (128, 16)


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code in memory; it lives as long as this."""

    engine: Any

    def address(self, function: str) -> int:
        found = int(self.engine.get_function_address(function))
        assert found, f"{function} was compiled"
        return found


def compile_text(text: str, *, vectorize: bool = True, optimize: bool = True, store: Store | None = None) -> Compiled:
    """Machine code for a module of LLVM's text form; not to `optimize` takes it as it is written."""
    return load([machine_code(text, vectorize=vectorize, optimize=optimize, store=store)])


def machine_code(text: str, *, vectorize: bool = True, optimize: bool = True, store: Store | None = None) -> bytes:
    """The object file of a module: from the store, or compiled and put there."""
    key = None if store is None else code_key(text, vectorize=vectorize, optimize=optimize)
    found = None if store is None or key is None else store.get(key)
    if found is not None:
        return found
    with _lock:
        module, machine = _optimized(text, vectorize, optimize)
        made = bytes(machine.emit_object(module))
    if store is not None and key is not None:
        store.put(key, made)
    return made


def load(objects: Iterable[bytes]) -> Compiled:
    """Object files in memory, ready to run. They may refer to each other, and to what `define` made known."""
    with _lock:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        for made in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(made))
        engine.finalize_object()
        return Compiled(engine)


def code_key(text: str, *, vectorize: bool, optimize: bool) -> Key:
    """What machine code is made from."""
    return Key(
        "code",
        {
            "text": hashlib.blake2b(text.encode(), digest_size=20).hexdigest(),
            "passes": f"optimize={optimize} vectorize={vectorize}",
            **toolchain(),
        },
    )


@cache
def toolchain() -> Mapping[str, str]:
    """What turns text into machine code here: the processor, LLVM and this package."""
    here = host()
    return {
        "host": f"{here.triple} {here.cpu} {here.vector_bits}",
        "features": hashlib.blake2b(here.features.encode(), digest_size=8).hexdigest(),
        "llvm": f"{'.'.join(map(str, llvm.llvm_version_info))} {llvmlite.__version__}",
        "dovetail": __version__,
    }


def define(name: str, address: int) -> None:
    """Make a function known by name to whatever is compiled from here on."""
    with _lock:
        llvm.add_symbol(name, address)


def assembly(text: str, *, vectorize: bool = True, optimize: bool = True) -> str:
    """The assembly of a module, for people and for tests that look for spills."""
    with _lock:
        module, machine = _optimized(text, vectorize, optimize)
        return machine.emit_assembly(module)


def _optimized(text: str, vectorize: bool, optimize: bool) -> tuple[Any, Any]:
    machine = _machine()
    module: Any = llvm.parse_assembly(text)
    module.triple = host().triple
    module.data_layout = str(machine.target_data)
    module.verify()
    if not optimize:
        return module, machine
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = vectorize
    tuning.slp_vectorization = False
    tuning.loop_unrolling = vectorize
    builder = llvm.create_pass_builder(machine, tuning)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    return module, machine


def _machine() -> Any:
    here = host()
    target = llvm.Target.from_triple(here.triple)
    return target.create_target_machine(
        cpu=here.cpu, features=here.features, opt=2, reloc="static", codemodel="jitdefault", jit=True
    )
