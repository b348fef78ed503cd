"""`--hosts`: one command on several hosts, each started with its rank; all run one program on one mesh."""

from __future__ import annotations

import argparse
import hashlib
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dovetail.cli import place
from dovetail.cli.command import Answer, Argument
from dovetail.cli.progress import tell
from dovetail.errors import LoadError, OptionError
from dovetail.runtime.hosts.membership import Membership
from dovetail.runtime.hosts.supervisor import Supervisor
from dovetail.runtime.hosts.worker import Reporter
from dovetail.train.trainer import Metrics
from dovetail.version import __version__

ARGUMENTS = (
    Argument(
        "--hosts",
        "with --mesh: run on this many hosts, each with the same command and its own --rank",
        {"metavar": "N", "type": int},
        needs="--mesh",
    ),
    Argument("--rank", "the number of this host, from 0 on", {"metavar": "R", "type": int}, needs="--hosts"),
    Argument("--coordinator", "where rank 0 listens", {"metavar": "HOST:PORT"}, needs="--hosts"),
    Argument(
        "--peer-timeout",
        "seconds of silence after which a host is lost (10)",
        {"metavar": "SECONDS", "type": float, "default": 10.0},
        needs="--hosts",
    ),
    Argument(
        "--join-timeout",
        "seconds that the other hosts have to come (60)",
        {"metavar": "SECONDS", "type": float, "default": 60.0},
        needs="--hosts",
    ),
    Argument(
        "--restarts",
        "how often all workers start again from the last checkpoint after one is lost (0)",
        {"metavar": "N", "type": int, "default": 0},
        needs="--hosts",
    ),
)


def is_asked(args: argparse.Namespace) -> bool:
    """Whether this process is to start and watch a worker."""
    if args.hosts is None and (args.rank is not None or args.coordinator is not None):
        raise OptionError("--rank and --coordinator without --hosts", hint="name the number of hosts: --hosts 2")
    return args.hosts is not None and args.reporter is None


def supervised(args: argparse.Namespace) -> Answer:
    """Start the worker of this host and watch it and its peers until all are done."""
    if args.mesh is None:
        raise OptionError("--hosts without --mesh", hint="name the devices of all hosts: --mesh dp=2,tp=4")
    host, colon, port = (args.coordinator or "").rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise OptionError(f"--coordinator {args.coordinator}", hint="write HOST:PORT of rank 0: 10.0.0.1:7000")
    if args.rank is None:
        raise OptionError("--hosts without --rank", hint="number the hosts from 0: --rank 0")
    if place.AUTO in args.place:
        raise OptionError(
            f"--place {place.AUTO} with --hosts",
            hint=f"choose once: dovetail lock … --place {place.AUTO} --lock FILE, then --place FILE on every host",
        )
    mine = Membership(
        args.rank,
        args.hosts,
        (host, int(port)),
        timeout=args.peer_timeout,
        joining=args.join_timeout,
        restarts=args.restarts,
        facts=_facts(args),
    )
    Supervisor(mine, args.argv, tell).run()
    return Answer("")


def _facts(args: argparse.Namespace) -> dict[str, str]:
    """What all hosts must have in common."""
    return {
        "dovetail": __version__,
        "jax": _version("jax"),
        "jaxlib": _version("jaxlib"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "the model": _digest(args.model),
        "the mesh": args.mesh,
        "the placement": _placement(args.place),
    }


def _placement(given: list[str]) -> str:
    """Presets by their names, files by the rules in them."""
    preset, rules = place.placed(given)
    return "; ".join([*([] if preset is None else [preset]), *(f"{name}: {axes}" for name, axes in rules.items())])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _digest(model: str) -> str:
    """A built-in model by its name, a file by its content."""
    path = Path(model)
    if not path.is_file():
        return model
    state = hashlib.blake2b(digest_size=8)
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                state.update(piece)
    except OSError as error:
        raise LoadError(f"{model} cannot be read: {error.strerror}", hint="check the path") from error
    return f"{path.name} ({state.hexdigest()})"


def is_first(args: argparse.Namespace) -> bool:
    """Whether this process writes files: alone, or as the first of several workers."""
    return args.reporter is None or args.reporter.is_first


def again(args: argparse.Namespace) -> bool:
    """Whether this worker takes the place of one that was lost."""
    return args.reporter is not None and args.reporter.again


def reported(args: argparse.Namespace) -> Callable[[Metrics], object] | None:
    """What tells the supervisor which steps are done."""
    reporter: Reporter | None = args.reporter
    return None if reporter is None else lambda metrics: reporter.at(metrics.step)


__all__ = ["ARGUMENTS", "again", "is_asked", "is_first", "reported", "supervised"]
