"""Collectives explained without devices: counts, reasons, places, prices and remedies."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Builder, Graph, compile, ops, save
from dovetail.cli.main import main
from dovetail.errors import OptionError
from dovetail.ir.dtype import f32, i64
from dovetail.mesh import choose_placement, explain_placement
from dovetail.models.llama import LlamaShape, llama
from dovetail.ops import tracing
from dovetail.report.lock import read_lock
from dovetail.targets import xla
from dovetail.targets.xla.explain import child
from dovetail.targets.xla.explain.auto import Chosen, PricedPlacement
from dovetail.targets.xla.explain.collective import Collective, Link, Links
from dovetail.targets.xla.explain.explained import Explained, shortfalls
from dovetail.testing import assert_placed
from dovetail.train import SGD, Trainer
from tests.targets.xla.meshes import totals_of

pytest.importorskip("jax")
compiled_collectives: Any = pytest.importorskip("dovetail.targets.xla.explain.compiled").compiled_collectives

SHAPE = LlamaShape(layers=2, hidden=64, heads=8, kv_heads=4, inner=128, vocabulary=64)
MESH = {"dp": 2, "tp": 4}


def graph(shape: LlamaShape = SHAPE) -> Graph:
    return llama(shape, batch=8, seq=8)


def explained(shape: LlamaShape = SHAPE, place: dict[str, str] | None = None) -> Explained:
    rules = {f"layers.*.{name}": words for name, words in (place or {}).items()}
    return explain_placement(graph(shape), mesh=MESH, place=rules, preset="tensor")


def test_two_sums_a_layer_and_why() -> None:
    found = explained()
    assert_placed(found, all_reduce=4)
    with pytest.raises(AssertionError, match=r"layers\.\*\.wo is placed"):
        assert_placed(found, all_reduce=3)
    assert shortfalls(found, ["all-reduce=2/layer", "all-gather=0"]) == []
    assert shortfalls(found, ["all-reduce=3"]) == ["all-reduce: found 4, expected 3"]
    first, second = found.groups()
    assert (first[1], second[1]) == (2, 2)
    reasons = {first[0].why, second[0].why}
    assert any('layers.*.wo is placed "tp"' in why for why in reasons)
    assert any('layers.*.down is placed "tp"' in why for why in reasons)
    assert first[0].place == "layers.*/matmul" and first[0].axes == ("tp",) and first[0].bytes == 8 * 8 * 64 * 4 // 2
    assert found.remedies == []


@pytest.mark.parametrize(
    ("shape", "place", "remedy"),
    [
        (SHAPE, {"wo": "- tp"}, ("layers.*.wo", "tp", "- tp")),
        (replace(SHAPE, kv_heads=2), {}, ("layers.*.wk", "-", "- tp")),
    ],
    ids=["a wrong wo", "two key heads on four devices"],
)
def test_a_wrong_placement_has_the_remedy_that_mends_it(
    shape: LlamaShape, place: dict[str, str], remedy: tuple[str, str, str]
) -> None:
    found = explained(shape, place)
    best = found.remedies[0]
    assert (best.pattern, best.placed, best.instead_of) == remedy
    assert best.seconds > 0 and best.collectives < len(found.collectives)
    changed = explained(shape, {**place, best.pattern.removeprefix("layers.*."): best.placed})
    assert len(changed.collectives) == best.collectives
    assert abs(found.seconds - changed.seconds - best.seconds) < 1e-9


def test_every_collective_of_drawn_placements_has_a_place_and_a_reason() -> None:
    draw = random.Random(0)
    place = {name: draw.choice(["-", "tp", "- tp", "dp", "- dp", "dp tp"]) for name in ("wq", "wv", "wo", "up", "down")}
    found = explained(place=place).collectives
    assert found
    for one in found:
        assert one.place != "the program" and one.origins and one.axes and one.bytes > 0, (place, one)


def table() -> Graph:
    """The rows of two tables at the same indices."""
    builder = Builder("table")
    at = builder.input("at", i64[8])
    for name in ("v", "w"):
        builder.output(f"{name}_rows", ops.gather(builder.param(name, f32[16, 8]), at, axis=-2))
    return builder.graph()


def looped(kind: str) -> Graph:
    """A product with w in the body of a loop or in a branch."""
    builder = Builder(kind)
    start, state = builder.input("start", f32[()]), builder.input("state", f32[4, 8])
    xs, before, w = builder.input("xs", f32[5, 4, 8]), builder.param("before", f32[4, 8]), builder.param("w", f32[8, 8])
    match kind:
        case "scan":
            y = tracing.scan(lambda s, x, w: (ops.tanh(s @ w + x),), [state], [xs], [w]).carries[0]
        case "while":
            y = tracing.while_loop(
                lambda n, s, w: ops.less(n, 9.0), lambda n, s, w: (n + 1.0, ops.tanh(s @ w)), [start, state], [w]
            )[0][1]
        case _:
            y = tracing.cond(ops.greater(start, 0.0), lambda s, w: (s @ w,), lambda s, w: (s,), state, w)[0]
    builder.output("y", before + y)
    return builder.graph()


def test_every_call_of_one_function_counts() -> None:
    found = explain_placement(table(), mesh={"tp": 4}, place={"[vw]": "tp"})
    assert [(c.kind, c.place, c.origins) for c in found.collectives] == [
        ("all-reduce", "program/gather", (name,)) for name in ("v", "w")
    ]
    assert found.totals == {"all-reduce": (2, 2 * 8 * 8 * 4)}


@pytest.mark.parametrize("kind", ["scan", "while", "if"])
def test_bodies_are_looked_into(kind: str) -> None:
    found = explain_placement(looped(kind), mesh={"tp": 4}, place={"w": "tp"})
    (one,) = found.collectives
    assert one.kind == "all-reduce" and one.place == f"program/{kind}"
    assert one.origins == ("w",) and 'since w is placed "tp"' in one.why
    assert ("once in every trip of a loop" in one.why) == (kind in ("scan", "while"))
    assert found.totals == totals_of(compiled_collectives(found.graph, found.placement))


def test_origins_in_a_body_are_arguments_of_the_program() -> None:
    found = explain_placement(looped("scan"), mesh={"tp": 4}, place={"w": "- tp"})
    (one,) = found.collectives
    assert (one.kind, one.place, one.origins) == ("all-gather", "program/scan", ("w",))
    assert one.why.startswith("it comes split over tp, and ") and 'since w is placed "- tp"' in one.why


def test_a_training_step_moves_the_bytes_of_all_weights_once() -> None:
    builder = Builder("network")
    x, up = builder.input("x", f32[8, 16]), builder.param("up", f32[16, 4])
    builder.output("logits", ops.matmul(x, up))
    step = Trainer(builder.graph(), "cross_entropy", SGD(momentum=0.5), target="reference").program.graph
    found = explain_placement(step, mesh={"dp": 8}, place={"x": "dp", "labels": "dp"})
    assert {(c.kind, c.axes) for c in found.collectives} == {("all-reduce", ("dp",))}
    (weights,) = [c for c in found.collectives if c.shape == (16, 4)]
    assert weights.bytes == up.tensor.bytes
    assert 'x is placed "dp"' in weights.why


def test_prices_are_those_of_rings() -> None:
    one = Collective("all-reduce", ("tp",), 4, (256,), "f32", 1024, "layers.0/matmul", "", ())
    links = Links({"tp": Link(1e-6, 1e9)})
    assert one.seconds(links) == pytest.approx(2 * (0.75 * 1024 / 1e9 + 3e-6))
    assert replace(one, kind="all-gather").seconds(links) == pytest.approx(0.75 * 1024 / 1e9 + 3e-6)
    assert replace(one, kind="slice").seconds(links) == 0


def test_sizes_must_be_known() -> None:
    with pytest.raises(OptionError, match="sizes that are not known"):
        explain_placement(llama(SHAPE, batch="b", seq=8), mesh=MESH)


MODEL = "llama:layers=2,hidden=64,heads=8,kv_heads=4,inner=128,vocabulary=64,batch=8,seq=8"


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "place.txt"
    rules.write_text("# the output product\nlayers.*.wo: tp\n", encoding="utf-8")
    asked = ["place", MODEL, "--mesh", "dp=2,tp=4", "--place", str(rules), "--place", "tensor"]
    assert main([*asked, "--require-collectives", "all-reduce=2/layer"]) == 0
    assert "4 collectives" in capsys.readouterr().out
    assert main([*asked, "--json", "--require-collectives", "all-gather=1"]) != 0
    out = capsys.readouterr()
    assert json.loads(out.out)["collectives"][0]["kind"] == "all-reduce"
    assert "all-gather: found 0, expected 1" in out.err
    assert main(["explain", MODEL, "--place", "tensor"]) != 0


def test_gates_of_fusions_hold_on_a_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    placed = ["place", MODEL, "--mesh", "dp=2,tp=4", "--place", "tensor"]
    assert main(placed) == 0
    capsys.readouterr()
    assert main([*placed, "--require", "swiglu=2"]) == 4
    out, err = capsys.readouterr()
    assert "collectives" in out and "swiglu: 0 of 2" in err and "xla has no kernel for it" in err


def test_auto_says_what_it_chose_and_every_price(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["place", MODEL, "--mesh", "dp=2,tp=4", "--place", "auto"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    prices = [one["computing"] + one["moving"] for one in found["tried"]]
    assert prices == sorted(prices) and found["chosen"] == found["tried"][0]["name"] == "data"
    by_name = {one["name"]: one for one in found["tried"]}
    assert {*by_name} == {"whole", "data", "tensor"} and found["rules"] == {"input_ids": "dp"}
    assert by_name["whole"]["moving"] == 0
    assert by_name["whole"]["computing"] == pytest.approx(2 * by_name["data"]["computing"])
    assert by_name["tensor"]["computing"] == pytest.approx(by_name["data"]["computing"] / 4, rel=0.3)
    assert main([*asked, "--place", "data"]) != 0
    assert "it chooses all of them" in capsys.readouterr().err


def one_product() -> Graph:
    builder = Builder("network")
    x, w = builder.input("input_ids", f32[8, 64]), builder.param("head", f32[64, 128])
    builder.output("y", ops.matmul(x, w))
    return builder.graph()


def test_a_choice_is_locked_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(one_product(), tmp_path / "model.txt")
    model, mesh = str(tmp_path / "model.txt"), ["--mesh", "dp=4"]
    assert main(["lock", model, "--target", "xla", *mesh, "--place", "auto"]) == 0
    out, err = capsys.readouterr()
    assert "mesh dp=4\nplace input_ids: dp\n" in out and "place: data: " in err
    given = ["run", model, *mesh, "--random", "0", "--output"]
    for number, place in enumerate(("auto", str(tmp_path / "model.lock"))):
        assert main([*given, str(tmp_path / f"{number}.npz"), "--place", place]) == 0
    found, again = (np.load(tmp_path / f"{number}.npz")["y"] for number in (0, 1))
    np.testing.assert_array_equal(found, again)
    hosts = ["--hosts", "2", "--rank", "0", "--coordinator", "127.0.0.1:7000"]
    assert main([*given, "x.npz", "--place", "auto", *hosts]) != 0
    assert "choose once: dovetail lock" in capsys.readouterr().err


def test_a_target_chooses_what_choose_placement_gives() -> None:
    from dovetail.targets.xla.arrays import buffer_of

    made, mesh = one_product(), {"dp": 4}
    chosen = choose_placement(made, mesh=mesh)
    assert chosen.rules == {"input_ids": "dp"}
    rng = np.random.default_rng(0)
    weights, given = (rng.standard_normal(s).astype(np.float32) for s in ((64, 128), (8, 64)))
    for target in (xla.target(mesh=mesh, preset="auto"), xla.target(mesh=mesh, place=chosen.rules)):
        there = compile(made, target=target, params={"head": weights}).run({"input_ids": given}, outputs="device")["y"]
        assert [s.data.shape for s in buffer_of(there).array.addressable_shards] == [(2, 128)] * 4
        np.testing.assert_allclose(there.numpy(), given @ weights, rtol=1e-5, atol=1e-4)
    with pytest.raises(OptionError, match="it chooses all of them"):
        xla.target(mesh=mesh, place={"head": "dp"}, preset="auto")


def test_rules_of_a_choice_are_in_the_order_in_which_they_count() -> None:
    best = PricedPlacement("tensor", explained(place={"wk": "-"}))
    rules = list(Chosen(best, (best,)).rules.items())
    assert rules[0] == ("layers.*.wk", "-") and ("layers.*.w[qkv]", "- tp") in rules
    assert str(best).startswith("tensor: ") and "moving), weights" in Chosen(best, (best,)).text()


def test_a_lock_holds_the_collectives_of_a_placement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [MODEL, "--target", "xla", "--mesh", "dp=2,tp=4", "--place", "tensor", "--lock", str(tmp_path / "lock")]
    assert main(["lock", *asked]) == 0
    assert "mesh dp=2,tp=4\ncollective all-reduce 4 32768\n" in capsys.readouterr().out
    assert main(["check", *asked]) == 0
    assert main(["check", *asked, "--place", "layers.*.wo: - tp"]) != 0
    assert "LOST    all-gather: 13 of 106,496 bytes, locked at 0 of 0" in capsys.readouterr().out
    assert main(["check", *asked[:3], "--lock", str(tmp_path / "lock")]) != 0
    assert "locked for the mesh dp=2,tp=4, found none" in capsys.readouterr().out
    wanted = read_lock((tmp_path / "lock").read_text(encoding="utf-8"), "lock")
    assert wanted.saved(replace(wanted, collectives={})) == ("all-reduce: 0 of 0 bytes, locked at 4 of 32,768",)


def test_a_child_that_dies_is_replaced_and_what_xla_compiled_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = tmp_path / "crash.py"
    crash.write_text("import os, sys\nsys.stdin.readline()\nos.abort()\n", encoding="utf-8")
    child.close()
    with monkeypatch.context() as patch:
        patch.setattr(child, "PROGRAM", crash)
        found = explained()  # of the compiled program, which has no reasons
        assert found.counts == {"all-reduce": 4} and found.totals == {"all-reduce": (4, 4 * 8 * 8 * 64 * 4 // 2)}
        assert "read from the compiled program, without reasons: Shardy's passes failed" in found.text()
        with pytest.raises(child.ShardyError, match="Shardy's passes failed"):
            explain_placement(graph(), mesh={"dp": 64})
    assert explained().counts == {"all-reduce": 4}
