"""Traps 36 to 40: what values, rules and costs say before an e-graph is ever built from them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from pytest import MonkeyPatch

from dovetail import Graph, Value, ops
from dovetail.declare import FusedOp, Machine, fused_op
from dovetail.declare.cost import flops_of, kernel_cost
from dovetail.derive.catalogue import index, page
from dovetail.derive.fuse import fuse
from dovetail.derive.rules import rules, spell
from dovetail.dtypes import bool_, f32, i32
from dovetail.ir import leaf, serial
from dovetail.ir.leaf import hole, input, param
from dovetail.ir.origin import Origin
from dovetail.ir.text import parse_graph, print_graph
from dovetail.library import ALL
from dovetail.library.linear import linear
from dovetail.library.matmul_add import matmul_add
from dovetail.library.silu import silu
from dovetail.library.swiglu import swiglu
from dovetail.match import Bound, Mismatch, match
from dovetail.passes.regions import mark_regions
from dovetail.plan.plan import make_plan
from dovetail.plan.text import parse_plan, print_plan
from dovetail.report.json_form import as_json
from dovetail.runtime.compile import compilation, compile, make_request
from dovetail.runtime.vocabulary import vocabulary
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.reference.claims import CLAIMS as REFERENCE
from dovetail.targets.reference.interpreter import evaluate
from tests.library import judge
from tests.library.judge import Array, near, numbers, run
from tests.traps.test_outputs_and_uses import ONLY_LAUNCHES

Form = Callable[[Value], Value]
Formula = Callable[[Array], Array]

TWINS: tuple[tuple[Form, Formula, Form, Formula], ...] = (
    (
        lambda x: ops.reduce_sum(x, axes=(-1,)),
        lambda x: x.sum(-1, keepdims=True),
        lambda x: ops.reduce_sum(x, axes=(-2,)),
        lambda x: x.sum(-2, keepdims=True),
    ),
    (lambda x: ops.flip(x, axes=(-1,)), np.fliplr, lambda x: ops.flip(x, axes=(-2,)), np.flipud),
    (
        lambda x: ops.slice_(x, axis=-1, start=0, stop=2),
        lambda x: x[:, :2],
        lambda x: ops.slice_(x, axis=-1, start=1, stop=3),
        lambda x: x[:, 1:3],
    ),
    (
        lambda x: ops.cum_sum(x, axis=-1),
        lambda x: np.cumsum(x, axis=1),
        lambda x: ops.cum_sum(x, axis=-1, exclusive=True),
        lambda x: np.cumsum(x, axis=1) - x,
    ),
    (
        lambda x: ops.sort(x, axis=-1)[0],
        lambda x: np.sort(x, axis=1),
        lambda x: ops.sort(x, axis=-1, descending=True)[0],
        lambda x: -np.sort(-x, axis=1),
    ),
    (
        lambda x: ops.exp(x) * 0.0,
        lambda x: np.full_like(x, 0.0),
        lambda x: ops.exp(x) * -0.0,
        lambda x: np.full_like(x, -0.0),
    ),
    (
        lambda x: ops.cast(ops.cast(x, dtype=i32), dtype=f32),
        lambda x: np.trunc(x) + 0.0,
        lambda x: ops.cast(ops.cast(x, dtype=bool_), dtype=f32),
        lambda x: np.where(x == 0, 0.0, 1.0),
    ),
)
"""Two values that differ in one attribute, and what each is."""


@pytest.mark.slow
def test_trap_36_what_differs_in_one_attribute_never_merges() -> None:
    """Fed with op names alone, an e-graph unites the sum over rows with the sum over columns, and 0.0 with -0.0.

    Attributes are part of what a value is, of what a pattern asks, of what a rule says and of what is fused.
    """
    x = input("x", f32[4, 4])
    numbers_ = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32).astype(np.float64) * 3
    for one, n_one, other, n_other in TWINS:
        assert one(x) is one(x) is not other(x)
        assert spell(one(hole("x"))) != spell(other(hole("x")))
        for form, twin in ((one, other), (other, one)):
            assert isinstance(match(form(hole("x")), form(x)), Bound)
            assert isinstance(match(form(hole("x")), twin(x)), Mismatch)

        op = _declared(one)
        graph = Graph.of({"one": ops.tanh(one(x)), "other": ops.tanh(other(x))})
        found = fuse(graph, [op], always=True).graph
        assert [v.op is op for v in found.outputs.values()] == [True, False]
        for form in (found, compile(graph).graph):
            got = evaluate(form, {"x": numbers_}, lift=True)
            for name, formula in (("one", n_one), ("other", n_other)):
                wanted = np.tanh(formula(numbers_))
                np.testing.assert_allclose(got[name], wanted, rtol=1e-12)
                np.testing.assert_array_equal(np.signbit(got[name]), np.signbit(wanted))


def _declared(form: Form) -> FusedOp[...]:
    def twin(x: Value) -> Value:
        """tanh of one of two forms."""
        return ops.tanh(form(x))

    return fused_op(twin)


@pytest.mark.slow
def test_trap_36_a_rule_asks_for_shapes_and_dtypes() -> None:
    """A rule without its guards' conditions rewrites every add of a matmul, whatever is added, into a biased one.

    Each rule holds exactly where the guards of its op hold, and has a name of its own.
    """
    listed = rules(ALL)
    # One guard computes the shape of a convolution of any rank, one looks for a weight; they are asked of each match.
    opaque = {r.opaque.partition(":")[0] for r in listed if r.opaque}
    assert opaque == {"keys_are_batched", "residual_has_the_shape_of_the_convolution"}
    assert [name for name, count in Counter(r.name for r in listed).items() if count > 1] == []
    asked = 0
    shapes = ((), (1,), (4,), (6,), (6, 4), (1, 4), (6, 1), (2, 6, 4))
    for rule in rules([linear, matmul_add]):
        names = [name for name, choice in rule.variant.choice.items() if isinstance(choice, Value)]
        for types in product(*(shapes if name in ("b", "d") else ((6, 4), (4, 4)) for name in names)):
            caught: dict[str, Any] = {name: input(name, f32[shape]) for name, shape in zip(names, types, strict=True)}
            caught = {**rule.variant.choice, **caught, "result": input("result", f32[6, 4])}
            for guard in rule.op.guards:
                condition = dict(rule.conditions).get(guard.name)
                assert guard.check(caught) == (condition is None or condition.holds(caught)), (rule.name, guard.name)
                asked += condition is not None and not condition.holds(caught)
    assert asked > 100


@pytest.mark.slow
def test_trap_37_what_is_chosen_is_what_is_returned_and_run() -> None:
    """An optimizer that extracts the best graph and goes on with the old one reports savings that nobody gets.

    What the report calls fused stands in the graph, in the plan, and is what runs.
    """

    @fused_op(shapes="x[*, m, k] w[k, n] b[n]")
    def my_dense(x: Value, w: Value, b: Value) -> Value:
        """relu(x @ w + b)."""
        return ops.relu(x @ w + b)

    x, w, b = input("x", f32[3, 4]), param("w", f32[4, 5]), param("b", f32[5])
    for target in ("reference", "cpu"):
        program = compile(Graph.of(ops.relu(x @ w + b)), target=target, ops=[my_dense])
        chosen = my_dense(x, w, b)
        assert program.graph.outputs["y"] is chosen
        assert [step.value for step in program.plan.steps] == [chosen]
        assert [f.rule for f in program.report.fused] == ["my_dense"] == [k.op for k in program.report.kernels]
        assert program.report.ops_after == {"input": 1, "my_dense": 1, "param": 2}
        arrays = {k: v.astype(np.float32) for k, v in numbers(program.graph).items()}
        bound = program.bind({"w": arrays["w"], "b": arrays["b"]})
        wanted = judge.relu(arrays["x"] @ arrays["w"] + arrays["b"])
        np.testing.assert_allclose(bound(x=arrays["x"])["y"], wanted, rtol=1e-5)
        if target == "cpu":
            continue  # its kernel was generated from the body
        with MonkeyPatch.context() as patch:
            # Another body from here on: a program that runs the fused op gives other numbers now.
            patch.setattr(my_dense, "body", lambda x, w, b: ops.relu(x @ w + b) + 1.0)  # pyright: ignore
            np.testing.assert_allclose(bound(x=arrays["x"])["y"], wanted + 1, rtol=1e-5)


def doubled(x: Value, times: int) -> Value:
    """2 ** times · x, as a DAG of so many adds: as a tree it has 2 ** times leaves."""
    for _ in range(times):
        x = x + x
    return x


@pytest.mark.slow
def test_trap_38_shared_work_is_counted_once() -> None:
    """Costed as a tree, a value with two readers counts twice, one behind sixty of them 2 ** 60 times.

    Work, traffic and time count every value once, in kernels, in the bodies of fused ops and in whole programs.
    """
    x, w = input("x", f32[16, 16]), param("w", f32[16, 16])

    @fused_op(shapes="x[*]")
    def sixty_fold(x: Value) -> Value:
        """x + x, sixty times over."""
        return doubled(x, 60)

    assert flops_of(sixty_fold(x)) == 60 * 256
    assert flops_of(mark_regions(Graph.of(doubled(x, 60))).graph.outputs["y"]) == 60 * 256
    # A square reads its one operand once.
    assert kernel_cost(x * x).bytes == 2 * 16 * 16 * 4
    made = compilation(Graph.of(doubled(x @ w, 60)), make_request(without=["fuse", "mark_regions", "fuse_epilogues"]))
    product = x @ w
    wanted = made.machine.seconds(kernel_cost(product)) + 60 * made.machine.seconds(kernel_cost(product + product))
    assert math.isclose(made.report().predicted_seconds, wanted, rel_tol=1e-9)


@pytest.mark.slow
def test_trap_38_a_product_with_two_readers_is_not_computed_twice() -> None:
    """A matmul that feeds two bias adds looks cheaper inside both: each fusion takes the saving, and it runs twice.

    What others read is paid for beside the fused kernel, so that fusing never makes a graph cost more.
    """
    x, w = input("x", f32[64, 256]), param("w", f32[256, 256])
    first, second = param("first", f32[256]), param("second", f32[256])
    shared = x @ w
    graph = Graph.of({"p": ops.relu(shared + first), "q": ops.relu(shared + second)})
    slow = Machine(flops_per_second=1e9, bytes_per_second=1e12, launch_seconds=1e-6)
    found = fuse(graph, ALL, machine=slow).graph
    assert sum("matmul" in v.op.name or v.op is linear for v in found.values) == 1
    for machine in (slow, ONLY_LAUNCHES, Machine(1e12, 1e9, 1e-6)):
        for outputs in (graph.outputs, {**graph.outputs, "shared": shared}):
            before = Graph.of(outputs)
            after = fuse(before, ALL, machine=machine).graph
            seconds = [
                sum(machine.seconds(kernel_cost(v)) for v in g.values if v.op not in leaf.LEAVES)
                for g in (before, after)
            ]
            assert seconds[1] <= seconds[0] * (1 + 1e-9)
            arrays = numbers(before)
            product_ = arrays["x"] @ arrays["w"]
            near(run(after, arrays)["p"], judge.relu(product_ + arrays["first"]))
            near(run(after, arrays)["q"], judge.relu(product_ + arrays["second"]))


HOSTILE = (
    'quote " and \\ backslash',
    "two\nlines\r\n\ttab",
    "graph x(y: f32[4]) {",
    '") (run 1000000) (print "',
    "; comment # comment // comment",
    "{b.type} %s ${HOME}",
    "</script><script>alert(1)</script>",
    "%0",
    " ",
    "ünïcödé ∞ \u2028 \u202e \U0001f600",
    "NUL \0 and bell \a",
    "a, b = c",
)


def hostile_graph() -> Graph:
    """One op for each hostile name, which is an input, a parameter, an output, an origin and the graph's."""
    outputs: dict[str, Value] = {}
    origins: dict[Value, tuple[Origin, ...]] = {}
    for name in HOSTILE:
        x, w, b = input(f"x{name}", f32[2, 3]), param(f"w{name}", f32[3, 4]), param(f"b{name}", f32[2, 4])
        y = outputs[name] = ops.relu(x @ w + b)
        origins[y] = (Origin("module", name), Origin("onnx", name * 2))
    return replace(Graph.of(outputs, name=HOSTILE[0]), origins=origins)


