// A program on a mesh: devices as lanes, a group of lanes for each axis, and collectives as joints between them.

/** Lanes that are drawn of one axis; more devices are told in its name. */
const MOST_LANES = 8;

/** The joints that are drawn, the first copy of what repeats; `from` and `to` are columns of a repeated block. */
const laneColumns = (mesh) => {
  const columns = [];
  const blocks = [];
  let at = 0;
  for (const [start, period, count] of [...mesh.runs, [mesh.joints.length, 0, 0]]) {
    while (at < start) columns.push(at++);
    if (period) {
      blocks.push({ from: columns.length, to: columns.length + period - 1, count });
      for (let i = 0; i < period; i++) columns.push(at + i);
      at += period * count;
    }
  }
  return { columns, blocks };
};

/** Where each lane of each axis is drawn. */
const laneRows = (mesh, top) => {
  let y = top;
  return mesh.axes.map((axis) => {
    const shown = Math.min(axis.size, MOST_LANES);
    const lanes = Array.from({ length: shown }, (_, i) => y + i * 15);
    y += shown * 15 + 22;
    return { ...axis, lanes, first: lanes[0], last: lanes[shown - 1] };
  });
};

const jointText = (joint) =>
  `${clean(joint.kind, 40)} ${clean(joint.type, 60)} over ${joint.axes.map((a) => clean(a, 40)).join("+") || "unknown devices"}: ${format.bytes(joint.bytes)}, ${format.seconds(joint.seconds)}, at ${clean(joint.place, 120)}`;

const remedyText = (remedy, mesh) =>
  `place ${clean(remedy.pattern, 120)} "${clean(remedy.placed, 60)}" instead of "${clean(remedy.instead_of, 60)}": ${mesh.joints.length} → ${remedy.collectives} collectives, gains ${format.seconds(remedy.seconds)}, weights ${format.bytes(mesh.weights)} → ${format.bytes(remedy.weights)} on a device`;

/** All that is known of a joint, below the lanes. */
const jointFacts = (mesh, at) => {
  const joint = mesh.joints[at];
  return [
    el("h3", {}, `${clean(joint.kind, 40)} at ${clean(joint.place, 120)}`),
    el(
      "dl",
      { class: "facts spread" },
      fact("over", joint.axes.map((a) => clean(a, 40)).join("+") || "unknown", ` (${joint.devices} devices)`),
      fact("moves", clean(joint.type, 60), " ", number(joint.bytes, "bytes")),
      fact("costs", number(joint.seconds, "seconds")),
    ),
    el("p", {}, clean(joint.why, 600)),
    joint.remedies.map((r) => el("p", { class: "hint" }, remedyText(mesh.remedies[r], mesh))),
  ];
};

/** The lanes with their joints; `choose` is given the number of one. */
const lanes = (mesh, choose) => {
  const { columns, blocks } = laneColumns(mesh);
  const left = 96,
    step = 40,
    rows = laneRows(mesh, 44);
  const w = Math.max(860, left + columns.length * step + 20),
    h = rows.at(-1).last + 24;
  const x = (column) => left + 24 + column * step;
  const dearest = Math.max(...mesh.joints.map((j) => j.seconds), 1e-12);
  const drawn = columns.flatMap((at, column) => {
    const joint = mesh.joints[at];
    const wide = 7 + 17 * Math.sqrt(joint.seconds / dearest);
    // One whose axes are not known is drawn over all of them.
    const over = rows.filter((row) => !joint.axes.length || joint.axes.includes(row.name));
    return svg(
      "g",
      {
        class: `joint${joint.remedies.length ? " warn" : ""}`,
        tabindex: "0",
        role: "button",
        "aria-label": jointText(joint),
        "data-joint": String(at),
        onclick: () => choose(at),
        onkeydown: (event) => {
          if (event.key === "Enter") choose(at);
        },
      },
      svg("title", {}, `${jointText(joint)}\n${clean(joint.why, 600)}`),
      over.map((row) => {
        const [a, b] = [row.first - 6, row.last + 6];
        const [l, r, waist] = [x(column) - wide / 2, x(column) + wide / 2, wide / 5];
        const middle = (a + b) / 2;
        return svg("path", {
          d: `M${l},${a} L${r},${a} L${r - waist},${middle} L${r},${b} L${l},${b} L${l + waist},${middle} Z`,
        });
      }),
    );
  });
  return svg(
    "svg",
    { class: "chart lanes", viewBox: `0 0 ${w} ${h}`, role: "group", "aria-label": "Devices as lanes, collectives as joints" },
    rows.map((row) => [
      svg("text", { class: "label", x: 12, y: row.first - 12 }, `${clean(row.name, 20)} × ${row.size}`),
      row.lanes.map((y, i) => [
        svg("line", { class: "lane", x1: left, x2: w - 12, y1: y, y2: y }),
        svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, i + 1 === MOST_LANES && row.size > MOST_LANES ? "…" : String(i)),
      ]),
    ]),
    blocks.map((b) => [
      svg("path", { class: "block", d: `M${x(b.from) - 14},20 v-6 H${x(b.to) + 14} v6` }),
      svg("text", { x: (x(b.from) + x(b.to)) / 2, y: 10, "text-anchor": "middle" }, `× ${b.count}`),
    ]),
    drawn,
  );
};

const sumOf = (joints, by) => joints.reduce((sum, joint) => sum + joint[by], 0);

const fillMesh = () => {
  const mesh = source.mesh;
  if (!mesh) return;
  const told = el("div", { class: "joint-facts", "aria-live": "polite" });
  const groups = grouped(mesh.joints, (j) => `${j.kind} ${j.axes.join("+")}`, "seconds");
  clear(
    $("mesh"),
    block(
      "Devices and collectives",
      el(
        "p",
        { class: "note" },
        "A line for each device along an axis of the mesh; a joint where devices hand over a tensor, in the order of the program, the wider the dearer. Choose one to see why it is there.",
        mesh.runs.length ? " What repeats is drawn once." : "",
        mesh.unexplained ? ` Read from the compiled program, without reasons: ${clean(mesh.unexplained, 200)}` : "",
      ),
      el(
        "dl",
        { class: "facts spread" },
        fact("collectives", number(mesh.joints.length, "count")),
        fact("predicted", number(mesh.seconds, "seconds")),
        fact("weights on a device", number(mesh.weights, "bytes"), " of ", number(mesh.all_weights, "bytes")),
      ),
      mesh.axes.length ? lanes(mesh, (at) => clear(told, jointFacts(mesh, at))) : null,
      told,
      mesh.remedies.map((r) => el("p", { class: "hint" }, remedyText(r, mesh))),
    ),
    mesh.joints.length
      ? block(
          "Collectives by kind",
          table(
            "Collectives by kind",
            ["kind", "over", "#how many", "#bytes", "#costs"],
            groups.map(([, joints]) => [
              clean(joints[0].kind, 40),
              joints[0].axes.map((a) => clean(a, 40)).join("+"),
              number(joints.length, "count"),
              number(sumOf(joints, "bytes"), "bytes"),
              number(sumOf(joints, "seconds"), "seconds"),
            ]),
            { class: "wide" },
          ),
        )
      : null,
  );
};
