"""A fusion lock: which fusions a model must keep, in a small file that people review."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError
from dovetail.report.outline import Outline

FIRST_LINE = "dovetail lock 1"
MOST_BYTES = 1 << 20
_LEFT = ("region", "batched_region", "epilogue", "prologue")


@dataclass(frozen=True, slots=True)
class Lock:
    """What has to hold of a compilation."""

    target: str
    kernels: int
    """As many at most."""
    fused: Mapping[str, int]
    """As many kernels of each rule at least."""
    collectives: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By kind how many, and their bytes on a device, for a model on a mesh."""
    mesh: str = ""
    place: Mapping[str, str] = field(default_factory=dict[str, str])
    """The rules of the placement that has them, by pattern."""

    def __str__(self) -> str:
        rules = [f"fused {rule} {count}" for rule, count in sorted(self.fused.items())]
        moved = [f"collective {kind} {count} {size}" for kind, (count, size) in sorted(self.collectives.items())]
        mesh = [f"mesh {self.mesh}"] if self.mesh else []
        placed = [f"place {pattern}: {words}" for pattern, words in self.place.items()]
        lines = [FIRST_LINE, f"target {self.target}", f"kernels {self.kernels}", *rules, *mesh, *moved, *placed, ""]
        return "\n".join(lines)

    def moved(self, found: Lock) -> tuple[str, ...]:
        """What another placement moves more of, in words."""
        if found.mesh != self.mesh:
            return (f"locked for the mesh {self.mesh or 'none'}, found {found.mesh or 'none'}",)
        return self._compared(found, more=True)

    def saved(self, found: Lock) -> tuple[str, ...]:
        """What it moves less of."""
        return self._compared(found, more=False) if found.mesh == self.mesh else ()

    def _compared(self, found: Lock, *, more: bool) -> tuple[str, ...]:
        said: list[str] = []
        for kind in sorted({*self.collectives, *found.collectives}):
            (was, size), (now, bytes_now) = (c.get(kind, (0, 0)) for c in (self.collectives, found.collectives))
            grown = now > was or bytes_now > size
            if grown == more and (now, bytes_now) != (was, size):
                said.append(f"{kind}: {now} of {bytes_now:,} bytes, locked at {was} of {size:,}")
        return tuple(said)

    def broken(self, found: Outline) -> tuple[str, ...]:
        """What does not hold, in words."""
        lost = [
            f"{rule}: {found.fused.get(rule, 0)} of {count}"
            for rule, count in self.fused.items()
            if found.fused.get(rule, 0) < count
        ]
        if found.target != self.target:
            lost.append(f"locked for {self.target}, compiled for {found.target}")
        return (
            *lost,
            *([f"{found.kernels} kernels, locked at {self.kernels}"] if found.kernels > self.kernels else []),
        )

    def gained(self, found: Outline) -> tuple[str, ...]:
        """What is better than locked, in words."""
        more = [
            f"{rule}: {n} of {self.fused.get(rule, 0)}"
            for rule, n in found.fused.items()
            if n > self.fused.get(rule, 0) and rule not in _LEFT
        ]
        return (
            *more,
            *([f"{found.kernels} kernels, locked at {self.kernels}"] if found.kernels < self.kernels else []),
        )


def lock_of(outline: Outline) -> Lock:
    """What a compilation has now. Regions are what is left between declared ops; how many there are is no promise."""
    return Lock(outline.target, outline.kernels, {rule: n for rule, n in outline.fused.items() if rule not in _LEFT})


def read_lock(text: str, where: str) -> Lock:
    """A lock from its text; lines that start with # are for people."""
    lines = [
        (n, line.split()) for n, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"
    ]
    whole = text.splitlines()
    if not lines or " ".join(lines[0][1]) != FIRST_LINE:
        raise LoadError(
            "this is not a lock", hint=f"its first line is {FIRST_LINE!r}: write one with lock", where=where
        )
    target, kernels, fused = "", None, dict[str, int]()
    mesh, collectives, place = "", dict[str, tuple[int, int]](), dict[str, str]()
    for number, words in lines[1:]:
        match words:
            case ["target", name]:
                target = name
            case ["kernels", count] if _is_count(count):
                kernels = int(count)
            case ["fused", rule, count] if _is_count(count) and rule not in fused:
                fused[rule] = int(count)
            case ["mesh", axes]:
                mesh = axes
            case ["collective", kind, count, size] if _is_count(count) and size.isdigit() and len(size) <= 18:
                collectives[kind] = int(count), int(size)
            case ["place", *_] if ":" in whole[number - 1]:
                pattern, _, axes = whole[number - 1].strip().removeprefix("place").rpartition(":")
                place[pattern.strip()] = axes.strip()
            case _:
                raise LoadError(
                    f"{' '.join(words)[:80]!r}",
                    hint="a line is `target NAME`, `kernels COUNT`, `fused RULE COUNT`, each rule once, `mesh AXES`, "
                    "`collective KIND COUNT BYTES` or `place PATTERN: AXES`",
                    where=f"{where}, line {number}",
                )
    if not target or kernels is None:
        raise LoadError("a lock without a target or a number of kernels", hint="write it anew with lock", where=where)
    return Lock(target, kernels, fused, collectives, mesh, place)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def is_lock(text: str) -> bool:
    """Whether a text is that of a lock, by its first line."""
    return text.lstrip().startswith(FIRST_LINE)


__all__ = ["Lock", "is_lock", "lock_of", "read_lock"]
