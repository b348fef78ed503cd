"""What the commands that compile have in common: the model, the target, what is switched off, sizes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

from dovetail.cli.arrays import named_arrays
from dovetail.cli.command import Argument
from dovetail.cli.model import BUILDERS, graph_of, is_onnx
from dovetail.errors import OptionError
from dovetail.ir.graph import Graph
from dovetail.models.weights import random_weights
from dovetail.passes.specialize import specialize
from dovetail.runtime.compile import Compilation, compilation, make_request
from dovetail.runtime.quantize import Quantize, QuantizeKind, quantized
from dovetail.settings import ENGINES, PRECISIONS, Settings
from dovetail.targets import NAMES

MODEL = Argument(
    "model",
    "an ONNX file, a graph in a file as text or saved, or a built-in model with sizes: "
    f"{', '.join(BUILDERS)}; llama:layers=2,hidden=64,seq=8",
    {"metavar": "MODEL"},
)
TARGET = Argument(
    "--target",
    f"what to compile for: {', '.join(NAMES)} (cpu)",
    {"metavar": "NAME", "default": "cpu"},
)
WITHOUT = Argument(
    "--without",
    "switch a pass or a rule off; may be given several times",
    {"metavar": "NAME", "action": "append", "default": []},
)
ENGINE = Argument(
    "--engine",
    f"how fusions are chosen: {', '.join(ENGINES)} ({Settings().engine})",
    {"metavar": "NAME", "default": Settings().engine},
    hidden=True,
)
SIZE = Argument(
    "--size",
    "give a symbolic size a number, as in --size s=16; may be given several times",
    {"metavar": "NAME=NUMBER", "action": "append", "default": []},
)
FIXED = Argument(
    "--fixed",
    "an input of an ONNX model that has one value in every run, as @file.npy, @file.npz:key or numbers (a comma after "
    "one number makes a list of it); may be given several times",
    {"metavar": "NAME=VALUE", "action": "append", "default": []},
)
QUANTIZE = Argument(
    "--quantize",
    "store the weights of products in blocks of 8 or 4 bits: int8 or int4; a built-in model draws its weights first",
    {"choices": get_args(QuantizeKind)},
    old="--quantise",
)
PRECISION = Argument(
    "--precision",
    "exact, fast with activations rounded to bytes or bf16, or bf16 where the machine multiplies that (exact)",
    {"choices": PRECISIONS, "default": PRECISIONS[0], "dest": "rounding"},
)
HTML = Argument(
    "--html",
    "write the report as one page for a browser too: the graph with its kernels, gaps, memory and code",
    {"metavar": "FILE"},
    group="output",
)
JSON = Argument(
    "--json", "print data for programs instead of text for people", {"action": "store_true"}, group="output"
)

GATES = (
    Argument(
        "--require",
        "fail unless a rule made at least this many kernels, as in --require swiglu=24; may be given several times",
        {"metavar": "RULE=COUNT", "action": "append", "default": []},
        group="gates",
    ),
    Argument(
        "--require-clean",
        "fail if any fusion was missed for another reason than cost",
        {"action": "store_true"},
        group="gates",
    ),
)
COMPILING = (MODEL, TARGET, WITHOUT, ENGINE, SIZE, FIXED)
_SEED = 0


def ways(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `dovetail.compile` that every command that compiles has."""
    # Some commands have no such option, and training has another one of its name.
    precision = {"precision": args.rounding} if PRECISION.how["dest"] in args else {}
    return {"target": args.target, "without": args.without, "engine": args.engine, **precision}


def compiled(
    args: argparse.Namespace, require: Mapping[str, int] | None = None, *, history: bool = False
) -> Compilation:
    """The model of a command line, compiled. Names are checked here; gates are up to the caller."""
    request = make_request(**ways(args), require=require or {})
    return compilation(asked_graph(args), request, history=history)


def refuse_negative(flag: str, number: float | None) -> None:
    """A tolerance or a bound is zero or more."""
    if number is not None and not number >= 0:
        raise OptionError(f"{flag} {number}", hint="write a number that is not negative, as in 1e-3")


def asked_graph(args: argparse.Namespace, *, train: bool = False) -> Graph:
    """The model of a command line, with the sizes, inputs and weights that it asks for; for `train` see `graph_of`."""
    graph = _sized_graph(args, train=train)
    kind = getattr(args, "quantize", None)
    return graph if kind is None else quantized(with_weights(graph), Quantize(kind))[0]


def with_weights(graph: Graph) -> Graph:
    """A graph with weights: its own, or drawn ones."""
    return graph if graph.params else replace(graph, params=random_weights(graph, _SEED))


def _sized_graph(args: argparse.Namespace, *, train: bool) -> Graph:
    sizes = sizes_of(args)
    fixed = named_arrays("--fixed", args.fixed)
    if is_onnx(args.model):
        # An ONNX model may branch on sizes, so that it has to know them while it is read.
        return graph_of(args.model, {**sizes, **fixed}, train=train)
    graph = graph_of(args.model, fixed)
    return specialize(graph, sizes, partial=True) if sizes else graph


def sizes_of(args: argparse.Namespace) -> dict[str, int]:
    """The numbers of symbolic sizes by their names."""
    sizes = numbers("--size", args.size)
    for name, number in sizes.items():
        if number == 0:
            raise OptionError(f"--size {name}=0", hint=f"write an integer from 1 on, as in --size {name}=1")
    return sizes


def numbers(flag: str, given: Iterable[str], *, alone: int | None = None) -> dict[str, int]:
    """Options of the form name=number by name; `alone` is what a name without a number counts as."""
    found: dict[str, int] = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not equals and alone is not None:
            number = str(alone)
        if not name or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise OptionError(f"{flag} {text}", hint=f"write it as {flag} name=4")
        if found.setdefault(name, int(number)) != int(number):
            raise OptionError(f"{flag} {text} after {name}={found[name]}", hint=f"give {name} one number")
    return found
