"""The report as data. Text and JSON are only ways to show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any, Literal

from dovetail.dataclass import dataclass
from dovetail.derive.missed import BETWEEN, NEAR
from dovetail.passes.epilogues import EPILOGUE, PROLOGUE
from dovetail.passes.legalize import DispatchRow
from dovetail.report.measured import Measured
from dovetail.report.recompute import RecomputeEntry
from dovetail.report.search import SearchEntry
from dovetail.report.units import bytes_text, time_text

SCHEMA_VERSION = 1
Unit = Literal["seconds", "bytes", "text", "names"]


def shown(label: str, unit: Unit = "text") -> Mapping[str, Any]:
    """The metadata of a field that the text with everything and the page show by itself, where it is not empty."""
    return {"shown": (label, unit)}


def facts(entries: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The labels and values of the fields of entries that are shown by themselves: numbers added up, texts listed."""
    for one in fields(entries[0]) if entries else ():
        label, unit = one.metadata.get("shown", ("", ""))
        values: list[Any] = [value for entry in entries if (value := getattr(entry, one.name))] if label else []
        if values and unit in ("text", "names"):
            listed = values if unit == "text" else [name for names in values for name in names]
            yield label, ", ".join(dict.fromkeys(listed))
        elif values:
            yield label, (bytes_text if unit == "bytes" else time_text)(sum(values))


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the graph as written: its name in the text form, its op, and the user's words for it."""

    name: str
    op: str
    where: str

    def __str__(self) -> str:
        return f"{self.op} {self.name}" + (f" at {self.where}" if self.where else "")


@dataclass(frozen=True, slots=True)
class FusedEntry:
    """A kernel that computes several values of the graph as written."""

    rule: str
    nodes: tuple[Node, ...]
    chain: tuple[str, ...]
    """The rules that led there, in order."""
    kernel: str
    bytes_saved: int
    seconds_saved: float


@dataclass(frozen=True, slots=True)
class MissedEntry:
    """A fusion that did not happen, the named condition that refused, and what that costs."""

    rule: str
    node: Node
    reason: str
    message: str
    hint: str
    bytes: int = field(metadata=shown("moves", "bytes"))
    """What moves between the kernels that it would have made one."""
    seconds: float
    """What the gaps cost that no other miss has the price of; of ops in between, what leaving them out gains."""
    kernels: tuple[str, ...] = ()
    gain_seconds: float = field(default=0.0, metadata=shown("the hint gains", "seconds"))
    """What following the hint is predicted to gain in a run."""
    changes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The hint as data: input or parameter -> the type to give it; the numbers are the same, repeated or once."""
    instead: str = field(default="", metadata=shown("priced at the miss of"))
    """The rule that has the price, where another miss is about the same gap."""
    between: tuple[str, ...] = field(default=(), metadata=shown("in between:", "names"))
    """The ops that stand between two of the pattern, where those alone keep it from matching."""

    @property
    def is_near(self) -> bool:
        """Whether the model computes something else there, so that it has lost nothing: another op than the pattern's,
        or one in between that computes, or that costs nothing."""
        return self.reason == NEAR or (self.reason == BETWEEN and not (self.gain_seconds or self.instead))


@dataclass(frozen=True, slots=True)
class Boundary:
    """Two kernels that hand a tensor over in memory, and why they are two."""

    producer: str
    consumer: str
    rule: str
    reason: str
    message: str
    hint: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """A step of the final schedule."""

    name: str
    op: str
    type: str
    phase: str
    nodes: tuple[Node, ...]
    """The user's nodes that it computes."""
    flops: int
    bytes: int
    seconds: float
    floor_seconds: float = 0.0
    """What no kernel of this work and traffic can stay below on the machine."""
    on_host: bool = False
    """Whether it runs as NumPy on the host, because the target has no compiled kernel for it."""
    lacks: tuple[str, ...] = ()
    """On the host: its elementwise steps that compiled code does not have, such as `sin in f64`."""
    form: str = ""
    """Which of the target's kernels for this op serves it, where there are several."""
    anchor: str = ""
    """Of a region what it is around, with the number of elementwise steps: `conv + 11 steps`."""
    bound: str = ""
    """What its time is bound by: `arithmetic`, or `memory`."""
    inside: tuple[str, ...] = ()
    """Of a branch or a loop, the kernels of its bodies in words: how many of each, and what they take in a trip."""
    rounding: str = ""
    """What it rounds before it multiplies; "" where products are those of its dtype."""
    error: float | None = None
    """How far products of random activations with its weights are from float64, as a part of their norm; None where
    that is not measured."""
    absorbed: tuple[Node, ...] = ()
    """Nodes that no step computes any more: they became views, constants or parts of other values in this kernel."""
    serves: tuple[Node, ...] = ()
    """Where it computes a part of a node, or prepares operands of one: these nodes."""

    @property
    def works_for(self) -> tuple[Node, ...]:
        """The user's nodes that it computes or serves."""
        return self.nodes or self.serves

    @property
    def title(self) -> str:
        """What it is called: its op, or what a region is around."""
        return self.anchor or self.op


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel that the compiler of the target made by itself, out of steps of the schedule."""

    name: str
    """What the compiler calls it."""
    form: str
    """How it runs, in the compiler's words."""
    type: str
    nodes: tuple[Node, ...]
    """The user's nodes that it computes, or parts of which it computes; none where the compiler does not say."""
    steps: tuple[str, ...]
    """The kernels of the schedule that it does the work of, by name."""
    bytes: int | None
    """Of its operands, each read whole, and of its results."""

    @property
    def where(self) -> tuple[str, ...]:
        """The user's places."""
        return tuple(dict.fromkeys(n.where for n in self.nodes if n.where))


