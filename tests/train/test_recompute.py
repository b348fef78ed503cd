"""Training under memory budgets: a smaller budget never has a larger peak, and results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dovetail import Graph, compile
from dovetail.declare.cost import estimate
from dovetail.errors import BudgetError, OptionError
from dovetail.passes.pipeline import Setup
from dovetail.runtime.budget import Planned, budget_of, within
from dovetail.runtime.compile import compilation
from dovetail.runtime.request import make_request
from dovetail.train import SGD, Trainer
from dovetail.train.step import step_graph
from tests.train.models import classifier
from tests.train.networks import Width, mlp, resnet20, transformer, vit

SMALL = Width(layers=1, hidden=16, heads=2, inner=64, batch=4, length=16, classes=8, words=20)
NETWORKS: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: mlp(64, (12, 64, 64, 4)),
    "bert": lambda: transformer("bert", replace(SMALL, layers=2), causal=False, pre=False),
    "pre-norm": lambda: transformer("encoder", SMALL, causal=False, pre=True),
    "gpt": lambda: transformer("gpt", SMALL, causal=True, pre=True),
    "vit": lambda: vit(SMALL, patch=12),
    "resnet": lambda: resnet20(batch=4, image=8, width=4, blocks=1),
}


def ladder(network: str) -> tuple[Planned, Callable[[Setup], Planned], dict[float | None, Planned]]:
    """The plan without a budget, and a planner that remembers what it planned, by what a byte was worth."""
    step = step_graph(NETWORKS[network](), SGD(), loss="loss").graph
    seen: dict[float | None, Planned] = {}
    made = compilation(step, make_request(engine="greedy"))
    first = Planned(made.setup, made.lowered, made.plan)

    def planned(setup: Setup) -> Planned:
        if setup.worth not in seen:
            made = compilation(step, make_request(engine="greedy"), worth=setup.worth)
            seen[setup.worth] = Planned(made.setup, made.lowered, made.plan)
        return seen[setup.worth]

    return first, planned, seen


def seconds(found: Planned) -> float:
    made = found.lowered.state.recompute
    assert made is not None
    return made.choice.seconds


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_a_smaller_budget_has_no_larger_peak_and_takes_no_less_time(network: str) -> None:
    first, planned, seen = ladder(network)
    least = within("least", first, planned)
    assert least.bytes == min(p.bytes for p in (first, *seen.values()))
    budgets = np.unique(np.linspace(least.bytes, first.bytes * 1.1, 7).astype(int))[::-1]
    found = [within(str(budget), first, planned) for budget in budgets]
    assert all(one.bytes <= budget for one, budget in zip(found, budgets, strict=True))
    for larger, smaller in pairwise(found):
        assert smaller.bytes <= larger.bytes and seconds(smaller) >= seconds(larger)
    with pytest.raises(BudgetError) as caught:
        within(str(least.bytes - 1), first, planned)
    assert caught.value.least == least.bytes and caught.value.budget == least.bytes - 1


@pytest.mark.exhaustive
def test_training_is_the_same_under_a_budget_up_to_rounding() -> None:
    graph = transformer("gpt", SMALL, causal=True, pre=True)
    rng = np.random.default_rng(0)
    batch = {"ids": rng.integers(0, 20, (4, 16)), "labels": rng.integers(0, 8, (4, 16))}
    trainers = [Trainer(graph, optimizer=SGD(0.1), engine="greedy", memory=memory) for memory in ("", "least")]
    saving = Trainer(graph, optimizer=SGD(0.1), engine="greedy", without=["recompute"])
    arenas = [estimate(t.program.plan.arena_size) for t in (trainers[1], trainers[0], saving)]
    assert arenas == sorted(arenas) and arenas[1] != arenas[2]
    usual, all_saved = ([t.step(batch).loss for _ in range(3)] for t in (trainers[0], saving))
    assert np.allclose(usual, all_saved, rtol=1e-6)
    least = [trainers[1].step(batch).loss for _ in range(3)]
    # Products are fused otherwise where the forward pass keeps nothing of attention.
    assert np.allclose(least, usual, rtol=1e-5)


@pytest.mark.slow
def test_a_graph_without_a_backward_pass_fits_or_does_not() -> None:
    graph = classifier()
    needed = compile(graph, assume_sizes={"n": 1000}).plan.peak
    assert compile(graph, assume_sizes={"n": 1000}, memory="1GB").plan.peak == needed
    with pytest.raises(BudgetError, match="the smallest plan takes") as caught:
        compile(graph, assume_sizes={"n": 1000}, memory="1kB")
    assert caught.value.least > 1000


@pytest.mark.parametrize(
    ("text", "bytes"),
    [("200MB", 200_000_000), ("1.5 GB", 1_500_000_000), ("64KiB", 65536), ("12", 12), ("least", None)],
)
def test_budgets_are_read(text: str, bytes: int | None) -> None:
    assert budget_of(text) == bytes


@pytest.mark.parametrize("text", ["lots", "200 apples", "-3MB", "1e9"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="the option memory is"):
        compile(classifier(), memory=text)
