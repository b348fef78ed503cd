"""The corpus of graphs that kernel tests compile: how it is recorded, and reduced to those that add an instruction.

As a pytest plugin it writes each graph that a test plans for the CPU to the folder that RECORD_TO names. Nothing is
compiled: the reference interpreter answers instead, so that any machine records the same.

    RECORD_TO=build/recorded python -m pytest -p tests.codegen.record tests/kernels tests/targets/cpu
    python -m tests.codegen.record build/recorded
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import DovetailError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.text import parse_graph, print_graph
from dovetail.plan import plan as planning
from dovetail.plan.plan import Plan
from dovetail.runtime.vocabulary import vocabulary
from tests.codegen.generated import CORPUS, Collection, exporters, planned, workloads

MOST_BYTES = 4096
"""Of the text of a graph: larger ones have tables as constants."""
_ORIGIN = re.compile(r' +@(?:module|source|onnx|text) "(?:[^"\\]|\\.)*"')

_NUMBER = re.compile(r"(?<![a-zA-Z_\d])-?\d[\w.+-]*")


class _Recorder:
    """Writes what `make_plan` is given, each graph once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}.jsonl"
        self.test = ""
        self.seen: set[tuple[str, bool]] = set()
        self.make_plan = planning.make_plan

    def __call__(self, graph: Graph, *, target: str, **options: Any) -> Plan:
        text = _ORIGIN.sub("", print_graph(graph))
        strict = bool(options.get("options", {}).get("strict"))
        if target == "cpu" and self.test and (text, strict) not in self.seen:
            self.seen.add((text, strict))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"test": self.test, "strict": strict, "text": text}) + "\n")
        return self.make_plan(graph, target=target, **options)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.test = item.nodeid


class _Interpreted:
    """A plan that the reference interpreter runs."""

    def __init__(self, plan: Plan, params: Mapping[str, Array]) -> None:
        self.plan = plan
        self.params = params

    def run(self, feeds: Mapping[str, Array], *_: object, **__: object) -> dict[str, Array]:
        from dovetail.targets.reference.interpreter import evaluate

        return evaluate(self.plan.graph, feeds, params=self.params or None)


def pytest_configure(config: pytest.Config) -> None:
    recorder = _Recorder(Path(os.environ["RECORD_TO"]))
    config.pluginmanager.register(recorder)
    for module in list(sys.modules.values()):  # tests that import it later find it where it is defined
        if getattr(module, "make_plan", None) is recorder.make_plan:
            vars(module)["make_plan"] = recorder
    from dovetail.targets.cpu.native import NativeGraph

    def start(self: NativeGraph, plan: Plan, **_: object) -> None:
        self.plan = plan

    def bind(self: NativeGraph, params: Mapping[str, Array]) -> _Interpreted:
        return _Interpreted(self.plan, params)

    stand_ins: dict[str, object] = {"__init__": start, "on_host": (), "bind": bind}
    for name, value in stand_ins.items():
        setattr(NativeGraph, name, value)


def recorded(folder: Path) -> Iterator[tuple[str, bool, str]]:
    """The test, whether numbers are strict, and the text of each graph; small graphs first."""
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    entries = {(e["test"].partition("[")[0], e["strict"], _ORIGIN.sub("", e["text"]).strip()) for e in lines}
    yield from sorted(entries, key=lambda e: (len(e[2]), e))


def shapes(found: Collection) -> set[tuple[str, str, str]]:
    """The machine, the kernel and each line of its text, without numbers."""
    return {
        (machine, _NUMBER.sub("", made.stem), line)
        for machine, modules in found.found.items()
        for made in modules.values()
        for line in _NUMBER.sub("", made.text).splitlines()
    }


def reduce(folder: Path) -> None:
    """Write the corpus: the recorded graphs that have a line, numbers aside, that no source before them has.

    Kernels of which only numbers, or the order of lines, would be new are left out: all of them take too long.
    """
    first = Collection()
    for source, plan in (*workloads(), *exporters()):
        first.add(source, plan)
    seen = shapes(first)
    words = vocabulary()
    kept: list[str] = []
    for test, strict, text in recorded(folder):
        if len(text) > MOST_BYTES:
            continue
        found = Collection()
        try:
            found.add(test, planned(parse_graph(text, words), strict=strict))
        except DovetailError:  # an op that a test declares
            continue
        new = shapes(found) - seen
        if new:
            seen |= new
            kept.append(f"# {test}{' strict' if strict else ''}\n{text}")
    head = "Graphs that kernel tests compile; tests/codegen/record.py makes this file.\n"
    CORPUS.write_text("\n".join([head, *sorted(kept)]) + "\n", encoding="utf-8")
    print(f"{len(kept)} graphs")


if __name__ == "__main__":
    reduce(Path(sys.argv[1]))
