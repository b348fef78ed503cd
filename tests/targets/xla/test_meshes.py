"""Models on meshes of simulated devices: right numbers, the collectives that the placement asks for, typed errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from dovetail import compile
from dovetail.errors import DeviceError, OptionError
from dovetail.models.weights import random_weights
from dovetail.targets import xla
from dovetail.targets.xla.placement import Placement
from tests.targets.xla.meshes import LLAMA, MESHES, bound, ran, work
from tests.targets.xla.placements import run as drawn_placements

pytest.importorskip("jax")
read_text: Any = pytest.importorskip("dovetail.targets.xla.explain.compiled").read_text


@pytest.mark.parametrize(("name", "titles"), [("llama", ["data", "tensor", "both"]), ("bert", ["both"])])
def test_every_mesh_is_as_near_to_float64_as_one_device(name: str, titles: list[str]) -> None:
    most = bound(ran(name, None))
    for title in titles:
        found = ran(name, MESHES[title])
        assert found.error <= most, title
        # Two sums of the activations a layer, and no other collective.
        sums = {"all-reduce": 2 * LLAMA.layers} if "tp" in MESHES[title] else {}
        assert {kind: count for kind, (count, _) in found.totals.items()} == sums, title
        assert found.totals == found.predicted, title


LOCAL: list[tuple[str, str, dict[str, str]]] = [
    ("llama", "tensor", {}),
    ("llama", "both", {"layers.*.wo": "- tp"}),
    ("llama_step", "tensor", {}),
]


def test_the_program_that_is_explained_runs_with_the_collectives_that_are_told() -> None:
    """Also for a wrong placement: XLA's partitioner would choose others, and `jax.shard_map` leaves it no choice."""
    command = [sys.executable, "-m", "tests.targets.xla.local", *map(json.dumps, LOCAL)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert told.returncode == 0, told.stderr
    found = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(found) == len(LOCAL)
    for one in found:
        assert one["compiled"] == one["predicted"] != {}, one
        assert one["error"] < 1e-6, one
    assert {*found[1]["compiled"]} == {"all-gather", "all-reduce"}, "a wrong placement gathers"


def test_drawn_placements_compute_what_one_device_does() -> None:
    said: list[str] = []
    totals, wrong = drawn_placements(1, 3, said.append)
    assert wrong == 0 and totals["placements"] == 1, said


def test_collectives_are_read_from_what_xla_compiled() -> None:
    text = """
  %a = f32[4,8]{1,0} all-reduce(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, metadata={op_name="jit(f)/l.0/matmul/dot"}
  %b = (f32[2]{0}, bf16[2,4]{1,0}) all-reduce(%x, %y), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add
  %c = (f32[2]{0}, f32[8]{0}) all-gather-start(%x), replica_groups=[1,8]<=[8], dimensions={0}
  %d = f32[8]{0} all-gather-done(%c)
  %e = s32[3]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}
  %f = f32[] all-reduce(%x), replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}
"""
    found = list(read_text(text, Placement.of({"dp": 2, "tp": 4})))
    assert [(c.kind, c.axes, c.devices, c.bytes) for c in found] == [
        ("all-reduce", ("tp",), 4, 128),
        ("all-reduce", ("dp",), 2, 24),
        ("all-gather", ("dp", "tp"), 8, 32),
        ("collective-permute", (), 2, 12),
        ("all-reduce", ("tp",), 4, 4),
    ]
    assert found[0].place == "l.0/matmul"


def test_a_mesh_that_is_larger_than_the_machine_is_refused() -> None:
    graph, _ = work("llama")
    with pytest.raises(DeviceError, match="a mesh of 64 devices"):
        compile(graph, target=xla.target(mesh={"dp": 64})).bind(random_weights(graph))


@pytest.mark.parametrize(
    ("mesh", "place", "said"),
    [
        ({"dp": 0}, {}, "a mesh axis 'dp' of size 0"),
        ({"dp": "2"}, {}, "a mesh axis 'dp' of size '2'"),
        ({"tp": 2}, {"layers.*.wq": 1}, "layers.*.wq is placed 1"),
        ({"dp": 2}, {"layers.*.wq": "- tp"}, "the mesh has no axis 'tp'"),
        ({"tp": 2}, {"layers.*.wq": "tp tp"}, "uses tp twice"),
        ({"tp": 2}, {"layers.*.wx": "tp"}, "no parameter or input of llama fits 'layers.*.wx'"),
        ({"tp": 2}, {"layers.*.wq": "- - tp"}, "is placed"),
        ({"tp": 3}, {"layers.*.wq": "tp"}, "has 64 elements, and tp has 3 devices"),
    ],
)
def test_placements_that_cannot_be_are_refused(mesh: dict[str, Any], place: dict[str, Any], said: str) -> None:
    graph, _ = work("llama")
    with pytest.raises(OptionError, match=re.escape(said)):
        Placement.of(mesh, place).check(graph)


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(OptionError, match="there is no preset 'pipeline'"):
        xla.target(mesh={"dp": 2}, preset="pipeline")
