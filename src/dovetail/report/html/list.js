// The list of kernels: search and filters, a window of rows over however many there are.

const ROW = 40;
let listed = [];
/** What the list shows: kernels in groups, where those of a repeated block stand together. */
let rows = [];
let active = 0;
const listBox = $("list");
const runway = el("div", { class: "runway", role: "presentation" });

const option = (value, text) => el("option", { value }, text);

const startList = () => {
  const rules = [...new Set(report.fused.flatMap((f) => [f.rule, ...f.chain]))].toSorted();
  clear(
    $("by-rule"),
    option("", "any rule"),
    rules.map((r) => option(r, clean(r, 60))),
    option(":missed", "missed here"),
    option(":unfused", "not fused"),
  );
  const kinds = [...new Set(familyOf)].toSorted();
  clear(
    $("by-kind"),
    option("", "any work"),
    kinds.map((k) => option(k, familyNames[families[k]])),
    option("bind", "once, at bind"),
    kernels.some((k) => k.on_host) ? option("host", "NumPy on the host") : null,
  );
  clear(
    $("by-time"),
    option("0", "any time"),
    [0.05, 0.02, 0.01, 0.001].map((s) => option(String(s), `≥ ${format.percent(s)}`)),
  );
  clear($("sort"), option("time", "slowest first"), option("order", "in order"), option("bytes", "most bytes"));
  for (const id of ["by-rule", "by-kind", "by-time", "sort"]) $(id).addEventListener("change", applyFilter);
  $("search").addEventListener("input", applyFilter);
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      $("search").value = "";
      applyFilter();
      canvas.focus();
    }
    if (event.key === "Enter" && rows.length) selectKernel(rows[0][0]);
    if (event.key === "ArrowDown") {
      event.preventDefault();
      listBox.focus();
    }
  });
  listBox.append(runway);
  listBox.addEventListener("scroll", () => requestAnimationFrame(paintRows));
  listBox.addEventListener("keydown", listKeys);
  new ResizeObserver(paintRows).observe(listBox);
  applyFilter();
};

const applyFilter = () => {
  const text = $("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const rule = $("by-rule").value,
    kind = $("by-kind").value,
    least = Number($("by-time").value) * total;
  const fits = (kernel, at) => {
    const fused = fusedBy.get(at);
    if (!text.every((word) => haystacks[at].includes(word))) return false;
    if (rule === ":missed" && !missesAt[at].length) return false;
    if (rule === ":unfused" && fused) return false;
    if (rule && !rule.startsWith(":") && !(fused && (fused.rule === rule || fused.chain.includes(rule)))) return false;
    if (kind === "bind" || kind === "host") {
      if (kind === "bind" ? kernel.phase !== "bind" : !kernel.on_host) return false;
    } else if (kind && familyOf[at] !== Number(kind)) return false;
    return kernel.seconds >= least && (least === 0 || kernel.phase === "run");
  };
  listed = kernels.flatMap((kernel, at) => (fits(kernel, at) ? [at] : []));
  rows = rowsOf(listed, $("sort").value);
  const all = listed.length === kernels.length;
  const seconds = listed.reduce((s, at) => s + (kernels[at].phase === "run" ? kernels[at].seconds : 0), 0);
  clear(
    $("found"),
    all
      ? `${format.count(kernels.length)} kernels`
      : `${format.count(listed.length)} of ${format.count(kernels.length)} kernels, `,
    all ? null : number(seconds, "seconds"),
  );
  brighten(all ? null : new Set(listed));
  active = 0;
  listBox.scrollTop = 0;
  runway.style.height = `${rows.length * ROW}px`;
  paintRows();
};

const rowsOf = (matching, by) => {
  const groups = new Map();
  for (const at of matching) {
    const key = alike[at][0];
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(at);
  }
  const found = [...groups.values()];
  const weight = (group) =>
    group.reduce(
      (sum, at) => sum + (by === "bytes" ? kernels[at].bytes : kernels[at].phase === "run" ? tookOf(at) : 0),
      0,
    );
  if (by !== "order") found.sort((a, b) => weight(b) - weight(a) || a[0] - b[0]);
  return found;
};

/** The kernel that is selected; none where a gap is. */
const chosenKernel = () => (look.selected?.kind === "node" ? look.selected.kernel : undefined);

/** @type {(kernel: number | undefined) => number} */
const rowOf = (kernel) => rows.findIndex((group) => kernel !== undefined && group.includes(kernel));

const paintRows = () => {
  const first = Math.max(Math.floor(listBox.scrollTop / ROW) - 4, 0);
  const last = Math.min(first + Math.ceil(listBox.clientHeight / ROW) + 8, rows.length);
  const chosen = chosenKernel();
  clear(
    runway,
    rows.slice(first, last).map((group, i) => row(group, first + i, group.includes(chosen))),
  );
  const current = rowOf(chosen);
  if (current >= first && current < last) listBox.setAttribute("aria-activedescendant", `row-${current}`);
  else listBox.removeAttribute("aria-activedescendant");
};

const row = (group, position, chosen) => {
  const at = group[0],
    kernel = kernels[at];
  const where = kernel.nodes.findLast((n) => n.where)?.where ?? kernel.type;
  const line = el(
    "div",
    {
      id: `row-${position}`,
      role: "option",
      class: `row family ${families[familyOf[at]]}`,
      "aria-selected": String(chosen),
      "aria-setsize": rows.length,
      "aria-posinset": position + 1,
      "data-kernel": kernel.name,
      onclick: () => {
        active = position;
        selectKernel(at);
      },
    },
    el("span", { class: "op" }, clean(kernel.op, 60)),
    el("code", {}, clean(kernel.name, 30)),
    el(
      "span",
      { class: "seconds" },
      group.length > 1 ? el("span", { class: "times" }, `${group.length} × `) : null,
      kernel.phase === "bind" ? "bind" : number(tookOf(at), "seconds"),
    ),
    el("span", { class: "where" }, clean(where, 120)),
    missesAt[at].length || kernel.on_host
      ? el("span", { class: "tag warn" }, missesAt[at].length ? "missed" : "on the host")
      : null,
  );
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  bar.style.width = kernel.phase === "run" ? `${Math.max((tookOf(at) / slowest) * 100, 0.5)}%` : "0";
  line.append(bar);
  line.style.top = `${position * ROW}px`;
  return line;
};

const listKeys = (event) => {
  const page = Math.floor(listBox.clientHeight / ROW);
  const move = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length }[
    event.key
  ];
  if (event.key === "Enter") {
    $("panel").focus();
    return;
  }
  if (!move || !rows.length) return;
  event.preventDefault();
  const current = rowOf(chosenKernel());
  active = Math.min(
    Math.max((current < 0 ? -Math.sign(move) + (move > 0 ? 0 : 1) : current) + move, 0),
    rows.length - 1,
  );
  selectKernel(rows[active][0]);
};

/** Keep the row of the selected kernel in view. */
const followSelection = (chosen) => {
  const at = rowOf(chosen?.kernel);
  if (at >= 0) {
    const y = at * ROW;
    if (y < listBox.scrollTop) listBox.scrollTop = y;
    else if (y + ROW > listBox.scrollTop + listBox.clientHeight) listBox.scrollTop = y + ROW - listBox.clientHeight;
  }
  paintRows();
};
