// Pointer, wheel and keys over the canvas.

const tip = $("tip");
const pointers = new Map();
let dragged = 0;
let pinch = 0;

/** Words for those who hear the page. */
const say = (text) => clear($("said"), text);

const tell = (event, thing) => {
  look.hover = thing;
  canvas.style.cursor = thing ? "pointer" : "grab";
  if (!thing) {
    tip.style.opacity = "0";
    return;
  }
  clear(
    tip,
    tipLines(thing).map((line, i) => el(i ? "div" : "strong", {}, line)),
  );
  const box = $("stage").getBoundingClientRect();
  const x = event.clientX - box.left + 14,
    y = event.clientY - box.top + 14;
  tip.style.left = `${Math.min(x, box.width - 300)}px`;
  tip.style.top = `${Math.min(y, box.height - 90)}px`;
  tip.style.opacity = "1";
};

const tipLines = (thing) => {
  const { view } = scene;
  if (thing.kind === "badge")
    return [
      thing.frame.shown === 1
        ? `${thing.frame.count} blocks alike, shown once`
        : `Block ${thing.frame.copy + 1} of ${thing.frame.count}`,
      thing.frame.shown === 1 ? "click to unfold" : "click to fold",
    ];
  if (thing.kind === "gap") {
    const gap = report.boundaries[thing.gap];
    return [
      reasonTitle(gap.reason),
      clean(gap.message, 160),
      gap.seconds ? `${format.seconds(gap.seconds)} · ${format.bytes(gap.bytes)}` : "free",
    ];
  }
  const kernel = kernels[view.kernels[thing.place]];
  const name = `${clean(words[view.ops[thing.place]], 60)} ${clean(words[view.names[thing.place]], 60)}`;
  if (view !== planView || !kernel)
    return [name, clean(words[view.types[thing.place]], 100), clean(words[view.wheres[thing.place]], 120)];
  return [
    name,
    `${format.seconds(kernel.seconds)} · ${format.bytes(kernel.bytes)} · ${format.flops(kernel.flops)}`,
    `${kernel.nodes.length} ops`,
  ];
};

const pan = (dx, dy) => {
  moved = true;
  cancelAnimationFrame(flight);
  look.x += dx;
  look.y += dy;
  keepInView();
  redraw();
};

const keepInView = () => {
  const edge = 120;
  look.x = Math.min(Math.max(look.x, edge - scene.right * look.scale), look.width - edge - scene.left * look.scale);
  look.y = Math.min(Math.max(look.y, edge - scene.bottom * look.scale), look.height - edge - scene.top * look.scale);
};

const startPointer = () => {
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    dragged = 0;
    pinch = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      const thing = thingAt(event.clientX, event.clientY);
      tell(event, thing);
      redraw();
      return;
    }
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (pointers.size === 2) {
      pinched();
      return;
    }
    const dx = event.clientX - before[0],
      dy = event.clientY - before[1];
    dragged += Math.abs(dx) + Math.abs(dy);
    if (dragged > 4) {
      canvas.style.cursor = "grabbing";
      tip.style.opacity = "0";
      pan(dx, dy);
    }
  });
  const lift = (event) => {
    if (pointers.delete(event.pointerId) && event.type === "pointerup" && dragged <= 4 && !pinch)
      choose(thingAt(event.clientX, event.clientY));
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", (event) => {
    if (!pointers.size) {
      tell(event, null);
      redraw();
    }
  });
  canvas.addEventListener("dblclick", (event) => {
    const box = canvas.getBoundingClientRect();
    if (thingAt(event.clientX, event.clientY)?.kind !== "badge")
      zoomTo(look.scale * 1.6, event.clientX - box.left, event.clientY - box.top);
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      const lines = event.deltaMode === 1 ? 24 : 1;
      if (event.ctrlKey || event.metaKey)
        zoomTo(look.scale * Math.exp(-event.deltaY * lines * 0.008), event.clientX - box.left, event.clientY - box.top);
      else if (event.shiftKey) pan(-event.deltaY * lines, 0);
      else pan(-event.deltaX * lines, -event.deltaY * lines);
    },
    { passive: false },
  );
};

const pinched = () => {
  const [[ax, ay], [bx, by]] = [...pointers.values()];
  const apart = Math.hypot(ax - bx, ay - by);
  const box = canvas.getBoundingClientRect();
  if (pinch) zoomTo((look.scale * apart) / pinch, (ax + bx) / 2 - box.left, (ay + by) / 2 - box.top);
  pinch = apart;
};

const zoomBy = (factor) => zoomTo(look.scale * factor, look.width / 2, look.height / 2);

/** The frame around the selected thing, or the one nearest to the middle of the view. */
const nearestFrame = () => {
  const node = look.selected?.kind === "node" ? scene.nodes[scene.at[look.selected.place]] : null;
  const y = node ? node.y : (look.height / 2 - look.y) / look.scale;
  return (
    scene.frames
      .toSorted((a, b) => Math.abs(a.y + a.h / 2 - y) - Math.abs(b.y + b.h / 2 - y))
      .find((f) => !node || (f.y <= y && y <= f.y + f.h)) ?? null
  );
};

const nextGap = () => {
  const chosen = look.selected;
  const here = chosen?.kind === "gap" ? chosen.gap : -1;
  const kernel = chosen?.kind === "gap" ? kernelNumber.get(report.boundaries[chosen.gap].consumer) : chosen?.kernel;
  if (kernel === undefined || kernel < 0) return;
  const gaps = [...gapsIn[kernel], ...gapsOut[kernel]];
  if (gaps.length) selectGap(gaps[(gaps.indexOf(here) + 1) % gaps.length], { show: false });
};

const foldNearest = () => {
  const frame = nearestFrame();
  if (frame) toggleFold(frame.number);
};

const canvasKeys = {
  Enter: () => $("panel").focus(),
  Escape: () => select(null),
  PageDown: () => pan(0, -look.height * 0.8),
  PageUp: () => pan(0, look.height * 0.8),
  Home: () => {
    showStart();
  },
};

const startKeys = () => {
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) {
      const place = neighbour(event.key);
      if (place >= 0) selectPlace(place);
    } else if (canvasKeys[event.key]) canvasKeys[event.key]();
    else return;
    event.preventDefault();
  });
};

const paintTools = () => {
  clear(
    $("zoom"),
    el("button", { type: "button", title: "Closer (+)", "aria-label": "Closer", onclick: () => zoomBy(1.3) }, "+"),
    el(
      "button",
      { type: "button", title: "Farther (−)", "aria-label": "Farther", onclick: () => zoomBy(1 / 1.3) },
      "−",
    ),
    el("button", { type: "button", title: "Show all (0)", "aria-label": "Show all", onclick: showAll }, "⤢"),
  );
  clear(
    $("legend"),
    families.map((f) => el("li", { class: `family ${f}` }, familyNames[f])),
  );
};
