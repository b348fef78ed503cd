// The whole page, without a browser. PAGE_SOURCE names a file with what a real model gives.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { example } from "./example.js";
import { load } from "./load.js";

const SHOWN = ["look", "select", "selectKernel", "selectGap", "toggleFold", "neighbour", "nextGap", "rows", "openTab"];
const given = process.env.PAGE_SOURCE;
const sources = { example: example(), ...(given && { real: JSON.parse(readFileSync(given, "utf8")) }) };

for (const [name, source] of Object.entries(sources)) {
  test(`${name}: it starts, and says what it shows`, () => {
    const { page } = load(source, "main.js", SHOWN);
    assert.match(page.elements.get("title").textContent, new RegExp(source.report.graph));
    assert.match(page.elements.get("found").textContent, new RegExp(`${source.report.kernels.length} kernels`));
    assert.equal(page.globals.document.documentElement.dataset.ready, "");
    assert.ok(page.elements.get("canvas").getContext().texts.length > 0);
  });

  test(`${name}: every part can be opened`, () => {
    const { openTab, page } = load(source, "main.js", SHOWN);
    for (const part of ["time", "memory", "gaps"]) {
      openTab(part);
      assert.ok(page.elements.get(part).textContent.length > 100);
      assert.equal(page.elements.get("graph").hidden, true);
    }
  });

  test(`${name}: every kernel and gap has a panel`, () => {
    const { selectKernel, selectGap, look, page } = load(source, "main.js", SHOWN);
    source.report.kernels.forEach((kernel, at) => {
      selectKernel(at);
      assert.ok(page.elements.get("panel").textContent.includes(kernel.name));
    });
    source.report.boundaries.forEach((_, at) => {
      selectGap(at);
      assert.deepEqual(look.selected, { kind: "gap", gap: at });
    });
  });
}

test("keys go from kernel to kernel, fold and unfold, and through the gaps", () => {
  const { look, select, selectKernel, page } = load(sources.example, "main.js", SHOWN);
  const canvas = page.elements.get("canvas");
  selectKernel(0);
  canvas.fire("keydown", { key: "ArrowDown" });
  assert.equal(look.selected.kernel, 1);
  page.fire("keydown", { key: "g" });
  assert.deepEqual(look.selected, { kind: "gap", gap: 0 });
  page.fire("keydown", { key: "g" });
  assert.deepEqual(look.selected, { kind: "gap", gap: 1 });
  page.fire("keydown", { key: "u" });
  assert.match(page.elements.get("said").textContent, /Unfolded: 2 copies/);
  canvas.fire("keydown", { key: "Escape" });
  assert.equal(look.selected, null);
  select(null);
});

test("a search leaves the kernels that have all its words", () => {
  const { page } = load(sources.example, "main.js", SHOWN);
  page.elements.get("search").value = "linear layers.b";
  page.elements.get("search").fire("input");
  assert.match(page.elements.get("found").textContent, /^1 of 4 kernels/);
});
