// Pictures of numbers: the roofline, the arena over time, the run as a strip.

const log = Math.log10;

/** Dots of a roofline: kernels that cost the same are one dot. */
const rooflineDots = () => {
  const dots = new Map();
  kernels.forEach((kernel, at) => {
    if (kernel.phase !== "run" || !kernel.flops || !kernel.bytes) return;
    const seconds = tookOf(at);
    const key = `${kernel.op} ${kernel.flops} ${kernel.bytes}`;
    const dot = dots.get(key) ?? { kernels: [], intensity: kernel.flops / kernel.bytes, rate: 0, seconds: 0 };
    dot.kernels.push(at);
    dot.seconds += seconds;
    dot.rate = (kernel.flops * dot.kernels.length) / dot.seconds;
    dots.set(key, dot);
  });
  return [...dots.values()].toSorted((a, b) => b.seconds - a.seconds);
};

const rooflineScales = (dots, w, h, m) => {
  const ridge = machine.flops_per_second / machine.bytes_per_second;
  const least = Math.min(ridge / 10, ...dots.map((d) => d.intensity)),
    most = Math.max(ridge * 10, ...dots.map((d) => d.intensity));
  const low = Math.min(machine.flops_per_second / 100, ...dots.map((d) => d.rate)),
    high = Math.max(machine.flops_per_second * 2, ...dots.map((d) => d.rate * 1.5));
  const [x0, x1, y0, y1] = [
    Math.floor(log(least) * 2) / 2,
    Math.ceil(log(most) * 2) / 2,
    Math.floor(log(low)),
    log(high),
  ];
  return {
    x: (i) => m.left + ((log(i) - x0) / (x1 - x0)) * (w - m.left - m.right),
    y: (r) => h - m.bottom - ((log(r) - y0) / (y1 - y0)) * (h - m.top - m.bottom),
    x0,
    x1,
    y0,
    y1,
    ridge,
  };
};

/** The roof for a bandwidth: rising with the arithmetic for each byte up to the peak. */
const roofPath = (s, bandwidth = machine.bytes_per_second) => {
  const peak = machine.flops_per_second,
    start = Math.max(10 ** s.x0, 10 ** s.y0 / bandwidth);
  return `M${s.x(start)},${s.y(start * bandwidth)} L${s.x(peak / bandwidth)},${s.y(peak)} L${s.x(10 ** s.x1)},${s.y(peak)}`;
};

const roofline = (w = 860, h = 430) => {
  const dots = rooflineDots();
  const m = { left: 78, right: 20, top: 20, bottom: 46 };
  const s = rooflineScales(dots, w, h, m);
  const decade = s.x(10) - s.x(1),
    slope = (Math.atan2(s.y(10) - s.y(1), decade) * 180) / Math.PI;
  const grid = [];
  for (let e = Math.ceil(s.x0); e <= s.x1; e++) {
    grid.push(
      svg("line", { x1: s.x(10 ** e), x2: s.x(10 ** e), y1: m.top, y2: h - m.bottom }),
      svg(
        "text",
        { x: s.x(10 ** e), y: h - m.bottom + 17, "text-anchor": "middle" },
        e < 0 ? (10 ** e).toFixed(-e) : format.count(10 ** e),
      ),
    );
  }
  for (let e = Math.ceil(s.y0); e <= s.y1; e++) {
    grid.push(
      svg("line", { x1: m.left, x2: w - m.right, y1: s.y(10 ** e), y2: s.y(10 ** e) }),
      svg(
        "text",
        { x: m.left - 8, y: s.y(10 ** e) + 4, "text-anchor": "end" },
        format.rate(10 ** e).replace(/\.00?/, ""),
      ),
    );
  }
  const biggest = Math.max(...dots.map((d) => d.seconds), 1e-12);
  const marks = dots.map((dot) => {
    const first = kernels[dot.kernels[0]];
    const text = `${dot.kernels.length} × ${clean(first.op, 60)}: ${format.intensity(dot.intensity)}, ${format.rate(dot.rate)}, together ${format.seconds(dot.seconds)}`;
    const choose = () => {
      openTab("graph");
      selectKernel(dot.kernels[0]);
    };
    return svg(
      "circle",
      {
        class: `dot family ${families[familyOf[dot.kernels[0]]]}`,
        cx: s.x(dot.intensity),
        cy: s.y(dot.rate),
        r: 4 + 13 * Math.sqrt(dot.seconds / biggest),
        tabindex: "0",
        role: "button",
        "aria-label": text,
        onclick: choose,
        onkeydown: (event) => {
          if (event.key === "Enter") choose();
        },
      },
      svg("title", {}, text),
    );
  });
  return svg(
    "svg",
    {
      class: "chart",
      viewBox: `0 0 ${w} ${h}`,
      role: "group",
      "aria-label": "Roofline: arithmetic per byte against arithmetic per second",
    },
    svg("g", { class: "grid" }, grid),
    machine.levels.map((level) =>
      svg(
        "path",
        { class: "roof level", d: roofPath(s, level.bytes_per_second) },
        svg("title", {}, `up to ${format.bytes(level.size)} from a cache: ${format.flow(level.bytes_per_second)}`),
      ),
    ),
    svg("path", { class: "roof", d: roofPath(s) }),
    svg(
      "text",
      { class: "label", x: s.x(s.ridge) + 8, y: s.y(machine.flops_per_second) - 9 },
      `arithmetic: ${format.rate(machine.flops_per_second)}`,
    ),
    svg(
      "text",
      {
        class: "label",
        "text-anchor": "end",
        transform: `translate(${s.x(s.ridge) - 14} ${s.y(machine.flops_per_second) + 1}) rotate(${slope})`,
      },
      `memory: ${format.flow(machine.bytes_per_second)}`,
    ),
    svg(
      "text",
      { class: "axis", x: (w + m.left) / 2, y: h - 8, "text-anchor": "middle" },
      "arithmetic for each byte moved (flop/B)",
    ),
    marks,
  );
};

