// The list of kernels: search and filters, a window of rows over however many there are.

const ROW = 40;
let listed = kernels.map((_, i) => i);
let active = 0;
const listBox = $("list");
const runway = el("div", { class: "runway", role: "presentation" });

const option = (value, text) => el("option", { value }, text);

const startList = () => {
  const rules = [...new Set(report.fused.flatMap((f) => [f.rule, ...f.chain]))].sort();
  clear($("by-rule"), option("", "any rule"), rules.map((r) => option(r, clean(r, 60))), option(":missed", "missed here"), option(":unfused", "not fused"));
  const kinds = [...new Set(familyOf)].sort();
  clear($("by-kind"), option("", "any work"), kinds.map((k) => option(k, familyNames[families[k]])), option("bind", "once, at bind"));
  clear($("by-time"), option("0", "any time"), [0.05, 0.02, 0.01, 0.001].map((s) => option(String(s), `≥ ${format.percent(s)}`)));
  clear($("sort"), option("order", "in order"), option("time", "slowest first"), option("bytes", "most bytes"));
  for (const id of ["by-rule", "by-kind", "by-time", "sort"]) $(id).addEventListener("change", applyFilter);
  $("search").addEventListener("input", applyFilter);
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { $("search").value = ""; applyFilter(); canvas.focus(); }
    if (event.key === "Enter" && listed.length) selectKernel(listed[0]);
    if (event.key === "ArrowDown") { event.preventDefault(); listBox.focus(); }
  });
  listBox.append(runway);
  listBox.addEventListener("scroll", () => requestAnimationFrame(paintRows));
  listBox.addEventListener("keydown", listKeys);
  new ResizeObserver(paintRows).observe(listBox);
  applyFilter();
};

const applyFilter = () => {
  const text = $("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const rule = $("by-rule").value, kind = $("by-kind").value, least = Number($("by-time").value) * total;
  const fits = (kernel, at) => {
    const fused = fusedBy.get(at);
    if (!text.every((word) => haystacks[at].includes(word))) return false;
    if (rule === ":missed" && !missesAt[at].length) return false;
    if (rule === ":unfused" && fused) return false;
    if (rule && !rule.startsWith(":") && !(fused && (fused.rule === rule || fused.chain.includes(rule)))) return false;
    if (kind === "bind" ? kernel.phase !== "bind" : kind && familyOf[at] !== Number(kind)) return false;
    return kernel.seconds >= least && (least === 0 || kernel.phase === "run");
  };
  listed = kernels.flatMap((kernel, at) => (fits(kernel, at) ? [at] : []));
  const by = $("sort").value;
  if (by !== "order") listed.sort((a, b) => (by === "time" ? kernels[b].seconds - kernels[a].seconds : kernels[b].bytes - kernels[a].bytes) || a - b);
  const all = listed.length === kernels.length;
  const seconds = listed.reduce((s, at) => s + (kernels[at].phase === "run" ? kernels[at].seconds : 0), 0);
  clear($("found"), all ? `${format.count(kernels.length)} kernels` : `${format.count(listed.length)} of ${format.count(kernels.length)} kernels, `, all ? null : number(seconds, "seconds"));
  brighten(all ? null : new Set(listed));
  active = 0;
  listBox.scrollTop = 0;
  runway.style.height = `${listed.length * ROW}px`;
  paintRows();
};

const paintRows = () => {
  const first = Math.max(Math.floor(listBox.scrollTop / ROW) - 4, 0);
  const last = Math.min(first + Math.ceil(listBox.clientHeight / ROW) + 8, listed.length);
  const chosen = look.selected?.kernel;
  clear(runway, listed.slice(first, last).map((at, i) => row(at, first + i, at === chosen)));
  const current = listed.indexOf(chosen);
  if (current >= first && current < last) listBox.setAttribute("aria-activedescendant", `row-${current}`);
  else listBox.removeAttribute("aria-activedescendant");
};

const row = (at, position, chosen) => {
  const kernel = kernels[at];
  const where = kernel.nodes.findLast((n) => n.where)?.where ?? kernel.type;
  const line = el("div", { id: `row-${position}`, role: "option", class: `row family ${families[familyOf[at]]}`, "aria-selected": String(chosen), "aria-setsize": listed.length, "aria-posinset": position + 1, "data-kernel": kernel.name, onclick: () => { active = position; selectKernel(at); } },
    el("span", { class: "op" }, clean(kernel.op, 60)), el("code", {}, clean(kernel.name, 30)),
    el("span", { class: "seconds" }, kernel.phase === "bind" ? "bind" : number(measured?.get(at) ?? kernel.seconds, "seconds")),
    el("span", { class: "where" }, clean(where, 120)), missesAt[at].length ? el("span", { class: "tag warn" }, "missed") : null);
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  bar.style.width = kernel.phase === "run" ? `${Math.max(kernel.seconds / slowest * 100, 0.5)}%` : "0";
  line.append(bar);
  line.style.top = `${position * ROW}px`;
  return line;
};

const listKeys = (event) => {
  const page = Math.floor(listBox.clientHeight / ROW);
  const move = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -listed.length, End: listed.length }[event.key];
  if (event.key === "Enter") { $("panel").focus(); return; }
  if (!move || !listed.length) return;
  event.preventDefault();
  const current = listed.indexOf(look.selected?.kernel);
  active = Math.min(Math.max((current < 0 ? -Math.sign(move) + (move > 0 ? 0 : 1) : current) + move, 0), listed.length - 1);
  selectKernel(listed[active]);
};

/** Keep the row of the selected kernel in view. */
const followSelection = (chosen) => {
  const at = listed.indexOf(chosen?.kernel);
  if (at >= 0) {
    const y = at * ROW;
    if (y < listBox.scrollTop) listBox.scrollTop = y;
    else if (y + ROW > listBox.scrollTop + listBox.clientHeight) listBox.scrollTop = y + ROW - listBox.clientHeight;
  }
  paintRows();
};
