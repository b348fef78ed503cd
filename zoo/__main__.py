"""Real models, judged: `make models`. Arguments are parts of their names; without any, all are run.

Each is imported, compiled and run by dovetail, and run by onnxruntime. Both are measured against the float64 reference,
and our error may be at most twice theirs.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

import dovetail
from dovetail.adapters.onnxruntime_peer import Peer
from dovetail.targets.reference.interpreter import evaluate
from zoo import minilm
from zoo.fetch import HOME, FetchError, fetch
from zoo.inputs import tokens
from zoo.judge import Verdict, timed, verdicts
from zoo.models import Model, models

Array = NDArray[Any]
Feeds = tuple[Mapping[str, Array], ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that is said of one model."""

    name: str
    passed: bool
    why: str = ""
    """What went wrong, where something did."""
    operators: Mapping[str, int] = field(default_factory=dict[str, int])
    nodes: int = 0
    kernels: int = 0
    fused: Mapping[str, int] = field(default_factory=dict[str, int])
    missed: Mapping[str, int] = field(default_factory=dict[str, int])
    """By rule and reason."""
    verdicts: tuple[Verdict, ...] = ()
    seconds: float = 0.0
    peer_seconds: float | None = None

    def __str__(self) -> str:
        lines = [f"== {self.name}: {'passed' if self.passed else 'FAILED'}"]
        if self.why:
            lines.append(f"   {self.why}")
        if self.operators:
            lines.append(f"   operators  {_counted(self.operators)}")
        if self.kernels:
            lines.append(f"   {self.nodes} nodes → {self.kernels} kernels")
            lines.append(f"   fused      {_counted(self.fused) or 'nothing'}")
            lines.append(f"   missed     {_counted(self.missed) or 'nothing'}")
        for v in self.verdicts:
            peer = f", onnxruntime {v.theirs:.2e}" if v.theirs is not None else ""
            lines.append(
                f"   {v.output}: error {v.ours:.2e}{peer}, limit {v.limit:.2e}{'' if v.holds else '  TOO FAR'}"
            )
        if self.seconds:
            peer = f", onnxruntime {self.peer_seconds * 1e3:.1f} ms" if self.peer_seconds is not None else ""
            lines.append(f"   time       {self.seconds * 1e3:.1f} ms{peer}")
        return "\n".join(lines)


def as_dict(findings: Findings) -> dict[str, Any]:
    """The findings as plain data."""
    plain = {f.name: getattr(findings, f.name) for f in fields(findings)}
    counts = {name: dict(plain[name]) for name in ("operators", "fused", "missed")}
    return {**plain, **counts, "verdicts": [{**asdict(v), "holds": v.holds} for v in findings.verdicts]}


def _counted(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} × {name}" for name, count in ordered)


def of_file(model: Model, target: str) -> Findings:
    """One ONNX file from PyPI."""
    path = fetch(model.pin) / model.file
    return of_onnx(model.name, path, model.feeds, model.fixed, model.plausible, target=target)


def of_onnx(
    name: str, path: Path, feeds: Feeds, fixed: Mapping[str, Array | int], plausible: float = 1e-3, *, target: str
) -> Findings:
    """One ONNX file: ours and the peer's outputs for each feed of one compilation."""
    graph = dovetail.load(path, fixed=fixed)
    arrays = {n: a for n, a in fixed.items() if not isinstance(a, int)}
    peer = Peer(path)
    taken = peer.inputs
    return _judged(
        name,
        graph,
        feeds,
        operators=operators(onnx.ModelProto.FromString(path.read_bytes())),
        plausible=plausible,
        target=target,
        reference=lambda feed: evaluate(graph, feed, lift=True),
        peer=lambda feed: peer.run({n: a for n, a in {**arrays, **feed}.items() if n in taken}),
    )


