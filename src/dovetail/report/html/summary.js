// What stands in the panel beside kernels: gaps, nodes of earlier stages, misses, and the report as a whole.

const gapPanel = (at) => {
  const gap = report.boundaries[at];
  const from = numberOf(gap.producer),
    to = numberOf(gap.consumer);
  const same = report.boundaries.filter((b) => b.reason === gap.reason && b.message === gap.message);
  return [
    el("h2", { class: plainReasons.has(gap.reason) ? "joint" : "joint refused" }, reasonTitle(gap.reason)),
    el(
      "p",
      { class: "pair" },
      kernelButton(from),
      el("span", { "aria-label": "hands over to" }, " → "),
      kernelButton(to),
    ),
    gap.rule
      ? el(
          "p",
          {},
          "rule ",
          el("code", { class: "rule" }, clean(gap.rule, 80)),
          ", refused by ",
          el("code", {}, clean(gap.reason, 80)),
        )
      : null,
    el("p", { class: "message" }, clean(gap.message, 600)),
    gap.hint ? el("p", { class: "hint" }, clean(gap.hint, 600)) : null,
    el(
      "dl",
      { class: "facts" },
      fact("costs", gap.seconds ? number(gap.seconds, "seconds") : "nothing", gap.seconds ? share(gap.seconds) : null),
      fact("moves", number(gap.bytes, "bytes")),
      fact("hands over", el("code", {}, clean(kernels[from].type, 120))),
    ),
    same.length > 1
      ? el(
          "p",
          { class: "note" },
          `${same.length} gaps say the same; together `,
          number(
            same.reduce((s, b) => s + b.seconds, 0),
            "seconds",
          ),
          ".",
        )
      : null,
    el(
      "p",
      { class: "note" },
      plainReasons.has(gap.reason)
        ? "The price is what the tensor costs on its way through memory."
        : "The price is what the fusion would have spared.",
    ),
  ];
};

const nodePanel = ({ place, kernel }) => {
  const { view } = scene;
  const where = words[view.wheres[place]];
  return [
    el(
      "h2",
      { class: `family ${families[view.families[place]]}` },
      clean(words[view.ops[place]], 80),
      " ",
      el("code", {}, clean(words[view.names[place]], 80)),
    ),
    el("p", { class: "type" }, el("code", {}, clean(words[view.types[place]], 200))),
    where ? el("p", { class: "where" }, clean(where, 400)) : null,
    families[view.families[place]] === "end"
      ? null
      : kernel >= 0
        ? [
            heading("Ends in the kernel"),
            el("p", {}, kernelButton(kernel)),
            el(
              "p",
              { class: "note" },
              "predicted ",
              number(kernels[kernel].seconds, "seconds"),
              `, with ${kernels[kernel].nodes.length} ops`,
            ),
          ]
        : el("p", { class: "note" }, "No kernel computes it: it became a view, a constant, or part of another value."),
  ].flat();
};

const missCard = (miss) =>
  el(
    "div",
    { class: "miss" },
    el(
      "p",
      {},
      el("code", { class: "rule" }, clean(miss.rule, 80)),
      " ",
      miss.seconds ? ["costs ", number(miss.seconds, "seconds"), share(miss.seconds)] : "would not pay",
    ),
    el("p", { class: "message" }, el("code", {}, clean(miss.reason, 80)), ": ", clean(miss.message, 600)),
    miss.hint ? el("p", { class: "hint" }, clean(miss.hint, 600)) : null,
    Object.entries(miss.facts).map(([label, value]) => el("p", { class: "note" }, `${label} ${clean(value, 200)}`)),
  );

/** What fused, what was missed and why kernels are apart: each kind in one row, the dearest first. */
const summary = () => {
  const fused = grouped(report.fused, (f) => f.rule, "bytes_saved");
  const apart = grouped(report.boundaries, (b) => b.reason, "seconds");
  const lost = grouped(report.missed, (m) => `${m.rule}\n${m.reason}`, "seconds");
  return [
    el("h2", {}, "What happened"),
    el(
      "p",
      { class: "lead" },
      number(report.nodes_before, "count"),
      " nodes became ",
      number(kernels.length, "count"),
      " kernels. Choose a kernel or a joint between two of them.",
    ),
    fused.length
      ? [
          heading("Fused"),
          table(
            "What fused",
            ["rule", "#kernels", "#saves"],
            fused.map(([rule, list]) => [
              ruleButton(rule),
              number(list.length, "count"),
              number(
                list.reduce((s, f) => s + f.bytes_saved, 0),
                "bytes",
              ),
            ]),
          ),
        ]
      : null,
    heading("Missed"),
    lost.length
      ? lost.slice(0, 6).map(([, list]) => missCard({ ...list[0], seconds: list.reduce((s, m) => s + m.seconds, 0) }))
      : el("p", { class: "note good" }, "Nothing: every rule that fits has fused."),
    apart.length
      ? [
          heading("Kept apart"),
          table(
            "Why kernels are apart",
            ["reason", "#gaps", "#costs"],
            apart.map(([reason, list]) => [
              reasonTitle(reason),
              number(list.length, "count"),
              number(
                list.reduce((s, b) => s + b.seconds, 0),
                "seconds",
              ),
            ]),
          ),
        ]
      : null,
    Object.keys(report.assumed_sizes).length
      ? el(
          "p",
          { class: "note" },
          "Estimates count ",
          Object.entries(report.assumed_sizes)
            .map(([n, s]) => `${clean(n, 40)} = ${s}`)
            .join(", "),
          ".",
        )
      : null,
  ].flat();
};

const grouped = (list, key, by) => {
  const groups = new Map();
  for (const item of list) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  const sum = (items) => items.reduce((s, i) => s + i[by], 0);
  return [...groups].toSorted((a, b) => sum(b[1]) - sum(a[1]));
};

const ruleButton = (rule) =>
  el(
    "button",
    {
      type: "button",
      class: "link",
      onclick: () => {
        openTab("graph");
        $("by-rule").value = rule;
        applyFilter();
      },
    },
    el("code", { class: "rule" }, clean(rule, 80)),
  );
