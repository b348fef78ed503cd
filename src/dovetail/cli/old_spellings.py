"""Command lines of the version before: what they are now, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.renamed import REMOVED_IN


def split_explain(words: Sequence[str]) -> tuple[list[str], str]:
    """What-ifs and placements have commands of their own: `explain --assume` and `explain --mesh`."""
    flags = [word.partition("=")[0] for word in words]
    if words[:1] != ["explain"]:
        return list(words), ""
    if "--mesh" in flags:
        return ["place", *words[1:]], _said("explain --mesh", "place MODEL --mesh")
    if "--assume" in flags or "--apply" in flags:
        return ["what-if", *_misses(words[1:])], _said("explain --assume", "what-if MODEL")
    return list(words), ""


def _misses(words: Sequence[str]) -> list[str]:
    """`--assume A B` as `--miss A --miss B`."""
    found: list[str] = []
    is_miss = False
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == "--assume":
            is_miss = True
            found += ["--miss", value] if equals else []
        elif word.startswith("-"):
            is_miss = False
            found.append(word)
        else:
            found += ["--miss", word] if is_miss else [word]
    return found


def _said(old: str, new: str) -> str:
    return f"dovetail {old} is now dovetail {new}; the old spelling goes with dovetail {REMOVED_IN}"


__all__ = ["split_explain"]
