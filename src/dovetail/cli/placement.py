"""`dovetail explain --mesh`: the collectives of a model on a mesh of devices, without devices."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument
from dovetail.cli.options import asked_graph, numbers
from dovetail.errors import GateError, OptionError
from dovetail.train.losses import LOSSES
from dovetail.train.optimizers import AdamW
from dovetail.train.step import step_graph
from dovetail.train.trainer import LOSS, with_loss

if TYPE_CHECKING:
    from dovetail.targets.xla.explain.explained import Explained

AUTO = "auto"
MESH = (
    Argument(
        "--mesh",
        "run on a mesh of devices with target xla, as in --mesh dp=2,tp=4; needs JAX",
        {"metavar": "AXIS=SIZE,…"},
    ),
    Argument(
        "--place",
        "with --mesh: a preset (data, tensor, sequence), a file of lines such as `layers.*.wq: - tp`, or one such "
        "line; may be given several times",
        {"metavar": "RULES", "action": "append", "default": []},
    ),
)
"""For commands that run on a mesh."""
ARGUMENTS = (
    Argument(
        "--mesh",
        "explain the model on a mesh of devices instead, as in --mesh dp=2,tp=4: every collective with its reason, "
        "place, price and remedy; needs JAX and no devices",
        {"metavar": "AXIS=SIZE,…"},
    ),
    Argument(
        "--place",
        "with --mesh: a preset (data, tensor, sequence), a file of lines such as `layers.*.wq: - tp`, or one such "
        "line; may be given several times, and the first that fits a name counts; auto tries presets and changes of "
        "their rules, and tells the prices",
        {"metavar": "RULES", "action": "append", "default": []},
    ),
    Argument(
        "--require-collectives",
        "with --mesh: fail unless there are exactly as many, as in --require-collectives all-reduce=2/layer; may be "
        "given several times",
        {"metavar": "KIND=COUNT", "action": "append", "default": []},
    ),
    Argument(
        "--step",
        f"with --mesh: explain a training step of the model with this loss: {', '.join(LOSSES)}",
        {"metavar": "LOSS"},
    ),
)


def is_asked(args: argparse.Namespace) -> bool:
    """Whether a command line asks for collectives."""
    if args.mesh is None and (args.place or args.require_collectives or args.step):
        raise OptionError(
            "--place, --step and --require-collectives without --mesh", hint="name the mesh: --mesh dp=2,tp=4"
        )
    return args.mesh is not None


def run(args: argparse.Namespace) -> Answer:
    from dovetail.runtime.explain_placement import choose_placement, explain_placement  # few explain a mesh

    graph = asked_graph(args, train=args.step is not None)
    if args.step is not None:
        graph = step_graph(with_loss(graph, args.step), AdamW(), loss=LOSS).graph
    if AUTO in args.place:
        if args.place != [AUTO]:
            raise OptionError(f"--place {AUTO} with other rules", hint="it chooses all of them")
        chosen = choose_placement(graph, mesh=numbers("--mesh", args.mesh.split(",")))
        found, said, told = chosen.best.explained, chosen.json(), f"{chosen.text()}\n"
    else:
        mesh, place, preset = asked_placement(args)
        found, said, told = explain_placement(graph, mesh=mesh, place=place, preset=preset), dict[str, Any](), ""
    text = f"{told}{found.text()}"
    if args.json:
        text = json.dumps({"schema": SCHEMA_VERSION, **said, **found.json()}, indent=2)
    failure = _gate(found, args.require_collectives)
    return Answer(text) if failure is None else Answer(text, failure)


def asked_placement(args: argparse.Namespace) -> tuple[dict[str, int], dict[str, str], str | None]:
    """The mesh of a command line, its rules and its preset."""
    preset, place = placed(args.place)
    return numbers("--mesh", args.mesh.split(",")), place, preset


def meshed(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `dovetail.compile` for a command line with a mesh; none where it has none."""
    if args.mesh is None:
        if args.place:
            raise OptionError("--place without --mesh", hint="name the mesh: --mesh dp=2,tp=4")
        return {}
    from dovetail.targets.xla.target import target  # few run on a mesh

    mesh, place, preset = asked_placement(args)
    return {"target": target(mesh=mesh, place=place, preset=preset)}


def placed(given: list[str]) -> tuple[str | None, dict[str, str]]:
    """The preset of `--place` options, and the rules, in order."""
    from dovetail.targets.xla.presets import PRESETS

    preset: str | None = None
    rules: dict[str, str] = {}
    for text in given:
        if text == AUTO:
            raise OptionError(f"--place {AUTO} here", hint=f"dovetail explain --place {AUTO} prints rules for a file")
        if text in PRESETS:
            preset = text
            continue
        lines = [text] if ":" in text and not Path(text).exists() else _lines(text)
        for line in lines:
            pattern, colon, words = line.partition(":")
            if not colon or not pattern.strip():
                raise OptionError(f"--place {line!r}", hint="write NAME: AXES, as in layers.*.wq: - tp")
            rules.setdefault(pattern.strip(), words.strip())
    return preset, rules


def _lines(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--place {path}: {error}", hint="name a preset, a file, or NAME: AXES") from error
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _gate(found: Explained, required: list[str]) -> GateError | None:
    from dovetail.targets.xla.explain.explained import shortfalls

    missing = shortfalls(found, required)
    if not missing:
        return None
    return GateError("; ".join(missing), hint="the report says why each is there, and its hints what would change it")


__all__ = ["ARGUMENTS", "MESH", "asked_placement", "is_asked", "meshed", "placed", "run"]