/** The same in the panel: the roof, and one dot. */
const miniRoofline = (at) => {
  const kernel = kernels[at],
    w = 320,
    h = 96,
    m = { left: 6, right: 6, top: 10, bottom: 8 };
  const dot = { intensity: kernel.flops / kernel.bytes, rate: kernel.flops / tookOf(at) };
  const s = rooflineScales([dot], w, h, m);
  return el(
    "figure",
    { class: "mini" },
    svg(
      "svg",
      {
        viewBox: `0 0 ${w} ${h}`,
        role: "img",
        "aria-label": `Roofline: ${format.percent(reachOf(at))} of it at ${format.intensity(dot.intensity)}`,
      },
      svg("path", { class: "roof", d: roofPath(s) }),
      svg("line", { class: "drop", x1: s.x(dot.intensity), x2: s.x(dot.intensity), y1: s.y(dot.rate), y2: h }),
      svg("circle", { class: `dot family ${families[familyOf[at]]}`, cx: s.x(dot.intensity), cy: s.y(dot.rate), r: 5 }),
    ),
    el("figcaption", {}, number(dot.rate, "rate"), ` at ${format.intensity(dot.intensity)}`),
  );
};

/** A canvas that draws itself as wide as it is shown, again when colours or sizes change. */
const picture = (height, label, paint, pick) => {
  const board = el("canvas", { class: "picture", role: "img", "aria-label": label });
  const note = el("p", { class: "note readout" }, "\u00a0");
  let drawn = null;
  const draw = () => {
    const width = board.parentElement?.clientWidth ?? 0;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    board.width = width * ratio;
    board.height = height * ratio;
    board.style.height = `${height}px`;
    const brush = /** @type {CanvasRenderingContext2D} */ (board.getContext("2d"));
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    brush.clearRect(0, 0, width, height);
    drawn = paint(brush, width, height);
  };
  const at = (event) => {
    const box = board.getBoundingClientRect();
    return drawn && pick(drawn, event.clientX - box.left, event.clientY - box.top);
  };
  board.addEventListener("pointermove", (event) => {
    const found = at(event);
    clear(note, found ? found.text : "\u00a0");
    board.style.cursor = found ? "pointer" : "";
  });
  board.addEventListener("pointerleave", () => clear(note, "\u00a0"));
  board.addEventListener("click", (event) => {
    const found = at(event);
    if (found) {
      openTab("graph");
      selectKernel(found.kernel);
    }
  });
  const holder = el("div", { class: "holder" }, board, note);
  new ResizeObserver(draw).observe(holder);
  themeWatchers.push(draw);
  return holder;
};

