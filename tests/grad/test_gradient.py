"""`gradient` and `value_and_grad`: what they give, what they refuse, where their values belong."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import library, models, ops
from dovetail.dtypes import f32, f64, i64
from dovetail.errors import GradientError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.runtime.verify_gradients import with_loss
from dovetail.targets.reference.interpreter import evaluate
from tests.grad.judge import Array, assert_near, differences, normal, total


def values(outputs: dict[str, Value], **arrays: object) -> dict[str, Array]:
    return dict(evaluate(Graph.of(outputs), {name: np.asarray(a) for name, a in arrays.items()}))


def test_gradients_come_in_the_order_of_wrt() -> None:
    x, w = leaf.input("x", f64[3]), leaf.input("w", f64[3])
    dw, dx, again = dovetail.graphs.gradient(total(x * x * w), [w, x, w])
    assert dw is again
    found = values({"dw": dw, "dx": dx}, x=[1.0, 2, 3], w=[4.0, 5, 6])
    assert_near(found["dw"], np.array([1.0, 4, 9]))
    assert_near(found["dx"], np.array([8.0, 20, 36]))


def test_no_gradient_flows_where_it_is_stopped() -> None:
    x = leaf.input("x", f64[3])
    y = ops.stop_gradient(x * x) * x
    (dx,) = dovetail.graphs.gradient(total(y), [x])
    found = values({"y": y, "dx": dx}, x=[1.0, 2, 3])
    assert_near(found["y"], np.array([1.0, 8, 27]))
    assert_near(found["dx"], np.array([1.0, 4, 9]))
    with pytest.raises(GradientError, match="does not depend on"):
        dovetail.graphs.gradient(total(ops.stop_gradient(x)), [x])


def test_one_element_needs_no_seed_whatever_its_rank() -> None:
    x = leaf.input("x", f64[3])
    y = ops.reduce_sum(ops.unsqueeze(x * x, axes=(-2,)), axes=(-1,))
    assert str(y.type) == "f64[1, 1]"
    (dx,) = dovetail.graphs.gradient(y, [x])
    assert_near(values({"d": dx}, x=[1.0, 2, 3])["d"], np.array([2.0, 4, 6]))


def test_a_seed_weighs_the_elements() -> None:
    x, seed = leaf.input("x", f64[3]), leaf.input("seed", f64[3])
    (dx,) = dovetail.graphs.gradient(ops.exp(x), [x], seed)
    assert_near(values({"d": dx}, x=[0.0, 1, 2], seed=[1.0, 0, 2])["d"], np.exp([0.0, 1, 2]) * [1, 0, 2])


def test_by_a_value_inside_of_the_graph() -> None:
    x = leaf.input("x", f64[3])
    h = x * 2.0
    dx, dh = dovetail.graphs.gradient(total(h * h), [x, h])
    found = values({"dx": dx, "dh": dh}, x=[1.0, 2, 3])
    assert_near(found["dh"], np.array([4.0, 8, 12]))
    assert_near(found["dx"], np.array([8.0, 16, 24]))


def test_a_loss_is_one_number() -> None:
    x = leaf.input("x", f64[3])
    with pytest.raises(GradientError, match="3 elements"):
        dovetail.graphs.gradient(x * 2.0, [x])
    with pytest.raises(GradientError, match=r"a seed f64\[2\] for f64\[3\]"):
        dovetail.graphs.gradient(x * 2.0, [x], leaf.input("s", f64[2]))
    with pytest.raises(GradientError, match="one tensor of floats"):
        dovetail.graphs.gradient(leaf.input("n", i64[()]), [x])


def test_integers_have_no_gradient() -> None:
    x, n, m = leaf.input("x", f64[3]), leaf.input("n", i64[3]), leaf.input("m", i64[3])
    y = total(x * ops.cast(n + m, dtype=f64))
    with pytest.raises(GradientError, match=r"<n: i64\[3\]>, <m: i64\[3\]>"):
        dovetail.graphs.gradient(y, [n, x, m])
    assert len(dovetail.graphs.gradient(y, [x])) == 1


def test_what_is_not_reached_is_named() -> None:
    x, a, b = (leaf.input(n, f64[3]) for n in "xab")
    y = total(x + ops.floor(a))
    with pytest.raises(GradientError, match=r"does not depend on <a: .*<b: ") as error:
        dovetail.graphs.gradient(y, [a, x, b])
    assert 'unreached="zeros"' in error.value.hint
    found = dovetail.graphs.gradient(y, [a, x], unreached="zeros")
    assert_near(values({"d": found[0]})["d"], np.zeros(3))


def test_one_error_lists_every_value_without_a_gradient_and_its_place() -> None:
    builder = dovetail.Builder("two")
    with builder.recording():
        x, grid = builder.input("x", f32[1, 1, 3, 3]), builder.input("grid", f32[1, 2, 2, 2])
        with dovetail.graphs.scope("first"):
            y = ops.grid_sample(x, grid)
        with dovetail.graphs.scope("second"):
            y = y * ops.grid_sample(x * 2.0, grid)
        loss = total(y)
        with pytest.raises(GradientError) as error:
            dovetail.graphs.gradient(loss, [x])
    text = str(error.value)
    assert "2 values have no gradient" in text
    assert "at first: places between pixels have no rule yet" in text and "at second" in text


def test_complex_numbers_are_refused() -> None:
    x = leaf.input("x", f32[3])
    with pytest.raises(GradientError, match="complex"):
        dovetail.graphs.gradient(total(ops.abs_(ops.complex_(x, x))), [x])
    with pytest.raises(GradientError, match="complex"):
        dovetail.graphs.gradient(total(ops.real(ops.cast(x, dtype="c64") * 2.0)), [x])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("root", [1.0, 1.0, 0.25]), ("both_roots", [0.0, 0.25, 0.0625]), ("moved", [1.0, 1.0, 0.25])],
)
def test_a_gradient_keeps_its_mask(name: str, expected: list[float]) -> None:
    """A slope that is infinite where a `where` does not look gives no NaN (0 * inf)."""
    x = leaf.input("x", f64[3])
    if name == "root":
        y, at = ops.where(x < 1.0, x, ops.sqrt(x)), [0.0, 0.5, 4.0]
    elif name == "both_roots":  # two readers of one root, both behind the mask
        root = ops.sqrt(x)
        y, at = ops.where(x > 0.5, root * 0.25 + root * 0.75, 0.0), [0.0, 4.0, 64.0]
    else:  # the mask moves along with a transpose
        y, at = ops.where(x < 1.0, x, ops.flip(ops.sqrt(ops.flip(x, axes=(-1,))), axes=(-1,))), [0.0, 0.5, 4.0]
    (dx,) = dovetail.graphs.gradient(total(y), [x])
    assert_near(values({"d": dx}, x=at)["d"], np.array(expected))


def test_masks_inside_of_masks() -> None:
    x = leaf.input("x", f64[4])
    inner = ops.where(x > 0.0, ops.log(x), 0.0)
    y = ops.where(x < 2.0, ops.exp(inner), ops.sqrt(x - 2.0))
    (dx,) = dovetail.graphs.gradient(total(y), [x])
    assert_near(values({"d": dx}, x=[-1.0, 0.0, 1.0, 3.0])["d"], np.array([0.0, 0.0, 1.0, 0.5]))


def test_the_norm_of_nothing_behind_a_where() -> None:
    x = leaf.input("x", f64[2, 3])
    square = ops.reduce_sum(x * x, axes=(-1,))
    y = ops.where(square > 0.0, ops.sqrt(square), 0.0)
    (dx,) = dovetail.graphs.gradient(total(y), [x])
    assert_near(values({"d": dx}, x=[[0.0, 0, 0], [3.0, 0, 4.0]])["d"], np.array([[0.0, 0, 0], [0.6, 0, 0.8]]))


def test_reverse_over_reverse() -> None:
    """Hessian times vector, and the Jacobian times a vector as the gradient of a gradient by its seed."""
    x, w, v, u = (leaf.input(n, f64[s]) for n, s in (("x", (5, 3)), ("w", (3, 4)), ("v", (3, 4)), ("u", (5, 4))))
    y = library.softmax(ops.tanh(x @ w) * 2.0, axis=-1)
    (g,) = dovetail.graphs.gradient(total(y * y), [w])
    (hv,) = dovetail.graphs.gradient(total(g * v), [w])
    (pulled,) = dovetail.graphs.gradient(y, [w], u)
    (jv,) = dovetail.graphs.gradient(total(pulled * v), [u])
    graph = Graph.of({"y": y, "g": g, "hv": hv, "jv": jv}, inputs=(x, w, v, u))
    rng = np.random.default_rng(0)
    at = {str(i.attrs["name"]): normal(rng, i) for i in (x, w, v, u)}
    up, down = (evaluate(graph, {**at, "w": at["w"] + s * 1e-6 * at["v"]}) for s in (1, -1))
    found = evaluate(graph, at)
    assert_near(found["hv"], (up["g"] - down["g"]) / 2e-6)
    assert_near(found["jv"], (up["y"] - down["y"]) / 2e-6)


def test_parts_of_one_value_make_a_concat() -> None:
    x = leaf.input("x", f64[2, 6])
    q, k, v = (ops.part(x, axis=-1, index=i, parts=3) for i in range(3))
    (dx,) = dovetail.graphs.gradient(total(q * k * v), [x])
    assert dx.op is ops.concat


def test_branches_of_different_shapes_and_loops_without_a_limit_are_refused() -> None:
    x = leaf.input("x", f64[3])
    loop = ops.while_loop(lambda h: total(h) < 9.0, lambda h: (h * 2.0,), [x])
    with pytest.raises(GradientError, match="without a limit"):
        dovetail.graphs.gradient(total(loop.carries[0]), [x])


# ---------------------------------------------------------------------------------------------------- value_and_grad


def two_layers() -> Graph:
    builder = dovetail.Builder("two_layers", lines=False)
    with builder.recording():
        x, labels = builder.input("x", f32["n", 3]), builder.input("labels", i64["n"])
        h = x
        for i, (rows, columns) in enumerate(((3, 4), (4, 2))):
            w, b = builder.param(f"layers.{i}.w", f32[rows, columns]), builder.param(f"layers.{i}.b", f32[columns])
            with dovetail.graphs.scope(f"layers.{i}"):
                h = library.layer_norm(library.gelu(h @ w + b), eps=1e-5) if i == 0 else h @ w + b
        chances = library.log_softmax(h, axis=-1)
        picked = ops.gather_elements(chances, ops.unsqueeze(labels, axes=(-1,)), axis=-1)
        builder.output("loss", ops.squeeze(-ops.reduce_mean(picked, axes=(-2, -1)), axes=(-2, -1)))
    return builder.graph()


def drawn(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {str(p.attrs["name"]): normal(rng, p) for p in graph.parameters}


FEEDS = {"x": np.random.default_rng(2).normal(size=(5, 3)), "labels": np.array([0, 1, 1, 0, 1])}


@pytest.mark.slow
def test_a_graph_with_its_gradients() -> None:
    graph = two_layers()
    both = dovetail.graphs.value_and_grad(graph, wrt="layers.*")
    assert list(both.outputs) == ["loss", "d.layers.0.w", "d.layers.0.b", "d.layers.1.w", "d.layers.1.b"]
    params = drawn(graph)
    found = evaluate(both, FEEDS, params=params, lift=True)
    for name in params:
        expected = differences(
            lambda moved: float(evaluate(graph, FEEDS, params=moved, lift=True)["loss"]), params, name
        )
        assert_near(found[f"d.{name}"], expected, name)


def test_wrt_names_patterns_and_inputs() -> None:
    graph = two_layers()
    assert list(dovetail.graphs.value_and_grad(graph, ["layers.1.*"]).outputs)[1:] == ["d.layers.1.w", "d.layers.1.b"]
    assert list(dovetail.graphs.value_and_grad(graph, ("x", "layers.1.w")).outputs)[1:] == ["d.layers.1.w", "d.x"]
    with pytest.raises(GradientError, match=r"no parameter and no input fits 'layer\.0\.w'") as error:
        dovetail.graphs.value_and_grad(graph, "layer.0.w")
    assert "layers.0.w" in error.value.hint
    with pytest.raises(GradientError, match="no gradient by <labels"):
        dovetail.graphs.value_and_grad(graph, "labels")
    with pytest.raises(GradientError, match="no output 'los'"):
        dovetail.graphs.value_and_grad(graph, loss="los")


def test_values_of_the_backward_pass_belong_to_the_forward_places() -> None:
    both = dovetail.graphs.value_and_grad(two_layers())
    forward = two_layers()
    places = {str(o) for value, origins in both.origins.items() if value not in forward.origins for o in origins}
    assert {"backward of layers.0", "backward of layers.1"} <= places
    assert [str(o) for o in both.origins[both.outputs["d.layers.0.w"]]] == ["backward of layers.0"]


def test_frozen_weights_cost_nothing() -> None:
    graph = two_layers()
    some, every = dovetail.graphs.value_and_grad(graph, "layers.1.*"), dovetail.graphs.value_and_grad(graph)
    assert some.count(ops.matmul) < every.count(ops.matmul)


def test_rows_written_in_primitives_are_recognised() -> None:
    x, gain = leaf.input("x", f32["n", 4]), leaf.param("gain", f32[4])
    y = library.softmax.body(library.layer_norm.body(x, gain, eps=1e-5))
    both = dovetail.graphs.value_and_grad(Graph.of({"loss": total(y * y)}))
    names = [v.op.name for v in both.values]
    assert {"softmax", "softmax_back", "layer_norm"} <= set(names)
    twice = dovetail.graphs.value_and_grad(Graph.of({"loss": total(y * y)}), ["gain", "x"])
    assert "layer_norm_back" in {v.op.name for v in twice.values}


def test_a_born_product_is_spelled_out_and_its_inside_shared() -> None:
    x, w, b = leaf.input("x", f32["n", 4]), leaf.param("w", f32[4, 3]), leaf.param("b", f32[3])
    y = library.linear(x, w, b, act="gelu")
    both = dovetail.graphs.value_and_grad(Graph.of({"loss": total(y)}))
    assert both.count(ops.matmul) == 2, "x @ w of the forward pass, and xᵀ @ g"


@pytest.mark.parametrize("name", ["resnet", "unet"])
def test_models_of_blocks_are_differentiated(name: str) -> None:
    """The bodies of blocks ask for shapes, which a trace does not have."""
    made = {"resnet": lambda: models.resnet(models.ResnetShape(blocks=(1, 1), width=8, classes=10), batch=1, image=32)}
    made["unet"] = lambda: models.unet(channels=8, groups=4, batch=1, image=8)
    graph = with_loss(made[name]())
    both = dovetail.graphs.value_and_grad(graph, loss="gradient_check", unreached="zeros")
    assert both.count(ops.conv) > graph.count(ops.conv)


def test_a_mask_of_rows_stays_with_the_gradient_of_a_softmax() -> None:
    """A row of which nothing is seen has NaN in its softmax; where a mask replaces it, its gradient is 0."""
    x = dovetail.input("x", f64[2, 3])
    unseen = ops.equal(ops.reduce_max(x, axes=(-1,)), float("-inf"))
    y = ops.where(unseen, 0.0, library.softmax(x))
    weights = leaf.constant(np.array([[1.0, 2, 4], [1, 2, 4]]))
    (dx,) = dovetail.graphs.gradient(ops.reduce_sum(y * weights, axes=(-2, -1)), [x])
    given = np.array([[0.5, -np.inf, 1], [-np.inf] * 3])
    with np.errstate(invalid="ignore"):
        found = dovetail.evaluate(dovetail.Graph.of({"dx": dx}), {"x": given})["dx"]
    p = np.exp(given[0]) / np.exp(given[0]).sum()
    np.testing.assert_allclose(found[0], p * ([1, 2, 4] - p @ [1, 2, 4]), rtol=1e-12)
    assert found[1].tolist() == [0, 0, 0]
