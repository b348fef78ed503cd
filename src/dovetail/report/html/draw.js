// Drawing a scene: what is visible, in as much detail as the zoom can show.

const SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const FAR = 0.2;
const NEAR = 0.5;
const fitted = new Map();

/** A text cut to a width, and what it was cut to is remembered. */
const fit = (pen, text, width, font) => {
  const key = `${font}\n${Math.round(width)}\n${text}`;
  let shown = fitted.get(key);
  if (shown === undefined) {
    if (fitted.size > 20000) fitted.clear();
    pen.font = font;
    shown = clean(text, 120);
    if (pen.measureText(shown).width > width) {
      let low = 0,
        high = shown.length;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(shown.slice(0, middle) + "…").width <= width) low = middle;
        else high = middle - 1;
      }
      shown = low ? shown.slice(0, low) + "…" : "";
    }
    fitted.set(key, shown);
  }
  return shown;
};

const write = (pen, text, x, y, width, font, colour, align = "left") => {
  const shown = fit(pen, text, width, font);
  pen.font = font;
  pen.fillStyle = colour;
  pen.textAlign = align;
  pen.fillText(shown, x, y);
};

/** Draw a scene. `look` is the camera and what is selected, hovered and looked for. */
const drawScene = (pen, scene, look) => {
  const { scale, x, y, width, height } = look;
  pen.setTransform(look.ratio, 0, 0, look.ratio, 0, 0);
  pen.fillStyle = palette.paper;
  pen.fillRect(0, 0, width, height);
  pen.setTransform(look.ratio * scale, 0, 0, look.ratio * scale, look.ratio * x, look.ratio * y);
  pen.textBaseline = "middle";
  const top = -y / scale - 40,
    bottom = (height - y) / scale + 40;
  const left = -x / scale - 40,
    right = (width - x) / scale + 40;
  drawFrames(pen, scene, look, top, bottom);
  drawWires(pen, scene, look, top, bottom);
  const detail = scale >= NEAR ? 2 : scale >= FAR ? 1 : 0;
  const nodes = between(scene, "nodes", top, bottom);
  if (detail === 0) drawFar(pen, scene, nodes, look);
  else {
    for (const node of nodes) {
      if (node.y > bottom || node.y + node.h < top || node.x > right || node.x + node.w < left) continue;
      drawNode(pen, scene, node, look, detail);
    }
  }
  if (scale >= 0.32) drawJoints(pen, scene, look, top, bottom);
  for (const frame of scene.frames) if (frame.y < bottom && frame.y + frame.h > top) drawBadge(pen, frame, look);
  drawSelection(pen, scene, look);
};

const drawFrames = (pen, scene, look, top, bottom) => {
  const line = 1.2 / Math.min(look.scale, 1);
  for (const frame of scene.frames) {
    if (frame.y > bottom || frame.y + frame.h < top) continue;
    const folded = frame.shown === 1;
    pen.strokeStyle = palette.faint;
    pen.lineWidth = line;
    if (folded) {
      for (const shift of [10, 5]) {
        pen.globalAlpha = shift === 10 ? 0.35 : 0.6;
        pen.beginPath();
        pen.roundRect(frame.x + shift, frame.y + shift, frame.w, frame.h, 10);
        pen.stroke();
      }
    }
    pen.globalAlpha = 1;
    pen.beginPath();
    pen.roundRect(frame.x, frame.y, frame.w, frame.h, 10);
    pen.fillStyle = palette.paper;
    pen.fill();
    pen.setLineDash(folded ? [] : [6 * line, 4 * line]);
    pen.stroke();
    pen.setLineDash([]);
  }
};

/** The tag of a repeated block: how many there are, or which one this is. */
const badgeBox = (frame, scale) => {
  const grow = 1 / Math.max(Math.min(scale, 1), 0.16);
  const w =
      (frame.shown === 1
        ? 44 + 9 * String(frame.count).length
        : 46 + 9 * (String(frame.copy + 1).length + String(frame.count).length)) * grow,
    h = 24 * grow;
  // From afar it stands beside the block, so that it hides nothing.
  const far = grow > 1.9;
  return { x: frame.x + frame.w + (far ? 5 * grow : -w * 0.8), y: frame.y - (far ? 0 : h * 0.55), w, h, grow };
};

const drawBadge = (pen, frame, look) => {
  if (frame.shown > 1 && look.scale < 0.12) return;
  const box = badgeBox(frame, look.scale);
  const hovered = look.hover?.kind === "badge" && look.hover.frame.number === frame.number;
  pen.beginPath();
  pen.roundRect(box.x, box.y, box.w, box.h, box.h / 2);
  pen.fillStyle = hovered || frame.shown === 1 ? palette.accent : palette.card;
  pen.fill();
  pen.strokeStyle = palette.accent;
  pen.lineWidth = box.grow;
  pen.stroke();
  const text = frame.shown === 1 ? `× ${frame.count}  +` : `${frame.copy + 1} / ${frame.count}  −`;
  pen.font = `600 ${13 * box.grow}px ${SANS}`;
  pen.fillStyle = hovered || frame.shown === 1 ? palette.card : palette.accent;
  pen.textAlign = "center";
  pen.fillText(text, box.x + box.w / 2, box.y + box.h / 2 + 0.5 * box.grow);
};

