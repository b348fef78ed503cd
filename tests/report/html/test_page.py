"""The page: what it embeds, what it lets nobody do, and how it is written."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import LoadError
from dovetail.report.atomic_write import write_atomically
from dovetail.report.html.page import SCRIPTS, STYLES, embedded, page
from dovetail.report.html.timeline import Span
from dovetail.report.json_form import as_dict
from dovetail.runtime.compile import compilation, make_request
from tests.report.html.models import HOSTILE, compiled, hostile_graph, source_of

FOLDER = Path(__file__).parents[3] / "src" / "dovetail" / "report" / "html"


class Read(HTMLParser):
    """The elements of a page with their attributes and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._inside: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style", "title") else None
        if self._inside:
            self.texts.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] = (self._inside, self.texts[-1][1] + data)

    def source(self) -> dict[str, Any]:
        """What is embedded."""
        return json.loads(next(text for tag, text in self.texts if tag == "script" and text.startswith("{")))


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "llama", "resnet"])
def test_the_page_has_the_numbers_of_the_report_and_of_the_plan(model: str) -> None:
    made = compiled(model)
    shown = Read(page(source_of(made))).source()
    assert shown["report"] == json.loads(json.dumps(as_dict(made.report())))
    assert shown["arena"]["size"] == made.plan.arena_size == shown["report"]["arena_bytes"]
    assert shown["arena"]["peak"] == made.plan.peak
    assert shown["machine"]["flops_per_second"] == made.machine.flops_per_second
    assert len(shown["report"]["kernels"]) == len(made.plan.steps)
    texts = json.loads(zlib.decompress(base64.b64decode(shown["code"]["packed"])))
    assert len(texts) == max(shown["code"]["of"]) + 1 and all("define" in t for t in texts)


@pytest.mark.heavy
def test_the_policy_allows_this_style_and_this_script_and_nothing_else() -> None:
    read = Read(page(source_of(compiled("resnet"))))
    (policy,) = [a["content"] or "" for _, a in read.elements if a.get("http-equiv") == "Content-Security-Policy"]
    (style,) = [text for tag, text in read.texts if tag == "style"]
    scripts = [text for tag, text in read.texts if tag == "script"]
    assert len(scripts) == 2, "the data and the code"
    assert policy.split("; ") == [
        "default-src 'none'",
        f"style-src '{digest(style)}'",
        f"script-src '{digest(scripts[1])}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]


@pytest.mark.slow
def test_the_page_asks_nobody_for_anything() -> None:
    read = Read(page(source_of(compiled("resnet"))))
    fetching = {"src", "href", "srcset", "data", "action", "poster", "background", "style", "srcdoc"}
    given = [(tag, name, value) for tag, attrs in read.elements for name, value in attrs.items()]
    assert [(tag, value) for tag, name, value in given if name in fetching] == [("a", "#panel")]
    assert not [name for _, name, _ in given if name.startswith("on")], "no handlers in markup"
    assert not {"link", "iframe", "object", "embed", "img", "base"} & {tag for tag, _ in read.elements}
    for name in (*SCRIPTS, *STYLES):
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text), name
        assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|import\(|url\(|@import", text), name
        assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}, name
        assert len(text.splitlines()) <= 400, name


@pytest.mark.heavy
def test_names_cannot_be_markup() -> None:
    made = compilation(hostile_graph(), make_request())
    text = page(source_of(made))
    read = Read(text)
    plain = Read(page(source_of(compiled("resnet"))))
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in plain.elements], "no name made an element"
    assert read.source()["report"]["graph"] == HOSTILE[0]
    assert read.source()["report"] == json.loads(json.dumps(as_dict(made.report())))
    data = embedded(source_of(made))
    assert data.isascii() and not set("<>&\u2028\u2029\x00\x1b") & set(data)


def test_what_json_has_no_word_for_is_left_out() -> None:
    shown = json.loads(embedded({"a": float("inf"), "b": [float("nan"), 1.5], "c": {"d": (1, "</script>")}}))
    assert shown == {"a": None, "b": [None, 1.5], "c": {"d": [1, "</script>"]}}


def test_parts_of_the_page_are_put_in_by_name_once() -> None:
    """A name that looks like a place for a part stays a name."""
    assert Read(page({"report": "%%script%%"})).source() == {"report": "%%script%%"}


@pytest.mark.heavy
def test_a_measured_run_is_embedded() -> None:
    shown = Read(page(source_of(compiled("resnet"), [Span(0, 0.0, 0.5, 1)]))).source()
    assert shown["timeline"] == [{"kernel": 0, "start": 0.0, "seconds": 0.5, "thread": 1}]
    assert Read(page(source_of(compiled("resnet")))).source()["timeline"] is None


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "report.html"
    assert write_atomically(place, "first", "page") == place and place.read_text() == "first"
    assert not place.stat().st_mode & 0o111

    def broken(old: Path, new: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(LoadError, match="No space left"):
        write_atomically(place, "second", "page")
    assert place.read_text() == "first" and list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("name", ["missing/report.html", "report\0.html", ".", "file/report.html"])
def test_a_place_that_cannot_be_written_is_a_user_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match="the page cannot be written") as error:
        write_atomically(tmp_path / name, "text", "page")
    assert error.value.hint and error.value.where
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "nothing is left behind"
