"""Machine code of kernels. Kernels with the same text are one, in whatever program they stand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import replace

from dovetail.kernels import llvm, maths
from dovetail.kernels.job import Job, Part, Template
from dovetail.targets.cpu.jit import Compiled, compile_text, define

_compiled: dict[str, tuple[int, Compiled]] = {}
_lock = threading.Lock()


def addresses(jobs: Iterable[Job]) -> list[int]:
    """The entry of each job's kernel; what is not compiled yet is compiled, all of it in one go."""
    texts: dict[str, tuple[str, tuple[str, ...]]] = {}
    parts: dict[str, tuple[str, ...]] = {}
    ready: dict[str, Part] = {}
    names: list[str] = []
    for job in jobs:
        name, text, uses = written(job)
        names.append(name)
        texts[name] = (text, uses)
        parts[name] = job.kernel.parts if isinstance(job.kernel, Template) else ()
        ready |= {part.name: part for part in job.kernel.ready} if isinstance(job.kernel, Template) else {}
    with _lock:
        fresh = {name: entry for name, entry in texts.items() if name not in _compiled}
        if fresh:
            used = [function for _, uses in fresh.values() for function in uses]
            for name, part in ready.items():
                if name not in _compiled:
                    code = compile_text(part.text, optimize=False)
                    _compiled[name] = (code.address(name), code)
                    define(name, code.address(name))
            shared = dict.fromkeys(part for name in fresh for part in parts[name])
            code = compile_text("\n".join([maths.library(used), *shared, *(text for text, _ in fresh.values())]))
            _compiled.update({name: (code.address(name), code) for name in fresh})
        return [_compiled[name][0] for name in names]


def written(job: Job) -> tuple[str, str, tuple[str, ...]]:
    """The name of a job's kernel, which tells its text; the text; and the functions that it calls."""
    kernel = job.kernel
    if isinstance(kernel, Template):
        return kernel.name, kernel.text, kernel.uses
    text, uses = llvm.function(replace(kernel, name=_PLACE))
    name = f"{kernel.name}_{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"
    return name, text.replace(f"@{_PLACE}", f"@{name}"), uses


_PLACE = "kernel"
