"""Judges torch.compile with our backend over the small networks: python -m tests.frontends.torch.judge_backend [NAME]…

Each network runs twice in inference, and once in training where it has parameters. Outputs and gradients must be at
most twice as far from float64 as those of eager. A line tells what torch ran; the exit code says whether all is right.
"""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import dovetail
from dovetail.torch import reports
from tests.torch_networks.every import PLAIN
from tests.torch_networks.judge import assert_as_near_as_eager, leaves, wide

torch: Any = pytest.importorskip("torch")
dynamo: Any = pytest.importorskip("torch._dynamo")
NETWORKS = {case.name: case for case in PLAIN}


def judged(name: str) -> str:
    """What torch ran of a network; raises where a result is not right."""
    dynamo.reset()
    torch.manual_seed(0)
    network = NETWORKS[name]()
    ours = network.module.eval()
    eager, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    run = torch.compile(ours, backend=dovetail.torch.backend)
    before = len(reports())
    with torch.no_grad():
        for _ in range(2):
            assert_as_near_as_eager(*(call() for call in _calls(run, eager, exact, network.args)))
    if any(p.requires_grad for p in ours.parameters()):
        _train(run, ours, eager, exact, network.args)
    fallbacks = [f"{f.op} ({f.reason})" for r in reports()[before:] for f in r.fallbacks]
    return ", ".join(dict.fromkeys(fallbacks)) or "all ours"


def _calls(run: Any, eager: Any, exact: Any, args: Any) -> list[Callable[[], Any]]:
    """The network by us, in eager, and in float64, where tensors that it makes are of that type too."""

    def in_float64() -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            return exact(*wide(copy.deepcopy(args)))
        finally:
            torch.set_default_dtype(torch.float32)

    return [lambda: run(*copy.deepcopy(args)), lambda: eager(*copy.deepcopy(args)), in_float64]


def _train(run: Any, ours: Any, eager: Any, exact: Any, args: Any) -> None:
    made: list[Any] = []
    for module, call in zip((ours, eager, exact), _calls(run, eager, exact, args), strict=True):
        outputs = [y for y in leaves(call()) if y.requires_grad]
        if outputs:
            torch.stack([(y * y).mean() for y in outputs]).sum().backward()
        made.append([[y.detach() for y in outputs], [p.grad for p in module.parameters() if p.grad is not None]])
    assert_as_near_as_eager(*made)


def main(names: Sequence[str]) -> int:
    warnings.simplefilter("ignore")
    wrong = 0
    for name in names or NETWORKS:
        try:
            print(f"{name}: right; {judged(name)}", flush=True)
        except Exception as error:  # a judge goes on to the next network
            wrong += 1
            print(f"{name}: {type(error).__name__}: {str(error).strip()[:300]}", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
