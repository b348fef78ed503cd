import assert from "node:assert/strict";
import { test } from "node:test";
import { example } from "./example.js";
import { load } from "./load.js";

const { compose, between, planView, badgeBox } = load(example(), "draw.js", [
  "compose",
  "between",
  "planView",
  "badgeBox",
]);

test("a folded block is drawn once, an unfolded one as often as it is there", () => {
  const folded = compose(planView, new Set());
  assert.deepEqual(folded.nodes.map((n) => n.place), [0, 1, 3]);
  assert.deepEqual([...folded.at], [0, 1, -1, 2]);
  assert.deepEqual(folded.frames.map((f) => [f.shown, f.count]), [[1, 2]]);
  const open = compose(planView, new Set([1]));
  assert.deepEqual(open.nodes.map((n) => n.place), [0, 1, 2, 3]);
  assert.deepEqual(open.frames.map((f) => f.copy), [0, 1]);
  assert.ok(open.bottom > folded.bottom);
});

test("things stand below each other and inside the scene", () => {
  const scene = compose(planView, new Set([1]));
  const tops = scene.nodes.map((n) => n.y);
  assert.deepEqual(tops, tops.toSorted((a, b) => a - b));
  for (const n of scene.nodes) {
    assert.ok(n.x >= scene.left && n.x + n.w <= scene.right && n.y >= scene.top && n.y + n.h <= scene.bottom);
  }
});

test("a wire between two kernels is the gap of the report", () => {
  const scene = compose(planView, new Set([1]));
  assert.deepEqual(scene.wires.map((w) => [w.from, w.to, w.gap]), [
    [0, 1, 0],
    [1, 2, 1],
    [2, 3, 2],
  ]);
  for (const wire of scene.wires) assert.ok(wire.y < wire.bottom);
});

test("wires between copies go straight to the next one", () => {
  const scene = compose(planView, new Set([1]));
  assert.deepEqual(scene.links.map((l) => [l.from, l.lane]), [
    [0, -1],
    [1, -1],
    [2, -1],
  ]);
});

test("a wire past other blocks takes a lane at their left", () => {
  const source = example();
  source.stages.views[0].operands[3] = [0];
  const other = load(source, "scene.js", ["compose", "planView"]);
  const scene = other.compose(other.planView, new Set());
  const link = scene.links.at(-1);
  assert.deepEqual([link.from, link.lane], [0, 0]);
  assert.ok(link.x < Math.min(...scene.nodes.map((n) => n.x)) && scene.left <= link.x);
});

test("what is between two heights is given once, and nothing else", () => {
  const scene = compose(planView, new Set([1]));
  const all = [...between(scene, "nodes", -1e6, 1e6)];
  assert.equal(all.length, 4);
  assert.equal([...between(scene, "wires", 1e7, 2e7)].length, 0);
});

test("the badge of a block grows as one goes away", () => {
  const [frame] = compose(planView, new Set()).frames;
  assert.ok(badgeBox(frame, 0.2).w > badgeBox(frame, 1).w);
});