const arenaPicture = () => {
  const arena = source.arena;
  const m = { left: 78, right: 12, top: 22, bottom: 30 };
  const peakAt = Math.max(0, arena.held.indexOf(arena.held.reduce((a, b) => Math.max(a, b), 0)));
  const paint = (brush, w, h) => {
    const x = (step) => m.left + (step / Math.max(arena.steps, 1)) * (w - m.left - m.right);
    const y = (byte) => h - m.bottom - (byte / Math.max(arena.size, 1)) * (h - m.top - m.bottom);
    brush.font = `11px ${SANS}`;
    brush.fillStyle = palette.tints[0];
    brush.fillRect(m.left, m.top, w - m.left - m.right, h - m.top - m.bottom);
    for (const slot of arena.slots) {
      const [x0, x1, y0, y1] = [x(slot.first), x(slot.last + 1), y(slot.offset + slot.size), y(slot.offset)];
      const wide = Math.max(x1 - x0 - 0.6, 0.8),
        tall = Math.max(y1 - y0 - 0.6, 0.8);
      brush.fillStyle = palette.families[familyOf[slot.kernel]];
      brush.globalAlpha = 0.78;
      brush.fillRect(x0, y0, wide, tall);
      brush.globalAlpha = 1;
      if (wide > 54 && tall > 13)
        write(brush, kernels[slot.kernel].op, x0 + 5, y0 + tall / 2, wide - 8, `11px ${SANS}`, palette.card);
    }
    brush.textBaseline = "middle";
    for (let i = 0; i <= 4; i++)
      write(
        brush,
        format.bytes(Math.round((arena.size * i) / 4)),
        m.left - 7,
        y((arena.size * i) / 4),
        70,
        `11px ${SANS}`,
        palette.soft,
        "right",
      );
    write(brush, "step 1", m.left, h - 14, 80, `11px ${SANS}`, palette.soft);
    write(brush, `step ${arena.steps}`, w - m.right, h - 14, 80, `11px ${SANS}`, palette.soft, "right");
    const middle = x(peakAt + 0.5);
    const mark = (at, colour) => {
      brush.strokeStyle = colour;
      brush.lineWidth = 1.4;
      brush.setLineDash([4, 3]);
      brush.beginPath();
      brush.moveTo(at, m.top - 4);
      brush.lineTo(at, h - m.bottom);
      brush.stroke();
      brush.setLineDash([]);
    };
    if (arena.backward !== null) {
      const half = x(arena.backward);
      mark(half, palette.soft);
      write(brush, "forward", half - 6, h - 14, 80, `600 11px ${SANS}`, palette.soft, "right");
      write(brush, "backward", half + 6, h - 14, 80, `600 11px ${SANS}`, palette.soft);
    }
    mark(middle, palette.warn);
    write(
      brush,
      `peak ${format.bytes(arena.peak)}, step ${peakAt + 1}`,
      Math.min(Math.max(middle, m.left + 80), w - 100),
      10,
      240,
      `600 11px ${SANS}`,
      palette.warn,
      "center",
    );
    return { x, y, w, h };
  };
  const pick = ({ x, y }, px, py) => {
    const slot = arena.slots.findLast(
      (s) => px >= x(s.first) && px <= x(s.last + 1) && py <= y(s.offset) && py >= y(s.offset + s.size),
    );
    return (
      slot && {
        kernel: slot.kernel,
        text: `${clean(kernels[slot.kernel].op, 60)} ${clean(kernels[slot.kernel].name, 40)}: ${format.bytes(slot.size)} at ${format.count(slot.offset)}, steps ${slot.first + 1} to ${slot.last + 1}`,
      }
    );
  };
  return picture(
    380,
    `The arena over ${arena.steps} steps: peak ${format.bytes(arena.peak)} at step ${peakAt + 1} of ${format.bytes(arena.size)}`,
    paint,
    pick,
  );
};

/** Kernels one behind the other, as wide as they take long; a row for each thread of a measured run. */
const strip = (spans, label) => {
  const threads = spans.reduce((most, s) => Math.max(most, s.thread), 0) + 1;
  const end = spans.reduce((most, s) => Math.max(most, s.start + s.seconds), 1e-12);
  const tall = 34;
  const paint = (brush, w) => {
    const x = (t) => (t / end) * w;
    brush.textBaseline = "middle";
    for (const span of spans) {
      const wide = Math.max(x(span.seconds) - 0.5, 0.4),
        y = span.thread * (tall + 4);
      brush.fillStyle = palette.families[familyOf[span.kernel]];
      brush.globalAlpha = 0.85;
      brush.fillRect(x(span.start), y, wide, tall);
      brush.globalAlpha = 1;
      if (wide > 40)
        write(brush, kernels[span.kernel].op, x(span.start) + 5, y + tall / 2, wide - 8, `11px ${SANS}`, palette.card);
    }
    const base = threads * (tall + 4) + 8;
    for (let i = 0; i <= 5; i++)
      write(
        brush,
        format.seconds((end * i) / 5),
        x((end * i) / 5) + (i === 0 ? 0 : i === 5 ? 0 : 0),
        base,
        90,
        `11px ${SANS}`,
        palette.soft,
        i === 0 ? "left" : i === 5 ? "right" : "center",
      );
    return { x };
  };
  const pick = ({ x }, px, py) => {
    const thread = Math.floor(py / (tall + 4));
    const span = spans.findLast(
      (s) => s.thread === thread && px >= x(s.start) && px <= Math.max(x(s.start + s.seconds), x(s.start) + 2),
    );
    return (
      span && {
        kernel: span.kernel,
        text: `${clean(kernels[span.kernel].op, 60)} ${clean(kernels[span.kernel].name, 40)}: ${format.seconds(span.seconds)}, from ${format.seconds(span.start)}`,
      }
    );
  };
  return picture(threads * (tall + 4) + 22, label, paint, pick);
};

/** The run as the model of the machine has it: one kernel after the other. */
const predictedSpans = () => {
  let start = 0;
  return kernels.flatMap((kernel, at) => {
    if (kernel.phase !== "run") return [];
    start += kernel.seconds;
    return [{ kernel: at, start: start - kernel.seconds, seconds: kernel.seconds, thread: 0 }];
  });
};
