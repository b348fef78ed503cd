"""The choice as a minimum cut: a value that the backward pass needs is saved, or computed again from others.

Saving a value costs its bytes at what a byte is worth. Computing it again costs its seconds, and its operands are
needed in turn. The cheapest set of both is a minimum cut, which is exact. The more a byte is worth, the less is saved.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.dataclass import dataclass
from dovetail.declare.cost import MAP, Machine, estimate, kernel_cost
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph, subgraphs
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops import matmul
from dovetail.ops.primitive import Primitive
from dovetail.passes.recompute.min_cut import UNBOUNDED, Network
from dovetail.passes.regions import weight_only
from dovetail.passes.specialize import fresh_symbols

_UNITS = 1e15
"""Units of capacity in a second."""
_WORTH = 32
"""How many bytes are moved in the time that saving one is worth, where there is no budget."""
_DEAREST = 1e6
"""At how many times its usual worth a byte is saved only if it cannot be computed again."""
_STEP = 0.02
"""Two choices that differ by a smaller share of the bytes are one."""
_BATCHED = 3
"""The least rank of a product of many pairs of matrices."""
_DEPTH = 4
"""How often the choices between two are halved."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the backward pass reads of the forward pass, and what it computes again."""

    saved: tuple[Value, ...]
    again: tuple[Value, ...]
    """In the order of the graph; views are left out."""
    bytes: int
    """Of what is saved."""
    seconds: float
    """Of what is computed again."""


