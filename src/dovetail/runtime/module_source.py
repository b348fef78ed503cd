"""Torch modules as sources: one whose exported program the cache knows is neither decomposed nor imported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dovetail.frontends.torch.importing.custom import CustomOps
from dovetail.frontends.torch.load import Captured, Imported, capture_module, import_captured, known, shares_memory
from dovetail.frontends.torch.reading.interface import Argument, Interface, Result, Written
from dovetail.ir.dtype import BY_NAME
from dovetail.runtime.build_id import build_id
from dovetail.runtime.source import KIND, Source, of_graph
from dovetail.targets.runtime.building.store import CodeStore, StoreKey
from dovetail.targets.runtime.building.weights import Weights


def module_source(
    given: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic: Any,
    store: CodeStore | None,
    custom_ops: CustomOps | None = None,
) -> tuple[Source, Imported]:
    """The source that a module or an exported program is, and how it is called."""
    captured = capture_module(given, args, kwargs, dynamic, custom_ops)
    if store is None or custom_ops:  # nothing says that a body is the one of an earlier process
        made = import_captured(captured)
        return of_graph(made.graph, store), made
    key = StoreKey(KIND, {"program": captured.digest, "module": captured.name, **build_id()})
    noted = store.get(key)
    found = None if noted is None else _known(captured, noted)
    if found is not None:
        return found
    made = import_captured(captured)
    source = of_graph(made.graph, store)
    _remember(source, made, key, store)
    return source, made


def _remember(source: Source, made: Imported, key: StoreKey, store: CodeStore) -> None:
    """Note which graph a program is, where the tensors of the module are all that it needs."""
    interface = made.interface
    values = [*(a.value for a in interface.arguments), *(r.value for r in interface.results)]
    if not shares_memory(made) or any(type(v) not in (int, float, bool, str, type(None)) for v in values):
        return
    results = [{**asdict(replace(r, dtype=None)), "dtype": r.dtype and r.dtype.name} for r in interface.results]
    said = {
        "name": source.name,
        "structure": source.structure,
        "params": list(made.arrays),
        "interface": {
            "arguments": [asdict(a) for a in interface.arguments],
            "results": results,
            "written": [asdict(w) for w in interface.written],
            "params": list(interface.params),
        },
    }
    store.put(key, json.dumps(said).encode())


def _known(captured: Captured, noted: bytes) -> tuple[Source, Imported] | None:
    try:
        said = json.loads(noted)
        names, how = list(map(str, said["params"])), said["interface"]
        results = tuple(
            Result(r["name"], None if r["dtype"] is None else BY_NAME[r["dtype"]], r["value"]) for r in how["results"]
        )
        interface = Interface(
            tuple(Argument(**a) for a in how["arguments"]),
            results,
            tuple(Written(**w) for w in how["written"]),
            tuple(map(str, how["params"])),
        )
        name, structure = str(said["name"]), str(said["structure"])
    except (ValueError, LookupError, TypeError):
        return None
    made = known(captured, interface, names)
    return None if made is None else (Source(name, structure, made.read, Weights(made.arrays)), made)


__all__ = ["module_source"]
