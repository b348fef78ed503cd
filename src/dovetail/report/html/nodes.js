// Drawing things: patches from afar, chips, rooms with the ops inside, and the joints between them.

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
  const middle = node.x + node.w / 2,
    room = node.w - 12;
  const name = end ? words[view.names[place]] : words[view.ops[place]];
  const bold = view.fused[place] ? "600 " : "";
  if (small || detail < 2)
    write(pen, name, middle, node.y + node.h / 2, room, `${bold}${small ? 11 : 13}px ${SANS}`, palette.ink, "center");
  else {
    write(pen, name, middle, node.y + 10.5, room, `${bold}12px ${SANS}`, palette.ink, "center");
    write(pen, words[view.types[place]], middle, node.y + 22, room, `9.5px ${SANS}`, palette.soft, "center");
  }
};

const drawRoom = (pen, view, node, look, detail) => {
  const place = node.place;
  const family = view.families[place],
    kernel = kernels[view.kernels[place]];
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
    write(
      pen,
      name,
      node.x + node.w / 2,
      node.y + Math.min(node.h / 2, size),
      node.w - 10,
      `600 ${Math.round(size)}px ${SANS}`,
      palette.ink,
      "center",
    );
    return;
  }
  const time = kernel.phase === "bind" ? "at bind" : format.seconds(tookOf(view.kernels[place]));
  write(pen, words[view.ops[place]], node.x + 9, node.y + 12, node.w - 80, `600 13px ${SANS}`, palette.ink);
  write(pen, time, node.x + node.w - 9, node.y + 12, 70, `600 12px ${SANS}`, colour, "right");
  write(pen, words[view.types[place]], node.x + 9, node.y + 26, node.w - 18, `10.5px ${SANS}`, palette.soft);
  if (kernel.phase === "run") {
    pen.fillStyle = colour;
    pen.fillRect(node.x + 9, node.y + 32, ((node.w - 18) * tookOf(view.kernels[place])) / slowest, 1.6);
  }
  drawInside(pen, stages.rooms[view.rooms[place]], node, kernel);
};

/** The ops that a kernel has swallowed, and who of them reads whom. */
const drawInside = (pen, room, node, kernel) => {
  pen.strokeStyle = palette.faint;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const [a, b, link] of room.lines) {
    const [ax, ay, aw] = room.chips[a],
      [bx, by, bw] = room.chips[b];
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
  room.chips.forEach(([x, y, w], i) =>
    write(pen, kernel.nodes[i].op, node.x + x + w / 2, node.y + y + 9.5, w - 6, `11px ${SANS}`, palette.soft, "center"),
  );
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
      write(
        pen,
        format.seconds(gap.seconds),
        wire.x + 12,
        wire.y,
        80,
        `10px ${SANS}`,
        refused ? palette.warn : palette.soft,
      );
    }
  }
};
