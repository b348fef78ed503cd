"""The report's page in a real browser: what a person sees, clicks and types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail import Graph, ops
from dovetail.cli.model import graph_of
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.report.atomic_write import write_atomically
from dovetail.report.html.page import page
from dovetail.report.html.timeline import Span
from dovetail.runtime.compile import Compilation, compilation, make_request
from tests.browser.chromium import Chromium
from tests.cli.commands import SMALL, WRONG_BIAS
from tests.report.html.models import hostile_graph, source_of

pytestmark = pytest.mark.serial  # it drives a browser


@pytest.fixture(scope="module")
def made() -> Compilation:
    """Three layers, so that something repeats."""
    return compilation(graph_of(SMALL["bert"].replace("layers=2", "layers=3")), make_request())


@pytest.fixture(scope="module")
def source(made: Compilation) -> dict[str, Any]:
    first = len(made.plan.phase("bind"))
    spans = [Span(first + i, i * 1e-4, 9e-5, i % 2) for i in range(len(made.plan.phase("run")))]
    return source_of(made, spans)


@pytest.fixture(scope="module")
def written(source: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_atomically(tmp_path_factory.mktemp("page") / "report.html", page(source), "page")


@pytest.fixture
def opened(browser: Chromium, written: Path) -> Chromium:
    """The page, fresh, light and as large as a laptop's screen."""
    browser.resize(1440, 900)
    browser.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    browser.eval("try { localStorage.clear() } catch {}")
    browser.open(written)
    browser.eval("try { localStorage.clear() } catch {}")
    browser.open(written)
    return browser


def quiet(browser: Chromium) -> None:
    assert browser.complaints() == []


def kernel(source: dict[str, Any], op: str) -> dict[str, Any]:
    return next(k for k in source["report"]["kernels"] if k["op"] == op)


def place_of(browser: Chromium, thing: str, where: str, step: int = 14) -> tuple[float, float]:
    """Move over the canvas until the tip speaks of something, as a person would look for it; where it was found."""
    found = browser.eval(
        f"""(() => {{
          const canvas = document.getElementById("canvas"), box = canvas.getBoundingClientRect();
          for (let y = box.top + 60; y < box.bottom - 30; y += {step})
            for (let x = box.left + 30; x < box.right - 60; x += {step}) {{
              canvas.dispatchEvent(new PointerEvent("pointermove", {{ clientX: x, clientY: y, pointerId: 9 }}));
              const tip = document.getElementById("tip");
              if (tip.style.opacity === "1" && tip.textContent.includes({json.dumps(thing)})) return [x, y];
            }}
          return null;
        }})()"""
    )
    assert found is not None, f"{thing} is not seen {where}"
    return found[0], found[1]


def test_it_opens_says_the_numbers_and_asks_nobody(opened: Chromium, source: dict[str, Any], written: Path) -> None:
    report = source["report"]
    assert opened.eval("document.documentElement.dataset.ready") == ""
    assert opened.eval("document.title").startswith("bert on cpu")
    shown = opened.eval("[...document.querySelectorAll('#facts data')].map((d) => Number(d.value))")
    assert shown[:3] == [report["nodes_before"], len(report["kernels"]), report["predicted_seconds"]]
    assert report["arena_bytes"] in shown
    assert list(opened.requests()) == [written.resolve().as_uri()]
    quiet(opened)


@pytest.mark.slow
def test_a_click_on_a_kernel_opens_its_details(opened: Chromium, source: dict[str, Any]) -> None:
    attention = kernel(source, "attention")
    opened.click(*place_of(opened, f"attention {attention['name']}", "in the plan"))
    opened.wait(f"document.querySelector('#panel h2').textContent.includes({json.dumps(attention['name'])})")
    numbers = opened.eval("[...document.querySelectorAll('#panel .facts data')].map((d) => Number(d.value))")
    assert numbers[:3] == [attention["seconds"], attention["flops"], attention["bytes"]]
    ops = opened.eval("[...document.querySelectorAll('#panel .ops b')].map((b) => b.textContent)")
    assert ops == [n["op"] for n in attention["nodes"]]
    assert "1 of 3 alike" in opened.text(".peers")
    assert opened.eval("document.querySelector('.row[aria-selected=true]').dataset.kernel") == attention["name"]
    quiet(opened)


@pytest.mark.slow
def test_code_is_shown_when_it_is_asked_for(opened: Chromium, source: dict[str, Any]) -> None:
    opened.click_on(f".row[data-kernel='{kernel(source, 'attention')['name']}']")
    assert opened.text("#panel details pre") == ""
    opened.click_on("#panel details.code summary")
    opened.wait("document.querySelector('#panel details.code pre').textContent.includes('define ')")
    quiet(opened)


