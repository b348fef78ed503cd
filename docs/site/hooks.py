"""What the site adds to the pages as they are in the tree: lists of folders, and links to files that are no pages."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any, cast

REPOSITORY = "https://github.com/dovetail-ml/dovetail/blob/main/"
LINK = re.compile(r"(\]\()((?:\.\./)+)(?!docs/)([\w./-]+)((?:#[\w-]+)?\))")
PRIMITIVES = "<!-- primitives -->"
NAMES = re.compile(r"<!-- names of ([\w.]+) -->")


def on_config(config: Any) -> Any:
    """Write out the folders of the navigation: every page, those of notes last."""
    config["nav"] = [_written_out(entry, Path(config["docs_dir"])) for entry in config["nav"]]
    return config


def _written_out(entry: Any, docs: Path) -> Any:
    if isinstance(entry, list):
        return [_written_out(one, docs) for one in cast(list[Any], entry)]
    if isinstance(entry, dict):
        return {title: _written_out(inside, docs) for title, inside in cast(dict[str, Any], entry).items()}
    if isinstance(entry, str) and entry.endswith("/"):
        pages = sorted((docs / entry).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
        notes = sorted((docs / entry / "notes").glob("*.md"))
        listed: list[Any] = [str(page.relative_to(docs)) for page in pages]
        return [*listed, {"Notes": [str(page.relative_to(docs)) for page in notes]}] if notes else listed
    return entry


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links that leave docs/ lead to the repository."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # the tabs have it
    depth = page.file.src_uri.count("/") + 1
    if PRIMITIVES in markdown:
        markdown = markdown.replace(PRIMITIVES, primitives())
    listed: set[str] = set()
    markdown = NAMES.sub(lambda found: names(found[1], listed), markdown)

    def leads(found: re.Match[str]) -> str:
        if found[2].count("../") < depth:
            return found[0]
        return f"{found[1]}{REPOSITORY}{found[3]}{found[4]}"

    return LINK.sub(leads, markdown)


def primitives() -> str:
    """Return a table of the primitives of `dovetail.ops`: how each is called, and what it computes."""
    from dovetail import ops
    from dovetail.ops.primitive import Primitive

    rows = ["| call | computes |", "|---|---|"]
    for name in sorted(dir(ops)):
        op = getattr(ops, name)
        if isinstance(op, Primitive):
            call, _, doc = (op.__doc__ or "").partition("\n")
            rows.append(f"| `ops.{call}` | {' '.join(doc.split())} |")
    return "\n".join(rows)


def names(module: str, listed: set[str]) -> str:
    """Return a directive of mkdocstrings for each class and function of a module's `__all__` that is not listed yet."""
    here: Any = import_module(module)
    lines: list[str] = []
    for name in sorted(here.__all__):
        if name not in listed and callable(getattr(here, name)):
            listed.add(name)
            lines.append(f"::: {module}.{name}")
    return "\n".join(lines)
