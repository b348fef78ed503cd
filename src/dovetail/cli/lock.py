"""`dovetail lock` and `dovetail check`: the fusions that a model must keep, in a file that people review."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from dovetail.cli import place as placing
from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.model import is_built_in, is_missing
from dovetail.cli.options import COMPILING, JSON, asked_graph, compiled
from dovetail.errors import GateError, LoadError, OptionError
from dovetail.report.atomic_write import write_atomically
from dovetail.report.lock import MOST_BYTES, Lock, lock_of, read_lock
from dovetail.report.outline import outline_of


def lock(args: argparse.Namespace) -> Answer:
    made = _placed(args, lock_of(outline_of(compiled(args).report())))
    place = write_atomically(_place(args), str(made), "lock")
    return Answer(_told(made, place, (), ()) if args.json else f"{made}written to {place}")


def check(args: argparse.Namespace) -> Answer:
    if is_missing(args.model):
        asked_graph(args)  # refuses it, before its lock is missed
    place = _place(args)
    wanted = _read(place)
    found = outline_of(compiled(args).report())
    now = _placed(args, lock_of(found))
    broken, gained = (*wanted.broken(found), *wanted.moved(now)), (*wanted.gained(found), *wanted.saved(now))
    failure = None
    if broken:
        hint = f"dovetail explain {args.model} says what refused; dovetail lock writes the lock anew if that is meant"
        failure = GateError(f"what {place} locks does not hold: {'; '.join(broken)}", hint=hint)
    if args.json:
        return Answer(_told(now, place, broken, gained), failure)
    lines = [f"{'LOST' if broken else 'kept'}    {place}: {found.kernels} kernels, {len(wanted.fused)} rules locked"]
    lines += [f"LOST    {line}" for line in broken]
    lines += [f"GAINED  {line}; lock it again to keep it" for line in gained]
    return Answer("\n".join(lines), failure)


def _placed(args: argparse.Namespace, made: Lock) -> Lock:
    """The lock with the collectives of the model on a mesh, where one is named."""
    if args.mesh is None:
        return made
    from dovetail.runtime.explain_placement import explain_placement  # few lock a mesh

    graph = asked_graph(args)
    mesh, rules, preset = placing.asked_placement(args, lambda: graph)
    found = explain_placement(graph, mesh=mesh, place=rules, preset=preset)
    axes = ",".join(f"{axis}={size}" for axis, size in mesh.items())
    return replace(made, collectives=found.totals, mesh=axes, place=found.rules)


def _place(args: argparse.Namespace) -> Path:
    if args.lock is not None:
        return Path(args.lock)
    if is_built_in(args.model):
        raise OptionError(f"where to keep the lock of {args.model} is not clear", hint="name it: --lock model.lock")
    return Path(args.model).with_suffix(".lock")


def _read(place: Path) -> Lock:
    try:
        if place.stat().st_size > MOST_BYTES:
            raise LoadError("a lock of more than a megabyte", hint="check the path", where=str(place))
        text = place.read_text(encoding="utf-8")
    except LoadError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise LoadError(
            f"the lock cannot be read: {why}", hint="write one with dovetail lock", where=str(place)
        ) from error
    return read_lock(text, str(place))


def _told(found: Lock, place: Path, broken: tuple[str, ...], gained: tuple[str, ...]) -> str:
    told = {"schema_version": SCHEMA_VERSION, "file": str(place), **asdict(found), "broken": broken, "gained": gained}
    return json.dumps(told, indent=2)


_LOCK = Argument("--lock", "the file (next to the model, as MODEL.lock)", {"metavar": "FILE"})
MESH = (
    replace(placing.MESH[0], doc="lock the collectives on a mesh too, as in --mesh dp=2,tp=4; needs JAX"),
    placing.MESH[1],
)
LOCK = Command(
    "lock", "Write down which fusions a model has now, to be reviewed and kept.", (*COMPILING, *MESH, _LOCK, JSON), lock
)
CHECK = Command(
    "check",
    "Fail if a model has lost a fusion that its lock names, or has more kernels.",
    (*COMPILING, *MESH, _LOCK, JSON),
    check,
)
