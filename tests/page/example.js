// A small source by hand: three kernels in a row, the middle one twice as a repeated block.

const kernel = (name, op, seconds, phase = "run") => ({
  name,
  op,
  type: "f32[4]",
  phase,
  nodes: [{ name: `%${name}`, op, where: `layers.${name}` }],
  flops: 1000,
  bytes: 64,
  seconds,
  floor_seconds: seconds / 2,
  on_host: false,
  form: "",
});

const band = (start, count, more = {}) => ({
  start,
  period: 1,
  count,
  width: 100,
  height: 40,
  x: [50, 50, 50],
  y: [0],
  w: [80],
  h: [30],
  wires: start ? [[-1, 0, 50, 0, 50, 10]] : [],
  entries: start ? [[[0, 0]]] : [],
  exits: [0],
  ...more,
});

const gap = (producer, consumer, reason, seconds) => ({
  producer,
  consumer,
  rule: "",
  reason,
  message: `${producer} and ${consumer} stay two`,
  hint: "",
  bytes: 16,
  seconds,
});

export const example = () => ({
  version: "0",
  report: {
    graph: "example",
    target: "cpu",
    nodes_before: 4,
    nodes_after: 4,
    fused: [{ rule: "linear", nodes: [], chain: ["matmul_add"], kernel: "b", bytes_saved: 8, seconds_saved: 1e-6 }],
    missed: [
      { rule: "swiglu", node: "%c", reason: "cost", message: "slower", hint: "", bytes: 4, seconds: 2e-6, kernels: ["c"], facts: { moves: "4 B" } },
    ],
    boundaries: [gap("a", "b", "no_rule", 1e-6), gap("b", "c", "fan_out", 2e-6), gap("c", "d", "bias_is_a_vector", 3e-6)],
    kernels: [kernel("a", "relu", 1e-6), kernel("b", "linear", 4e-6), kernel("c", "linear", 4e-6), kernel("d", "add", 2e-6)],
    dispatch: [],
    passes: [],
    predicted_seconds: 11e-6,
    floor_seconds: 5e-6,
    assumed_sizes: {},
    arena_bytes: 256,
    calibration: "built-in",
    measured: null,
    stopped: [],
    ops_before: {},
    ops_after: {},
    repeats: [],
    search: null,
  },
  machine: { flops_per_second: 1e9, bytes_per_second: 1e10, launch_seconds: 1e-7, levels: [], source: "built-in" },
  stages: {
    words: ["relu", "linear", "add", "f32[4]", ""],
    families: ["move", "map", "reduce", "contract", "attend", "end"],
    rooms: [{ w: 80, h: 30, chips: [[4, 4, 60]], lines: [] }],
    views: [
      {
        name: "plan",
        names: [0, 1, 1, 2],
        ops: [0, 1, 1, 2],
        types: [3, 3, 3, 3],
        wheres: [4, 4, 4, 4],
        families: [1, 3, 3, 1],
        kernels: [0, 1, 2, 3],
        rooms: [0, 0, 0, 0],
        fused: [0, 1, 1, 0],
        late: [0, 0, 0, 0],
        operands: [[], [0], [1], [2]],
        bands: [band(0, 1), band(1, 2), band(3, 1)],
      },
    ],
  },
  arena: {
    steps: 4,
    first_kernel: 0,
    size: 256,
    peak: 128,
    unshared: 300,
    bound: 0,
    slots: [{ kernel: 0, offset: 0, size: 16, first: 0, last: 1 }],
    held: [16, 32, 128, 16],
    backward: null,
  },
  code: null,
  timeline: null,
  mesh: null,
});

const joint = (kind, axes, place, more = {}) => ({
  kind,
  axes,
  devices: 4,
  type: "f32[8, 64]",
  bytes: 2048,
  seconds: 3e-5,
  place,
  why: `${place} sums over an axis that is split`,
  remedies: [],
  ...more,
});

/** A mesh of 2 × 16 devices: a gather that a remedy takes away, then three layers of two sums each. */
export const exampleMesh = () => ({
  axes: [
    { name: "dp", size: 2 },
    { name: "tp", size: 16 },
  ],
  joints: [
    joint("all-gather", ["dp", "tp"], "embedding", { remedies: [0], seconds: 9e-5 }),
    ...[0, 1, 2].flatMap((i) => [
      joint("all-reduce", ["tp"], `layers.${i}/attention`),
      joint("all-reduce", ["tp"], `layers.${i}/feed_forward`),
    ]),
  ],
  remedies: [
    { pattern: "embedding", placed: "-", instead_of: "tp", collectives: 6, seconds: 9e-5, weights: 4096 },
  ],
  seconds: 27e-5,
  all_weights: 16384,
  weights: 2048,
  unexplained: "",
  runs: [[1, 2, 3]],
});
