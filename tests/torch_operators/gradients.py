"""Gradients of torch's operators: its own samples in float64, read by the front end, against torch's autograd.

`make torch-gradients` judges all and writes docs/gradient-samples.md; ARGS="softmax" picks operators.
"""

# torch is optional, and its internals have no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

import dovetail
from dovetail.errors import DovetailError, GradientError
from dovetail.frontends.torch.importing.importer import Import
from dovetail.frontends.torch.rules import REGISTRY
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.train.losses import total
from tests.torch_operators.comparing import first_line
from tests.torch_operators.page import as_gradient_page
from tests.torch_operators.running import add_rows, chosen, in_groups, latest, read_rows
from tests.torch_operators.samples import (
    Judged,
    Sample,
    Traced,
    full_name,
    grouped,
    operators,
    samples_of,
    traced,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gradient-samples.md"
TOLERANCE = 1e-6
"""Relative to the largest element of a gradient, and absolute below 1."""
STEP, NEAR = 1e-6, 1e-4
"""The step of a difference quotient, and how far from it a slope may be, relative to the largest."""
JUDGED_AGAIN = 6
"""How many of the elements that differ from torch's are judged by difference quotients."""


def differentiable() -> list[Any]:
    """The operators that torch differentiates in float64."""
    return [op for op in operators() if op.supports_autograd and torch.float64 in op.supported_dtypes("cpu")]


def gradient_verdicts(ops_: Sequence[Any], most: int) -> Iterator[Judged]:
    """Verdicts on the gradients of the first samples of some operators."""
    samples: list[Sample] = []
    for op in ops_:
        found = samples_of(op, torch.float64, most, gradients=True)
        samples += [f for f in found if isinstance(f, Sample) and not f.random]
        yield from (f for f in found if isinstance(f, Judged))
        yield from (f.judged("random") for f in found if isinstance(f, Sample) and f.random)
    for program in traced(grouped(samples)):
        if isinstance(program, Judged):
            yield program
            continue
        at = 0
        for index, sample in enumerate(program.samples):
            count = sum(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(sample.call))
            yield _verdict(program, index, sample, range(at, at + count))
            at += count


def _verdict(traced: Traced, index: int, sample: Sample, places: range) -> Judged:
    try:
        wanted = _by_torch(sample)
    except Exception as error:
        return sample.judged("skipped", f"torch: {first_line(error)}")
    if wanted is None:
        return sample.judged("skipped", "nothing to differentiate")
    try:
        found = _by_dovetail(traced, index, wanted.counted, places)
    except GradientError as error:
        return sample.judged("refused", f"no gradient: {first_line(error)}")
    except DovetailError as error:
        return sample.judged("refused", first_line(error))
    except Exception as error:
        return sample.judged("error", f"{type(error).__name__}: {first_line(error)}")
    told = ""
    for place, (mine, theirs) in enumerate(zip(found, wanted.gradients, strict=True)):
        if theirs is None and mine is None:
            continue
        mine, theirs = (np.zeros(()) if one is None else one for one in (mine, theirs))
        if _close(mine, theirs):
            continue
        told = f"operand {place}: {_apart(mine, theirs)}"
        if not _by_differences(sample, wanted.counted, place, mine, theirs):
            return sample.judged("wrong", told)
    return sample.judged("right", f"as difference quotients; torch otherwise, {told}" if told else "")


def _by_differences(sample: Sample, counted: frozenset[int], operand: int, mine: Any, theirs: Any) -> bool:
    """Whether difference quotients of torch's own results agree with the elements that torch's gradients contradict."""
    leaves, spec = pytree.tree_flatten(sample.call)
    at = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)][operand]
    shape = tuple(leaves[at].shape)
    mine, theirs = (np.broadcast_to(one, shape) for one in (mine, theirs))
    apart = np.abs(np.nan_to_num(mine - theirs, nan=np.inf)).reshape(-1)
    scale = max(1.0, float(np.abs(mine).max(initial=0.0)))

    def loss(place: int, step: float) -> float:
        moved = leaves[at].detach().clone(memory_format=torch.contiguous_format)
        moved.view(-1)[place] += step
        args, kwargs = pytree.tree_unflatten([*leaves[:at], moved, *leaves[at + 1 :]], spec)
        with torch.no_grad():
            args, kwargs = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (args, kwargs))
            results = [v for v in pytree.tree_leaves(sample.function(*args, **kwargs)) if _is_float(v)]
        return sum(float((results[n].numpy() * _weights(results[n].shape, n)).sum()) for n in counted)

    for place in (int(i) for i in np.argsort(-apart)[:JUDGED_AGAIN]):
        slope = (loss(place, STEP) - loss(place, -STEP)) / (2 * STEP)
        if not abs(mine.reshape(-1)[place] - slope) <= NEAR * scale:
            return False
    return True


def _close(mine: Any, theirs: Any) -> bool:
    scale = max(1.0, float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)))
    return bool(np.allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True))


def _apart(mine: Any, theirs: Any) -> str:
    mine, theirs = np.broadcast_arrays(mine, theirs)
    at = np.flatnonzero(~np.isclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True).reshape(-1))
    first = int(at[0]) if len(at) else 0
    return f"{len(at)} of {mine.size} elements, {mine.reshape(-1)[first]:.6g} for {theirs.reshape(-1)[first]:.6g}"