const traceWire = (pen, points) => {
  pen.moveTo(points[0], points[1]);
  let x = points[0],
    y = points[1];
  const bend = (x2, y2) => {
    const middle = (y + y2) / 2;
    if (Math.abs(x2 - x) < 0.5) pen.lineTo(x2, y2);
    else pen.bezierCurveTo(x, middle, x2, middle, x2, y2);
    x = x2;
    y = y2;
  };
  for (let i = 2; i < points.length - 2; i += 3) {
    bend(points[i], points[i + 1]);
    y = points[i + 2];
    pen.lineTo(x, y);
  }
  bend(points[points.length - 2], points[points.length - 1]);
};

const traceLink = (pen, link) => {
  pen.moveTo(link.x0, link.y0);
  if (link.lane < 0) {
    const middle = (link.y0 + link.y1) / 2;
    pen.bezierCurveTo(link.x0, middle, link.x1, middle, link.x1, link.y1);
    return;
  }
  const r = 7,
    down = link.y0 + 9,
    up = link.y1 - 9;
  pen.lineTo(link.x0, down - r);
  pen.arcTo(link.x0, down, link.x, down, r);
  pen.arcTo(link.x, down, link.x, up, r);
  pen.arcTo(link.x, up, link.x1, up, r);
  pen.arcTo(link.x1, up, link.x1, link.y1, r);
  pen.lineTo(link.x1, link.y1);
};

const drawWires = (pen, scene, look, top, bottom) => {
  const far = look.scale < FAR;
  const wires = between(scene, "wires", top, bottom),
    links = between(scene, "links", top, bottom);
  pen.lineWidth = Math.max(1.3, 0.6 / look.scale);
  pen.strokeStyle = palette.wire;
  pen.globalAlpha = look.matches ? 0.4 : 1;
  if (far && scene.wires.length > 4000) {
    pen.globalAlpha *= 0.6;
    pen.stroke((scene.sketch ??= sketched(scene)));
  } else {
    pen.beginPath();
    for (const wire of wires) traceWire(pen, wire.points);
    for (const link of links) traceLink(pen, link);
    pen.stroke();
  }
  pen.globalAlpha = 1;
  strongWires(pen, scene, look, wires, links);
};

/** Thousands of wires from afar: one path of straight strokes, made once. */
const sketched = (scene) => {
  const path = new Path2D();
  for (const { points } of scene.wires) {
    path.moveTo(points[0], points[1]);
    path.lineTo(points[points.length - 2], points[points.length - 1]);
  }
  for (const link of scene.links) {
    path.moveTo(link.x0, link.y0);
    if (link.lane >= 0) {
      path.lineTo(link.x, link.y0);
      path.lineTo(link.x, link.y1);
    }
    path.lineTo(link.x1, link.y1);
  }
  return path;
};

/** Wires of what is selected, and those of a refused fusion. */
const strongWires = (pen, scene, look, wires, links) => {
  const chosen = look.selected;
  const touches = (wire) =>
    chosen &&
    (chosen.kind === "gap" ? wire.gap === chosen.gap : wire.from === chosen.place || wire.to === chosen.place);
  pen.lineWidth = Math.max(2.2, 1.2 / look.scale);
  pen.strokeStyle = palette.accent;
  pen.beginPath();
  if (chosen) {
    for (const wire of wires) if (touches(wire)) traceWire(pen, wire.points);
    if (chosen.kind !== "gap") for (const link of links) if (link.from === chosen.place) traceLink(pen, link);
  }
  pen.stroke();
  if (look.scale < FAR && scene.wires.length > 4000) return;
  pen.strokeStyle = palette.warn;
  pen.beginPath();
  for (const wire of wires) {
    if (wire.gap >= 0 && !plainReasons.has(report.boundaries[wire.gap].reason) && !touches(wire))
      traceWire(pen, wire.points);
  }
  pen.stroke();
};

const drawSelection = (pen, scene, look) => {
  for (const [mark, colour, wide] of [
    [look.hover, palette.accent, 1.6],
    [look.selected, palette.accent, 3],
  ]) {
    const node = mark?.kind === "node" ? scene.nodes[scene.at[mark.place]] : null;
    if (!node) continue;
    const out = 2 / Math.min(look.scale, 1);
    pen.lineWidth = wide / Math.min(look.scale, 1);
    pen.strokeStyle = colour;
    pen.beginPath();
    pen.roundRect(node.x - out, node.y - out, node.w + 2 * out, node.h + 2 * out, 8);
    pen.stroke();
  }
};
