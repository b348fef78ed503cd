"""Machine code of kernels. Kernels with the same text are one, in whatever program they stand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

from dovetail.codegen.llvm import loops as llvm
from dovetail.codegen.llvm.maths import functions as maths
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Form, Job, Part, Template
from dovetail.targets.cpu.jit import Compiled, define, load, machine_code
from dovetail.targets.cpu.threads.pool import available_threads
from dovetail.targets.runtime.store import Store


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function in memory: where it starts, the code that it lies in, and the object file that it came from."""

    address: int
    code: Compiled
    made: bytes


_compiled: dict[str, Loaded] = {}
_lock = threading.Lock()


def addresses(jobs: Iterable[Job | Form], store: Store | None = None, ahead: Ahead | None = None) -> list[int]:
    """The entry of each job's kernel; what is not compiled yet is taken from the store, or compiled."""
    found = Ahead(store) if ahead is None else ahead
    listed = [found.modules(job) for job in jobs]
    with _lock:
        fresh = {m.name: m for modules in listed for m in modules if m.name not in _compiled}
        if fresh:
            _load(fresh.values(), [found.made.get(name) or module.code(store) for name, module in fresh.items()])
        return [_compiled[modules[-1].name].address for modules in listed]


_THREADS = 4
"""Threads that compile for one program, at most; more would wait for each other's memory."""


class Ahead:
    """Compiles kernels in threads of its own, while those behind them are still written.

    LLVM does not hold Python's lock, so that all go on side by side.
    """

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self.made: dict[str, bytes] = {}
        """Object files by name; what cannot be compiled is missing, and fails where it is used."""
        self._modules: dict[int, tuple[Kernel | Template, tuple[Module, ...]]] = {}
        self._asked: set[str] = set()
        self._queue: SimpleQueue[Module | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._most = min(_THREADS, available_threads())

    def add(self, job: Job | Form) -> None:
        """Compile the kernel of a job, and what it shares with others, unless somebody did."""
        for module in self.modules(job):
            if module.name not in _compiled and module.name not in self._asked:
                self._asked.add(module.name)
                self._queue.put(module)
                if len(self._threads) < self._most:
                    self._threads.append(threading.Thread(target=self._run))
                    self._threads[-1].start()

    def modules(self, job: Job | Form) -> tuple[Module, ...]:
        """See `modules_of`; written once for each kernel, which steps that are alike share."""
        kernel = job.kernel
        if id(kernel) not in self._modules:
            self._modules[id(kernel)] = (kernel, modules_of(job))
        return self._modules[id(kernel)][1]

    def finish(self) -> None:
        """Wait until all is compiled."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (module := self._queue.get()) is not None:
            with suppress(Exception):
                self.made[module.name] = foreseen(module.name) or module.code(self.store)


_early: dict[str, tuple[threading.Thread, list[bytes]]] = {}


def foresee(part: Part, store: Store | None) -> None:
    """Compile a function that a program will need, while the program is still being made."""
    module = shared(part)
    with _lock:
        if module.name in _compiled or module.name in _early:
            return
        made: list[bytes] = []
        thread = threading.Thread(target=_make, args=(module, store, made))
        _early[module.name] = (thread, made)
    thread.start()


def foreseen(name: str) -> bytes | None:
    """The object file of a function that was foreseen; None where it was not, or could not be compiled."""
    with _lock:
        found = _early.pop(name, None)
    if found is None:
        return None
    thread, made = found
    thread.join()
    return made[0] if made else None


def _make(module: Module, store: Store | None, made: list[bytes]) -> None:
    with suppress(Exception):  # whoever needs it is told
        made.append(module.code(store))


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
    is_shared: bool = False
    """Whether kernels call it."""

    def code(self, store: Store | None) -> bytes:
        return machine_code(self.text, optimize=self.optimize, store=store)


def modules_of(job: Job | Form) -> tuple[Module, ...]:
    """The modules of the functions that a job's kernel shares with others, then its own."""
    name, text, uses = written(job.kernel)
    ready, is_final = (job.kernel.ready, job.kernel.is_final) if isinstance(job.kernel, Template) else ((), False)
    return *map(shared, ready), Module(name, "\n".join([maths.library(uses), text]), optimize=not is_final)


def shared(part: Part) -> Module:
    """The module of a function that kernels share."""
    return Module(part.name, part.text, part.optimize, is_shared=True)


def _load(modules: Iterable[Module], objects: Sequence[bytes]) -> None:
    """Bring the object files of modules into memory; functions that kernels share are made known to later ones."""
    code = load(objects)
    for module, made in zip(modules, objects, strict=True):
        _compiled[module.name] = Loaded(code.address(module.name), code, made)
        if module.is_shared:
            define(module.name, code.address(module.name))


def written(kernel: Kernel | Template) -> tuple[str, str, tuple[str, ...]]:
    """The name of a kernel, which tells its text; the text; and the functions that it calls."""
    if isinstance(kernel, Template):
        return kernel.name, kernel.text, kernel.uses
    text, uses = llvm.function(replace(kernel, name=_PLACE))
    name = f"{kernel.name}_{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"
    return name, text.replace(f"@{_PLACE}", f"@{name}"), uses


_PLACE = "kernel"
