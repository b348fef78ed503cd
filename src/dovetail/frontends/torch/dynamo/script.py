"""A divided graph as one Python function: straight-line code costs less per call than an interpreter of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from dovetail.frontends.torch.dynamo.division import Division
from dovetail.frontends.torch.dynamo.region import Region


def scripted(
    division: Division, regions: Mapping[Region, Callable[..., Any]], eager: Callable[[Any], Callable[..., Any]]
) -> Callable[..., Any]:
    """The function of a graph; `regions` runs each region, `eager` gives what runs a node of torch.

    Like those of regions it takes one tuple: a hundred arguments would be copied by each function that hands them on.
    """
    if len(division.steps) == 1 and not division.last:
        (step,) = division.steps
        if isinstance(step, Region) and _is_whole(step, division):
            return regions[step]
    return _Script(division, regions, eager).function()


def _is_whole(region: Region, division: Division) -> bool:
    """Whether a region takes the arguments of the graph and gives its results, in their order."""
    fed, given = [feed.node for feed in region.feeds], [one.node for one in region.given]
    return fed == list(division.placeholders) and given == list(division.output.args[0])


class _Script:
    def __init__(
        self, division: Division, regions: Mapping[Region, Callable[..., Any]], eager: Callable[[Any], Any]
    ) -> None:
        self.division = division
        self.regions = regions
        self.eager = eager
        self.scope: dict[str, Any] = {}
        self.names: dict[Any, str] = {}

    def function(self) -> Callable[..., Any]:
        division = self.division
        arguments = "".join(f"{self._name(n)}, " for n in division.placeholders)
        lines = list(self._lines())
        alive = set(division.output.all_input_nodes)
        body = [f"return {self._spelled(tuple(division.output.args[0]))}"]
        for line, reads in reversed(lines):
            ended = [self._name(n) for n in reads if n not in alive]
            alive.update(reads)
            if ended:
                body.append(f"{' = '.join(ended)} = None")
            body.append(line)
        unpacked = [f"{arguments}= given"] if arguments else []
        source = "\n    ".join(["def run(given):", *unpacked, *reversed(body)])
        exec(compile(source, f"<{division.name}>", "exec"), self.scope)
        return cast(Callable[..., Any], self.scope["run"])

    def _lines(self) -> Iterator[tuple[str, list[Any]]]:
        done: set[Any] = set()
        for step in self.division.steps:
            if not isinstance(step, Region):
                for node in step.nodes:
                    yield self._node(node), node.all_input_nodes
                continue
            fed = [feed.node for feed in step.feeds]
            made = ", ".join(self._name(g.node) for g in step.given)
            call = f"{self._constant(self.regions[step])}(({''.join(f'{self._name(n)}, ' for n in fed)}))"
            yield (f"{made}, = {call}" if made else call), fed
            done |= {write.copy for write in step.writes}
        for node in self.division.last:
            if node not in done:
                yield self._node(node), node.all_input_nodes
            elif node.users:
                yield f"{self._name(node)} = {self._name(node.args[0])}", [node.args[0]]

    def _node(self, node: Any) -> str:
        if node.op == "get_attr":
            return f"{self._name(node)} = {self._constant(self.division.attribute(node))}"
        parts = [self._spelled(a) for a in node.args]
        parts += [f"{key}={self._spelled(value)}" for key, value in node.kwargs.items()]
        return f"{self._name(node)} = {self._constant(self.eager(node))}({', '.join(parts)})"

    def _spelled(self, given: Any) -> str:
        if type(given).__name__ == "Node":
            return self._name(given)
        if isinstance(given, list | tuple):
            items = "".join(f"{self._spelled(item)}, " for item in cast(list[Any], given))
            return f"[{items}]" if isinstance(given, list) else f"({items})"
        if isinstance(given, dict):
            pairs = cast(dict[Any, Any], given).items()
            return "{" + ", ".join(f"{key!r}: {self._spelled(value)}" for key, value in pairs) + "}"
        if isinstance(given, slice):
            whole = cast(Any, given)
            return f"slice({self._spelled(whole.start)}, {self._spelled(whole.stop)}, {self._spelled(whole.step)})"
        return repr(given) if given is None or isinstance(given, bool | int | str) else self._constant(given)

    def _name(self, node: Any) -> str:
        return self.names.setdefault(node, f"v{len(self.names)}")

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name