@pytest.mark.slow
def test_trap_39_names_are_no_part_of_any_language() -> None:
    """A name that is pasted into a program text ends a string, opens a rule, or runs a command of its own.

    Names with quotes, line ends and brackets survive text, bytes, plans, JSON and a run, each as it was given.
    """
    graph = hostile_graph()
    again = [parse_graph(print_graph(graph), vocabulary()), serial.from_buffer(serial.to_bytes(graph), vocabulary())]
    planned = make_plan(graph, target=REFERENCE)
    again.append(parse_plan(print_plan(planned), vocabulary()).graph)
    for other in again:
        assert other.name == graph.name
        assert list(other.outputs) == list(HOSTILE)
        assert all(other.outputs[name] is graph.outputs[name] for name in HOSTILE)
        assert {v: other.origins.get(v) for v in graph.origins} == dict(graph.origins)
    assert len(print_graph(graph).splitlines()) == len(print_graph(graph).split("\n")) - 1
    program = compile(graph, without=["linear", "matmul_add"])
    report = json.loads(as_json(program.report))
    assert report["graph"] == graph.name
    assert {name for fused in report["fused"] for name in fused["where"]} == {f"{name}, {name * 2}" for name in HOSTILE}
    arrays = {k: v.astype(np.float32) for k, v in numbers(graph).items()}
    params = {f"{letter}{name}": arrays[f"{letter}{name}"] for letter in "wb" for name in HOSTILE}
    got = program.bind(params).run({f"x{name}": arrays[f"x{name}"] for name in HOSTILE})
    for name in HOSTILE:
        wanted = judge.relu(arrays[f"x{name}"] @ arrays[f"w{name}"] + arrays[f"b{name}"])
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5)
    joined = Graph.of({"a, b = c": ops.exp(input("x", f32[2])), "d": ops.exp(input("y", f32[2]))})
    split = Graph.of({"a": joined.outputs["a, b = c"], "b = c, d": joined.outputs["d"]})
    assert make_plan(joined, target=CPU).fingerprint != make_plan(split, target=CPU).fingerprint


