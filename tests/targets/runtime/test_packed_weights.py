"""Packed weights: shared between programs, and originals that go and come back to the last bit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, Program, Value, library, ops
from dovetail.dtypes import f32, i64
from dovetail.ir import leaf
from dovetail.kernels.spec import Packed
from dovetail.targets.cpu.conv.packing import Packing
from dovetail.targets.cpu.gemm.f32.pack import Panels
from dovetail.targets.cpu.native import NativeRunner
from dovetail.targets.runtime.building.packed_weights import PACKED_WEIGHTS

Array = NDArray[Any]
X = leaf.input("x", f32["n", 24])


def param(name: str, *shape: int) -> Value:
    return leaf.param(name, f32[shape])


def any_bits(*shape: int, seed: int = 0) -> Array:
    """Infinities, NaN, denormals and both zeros among them."""
    raw = np.random.default_rng([seed, *shape]).integers(0, 256, 4 * int(np.prod(shape)), np.uint8)
    return raw.view(np.float32).reshape(shape).copy()


def frozen(array: Array) -> Array:
    """The array, read-only: programs take it as it is."""
    array.flags.writeable = False
    return array


def runner(program: Program) -> NativeRunner:
    found = program._ready(program._binding)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(found, NativeRunner)
    return found


def is_held(program: Program, name: str) -> bool:
    return program._binding.params.cells[name]._held is not None  # pyright: ignore[reportPrivateUsage]


W, Q, K, V, T = param("w", 24, 40), param("q", 24, 8), param("k", 24, 8), param("v", 24, 8), param("t", 40, 24)
GRAPHS: dict[str, tuple[Value, ...]] = {
    "plain": (ops.tanh(X @ W),),
    "turned": (X @ ops.permute(T, order=(-1, -2)),),
    "joined": (X @ ops.concat(Q, K, V, axis=-1),),
    "side by side": (X @ Q, X @ K, X @ V),
    "gated": (library.swiglu(X, param("up", 24, 48), param("gate", 24, 48)),),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GRAPHS)
def test_originals_go_and_come_back_to_the_last_bit(kind: str) -> None:
    graph = Graph.of({f"y{i}": v for i, v in enumerate(GRAPHS[kind])})
    sizes: Mapping[str, Any] = {str(v.attrs["name"]): v.shape for v in graph.parameters}
    arrays = {name: frozen(any_bits(*shape, seed=i)) for i, (name, shape) in enumerate(sizes.items())}
    wanted = {name: a.copy() for name, a in arrays.items()}
    program = dovetail.compile(graph)
    program.bind(arrays)
    assert [is_held(program, name) for name in arrays] == [False] * len(arrays)
    seen = [weakref.ref(a) for a in arrays.values()]
    assert all(program.params[name] is a for name, a in arrays.items()), "the caller holds them"
    del arrays
    gc.collect()
    assert all(ref() is None for ref in seen)
    for name, array in program.params.items():
        assert (array.dtype, array.shape) == (np.float32, wanted[name].shape)
        assert array.tobytes() == wanted[name].tobytes(), name


@pytest.mark.slow
def test_what_a_run_reads_where_it_lies_is_held() -> None:
    table, ids = param("table", 30, 24), leaf.input("ids", i64["n"])
    h = ops.gather(table, ids, axis=-2)
    tied = h @ ops.permute(table, order=(-1, -2)) + param("bias", 30)
    program = dovetail.compile(Graph.of({"y": tied, "w": W}))
    params = {"table": any_bits(30, 24), "bias": any_bits(30), "w": any_bits(24, 40)}
    program.bind(params)
    assert all(is_held(program, name) for name in params)


@pytest.mark.slow
def test_a_program_goes_on_after_its_originals_are_gone() -> None:
    """Specialised, with one parameter bound anew, and asked for its graph's arrays."""
    rng = np.random.default_rng(1)
    w, q = (rng.normal(size=s).astype(np.float32) for s in ((24, 40), (40, 8)))
    x = rng.normal(size=(5, 24)).astype(np.float32)
    program = dovetail.compile(Graph.of(ops.relu(X @ W) @ param("q", 40, 8)), params={"w": w.copy(), "q": q.copy()})
    first = program.run({"x": x})["y"]
    gc.collect()
    assert not is_held(program, "w")
    special = program.specialize({"n": 5})
    assert special.run({"x": x})["y"].tobytes() == first.tobytes()
    program.bind({"q": 2 * q})
    np.testing.assert_array_equal(program.run({"x": x})["y"], 2 * first)
    assert program.params["w"].tobytes() == w.tobytes()
    assert special.run({"x": x})["y"].tobytes() == first.tobytes()


@pytest.mark.slow
def test_arrays_that_came_with_a_graph_go_too() -> None:
    array = any_bits(24, 40)
    graph = Graph.of(X @ W)
    graph = Graph(graph.name, graph.inputs, graph.outputs, params={"w": array.copy()})
    program = dovetail.compile(graph)
    seen = weakref.ref(graph.params["w"])
    del graph
    program.run({"x": np.ones((2, 24), np.float32)})
    gc.collect()
    assert seen() is None
    assert program.graph.params["w"].tobytes() == program.params["w"].tobytes() == array.tobytes()


