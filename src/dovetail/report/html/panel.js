// The details of what is selected: a kernel, a node of an earlier stage, a gap, or the report as a whole.

const panel = $("panel");

const heading = (text, extra) => el("h3", {}, text, extra ?? null);
const fact = (name, ...value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
const kernelButton = (kernel, text) =>
  el(
    "button",
    {
      type: "button",
      class: `link family ${families[familyOf[kernel]]}`,
      "data-kernel": kernels[kernel].name,
      onclick: () => {
        openTab("graph");
        selectKernel(kernel);
      },
    },
    text ?? [el("b", {}, clean(kernels[kernel].op, 60)), " ", el("code", {}, clean(kernels[kernel].name, 60))],
  );

const gapButton = (at, text) => {
  const gap = report.boundaries[at];
  return el(
    "button",
    {
      type: "button",
      class: "gap",
      "data-gap": at,
      "data-refused": plainReasons.has(gap.reason) ? null : "",
      onclick: () => {
        openTab("graph");
        selectGap(at);
      },
    },
    el("span", { class: "what" }, text),
    el("span", { class: "why" }, reasonTitle(gap.reason)),
    el("span", { class: "price" }, gap.seconds ? number(gap.seconds, "seconds") : "free"),
  );
};

const showPanel = (chosen) => {
  if (!chosen) clear(panel, summary());
  else if (chosen.kind === "gap") clear(panel, gapPanel(chosen.gap));
  else if (scene.view !== planView || chosen.kernel < 0) clear(panel, nodePanel(chosen));
  else clear(panel, kernelPanel(chosen.kernel));
  panel.scrollTop = 0;
  if (chosen) say(panel.querySelector("h2")?.textContent ?? "");
};

const share = (seconds) => (total > 0 ? el("span", { class: "share" }, ` ${format.percent(seconds / total)}`) : null);

const kernelPanel = (at) => {
  const kernel = kernels[at],
    fused = fusedBy.get(at);
  const run = kernel.phase === "run";
  return [
    el(
      "h2",
      { class: `family ${families[familyOf[at]]}` },
      clean(kernel.op, 80),
      " ",
      el("code", {}, clean(kernel.name, 80)),
    ),
    el(
      "p",
      { class: "type" },
      el("code", {}, clean(kernel.type, 200)),
      run ? null : el("span", { class: "tag" }, "once, at bind"),
      kernel.on_host ? el("span", { class: "tag warn" }, "NumPy on the host") : null,
    ),
    peers(at),
    el(
      "dl",
      { class: "facts" },
      fact("predicted", number(kernel.seconds, "seconds"), run ? share(kernel.seconds) : null),
      measured ? fact("measured", number(measured.get(at) ?? null, "seconds")) : null,
      fact("arithmetic", number(kernel.flops, "flops")),
      fact("traffic", number(kernel.bytes, "bytes")),
      fact("of the roofline", format.percent(reachOf(at))),
      kernel.flops && kernel.bytes ? fact("intensity", number(kernel.flops / kernel.bytes, "intensity")) : null,
      fact("limited by", limitOf(at)),
    ),
    kernel.flops && kernel.bytes ? miniRoofline(at) : null,
    fused
      ? [
          heading("Fused by"),
          el(
            "p",
            { class: "chain" },
            (fused.chain.length ? fused.chain : [fused.rule]).flatMap((rule, i) => [
              i ? " → " : "",
              el("code", { class: "rule" }, clean(rule, 80)),
            ]),
          ),
          el(
            "p",
            { class: "note" },
            "saves ",
            number(fused.bytes_saved, "bytes"),
            " and about ",
            number(fused.seconds_saved, "seconds"),
            " a run",
          ),
        ]
      : null,
    opsOf(kernel),
    missesAt[at].length ? [heading("Missed here"), missesAt[at].map((m) => missCard(report.missed[m]))] : null,
    gapList("Reads from", gapsIn[at], (gap) => gap.producer),
    gapList("Read by", gapsOut[at], (gap) => gap.consumer),
    codeOf(at),
  ].flat();
};

const peers = (at) => {
  const all = alike[at];
  if (all.length < 2) return null;
  const here = all.indexOf(at);
  const go = (step) => () => selectKernel(all[(here + step + all.length) % all.length]);
  const sum = all.reduce((seconds, k) => seconds + kernels[k].seconds, 0);
  return el(
    "p",
    { class: "peers" },
    el("button", { type: "button", "aria-label": "The one before", onclick: go(-1) }, "‹"),
    ` ${here + 1} of ${all.length} alike `,
    el("button", { type: "button", "aria-label": "The next one", onclick: go(1) }, "›"),
    el("span", { class: "note" }, " together ", number(sum, "seconds")),
  );
};

const MANY = 60;
const opsOf = (kernel) => {
  if (!kernel.nodes.length)
    return [heading("Ops"), el("p", { class: "note" }, "None as written: a pass has put it in.")];
  const row = (node) =>
    el(
      "li",
      {},
      el("b", {}, clean(node.op, 60)),
      " ",
      el("code", {}, clean(node.name, 60)),
      node.where ? el("span", { class: "where" }, clean(node.where, 300)) : null,
    );
  const list = el("ol", { class: "ops" }, kernel.nodes.slice(0, MANY).map(row));
  const rest = kernel.nodes.length - MANY;
  if (rest > 0) {
    const more = el(
      "button",
      {
        type: "button",
        class: "link",
        onclick: () => {
          more.remove();
          list.append(...kernel.nodes.slice(MANY).map(row));
        },
      },
      `and ${format.count(rest)} more`,
    );
    return [heading(`Ops (${kernel.nodes.length})`), list, more];
  }
  return [heading(`Ops (${kernel.nodes.length})`), list];
};

/** @type {(title: string, gaps: number[], other: (gap: Boundary) => string) => Children} */
const gapList = (title, gaps, other) => {
  if (!gaps.length) return null;
  const ranked = gaps.toSorted((a, b) => report.boundaries[b].seconds - report.boundaries[a].seconds).slice(0, 40);
  return [
    heading(title),
    el(
      "ul",
      { class: "gaps" },
      ranked.map((at) => {
        const kernel = kernels[numberOf(other(report.boundaries[at]))];
        return el(
          "li",
          {},
          gapButton(at, [el("b", {}, clean(kernel.op, 60)), " ", el("code", {}, clean(kernel.name, 40))]),
        );
      }),
    ),
    gaps.length > 40 ? el("p", { class: "note" }, `and ${gaps.length - 40} more`) : null,
  ];
};

const codeOf = (at) => {
  const code = source.code;
  const which = code?.of[at] ?? -1;
  if (!code || which < 0) return null;
  const sharing = code.of.filter((n) => n === which).length;
  const text = el("pre", { tabindex: "0", "aria-label": `${code.language} code` }, "…");
  const copy = el(
    "button",
    {
      type: "button",
      class: "copy",
      onclick: () =>
        navigator.clipboard?.writeText(text.textContent).then(
          () => clear(copy, "copied"),
          () => {},
        ),
    },
    "copy",
  );
  const details = el(
    "details",
    {
      class: "code",
      ontoggle: async () => {
        if (details.open && text.textContent === "…") {
          try {
            text.textContent = (await codeTexts())[which];
          } catch {
            text.textContent = "This browser cannot unpack the code.";
          }
        }
      },
    },
    el(
      "summary",
      {},
      `${code.language} code`,
      sharing > 1 ? el("span", { class: "note" }, ` shared by ${sharing} kernels`) : null,
    ),
    copy,
    text,
  );
  return details;
};
