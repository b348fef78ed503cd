// The other parts of the page: time, memory, and the gaps with their prices.

const block = (title, ...children) => el("article", {}, el("h2", {}, title), children);

const fillTime = () => {
  const moving = kernels.filter((k) => k.phase === "run" && !k.flops).length;
  clear(
    $("time"),
    source.timeline?.length
      ? block(
          "A measured run",
          el("p", { class: "note" }, "One run of those measured, a row for each thread."),
          strip(source.timeline, "The measured run"),
          report.measured ? runFacts(report.measured) : null,
        )
      : null,
    block(
      "The run as predicted",
      el(
        "p",
        { class: "note" },
        "Kernels one after the other, as wide as they take long. Choose one to see it in the graph.",
      ),
      strip(predictedSpans(), "The run as predicted"),
      report.measured
        ? null
        : el(
            "p",
            { class: "note" },
            "Nothing was measured for this page; dovetail explain --measure --html does both.",
          ),
    ),
    block(
      "Roofline",
      el(
        "p",
        { class: "note" },
        "What each kernel reaches under the roof of the machine as the estimates know it. The larger the dot, the more time; kernels alike share one.",
        moving ? ` ${moving} kernels only move bytes and have no place here.` : "",
        rooflineDots().some((d) => d.rate > machine.flops_per_second)
          ? " What lies above the roof needs fewer multiplications than its op stands for, as Winograd's convolutions do, or the machine was busy when its figures were measured."
          : "",
        machine.levels.length ? " Broken lines are the roofs of tensors that still lie in a cache." : "",
      ),
      roofline(),
    ),
    block("Where the time goes", timeTable()),
  );
};

/** @type {(run: Measured) => HTMLElement} */
const runFacts = (run) => {
  return el(
    "dl",
    { class: "facts spread" },
    fact(
      `median of ${run.runs} runs`,
      number(run.seconds, "seconds"),
      el("span", { class: "share" }, ` ±${format.seconds(run.spread)}`),
    ),
    fact("threads", number(run.threads, "count")),
    fact("predicted", number(report.predicted_seconds, "seconds")),
    fact("beside kernels", number(run.overhead_seconds, "seconds")),
    fact("on the host", number(run.host_seconds, "seconds")),
  );
};

const timeTable = () => {
  const rows = grouped(
    kernels.map((k, i) => ({ ...k, at: i })).filter((k) => k.phase === "run"),
    (k) => `${k.op} ${k.type}`,
    "seconds",
  );
  return table(
    "Kernels by kind",
    [
      "kernel",
      "type",
      "#how many",
      "#predicted",
      measured ? "#measured" : null,
      "#share",
      "#arithmetic",
      "#traffic",
      "limited by",
    ].filter((h) => h !== null),
    rows.slice(0, 60).map(([, list]) => {
      const sum = (by) => list.reduce((s, k) => s + by(k), 0);
      const cells = [
        kernelButton(list[0].at, el("b", {}, clean(list[0].op, 60))),
        el("code", {}, clean(list[0].type, 60)),
        number(list.length, "count"),
        number(
          sum((k) => k.seconds),
          "seconds",
        ),
        format.percent(total > 0 ? sum((k) => k.seconds) / total : 0),
        number(
          sum((k) => k.flops),
          "flops",
        ),
        number(
          sum((k) => k.bytes),
          "bytes",
        ),
        limitOf(list[0].at),
      ];
      if (measured)
        cells.splice(
          4,
          0,
          number(
            sum((k) => measured.get(k.at) ?? 0),
            "seconds",
          ),
        );
      return cells;
    }),
    { class: "wide" },
  );
};

