"""The kernels that XLA made, in the words of the model: judged by the text of the compiled program itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Builder, Graph, compile, ops
from dovetail.errors import DeviceError
from dovetail.ir.dtype import f32
from dovetail.ir.origin import scope
from dovetail.ir.value import Value
from dovetail.models.llama import LlamaShape, llama
from dovetail.ops import tracing
from dovetail.report.record import CompiledKernel
from dovetail.report.text import as_text
from dovetail.runtime.program import Program
from dovetail.settings import Settings
from dovetail.targets import xla
from dovetail.targets.runtime.building.store import store_of
from dovetail.targets.xla.hlo import kernels, module

pytest.importorskip("jax")

FEEDS = {"x": np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)}
WEIGHTS = {"w": np.linspace(-1, 1, 64 * 16, dtype=np.float32).reshape(64, 16)}


def chain(place: str = "head") -> Graph:
    """A chain of elementwise ops around a product, in two places of a model."""
    builder = Builder("chain", lines=False)
    x, w = builder.input("x", f32[32, 64]), builder.param("w", f32[64, 16])
    with builder.recording():
        with scope("body"):
            inner = ops.mul(ops.tanh(ops.add(x, x)), ops.neg(x))
        with scope(place):
            builder.output("y", ops.exp(ops.tanh(ops.matmul(inner, w))))
    return builder.graph()


def compiled(program: Program) -> tuple[CompiledKernel, ...]:
    read = program.report.compiled
    assert read is not None
    return read()


def text_of(program: Program) -> str:
    """The program that runs, as XLA prints it."""
    program.run(FEEDS)
    runner: Any = program._binding.runner  # pyright: ignore[reportPrivateUsage]
    return runner.compiled.as_text()


def test_a_chain_is_one_kernel_and_a_product_stays_apart() -> None:
    program = compile(chain(), target="xla", params=WEIGHTS, cache="off")
    text = text_of(program)
    first, product, last = compiled(program)
    assert [n.op for n in first.nodes] == ["add", "tanh", "neg", "mul"] and first.where == ("body",)
    assert [n.op for n in product.nodes] == ["matmul"] and product.where == ("head",)
    assert [n.op for n in last.nodes] == ["tanh", "exp"] and last.where == ("head",)
    assert (first.type, product.type, last.type) == ("f32[32, 64]", "f32[32, 16]", "f32[32, 16]")
    assert first.bytes == 2 * 32 * 64 * 4 and last.bytes == 2 * 32 * 16 * 4
    assert product.bytes == (32 * 64 + 64 * 16 + 32 * 16) * 4
    # Names of steps are those of the report, and each kernel is an instruction of the entry computation.
    by_name = {kernel.name: kernel.op for kernel in program.report.kernels}
    assert [by_name[name] for name in first.steps] == ["add", "tanh", "neg", "mul"]
    entry = text[text.index("\nENTRY ") :]
    for kernel in (first, product, last):
        line = next(line for line in entry.splitlines() if f"%{kernel.name} = " in line)
        called = re.search(r"calls=%([\w.]+)", line)
        body = line if called is None else text[text.index(f"\n%{called[1]} (") :].partition("\n}")[0]
        told = {name for name in by_name if f"/{name}/" in body}
        assert told == set(kernel.steps)
    assert entry.count(" fusion(") + entry.count(" dot(") == 3


def test_the_text_tells_them_when_it_tells_everything() -> None:
    report = compile(chain(), target="xla", cache="off").report
    told = [line for line in as_text(report, everything=True).splitlines() if line.startswith("COMPILED")]
    assert told[0] == "COMPILED xla made 3 kernels of 7 steps"
    assert re.match(
        r"COMPILED   1 × fused add, tanh, neg, mul \(.*\) moves   16\.4 kB   f32\[32, 64\]   at body$", told[1]
    )
    assert compile(chain(), target="cpu", cache="off").report.compiled is None


def test_only_those_who_ask_wait_for_xla() -> None:
    def fails() -> tuple[CompiledKernel, ...]:
        raise DeviceError("a mesh of 8 devices", hint="")

    report = replace(compile(chain(), target="xla", cache="off").report, compiled=fails)
    assert "COMPILED" not in as_text(report)
    assert "COMPILED unknown: a mesh of 8 devices" in as_text(report, everything=True)


def test_kernels_come_from_the_executable_that_is_kept(tmp_path: Path) -> None:
    store = store_of(Settings(cache=str(tmp_path)))
    assert store is not None
    program = compile(chain(), target="xla", params=WEIGHTS, cache=str(tmp_path))
    program.run(FEEDS)
    hits = store.hits
    made = compiled(program)
    assert (store.hits, store.status().entries) == (hits + 1, {"xla": 1})
    # The same executable serves a model whose places have other names.
    other = compiled(compile(chain("tail"), target="xla", cache=str(tmp_path)))
    assert [k.where for k in made] == [("body",), ("head",), ("head",)]
    assert [k.where for k in other] == [("body",), ("tail",), ("tail",)]
    assert store.status().entries == {"xla": 1}


def test_a_longer_bind_phase_shifts_no_names(tmp_path: Path) -> None:
    def told(prepared: Callable[[Value], Value]) -> list[list[str]]:
        builder = Builder("prepared")
        x, w = builder.input("x", f32[32, 64]), builder.param("w", f32[64, 16])
        builder.output("y", ops.tanh(ops.matmul(x, prepared(w))))
        program = compile(builder.graph(), target="xla", params=WEIGHTS, cache=str(tmp_path))
        program.run(FEEDS)
        return [[n.op for n in k.nodes] for k in compiled(program)]

    # The run phase of both is the same program.
    assert told(ops.exp) == [["matmul"], ["tanh"]]
    assert told(lambda w: ops.exp(ops.exp(w))) == [["matmul"], ["tanh"]]


def test_what_a_fused_op_spells_out_is_told_as_that_op() -> None:
    shape = LlamaShape(layers=2, hidden=64, heads=8, kv_heads=4, inner=128, vocabulary=64)
    graph = llama(shape, batch=8, seq=8)
    alone = compiled(compile(graph, target="xla", cache="off"))
    assert all(kernel.nodes for kernel in alone)
    assert {"rms_norm", "softmax", "matmul"} <= {n.op for kernel in alone for n in kernel.nodes}
    products = [k for k in alone if any(n.op == "matmul" for n in k.nodes)]
    assert all(len(k.nodes) == 1 for k in products) and len({k.nodes for k in products}) == len(products)
    # On a mesh a device has its parts, and collectives are no kernels.
    target = xla.target(mesh={"dp": 2, "tp": 4}, preset="tensor")
    split = compiled(compile(graph, target=target, cache="off"))
    assert not [k for k in split if "all-reduce" in k.form]
    bytes_of = {nodes: sum(k.bytes or 0 for k in split if k.nodes == nodes) for nodes in {k.nodes for k in products}}
    assert all(0 < bytes_of[k.nodes] < (k.bytes or 0) for k in products)


def test_the_body_of_a_loop_is_told_once() -> None:
    builder = Builder("loop", lines=False)
    x, start = builder.input("x", f32[32, 64]), builder.input("start", f32[64])
    with builder.recording(), scope("steps"):
        carried = tracing.scan(lambda c, s: [ops.tanh(ops.add(c, s))], [start], [x]).carries
    builder.output("y", carried[0])
    told = compiled(compile(builder.graph(), target="xla", cache="off"))
    fused = [k for k in told if k.nodes]
    assert fused and {n.op for k in fused for n in k.nodes} == {"scan"} and {k.where for k in fused} == {("steps",)}
    assert sum("tanh" in k.name for k in told) == 1


OTHER_DEVICE = Path(__file__).with_name("other_device.hlo").read_text(encoding="utf-8")
"""As GPUs and TPUs have it: layouts with tiles, results that are tuples, libraries, asynchronous collectives."""


def test_texts_of_other_devices_are_read() -> None:
    gemm, copy, fusion = kernels(OTHER_DEVICE)
    assert (gemm.name, gemm.form, gemm.scopes) == (
        "gemm.1",
        "__cublas$gemm",
        (("layers.1", "matmul", "%9", "dot_general"),),
    )
    assert (copy.form, copy.scopes, copy.bytes) == ("copy", (), 2 * 8 * 128 * 2)
    assert (fusion.form, fusion.type) == ("input fusion", "(f32[8], bf16[8, 128])")
    assert [s[:3] for s in fusion.scopes] == [('a "b"', "exp", "%6"), ("layers.0", "reduce_sum", "%7")]
    assert fusion.bytes == 8 * 4 + 2 * 8 * 128 * 2 + 4
    assert kernels("no text of XLA") == [] and module("ENTRY %main () -> f32[] {\n  what is this\n}").entry == "main"
