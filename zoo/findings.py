"""What is found of one model, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from zoo.compare import Times
from zoo.judge import Verdict

CLIFF = 0.9
"""A model that reaches less than this share of onnxruntime's speed has fallen off the fast path."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that is said of one model."""

    name: str
    error: str = ""
    """Why it did not load, compile or run."""
    operators: Mapping[str, int] = field(default_factory=dict[str, int])
    nodes: int = 0
    kernels: int = 0
    fused: Mapping[str, int] = field(default_factory=dict[str, int])
    missed: Mapping[str, int] = field(default_factory=dict[str, int])
    """By rule and reason."""
    verdicts: tuple[Verdict, ...] = ()
    times: Times | None = None
    host_share: float = 0.0
    """The share of a run that steps on the host take."""
    host: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of each op on the host."""
    unnamed: tuple[str, ...] = ()
    """Ops on the host that the table does not name."""
    build: str = ""
    """A digest of the sources that found this."""

    def made_by(self, build: str) -> Findings:
        return replace(self, build=build)

    @property
    def wrong(self) -> bool:
        """Whether an output is too far from the float64 reference."""
        return not all(v.holds for v in self.verdicts)

    @property
    def cliff(self) -> bool:
        return self.times is not None and self.times.ratio < CLIFF

    @property
    def passed(self) -> bool:
        return not (self.error or self.wrong or self.cliff or self.unnamed)

    @property
    def verdict(self) -> str:
        """One word, or one for each thing that is wrong."""
        if self.error:
            return "ERROR"
        told = {"WRONG": self.wrong, "CLIFF": self.cliff, "HOST": bool(self.unnamed)}
        return " ".join(word for word, holds in told.items() if holds) or "ok"

    def __str__(self) -> str:
        """Every detail, in a few lines."""
        lines = [f"== {self.name}: {self.verdict}"]
        if self.error:
            lines.append(f"   {self.error}")
        if self.operators:
            lines.append(f"   operators  {_counted(self.operators)}")
        if self.kernels:
            lines.append(f"   {self.nodes} nodes → {self.kernels} kernels")
            lines.append(f"   fused      {_counted(self.fused) or 'nothing'}")
            lines.append(f"   missed     {_counted(self.missed) or 'nothing'}")
        lines += [f"   {v}" for v in self.verdicts]
        if self.host:
            spent = ", ".join(f"{op} {seconds * 1e3:.3f} ms" for op, seconds in self.host.items())
            lines.append(f"   host       {spent}")
        return "\n".join(lines)


def as_dict(findings: Findings) -> dict[str, Any]:
    """The findings as plain data."""
    plain = {f.name: getattr(findings, f.name) for f in fields(findings)}
    counts = {name: dict(plain[name]) for name in ("operators", "fused", "missed", "host")}
    return {
        **plain,
        **counts,
        "verdict": findings.verdict,
        "times": None if findings.times is None else asdict(findings.times),
        "verdicts": [{**asdict(v), "holds": v.holds} for v in findings.verdicts],
    }


def from_dict(plain: Mapping[str, Any]) -> Findings:
    """The findings that `as_dict` wrote, also in a build that knew fewer fields."""
    known: dict[str, Any] = {f.name: plain[f.name] for f in fields(Findings) if f.name in plain}
    told = [{name: value for name, value in v.items() if name != "holds"} for v in known.get("verdicts", ())]
    known["verdicts"] = tuple(Verdict(**v) for v in told)
    known["times"] = None if known.get("times") is None else Times(**known["times"])
    known["unnamed"] = tuple(known.get("unnamed", ()))
    return Findings(**known)


def _counted(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} × {name}" for name, count in ordered)
