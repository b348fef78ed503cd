"""`--hosts`: one command on several hosts, each with its rank, started by hand or by a launcher."""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import socket
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dovetail.cli import place
from dovetail.cli.command import Answer, Argument
from dovetail.cli.progress import tell
from dovetail.errors import LoadError, OptionError
from dovetail.runtime.hosts import Member, Reporter, supervise
from dovetail.train.trainer import Metrics
from dovetail.version import __version__

AUTO = "auto"
WORKER = (sys.executable, "-m", "dovetail.cli.worker")
_RANKS = (("WORLD_SIZE", "RANK"), ("SLURM_NTASKS", "SLURM_PROCID"))
"""Variables of launchers: how many processes there are, and which one this is."""


def _option(name: str, doc: str, **how: object) -> Argument:
    return Argument(name, doc, how, needs="--mesh" if name == "--hosts" else "--hosts")


ARGUMENTS = (
    _option("--hosts", "with --mesh: run on this many hosts, each with the same command and its own --rank; "
            "auto: as the launcher says", metavar="N|auto"),
    _option("--rank", "the number of this host, from 0 on", metavar="R", type=int),
    _option("--coordinator", "where rank 0 listens", metavar="HOST:PORT"),
    _option("--peer-timeout", "seconds of silence after which a process is lost (10)", metavar="SECONDS", type=float,
            default=10.0),
    _option("--join-timeout", "seconds in which all hosts must meet (60)", metavar="SECONDS", type=float, default=60.0),
    _option("--restarts", "how often the worker of this host starts again from the last checkpoint after one is lost "
            "(0)", metavar="N", type=int, default=0),
)  # fmt: skip


def is_asked(args: argparse.Namespace) -> bool:
    """Whether this process is to start and watch a worker."""
    return args.hosts is not None and args.reporter is None


def supervised(args: argparse.Namespace) -> Answer:
    """Start the worker of this host, and start it again where it is lost."""
    if place.AUTO in args.place:
        raise OptionError(
            f"--place {place.AUTO} with --hosts",
            hint=f"choose once: dovetail lock … --place {place.AUTO} --lock FILE, then --place FILE on every host",
        )
    hosts, rank = _position(args)
    mine = Member(
        rank,
        hosts,
        _coordinator(args.coordinator),
        socket.gethostname(),
        timeout=args.peer_timeout,
        joining=args.join_timeout,
        restarts=args.restarts,
    )
    supervise(mine, WORKER, args.argv, tell)
    return Answer("")


def _position(args: argparse.Namespace) -> tuple[int, int]:
    """How many hosts there are, and which one this is."""
    if args.hosts != AUTO:
        if not args.hosts.isdigit():
            raise OptionError(f"--hosts {args.hosts}", hint=f"write a number, or {AUTO} under a launcher")
        if args.rank is None:
            raise OptionError("--hosts without --rank", hint=f"number the hosts from 0: --rank 0, or --hosts {AUTO}")
        return int(args.hosts), args.rank
    for size, rank in _RANKS:
        found = os.environ.get(size, ""), os.environ.get(rank, "") if args.rank is None else str(args.rank)
        if all(text.isdigit() for text in found):
            return int(found[0]), int(found[1])
    listed = ", or ".join(" and ".join(pair) for pair in _RANKS)
    raise OptionError(
        f"--hosts {AUTO} without a launcher", hint=f"torchrun or SLURM set {listed}; else --hosts 2 --rank 0"
    )


def _coordinator(asked: str | None) -> str:
    """Where rank 0 listens: as asked, or at MASTER_ADDR and MASTER_PORT."""
    port = os.environ.get("MASTER_PORT", "")
    if port.isdigit() and "TORCHELASTIC_RUN_ID" in os.environ:
        port = str(int(port) + 1)  # torchrun's own store listens at that one
    address = f"{os.environ.get('MASTER_ADDR', '')}:{port}" if asked is None else asked
    host, _, number = address.rpartition(":")
    if not host or not number.isdigit() or not 0 < int(number) < 1 << 16:
        hint = "write HOST:PORT of rank 0: --coordinator 10.0.0.1:7000, or set MASTER_ADDR and MASTER_PORT"
        raise OptionError("--hosts without --coordinator" if asked is None else f"--coordinator {asked}", hint=hint)
    return address


def meet(args: argparse.Namespace) -> None:
    """In a worker: make sure that all others run the same, and say so to the parent."""
    if args.reporter is not None:
        from dovetail.targets.xla.hosts import compare  # JAX is imported with it

        compare(_facts(args))
        args.reporter.met()


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
    """Return what tells the parent which steps are done."""
    reporter: Reporter | None = args.reporter
    return None if reporter is None else lambda metrics: reporter.at(metrics.step)


__all__ = ["ARGUMENTS", "again", "is_asked", "is_first", "meet", "reported", "supervised"]
