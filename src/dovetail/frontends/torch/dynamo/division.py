"""A traced graph divided: regions that we compile, and calls that torch runs, each with its reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.frontends.torch.dynamo.attempt import Attempt
from dovetail.frontends.torch.dynamo.graph_reading import GraphReading
from dovetail.frontends.torch.dynamo.nodes import (
    is_item,
    is_number,
    is_random,
    is_tensor,
    is_view,
    storage_of,
    symbols_of,
    value_of,
    writes,
)
from dovetail.frontends.torch.dynamo.region import RefusedError, Region, region_of
from dovetail.frontends.torch.dynamo.stages import Stage, stages_of
from dovetail.frontends.torch.exported import Call, Exported, Leaf
from dovetail.frontends.torch.importing.importer import NOTHING_TO_DO
from dovetail.frontends.torch.importing.rule import Rule
from dovetail.frontends.torch.reading.places import describe
from dovetail.progress import phase

DROPPED = "aten._assert_tensor_metadata.default"
"""Checks what tracing has made sure of."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that torch runs, and why."""

    node: Any
    op: str
    reason: str
    where: str


class Division:
    """How a graph runs: `steps` in order, then `last`, which changes inputs."""

    def __init__(self, module: Any, rules: Mapping[str, Rule], name: str, refused: Mapping[str, str] | None = None):
        self.module = module
        self.name = name
        self._rules = rules
        nodes = list(module.graph.nodes)
        self.placeholders = tuple(n for n in nodes if n.op == "placeholder")
        (self.output,) = [n for n in nodes if n.op == "output"]
        self.last = tuple(n for n in nodes if n.op == "call_function" and writes(n))
        ended = {*self.placeholders, self.output, *self.last}
        self._body = [n for n in nodes if n not in ended and str(n.target) != DROPPED]
        self._given = frozenset(s for n in self.placeholders if is_number(n) for s in symbols_of(value_of(n)))
        self._known, self.refused = self._read(refused or {})
        self._views = self._aliases()
        self._unread: set[Any] = set()
        """Numbers that are not computed."""
        self.steps = self._divided()

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The calls that torch runs though they compute something, in order."""
        return tuple(
            Refusal(n, str(n.target), self.refused[n.name], describe(n))
            for n in self._body
            if n.name in self.refused and n not in self._unread and not is_item(n) and n.op == "call_function"
        )

    def refuse(self, region: Region, reason: str) -> Division:
        """The division of the same graph with a region that torch runs."""
        at = self.steps.index(region)
        stage = self._stages()[at]
        return Division(self.module, self._rules, self.name, {**self.refused, **{n.name: reason for n in stage.nodes}})

    def _read(self, refused: Mapping[str, str]) -> tuple[dict[str, Call | Leaf], dict[str, str]]:
        """Every node as a leaf or a call, and the calls that are none of ours."""
        reading = GraphReading()
        known: dict[str, Call | Leaf] = {}
        out = self._calls_of(refused)
        constants = {n: self.attribute(n) for n in self._body if n.op == "get_attr" and is_tensor(n)}
        for node in (*self.placeholders, *self._body):
            if is_number(node):
                if node.op == "call_function" and any(map(is_tensor, node.all_input_nodes)):
                    out[node.name] = "a number of a tensor"
                continue
            if node.op == "placeholder" or constants.get(node) is not None:
                known[node.name] = found = reading.leaf(node, constants.get(node))
                if isinstance(found, Call):
                    out[node.name] = str(getattr(found.result, "reason", found.result))
                continue
            known[node.name], reason = reading.call(node)
            if is_random(node):
                reason = "it draws from torch's stream of random numbers"
            if reason:
                out.setdefault(node.name, reason)
        leaves = tuple(one for one in known.values() if isinstance(one, Leaf))
        calls = tuple(one for one in known.values() if isinstance(one, Call))
        program = Exported(self.name, leaves, calls, ())
        while True:
            found = self._calls_of(Attempt(program, self._rules, out).refusals())
            if found.keys() <= out.keys():
                return known, out
            out |= found  # more calls each time, and a graph has so many

    def attribute(self, node: Any) -> Any:
        """The tensor or the sub-graph that a node names."""
        found = self.module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return found

    def _aliases(self) -> set[Any]:
        """Outputs that are views of inputs or of one another: torch makes them, to share memory as in eager."""
        outputs = [n for n in dict.fromkeys(self.output.all_input_nodes) if is_tensor(n)]
        seen = [storage_of(n) for n in (*(p for p in self.placeholders if is_tensor(p)), *outputs)]
        found: set[Any] = set()
        for node in outputs:
            if node.op != "call_function" or seen.count(storage_of(node)) < 2:
                continue
            base = node
            while base is not None and base.op == "call_function":
                call = base.args[0] if is_item(base) else base
                before = next((n for n in call.all_input_nodes if storage_of(n) == storage_of(base)), None)
                if before is not None:
                    found.add(call)
                base = before
        return found

    def _calls_of(self, refused: Mapping[str, str]) -> dict[str, str]:
        """Refusals by calls: one of several results is refused by the call that makes them."""
        items = {n.name: n for n in self._body if is_item(n)}
        found: dict[str, str] = {}
        for name, reason in refused.items():
            node = items.get(name)
            while node is not None and is_item(node):
                node = node.args[0]
            found.setdefault(name if node is None else node.name, reason)
        return found

    def _stages(self) -> list[Stage]:
        while True:
            compiled = {n for n in self._body if self._is_compiled(n)}
            self._unread = self._unread_numbers(compiled)
            found = stages_of([n for n in self._body if n not in self._unread], compiled, self._depends)
            bare = [s for s in found if s.is_compiled and all(is_view(n) or is_item(n) for n in s.nodes)]
            if not bare:
                return found
            self._views.update(node for stage in bare for node in stage.nodes)

    def _is_compiled(self, node: Any) -> bool:
        return (
            node.op == "call_function"
            and node.name in self._known
            and node.name not in self.refused
            and node not in self._views
            and str(node.target) not in NOTHING_TO_DO
        )

    def _unread_numbers(self, compiled: Collection[Any]) -> set[Any]:
        """Numbers that no node of torch and no output reads: regions know them by their types."""
        found: set[Any] = set()
        for node in reversed(self._body):
            if (
                node.op == "call_function"
                and is_number(node)
                and symbols_of(value_of(node)) <= self._given
                and all(user in compiled or user in found for user in node.users)
            ):
                found.add(node)
        return found

    def _depends(self, node: Any, read: Any) -> bool:
        """Sizes that inputs tell are known to a compiled node without the node that computes them."""
        known = is_number(read) and self._is_compiled(node) and symbols_of(value_of(read)) <= self._given
        return not known

    def _divided(self) -> tuple[Stage | Region, ...]:
        """The steps, after as many attempts as there are stages with calls that turn out not to be readable."""
        with phase("import"):
            while True:
                steps = self._attempted(self._stages())
                if steps is not None:
                    return steps

    def _attempted(self, stages: Sequence[Stage]) -> tuple[Stage | Region, ...] | None:
        """The steps of stages; None where one of them has calls that are refused from now on."""
        numbers = [n for n in self.placeholders if is_number(n)]
        steps: list[Stage | Region] = []
        for stage in stages:
            if not stage.is_compiled:
                steps.append(stage)
                numbers += [n for n in stage.nodes if is_number(n)]
                continue
            name = f"{self.name}_{sum(isinstance(s, Region) for s in steps)}"
            try:
                steps.append(region_of(name, stage.nodes, self._known, numbers, self.last, self._rules, self._unread))
            except RefusedError as error:
                self._refuse(stage, error.refused)
                return None
        return tuple(steps)

    def _refuse(self, stage: Stage, refused: Mapping[str, str]) -> None:
        """Leave calls of a stage to torch: those that are refused, or all where none of the refused is one of them."""
        own = {n.name for n in stage.nodes if self._is_compiled(n) and not is_item(n)}
        found = {name: reason for name, reason in self._calls_of(refused).items() if name in own}
        self.refused.update(found or dict.fromkeys(own, next(iter(refused.values()), "it cannot be read here")))


__all__ = ["Division", "Refusal"]
