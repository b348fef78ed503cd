"""Records of 64-bit fields in memory, as LLVM text that loads or stores them."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """A record: the LLVM type of each field by name, at consecutive 8-byte offsets."""

    kinds: Mapping[str, str]

    def offset(self, name: str) -> int:
        """The byte offset of a field."""
        return 8 * list(self.kinds).index(name)

    @property
    def bytes(self) -> int:
        return 8 * len(self.kinds)

    def load(self, base: str, *names: str) -> str:
        """Load fields of the record at `base`, each into a value of its name; all fields without names."""
        lines: list[str] = []
        for name in names or self.kinds:
            lines.append(f"  %{name}.at = getelementptr i8, ptr {base}, i64 {self.offset(name)}")
            lines.append(f"  %{name} = load {self.kinds[name]}, ptr %{name}.at")
        return "\n".join(lines)

    def store(self, base: str, values: Mapping[str, str]) -> str:
        """Store values into fields of the record at `base`."""
        lines: list[str] = []
        for name, value in values.items():
            lines.append(f"  %to.{name} = getelementptr i8, ptr {base}, i64 {self.offset(name)}")
            lines.append(f"  store {self.kinds[name]} {value}, ptr %to.{name}")
        return "\n".join(lines)


LAUNCH = RecordLayout(
    {
        "function": "ptr",
        "arguments": "ptr",
        "tiles": "i64",
        "chunk": "i64",
        "scratch": "ptr",
        "stride": "i64",
        "trace": "ptr",
        "workers": "i64",
    }
)
"""The step that is open to the workers of a thread pool; `trace` is its row in the trace buffer, or null."""

__all__ = ["LAUNCH", "RecordLayout"]
