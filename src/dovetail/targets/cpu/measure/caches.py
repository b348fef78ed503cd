"""The sizes of the data caches, as the system reports them."""

from __future__ import annotations

from pathlib import Path


def cache_sizes(root: Path = Path("/")) -> tuple[int, ...]:
    """Bytes of the data caches, L1 first; empty where the system does not report them."""
    found: dict[int, int] = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                found[int(level)] = _bytes(size)
        except (OSError, ValueError):
            continue
    return tuple(found[level] for level in sorted(found))


def _bytes(text: str) -> int:
    """Bytes as the kernel spells them: 2048K."""
    return int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1:], 0)


__all__ = ["cache_sizes"]