def _judged(
    name: str,
    graph: dovetail.Graph,
    feeds: Feeds,
    *,
    reference: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    peer: Callable[[Mapping[str, Array]], Mapping[str, Array]] | None,
    params: Mapping[str, Array] | None = None,
    operators: Mapping[str, int] | None = None,
    plausible: float = 1e-3,
    target: str,
) -> Findings:
    program = dovetail.compile(graph, target=target, params=params)
    wanted = [reference(feed) for feed in feeds]
    theirs = None if peer is None else [peer(feed) for feed in feeds]
    found = verdicts([program.run(feed) for feed in feeds], theirs, wanted, plausible)
    _, seconds = timed(partial(program.run, feeds[0]))
    peer_seconds = timed(partial(peer, feeds[0]))[1] if peer is not None else None
    report = program.report
    missed = collections.Counter(f"{m.rule} ({m.reason})" for m in report.missed)
    return Findings(
        name,
        all(v.holds for v in found),
        operators=operators or {},
        nodes=report.nodes_before,
        kernels=len(report.kernels),
        fused=collections.Counter(f.rule for f in report.fused),
        missed=missed,
        verdicts=tuple(found),
        seconds=seconds,
        peer_seconds=peer_seconds,
    )


def operators(model: onnx.ModelProto) -> dict[str, int]:
    """How often each operator stands in a model, in the graphs within graphs too."""
    counts: collections.Counter[str] = collections.Counter()
    pending = [model.graph]
    while pending:
        for node in pending.pop().node:
            counts[f"{node.domain}.{node.op_type}" if node.domain else node.op_type] += 1
            pending += [a.g for a in node.attribute if a.HasField("g")]
            pending += [g for a in node.attribute for g in a.graphs]
    return dict(counts)


def of_minilm(target: str) -> Findings:
    """The safetensors file through the BERT builder; the judge is written out in NumPy, the peer runs the export."""
    folder = fetch("minilm")
    graph, params = minilm.built(folder)
    feeds = _sentences()
    export = minilm.exported(folder)
    peer = Peer(export) if isinstance(export, Path) else None
    reference = partial(minilm.judged, folder)
    return _judged(
        "minilm safetensors",
        graph,
        feeds,
        reference=reference,
        peer=peer.run if peer else None,
        params=params,
        target=target,
    )


def of_exported_minilm(target: str) -> Findings | None:
    """The same model as torch exports it, where torch is installed."""
    folder = fetch("minilm")
    export = minilm.exported(folder)
    if isinstance(export, str):
        print(f"== minilm exported: skipped: {export}")
        return None
    return of_onnx("minilm exported", export, _sentences(), {}, target=target)


def _sentences() -> Feeds:
    return (tokens(1, (24, 17), 30522), tokens(2, (61,), 30522))


def asked(parts: list[str], target: str) -> Iterator[tuple[str, Callable[[], Findings | None]]]:
    """The models whose names have one of the parts, each as something to do."""
    everything: list[tuple[str, Callable[[], Findings | None]]] = [
        ("minilm safetensors", partial(of_minilm, target)),
        ("minilm exported", partial(of_exported_minilm, target)),
        *((model.name, partial(of_file, model, target)) for model in models()),
    ]
    return ((name, work) for name, work in everything if not parts or any(part in name for part in parts))


def attempt(name: str, work: Callable[[], Findings | None]) -> Findings | None:
    """What is found of one model; an error is what is found, too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()
    except (dovetail.DovetailError, FetchError, OSError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return Findings(name, False, f"{type(error).__name__}: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of names; a model runs if its name has one")
    parser.add_argument("--target", default="cpu", help="what to compile for (cpu)")
    options = parser.parse_args()
    found: list[Findings] = []
    for name, work in asked(options.parts, options.target):
        findings = attempt(name, work)
        if findings is not None:
            print(findings, flush=True)
            found.append(findings)
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "report.json").write_text(json.dumps([as_dict(f) for f in found], indent=2), encoding="utf-8")
    passed = sum(f.passed for f in found)
    print(f"models: {passed} passed, {len(found) - passed} failed")
    return int(passed < len(found))


if __name__ == "__main__":
    sys.exit(main())