const fillMemory = () => {
  const arena = source.arena;
  clear(
    $("memory"),
    block(
      "The arena over time",
      el(
        "p",
        { class: "note" },
        "From left to right the steps of a run, from bottom to top the bytes of its one piece of memory. Each patch is a tensor: it lives from the step that makes it to the last that reads it.",
      ),
      arenaPicture(),
      el(
        "dl",
        { class: "facts spread" },
        fact("arena", number(arena.size, "bytes")),
        fact("peak held", number(arena.peak, "bytes")),
        fact("without sharing", number(arena.unshared, "bytes")),
        fact("kept from binding", number(arena.bound, "bytes")),
      ),
    ),
    block(
      "The largest tensors",
      table(
        "The largest tensors of a run",
        ["made by", "type", "#size", "#from step", "#to step"],
        arena.slots
          .toSorted((a, b) => b.size - a.size || a.first - b.first)
          .slice(0, 20)
          .map((slot) => [
            kernelButton(slot.kernel),
            el("code", {}, clean(kernels[slot.kernel].type, 60)),
            number(slot.size, "bytes"),
            number(slot.first + 1, "count"),
            number(slot.last + 1, "count"),
          ]),
        { class: "wide" },
      ),
    ),
  );
};

const MOST = 200;
const fillGaps = () => {
  const misses = grouped(report.missed, (m) => [m.rule, m.reason, m.message, m.hint].join("\n"), "seconds");
  const kind = (name) => {
    const k = kernels[numberOf(name)];
    return `${k.op} ${k.type}`;
  };
  const gaps = grouped(
    report.boundaries.map((gap, at) => ({ ...gap, at })),
    (g) => [kind(g.producer), kind(g.consumer), g.rule, g.reason, g.seconds].join("\n"),
    "seconds",
  );
  clear(
    $("gaps"),
    block(
      "Missed fusions",
      misses.length
        ? table(
            "Missed fusions, the dearest first",
            ["rule", "refused by", "found", "hint", "#times", "#costs", "#share", "at"],
            misses.slice(0, MOST).map(([, list]) => {
              const seconds = list.reduce((s, m) => s + m.seconds, 0);
              const kernel = kernelNumber.get(list[0].kernels[0]);
              return [
                el("code", { class: "rule" }, clean(list[0].rule, 60)),
                el("code", {}, clean(list[0].reason, 60)),
                clean(list[0].message, 300),
                clean(list[0].hint, 300),
                number(list.length, "count"),
                list.some((m) => m.seconds) ? number(seconds, "seconds") : "would not pay",
                format.percent(total > 0 ? seconds / total : 0),
                kernel === undefined ? clean(list[0].node, 60) : kernelButton(kernel),
              ];
            }),
            { class: "wide misses" },
          )
        : el("p", { class: "note good" }, "None: every rule that fits has fused."),
    ),
    block(
      "Gaps between kernels",
      el(
        "p",
        { class: "note" },
        `Every pair of kernels that hands a tensor over in memory, those alike in one row, the dearest first${gaps.length > MOST ? ` (${MOST} rows of ${format.count(gaps.length)})` : ""}.`,
      ),
      table(
        "Gaps between kernels",
        ["from", "to", "why", "#times", "#moves", "#costs", "#share"],
        gaps.slice(0, MOST).map(([, [gap, ...others]]) => [
          kernelButton(numberOf(gap.producer)),
          kernelButton(numberOf(gap.consumer)),
          el(
            "button",
            {
              type: "button",
              class: "link",
              "data-gap": gap.at,
              onclick: () => {
                openTab("graph");
                selectGap(gap.at);
              },
            },
            reasonTitle(gap.reason),
          ),
          number(others.length + 1, "count"),
          number(gap.bytes * (others.length + 1), "bytes"),
          number(gap.seconds * (others.length + 1), "seconds"),
          format.percent(total > 0 ? (gap.seconds * (others.length + 1)) / total : 0),
        ]),
        { class: "wide" },
      ),
    ),
    block(
      "Passes",
      table(
        "Passes",
        ["pass", "#nodes before", "#nodes after", "#took"],
        report.passes.map((p) => [
          el("code", {}, clean(p.name, 60)),
          number(p.nodes_before, "count"),
          number(p.nodes_after, "count"),
          number(p.seconds, "seconds"),
        ]),
        { class: "wide" },
      ),
    ),
    block(
      "How ops are run",
      table(
        "How ops are run",
        ["op", "outcome", "#how many", "why"],
        report.dispatch.map((d) => [
          el("code", {}, clean(d.op, 60)),
          clean(d.outcome, 40),
          number(d.count, "count"),
          clean(d.reason, 200),
        ]),
        { class: "wide" },
      ),
    ),
  );
};