class Halves:
    """A graph with a backward pass: which values of the forward pass that one needs, and what both ways cost."""

    def __init__(self, graph: Graph, machine: Machine, sizes: Mapping[str, Size] | None = None) -> None:
        self.graph, self.machine, self.sizes = graph, machine, sizes
        roots = [graph.outputs[name] for name in graph.forward if name in graph.outputs]
        self.forward = frozenset(walk(roots))
        self.static = weight_only(graph)
        self.held = frozenset(roots)
        self.readers: dict[Value, list[Value]] = {}
        """Values of the forward pass that the backward pass reads, as derived, with their readers."""
        for value in graph.values:
            if value not in self.forward:
                for operand in dict.fromkeys(value.operands):
                    if operand in self.forward and not self.is_given(operand):
                        self.readers.setdefault(operand, []).append(value)
        self._apart = self._materialised()
        self._network: Network | None = None

    def is_given(self, value: Value) -> bool:
        """Whether a value is there in any case: an input, a parameter or what is computed from parameters alone."""
        return not value.operands or value in self.static

    def bytes(self, value: Value) -> int:
        return estimate(value.tensor.bytes, self.sizes)

    def seconds(self, value: Value) -> float | None:
        """What computing a value again takes; None where it cannot be.

        An elementwise step joins the kernel that reads it and costs its arithmetic alone, unless other kernels read it.
        """
        if subgraphs(value) or any(True for _ in fresh_symbols(value)) or value.op.name == "refusal":
            return None
        if is_view(value):
            return 0.0
        cost = kernel_cost(value)
        if value.op.elementwise and value not in self._apart:
            return self.machine.work(cost, self.sizes)
        return self.machine.seconds(cost, self.sizes)

    def _materialised(self) -> frozenset[Value]:
        """Values that a kernel other than an elementwise one would read, maybe through views."""
        found: set[Value] = set()
        for value in reversed(self.graph.values):
            views = is_view(value)
            for operand in value.operands:
                if (views and value in found) or not (views or value.op.elementwise):
                    found.add(operand)
        return frozenset(found)

    def is_outer(self, value: Value) -> bool:
        """Whether a value is a product of two tensors of a run that is larger than both."""
        if value.op is not matmul or any(self.is_given(v) or v.rank < _BATCHED for v in value.operands):
            return False
        return self.bytes(value) > sum(self.bytes(v) for v in value.operands)

    def saving_all(self) -> list[Value]:
        """What is saved where nothing is computed again: what the backward pass reads, views by what they show."""
        found: dict[Value, None] = {}
        for value in self.readers:
            while is_view(value):
                value = value.operands[0]
            if not self.is_given(value) and isinstance(value.type, TensorType):
                found[value] = None
        return list(found)

    def choose(self, worth: float, *, products: bool) -> Choice:
        """The cheapest choice where a byte is worth so many seconds; `products` may run again too, or are kept.

        Products that are larger than their operands, the scores of attention, may run again in any case.
        """
        network = self._network or self._built()
        for value, (_, _, save, again) in self._nodes.items():
            if isinstance(value.type, TensorType) and not is_view(value):
                bytes = 0 if value in self.held else self.bytes(value)
                network.set(save, round(bytes * worth * _UNITS))
            if is_product(value):
                seconds = self.seconds(value)
                runs = seconds is not None and (products or self.is_outer(value))
                network.set(again, round((seconds or 0) * _UNITS) if runs else UNBOUNDED)
        side = network.sink_side()
        saved = [v for v, (inner, outer, *_) in self._nodes.items() if outer in side and inner not in side]
        again = {v for v, (inner, *_) in self._nodes.items() if inner in side}
        made = [v for v in self.graph.values if v in again and not is_view(v)]
        total = sum(self.bytes(v) for v in saved)
        return Choice(tuple(saved), tuple(made), total, sum(self.seconds(v) or 0.0 for v in made))

    def ladder(self) -> list[tuple[float, Choice]]:
        """Choices that save less and less and take longer and longer, products included, each by what a byte is worth.

        Between two choices, the worth at which both cost the same gives the next one, if there is any between them.
        """
        first, last = self.usual_worth(), self.usual_worth() * _DEAREST
        most, least = [(worth, self.choose(worth, products=True)) for worth in (first, last)]
        steps = [most]
        for worth, choice in [*self._between(most, least, _DEPTH), least]:
            if steps[-1][1].bytes - choice.bytes > _STEP * most[1].bytes:
                steps.append((worth, choice))
        return steps

    def _between(self, low: tuple[float, Choice], high: tuple[float, Choice], depth: int) -> list[tuple[float, Choice]]:
        fewer, longer = low[1].bytes - high[1].bytes, high[1].seconds - low[1].seconds
        if not depth or fewer <= 0 or longer <= 0:
            return []
        worth = longer / fewer
        choice = self.choose(worth, products=True)
        if choice.bytes in (low[1].bytes, high[1].bytes):
            return []
        middle = worth, choice
        return [*self._between(low, middle, depth - 1), middle, *self._between(middle, high, depth - 1)]

    def _built(self) -> Network:
        network = self._network = Network()
        self._nodes: dict[Value, tuple[int, int, int, int]] = {}
        """For each value that can be needed: computed, there, and the edges of saving it and computing it again."""
        for value in [v for v in walk(self.readers) if not self.is_given(v)]:
            inner, outer = network.node(), network.node()
            seconds = self.seconds(value)
            save = network.edge(inner, outer, UNBOUNDED)
            again = network.edge(network.SOURCE, inner, UNBOUNDED if seconds is None else round(seconds * _UNITS))
            self._nodes[value] = inner, outer, save, again
            for operand in dict.fromkeys(value.operands):
                if operand in self._nodes:
                    network.edge(self._nodes[operand][1], inner, UNBOUNDED)
        for value in self.readers:
            network.edge(self._nodes[value][1], network.SINK, UNBOUNDED)
        return network

    def needed_again(self, value: Value, choice: Choice) -> list[Value]:
        """What would be computed again if a saved value were not: the value, and what it needs that is not there."""
        there = {*choice.saved, *choice.again} - {value}
        order = walk([value], until=there)
        return [v for v in order if v not in there and not self.is_given(v) and not is_view(v)]

    def usual_worth(self) -> float:
        """What a byte is worth where there is no budget."""
        return _WORTH / self.machine.bytes_per_second


def is_view(value: Value) -> bool:
    """Whether a value is another look at its operand, and is never saved itself."""
    if value.op is leaf.ITEM:
        return False
    return isinstance(value.op, Primitive) and value.op.view


def is_product(value: Value) -> bool:
    """Whether computing a value is dense work: a product, a convolution or attention."""
    return not is_view(value) and bool(value.operands) and kernel_cost(value).kind != MAP


__all__ = ["Choice", "Halves", "is_product", "is_view"]