def test_the_largest_weight_is_packed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads take weights in turn: the largest as the last one would leave one of them idle."""
    sizes = {"small": 16, "large": 64, "middle": 32}
    packed: list[int] = []

    def pack(self: Panels, *given: Array) -> Array:
        packed.append(sum([array.size for array in given]))
        return original(self, *given)

    def in_turn(pack: Callable[[Packed], Array], bindings: Sequence[Packed]) -> list[Array]:
        return [pack(binding) for binding in bindings]

    original = Panels.__call__
    monkeypatch.setattr(Panels, "__call__", pack)
    monkeypatch.setattr("dovetail.targets.runtime.building.packed_weights._in_two_threads", in_turn)
    rows = {name: leaf.input(f"{name} rows", f32["n", 24]) for name in sizes}
    graph = Graph.of({name: rows[name] @ param(name, 24, size) for name, size in sizes.items()})
    runner(dovetail.compile(graph, params={name: any_bits(24, size) for name, size in sizes.items()}))
    assert packed == [24 * 64, 24 * 32, 24 * 16]


@pytest.mark.parametrize("constant", [False, True])
def test_programs_that_bind_one_array_share_what_is_packed(constant: bool) -> None:
    array = any_bits(24, 40)
    array.flags.writeable = not constant
    other = param("other", 24, 40)
    one = dovetail.compile(Graph.of(X @ W)).bind({"w": array})
    two = dovetail.compile(Graph.of(ops.relu(X @ other))).bind({"other": array})
    (mine,), (theirs,) = runner(one).packed.arrays.values(), runner(two).packed.arrays.values()
    assert mine is theirs
    (apart,) = runner(dovetail.compile(Graph.of(X @ W)).bind({"w": array.copy()})).packed.arrays.values()
    assert apart is not mine


@pytest.mark.slow
def test_what_is_shared_dies_with_its_last_user() -> None:
    gc.collect()
    before = len(PACKED_WEIGHTS)
    array = any_bits(24, 40)
    programs = [dovetail.compile(Graph.of(X @ W)).bind({"w": array}) for _ in range(2)]
    assert len(PACKED_WEIGHTS) == before + 1
    programs.pop()
    gc.collect()
    assert len(PACKED_WEIGHTS) == before + 1
    programs.clear()
    gc.collect()
    assert len(PACKED_WEIGHTS) == before


@pytest.mark.slow
def test_an_array_that_was_changed_and_is_bound_again_counts_as_it_is_now() -> None:
    array = np.ones((24, 40), np.float32)
    x = np.ones((2, 24), np.float32)
    one = dovetail.compile(Graph.of(X @ W)).bind({"w": array})
    array *= 2
    two = dovetail.compile(Graph.of(X @ W)).bind({"w": array})
    assert float(one.run({"x": x})["y"][0, 0]) == 24 and float(two.run({"x": x})["y"][0, 0]) == 48
    one.bind({"w": array})
    assert float(one.run({"x": x})["y"][0, 0]) == 48
    del array
    gc.collect()
    assert float(one.params["w"][0, 0]) == float(two.params["w"][0, 0]) == 2


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("streams", "size", "count"), [(((0, 0),), 17, 1), (((0, 0), (1, 0)), 9, 2), (((0, 0), (0, 16)), 16, 1)]
)
def test_panels_are_taken_apart(streams: tuple[tuple[int, int], ...], size: int, count: int, turned: bool) -> None:
    pack = Panels(16, streams, size, turned)
    wide = size * len(streams) // count
    shapes = [(3, wide, 5) if turned else (3, 5, wide)] * count
    given = [any_bits(*shape, seed=i) for i, shape in enumerate(shapes)]
    assert pack.holds(shapes)
    for found, array in zip(pack.unpack(pack(*given), shapes), given, strict=True):
        assert found.tobytes() == array.tobytes()
    assert not Panels(16, streams[:1], size - 1, turned).holds(shapes)


@pytest.mark.parametrize(("groups", "filters"), [(1, 7), (3, 6)])
def test_windows_are_taken_apart(groups: int, filters: int) -> None:
    pack = Packing(groups, 4)
    weights = any_bits(filters, 5, 3, 3)
    assert pack.holds([weights.shape])
    (found,) = pack.unpack(pack(weights), [weights.shape])
    assert found.shape == weights.shape and found.tobytes() == weights.tobytes()


def test_who_asks_memory_for_what_was_let_go_gets_it() -> None:
    """The host may have to run any step by its meaning."""
    array = any_bits(24, 40)
    memory = runner(dovetail.compile(Graph.of(X @ W)).bind({"w": array.copy()})).bound.copy()
    assert W not in memory.own
    assert memory.view(W).tobytes() == array.tobytes()
