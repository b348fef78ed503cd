"""Machine code of kernels. Kernels with equal text share one copy in a process; programs hold it, the cache does not.

The cache keeps a few functions that were used last (LRU), so that a program which is compiled again finds its code.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from queue import PriorityQueue
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Job, SharedFunction, Template, Variant
from dovetail.targets.runtime.building.compiler import Compiler, LoadedCode, Module
from dovetail.targets.runtime.building.store import CodeStore

__all__ = ["BackgroundCompiler", "CodeCache", "LoadedFunction", "Skeleton", "shared_module", "skeleton_of"]

_HASH = re.compile(r"(?<=_)(?:[0-9a-f]{20}|[0-9a-f]{16})(?![0-9a-f])")
"""The hash in a content name. Names that are exchanged have one length, so that no offset in an object file moves."""
_HASH_BYTES = re.compile(_HASH.pattern.encode())


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A text whose hashes are numbered in order of appearance."""

    text: str
    hashes: tuple[str, ...]
    """The hash of each number."""

    def renamed(self, object_file: bytes, to: Skeleton) -> bytes:
        """The object file of another module with this text: symbols with its hashes."""
        assert self.text == to.text, "modules differ in names only"
        new = {old.encode(): name.encode() for old, name in zip(self.hashes, to.hashes, strict=True)}
        return _HASH_BYTES.sub(lambda match: new.get(match[0], match[0]), object_file)


def skeleton_of(text: str) -> Skeleton:
    """The text of a module without its content names."""
    numbers: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"#{len(numbers)}:{len(match[0])}")

    return Skeleton(_HASH.sub(numbered, text), tuple(numbers))


HasKernel: TypeAlias = Job | Variant

MOST_RECENT = 128
"""Functions that the cache holds without a program."""

COMPILE_THREADS = 4
"""Threads that compile for one program, at most; more would compete for memory bandwidth."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoadedFunction:
    """A function in memory. What may call it holds this object: the code is freed with the last reference."""

    address: int
    code: LoadedCode
    """Code that was loaded together; functions of one load share its memory."""
    object_file: bytes
    callees: tuple[LoadedFunction, ...] = ()
    """Shared functions that it calls."""


class _Early:
    """A function that is compiled before the kernels of a program are selected."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.is_begun = False
        self.done = threading.Event()
        self.code: bytes | None = None


class CodeCache:
    """The functions of a process by name, for one compiler. Programs hold them; the cache holds recent ones."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self._functions: weakref.WeakValueDictionary[str, LoadedFunction] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, LoadedFunction] = OrderedDict()
        self._lock = threading.Lock()
        self._early_lock = threading.Lock()
        self._early: dict[str, _Early] = {}

    def __len__(self) -> int:
        return len(self._functions)

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def functions(
        self, jobs: Iterable[HasKernel], store: CodeStore | None = None, background: BackgroundCompiler | None = None
    ) -> list[LoadedFunction]:
        """The function of each job's kernel: in memory already, from the store, or compiled."""
        compiler = BackgroundCompiler(self, store) if background is None else background
        listed = [compiler.modules(job) for job in jobs]
        with self._lock:
            held = self._held(module for modules in listed for module in modules)
            fresh = {m.name: m for modules in listed for m in modules if m.name not in held}
            if fresh:
                objects = {name: compiler.objects.get(name) or self.compile(m, store) for name, m in fresh.items()}
                callees = {modules[-1].name: [m.name for m in modules[:-1]] for modules in listed}
                self._load(fresh.values(), objects, callees, held)
            self._used(held)
            return [held[modules[-1].name] for modules in listed]

    def adopt(self, objects: Mapping[Module, bytes]) -> list[LoadedFunction]:
        """The functions of object files that another process compiled, callees first."""
        with self._lock:
            held = self._held(objects)
            fresh = {m.name: m for m in objects if m.name not in held}
            if fresh:
                shared = [m.name for m in objects if m.is_shared]
                contents = {m.name: content for m, content in objects.items()}
                callees = {name: shared for name, m in fresh.items() if not m.is_shared}
                self._load(fresh.values(), contents, callees, held)
            self._used(held)
            return list(held.values())

    def modules(self, job: HasKernel) -> tuple[Module, ...]:
        """The modules of the functions that a job's kernel shares with others, then its own."""
        return self.compiler.modules(job.kernel)

    def compile(self, module: Module, store: CodeStore | None) -> bytes:
        """The object file of a module."""
        return self.compiler.compile(module, store)

    def object_of(self, name: str) -> bytes:
        """The object file of a function that is in memory."""
        return self._functions[name].object_file

    def precompile(self, functions: Iterable[SharedFunction], store: CodeStore | None) -> None:
        """Compile functions in one thread, one after the other, while the program that needs them is still lowered."""
        modules = [shared_module(function) for function in functions]
        with self._early_lock:
            fresh = [_Early(m) for m in modules if m.name not in self._functions and m.name not in self._early]
            self._early |= {early.module.name: early for early in fresh}
        if fresh:
            threading.Thread(target=self._precompile, args=(fresh, store)).start()

    def precompiled(self, name: str) -> bytes | None:
        """The object file of a precompiled function; None where there is none, it failed, or it was not begun."""
        with self._early_lock:
            module = self._early.pop(name, None)
            if module is None or not module.is_begun:
                return None
        module.done.wait()
        return module.code

    def is_precompiling(self, name: str) -> bool:
        """Whether a function is begun that no program has taken."""
        return name in self._early and self._early[name].is_begun

    def _precompile(self, functions: Iterable[_Early], store: CodeStore | None) -> None:
        for early in functions:
            with self._early_lock:
                # The program did not wait for what was not begun.
                early.is_begun = early.module.name in self._early
            if early.is_begun:
                with suppress(Exception):  # the program that needs it reports the error
                    early.code = self.compile(early.module, store)
                early.done.set()

    def _held(self, modules: Iterable[Module]) -> dict[str, LoadedFunction]:
        """Strong references to the functions that are in memory."""
        functions = {module.name: self._functions.get(module.name) for module in modules}
        return {name: function for name, function in functions.items() if function is not None}

    def _used(self, functions: Mapping[str, LoadedFunction]) -> None:
        """Hold functions as the most recent ones, and let the least recent ones go."""
        for name, function in functions.items():
            self._recent[name] = function
            self._recent.move_to_end(name)
        while len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)

    def _load(
        self,
        modules: Iterable[Module],
        objects: Mapping[str, bytes],
        callees: Mapping[str, Sequence[str]],
        held: dict[str, LoadedFunction],
    ) -> None:
        """Load object files and add the functions to `held`. Shared functions come first; they call no others."""
        modules = sorted(modules, key=lambda module: not module.is_shared)
        code = self.compiler.load([objects[module.name] for module in modules])
        for module in modules:
            called = tuple([held[name] for name in callees.get(module.name, ())])
            function = LoadedFunction(code.address(module.name), code, objects[module.name], called)
            held[module.name] = self._functions[module.name] = function
            if module.is_shared:
                # A later definition replaces the address of one that was freed.
                self.compiler.define(module.name, function.address)