@dataclass(frozen=True, slots=True)
class Repeat:
    """A block of kernels that comes several times one behind the other, as the layers of a model do."""

    count: int
    kernels: tuple[tuple[str, ...], ...]
    """Of each copy, by name."""


@dataclass(frozen=True, slots=True)
class StoppedEntry:
    """A search that ended because its budget was spent; what it had found until then is kept."""

    search: str
    phase: str
    limit: str
    message: str


@dataclass(frozen=True, slots=True)
class DonatedEntry:
    """An output in the memory of an input."""

    output: str
    input: str
    copied_bytes: int
    """What the end of each run copies there; 0 where the output is computed there."""
    seconds: float
    reason: str
    """Why it is copied."""


@dataclass(frozen=True, slots=True)
class PassEntry:
    name: str
    nodes_before: int
    nodes_after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WeightsEntry:
    """Parameters of one format that a run reads."""

    format: str
    """Of their blocks, or their dtype."""
    count: int
    bytes: int
    as_floats: int
    """Bytes that they would take in f32."""
    read: int
    """Bytes that a token reads: of experts, those that it chooses."""
    seconds: float
    """What reading these once takes from memory."""


@dataclass(frozen=True, slots=True)
class LaunchEntry:
    """A way to give a step no launch of its own, or the launch: whether it is taken, and the condition that refuses."""

    kernel: str
    op: str
    kind: str
    """What it is about: `launches` of a step, `layers` that repeat, a `library` for a product."""
    way: str
    taken: bool
    reason: str = ""
    condition: str = ""
    found: str = ""
    expected: str = ""
    hint: str = ""
    """What would change it."""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What fused, what did not and why, and what both cost; `Report` shows it as text."""

    graph: str
    target: str
    nodes_before: int
    nodes_after: int
    ops_before: Mapping[str, int]
    ops_after: Mapping[str, int]
    fused: tuple[FusedEntry, ...]
    missed: tuple[MissedEntry, ...]
    boundaries: tuple[Boundary, ...]
    kernels: tuple[Kernel, ...]
    dispatch: tuple[DispatchRow, ...]
    passes: tuple[PassEntry, ...]
    predicted_seconds: float
    assumed_sizes: Mapping[str, int]
    """What symbols counted as in the estimates."""
    arena_bytes: int | None = None
    calibration: str = "built-in"
    """Where the figures of the machine come from that prices are made of."""
    floor_seconds: float = 0.0
    """What no program of this work and these parameters can stay below on the machine."""
    measured: Measured | None = None
    """What was measured, where somebody asked."""
    repeats: tuple[Repeat, ...] = ()
    """Blocks that are shown once."""
    stopped: tuple[StoppedEntry, ...] = ()
    search: SearchEntry | None = None
    """What an e-graph chose from, where one was asked."""
    donated: tuple[DonatedEntry, ...] = ()
    """Outputs in the memory of inputs."""
    recompute: RecomputeEntry | None = None
    """What the backward pass saves and computes again, where there is one."""
    weights: tuple[WeightsEntry, ...] = ()
    """What a run reads of parameters, where some are stored in blocks."""
    near: tuple[MissedEntry, ...] = ()
    """Patterns that fit but for one op: the model computes something else there, and nothing was missed."""
    compiled: Callable[[], tuple[CompiledKernel, ...]] | None = field(default=None, compare=False, repr=False)
    """Compiles the plan, and reads back the kernels that the compiler made; None where it makes none of its own."""
    launches: Callable[[], tuple[LaunchEntry, ...]] | None = field(default=None, compare=False, repr=False)
    """Generates the kernels, and tells which steps share one; None where a target says nothing of launches."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was missed that a run pays for, but what the machine model declined."""
        return not self.lost

    @property
    def lost(self) -> tuple[MissedEntry, ...]:
        """The misses that a change to the model could win: neither what cost decided against, nor what a kernel of the
        target does not take in."""
        return tuple(m for m in self.missed if m.seconds > 0 and m.rule not in (EPILOGUE, PROLOGUE))

    def count(self, rule: str) -> int:
        """How many kernels a rule made, alone or inside a larger one."""
        return sum(rule == f.rule or rule in f.chain for f in self.fused)

    @property
    def blocks(self) -> int:
        """How many blocks stand in runs of equal ones."""
        return sum(repeat.count for repeat in self.repeats)
