import assert from "node:assert/strict";
import { test } from "node:test";
import { example } from "./example.js";
import { load } from "./load.js";

const of = (source, ...shown) => load(source, "source.js", shown);

test("gaps and misses are found by the kernels that they touch", () => {
  const { gapsIn, gapsOut, missesAt, numberOf } = of(example(), "gapsIn", "gapsOut", "missesAt", "numberOf");
  assert.deepEqual(gapsIn, [[], [0], [1], [2]]);
  assert.deepEqual(gapsOut, [[0], [1], [2], []]);
  assert.deepEqual(missesAt, [[], [], [0], []]);
  assert.equal(numberOf("c"), 2);
  assert.throws(() => numberOf("z"), /does not list: z/);
});

test("kernels of a repeated block are alike", () => {
  assert.deepEqual(of(example(), "alike").alike, [[0], [1, 2], [1, 2], [3]]);
});

test("measured seconds come before predicted ones", () => {
  const source = example();
  source.report.measured = { seconds: 9e-6, kernels: [{ kernel: "b", seconds: 8e-6 }] };
  const { tookOf, slowest, wholeRun } = of(source, "tookOf", "slowest", "wholeRun");
  assert.deepEqual([tookOf(0), tookOf(1), slowest, wholeRun], [1e-6, 8e-6, 8e-6, 9e-6]);
});

test("what limits a kernel", () => {
  const source = example();
  source.report.kernels[0].on_host = true;
  source.report.kernels[1].floor_seconds = 1e-8;
  source.report.kernels[2].flops = 1e6;
  const { limitOf } = of(source, "limitOf");
  assert.deepEqual([0, 1, 2, 3].map(limitOf), ["NumPy on the host", "starting it", "arithmetic", "arithmetic"]);
});

test("a search finds ops, places, rules and misses", () => {
  const { haystacks } = of(example(), "haystacks");
  assert.match(haystacks[1], /matmul_add/);
  assert.match(haystacks[2], /swiglu/);
  assert.match(haystacks[0], /layers\.a/);
});

test("reasons without a title of their own are read as words", () => {
  const { reasonTitle } = of(example(), "reasonTitle");
  assert.equal(reasonTitle("bias_is_a_vector"), "bias is a vector");
  assert.equal(reasonTitle("no_rule"), "No rule joins these two");
});
