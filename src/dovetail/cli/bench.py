"""`dovetail bench`: dovetail beside its peers, interleaved in one run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli import place
from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.machine import machine
from dovetail.cli.options import JSON, SIZE, sizes_of
from dovetail.cli.progress import tell
from dovetail.errors import CheckError, DovetailError, LoadError, OptionError
from dovetail.progress import phase
from dovetail.settings import settings_of
from dovetail.targets.cpu.cores import available_threads
from dovetail.targets.cpu.measure.calibration import learn
from dovetail.targets.cpu.measure.peak import Limits
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail.bench.case import Case
    from dovetail.bench.measure import Effort, Placed
    from dovetail.bench.peers import Peer
    from dovetail.bench.result import Result, Timed

ALL = "all"
_PACKAGES = ("numpy", "llvmlite", "onnx", "onnxruntime", "openvino", "torch", "jax")


def run(args: argparse.Namespace) -> Answer:
    # Workloads are ONNX models, and the package takes its time; only this command needs it.
    from dovetail.bench.measure import HOW, Effort
    from dovetail.bench.peers import chosen

    threads = sorted(set(args.threads or (1, available_threads())))
    if any(count < 1 for count in threads) or not 0 < args.seconds < 1e6:
        raise OptionError("a bench of no threads or no time", hint="--threads 1 --threads 2 --seconds 3")
    if args.out is not None and not Path(args.out).resolve().parent.is_dir():
        raise OptionError(f"--out {args.out}: there is no such folder", hint="make the folder first")
    peers = chosen(args.vs)
    absent = {p.name: p.absent for p in peers if p.absent}
    effort = Effort(args.seconds, not args.times_only)
    results: list[Result] = []
    failure: DovetailError | None = None
    for found in _measured(args, threads, [p for p in peers if not p.absent], effort):
        if isinstance(found, CheckError):
            failure = found
            continue
        results.append(found)
        best = found.floor.best
        learn(settings_of({}, os.environ), Limits(found.threads, best.flops, best.bytes))
        if args.out is not None:
            # After each, so that an hour is not lost with the last one.
            _write(args.out, json.dumps(_as_dict(results, absent, HOW), indent=2))
    if args.json:
        return Answer(json.dumps(_as_dict(results, absent, HOW), indent=2), failure)
    lines = [line for result in results for line in _table(result)]
    missing = (
        [f"not installed: {', '.join(absent)}; python -m pip install 'dovetail-ml[bench]' installs them", ""]
        if absent
        else []
    )
    return Answer("\n".join([*lines, textwrap.fill(HOW, 120), "", *missing, *(r.line for r in results)]), failure)


def _measured(
    args: argparse.Namespace, threads: Sequence[int], peers: Sequence[Peer], effort: Effort
) -> Iterator[Result | CheckError]:
    """What is found of each workload; one that dovetail does not run does not keep the others from theirs."""
    from dovetail.bench.case import case_of
    from dovetail.bench.measure import bench
    from dovetail.bench.workloads import MODULES, WORKLOADS

    sizes = sizes_of(args)
    asked = args.workload or [ALL]
    modules = MODULES if all(map(find_spec, ("torch", "transformers"))) else ()
    names = dict.fromkeys(name for given in asked for name in ((*WORKLOADS, *modules) if given == ALL else (given,)))
    # What is measured is in the data, where data is asked for.
    say = _nothing if args.json else _say
    with phase("bench", still=True) as told:
        for index, name in enumerate(names):
            with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
                case = case_of(name, sizes, Path(folder))
                placed = _placed(args, case)
                for turn, count in enumerate(threads):
                    told.at(index * len(threads) + turn + 1, len(names) * len(threads), case.name)
                    try:
                        result = bench(case, count, peers, effort, Path(folder), say, placed)
                    except CheckError as error:
                        say(f"{case.name}: {error}")
                        yield error
                        continue
                    say(result.line.removeprefix("bench "))
                    yield result


def _placed(args: argparse.Namespace, case: Case) -> Placed | None:
    """The mesh of the command line, and the placement of a workload on it."""
    if args.mesh is None:
        if args.place:
            raise OptionError("--place without --mesh", hint="name the mesh: --mesh dp=2,tp=4")
        return None
    if case.network:
        raise OptionError(f"{case.name} is a torch module, and --mesh is for ONNX models", hint="name other workloads")
    from dovetail.bench.measure import Placed
    from dovetail.runtime.load import load
    from dovetail.targets.xla.target import placement_of

    graph = place.sized(load(case.model, fixed=case.fixed()), case.feeds())
    mesh, rules, preset = place.asked_placement(args, lambda: graph)
    found = placement_of(mesh, rules, preset)
    found.check(graph)
    return Placed(mesh, found.spelled([str(v.attrs["name"]) for v in (*graph.parameters, *graph.inputs)]))


def _say(words: str) -> None:
    tell(f"bench: {words}")


def _nothing(words: str) -> None:
    """Said to nobody."""


def _table(result: Result) -> list[str]:
    count = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
    floor, usual, best = result.floor, result.floor.usual, result.floor.best
    lines = [
        f"{result.workload}, {count}: at least {floor.seconds(usual) * 1e3:.3g} ms by {floor.bound}"
        f" ({usual.flops / 1e9:.0f} GFLOP/s, {usual.bytes / 1e9:.0f} GB/s); at best {floor.seconds(best) * 1e3:.3g} ms"
        f" ({best.flops / 1e9:.0f} GFLOP/s, {best.bytes / 1e9:.0f} GB/s), of which we reach {result.limit_at_best:.2f}",
        f"  {'':22}{'ms':>10}{'±':>6}{'first s':>10}{'warm s':>9}{'memory MB':>11}{'deviation':>11}",
        *map(_row, result.timed),
    ]
    return [*lines, *(f"  {name:22}refused: {why}" for name, why in result.refused.items()), ""]


def _row(timed: Timed) -> str:
    warm = f"{timed.warm:9.2f}" if timed.warm is not None else f"{'':9}"
    return (
        f"  {timed.peer:22}{timed.median * 1e3:10.3f}{timed.spread * 100:4.0f} %{timed.first:10.2f}{warm}"
        f"{timed.peak / 1e6:11.0f}{timed.deviation:11.1e}"
    )


def _as_dict(results: Sequence[Result], absent: Any, how: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": asdict(machine()),
        "versions": {"dovetail": __version__, "python": sys.version.split()[0], **_versions()},
        "how": how,
        "absent": absent,
        "results": [result.as_dict() for result in results],
    }


def _versions() -> dict[str, str]:
    """Of the packages that are installed."""
    found = {d.metadata["Name"].lower(): d.version for d in metadata.distributions() if d.metadata["Name"]}
    return {name: found[name] for name in _PACKAGES if name in found}


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise LoadError(f"{path} cannot be written: {error.strerror}", hint="check the path and the disk") from error


COMMAND = Command(
    "bench",
    "Compare dovetail with its peers, interleaved in one run, and say how near to the machine's limit it is.",
    (
        Argument(
            "workload",
            "a built-in workload, an ONNX file, or a folder with model.onnx, inputs.npz and, where inputs are fixed, "
            f"fixed.npz; {ALL} stands for the built-in ones, and is what is measured without any",
            {"nargs": "*", "metavar": "WORKLOAD"},
        ),
        Argument(
            "--threads",
            "a number of threads; 1 and all without any; may be given several times",
            {"type": int, "action": "append", "metavar": "N"},
        ),
        Argument("--seconds", "time for each peer and workload (3)", {"type": float, "default": 3.0, "metavar": "S"}),
        Argument(
            "--vs",
            "peers with commas between: onnxruntime, onnxruntime-optimised, openvino, dovetail-module (the network "
            "as a torch module), dovetail-onnx (a torch module as the ONNX file that torch exports), torch, "
            "torch.compile, torch.compile-frozen, torch.compile-max, jax; all that are installed without",
            {"metavar": "PEERS"},
        ),
        Argument(
            "--times-only",
            "start each peer once; otherwise twice, which tells cold from warm starts",
            {"action": "store_true"},
        ),
        SIZE,
        *place.MESH,
        Argument("--out", "write everything that was found to this file as JSON", {"metavar": "FILE"}),
        JSON,
    ),
    run,
)
