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
      let low = 0, high = shown.length;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(shown.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
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
  const top = -y / scale - 40, bottom = (height - y) / scale + 40;
  const left = -x / scale - 40, right = (width - x) / scale + 40;
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
  const w = (frame.shown === 1 ? 44 + 9 * String(frame.count).length : 46 + 9 * (String(frame.copy + 1).length + String(frame.count).length)) * grow, h = 24 * grow;
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
  let x = points[0], y = points[1];
  const bend = (x2, y2) => {
    const middle = (y + y2) / 2;
    if (Math.abs(x2 - x) < 0.5) pen.lineTo(x2, y2); else pen.bezierCurveTo(x, middle, x2, middle, x2, y2);
    x = x2; y = y2;
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
  const r = 7, down = link.y0 + 9, up = link.y1 - 9;
  pen.lineTo(link.x0, down - r);
  pen.arcTo(link.x0, down, link.x, down, r);
  pen.arcTo(link.x, down, link.x, up, r);
  pen.arcTo(link.x, up, link.x1, up, r);
  pen.arcTo(link.x1, up, link.x1, link.y1, r);
  pen.lineTo(link.x1, link.y1);
};

const drawWires = (pen, scene, look, top, bottom) => {
  const far = look.scale < FAR;
  const wires = between(scene, "wires", top, bottom), links = between(scene, "links", top, bottom);
  pen.lineWidth = Math.max(1.3, 0.6 / look.scale);
  pen.strokeStyle = palette.wire;
  pen.globalAlpha = look.matches ? 0.4 : 1;
  if (far && scene.wires.length > 4000) {
    pen.globalAlpha *= 0.6;
    pen.stroke(scene.sketch ??= sketched(scene));
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
    if (link.lane >= 0) { path.lineTo(link.x, link.y0); path.lineTo(link.x, link.y1); }
    path.lineTo(link.x1, link.y1);
  }
  return path;
};

/** Wires of what is selected, and those of a refused fusion. */
const strongWires = (pen, scene, look, wires, links) => {
  const chosen = look.selected;
  const touches = (wire) => chosen && (chosen.kind === "gap" ? wire.gap === chosen.gap : wire.from === chosen.place || wire.to === chosen.place);
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
    if (wire.gap >= 0 && !plainReasons.has(report.boundaries[wire.gap].reason) && !touches(wire)) traceWire(pen, wire.points);
  }
  pen.stroke();
};

/** From afar a thing is a patch of its colour; all patches of one colour are one path. */
const drawFar = (pen, scene, nodes, look) => {
  const { view } = scene;
  const least = 1 / look.scale;
  for (let family = 0; family < families.length; family++) {
    for (const dim of look.matches ? [true, false] : [false]) {
      pen.globalAlpha = dim ? 0.15 : 0.85;
      pen.fillStyle = palette.families[family];
      pen.beginPath();
      for (const node of nodes) {
        if (view.families[node.place] !== family) continue;
        if (look.matches && isDim(view, node, look) !== dim) continue;
        pen.rect(node.x, node.y, Math.max(node.w, least), Math.max(node.h, least));
      }
      pen.fill();
    }
  }
  pen.globalAlpha = 1;
};

const isDim = (view, node, look) => look.matches !== null && !look.matches.has(view.kernels[node.place]);

const drawNode = (pen, scene, node, look, detail) => {
  const { view } = scene;
  const place = node.place;
  pen.globalAlpha = isDim(view, node, look) ? 0.16 : 1;
  if (view.rooms[place] >= 0) drawRoom(pen, view, node, look, detail);
  else drawChip(pen, view, node, look, detail);
  pen.globalAlpha = 1;
};

const drawChip = (pen, view, node, look, detail) => {
  const place = node.place;
  const family = view.families[place];
  const end = families[family] === "end";
  const small = node.h < 26;
  pen.beginPath();
  pen.roundRect(node.x, node.y, node.w, node.h, end ? node.h / 2 : 5);
  pen.fillStyle = end ? palette.card : small && !view.fused[place] ? palette.paper : palette.tints[family];
  pen.fill();
  pen.lineWidth = view.fused[place] ? 2 : 1;
  pen.strokeStyle = palette.families[family];
  if (view.late[place] && !end) pen.setLineDash([4, 3]);
  pen.stroke();
  pen.setLineDash([]);
  if (look.scale * node.h < 7) return;
  const middle = node.x + node.w / 2, room = node.w - 12;
  const name = end ? words[view.names[place]] : words[view.ops[place]];
  const bold = view.fused[place] ? "600 " : "";
  if (small || detail < 2) write(pen, name, middle, node.y + node.h / 2, room, `${bold}${small ? 11 : 13}px ${SANS}`, palette.ink, "center");
  else {
    write(pen, name, middle, node.y + 10.5, room, `${bold}12px ${SANS}`, palette.ink, "center");
    write(pen, words[view.types[place]], middle, node.y + 22, room, `9.5px ${SANS}`, palette.soft, "center");
  }
};

