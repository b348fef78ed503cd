"""Damaged files: each ends in a typed error, or in a graph that compiles and runs; nothing crashes or hangs."""

from __future__ import annotations

import random
import resource
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, MappingProxyType

import numpy as np

import dovetail
from dovetail.errors import DovetailError
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import read_gguf
from dovetail.frontends.safetensors import read_safetensors
from dovetail.language.tokenizer import GgufTokenizer
from dovetail.runtime.random_inputs import random_inputs
from fuzz import mutations, seeds
from fuzz.case import Case
from fuzz.judge import Wrong, compare
from fuzz.keep import remove

SECONDS = 20
"""A file that takes longer hangs."""
MEMORY = 1 << 26
"""Bytes that a run of an accepted file may ask for at once."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One format: whole files of it, how they are damaged, and what reads them."""

    suffix: str
    seeds: Callable[[], Sequence[bytes]]
    damage: tuple[Callable[[bytes, random.Random], bytes], ...]
    read: Callable[[Path], None]


def run_file(kind: str, seed: int, home: Path) -> str:
    """Damage one file of a kind and read it; what went wrong, or nothing. A file that went wrong is kept."""
    r = random.Random(f"{kind} {seed}")
    said = KINDS[kind]
    content = r.choice(said.seeds())
    damaged = r.choice(said.damage)(content, r)
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{kind}-{seed}{said.suffix}"
    path.write_bytes(damaged)
    why = attempt(said.read, path)
    if why:
        (home / f"{kind}-{seed}.txt").write_text(why)
    else:
        path.unlink()
    return why


def attempt(read: Callable[[Path], None], path: Path) -> str:
    """Read a file; the traceback of anything but a typed error."""

    def alarm(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{path.name} takes longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(SECONDS)
    try:
        with np.errstate(all="ignore"):
            read(path)
    except DovetailError as error:
        return "" if error.hint and len(str(error)) < 16_000 else f"an error without a hint, or too long: {error}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return ""


def limit_memory(nbytes: int) -> None:
    """Bound what this process may take."""
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


def _run(path: Path) -> None:
    """Compile and run what loads, on the reference and on the CPU; both agree."""
    graph = dovetail.load(path)
    inputs = random_inputs(graph)
    case = Case(replace(graph, params={**graph.params, **inputs.params}), inputs.feeds)
    dovetail.compile(case.graph, target="reference", memory_limit=MEMORY, cache="off").run(case.feeds)
    if path.stat().st_size % 8:  # native code takes a hundred times as long: one file of eight
        return
    found = dovetail.compile(case.graph, target="cpu", memory_limit=MEMORY, cache="off").run(case.feeds)
    compare(case, found)


def _weights(path: Path) -> None:
    for array in read_safetensors(path).values():
        array.sum() if array.dtype.kind in "fiu" else None


def _decoder(path: Path) -> None:
    """What is read is in the file; a tokenizer that comes with it is built or refused."""
    file = read_gguf(path)
    for array in read_decoder(file).params.values():
        array.sum()
    if "tokenizer.ggml.model" in file.fields:
        GgufTokenizer(file.fields).encode("Hello, 12 wörlds")


def _cached(path: Path) -> None:
    """A damaged entry of the cache is not used: the program computes what it did."""
    folder = path.with_suffix(".folder")
    graph, feeds = seeds.small_graph(), {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    try:
        wanted = dovetail.compile(graph, cache=str(folder)).run(feeds)
        entries = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
        r = random.Random(path.name)
        for entry in r.sample(entries, min(len(entries), 2)):
            # Sometimes an entry is replaced as a whole, by what another writer would leave.
            entry.write_bytes(mutations.bytes_of(entry.read_bytes(), r) if r.random() < 0.7 else path.read_bytes())
        found = dovetail.compile(graph, cache=str(folder)).run(feeds)
    finally:
        remove(folder)
    if found["y"].tobytes() != wanted["y"].tobytes():
        raise Wrong("a damaged entry of the cache changed a result")


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "onnx": Kind(".onnx", seeds.onnx_models, (mutations.bytes_of, mutations.onnx_of, mutations.onnx_of), _run),
        "text": Kind(".txt", seeds.texts, (mutations.bytes_of, mutations.text_of, mutations.text_of), _run),
        "graph": Kind(".dovetail", seeds.saved_graphs, (mutations.bytes_of,), _run),
        "safetensors": Kind(".safetensors", seeds.weights, (mutations.bytes_of, mutations.safetensors_of), _weights),
        "gguf": Kind(".gguf", seeds.decoders, (mutations.bytes_of,), _decoder),
        "cache": Kind(".entry", seeds.saved_graphs, (mutations.bytes_of,), _cached),
    }
)
