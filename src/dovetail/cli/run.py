"""`dovetail run`: the outputs of a model for arrays from files, maybe beside those of onnxruntime."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dovetail.adapters.onnxruntime_peer import Peer
from dovetail.cli import hosts, place
from dovetail.cli.arrays import Given, named_arrays, save_arrays
from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.model import is_onnx
from dovetail.cli.options import COMPILING, JSON, PRECISION, QUANTIZE, asked_graph, refuse_negative, ways
from dovetail.dataclass import dataclass
from dovetail.errors import BindError, CheckError, OptionError
from dovetail.ir.dim import symbols
from dovetail.ir.dtype import of_numpy
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found, solve_symbols
from dovetail.ir.value import Value
from dovetail.models.weights import random_weights
from dovetail.runtime.arbiter import Judgement, judged
from dovetail.runtime.compile import compile
from dovetail.runtime.deviation import difference, tolerance_of
from dovetail.runtime.random_inputs import random_array
from dovetail.targets.runtime.arrays.feeds import named_leaf

OURS = "dovetail"
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Difference:
    """One output beside that of another runtime."""

    output: str
    largest: float
    """The largest difference, relative to the largest value of the other; infinite where shapes or types differ."""
    tolerance: float
    judgement: Judgement | None = None
    """What float64 says, where the two differ and NumPy can compute the model."""
    asked: bool = False
    """Whether the tolerance is the user's own, which rounding does not widen."""

    @property
    def differs(self) -> bool:
        return not self.largest <= self.tolerance

    def is_right(self, name: str) -> bool:
        """Whether one side is as near to float64 as it may be; neither is without a judge."""
        tolerance = self.tolerance if self.asked else None
        return self.judgement is not None and self.judgement.is_right(name, tolerance, self.tolerance)

    @property
    def holds(self) -> bool:
        return not self.differs or self.is_right(OURS)


def run(args: argparse.Namespace) -> Answer:
    if args.check is not None and not is_onnx(args.model):
        raise OptionError(f"{args.model} is no ONNX model", hint=f"{args.check} can only be asked about those")
    refuse_negative("--tolerance", args.tolerance)
    if args.random is not None and args.random < 0:
        raise OptionError(f"--random {args.random}", hint="a seed is a whole number from 0 on")
    if hosts.is_asked(args):
        return hosts.supervised(args)
    hosts.meet(args)
    given = named_arrays("--input", args.input)
    graph = asked_graph(args)
    feeds = feeds_of(graph, given, args.random)
    drawn = args.random is not None and not graph.params
    params = random_weights(graph, args.random, _sizes(graph, feeds)) if drawn else None
    options = ways(args) | place.meshed(args, lambda: place.sized(graph, feeds))
    program = compile(graph, **options, params=params)
    started = time.perf_counter()
    outputs = program.run(program.undonated(feeds))
    seconds = time.perf_counter() - started
    saved = save_arrays(args.output, outputs) if args.output is not None and hosts.is_first(args) else ""
    differences = compared(args, graph, feeds, params or {}, outputs) if args.check is not None else []
    failure = failure_of(differences, args.check)
    if args.json:
        return Answer(json.dumps(as_dict(outputs, differences, seconds), indent=2), failure)
    return Answer(as_text(outputs, differences, seconds, args.check, saved), failure)


def feeds_of(graph: Graph, given: Mapping[str, Given], seed: int | None) -> dict[str, Array]:
    """An array for each input: those that were given, and others made up only if there is a seed."""
    inputs = {str(v.attrs["name"]): v for v in graph.inputs}
    feeds = given_feeds(graph, given)
    missing = {name: v for name, v in inputs.items() if name not in feeds}
    if missing and seed is None:
        listed = ", ".join(f"{n} ({v.type})" for n, v in missing.items())
        hint = "give each with --input name=@file.npy, or let --random 0 make them up"
        raise BindError(f"inputs are missing: {listed}", hint=hint)
    sizes = _sizes(graph, feeds)
    for name, value in missing.items():
        feeds[name] = _input_of(name, value, sizes, np.random.default_rng((seed or 0, len(feeds))))
    return {name: feeds[name] for name in inputs}


