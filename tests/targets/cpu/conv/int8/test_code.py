"""Kernels of bytes as code for machines with a dot product of bytes, whichever this one is."""

from __future__ import annotations

import re

import pytest

from dovetail import Graph, Value, ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import i8, u8
from dovetail.kernels.device import CpuDevice
from dovetail.passes.widen import widen_inside
from dovetail.targets.cpu.claims import CLAIMS
from dovetail.targets.cpu.isa import Host
from tests.codegen.generated import modules, planned
from tests.kernels.bytes import above, image
from tests.kernels.machines import DOT, VNNI, code_for

MACHINES = {
    "vnni": (VNNI, CpuDevice(512, 32, ("embedded_broadcast", "vnni")), "vpdpbusd"),
    "sdot": (DOT, CpuDevice(128, 32, ("fma_by_lane", "int8_dot")), "sdot"),
}


def products() -> dict[str, Value]:
    attrs = {"strides": (1, 1), "dilations": (1, 1), "padding": (1, 1, 1, 1), "groups": 1}
    wide = {**attrs, "strides": (2, 2)}
    return {
        "matmul": above(leaf.input("x", u8[symbol("n"), 40]), 9) @ above(leaf.param("w", i8[40, 21]), None),
        "channels": ops.conv(above(image(u8, 1, 61, 5, 2), 9), above(leaf.param("w", i8[8, 61, 3, 3]), None), **attrs),
        "stride": ops.conv(above(image(i8, 1, 12, 9, 8), 9), above(leaf.param("w", u8[8, 12, 3, 3]), None), **wide),
        "rows": ops.conv(above(image(u8, 1, 3, 20, 30), 9), above(leaf.param("w", i8[8, 3, 3, 3]), None), **attrs),
        "sizes": ops.conv(
            above(image(u8, 1, 8, symbol("h"), symbol("w")), 9), above(leaf.param("w", i8[8, 8, 3, 3]), None), **attrs
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", products())
@pytest.mark.parametrize(("machine", "device", "dot"), MACHINES.values(), ids=MACHINES)
def test_dot_products_and_no_library_of_functions(machine: Host, device: CpuDevice, dot: str, name: str) -> None:
    plan = planned(widen_inside(Graph.of(products()[name]), CLAIMS).graph, strict=False)
    texts = dict(modules(plan, device))
    code = {module: code_for(machine, text) for module, text in texts.items()}
    assert any(dot in found for found in code.values())
    called = {c for found in code.values() for c in re.findall(r"^\s+(?:bl|callq?)\s+([\w.]+)", found, re.MULTILINE)}
    assert all(c.startswith("bytes.") or c in ("memset", "memcpy") for c in called), called
