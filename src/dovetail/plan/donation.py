"""Donation: outputs that are computed in the memory of an input, and those that have to be copied there.

The step that writes first into the memory of an input runs after all others that read the input. It may read the input
itself where its kernel works in place. Where no order or no kernel allows it, a run copies the output at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.passes.memory_rules import MemoryRules
from dovetail.plan.alias import Alias, is_dense, locate, root_of
from dovetail.plan.liveness import may_overwrite, results_of


@dataclass(frozen=True, slots=True)
class Donation:
    """An output in the memory of an input, both by name."""

    output: str
    input: str
    copied: Size = 0
    """Bytes that are copied there at the end of a run; 0 where the output is computed there."""
    reason: str = ""
    """Why they are copied."""


@dataclass(slots=True)
class Donated:
    """What donations decide for the steps of a run."""

    donations: list[Donation] = field(default_factory=list[Donation])
    donors: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """Tensor -> the input in whose memory it is computed."""
    over: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """Tensor -> the tensor in the memory of an input that it is written over."""
    after: dict[Value, list[Value]] = field(default_factory=dict[Value, list[Value]])
    """Step -> the readers of an input that run before it overwrites the input."""


def plan_donations(
    graph: Graph,
    steps: Sequence[Value],
    aliases: Mapping[Value, Alias],
    rules: MemoryRules,
    sources: Mapping[Value, Sequence[Value]],
) -> Donated:
    """Decide the donations of a graph for the steps of its run; `sources` lists steps that must run before another."""
    return _Planner(graph, steps, aliases, rules, sources).decide() if graph.donated else Donated()


class _Planner:
    def __init__(
        self,
        graph: Graph,
        steps: Sequence[Value],
        aliases: Mapping[Value, Alias],
        rules: MemoryRules,
        sources: Mapping[Value, Sequence[Value]],
    ) -> None:
        self.graph, self.aliases, self.rules = graph, aliases, rules
        self.inputs = {str(v.attrs["name"]): v for v in graph.inputs}
        self.maker = {tensor: step for step in steps for tensor in results_of(step)}
        self.readers: dict[Value, list[Value]] = {}
        self.users: dict[Value, list[Value]] = {step: [] for step in steps}
        for step in steps:
            for root in dict.fromkeys(root_of(v, aliases) for v in step.operands):
                self.readers.setdefault(root, []).append(step)
                if root in self.maker:
                    self.users[self.maker[root]].append(step)
            for source in sources.get(step, ()):
                if source in self.users:
                    self.users[source].append(step)
        self.held: dict[Value, list[str]] = {}
        for name, value in graph.outputs.items():
            self.held.setdefault(root_of(value, aliases), []).append(name)
        self.donated = Donated()

    def decide(self) -> Donated:
        for output in self.graph.outputs:
            source = self.graph.donated.get(output)
            if source is not None:
                reason = self.placed(output, self.inputs[source])
                copied = self.graph.outputs[output].tensor.bytes if reason else 0
                self.donated.donations.append(Donation(output, source, copied, reason))
        return self.donated

    def placed(self, output: str, donor: Value) -> str:
        """Compute an output in the memory of an input; the reason why not, or "" where that is done."""
        value = self.graph.outputs[output]
        at = locate(value, self.aliases)
        root = at.root
        if at.offset != 0 or root.tensor.bytes != value.tensor.bytes or not is_dense(value.tensor, at.strides):
            return f"it is a view of {_named(root)} that is not dense"
        if root is donor:
            return ""
        if root not in self.maker:
            return f"no step of a run computes {_named(root)}"
        if root in self.donated.donors:
            return f"its value is already in the memory of {_named(self.donated.donors[root])}"
        seen = [name for name in self.held.get(donor, ()) if name != output]
        if seen:
            return f"the output {seen[0]} shows {_named(donor)} as it was given"
        return self.computed(root, donor)

    def computed(self, root: Value, donor: Value) -> str:
        """Try to let the maker of a root write to the memory of an input, in place if it reads the input."""
        path = self.in_place_path(root, donor)
        if path is not None and self.late_reader(self.maker[path[0]], donor) is None:
            self.accept(path, donor, in_place=True)
            return ""
        maker = self.maker[root]
        if maker in self.readers.get(donor, ()):
            reader = self.late_reader(maker, donor)
            if path is not None and reader is not None:
                return f"{reader.op.name} reads {_named(donor)} after {maker.op.name} would have written over it"
            return f"{maker.op.name} does not run in place: it reads {_named(donor)} after it has begun to write"
        reader = self.late_reader(maker, donor)
        if reader is not None:
            return f"{reader.op.name} reads {_named(donor)} after {maker.op.name} would have written over it"
        self.accept([root], donor, in_place=False)
        return ""

    def in_place_path(self, root: Value, donor: Value) -> list[Value] | None:
        """Tensors from the first that is written over the input to the root, each in place of the one before."""
        back: dict[Value, Value | None] = {root: None}
        pending = [root]
        while pending:
            tensor = pending.pop()
            step = self.maker[tensor]
            may = may_overwrite(step, self.aliases, self.rules, tensor)
            if donor in may:
                path: list[Value] = []
                at: Value | None = tensor
                while at is not None:
                    path.append(at)
                    at = back[at]
                return path
            for operand in may:
                only = self.readers.get(operand) == [step] and operand not in self.held
                if operand in self.maker and only and operand not in self.donated.donors and operand not in back:
                    back[operand] = tensor
                    pending.append(operand)
        return None

    def late_reader(self, writer: Value, donor: Value) -> Value | None:
        """Return a step that reads the input and cannot run before the writer, since it needs its results."""
        others = {step for step in self.readers.get(donor, ()) if step is not writer}
        reached: set[Value] = set()
        pending = [writer] if others else []
        while pending:
            for step in self.users[pending.pop()]:
                if step in others:
                    return step
                if step not in reached:
                    reached.add(step)
                    pending.append(step)
        return None

    def accept(self, path: Sequence[Value], donor: Value, *, in_place: bool) -> None:
        writer = self.maker[path[0]]
        before: Value = donor
        for tensor in path:
            self.donated.donors[tensor] = donor
            if in_place:
                self.donated.over[tensor] = before
                before = tensor
        others = [step for step in self.readers.get(donor, ()) if step is not writer]
        self.donated.after.setdefault(writer, []).extend(others)
        for step in others:
            self.users[step].append(writer)


def joined(
    sources: Mapping[Value, Sequence[Value]], after: Mapping[Value, Iterable[Value]]
) -> Mapping[Value, Sequence[Value]]:
    """Return what must run before each step: what binds its sizes, and what reads an input before the step overwrites
    it.
    """
    if not after:
        return sources
    return {**sources, **{step: (*sources.get(step, ()), *before) for step, before in after.items()}}


def _named(value: Value) -> str:
    if value.op in (leaf.INPUT, leaf.PARAM):
        return str(value.attrs["name"])
    return "a constant" if value.op is leaf.CONST else f"a result of {value.op.name}"


__all__ = ["Donated", "Donation", "joined", "plan_donations"]
