// The lanes of a mesh: which joints are drawn, over which lanes, and what is told of them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { example, exampleMesh } from "./example.js";
import { load } from "./load.js";

const SHOWN = ["openTab", "laneColumns", "laneRows", "parts"];
const meshed = (mesh = exampleMesh()) => load({ ...example(), mesh }, "main.js", SHOWN);

/** All elements below one that a test fits. */
const below = (element, fits) =>
  (element.children ?? []).flatMap((child) => [...(fits(child) ? [child] : []), ...below(child, fits)]);
const jointsOf = (page) => below(page.elements.get("mesh"), (e) => e.attributes?.["data-joint"] !== undefined);

test("a page without a mesh has no part for it", () => {
  const { parts } = load(example(), "main.js", SHOWN);
  assert.ok(!parts.some(([id]) => id === "mesh"));
});

test("what repeats is drawn once, in the order of the program", () => {
  const { laneColumns } = meshed();
  assert.deepEqual(laneColumns(exampleMesh()), { columns: [0, 1, 2], blocks: [{ from: 1, to: 2, count: 3 }] });
  const plain = { ...exampleMesh(), runs: [] };
  assert.deepEqual(laneColumns(plain), { columns: [0, 1, 2, 3, 4, 5, 6], blocks: [] });
  const inside = { ...exampleMesh(), runs: [[0, 1, 2], [3, 2, 2]] };
  assert.deepEqual(laneColumns(inside).columns, [0, 2, 3, 4]);
});

test("an axis has a lane for each device, up to eight", () => {
  const { laneRows } = meshed();
  const [dp, tp] = laneRows(exampleMesh(), 44);
  assert.deepEqual([dp.lanes.length, tp.lanes.length], [2, 8]);
  assert.ok(tp.first > dp.last);
});

test("a joint spans the lanes of its axes, and tells all when it is chosen", () => {
  const { openTab, page } = meshed();
  openTab("mesh");
  const [gather, sum, ...rest] = jointsOf(page);
  assert.equal(rest.length, 1);
  assert.equal(below(gather, (e) => e.tag === "path").length, 2);
  assert.equal(below(sum, (e) => e.tag === "path").length, 1);
  assert.match(gather.attributes.class, /warn/);
  assert.doesNotMatch(sum.attributes.class, /warn/);
  assert.match(gather.children[0].textContent, /all-gather f32\[8, 64\] over dp\+tp: 2\.05 kB, 90\.0 µs, at embedding/);
  const [facts] = below(page.elements.get("mesh"), (e) => e.attributes?.class === "joint-facts");
  assert.equal(facts.textContent, "");
  gather.fire("click");
  assert.match(facts.textContent, /embedding sums over an axis that is split/);
  assert.match(facts.textContent, /place embedding "-" instead of "tp": 7 → 6 collectives, gains 90\.0 µs/);
  sum.fire("keydown", { key: "Enter" });
  assert.match(facts.textContent, /layers\.0\/attention sums over/);
  assert.doesNotMatch(facts.textContent, /instead of/);
});

test("joints of unknown axes span all lanes, and a mesh without joints says so", () => {
  const mesh = exampleMesh();
  const { openTab, page } = meshed({ ...mesh, joints: [{ ...mesh.joints[1], axes: [] }], runs: [], unexplained: "it crashed" });
  openTab("mesh");
  assert.equal(below(jointsOf(page)[0], (e) => e.tag === "path").length, 2);
  assert.match(page.elements.get("mesh").textContent, /without reasons: it crashed/);
  const empty = meshed({ ...mesh, joints: [], remedies: [], runs: [] });
  empty.openTab("mesh");
  assert.equal(jointsOf(empty.page).length, 0);
});
