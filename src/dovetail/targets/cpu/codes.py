"""Machine code of kernels. Kernels with the same text are one, in whatever program they stand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dovetail.kernels import llvm, maths
from dovetail.kernels.job import Job, Template
from dovetail.targets.cpu.jit import Compiled, define, load, machine_code
from dovetail.targets.cpu.store import Store

_compiled: dict[str, tuple[int, Compiled]] = {}
_lock = threading.Lock()


def addresses(jobs: Iterable[Job], store: Store | None = None) -> list[int]:
    """The entry of each job's kernel; what is not compiled yet is taken from the store, or compiled."""
    names: list[str] = []
    fresh: dict[str, Module] = {}
    with _lock:
        for job in jobs:
            name, modules = modules_of(job)
            names.append(name)
            fresh |= {m.name: m for m in modules if m.name not in _compiled}
        if fresh:
            _load({name: module.code(store) for name, module in fresh.items()})
        return [_compiled[name][0] for name in names]


@dataclass(frozen=True, slots=True)
class Module:
    """A function that is compiled on its own, as a whole module of LLVM's text form."""

    name: str
    text: str
    optimize: bool = True

    def code(self, store: Store | None) -> bytes:
        return machine_code(self.text, optimize=self.optimize, store=store)


def modules_of(job: Job) -> tuple[str, tuple[Module, ...]]:
    """The name of a job's kernel; its module, and those of the functions that it shares with others."""
    name, text, uses = written(job)
    parts, ready = (job.kernel.parts, job.kernel.ready) if isinstance(job.kernel, Template) else ((), ())
    kernel = Module(name, "\n".join([maths.library(uses), *parts, text]))
    return name, (*(Module(part.name, part.text, optimize=False) for part in ready), kernel)


def _load(objects: Mapping[str, bytes]) -> None:
    """Bring object files into memory, each with the function that it is known for."""
    code = load(objects.values())
    for name in objects:
        _compiled[name] = (code.address(name), code)
        define(name, code.address(name))


def written(job: Job) -> tuple[str, str, tuple[str, ...]]:
    """The name of a job's kernel, which tells its text; the text; and the functions that it calls."""
    kernel = job.kernel
    if isinstance(kernel, Template):
        return kernel.name, kernel.text, kernel.uses
    text, uses = llvm.function(replace(kernel, name=_PLACE))
    name = f"{kernel.name}_{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"
    return name, text.replace(f"@{_PLACE}", f"@{name}"), uses


_PLACE = "kernel"
