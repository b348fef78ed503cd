"""Ensembles of decision trees. All trees of all rows take one step down at a time, as gathers."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules.classical.scores import DOMAIN, as_floats, best, labels, transformed
from dovetail.frontends.shared.site import AttributeGroup
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, i64
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops import build

DEEPEST = 256
"""Steps from the root of a tree to its lowest leaf."""


@dataclass(frozen=True, slots=True)
class Nodes(AttributeGroup):
    """The nodes of all trees, in parallel lists."""

    nodes_treeids: tuple[int, ...] = ()
    nodes_nodeids: tuple[int, ...] = ()
    nodes_featureids: tuple[int, ...] = ()
    nodes_values: tuple[float, ...] = ()
    nodes_hitrates: tuple[float, ...] = ()
    """Statistics of the training, which decide nothing."""
    nodes_modes: tuple[str, ...] = ()
    nodes_truenodeids: tuple[int, ...] = ()
    nodes_falsenodeids: tuple[int, ...] = ()
    nodes_missing_value_tracks_true: tuple[int, ...] = ()


@rule("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(
    n: Node,
    x: Value,
    *,
    nodes: Nodes,
    class_treeids: tuple[int, ...] = (),
    class_nodeids: tuple[int, ...] = (),
    class_ids: tuple[int, ...] = (),
    class_weights: tuple[float, ...] = (),
    classlabels_int64s: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (),
    base_values: tuple[float, ...] = (),
    post_transform: str = "NONE",
) -> tuple[Value, Value]:
    """The label of the best class of each row, and the scores of all classes: the sums over all trees."""
    count = len(classlabels_int64s) or len(classlabels_strings)
    if count < 2:
        raise n.unsupported(f"{count} classes", hint="two or more are read")
    found = set(class_ids)
    if count == 2 and found == {0}:
        one = _leaves(n, x, nodes, (class_treeids, class_nodeids, class_ids, class_weights), 1, "SUM")
        score = _with_base(n, one, base_values, 1)
        chosen, scores = _binary(n, score, post_transform, positive=all(w >= 0 for w in class_weights))
    elif count == 2 and (len(found) < 2 or base_values):
        raise n.unsupported("two classes of which one has no scores, or base values", hint="export a score for each")
    else:
        sums = _leaves(n, x, nodes, (class_treeids, class_nodeids, class_ids, class_weights), count, "SUM")
        sums = _with_base(n, sums, base_values, count)
        chosen, scores = best(sums), transformed(n, sums, post_transform)
    return labels(n, chosen, classlabels_int64s, classlabels_strings), ops.cast(scores, dtype=f32)


def _binary(n: Node, score: Value, post_transform: str, *, positive: bool) -> tuple[Value, Value]:
    """Two classes of which the score of one is known: a probability, or a margin around 0."""
    if post_transform not in ("NONE", "LOGISTIC"):
        raise n.unsupported(f"post_transform {post_transform!r} of one score", hint="export a score for each class")
    other = 1 - score if positive and post_transform == "NONE" else -score
    scores, limit = transformed(n, ops.concat(other, score, axis=-1), post_transform), 0.5 if positive else 0.0
    return ops.cast(build.squeeze_dims(ops.greater(score, limit), -1), dtype=i64), scores


@rule("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(
    n: Node,
    x: Value,
    *,
    nodes: Nodes,
    target_treeids: tuple[int, ...] = (),
    target_nodeids: tuple[int, ...] = (),
    target_ids: tuple[int, ...] = (),
    target_weights: tuple[float, ...] = (),
    n_targets: int = 1,
    aggregate_function: str = "SUM",
    base_values: tuple[float, ...] = (),
    post_transform: str = "NONE",
) -> Value:
    """What the trees say of each target, summed or averaged over all trees."""
    weights = (target_treeids, target_nodeids, target_ids, target_weights)
    found = _with_base(n, _leaves(n, x, nodes, weights, n_targets, aggregate_function), base_values, n_targets)
    return ops.cast(transformed(n, found, post_transform), dtype=f32)


def _with_base(n: Node, scores: Value, base_values: tuple[float, ...], count: int) -> Value:
    if base_values and len(base_values) != count:
        raise n.unsupported(f"{len(base_values)} base values for {count} scores", hint="export one for each")
    return scores + leaf.constant(np.array(base_values, scores.dtype.numpy)) if base_values else scores


Weights = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Tree, node, column and weight, in parallel lists."""


