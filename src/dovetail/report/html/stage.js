// The canvas: camera, pointer and keys, what is selected, which stage is shown and what is unfolded.

const canvas = $("canvas");
const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { alpha: false }));
/** @type {Look} */
const look = { x: 0, y: 0, scale: 1, width: 1, height: 1, ratio: 1, selected: null, hover: null, matches: null };
/** @type {Set<number>[]} */
const opened = stages.views.map(() => new Set());
/** @type {Record<string, string>} */
const stageTitles = {
  imported: "as the model was written",
  recognised: "known forms found",
  fused: "declared ops fused",
  legal: "as the target runs it",
  plan: "kernels around their ops",
};
let shownStage = stages.views.length - 1;
let scene = compose(stages.views[shownStage], opened[shownStage]);
let asked = 0;
let flight = 0;
/** Whether somebody has moved the view; until then it follows the size of the window. */
let moved = false;
let printing = false;
/** @type {((chosen: Chosen | null) => void)[]} */
const selectionWatchers = [];

const redraw = () => {
  asked ||= requestAnimationFrame(() => {
    asked = 0;
    drawScene(pen, scene, look);
  });
};

const resize = () => {
  const box = canvas.getBoundingClientRect();
  if (!box.width || !box.height || printing) return;
  look.width = box.width;
  look.height = box.height;
  look.ratio = Math.min(window.devicePixelRatio || 1, 3);
  canvas.width = Math.round(box.width * look.ratio);
  canvas.height = Math.round(box.height * look.ratio);
  if (!moved) showStart();
  redraw();
};

const limits = () => {
  const all = Math.min(
    (look.width - 60) / (scene.right - scene.left + 1),
    (look.height - 100) / (scene.bottom - scene.top + 1),
  );
  return [Math.min(all * 0.8, 0.5), 3];
};

const zoomTo = (scale, x, y) => {
  moved = true;
  const [least, most] = limits();
  const bounded = Math.min(Math.max(scale, least), most);
  look.x = x - ((x - look.x) * bounded) / look.scale;
  look.y = y - ((y - look.y) * bounded) / look.scale;
  look.scale = bounded;
  redraw();
};

/** @type {(to: Aim) => void} */
const fly = (to) => {
  moved = true;
  cancelAnimationFrame(flight);
  if (calm()) {
    Object.assign(look, to);
    redraw();
    return;
  }
  const from = { x: look.x, y: look.y, scale: look.scale };
  const started = performance.now();
  const step = (now) => {
    const t = Math.min((now - started) / 220, 1),
      ease = 1 - (1 - t) ** 3;
    for (const key of /** @type {const} */ (["x", "y", "scale"])) look[key] = from[key] + (to[key] - from[key]) * ease;
    drawScene(pen, scene, look);
    if (t < 1) flight = requestAnimationFrame(step);
  };
  flight = requestAnimationFrame(step);
};

/** The camera that shows a box; all of it if it fits legibly, else its top. */
const aimAt = (left, top, right, bottom, most = 1) => {
  const scale = Math.max(
    Math.min((look.width - 70) / (right - left), (look.height - 110) / (bottom - top), most),
    limits()[0],
  );
  const tall = (bottom - top) * scale > look.height - 100;
  return {
    scale,
    x: look.width / 2 - ((left + right) / 2) * scale,
    y: tall ? 64 - top * scale : (look.height + 24) / 2 - ((top + bottom) / 2) * scale,
  };
};

const showAll = () => fly(aimAt(scene.left, scene.top, scene.right, scene.bottom));

/** How a stage is first seen: as wide as it is legible, from its top. */
const showStart = () => {
  const scale = Math.max(Math.min((look.width - 90) / (scene.right - scene.left), 0.92), 0.55, limits()[0]);
  const whole = aimAt(scene.left, scene.top, scene.right, scene.bottom);
  Object.assign(
    look,
    whole.scale >= scale ? whole : { scale, x: look.width / 2 - ((scene.left + scene.right) / 2) * scale, y: 64 },
  );
  redraw();
};

const isSeen = (node) => {
  const x = node.x * look.scale + look.x,
    y = node.y * look.scale + look.y;
  return (
    x > 0 &&
    y > 50 &&
    x + node.w * look.scale < look.width &&
    y + Math.min(node.h, 60) * look.scale < look.height &&
    look.scale > 0.25
  );
};

