"""Programs from the cache: what they are made from, how they are kept, and how they come back."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import fields, replace

from dovetail import library
from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError
from dovetail.ir.collector import collector_paused
from dovetail.plan.plan import Plan
from dovetail.plan.text import parse_plan, print_plan
from dovetail.progress import notice
from dovetail.runtime.build_id import build_id
from dovetail.runtime.request import Request
from dovetail.runtime.source import Source
from dovetail.runtime.vocabulary import vocabulary
from dovetail.settings import Settings
from dovetail.targets.runtime.building.store import CodeStore, StoreKey, store_of
from dovetail.targets.target import Executable

KIND = "program"
"""Of the entries that hold programs."""

FREE = frozenset(
    {"verify_each_pass", "memory_limit", "threads", "cache", "cache_limit", "tune", "libraries", "print_report"}
)
"""Settings that do not decide what is compiled. Every other one is part of the key."""

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class CachedProgram:
    """A program as it was compiled, without its parameters."""

    plan: Plan
    executable: Executable


def why_not(request: Request) -> str:
    """Why programs of a request are compiled anew in every process; empty where they are stored."""
    if store_of(request.settings) is None:
        return "the cache is switched off"
    if request.target.serializer is None:
        return f"the target {request.target.name} stores nothing"
    ours = set(library.ALL)
    own = [op.name for op in request.setup.ops if op not in ours]
    if own:
        return f"it is compiled with ops of the user's own: {', '.join(own)}"
    if request.settings.verify_each_pass:
        return "every pass is to be verified"
    return ""


def program_store(request: Request) -> CodeStore | None:
    """Where the programs of a request are kept, if they are."""
    return None if why_not(request) else store_of(request.settings)


def program_key(source: Source, request: Request) -> StoreKey:
    """All that decides what a source is compiled to."""
    setup, serializer = request.setup, request.target.serializer
    options = {f.name: getattr(request.settings, f.name) for f in fields(Settings) if f.name not in FREE}
    options["without"] = sorted(setup.without)
    options["dispatch"] = sorted(setup.policy.items())
    options["assume_sizes"] = sorted(setup.sizes.items())
    parts: Mapping[str, str] = {
        **(serializer.key_parts() if serializer is not None else {}),
        **build_id(),
        "graph": source.structure,
        "name": source.name,
        "target": request.target.name,
        "machine": repr(setup.claims.machine),
        **{f"option {name}": repr(value) for name, value in options.items()},
    }
    return StoreKey(KIND, parts)


def keep(program: CachedProgram, key: StoreKey, request: Request, store: CodeStore) -> None:
    """Keep a program for other processes, if all of it can be spelled."""
    serializer = request.target.serializer
    made = None if serializer is None else serializer.to_bytes(program.executable)
    if made is None:
        store.refuse(key, f"a kernel of the target {request.target.name} is one of those that cannot be stored")
        return
    # Where values come from is left out: graphs of one structure are one program, whoever wrote them.
    bare = replace(program.plan, graph=replace(program.plan.graph, origins={}))
    text = print_plan(bare).encode("utf-8", "surrogatepass")
    store.put(key, b"".join([_LENGTH.pack(len(text)), text, made]))


def restore(source: Source, key: StoreKey, request: Request, store: CodeStore) -> CachedProgram | None:
    """The program of a key, if the store has it. One that cannot be read is compiled again, and the store notes why."""
    content = store.get(key) if request.target.serializer is not None else None
    if content is None:
        return None
    found = read(content, source, request)
    if isinstance(found, CachedProgram):
        store.accept(key)
        return found
    store.refuse(key, found)
    notice(f"the program in the cache cannot be read back, so it is compiled again: {found}")
    return None


def unreadable(source: Source, key: StoreKey, request: Request, store: CodeStore) -> str:
    """Why the program of a key cannot be read back; empty where it can, or where there is none."""
    content = store.peek(key)
    found = None if content is None else read(content, source, request)
    return found if isinstance(found, str) else ""


def read(content: bytes, source: Source, request: Request) -> CachedProgram | str:
    """The program of the bytes that `keep` wrote, or why they cannot be read."""
    serializer = request.target.serializer
    if serializer is None:
        return f"the target {request.target.name} stores nothing"
    try:
        end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
        with collector_paused():
            plan = parse_plan(str(content[_LENGTH.size : end], "utf-8", "surrogatepass"), vocabulary())
            graph = replace(plan.graph, params=source.params)
            rules = request.setup.claims.memory
            plan = replace(plan, graph=graph, memory_limit=request.settings.memory_limit, rules=rules)
            return CachedProgram(plan, serializer.from_bytes(plan, content[end:], request.settings))
    except (DovetailError, ValueError, LookupError, TypeError, struct.error, RuntimeError) as error:
        message = error.message if isinstance(error, DovetailError) else str(error)
        return f"{type(error).__name__}: {message}" if message else type(error).__name__
