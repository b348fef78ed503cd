"""`dovetail place`: the collectives of a model on a mesh of devices, without devices."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.options import FIXED, GATES, HTML, JSON, MODEL, QUANTIZE, SIZE, asked_graph, numbers
from dovetail.cli.progress import tell
from dovetail.errors import GateError, OptionError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found, solve_symbols
from dovetail.passes.specialize import specialize
from dovetail.report.lock import is_lock, read_lock
from dovetail.runtime.compile import check_gates, compilation, make_request
from dovetail.targets.runtime.arrays.feeds import named_leaf
from dovetail.targets.xla.presets import AUTO, PRESETS
from dovetail.train.losses import LOSSES
from dovetail.train.optimizers import AdamW, Optimizer
from dovetail.train.step import step_graph
from dovetail.train.trainer import LOSS, with_loss

if TYPE_CHECKING:
    from dovetail.targets.xla.explain.auto import Chosen
    from dovetail.targets.xla.explain.explained import Explained

MESH = (
    Argument(
        "--mesh",
        "run on a mesh of devices with target xla, as in --mesh dp=2,tp=4; needs JAX",
        {"metavar": "AXIS=SIZE,…"},
    ),
    Argument(
        "--place",
        "with --mesh: a preset (data, tensor, sequence), a file of lines such as `layers.*.wq: - tp`, a lock, or one "
        "such line; may be given several times; auto chooses the cheapest",
        {"metavar": "RULES", "action": "append", "default": []},
        needs="--mesh",
    ),
)
"""For commands that run on a mesh."""


def run(args: argparse.Namespace) -> Answer:
    from dovetail.runtime.explain_placement import explain_placement  # few explain a mesh

    graph = asked_graph(args, train=args.step is not None)
    if args.step is not None:
        graph = step_of(graph, args.step, AdamW())
    if AUTO in args.place:
        chosen = _chosen(args, graph)
        found, said, told = chosen.best.explained, chosen.json(), f"{chosen.text()}\n"
    else:
        mesh, place, preset = asked_placement(args, lambda: graph)
        found, said, told = explain_placement(graph, mesh=mesh, place=place, preset=preset), dict[str, Any](), ""
    text = f"{told}{found.text()}"
    if args.json:
        text = json.dumps({"schema_version": SCHEMA_VERSION, **said, **found.json()}, indent=2)
    if args.html is not None:
        from dovetail.runtime.page import write_report

        tell(f"the page is {write_report(graph, args.html, target='xla', placement=found)}")
    failure = _gate(found, args.require_collectives) or _fusion_gate(graph, args)
    return Answer(text) if failure is None else Answer(text, failure)


def step_of(graph: Graph, loss: str | None, optimizer: Optimizer) -> Graph:
    """A training step of a model."""
    return step_graph(with_loss(graph, loss), optimizer, loss=LOSS).graph


def sized(graph: Graph, feeds: Mapping[str, Array]) -> Graph:
    """A graph with the sizes that arrays for its inputs have; inputs without symbols may have none."""
    names = {v: str(v.attrs["name"]) for v in graph.inputs if not all(isinstance(size, int) for size in v.shape)}
    found = [Found(named_leaf(v), v.tensor, feeds[name].shape) for v, name in names.items() if name in feeds]
    return specialize(graph, solve_symbols(found), partial=True)


def _chosen(args: argparse.Namespace, graph: Graph) -> Chosen:
    from dovetail.runtime.explain_placement import choose_placement

    if args.place != [AUTO]:
        raise OptionError(f"--place {AUTO} with other rules", hint="it chooses all of them")
    return choose_placement(graph, mesh=numbers("--mesh", args.mesh.split(",")))


def asked_placement(
    args: argparse.Namespace, graph: Callable[[], Graph]
) -> tuple[dict[str, int], dict[str, str], str | None]:
    """The mesh of a command line, its rules and its preset; `graph` is what a placement is chosen for."""
    mesh = numbers("--mesh", args.mesh.split(","))
    if AUTO in args.place:
        chosen = _chosen(args, graph())
        tell(f"place: {chosen.best}")
        return mesh, chosen.rules, None
    preset, place = placed(args.place)
    return mesh, place, preset


def meshed(args: argparse.Namespace, graph: Callable[[], Graph]) -> dict[str, Any]:
    """The options of `dovetail.compile` for a command line with a mesh; none where it has none."""
    if args.mesh is None:
        if args.place:
            raise OptionError("--place without --mesh", hint="name the mesh: --mesh dp=2,tp=4")
        return {}
    if args.target not in ("cpu", "xla"):
        raise OptionError(f"--target {args.target} with --mesh", hint="a mesh runs on target xla: leave --target out")
    from dovetail.targets.xla.target import target  # few run on a mesh

    mesh, place, preset = asked_placement(args, graph)
    return {"target": target(mesh=mesh, place=place, preset=preset)}


def placed(given: list[str]) -> tuple[str | None, dict[str, str]]:
    """The preset of `--place` options, and the rules, in order."""
    preset: str | None = None
    rules: dict[str, str] = {}
    for text in given:
        if text in PRESETS:
            preset = text
            continue
        lines = [text] if ":" in text and not Path(text).exists() else _lines(text)
        for line in lines:
            pattern, colon, words = line.rpartition(":")
            if not colon or not pattern.strip():
                raise OptionError(f"--place {line!r}", hint="write NAME: AXES, as in layers.*.wq: - tp")
            rules.setdefault(pattern.strip(), words.strip())
    return preset, rules


def _lines(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--place {path}: {error}", hint="name a preset, a file, or NAME: AXES") from error
    if is_lock(text):
        return [f"{pattern}: {axes}" for pattern, axes in read_lock(text, path).place.items()]
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _gate(found: Explained, required: list[str]) -> GateError | None:
    from dovetail.targets.xla.explain.explained import shortfalls

    missing = shortfalls(found, required)
    if not missing:
        return None
    return GateError("; ".join(missing), hint="the report says why each is there, and its hints what would change it")


def _fusion_gate(graph: Graph, args: argparse.Namespace) -> GateError | None:
    """The gates of `explain`, for the program that the mesh runs."""
    require = numbers("--require", args.require, alone=1)
    if not require and not args.require_clean:
        return None
    made = compilation(graph, make_request(target="xla", require=require))
    try:
        check_gates(made.report(), require, args.require_clean)
    except GateError as failure:
        return failure
    return None


COMMAND = Command(
    "place",
    "Say which collectives a placement on a mesh of devices causes, why, and what they cost; needs JAX, no devices.",
    (
        MODEL,
        Argument("--mesh", "the mesh, as in --mesh dp=2,tp=4", {"metavar": "AXIS=SIZE,…", "required": True}),
        Argument(
            "--place",
            "a preset (data, tensor, sequence), a file of lines such as `layers.*.wq: - tp`, a lock, or one such line; "
            "may be given several times, and the first that fits a name counts; auto tries presets and changes of "
            "their rules, and tells the prices",
            {"metavar": "RULES", "action": "append", "default": []},
        ),
        Argument(
            "--require-collectives",
            "fail unless there are exactly as many, as in --require-collectives all-reduce=2/layer; may be given "
            "several times",
            {"metavar": "KIND=COUNT", "action": "append", "default": []},
        ),
        Argument(
            "--step",
            f"explain a training step of the model with this loss: {', '.join(LOSSES)}",
            {"metavar": "LOSS"},
        ),
        SIZE,
        FIXED,
        QUANTIZE,
        HTML,
        JSON,
        *GATES,
    ),
    run,
)

__all__ = ["AUTO", "COMMAND", "MESH", "asked_placement", "meshed", "placed", "run", "sized", "step_of"]
