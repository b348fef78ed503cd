"""Machine code of kernels. Kernels with the same text are one, in whatever program they stand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail.kernels import llvm, maths
from dovetail.kernels.job import Job, Template
from dovetail.kernels.loops import Kernel
from dovetail.targets.cpu.jit import Compiled, define, load, machine_code
from dovetail.targets.store import Store


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function in memory: where it starts, the code that it lies in, and the object file that it came from."""

    address: int
    code: Compiled
    made: bytes


_compiled: dict[str, Loaded] = {}
_lock = threading.Lock()


def addresses(jobs: Iterable[Job], store: Store | None = None) -> list[int]:
    """The entry of each job's kernel; what is not compiled yet is taken from the store, or compiled."""
    listed = [modules_of(job) for job in jobs]
    with _lock:
        fresh = {m.name: m for modules in listed for m in modules if m.name not in _compiled}
        if fresh:
            _load(fresh.values(), [module.code(store) for module in fresh.values()])
        return [_compiled[modules[-1].name].address for modules in listed]


def adopt(objects: Mapping[Module, bytes]) -> None:
    """Take over object files that another process made, in the order in which they need each other."""
    with _lock:
        fresh = {module: made for module, made in objects.items() if module.name not in _compiled}
        if fresh:
            _load(fresh, list(fresh.values()))


def object_of(name: str) -> bytes:
    """The object file of a function that was compiled in this process."""
    with _lock:
        return _compiled[name].made


@dataclass(frozen=True, slots=True)
class Module:
    """A function that is compiled on its own, as a whole module of LLVM's text form."""

    name: str
    text: str
    optimize: bool = True

    def code(self, store: Store | None) -> bytes:
        return machine_code(self.text, optimize=self.optimize, store=store)


def modules_of(job: Job) -> tuple[Module, ...]:
    """The modules of the functions that a job's kernel shares with others, then its own."""
    name, text, uses = written(job.kernel)
    parts, ready = (job.kernel.parts, job.kernel.ready) if isinstance(job.kernel, Template) else ((), ())
    kernel = Module(name, "\n".join([maths.library(uses), *parts, text]))
    return *(Module(part.name, part.text, optimize=False) for part in ready), kernel


def _load(modules: Iterable[Module], objects: Sequence[bytes]) -> None:
    """Bring the object files of modules into memory; functions that kernels share are made known to later ones."""
    code = load(objects)
    for module, made in zip(modules, objects, strict=True):
        _compiled[module.name] = Loaded(code.address(module.name), code, made)
        if not module.optimize:
            define(module.name, code.address(module.name))


def written(kernel: Kernel | Template) -> tuple[str, str, tuple[str, ...]]:
    """The name of a kernel, which tells its text; the text; and the functions that it calls."""
    if isinstance(kernel, Template):
        return kernel.name, kernel.text, kernel.uses
    text, uses = llvm.function(replace(kernel, name=_PLACE))
    name = f"{kernel.name}_{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"
    return name, text.replace(f"@{_PLACE}", f"@{name}"), uses


_PLACE = "kernel"