const drawRoom = (pen, view, node, look, detail) => {
  const place = node.place;
  const family = view.families[place], kernel = kernels[view.kernels[place]];
  const colour = palette.families[family];
  pen.beginPath();
  pen.roundRect(node.x, node.y, node.w, node.h, 7);
  pen.fillStyle = palette.card;
  pen.fill();
  pen.fillStyle = palette.tints[family];
  pen.fill();
  pen.lineWidth = 1.3;
  pen.strokeStyle = colour;
  if (view.late[place]) pen.setLineDash([5, 3]);
  pen.stroke();
  pen.setLineDash([]);
  if (detail === 1) {
    const name = words[view.ops[place]];
    const size = Math.max(Math.min(14 / look.scale, node.h * 0.6, (node.w - 12) / (name.length * 0.74)), 11);
    write(pen, name, node.x + node.w / 2, node.y + Math.min(node.h / 2, size), node.w - 10, `600 ${Math.round(size)}px ${SANS}`, palette.ink, "center");
    return;
  }
  const time = kernel.phase === "bind" ? "at bind" : format.seconds(tookOf(view.kernels[place]));
  write(pen, words[view.ops[place]], node.x + 9, node.y + 12, node.w - 80, `600 13px ${SANS}`, palette.ink);
  write(pen, time, node.x + node.w - 9, node.y + 12, 70, `600 12px ${SANS}`, colour, "right");
  write(pen, words[view.types[place]], node.x + 9, node.y + 26, node.w - 18, `10.5px ${SANS}`, palette.soft);
  if (kernel.phase === "run") {
    pen.fillStyle = colour;
    pen.fillRect(node.x + 9, node.y + 32, (node.w - 18) * tookOf(view.kernels[place]) / slowest, 1.6);
  }
  drawInside(pen, stages.rooms[view.rooms[place]], node, kernel);
};

/** The ops that a kernel has swallowed, and who of them reads whom. */
const drawInside = (pen, room, node, kernel) => {
  pen.strokeStyle = palette.faint;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const [a, b, link] of room.lines) {
    const [ax, ay, aw] = room.chips[a], [bx, by, bw] = room.chips[b];
    const [x0, y0, x1, y1] = [node.x + ax + aw, node.y + ay + 9, node.x + bx, node.y + by + 9];
    if (link === 0) {
      const middle = (x0 + x1) / 2;
      pen.moveTo(x0, y0);
      pen.bezierCurveTo(middle, y0, middle, y1, x1, y1);
    } else if (link === 1) {
      pen.moveTo(x0 - aw / 2, y0 + 9);
      pen.bezierCurveTo(x0 - aw / 2, y0 + 14, x1 + bw / 2, y1 - 14, x1 + bw / 2, y1 - 9);
    } else {
      pen.moveTo(x0 - 8, y0 - 8);
      pen.bezierCurveTo(x0 + 4, y0 - 15, x1 - 4, y1 - 15, x1 + 8, y1 - 8);
    }
  }
  pen.stroke();
  pen.beginPath();
  for (const [x, y, w] of room.chips) pen.roundRect(node.x + x, node.y + y, w, 18, 9);
  pen.fillStyle = palette.card;
  pen.fill();
  pen.strokeStyle = palette.line;
  pen.stroke();
  room.chips.forEach(([x, y, w], i) => write(pen, kernel.nodes[i].op, node.x + x + w / 2, node.y + y + 9.5, w - 6, `11px ${SANS}`, palette.soft, "center"));
};

/** A joint: the dovetail at which two kernels meet and stay two. */
const drawJoints = (pen, scene, look, top, bottom) => {
  for (const wire of between(scene, "wires", top, bottom)) {
    if (wire.gap < 0 || wire.y < top || wire.y > bottom) continue;
    const gap = report.boundaries[wire.gap];
    const refused = !plainReasons.has(gap.reason);
    const chosen = look.selected?.kind === "gap" && look.selected.gap === wire.gap;
    const hovered = look.hover?.kind === "gap" && look.hover.gap === wire.gap;
    const r = chosen || hovered ? 8 : 5.5;
    pen.beginPath();
    pen.moveTo(wire.x - r, wire.y - r);
    pen.lineTo(wire.x + r, wire.y - r);
    pen.lineTo(wire.x + r * 0.45, wire.y);
    pen.lineTo(wire.x + r, wire.y + r);
    pen.lineTo(wire.x - r, wire.y + r);
    pen.lineTo(wire.x - r * 0.45, wire.y);
    pen.closePath();
    pen.fillStyle = refused ? palette.warn : chosen || hovered ? palette.accent : palette.paper;
    pen.fill();
    pen.lineWidth = 1.3;
    pen.strokeStyle = refused ? palette.warn : chosen || hovered ? palette.accent : palette.faint;
    pen.stroke();
    if (look.scale >= 0.8 && gap.seconds >= total * 0.002 && gap.seconds > 0) {
      write(pen, format.seconds(gap.seconds), wire.x + 12, wire.y, 80, `10px ${SANS}`, refused ? palette.warn : palette.soft);
    }
  }
};

const drawSelection = (pen, scene, look) => {
  for (const [mark, colour, wide] of [[look.hover, palette.accent, 1.6], [look.selected, palette.accent, 3]]) {
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