@pytest.mark.slow
def test_a_gap_leads_to_its_reason(opened: Chromium, source: dict[str, Any]) -> None:
    attention = kernel(source, "attention")["name"]
    gap = next(b for b in source["report"]["boundaries"] if b["consumer"] == attention and b["reason"] == "no_rule")
    opened.click(*place_of(opened, gap["message"], "between two kernels", step=8))
    opened.wait("document.querySelector('#panel h2.joint')")
    panel = opened.text("#panel")
    assert gap["message"] in panel and gap["hint"] in panel
    assert opened.eval("Number(document.querySelector('#panel .facts data').value)") == gap["seconds"]
    opened.click_on(f"#panel .pair [data-kernel='{attention}']")
    opened.wait(f"document.querySelector('#panel h2').textContent.includes({json.dumps(attention)})")
    quiet(opened)


@pytest.mark.slow
def test_a_refused_fusion_is_marked_and_ranked(browser: Chromium, folder: Path) -> None:
    (folder / "layer.txt").write_text(WRONG_BIAS)
    made = compilation(graph_of(str(folder / "layer.txt")), make_request(without=["fuse_epilogues"]))
    (missed,) = [m for m in made.report().missed if m.rule == "linear"]
    browser.open(write_atomically(folder / "report.html", page(source_of(made)), "page"))
    browser.click(*place_of(browser, missed.message, "between two kernels", step=8))
    browser.wait("document.querySelector('#panel h2.refused')")
    panel = browser.text("#panel")
    assert all(word in panel for word in ("linear", "bias_is_a_vector", missed.message, missed.hint))
    browser.click_on("#tab-gaps")
    row = browser.text("#gaps article:first-child tbody tr")
    assert all(word in row for word in ("linear", "bias_is_a_vector", missed.message, missed.hint))
    seconds = "Number(document.querySelector('#gaps article:first-child tbody tr').children[5].firstChild.value)"
    assert browser.eval(seconds) == pytest.approx(missed.seconds)
    quiet(browser)


@pytest.mark.slow
@pytest.mark.parametrize(
    "graph",
    [
        Graph.of(input("x", f32[4]), name="nothing to do"),
        Graph.of(ops.exp(input("x", f32["n", 4])) @ param("w", f32[4, 3]), name="symbolic"),
    ],
    ids=lambda graph: graph.name,
)
def test_small_and_symbolic_graphs_have_pages_too(graph: Graph, browser: Chromium, folder: Path) -> None:
    made = compilation(graph, make_request())
    browser.open(write_atomically(folder / "report.html", page(source_of(made)), "page"))
    for tab in ("time", "memory", "gaps", "graph"):
        browser.click_on(f"#tab-{tab}")
    for stage in ("imported", "plan"):
        browser.click_on(f"[data-stage={stage}]")
    assert browser.text("#found") == f"{len(made.plan.steps)} kernels"
    quiet(browser)


@pytest.mark.slow
def test_search_and_filters_narrow_the_list(opened: Chromium, source: dict[str, Any]) -> None:
    opened.press("/")
    assert opened.eval("document.activeElement.id") == "search"
    opened.type("softmax")
    kernels = source["report"]["kernels"]
    assert opened.text("#found").startswith(f"{len(kernels)} kernels") is False
    opened.put("#search", "attention")
    wanted = [k for k in kernels if k["op"] == "attention"]
    assert opened.text("#found").startswith(f"{len(wanted)} of {len(kernels)} kernels")
    seconds = opened.eval("Number(document.querySelector('#found data').value)")
    assert seconds == pytest.approx(sum(k["seconds"] for k in wanted))
    assert opened.eval("document.querySelectorAll('.row').length") == 1, "three alike are one row"
    opened.press("Enter")
    opened.wait("document.querySelector('#panel h2').textContent.includes('attention')")
    opened.press("Escape")
    assert opened.text("#found") == f"{len(kernels)} kernels"
    opened.put("#by-rule", "residual_layer_norm")
    rule = [f for f in source["report"]["fused"] if f["rule"] == "residual_layer_norm"]
    assert opened.text("#found").startswith(f"{len(rule)} of ")
    quiet(opened)


@pytest.mark.slow
def test_a_repeated_block_unfolds_and_folds(opened: Chromium) -> None:
    x, y = place_of(opened, "3 blocks alike", "in the plan")
    opened.click(x, y)
    opened.wait("document.getElementById('said').textContent.startsWith('Unfolded')")
    place_of(opened, "Block 1 of 3", "where it was folded")
    opened.press("u")
    opened.wait("document.getElementById('said').textContent.startsWith('Folded')")
    place_of(opened, "3 blocks alike", "after it is folded again")
    quiet(opened)


@pytest.mark.slow
def test_the_stages_are_stepped_through(opened: Chromium, made: Compilation) -> None:
    names = opened.eval("[...document.querySelectorAll('[data-stage]')].map((b) => b.dataset.stage)")
    assert names == ["imported", "recognised", "fused", "legal", "plan"]
    for name in reversed(names[:-1]):
        opened.press("[")
        assert opened.eval("document.querySelector('[aria-checked=true]').dataset.stage") == name
    opened.click(*place_of(opened, "gather", "as imported"))
    opened.wait("document.querySelector('#panel').textContent.includes('Ends in the kernel')")
    opened.click_on("[data-stage=plan]")
    opened.wait("document.querySelector('#panel .facts')")
    assert opened.text("#panel h2").startswith("gather")
    quiet(opened)