/** Where a kernel stands in the stage that is shown; what is folded stands where its first copy does. */
const placeOfKernel = (kernel) => {
  const { view } = scene;
  let place = view.kernels.lastIndexOf(kernel);
  if (place >= 0 && scene.at[place] < 0) place = foldedPlace(place);
  return place;
};

/** @type {(place: number) => number} */
const foldedPlace = (place) => {
  const band = scene.view.bands.findLast((b) => b.start <= place) ?? scene.view.bands[0];
  return band.start + ((place - band.start) % band.period);
};

const reveal = (place) => {
  const node = scene.nodes[scene.at[place]];
  if (!node || isSeen(node)) return;
  const scale = Math.max(look.scale, 0.7);
  fly({ scale, x: look.width / 2 - (node.x + node.w / 2) * scale, y: look.height * 0.36 - node.y * scale });
};

/**
 * Choose a kernel or a node, a gap, or nothing.
 *
 * @param {Chosen | null} chosen
 */
const select = (chosen, { show = true } = {}) => {
  look.selected = chosen;
  if (chosen && show) {
    const place =
      chosen.kind === "gap" ? placeOfKernel(numberOf(report.boundaries[chosen.gap].consumer)) : chosen.place;
    if (place >= 0) reveal(place);
  }
  redraw();
  for (const watcher of selectionWatchers) watcher(chosen);
};

const selectKernel = (kernel, options) => select({ kind: "node", place: placeOfKernel(kernel), kernel }, options);

/** A gap is drawn in the plan only: go there. */
const selectGap = (gap, options) => {
  if (scene.view !== planView) showStage(stages.views.length - 1);
  select({ kind: "gap", gap }, options);
};

const selectPlace = (place, options) => select({ kind: "node", place, kernel: scene.view.kernels[place] }, options);

const thingAt = (clientX, clientY) => {
  const box = canvas.getBoundingClientRect();
  const x = (clientX - box.left - look.x) / look.scale,
    y = (clientY - box.top - look.y) / look.scale;
  for (const frame of scene.frames) {
    const badge = badgeBox(frame, look.scale);
    if (x >= badge.x && x <= badge.x + badge.w && y >= badge.y && y <= badge.y + badge.h)
      return { kind: "badge", frame };
  }
  const reach = Math.max(9, 8 / look.scale);
  if (look.scale >= 0.32) {
    for (const wire of between(scene, "wires", y - 30, y + 30)) {
      if (wire.gap >= 0 && Math.abs(wire.x - x) <= reach && Math.abs(wire.y - y) <= reach)
        return { kind: "gap", gap: wire.gap };
    }
  }
  for (const node of between(scene, "nodes", y, y)) {
    if (x >= node.x && x <= node.x + node.w && y >= node.y && y <= node.y + node.h)
      return { kind: "node", place: node.place };
  }
  for (const wire of between(scene, "wires", y - 1, y + 1)) {
    if (wire.gap >= 0 && look.scale >= FAR && nearWire(wire.points, x, y, 5 / look.scale))
      return { kind: "gap", gap: wire.gap };
  }
  return null;
};

const nearWire = (points, x, y, reach) => {
  let x0 = points[0],
    y0 = points[1];
  const near = (x1, y1) => {
    if (y < Math.min(y0, y1) || y > Math.max(y0, y1) || y1 === y0) return false;
    const t = (y - y0) / (y1 - y0),
      smooth = t * t * (3 - 2 * t);
    return Math.abs(x0 + (x1 - x0) * smooth - x) <= reach;
  };
  for (let i = 2; i < points.length - 2; i += 3) {
    if (near(points[i], points[i + 1])) return true;
    [x0, y0] = [points[i], points[i + 1]];
    if (near(x0, points[i + 2])) return true;
    y0 = points[i + 2];
  }
  return near(points[points.length - 2], points[points.length - 1]);
};

const choose = (thing) => {
  if (thing?.kind === "badge") toggleFold(thing.frame.number);
  else if (thing?.kind === "gap") selectGap(thing.gap, { show: false });
  else if (thing) selectPlace(thing.place, { show: false });
  else select(null);
};

