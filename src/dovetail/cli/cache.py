"""`dovetail cache`: what is kept of earlier compilations, why a model is found there or not, and how to remove it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.options import ENGINE, FIXED, JSON, MODEL, SIZE, TARGET, WITHOUT, asked_graph, ways
from dovetail.errors import LoadError, OptionError
from dovetail.runtime.cached import KIND, program_key, unreadable, why_not
from dovetail.runtime.request import make_request
from dovetail.runtime.source import of_graph
from dovetail.settings import settings_of
from dovetail.targets.runtime.building.store import CodeStore, StoreKey, store_of

PARTS: Mapping[str, str] = {
    "graph": "the graph has another structure",
    "name": "the graph has another name",
    "dovetail": "another version of dovetail compiled it",
    "files": "the files of dovetail have changed since",
    "numpy": "it was compiled with another NumPy",
    "llvm": "it was compiled with another LLVM",
    "host": "it was compiled for another processor",
    "features": "the processor had other features",
    "machine": "prices were made of other figures of the machine",
    "target": "it was compiled for another target",
}
"""What it means where a part of the key differs; options are named."""


_OF_A_MODEL = (TARGET, WITHOUT, ENGINE, SIZE, FIXED)


def run(args: argparse.Namespace) -> Answer:
    if (args.action == "why") != (args.model is not None):
        told = "why without a model" if args.action == "why" else f"{args.action} with a model"
        raise OptionError(told, hint="write dovetail cache status, dovetail cache why MODEL or dovetail cache clear")
    if args.action != "why":
        given = [a.name for a in _OF_A_MODEL if getattr(args, a.key) != a.how.get("default")]
        if given:
            raise OptionError(f"{given[0]} with {args.action}", hint="it is for dovetail cache why MODEL")
    found = {"status": status, "why": why, "clear": clear}[args.action](args)
    text = {"status": _status_text, "why": _why_text, "clear": _clear_text}[args.action]
    return Answer(json.dumps({"schema_version": SCHEMA_VERSION, **found}, indent=2) if args.json else text(found))


def status(_: argparse.Namespace) -> dict[str, Any]:
    """What the cache holds."""
    store = store_of(settings_of({}, os.environ))
    return {"on": False} if store is None else {"on": True, **asdict(store.status())}


def clear(_: argparse.Namespace) -> dict[str, Any]:
    """Remove every entry."""
    store = store_of(settings_of({}, os.environ))
    if store is None or store.problem:
        told = "the cache is switched off" if store is None else store.problem
        raise LoadError(told, hint="name a folder of your own with DOVETAIL_CACHE")
    return {"folder": str(store.path), "removed": store.clear()}


def why(args: argparse.Namespace) -> dict[str, Any]:
    """Whether the program of a model is there; if not, what the entry that comes nearest differs in."""
    request = make_request(**ways(args))
    reason = why_not(request)
    store = store_of(request.settings)
    found: dict[str, Any] = {"model": args.model, "kept": not reason, "reason": reason}
    if reason or store is None:
        return found
    source = of_graph(asked_graph(args), store)
    key = program_key(source, request)
    present = store.has(key)
    refusal = unreadable(source, key, request, store) if present else store.refusal(key)
    found |= {"present": present, "entry": key.name, "key": dict(key.parts), "problem": store.problem}
    found["refusal"] = refusal
    return found | {"differs": [] if present else nearest(store, key)}


def nearest(store: CodeStore, key: StoreKey) -> list[dict[str, str]] | None:
    """The parts in which the nearest entry differs from a key; None where there is no entry."""
    best: list[dict[str, str]] | None = None
    for parts in store.keys(KIND):
        differs = [
            {"part": name, "here": part, "there": parts.get(name, "")}
            for name, part in key.parts.items()
            if parts.get(name) != part
        ]
        if best is None or len(differs) < len(best):
            best = differs
    return best


def _status_text(found: Mapping[str, Any]) -> str:
    if not found["on"]:
        return "the cache is switched off"
    entries = ", ".join(f"{count} {kind}" for kind, count in sorted(found["entries"].items())) or "none"
    lines = [
        f"folder   {found['folder']}",
        f"entries  {entries}",
        f"bytes    {found['bytes']:,} of at most {found['limit']:,}",
        f"found    {found['hits']:,} of {found['hits'] + found['misses']:,} that were asked for",
        f"written  {found['written']:,}",
    ]
    problems = [found["problem"]] if found["problem"] else []
    problems += [f"{entry} could not be kept or read back: {why}" for entry, why in sorted(found["unread"].items())]
    return "\n".join([*lines, *[f"problem  {problem}" for problem in problems]])


def _why_text(found: Mapping[str, Any]) -> str:
    model = found["model"]
    if not found["kept"]:
        return f"{model} is compiled in every process: {found['reason']}"
    if found["problem"]:
        return f"{model} is compiled in every process: {found['problem']}"
    if found["refusal"]:
        where = (
            f"is in the cache, as {found['entry']}, and cannot be read back" if found["present"] else "cannot be kept"
        )
        return f"{model} {where}, so every process compiles it: {found['refusal']}"
    if found["present"]:
        return f"{model} is in the cache, as {found['entry']}"
    if found["differs"] is None:
        return f"{model} is not in the cache, which has no programs"
    lines = [f"{model} is not in the cache; the program that comes nearest differs:"]
    for row in found["differs"]:
        lines.append(f"  {row['part']}: {PARTS.get(row['part'], 'it was compiled with another ' + row['part'])}")
        lines += [f"    here   {_short(row['here'])}", f"    there  {_short(row['there'])}"]
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= 96 else f"{text[:93]}…"


def _clear_text(found: Mapping[str, Any]) -> str:
    count = found["removed"]
    return f"removed {count} {'entry' if count == 1 else 'entries'} from {found['folder']}"


COMMAND = Command(
    "cache",
    "Say what is kept of earlier compilations, why a model is found there or not, or remove it all.",
    (
        Argument("action", "what to do", {"choices": ["status", "why", "clear"], "metavar": "status|why|clear"}),
        Argument("model", f"of why: {MODEL.doc}", {"metavar": "MODEL", "nargs": "?"}),
        *_OF_A_MODEL,
        JSON,
    ),
    run,
)
