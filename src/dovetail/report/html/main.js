// Putting the page together.

const parts = [
  ["graph", "Graph"],
  ["time", "Time"],
  ["memory", "Memory"],
  ["gaps", "Gaps"],
  ...(source.mesh ? [["mesh", "Devices"]] : []),
];
const filled = new Set(["graph"]);
const fillers = { time: fillTime, memory: fillMemory, gaps: fillGaps, mesh: fillMesh };
let shownTab = "graph";

const fillPart = (name) => {
  if (!filled.has(name)) {
    filled.add(name);
    fillers[name]();
  }
};

function openTab(name) {
  if (name === shownTab) return;
  shownTab = name;
  for (const [id] of parts) $(id).hidden = id !== name;
  fillPart(name);
  paintTabs();
  if (name === "graph") resize();
}

const paintTabs = () =>
  clear(
    $("tabs"),
    parts.map(([id, title]) =>
      el(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${id}`,
          "aria-controls": id,
          "aria-selected": String(id === shownTab),
          tabindex: id === shownTab ? "0" : "-1",
          onclick: () => openTab(id),
          onkeydown: tabKeys,
        },
        title,
        id === "gaps" && report.missed.length
          ? el("span", { class: "tag warn" }, format.count(report.missed.length))
          : null,
      ),
    ),
  );

const tabKeys = (event) => {
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!move) return;
  event.preventDefault();
  const at = parts.findIndex(([id]) => id === shownTab);
  openTab(parts[(at + move + parts.length) % parts.length][0]);
  $(`tab-${shownTab}`).focus();
};

const paintHead = () => {
  document.title = `${clean(report.graph, 60)} on ${clean(report.target, 20)} – dovetail`;
  clear($("title"), clean(report.graph, 60), el("small", {}, ` on ${clean(report.target, 20)}`));
  clear(
    $("facts"),
    fact("nodes → kernels", number(report.nodes_before, "count"), " → ", number(kernels.length, "count")),
    fact("predicted", number(report.predicted_seconds, "seconds")),
    report.measured
      ? fact(
          "measured",
          number(report.measured.seconds, "seconds"),
          el("span", { class: "share" }, ` ±${format.seconds(report.measured.spread)}`),
        )
      : null,
    wholeRun > 0
      ? fact("of the roofline", format.percent(report.measured?.roofline ?? report.floor_seconds / wholeRun))
      : null,
    report.arena_bytes !== null ? fact("arena", number(report.arena_bytes, "bytes")) : null,
    fact("fused", number(report.fused.length, "count")),
    fact("missed", number(report.missed.length, "count")),
  );
};

const keyRows = [
  ["/", "search"],
  ["[ and ]", "stage before, stage after"],
  ["arrows", "from kernel to kernel"],
  ["Enter", "to the details"],
  ["G", "through the gaps of a kernel"],
  ["U", "fold or unfold a repeated block"],
  ["+ − 0", "closer, farther, all"],
  ["Ctrl + wheel", "zoom; the wheel alone moves"],
  ["T", "light, dark, as the system"],
  ["Esc", "let go"],
  ["?", "this list"],
];

const startHelp = () => {
  clear(
    $("keys"),
    el("h2", { id: "keys-title" }, "Keys"),
    el(
      "dl",
      {},
      keyRows.map(([key, what]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, what))),
    ),
    el(
      "p",
      { class: "note" },
      `Written by dovetail ${clean(source.version, 20)}. The page asks nobody for anything; its numbers are those of dovetail explain --json.`,
    ),
    el("form", { method: "dialog" }, el("button", {}, "Close")),
  );
  $("help").addEventListener("click", () => $("keys").showModal());
};

const pageKeys = {
  "/": () => {
    openTab("graph");
    $("search").focus();
  },
  "[": () => {
    openTab("graph");
    showStage(shownStage - 1);
  },
  "]": () => {
    openTab("graph");
    showStage(shownStage + 1);
  },
  "+": () => zoomBy(1.3),
  "=": () => zoomBy(1.3),
  "-": () => zoomBy(1 / 1.3),
  0: showAll,
  g: nextGap,
  u: foldNearest,
  t: nextTheme,
  "?": () => $("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !pageKeys[event.key] || $("keys").open) return;
  event.preventDefault();
  pageKeys[event.key]();
});

/** On paper everything is shown, on white, and the graph as a whole. */
const beforePrint = () => {
  for (const [id] of parts) {
    $(id).hidden = false;
    fillPart(id);
  }
  document.documentElement.style.colorScheme = "light";
  refreshTheme();
  palette.paper = "white";
  printing = true;
  Object.assign(look, { width: 700, height: 940, ratio: 2 });
  canvas.width = look.width * look.ratio;
  canvas.height = look.height * look.ratio;
  Object.assign(look, aimAt(scene.left, scene.top, scene.right, scene.bottom));
  drawScene(pen, scene, look);
};

const afterPrint = () => {
  for (const [id] of parts) $(id).hidden = id !== shownTab;
  setTheme(theme);
  printing = false;
  resize();
  showStart();
};

themeWatchers.push(redraw);
selectionWatchers.push(showPanel, followSelection);
paintHead();
paintTabs();
paintSteps();
paintTools();
setTheme(remembered());
startHelp();
startPointer();
startKeys();
startList();
select(null);
resize();
showStart();
new ResizeObserver(resize).observe($("stage"));
$("theme").addEventListener("click", nextTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refreshTheme);
window.addEventListener("beforeprint", beforePrint);
window.addEventListener("afterprint", afterPrint);
document.documentElement.dataset.ready = "";
