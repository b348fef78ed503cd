"""A graph to compile, arrays to run it with, and one way to compile it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import dovetail
from dovetail import Graph, library
from dovetail.egraph.algebra import ALGEBRA
from dovetail.ir.literal import Array
from dovetail.passes.canonicalize import RULES
from dovetail.passes.pipeline import PASSES, REQUIRED

SWITCHES: tuple[str, ...] = (
    *(step.name for step in PASSES if step.name not in REQUIRED),
    *(op.name for op in library.ALL),
    *(group.name for group in library.GROUPS),
    *(rule.name for rule in (*RULES, *ALGEBRA)),
)
"""Every pass and rewrite that can be switched off."""


@dataclass(frozen=True, slots=True)
class Case:
    """A graph and the arrays of one run. `wanted` is what another runtime gives, where one was asked."""

    graph: Graph
    feeds: Mapping[str, Array]
    wanted: Mapping[str, Array] = field(default_factory=dict[str, Array])


@dataclass(frozen=True, slots=True)
class Way:
    """How to compile a case, beside the default way."""

    engine: str = "egraph"
    without: tuple[str, ...] = ()
    strict: bool = False
    threads: int = 2
    specialised: bool = False
    """Whether every symbol becomes a number first."""
    round_trip: str = ""
    """`text` or `file`: the graph is written and read again first."""


def ways() -> SearchStrategy[Way]:
    """Ways to compile; the simplest is the default."""
    return st.builds(
        Way,
        engine=st.sampled_from(("egraph", "greedy")),
        without=st.lists(st.sampled_from(SWITCHES), max_size=6, unique=True).map(lambda names: tuple(sorted(names))),
        strict=st.booleans(),
        threads=st.sampled_from((1, 2)),
        specialised=st.booleans(),
        round_trip=st.sampled_from(("", "text", "file")),
    )


def store(case: Case, way: Way, folder: Path) -> None:
    """Write a case so that `restore` reads it in another process."""
    folder.mkdir(parents=True, exist_ok=True)
    dovetail.save(case.graph, folder / "graph.dovetail")
    _write_arrays(folder / "feeds.npz", case.feeds)
    _write_arrays(folder / "wanted.npz", case.wanted)
    (folder / "way.json").write_text(json.dumps(asdict(way), indent=1) + "\n")


def restore(folder: Path) -> tuple[Case, Way]:
    """The case in a folder."""
    said: dict[str, Any] = json.loads((folder / "way.json").read_text())
    said["without"] = tuple(said["without"])
    feeds, wanted = (_read_arrays(folder / f"{name}.npz") for name in ("feeds", "wanted"))
    return Case(dovetail.load(folder / "graph.dovetail"), feeds, wanted), Way(**said)


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    # Names of arrays may hold what names of files may not; NumPy's own format keeps no bfloat16.
    named = {str(at): array.view(np.uint16) if _is_bf16(array) else array for at, array in enumerate(arrays.values())}
    listed = [[name, "bfloat16" if _is_bf16(array) else ""] for name, array in arrays.items()]
    np.savez(path, names=np.array(json.dumps(listed)), **named)  # pyright: ignore[reportArgumentType]


def _read_arrays(path: Path) -> dict[str, Array]:
    with np.load(path) as file:
        listed = json.loads(str(file["names"]))
        found = {name: (file[str(at)], kind) for at, (name, kind) in enumerate(listed)}
    return {name: array.view(dovetail.dtypes.bf16.numpy) if kind else array for name, (array, kind) in found.items()}


def _is_bf16(array: Array) -> bool:
    return array.dtype == dovetail.dtypes.bf16.numpy