def _weights(shape: Sequence[int], number: int) -> Any:
    """How much each element of a result counts: other numbers than 1, so that a factor that is lost is seen."""
    return np.random.default_rng((7, number)).uniform(0.5, 1.5, tuple(shape))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64


def _wanted(value: Any) -> bool:
    """Whether torch's own tests differentiate by a tensor."""
    return _is_float(value) and value.requires_grad


class Wanted(NamedTuple):
    """The gradients by torch, and the float results that they are of: torch does not differentiate all."""

    gradients: list[Any]
    """For each tensor of the call its gradient, or None for one that has none."""
    counted: frozenset[int]


def _by_torch(sample: Sample) -> Wanted | None:
    leaves, spec = pytree.tree_flatten(sample.call)
    given = [v.detach().clone().requires_grad_(_wanted(v)) if isinstance(v, torch.Tensor) else v for v in leaves]
    args, kwargs = pytree.tree_unflatten(given, spec)
    # Operators that write into their first operand need one that is not a leaf.
    args = pytree.tree_map(lambda v: v * 1 if _wanted(v) else v, args)
    results = [v for v in pytree.tree_leaves(sample.function(*args, **kwargs)) if _is_float(v)]
    counted = {number: y for number, y in enumerate(results) if y.requires_grad}
    terms = [(y * torch.from_numpy(_weights(y.shape, number))).sum() for number, y in counted.items()]
    inputs = [v for v in given if isinstance(v, torch.Tensor)]
    wanted = [v for v in inputs if v.requires_grad]
    if not terms or not wanted:
        return None
    found = iter(torch.autograd.grad(torch.stack(terms).sum(), wanted, allow_unused=True))
    listed = [next(found) if v.requires_grad else None for v in inputs]
    return Wanted([None if g is None else g.detach().numpy(force=True) for g in listed], frozenset(counted))


def _by_dovetail(traced: Traced, index: int, counted: frozenset[int], places: range) -> list[Any]:
    graph = Import(traced.part([index]), REGISTRY.by_name).graph()
    floats = [v for v in graph.outputs.values() if v.dtype.name == "f64"]
    if any(not v.tensor.is_static for v in floats):
        raise GradientError("data decides the sizes of a result")
    loss = leaf.scalar(0.0, dovetail.dtypes.f64)
    for number, y in enumerate(floats):
        if number not in counted:
            continue
        shape = [int(str(size)) for size in y.shape]
        loss = loss + total(y * leaf.constant(_weights(shape, number)))
    tensors = [v for v in pytree.tree_leaves(traced.samples[index].call) if isinstance(v, torch.Tensor)]
    names = [name for i, name in enumerate(traced.arrays) if i in places]
    inputs = {str(v.attrs["name"]) for v in graph.inputs}
    wrt = [name for name, tensor in zip(names, tensors, strict=True) if name in inputs and _wanted(tensor)]
    if not wrt:
        return [None] * len(names)
    made = dovetail.graphs.value_and_grad(Graph.of({"loss": loss}, inputs=graph.inputs), wrt, unreached="zeros")
    with np.errstate(all="ignore"):
        found = dovetail.evaluate(made, {n: traced.arrays[n] for n in inputs})
    return [found.get(f"d.{name}") for name in names]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="regular expressions; an operator runs if one is found in its name")
    parser.add_argument("--samples", type=int, default=4, help="how many samples of an operator")
    parser.add_argument("--every", type=int, default=1, help="every n-th operator alone")
    parser.add_argument("--together", type=int, default=10, help="how many operators torch traces as one program")
    parser.add_argument("--seconds", type=int, default=600, help="the most that one group may take")
    parser.add_argument("--rows", type=Path, help="a file of verdicts: operators that it has are not judged again")
    options = parser.parse_args(argv)
    everything = differentiable()
    earlier = read_rows(options.rows)
    known = {row.op for row in earlier}
    picked = [op for op in chosen(everything, options.patterns)[:: options.every] if full_name(op) not in known]
    found: list[Judged] = []
    for rows in in_groups(
        picked, lambda group: gradient_verdicts(group, options.samples), options.together, options.seconds
    ):
        found += rows
        add_rows(options.rows, rows)
    together = latest(everything, earlier, found)
    if {row.op for row in together} == {full_name(op) for op in everything}:
        PAGE.write_text(as_gradient_page(together), encoding="utf-8")
    print(as_text(found))
    return int(any(row.verdict in ("wrong", "error") for row in found))


def as_text(found: Sequence[Judged]) -> str:
    """A line for each gradient that is not right, and the sum."""
    lines = [
        f"{r.verdict:11} {r.op} {r.sample}: {r.detail}"
        for r in found
        if r.verdict not in ("right", "skipped", "random")
    ]
    counts = Counter(r.verdict for r in found)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return "\n".join([*lines, f"gradients of {len({r.op for r in found})} operators: {told}"])


if __name__ == "__main__":
    os.environ.setdefault("DOVETAIL_CACHE", "off")
    sys.exit(main(sys.argv[1:]))