def _sizes(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, int]:
    """The numbers of symbols that arrays for inputs have."""
    inputs = {str(v.attrs["name"]): v for v in graph.inputs}
    return solve_symbols([Found(named_leaf(inputs[n]), inputs[n].tensor, a.shape) for n, a in feeds.items()])


def given_feeds(graph: Graph, given: Mapping[str, Given]) -> dict[str, Array]:
    """The inputs that were given, in their dtypes."""
    inputs = {str(v.attrs["name"]): v for v in graph.inputs}
    for name in given:
        if name not in inputs:
            listed = ", ".join(f"{n} ({v.type})" for n, v in inputs.items()) or "none"
            raise BindError(f"there is no input {name!r}", hint=f"the inputs are {listed}")
    return {name: _in_dtype(inputs[name], array) for name, array in given.items()}


def _in_dtype(value: Value, given: Given) -> Array:
    """Numbers of the command line in the dtype of the input; arrays from files as they are."""
    if isinstance(given, np.ndarray):
        return given
    try:
        return np.asarray(given, value.dtype.numpy)
    except (OverflowError, TypeError, ValueError):
        raise BindError(f"{named_leaf(value)} is given {str(given)[:60]}", hint=f"its type is {value.type}") from None


def _input_of(name: str, value: Value, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    open_ = sorted({s for size in value.shape for s in symbols(size)} - sizes.keys())
    if open_:
        wanted = " ".join(f"--size {s}=1" for s in open_)
        raise BindError(f"the input {name} ({value.type}) has sizes that are not known", hint=f"give them: {wanted}")
    return random_array(value, sizes, rng)


def compared(
    args: argparse.Namespace,
    graph: Graph,
    feeds: Mapping[str, Array],
    params: Mapping[str, Array],
    outputs: Mapping[str, Array],
) -> list[Difference]:
    """Each output beside the peer's; where they differ, both beside float64."""
    peer = Peer(args.model)
    fixed = {n: np.asarray(a, peer.dtypes.get(n)) for n, a in named_arrays("--fixed", args.fixed).items()}
    theirs = peer.run({**fixed, **feeds})
    found = [
        Difference(
            name,
            difference(ours, theirs[name]),
            tolerance_of(of_numpy(ours.dtype)) if args.tolerance is None else args.tolerance,
            asked=args.tolerance is not None,
        )
        for name, ours in outputs.items()
        if name in theirs
    ]
    apart = [d.output for d in found if d.differs]
    if not apart:
        return found
    said = judged(graph, feeds, params, {OURS: outputs, args.check: theirs}, apart)
    return [replace(d, judgement=said.get(d.output)) for d in found]


def failure_of(differences: list[Difference], check: str) -> CheckError | None:
    """The outputs that are off, by whom and how far."""
    wrong = [d for d in differences if not d.holds]
    if not wrong:
        return None
    listed: list[str] = []
    for d in wrong:
        told = f"{d.output} by {d.largest:.3g} (tolerance {d.tolerance:g})"
        listed.append(told if d.judgement is None else f"{told}; {d.judgement.words}")
    if all(d.judgement is None for d in wrong):
        hint = "NumPy cannot compute the model to judge them; --tolerance says how far they may be apart"
    else:
        hint = "dovetail verify checks each rule on the model, dovetail bisect finds the one that moves an output"
    return CheckError("\n".join([f"outputs differ from {check}:", *(f"  {line}" for line in listed)]), hint=hint)


def _verdict(d: Difference, check: str) -> list[str]:
    """Whether an output is that of the other runtime, and who is off where it is not."""
    apart = f"{d.largest:.3g} apart (tolerance {d.tolerance:g})"
    if not d.differs:
        return [f"{d.output}: as {check}: {apart}"]
    if d.judgement is None:
        return [f"{d.output}: NOT as {check}: {apart}"]
    off = [name for name in (OURS, check) if not d.is_right(name)]
    who = f"{' and '.join(off)} {'are' if len(off) > 1 else 'is'} off" if off else "both are right within rounding"
    return [f"{d.output}: NOT as {check}: {apart}; {who}", f"  {d.judgement.words}"]


def _spelled(array: Array) -> str:
    dtype = of_numpy(array.dtype)
    return f"{dtype.name if dtype is not None else array.dtype}[{', '.join(map(str, array.shape))}]"


def as_text(
    outputs: Mapping[str, Array], differences: list[Difference], seconds: float, check: str | None, saved: str
) -> str:
    """The outputs for people: their types, what they range over, and their first numbers."""
    lines: list[str] = []
    for name, array in outputs.items():
        lines.append(f"{name}: {_spelled(array)}{_range(array)}")
        first = ", ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in array.reshape(-1)[:_SHOWN].tolist())
        lines.append(f"  {first}{', …' if array.size > _SHOWN else ''}" if array.size else "  empty")
    lines.append(f"run in {seconds * 1e3:.1f} ms")
    for d in differences:
        lines += _verdict(d, check or "")
    return "\n".join([*lines, *([f"written to {saved}"] if saved else [])])


def _range(array: Array) -> str:
    if not array.size or array.dtype.kind not in "fiu":
        return ""
    return f" from {array.min():.6g} to {array.max():.6g}"


def as_dict(outputs: Mapping[str, Array], differences: list[Difference], seconds: float) -> dict[str, Any]:
    """The outputs as plain data; the arrays themselves go to files."""
    return {
        "schema_version": SCHEMA_VERSION,
        "outputs": [
            {
                "name": name,
                "type": _spelled(array),
                "shape": list(array.shape),
                "first": [x if np.isfinite(x) else str(x) for x in array.reshape(-1)[:_SHOWN].tolist()],
            }
            for name, array in outputs.items()
        ],
        "seconds": seconds,
        "check": [_difference_dict(d) for d in differences],
    }


def _difference_dict(d: Difference) -> dict[str, Any]:
    """A difference as plain data; `judged` is there where float64 was asked."""
    found: dict[str, Any] = {
        "output": d.output,
        "largest": min(d.largest, 1e308),
        "tolerance": d.tolerance,
        "holds": d.holds,
    }
    if d.judgement is not None:
        judge = d.judgement
        found["judged"] = {
            "distances": {name: min(distance, 1e308) for name, distance in judge.distances.items()},
            "right": [name for name in judge.distances if d.is_right(name)],
            "amplification": min(judge.amplification.factor, 1e308),
            "explained": min(judge.amplification.explained, 1e308),
        }
    return found


COMMAND = Command(
    "run",
    "Run a model on arrays from files, print its outputs, and maybe compare them with those of onnxruntime.",
    (
        *COMPILING,
        PRECISION,
        QUANTIZE,
        Argument(
            "--input",
            "an input, as @file.npy, @file.npz:key or numbers; may be given several times",
            {"metavar": "NAME=VALUE", "action": "append", "default": []},
        ),
        Argument(
            "--random",
            "make up what is not given, inputs and parameters, from this seed: floats from a normal distribution, "
            "integers 0 or 1",
            {"metavar": "SEED", "type": int},
        ),
        Argument("--output", "write the outputs to a .npz file, or to a folder", {"metavar": "PATH"}),
        Argument(
            "--check",
            "compare with another runtime; relative to the largest value of an output, floats may differ by 1e-4, "
            "f16 1e-2, bf16 5e-2, and integers not at all; where they do, float64 says which of the two is off",
            {"choices": ("onnxruntime",)},
        ),
        Argument(
            "--tolerance",
            "how far outputs may differ instead, from the other runtime or from float64",
            {"metavar": "NUMBER", "type": float},
            needs="--check",
        ),
        *place.MESH,
        *hosts.ARGUMENTS,
        JSON,
    ),
    run,
)
