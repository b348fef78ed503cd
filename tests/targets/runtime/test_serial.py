"""Jobs and their code as bytes: they come back equal, or are not kept at all."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.errors import SizeLimitError
from dovetail.ir.dim import Dim, Size, check_size, floordiv, largest, smallest, symbol
from dovetail.ir.dtype import f32
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.spec import Job, Packed
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.compiler import written
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.runtime.building import serial as record
from dovetail.targets.runtime.building.build import Built, build, realigned


def plan() -> Plan:
    """Symbolic sizes, weights in a layout of their own, and a step that makes two tensors."""
    x = input("x", f32["rows", 24])
    y = ops.relu(x @ param("w", f32[24, 40]) + param("b", f32[40]))
    values, indices = ops.top_k(y, k=3, axis=-1)
    return make_plan(Graph.of({"y": y, "values": values, "indices": indices}), target=CPU)


def jobs_of(built: Built) -> list[Job]:
    return [job for job in built.jobs if isinstance(job, Job)]


def test_jobs_come_back_equal_but_for_their_text() -> None:
    made = plan()
    before = build(made, BACKEND)
    after = record.from_bytes(made, record.to_bytes(made, before.jobs, BACKEND), BACKEND)
    assert before.entries == after.entries
    assert [job is None for job in before.jobs] == [job is None for job in after.jobs]
    assert any(isinstance(point, Packed) for job in jobs_of(before) for point in job.bindings.values())
    for old, new in zip(jobs_of(before), jobs_of(after), strict=True):
        assert new.kernel.name == written(old.kernel)[0] and new.kernel.pointers == tuple(old.kernel.pointers)
        assert (new.sizes, new.scratch, new.is_checked) == (tuple(old.sizes), old.scratch, old.is_checked)
        for field in fields(Job):
            if field.name != "kernel":
                assert getattr(new, field.name) == getattr(old, field.name), field.name


def test_what_comes_back_runs() -> None:
    made = plan()
    built = build(made, BACKEND)
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((24, 40)).astype(np.float32), rng.standard_normal(40).astype(np.float32)
    x = rng.standard_normal((5, 24)).astype(np.float32)
    again = record.from_bytes(made, record.to_bytes(made, built.jobs, BACKEND), BACKEND)
    runs = [NativeGraph(made, built=r).bind({"w": w, "b": b}).run({"x": x}) for r in (built, again)]
    for name in runs[0]:
        np.testing.assert_array_equal(runs[0][name], runs[1][name])


def test_a_layout_that_cannot_be_spelled_is_not_kept() -> None:
    made = plan()
    built = build(made, BACKEND)
    index, job = next(
        (i, j)
        for i, j in enumerate(built.jobs)
        if isinstance(j, Job) and any(isinstance(point, Packed) for point in j.bindings.values())
    )

    def odd(of: Array) -> Array:
        return of

    bindings = {n: replace(p, pack=odd) if isinstance(p, Packed) else p for n, p in job.bindings.items()}
    jobs = [*built.jobs[:index], replace(job, bindings=bindings), *built.jobs[index + 1 :]]
    with pytest.raises(record.NotSerializable):
        record.to_bytes(made, jobs, BACKEND)


def shifted(array: Array) -> Array:
    """The same numbers at an address that no float has."""
    raw = np.empty(array.nbytes + 1, np.uint8)
    moved = raw[1:].view(np.uint8)[: array.nbytes]
    moved[:] = array.reshape(-1).view(np.uint8)
    found: Array = np.ndarray(array.shape, array.dtype, buffer=moved.data)
    assert not found.flags.aligned
    return found


def test_parameters_at_odd_addresses_give_the_same_bits() -> None:
    made = plan()
    graph = NativeGraph(made)
    rng = np.random.default_rng(0)
    params = {n: rng.standard_normal(s).astype(np.float32) for n, s in {"w": (24, 40), "b": (40,)}.items()}
    odd = {name: shifted(array) for name, array in params.items()}
    found = realigned(made, graph.built, odd)
    assert found["b"].flags.aligned, "a kernel reads it where it lies"
    assert realigned(made, graph.built, params) is params
    x = rng.standard_normal((5, 24)).astype(np.float32)
    expected, got = (graph.bind(p).run({"x": x}) for p in (params, odd))
    np.testing.assert_array_equal(expected["y"], got["y"])


def test_sizes_that_are_longer_than_any_text_come_back() -> None:
    """Tiles of convolutions over images of any size have sizes that nobody would write."""
    size: Size = symbol("width")
    for step in range(1, 5):
        wide = largest(1, smallest(480 + step, floordiv(size + 1, 2)))
        size = 64 * wide * smallest(floordiv(512, wide + 1), floordiv(10922, wide + 1) - 1) + size * wide
    assert isinstance(size, Dim)
    with pytest.raises(SizeLimitError):
        check_size(size)
    writer = record.JsonWriter({}, BACKEND.records)
    spelled = json.loads(json.dumps({"job": writer.spell((size, size, 3)), "sizes": writer.sizes}))
    assert record.Reader((), BACKEND.records, record.read_sizes(spelled["sizes"])).read(spelled["job"]) == (
        size,
        size,
        3,
    )
