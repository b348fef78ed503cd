"""Steps of a prompt that share a launch by tokens: norms of heads, rotations and appends to caches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.errors import BindError
from dovetail.ir.dim import evaluate as number
from dovetail.ir.dtype import bf16, i64
from dovetail.ir.leaf import input, param
from dovetail.ir.type import SizeLike
from dovetail.ir.value import Value
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, Barrier
from dovetail.models.llama_cache import with_rows
from dovetail.plan.arena import Slot
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.launch_fusion import row_launches
from dovetail.targets.gpu.steps import placed
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.simulated import SimulatedDriver

pytestmark = pytest.mark.slow

CLUSTERS = replace(H200, cluster=8)
ROOM = 40


def _prompt(
    tokens: int = 24, heads: int = 4, kv_heads: int = 2, width: int = 32, depth: int = 16, room: SizeLike = ROOM
) -> Graph:
    """What is between the product of a layer and its attention."""
    wide = (heads + 2 * kv_heads) * width
    rows = input("x", bf16[1, tokens, depth]) @ param("w", bf16[depth, wide])
    cos, sin = (input(name, bf16[tokens, width]) for name in ("cos", "sin"))
    at = input("positions", i64[tokens])
    split = ops.permute(ops.split(rows, axis=-1, size=width), order=(-4, -2, -3, -1))
    ends = (0, heads, heads + kv_heads, heads + 2 * kv_heads)
    q, k, v = (ops.slice_(split, axis=-3, start=a, stop=b) for a, b in pairwise(ends))
    q, k = (
        library.rope(library.rms_norm(x, param(f"{name}_gain", bf16[width]), eps=1e-6), cos, sin)
        for name, x in (("q", q), ("k", k))
    )
    old = {side: input(f"{side}_cache", bf16[1, kv_heads, room, width]) for side in "kv"}
    new = {side: with_rows(old[side], one, at) for side, one in (("k", k), ("v", v))}
    graph = Graph.of({"q": q, "new_k_cache": new["k"], "new_v_cache": new["v"]})
    return graph.donate({f"new_{side}_cache": f"{side}_cache" for side in "kv"})


def _plan(graph: Graph) -> Plan:
    return make_plan(graph, target=CLAIMS)


def _kernels(plan: Plan) -> list[GpuKernel]:
    return [made for _, kernels in steps_of(plan, device=CLUSTERS) for made in kernels or ()]


def _drawn(graph: Graph, positions: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    random = np.random.default_rng(5)
    found: dict[str, Any] = {}
    for v in (*graph.inputs, *graph.parameters):
        sizes = [n if isinstance(n, int) else ROOM for n in v.shape]
        content = positions if v.dtype is i64 else random.normal(size=sizes)
        found[str(v.attrs["name"])] = np.asarray(content).astype(v.dtype.numpy)
    params = {str(v.attrs["name"]): found.pop(str(v.attrs["name"])) for v in graph.parameters}
    return found, params


def _run(graph: Graph, feeds: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    device = SimulatedDriver()
    device.description = CLUSTERS
    runner = CudaGraph(_plan(graph), lambda: device).bind(params)
    return {name: np.array(x) for name, x in runner.run({n: x.copy() for n, x in feeds.items()}).items()}


def _meet(one: Slot, other: Slot) -> bool:
    (start, size), (other_start, other_size) = ((number(s.offset, {}), number(s.size, {})) for s in (one, other))
    return start < other_start + other_size and other_start < start + size


# Of two rows at one position the later one stays, whichever block runs first.
POSITIONS = {"in_order": np.arange(3, 27), "twice": np.array([*range(12), *range(6, 18)])}


@pytest.mark.parametrize(("name", "room"), [("in_order", ROOM), ("twice", ROOM), ("twice", "room")])
def test_steps_of_a_token_share_a_launch_and_keep_their_bits(name: str, room: SizeLike) -> None:
    graph = _prompt(room=room)
    plan = _plan(graph)
    product, shared = _kernels(plan)
    assert len(plan.phase("run")) == 7 and product.kernel.name == "contract" and shared.kernel.name == "row_stages"
    assert shared.kernel.launch is not None and shared.kernel.launch.grid == 24
    feeds, params = _drawn(graph, POSITIONS[name])
    found = _run(graph, feeds, params)
    with patch.object(row_launches, "FEWEST", 100):
        assert len(_kernels(plan)) > 2
        apart = _run(graph, feeds, params)
    exact = evaluate(graph, feeds, params=params, lift=True)
    for output, value in found.items():
        assert value.tobytes() == apart[output].tobytes(), output
        error = np.linalg.norm(value.astype(np.float64) - exact[output])
        assert error <= 2e-2 * np.linalg.norm(exact[output]), output


def test_what_steps_leave_for_each_other_is_in_shared_memory() -> None:
    *_, shared = _kernels(_plan(_prompt()))
    rooms = [s for s in everything(shared.kernel.body) if isinstance(s, Alloc) and s.pointer.startswith("rows")]
    # Normed keys, rotated keys and normed queries.
    assert sorted(room.count for room in rooms) == [64, 64, 128]
    levels = [s for s in shared.kernel.body if isinstance(s, Barrier)]
    assert len(levels) >= 2
    assert set(shared.kernel.written) <= {*shared.bindings, *shared.checks}
    assert len(shared.kernel.written) == 4  # queries, two caches, the status


def test_memory_of_steps_one_by_one_refuses_no_launch() -> None:
    """Steps that run one by one rotate queries into the memory of the product, which other tokens of a shared launch
    still read."""
    graph = _prompt()
    plan = _plan(graph)
    steps = steps_of(plan, device=CLUSTERS)
    names = [made.kernel.name for _, kernels in steps for made in kernels or ()]
    assert names == ["contract", "row_stages"]
    (_, first), *_, (_, last) = steps
    assert first is not None and last is not None
    (product,), written = first[0].kernel.written, last[0].kernel.written
    read, results = first[0].bindings[product], [last[0].bindings[n] for n in written if n in last[0].bindings]

    def met(of: Plan) -> list[Value]:
        memory = of.slots[of.root_of(read)]
        return [v for v in results if (slot := of.slots[of.root_of(v)]).pool == "arena" and _meet(slot, memory)]

    assert met(plan) and not met(placed(plan, [kernels for _, kernels in steps]))
    feeds, params = _drawn(graph, POSITIONS["in_order"])
    found, exact = _run(graph, feeds, params), evaluate(graph, feeds, params=params, lift=True)
    for output, value in found.items():
        error = np.linalg.norm(value.astype(np.float64) - exact[output])
        assert error <= 2e-2 * np.linalg.norm(exact[output]), output


def test_a_row_that_is_not_there_is_refused_with_its_step() -> None:
    """The run is repeated on the host, where tensors between the steps of a launch have memory."""
    graph = _prompt()
    feeds, params = _drawn(graph, np.arange(20, 44))
    with pytest.raises(BindError, match="index 40 into an axis of size 40"):
        _run(graph, feeds, params)


def test_steps_that_need_other_tokens_do_not_share() -> None:
    def normed(x: Value) -> Value:
        return library.rms_norm(x, param("gain", bf16[32]), eps=1e-6)

    x = input("x", bf16[2, 24, 32])
    first = normed(x)
    chains = {
        "along_tokens": library.softmax(ops.permute(first, order=(-3, -1, -2))),
        "turned": normed(ops.flip(first, axes=(-2,))) if hasattr(ops, "flip") else normed(first[:, ::-1]),
    }
    for name, y in chains.items():
        kernels = _kernels(_plan(Graph.of({"y": y})))
        assert all(made.kernel.name != "row_stages" for made in kernels), name


def test_few_tokens_are_stages_of_a_cluster() -> None:
    names = [made.kernel.name for made in _kernels(_plan(_prompt(tokens=4)))]
    assert "row_stages" not in names


def test_a_whole_layer_spills_nothing_and_moves_vectors(tmp_path: Path) -> None:
    *_, shared = _kernels(_plan(_prompt(512, 16, 8, 128, 64, "room")))
    stores = [line.split()[0] for line in to_ptx(shared.text, "sm_90a").splitlines() if "st.global" in line]
    # Two halves of queries and two caches; the status of a run is a number.
    assert sorted(stores) == ["st.global.b64"] * 2 + ["st.global.v2.b32"] * 2 + ["st.global.v4.b16"] * 2
    assert shared.kernel.name == "row_stages" and spilled_bytes(assembled(shared, "sm_90a", tmp_path)) == 0