/** Unfold a repeated block, or fold it again, and keep it where it is on the screen. */
const toggleFold = (number) => {
  const before = scene.frames.find((f) => f.number === number);
  const open = opened[shownStage];
  if (open.has(number)) open.delete(number);
  else open.add(number);
  scene = compose(scene.view, open);
  const after = scene.frames.find((f) => f.number === number);
  if (!before || !after) return;
  look.y += (before.y - after.y) * look.scale;
  if (look.selected?.kind === "node" && scene.at[look.selected.place] < 0)
    look.selected.place = foldedPlace(look.selected.place);
  look.hover = null;
  brighten();
  say(open.has(number) ? `Unfolded: ${after.count} copies` : `Folded: one of ${after.count} copies is shown`);
  redraw();
};

const showStage = (number) => {
  if (number < 0 || number >= stages.views.length || number === shownStage) return;
  const chosen = look.selected;
  shownStage = number;
  scene = compose(stages.views[number], opened[number]);
  look.hover = null;
  look.selected = null;
  showStart();
  brighten();
  paintSteps();
  const view = stages.views[number];
  say(`Stage ${view.name}: ${stageTitles[view.name]}, ${view.ops.length} things`);
  if (chosen?.kind === "node" && chosen.kernel >= 0) selectKernel(chosen.kernel);
  else select(null);
};

/** What a filter leaves over, as the scene shows it: a folded block is bright where any of its copies is. */
/** @type {Iterable<number> | null} */
let filtered = null;
const brighten = (matches = filtered) => {
  filtered = matches;
  look.matches = matches === null ? null : new Set(matches);
  if (matches !== null && look.matches !== null && opened[stages.views.length - 1].size === 0)
    for (const kernel of matches) look.matches.add(alike[kernel][0]);
  redraw();
};

const paintSteps = () =>
  clear(
    $("steps"),
    stages.views.flatMap((view, number) => [
      number ? el("span", { class: "arrow", "aria-hidden": "true" }, "→") : null,
      el(
        "button",
        {
          type: "button",
          role: "radio",
          "aria-checked": String(number === shownStage),
          tabindex: number === shownStage ? "0" : "-1",
          "data-stage": view.name,
          title: `${view.name}: ${stageTitles[view.name]}`,
          onclick: () => showStage(number),
          onkeydown: stepKeys,
        },
        el("span", { class: "name" }, view.name),
        el("span", { class: "count" }, format.count(countOf(view))),
      ),
    ]),
  );

const countOf = (view) => view.families.reduce((sum, f) => sum + (families[f] === "end" ? 0 : 1), 0);

const stepKeys = (event) => {
  const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!move) return;
  event.preventDefault();
  event.stopPropagation();
  showStage(shownStage + move);
  /** @type {HTMLElement | null} */ ($("steps").querySelector("[aria-checked=true]"))?.focus();
};

/** The thing below, above or beside the selected one. */
const neighbour = (key) => {
  const chosen = look.selected;
  const node = chosen?.kind === "node" ? scene.nodes[scene.at[chosen.place]] : null;
  if (!node) return scene.nodes[0]?.place ?? -1;
  const middle = node.x + node.w / 2;
  let best = -1,
    nearest = Infinity;
  if (key === "ArrowDown" || key === "ArrowUp") {
    const beside =
      key === "ArrowDown"
        ? readersOf(node.place)
        : scene.view.operands[node.place].map((p) => (scene.at[p] < 0 ? foldedPlace(p) : p));
    for (const place of beside) {
      const other = scene.nodes[scene.at[place]];
      const far = other ? Math.abs(other.x + other.w / 2 - middle) + Math.abs(other.y - node.y) : Infinity;
      if (far < nearest) [best, nearest] = [place, far];
    }
    return best;
  }
  for (const other of between(scene, "nodes", node.y, node.y + node.h)) {
    const apart = other.x + other.w / 2 - middle;
    const overlaps = other.y < node.y + node.h && other.y + other.h > node.y;
    if (overlaps && (key === "ArrowRight" ? apart > 1 : apart < -1) && Math.abs(apart) < nearest)
      [best, nearest] = [other.place, Math.abs(apart)];
  }
  return best;
};

/** @type {(view: View) => number[][]} */
const readers = (view) => {
  /** @type {number[][]} */
  const found = view.operands.map(() => []);
  view.operands.forEach((read, reader) => read.forEach((p) => found[p].push(reader)));
  return found;
};

/** @type {(place: number) => number[]} */
const readersOf = (place) => {
  scene.readers ??= readers(scene.view);
  return scene.readers[place].map((p) => (scene.at[p] < 0 ? foldedPlace(p) : p));
};