def _leaves(n: Node, x: Value, nodes: Nodes, weights: Weights, columns: int, aggregate: str) -> Value:
    """The weights of the leaves that each row reaches, over all trees: [batch, columns]."""
    if x.rank == 1:
        x = build.expand_dims(x, 0)
    if x.rank != 2:
        raise n.unsupported(f"features of {x.type}", hint="they are one row, or rows of one matrix")
    features = as_floats(x)
    table = _table(n, nodes)
    at = build.broadcast_to(leaf.constant(table.roots), (x.shape[0], len(table.roots)))
    feature, threshold = leaf.constant(table.feature), leaf.constant(table.threshold.astype(features.dtype.numpy))
    child, on_missing = leaf.constant(table.child.reshape(-1)), leaf.constant(table.child[:, 2])
    for _ in range(table.depth):
        seen = ops.gather_elements(features, ops.gather(feature, at, axis=0), axis=-1)
        holds = ops.less_equal(seen, ops.gather(threshold, at, axis=0))
        step = ops.gather(child, at * 3 + ops.cast(holds, dtype=i64), axis=0)
        if table.missing_differs:
            step = ops.where(ops.is_nan(seen), ops.gather(on_missing, at, axis=0), step)
        at = step
    given = _by_leaf(n, table, weights, columns)
    reached = ops.gather(leaf.constant(given.astype(features.dtype.numpy)), at, axis=0)
    match aggregate:
        case "SUM" | "AVERAGE":
            total = build.squeeze_dims(ops.reduce_sum(reached, axes=(-2,)), -2)
            return total if aggregate == "SUM" else total / len(table.roots)
        case _:
            raise n.unsupported(f"aggregate_function {aggregate!r}", hint="SUM and AVERAGE are read")


@dataclass(frozen=True, slots=True)
class _Table:
    """All nodes in one numbering. Each compares `feature <= threshold`; leaves lead to themselves."""

    feature: Array
    threshold: Array
    child: Array
    """Where to go where that does not hold, where it holds, and where the feature is NaN."""
    roots: Array
    depth: int
    place: dict[tuple[int, int], int]
    """The number of a node by tree and node id."""

    @property
    def missing_differs(self) -> bool:
        return bool((self.child[:, 2] != self.child[:, 0]).any())


def _table(n: Node, nodes: Nodes) -> _Table:
    place = {key: i for i, key in enumerate(zip(nodes.nodes_treeids, nodes.nodes_nodeids, strict=True))}
    count = len(place)
    lists = (nodes.nodes_featureids, nodes.nodes_values, nodes.nodes_modes)
    lists += (nodes.nodes_truenodeids, nodes.nodes_falsenodeids)
    if not count or count != len(nodes.nodes_treeids) or any(len(listed) != count for listed in lists):
        raise n.malformed("lists of nodes of different lengths, or a node that is there twice")
    tracks = nodes.nodes_missing_value_tracks_true or (0,) * count
    feature, threshold = np.zeros(count, np.int64), np.zeros(count, np.float32)
    child = np.repeat(np.arange(count)[:, None], 3, 1)
    for i, (mode, tree) in enumerate(zip(nodes.nodes_modes, nodes.nodes_treeids, strict=True)):
        if mode == "LEAF":
            continue
        yes, no = (place.get((tree, ids[i])) for ids in (nodes.nodes_truenodeids, nodes.nodes_falsenodeids))
        if mode not in _MODES or yes is None or no is None or yes == i or no == i:
            raise n.unsupported(f"a node of mode {mode!r}", hint=f"nodes are LEAF, {', '.join(_MODES)}")
        below, negated = _MODES[mode]
        value = np.float32(nodes.nodes_values[i])
        # x < t is x <= the number below t: one comparison serves all modes.
        feature[i], threshold[i] = nodes.nodes_featureids[i], np.nextafter(value, -np.inf) if below else value
        child[i] = (yes, no, yes if tracks[i] else no) if negated else (no, yes, yes if tracks[i] else no)
    inner = child[(child != np.arange(count)[:, None]).any(1)].reshape(-1)
    roots = np.setdiff1d(np.arange(count), inner)
    return _Table(feature, threshold, child, roots, _depth(n, child, roots), place)


_MODES = {
    "BRANCH_LEQ": (False, False),
    "BRANCH_LT": (True, False),
    "BRANCH_GT": (False, True),
    "BRANCH_GTE": (True, True),
}
"""Of each comparison, whether the threshold itself is left out, and whether its branches change places."""


def _depth(n: Node, child: Array, roots: Array) -> int:
    """The steps to the lowest leaf."""
    at, depth = roots, 0
    while True:
        below = np.unique(child[at])
        if np.array_equal(np.union1d(below, at), at) and (child[at] == at[:, None]).all():
            return depth
        at, depth = below, depth + 1
        if depth > DEEPEST:
            raise n.unsupported(f"trees deeper than {DEEPEST}", hint="check that no node leads back to one above it")


def _by_leaf(n: Node, table: _Table, weights: Weights, columns: int) -> Array:
    """The weights of each node: [nodes, columns]."""
    found = np.zeros((len(table.feature), columns), np.float64)
    if len({len(listed) for listed in weights}) != 1:
        raise n.malformed("lists of weights of different lengths")
    for tree, node, column, weight in zip(*weights, strict=True):
        place = table.place.get((tree, node))
        if place is None or not 0 <= column < columns:
            raise n.malformed(f"a weight for column {column} of node {node} in tree {tree}")
        found[place, column] += weight
    return found