def test_trap_39_words_of_a_declaration_are_quoted_in_rules_and_pages() -> None:
    """Options and documentation are an author's words too: a bracket or bar among them changes what a rule says.

    A rule quotes every word that is no plain name, tells words from dtypes, and a table keeps its columns.
    """

    @fused_op(shapes="x[*]")
    def odd(x: Value, *, how: Literal["a), b=(c", "two\nlines", "f32"] = "f32") -> Value:
        """exp(-x) | tanh(-x)."""
        form = {"a), b=(c": ops.exp, "two\nlines": ops.tanh, "f32": ops.relu}[how]
        return form(ops.neg(x))

    assert sorted(str(rule) for rule in rules([odd])) == [
        'odd[x, how="a), b=(c"]\n  exp(neg(?x))',
        'odd[x, how="two\\nlines"]\n  tanh(neg(?x))',
        "odd[x, how=f32]\n  relu(neg(?x))",
    ]
    assert index([odd], {}).splitlines()[-1] == "| [`odd`](odd.md) | fuse | - | exp(-x) \\| tanh(-x) |"
    assert 'Literal["a), b=(c", "two\\nlines", "f32"]' in page(odd)
    word, dtype = (odd(hole("x"), how="f32"), ops.cast(hole("x"), dtype=f32))
    assert spell(word) == 'odd(?x, how="f32")'
    assert spell(dtype) == "cast(?x, dtype=f32)"


