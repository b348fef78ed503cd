"""Sanitizes untrusted text: short, and printable wherever it is shown."""

from __future__ import annotations

LONGEST_LINE = 400
MOST_LINES = 60


def sanitize(text: str) -> str:
    """The text with control characters spelled out, and with what is too long left out."""
    lines = text.split("\n")
    shown = [sanitize_line(line) for line in lines[:MOST_LINES]]
    return "\n".join(shown if len(lines) <= MOST_LINES else [*shown, f"  and {len(lines) - MOST_LINES:,} more lines"])


def sanitize_line(line: str) -> str:
    """The same of one line: a line break is spelled out too."""
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE - 100]}… ({len(line):,} characters) …{line[-60:]}"
    return visible(line)


def visible(line: str) -> str:
    """A line of whatever length with all that a terminal would obey, or not show, spelled out."""
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