class BackgroundCompiler:
    """Compiles the kernels of one program in threads, while later steps are still selected.

    LLVM runs without Python's lock.
    """

    def __init__(self, cache: CodeCache, store: CodeStore | None) -> None:
        self.cache = cache
        self.store = store
        self.objects: dict[str, bytes] = {}
        """Object files by name. A module that cannot be compiled is missing, and raises where it is used."""
        self._modules: dict[int, tuple[Kernel | Template, tuple[Module, ...]]] = {}
        self._queued: set[str] = set()
        self._first: dict[tuple[str, bool, bool], tuple[str, Skeleton]] = {}
        self._alike: list[tuple[str, Skeleton, str, Skeleton]] = []
        """Modules that are not compiled: each has the code of an earlier one under other names."""
        self._queue: PriorityQueue[tuple[int, int, Module | None]] = PriorityQueue()
        """Order of the queue: the longest module first, as a program waits for the last one; None comes last."""
        self._threads: list[threading.Thread] = []
        self._most = min(COMPILE_THREADS, cache.compiler.threads)

    def add(self, job: HasKernel) -> None:
        """Queue the kernel of a job and its shared functions, unless they are in memory."""
        for module in self.modules(job):
            if module.name not in self.cache and module.name not in self._queued:
                self._queued.add(module.name)
                if not self._is_alike(module):
                    self._compile(module)

    def modules(self, job: HasKernel) -> tuple[Module, ...]:
        """The modules of a job, written once for each kernel: steps with equal signatures share one."""
        kernel = job.kernel
        if id(kernel) not in self._modules:
            self._modules[id(kernel)] = (kernel, self.cache.modules(job))
        return self._modules[id(kernel)][1]

    def finish(self) -> None:
        """Wait until everything is compiled."""
        for number, _ in enumerate(self._threads):
            self._queue.put((1, number, None))
        for thread in self._threads:
            thread.join()
        for name, skeleton, first, its in self._alike:
            if first in self.objects:
                self.objects[name] = its.renamed(self.objects[first], skeleton)

    def _is_alike(self, module: Module) -> bool:
        """Whether a queued module differs from this one in names only; `finish` renames its code."""
        skeleton = skeleton_of(module.text)
        key = (skeleton.text, module.optimize, module.vectorize)
        first, its = self._first.setdefault(key, (module.name, skeleton))
        if first == module.name:
            return False
        self._alike.append((module.name, skeleton, first, its))
        return True

    def _compile(self, module: Module) -> None:
        self._queue.put((-len(module.text), len(self._queued), module))
        if len(self._threads) < self._most:
            self._threads.append(threading.Thread(target=self._run))
            self._threads[-1].start()

    def _run(self) -> None:
        while (module := self._queue.get()[2]) is not None:
            with suppress(Exception):
                self.objects[module.name] = self.cache.precompiled(module.name) or self.cache.compile(
                    module, self.store
                )


def shared_module(function: SharedFunction) -> Module:
    """The module of a function that kernels share."""
    return Module(function.name, function.text, function.optimize, is_shared=True)