BLOCKS = 1_000
SOME = (silu, swiglu, linear, matmul_add)


def tower(count: int) -> Graph:
    """So many blocks of a gated product, a residual sum and a dense layer: ten nodes each."""
    x, b = input("x", f32[4, 8]), param("b", f32[8])
    up, gate, down, w = (param(name, f32[8, 8]) for name in ("up", "gate", "down", "w"))
    for _ in range(count):
        pre = x @ gate
        x = x + ((x @ up) * (pre * ops.sigmoid(pre))) @ down
        x = ops.relu(x @ w + b)
    return Graph.of(x)


@pytest.mark.slow
def test_trap_40_no_size_turns_fusion_off() -> None:
    """Optimizers that give up above so many nodes say nothing about it, and go on counting what they did not do.

    A graph of ten thousand nodes is fused block by block like one of ten, and what is counted is what is there.
    """
    for count in (1, BLOCKS):
        graph = tower(count)
        assert graph.count() == 10 * count + 6
        found = fuse(graph, SOME)
        done = Counter(a.rule for a in found.applied)
        assert done == {"silu": count, "swiglu": count, "matmul_add": count, "linear": count}
        there = Counter(v.op.name for v in found.graph.values)
        assert there == {"input": 1, "param": 5, "swiglu": count, "matmul_add": count, "linear": count}
        assert not found.missed
        assert all(a.value in found.graph.uses.readers for a in found.applied if a.rule != "silu")
