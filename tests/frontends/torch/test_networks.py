"""Networks of many architectures: as near to a float64 run as eager is, at the exported sizes and at others."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

import dovetail
from dovetail.testing import assert_fused
from tests.frontends.torch.judge import assert_as_near_as_eager, wide
from tests.frontends.torch.networks import NETWORKS, Network

torch: Any = pytest.importorskip("torch")
pytree: Any = pytest.importorskip("torch.utils._pytree")
pytestmark = pytest.mark.filterwarnings("ignore")


def built(name: str) -> Network:
    torch.manual_seed(0)
    made = NETWORKS[name]()
    made.module.eval().requires_grad_(False)
    return made


@pytest.mark.parametrize("name", NETWORKS)
def test_network_is_as_exact_as_eager(name: str) -> None:
    network = built(name)
    exact, eager = copy.deepcopy(network.module).double(), copy.deepcopy(network.module)
    program = dovetail.compile(network.module, args=network.args, dynamic=network.dynamic)
    for args in (network.args, resized(network)):
        with torch.no_grad():
            wanted, reference = eager(*args), _in_float64(exact, args)
        assert_as_near_as_eager(program(*args), wanted, reference)
    for rule, count in network.fused.items():
        assert_fused(program.program, rule=rule)
        assert program.report.count(rule) >= count


def _in_float64(module: Any, args: Any) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return module(*wide(args))
    finally:
        torch.set_default_dtype(torch.float32)


def resized(network: Network) -> Any:
    """The arguments with the sizes that may change doubled, or as they are."""
    if network.dynamic is None:
        return network.args
    specs = list(network.dynamic.values()) if isinstance(network.dynamic, Mapping) else list(network.dynamic)
    return tuple(_doubled(arg, spec) for arg, spec in zip(network.args, specs, strict=False))


def _doubled(arg: Any, spec: Any) -> Any:
    if isinstance(arg, tuple):
        return tuple(_doubled(a, s) for a, s in zip(arg, spec, strict=True)) if spec else arg
    for axis in spec or {}:
        arg = torch.cat((arg, arg), dim=axis)
    return arg
