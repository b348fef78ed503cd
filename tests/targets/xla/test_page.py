"""A placement on the report's page: lanes and joints have the numbers of the explanation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.mesh import explain_placement
from dovetail.models.llama import LlamaShape, llama
from dovetail.reports import write_report

pytest.importorskip("jax")

SHAPE = LlamaShape(layers=3, hidden=64, heads=8, kv_heads=4, inner=128, vocabulary=64)


def test_the_page_has_the_collectives_of_the_explanation(tmp_path: Path) -> None:
    graph = llama(SHAPE, batch=8, seq=8)
    wrong = {"layers.*.wo": "- tp"}
    found = explain_placement(graph, mesh={"dp": 2, "tp": 4}, place=wrong, preset="tensor")
    text = write_report(graph, tmp_path / "page.html", target="xla", placement=found).read_text("utf-8")
    start = text.index('id="source">') + len('id="source">')
    mesh: dict[str, Any] = json.loads(text[start : text.index("</script>", start)])["mesh"]
    assert mesh["axes"] == [{"name": "dp", "size": 2}, {"name": "tp", "size": 4}]
    assert [(j["kind"], tuple(j["axes"]), j["bytes"], j["place"], j["why"]) for j in mesh["joints"]] == [
        (c.kind, c.axes, c.bytes, c.place, c.why) for c in found.collectives
    ]
    assert sum(j["seconds"] for j in mesh["joints"]) == pytest.approx(found.seconds)
    # The remedy stands at what comes of the wrong rule, and nowhere else.
    best = mesh["remedies"][0]
    assert (best["pattern"], best["placed"]) == ("layers.*.wo", "tp")
    marked = {j["why"] for j in mesh["joints"] if 0 in j["remedies"]}
    assert marked == {c.why for c in found.collectives if any(name.endswith(".wo") for name in c.origins)}
    assert marked and all("layers.*.wo" in why for why in marked)
    # The order is that of the program: layers follow each other, and what repeats is one run.
    places = [j["place"] for j in mesh["joints"]]
    layers = [int(p.split(".")[1].split("/")[0]) for p in places if p.startswith("layers.")]
    assert layers == sorted(layers) and set(layers) == {0, 1, 2}
    assert sum(period * count for _, period, count in mesh["runs"]) >= len(layers) * 2 // 3


def test_the_command_writes_the_page_of_a_mesh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mesh.html"
    model = "llama:layers=1,hidden=64,heads=8,kv_heads=4,inner=128,vocabulary=64,batch=8,seq=8"
    assert main(["explain", model, "--mesh", "tp=4", "--place", "tensor", "--html", str(path)]) == 0
    said = capsys.readouterr()
    assert "2 collectives" in said.out and str(path) in said.err
    assert '"mesh"' in path.read_text("utf-8")