@pytest.mark.slow
def test_keys_alone_suffice(opened: Chromium) -> None:
    opened.eval("document.getElementById('canvas').focus()")
    opened.press("ArrowDown")
    opened.press("ArrowDown")
    opened.wait("document.querySelector('#panel .facts, #panel .type')")
    first = opened.text("#panel h2")
    opened.press("ArrowDown")
    assert opened.text("#panel h2") != first
    opened.press("g")
    opened.wait("document.querySelector('#panel h2.joint')")
    opened.press("Enter")
    assert opened.eval("document.activeElement.id") == "panel"
    opened.press("?")
    assert opened.eval("document.getElementById('keys').open") is True
    quiet(opened)


@pytest.mark.slow
def test_time_memory_and_gaps_have_their_pages(opened: Chromium, source: dict[str, Any]) -> None:
    opened.click_on("#tab-time")
    assert opened.eval("document.querySelectorAll('#time canvas').length") == 2, "as measured and as predicted"
    dots = opened.eval("[...document.querySelectorAll('#time circle')].map((c) => c.getAttribute('aria-label'))")
    assert any("attention" in label for label in dots)
    opened.click_on("#tab-memory")
    shown = opened.eval("[...document.querySelectorAll('#memory .facts data')].map((d) => Number(d.value))")
    assert shown == [source["arena"][k] for k in ("size", "peak", "unshared", "bound")]
    assert f"peak {opened.eval('document.querySelectorAll(`#memory .facts data`)[1].textContent')}" in str(
        opened.eval("document.querySelector('#memory canvas').getAttribute('aria-label')")
    )
    opened.click_on("#tab-gaps")
    rows = "[...document.querySelectorAll('#gaps article:nth-child(2) tbody tr')]"
    prices = opened.eval(f"{rows}.map((r) => Number(r.children[5].firstChild.value))")
    assert prices == sorted(prices, reverse=True)
    assert sum(prices) == pytest.approx(sum(b["seconds"] for b in source["report"]["boundaries"]))
    opened.click_on("#gaps [data-gap]")
    opened.wait("document.querySelector('#panel h2.joint')")
    assert opened.eval("document.getElementById('graph').hidden") is False
    quiet(opened)


@pytest.mark.slow
def test_light_and_dark(opened: Chromium) -> None:
    def paper() -> str:
        return str(opened.eval("getComputedStyle(document.body).backgroundColor"))

    def drawn() -> list[int]:
        return opened.eval(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {"
            "const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });"
            "pen.drawImage(document.getElementById('canvas'), 2, 200, 1, 1, 0, 0, 1, 1);"
            "done([...pen.getImageData(0, 0, 1, 1).data].slice(0, 3)); })))"
        )

    light, seen = paper(), drawn()
    opened.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    opened.wait(f"getComputedStyle(document.body).backgroundColor !== {json.dumps(light)}")
    assert sum(seen) > 600 > 200 > sum(drawn()), "the canvas follows"
    opened.click_on("#theme")
    assert paper() == light and sum(drawn()) > 600, "the switch says light"
    opened.press("t")
    assert paper() != light
    quiet(opened)


@pytest.mark.slow
def test_hostile_names_are_only_names(browser: Chromium, folder: Path) -> None:
    made = compilation(hostile_graph(), make_request())
    written = write_atomically(folder / "report.html", page(source_of(made)), "page")
    browser.open(written)
    assert browser.eval("document.documentElement.dataset.ready") == ""
    for tab in ("time", "memory", "gaps", "graph"):
        browser.click_on(f"#tab-{tab}")
    for stage in ("imported", "fused", "plan"):
        browser.click_on(f"[data-stage={stage}]")
    count = int(browser.eval("document.querySelectorAll('.row').length"))
    for row in range(count):
        browser.click_on(f".row:nth-child({row + 1})")
    assert count == len(made.plan.steps)
    assert "owned" not in browser.eval("document.title.replace('document.title=', '')").split("'")[0]
    assert browser.eval("document.querySelectorAll('img, iframe, object, svg [onload]').length") == 0
    assert browser.eval("document.querySelectorAll('script').length") == 2
    assert "\u202e" not in browser.eval("document.body.innerText") and "\x1b" not in browser.eval("document.title")
    assert list(browser.requests()) == [written.resolve().as_uri()]
    quiet(browser)


@pytest.mark.slow
def test_it_prints(opened: Chromium, folder: Path) -> None:
    opened.print(folder / "report.pdf")
    assert (folder / "report.pdf").read_bytes().startswith(b"%PDF")
    opened.wait("document.getElementById('time').hidden")
    quiet(opened)


@pytest.mark.slow
def test_it_fits_a_small_screen(opened: Chromium) -> None:
    for width, height in ((1024, 700), (700, 900)):
        opened.resize(width, height)
        assert opened.eval("document.documentElement.scrollWidth <= innerWidth"), width
        assert opened.eval("document.getElementById('canvas').getBoundingClientRect().width > 200")
    quiet(opened)
