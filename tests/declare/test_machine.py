"""The model of a machine: what work and traffic come to, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

from dovetail import library, ops
from dovetail.declare.cost import (
    Cost,
    Level,
    Machine,
    Peak,
    Reach,
    is_given,
    kernel_cost,
    largest_bytes,
    streamed_bytes,
)
from dovetail.dtypes import bf16, f32, f64, i64
from dovetail.ir.graph import Graph
from dovetail.ir.leaf import input, param
from dovetail.targets.cuda.claims import MACHINE as H200

MACHINE = Machine(
    flops_per_second=1e9,
    bytes_per_second=1e6,
    launch_seconds=0.5,
    levels=(Level(100, 1e8), Level(1000, 1e7)),
    reach=Reach({"contract": 0.5, "conv": 0.25, "conv.3x3": 2.0, "map": 0.1}),
    overlap=0.75,
)
X, W = input("x", f32[4, 8]), param("w", f32[8, 16])


def test_without_levels_the_slower_of_work_and_traffic_counts() -> None:
    plain = Machine(1e9, 1e6, 0.5)
    assert plain.seconds(Cost(3_000_000_000, 1_000_000)) == 3.5
    assert plain.seconds(Cost(1_000_000, 4_000_000)) == 4.5


def test_bytes_are_priced_by_the_level_that_holds_them() -> None:
    assert [MACHINE.bandwidth(b) for b in (0, 100, 101, 1000, 1001)] == [1e8, 1e8, 1e7, 1e7, 1e6]
    assert MACHINE.moving(100) == 100 / 1e8


def test_of_a_larger_tensor_a_part_is_found_in_each_level() -> None:
    assert math.isclose(MACHINE.moving(500), 100 / 1e8 + 400 / 1e7)
    assert math.isclose(MACHINE.moving(3000), 100 / 1e8 + 900 / 1e7 + 2000 / 1e6)
    assert math.isclose(MACHINE.floor(Cost(0, 500)), MACHINE.moving(500)), "the roofline has no other levels"


def test_a_result_of_a_reduction_has_a_price_of_its_own() -> None:
    """However short its rows are; the roofline does not count it."""
    slow = replace(MACHINE, row_seconds=1e-3)
    short, long = (kernel_cost(ops.reduce_sum(input("r", f32[rows, 64 // rows]), axes=(-1,))) for rows in (32, 1))
    assert (short.rows, long.rows, short.flops) == (32, 1, long.flops)
    assert math.isclose(slow.work(short) - MACHINE.work(short), 32e-3)
    assert slow.floor(short) == MACHINE.floor(short)
    norm = library.layer_norm(input("n", f32[4, 8]), eps=1e-5)
    assert kernel_cost(norm).rows == 2 * 4, "a mean and a variance for each row"


def test_what_kernels_pass_on_has_a_rate_of_its_own() -> None:
    """What another thread has just written comes later than what a thread reads again; the roofline does not mind."""
    passing = replace(MACHINE, levels=(Level(100, 1e8, 2e7), Level(1000, 1e7)))
    assert [passing.passing(b) for b in (100, 101, 1001)] == [2e7, 1e7, 1e6]
    assert passing.moving(50) == 50 / 2e7
    cost = Cost(0, 80, given=30)
    assert math.isclose(passing.seconds(cost), 50 / 2e7 + 30 / 1e8 + 0.5)
    assert math.isclose(passing.floor(cost), 80 / 1e8)
    assert passing.flat(80).bytes_per_second == 2e7


def test_what_is_given_is_as_far_as_the_whole_model() -> None:
    """A hundred bytes of weights of a model of a million come from main memory, whatever fits a cache."""
    cost = Cost(0, 150, given=100)
    assert math.isclose(MACHINE.floor(cost), 50 / 1e8 + 100 / 1e8)
    assert math.isclose(MACHINE.streaming(1_000_000).floor(cost), 50 / 1e8 + 100 / 1e6)


def test_multiply_adds_and_other_work_have_their_own_share_of_the_peak() -> None:
    cost = Cost(3_000_000, 0, 0, 2_000_000, "contract")
    assert math.isclose(MACHINE.seconds(cost), 2e-3 / 0.5 + 1e-3 / 0.1 + 0.5)
    assert math.isclose(MACHINE.seconds(Cost(2_000_000, 0, 0, 2_000_000, "conv.3x3")), 1e-3 + 0.5)
    assert math.isclose(MACHINE.floor(cost), 3e-3), "the roofline knows no excuses"


def test_a_part_of_the_shorter_is_hidden() -> None:
    """Work of 2 ms, traffic of 4 ms: three quarters of the shorter are hidden behind the longer."""
    cost = Cost(200_000, 4_000)
    assert math.isclose(replace(MACHINE, levels=()).seconds(cost), 4e-3 + 0.25 * 2e-3 + 0.5)


def test_a_flat_machine_never_prefers_two_kernels_to_one() -> None:
    """By levels two small tensors are nearer than a large one, which no kernel can help."""
    half, whole = Cost(0, 80), Cost(0, 160)
    assert 2 * (MACHINE.seconds(half) - 0.5) < MACHINE.seconds(whole) - 0.5
    flat = MACHINE.streaming(10**6).flat(160)
    assert math.isclose(2 * (flat.seconds(half) - 0.5), flat.seconds(whole) - 0.5)
    assert flat.bytes_per_second == 1e7 and flat.given_per_second == 1e6


def test_what_was_there_before_a_run_is_told_from_what_it_made() -> None:
    joined = ops.concat(W, W, axis=-1)
    assert is_given(X) and is_given(joined) and is_given(ops.permute(W, order=(-1, -2)))
    assert not is_given(X @ W) and not is_given(ops.concat(W, ops.exp(W), axis=-1))
    cost = kernel_cost(ops.exp(X) @ W)
    assert (cost.given, cost.dense, cost.kind) == (8 * 16 * 4, 2 * 4 * 8 * 16, "contract")
    assert cost.bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)


def test_a_gather_reads_what_it_writes() -> None:
    table, rows = param("table", f32[1000, 8]), input("rows", i64[3])
    found = ops.gather(table, rows, axis=0)
    assert kernel_cost(found).given == 3 * 8 * 4 + 3 * 8
    assert kernel_cost(found).bytes == 2 * 3 * 8 * 4 + 3 * 8


def test_a_small_table_is_read_once() -> None:
    table, rows = param("table", f32[2, 8]), input("rows", i64[30])
    assert kernel_cost(ops.gather(table, rows, axis=0)).given == 2 * 8 * 4 + 30 * 8


def test_what_a_run_streams_is_read_whole() -> None:
    table, rows = param("table", f32[1000, 8]), input("rows", i64[3])
    graph = Graph.of(ops.gather(table, rows, axis=0) @ W)
    assert streamed_bytes(graph.values) == 8 * 16 * 4
    assert largest_bytes(graph.values) == 3 * 16 * 4


def test_convolutions_are_told_apart_by_what_their_sums_share() -> None:
    image = input("image", f32[1, 4, 8, 8])
    shapes = ((4, 3, 1, 1, "conv.3x3"), (4, 3, 2, 1, "conv"), (4, 1, 1, 1, "conv"), (2, 3, 1, 2, "conv"))
    for channels, window, stride, groups, kind in (*shapes, (1, 3, 1, 4, "conv.depthwise")):
        weights = param("k", f32[4, channels, window, window])
        value = ops.conv(image, weights, strides=stride, dilations=1, padding=1, groups=groups)
        assert kernel_cost(value).kind == kind
    turned = ops.conv_transpose(image, param("t", f32[4, 4, 2, 2]), strides=2)
    assert kernel_cost(turned).kind == "conv.transposed"


def test_a_kind_that_is_not_listed_reaches_what_it_refines() -> None:
    """Kinds are open: a target lists those that its kernels tell apart."""
    reach = MACHINE.reach
    assert [reach.of(k) for k in ("conv.3x3", "conv.depthwise", "conv", "sort", "sort.stable")] == [2, 0.25, 0.25, 1, 1]
    cost = Cost(1_000_000, 0, 0, 1_000_000, "conv.depthwise")
    assert math.isclose(MACHINE.seconds(cost), 1e-3 / 0.25 + 0.5)


def test_a_peak_is_that_of_a_kind_in_a_dtype() -> None:
    """Matrix units multiply bf16 ten times as fast, and do nothing for what is added to the products."""
    machine = replace(
        MACHINE, peaks=(Peak("contract", "bf16", 1e10), Peak("conv", "bf16", 1e10), Peak("map", "f64", 5e8))
    )
    assert machine.peak() == machine.peak(f32) == machine.peak(f32, "contract") == machine.peak(i64, "contract") == 1e9
    assert machine.peak(bf16, "contract") == machine.peak(bf16, "conv.3x3") == 1e10
    assert machine.peak(bf16) == 1e9 and machine.peak(f64) == 5e8 and machine.peak(f64, "contract") == 1e9
    cost = Cost(3_000_000, 0, 0, 2_000_000, "contract", bf16)
    assert math.isclose(machine.seconds(cost), 2e-4 / 0.5 + 1e-3 / 0.1 + 0.5)
    assert math.isclose(machine.floor(cost), 2e-4 + 1e-3)
    assert math.isclose(machine.seconds(replace(cost, dtype=f32)), MACHINE.seconds(replace(cost, dtype=None)))


def test_a_kernel_computes_in_the_dtype_of_its_operands() -> None:
    x, w = input("x", bf16[4, 8]), param("w", bf16[8, 16])
    assert kernel_cost(x @ w).dtype is bf16
    assert kernel_cost(library.linear(x, w, act="relu")).dtype is bf16
    assert kernel_cost(X @ W).dtype is f32
    assert kernel_cost(ops.cast(input("i", i64[4]), dtype=f64)).dtype is f64


def test_the_gpu_multiplies_narrow_numbers_faster() -> None:
    """By the figures of an H200: 750 TFLOP/s in bf16, 51 in f32, 33 in f64."""
    costs = [kernel_cost(input("x", d[4096, 4096]) @ input("y", d[4096, 4096])) for d in (bf16, f32, f64)]
    flops = 2 * 4096**3
    floors = [H200.floor(cost) for cost in costs]
    for found, rate in zip(floors, (7.5e14, 5.1e13, 3.3e13), strict=True):
        assert math.isclose(found, flops / rate)
