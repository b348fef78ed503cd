"""What is compiled: a graph in memory, or one in a file that need not be read where it is known at a glance."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.errors import LoadError, OptionError
from dovetail.frontends.onnx.file.skim import Skimmed, skim
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.plan.fingerprint import fingerprint
from dovetail.runtime.build_id import build_id
from dovetail.runtime.in_memory import Described, graph_in_memory
from dovetail.runtime.load import load
from dovetail.targets.runtime.building.store import CodeStore, StoreKey
from dovetail.targets.runtime.building.weights import Weights, owned

KIND = "source"
"""Of the entries that say which graph a file holds."""


@dataclass(frozen=True, slots=True)
class Source:
    """A graph, perhaps not read yet: what it is called and what it is, as far as the cache has to know."""

    name: str
    structure: str
    """Equal for graphs that compile to the same; empty where nobody asked."""
    graph: Callable[[], Graph]
    params: Mapping[str, Array]
    """Arrays that came with it."""
    finish: Callable[[], None] = lambda: None
    """Waits until these are there: a file may still be read while a program is put together."""


def source_of(
    given: Any,
    ops: Iterable[FusedOp[...]] = (),
    fixed: Mapping[str, Array | int] | None = None,
    store: CodeStore | None = None,
) -> Source:
    """The source that a graph or a path is. With a store, a file that it knows is not read."""
    if isinstance(given, Graph):
        if fixed:
            raise OptionError("fixed with a graph", hint="it is for ONNX files; specialize a graph to fix its sizes")
        return of_graph(given, store)
    if isinstance(given, Described):
        return _described(given, store)
    if not isinstance(given, str | os.PathLike):
        return of_graph(graph_in_memory(given, fixed=fixed), store)
    named = cast("str | os.PathLike[str]", given)
    path = Path(named)
    seen = None if store is None or path.suffix.lower() != ".onnx" else skim(path)
    key = None if seen is None else source_key(seen, fixed or {})
    found = None if store is None or key is None else store.get(key)
    known = None if seen is None or found is None else _known(path, seen, found, ops, fixed)
    if known is not None:
        return known
    source = of_graph(load(named, ops=ops, fixed=fixed), store)
    if store is not None and key is not None and seen is not None:
        _remember(source, seen, key, store)
    return source


def graph_of(given: Any, *, ops: Iterable[FusedOp[...]] = ()) -> Graph:
    """The graph of anything that `compile` takes but modules of torch, which need the arguments of a call."""
    if isinstance(given, str | os.PathLike):
        return load(cast("str | os.PathLike[str]", given), ops=ops)
    return graph_in_memory(given)


def of_graph(graph: Graph, store: CodeStore | None = None) -> Source:
    """A graph in memory as a source; its structure is told where there is a store to ask."""
    structure = "" if store is None else fingerprint(graph, target="", alignment=1, options={})
    # Arrays of a file belong to the graph alone; those that a user gave can still change.
    own = graph.reread is not None or isinstance(graph.params, Weights)
    lean = replace(graph, params=Weights(graph.params) if own else owned(graph.params))
    return Source(graph.name, structure, lambda: lean, lean.params)


def _described(given: Described, store: CodeStore | None) -> Source:
    """The source that a text describes; the code that builds it is part of what the text means."""
    if store is None:
        return of_graph(given.build())
    key = StoreKey(KIND, {"described": given.text, **build_id()})
    found = store.get(key)
    if found is not None:
        said = json.loads(found)
        return Source(said["name"], said["structure"], cache(given.build), {})
    source = of_graph(given.build(), store)
    store.put(key, json.dumps({"name": source.name, "structure": source.structure}).encode())
    return source


def source_key(seen: Skimmed, fixed: Mapping[str, Array | int]) -> StoreKey | None:
    """What the graph of a file is made from; None where that cannot be said."""
    given = hashlib.blake2b(digest_size=20)
    for name in sorted(fixed):
        array = np.asarray(fixed[name])
        if array.dtype.hasobject:
            return None
        given.update(repr((name, array.dtype.str, array.shape)).encode())
        given.update(np.ascontiguousarray(array).tobytes())
    parts = {"file": seen.digest, "fixed": given.hexdigest() if fixed else "", "onnx": _onnx(), **build_id()}
    return StoreKey(KIND, parts)


def _onnx() -> str:
    """Which onnx package reads files here, told without importing it."""
    found = find_spec("onnx")
    if found is None or found.origin is None:
        return ""
    seen = os.stat(found.origin)
    return f"{found.origin} {seen.st_size} {seen.st_mtime_ns}"


def _remember(source: Source, seen: Skimmed, key: StoreKey, store: CodeStore) -> None:
    """Note which graph a file holds, if its initializers alone give the parameters."""
    for name, array in source.params.items():
        found = seen.places.get(name)
        if found is None or found.dtype.numpy != array.dtype or found.shape != array.shape:
            return
    said = {"name": source.name, "structure": source.structure, "params": list(source.params)}
    store.put(key, json.dumps(said).encode())


def _known(
    path: Path,
    seen: Skimmed,
    found: bytes,
    ops: Iterable[FusedOp[...]],
    fixed: Mapping[str, Array | int] | None,
) -> Source:
    said = json.loads(found)
    digest = seen.digest

    def read() -> Graph:
        if not path.exists():
            raise LoadError(f"{path} is gone since it was compiled", hint="put it back, or compile another file")
        again = skim(path)
        if again is None or again.digest != digest:
            raise LoadError(f"{path} has changed since it was compiled", hint="compile it again")
        return load(path, ops=ops, fixed=fixed)

    reading = seen.read(said["params"])
    params = Weights(reading.arrays)
    reading.arrays = {}  # a thread that waits for them must not keep arrays that a program releases
    return Source(said["name"], said["structure"], read, params, reading.finish)
