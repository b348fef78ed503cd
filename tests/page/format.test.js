import assert from "node:assert/strict";
import { test } from "node:test";
import { example } from "./example.js";
import { load } from "./load.js";

const { clean, format, number, el, clear, table, $ } = load(example(), "format.js", [
  "clean",
  "format",
  "number",
  "el",
  "clear",
  "table",
  "$",
]);

test("numbers have three figures and the unit that fits", () => {
  assert.equal(format.seconds(1.5e-6), "1.50 µs");
  assert.equal(format.seconds(0.0123), "12.3 ms");
  assert.equal(format.seconds(250), "250 s");
  assert.equal(format.seconds(0), "0 ns");
  assert.equal(format.bytes(12), "12.0 B");
  assert.equal(format.bytes(5), "5 B");
  assert.equal(format.bytes(1.25e6), "1.25 MB");
  assert.equal(format.flops(3), "3 flop");
  assert.equal(format.rate(2.5e12), "2.50 Tflop/s");
  assert.equal(format.flow(-2.5e9), "-2.50 GB/s");
  assert.equal(format.count(1234567), "1,234,567");
});

test("percentages show more figures where they are small", () => {
  assert.deepEqual([0, 0.001, 0.05, 0.5].map(format.percent), ["0 %", "0.10 %", "5.0 %", "50 %"]);
});

test("what a model is called cannot change the page", () => {
  assert.equal(clean("a\u202eb\u0000c"), "a\\u202eb\\u0000c");
  assert.equal(clean("x".repeat(50), 10), "x".repeat(9) + "…");
  assert.equal(clean(undefined), "undefined");
  const node = el("p", {}, "<b>bold</b>");
  assert.equal(node.textContent, "<b>bold</b>");
  assert.equal(node.children.length, 1);
});

test("elements take nested children and leave out those that are absent", () => {
  const node = el("ul", { class: "a", hidden: true, title: null }, [el("li", {}, 0), [null, "x"]], false, undefined);
  assert.equal(node.textContent, "0x");
  assert.deepEqual(node.attributes, { class: "a", hidden: "" });
  clear(node, ["y", null], 3);
  assert.equal(node.textContent, "y3");
});

test("listeners are told", () => {
  let told = 0;
  el("button", { onclick: () => told++ }).fire("click");
  assert.equal(told, 1);
});

test("a number keeps its exact value", () => {
  const node = number(1.23456e-6, "seconds");
  assert.equal(node.attributes.value, "0.00000123456");
  assert.equal(node.textContent, "1.23 µs");
  assert.equal(number(null, "seconds").textContent, "–");
});

test("the first cell of a row is its head, and numbers are aligned", () => {
  const made = table("kernels", ["op", "#time"], [["relu", "1 µs"]]);
  const row = made.querySelector("tbody").children[0];
  assert.deepEqual(
    row.children.map((cell) => [cell.tag, cell.attributes.scope ?? "", cell.attributes.class ?? ""]),
    [
      ["th", "row", ""],
      ["td", "", "n"],
    ],
  );
  assert.equal(made.querySelector("thead").textContent, "optime");
  assert.ok($("anything"));
});
