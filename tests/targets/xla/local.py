"""The program that `explain` explains, run: Shardy's own local program of a device, called in `jax.shard_map`.

XLA's partitioner may choose other collectives than Shardy; a program in which Shardy has put all of them leaves it no
choice. A child process runs this, as one that crashes would end the tests; it takes models, meshes and rules as JSON:
`python -m tests.targets.xla.local '["llama", "tensor", {}]'`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np

from dovetail.ir.graph import Graph
from dovetail.models.weights import random_weights
from dovetail.runtime.compile import compilation, make_request
from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.target import placement_of
from tests.targets.xla.meshes import MESHES, expected, totals_of, work

LOCAL = "sdy-convert-global-to-local"
"""The pass that leaves each device its own shapes."""


def local_program(text: str) -> tuple[str, list[list[list[str]]]]:
    """The main function of a device without Shardy's attributes, and the mesh axes of each axis of its results."""
    from dovetail.targets.xla.explain.shardy import pipeline

    mlir: Any = import_module("jax.interpreters.mlir")
    ir: Any = import_module("jax.extend.mlir.ir")
    passmanager: Any = import_module("jax.extend.mlir.passmanager")
    with mlir.make_ir_context() as context, ir.Location.unknown():
        module = ir.Module.parse(text, context)
        passmanager.PassManager.parse(f"{pipeline(passmanager)[:-1]},{LOCAL})").run(module.operation)
        (main,) = [one for one in module.body.operations if one.operation.name == "func.func"]
        placed = [_axes(attrs) for attrs in ir.ArrayAttr(main.attributes["res_attrs"])]
        for op in _within(main):
            for name in [n for n in op.attributes if n.startswith("sdy.")]:
                del op.attributes[name]
        for name in ("arg_attrs", "res_attrs"):
            del main.attributes[name]
        main.attributes["sym_name"] = ir.StringAttr.get("local")
        main.attributes["sym_visibility"] = ir.StringAttr.get("private")
        return str(main), placed


def _axes(attrs: Any) -> list[list[str]]:
    said = re.search(r"\[(.*)\]", str(attrs["sdy.sharding"])) if "sdy.sharding" in attrs else None
    return [re.findall(r'"(\w+)"', part) for part in re.findall(r"\{(.*?)\}", said[1])] if said else []


def _within(op: Any) -> Iterator[Any]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _within(inner)


def function_of(text: str) -> Any:
    """A primitive of JAX that calls the function of the text."""
    mlir: Any = import_module("jax.interpreters.mlir")
    ir: Any = import_module("jax.extend.mlir.ir")
    core: Any = import_module("jax.extend.core")
    jax: Any = import_module("jax")
    local = core.Primitive("local")
    local.multiple_results = True

    def types(*_: Any) -> list[Any]:
        with mlir.make_ir_context() as context, ir.Location.unknown():
            main = ir.Module.parse(text, context).body.operations[0]
            found = ir.FunctionType(main.attributes["function_type"].value).results
            tensors = [ir.RankedTensorType(t) for t in found]
            assert all(str(t.element_type) == "f32" for t in tensors), "the outputs of our models"
            return [jax.core.ShapedArray(tuple(t.shape), np.dtype(np.float32)) for t in tensors]

    def lowered(ctx: Any, *operands: Any) -> Any:
        body = ctx.module_context.module.body
        with ir.InsertionPoint(body):
            main = ir.Operation.parse(text)
            ir.InsertionPoint(body).insert(main)
        results = list(ir.FunctionType(main.attributes["function_type"].value).results)
        callee = {"callee": ir.FlatSymbolRefAttr.get("local")}
        return ir.Operation.create("func.call", results=results, operands=operands, attributes=callee).results

    local.def_abstract_eval(types)
    mlir.register_lowering(local, lowered)
    return local


def ran(graph: Graph, placement: Placement, arrays: Mapping[str, Any]) -> tuple[list[Any], str]:
    """The outputs, and the program of a device as XLA compiled it."""
    from dovetail.targets.xla.explain.lowered import module_of
    from dovetail.targets.xla.package import jax, wide_types
    from dovetail.targets.xla.run import device_mesh

    text, placed = local_program(module_of(graph, placement))
    spec = jax.sharding.PartitionSpec
    names = [str(v.attrs["name"]) for v in (*graph.parameters, *graph.inputs)]
    given = tuple(spec(*(a or None for a in placement.axes(name))) for name in names)
    made = [spec(*(tuple(a) or None for a in axes)) for axes in placed]
    mesh, local = device_mesh(placement), function_of(text)
    whole = jax.shard_map(local.bind, mesh=mesh, in_specs=given, out_specs=made, check_vma=False)
    with wide_types():
        compiled = jax.jit(whole).lower(*(arrays[name] for name in names)).compile()
        put = [
            jax.device_put(arrays[name], jax.sharding.NamedSharding(mesh, one))
            for name, one in zip(names, given, strict=True)
        ]
        return [np.asarray(one) for one in compiled(*put)], compiled.as_text()


def judged(name: str, mesh: str, rules: Mapping[str, str]) -> dict[str, Any]:
    """What was predicted for a model, what XLA compiled, and the error beside float64."""
    from dovetail.targets.xla.explain.compiled import read_text
    from dovetail.targets.xla.explain.explained import Explained

    graph, feeds = work(name)
    plan = compilation(graph, make_request(target="xla")).plan
    placement = placement_of(MESHES[mesh], rules, "tensor")
    found, text = ran(plan.graph, placement, {**random_weights(graph), **feeds})
    wanted = list(expected(name).values())
    return {
        "predicted": Explained(plan.graph, placement).totals,
        "compiled": totals_of(read_text(text, placement)),
        "error": max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, wanted, strict=True)),
    }


if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(json.dumps(judged(*json.loads(case))), flush=True)
