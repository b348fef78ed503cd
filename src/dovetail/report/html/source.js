// What the page knows: the report as `dovetail explain --json` prints it, and what is drawn from the plan.

/** @type {Source} */
const source = JSON.parse($("source").textContent);
const report = source.report;
const machine = source.machine;
const stages = source.stages;
const words = stages.words;
const families = stages.families;
/** @type {Record<string, string>} */
const familyNames = {
  move: "moves",
  map: "elementwise",
  reduce: "reduction",
  contract: "matmul, convolution",
  attend: "attention",
  end: "input, output",
};

/** Reasons that are no fault of the model: nothing was tried that a guard refused. */
const plainReasons = new Set(["fan_out", "graph_output", "bind_time", "no_rule"]);
/** @type {Record<string, string>} */
const reasonTitles = {
  fan_out: "Read by several kernels",
  graph_output: "An output of the graph",
  bind_time: "Computed once, when parameters are bound",
  no_rule: "No rule joins these two",
  near_miss: "A rule fits but for one op",
  cost: "Fusing would not be faster",
  target_limit: "A limit of the target",
};
/** @type {(reason: string) => string} */
const reasonTitle = (reason) => reasonTitles[reason] ?? clean(reason, 80).replaceAll("_", " ");

const kernels = report.kernels;
const kernelNumber = new Map(kernels.map((k, i) => [k.name, i]));
/**
 * The number of a kernel that the report names.
 *
 * @type {(name: string) => number}
 */
const numberOf = (name) => {
  const found = kernelNumber.get(name);
  if (found === undefined) throw new Error(`the report names a kernel that it does not list: ${name}`);
  return found;
};
const fusedBy = new Map(report.fused.map((f) => [kernelNumber.get(f.kernel), f]));

/** @type {(producer: number | undefined, consumer: number | undefined) => string} */
const pairKey = (producer, consumer) => `${producer}\n${consumer}`;
/** @type {Map<string, number>} */
const gapOf = new Map();
/** @type {number[][]} */
const gapsIn = kernels.map(() => []);
/** @type {number[][]} */
const gapsOut = kernels.map(() => []);
report.boundaries.forEach((gap, at) => {
  const from = kernelNumber.get(gap.producer),
    to = kernelNumber.get(gap.consumer);
  gapOf.set(pairKey(from, to), at);
  if (to !== undefined) gapsIn[to].push(at);
  if (from !== undefined) gapsOut[from].push(at);
});

/** @type {number[][]} */
const missesAt = kernels.map(() => []);
report.missed.forEach((miss, at) => miss.kernels.forEach((name) => missesAt[kernelNumber.get(name) ?? -1]?.push(at)));

const total = report.predicted_seconds;
/** Measured seconds by kernel, where the report has any. */
const measured =
  report.measured && new Map(report.measured.kernels.map((k) => [kernelNumber.get(k.kernel), k.seconds]));
const wholeRun = report.measured?.seconds ?? total;
/** @type {(at: number) => number} */
const tookOf = (at) => measured?.get(at) ?? kernels[at].seconds;
const slowest = kernels.reduce((most, k, at) => (k.phase === "run" ? Math.max(most, tookOf(at)) : most), 1e-12);

/**
 * What decides how long a kernel takes on the model of the machine.
 *
 * @type {(at: number) => string}
 */
const limitOf = (at) => {
  const { flops, floor_seconds: floor, on_host: host } = kernels[at];
  if (host) return "NumPy on the host";
  if (machine.launch_seconds > floor) return "starting it";
  return flops / machine.flops_per_second >= floor ? "arithmetic" : "memory";
};

/**
 * How near a kernel comes to what the machine can do with its work and traffic.
 *
 * @type {(at: number) => number}
 */
const reachOf = (at) => kernels[at].floor_seconds / tookOf(at);

/** The family of each kernel, as the plan's drawing has it. */
const planView = stages.views[stages.views.length - 1];
const familyOf = kernels.map(() => 0);
planView.kernels.forEach((kernel, at) => {
  if (kernel >= 0) familyOf[kernel] = planView.families[at];
});

/** For each kernel all that stand in its place in the copies of a repeated block, itself included. */
const alike = kernels.map((_, i) => [i]);
for (const band of planView.bands) {
  if (band.count < 2) continue;
  for (let local = 0; local < band.period; local++) {
    const peers = [];
    for (let copy = 0; copy < band.count; copy++) peers.push(planView.kernels[band.start + copy * band.period + local]);
    if (peers[0] >= 0)
      peers.forEach((kernel) => {
        alike[kernel] = peers;
      });
  }
}

/** Everything of a kernel that a search looks at, in lower case. */
const haystacks = kernels.map((kernel, at) => {
  const fused = fusedBy.get(at);
  const ops = kernel.nodes.flatMap((n) => [n.op, n.name, n.where]);
  const told = missesAt[at].map((m) => report.missed[m].rule);
  return [kernel.name, kernel.op, kernel.type, ...ops, ...(fused ? [fused.rule, ...fused.chain] : []), ...told]
    .join("\n")
    .toLowerCase();
});

/** @type {Promise<string[]> | null} */
let unpacked = null;

/** The texts of all kernels; they are packed in the page and unpacked when one is first asked for. */
const codeTexts = () => {
  unpacked ??= (async () => {
    const bytes = Uint8Array.from(atob(source.code?.packed ?? ""), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  })();
  return unpacked;
};
