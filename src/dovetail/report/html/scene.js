// A stage as things with places: bands one below the other, repeated ones once or unfolded.

const FRAME = 16;
const BETWEEN = 30;
const BUCKET = 480;

/**
 * Place everything of a view. `open` holds the numbers of the bands that are unfolded.
 *
 * @type {(view: View, open: Set<number>) => Scene}
 */
const compose = (view, open) => {
  /** @type {Scene} */
  const scene = {
    view,
    open,
    nodes: [],
    wires: [],
    frames: [],
    links: [],
    at: new Int32Array(view.ops.length).fill(-1),
    left: 0,
    right: 0,
    top: 0,
    bottom: 0,
    buckets: [],
  };
  /** @type {Copy[]} */
  const copies = [];
  const copyOf = placeBands(scene, copies);
  for (const copy of copies) {
    placeNodes(scene, copy);
    placeWires(scene, copy);
  }
  linkCopies(scene, copies, copyOf);
  scene.buckets = bucketed(scene);
  return scene;
};

/** @type {(scene: Scene, copies: Copy[]) => (place: number) => Copy} */
const placeBands = (scene, copies) => {
  const { view, open } = scene;
  /** @type {number[]} */
  const first = [];
  let y = 0;
  view.bands.forEach((band, number) => {
    const folds = band.count > 1;
    const shown = folds && !open.has(number) ? 1 : band.count;
    first.push(copies.length);
    const edge = folds ? FRAME : 0;
    for (let copy = 0; copy < shown; copy++) {
      y += edge;
      const left = copy ? copies[copies.length - 1].x : aligned(view, copies, number);
      copies.push({ band, number, copy, start: band.start + copy * band.period, x: left, y, index: copies.length });
      if (folds)
        scene.frames.push({
          number,
          copy,
          shown,
          count: band.count,
          x: left - FRAME,
          y: y - FRAME,
          w: band.width + 2 * FRAME,
          h: band.height + 2 * FRAME,
        });
      scene.left = Math.min(scene.left, left - edge);
      scene.right = Math.max(scene.right, left + band.width + edge);
      y += band.height + edge + (copy + 1 < shown ? 18 : BETWEEN);
    }
  });
  scene.bottom = Math.max(y - BETWEEN, 0);
  /** The copy that stands for a place in the order: its own, or the one that is shown for it. */
  return (place) => {
    let low = 0,
      high = view.bands.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (view.bands[middle].start <= place) low = middle;
      else high = middle - 1;
    }
    const band = view.bands[low];
    const copy = band.count > 1 && !open.has(low) ? 0 : Math.floor((place - band.start) / band.period);
    return copies[first[low] + copy];
  };
};

/**
 * Where a band begins so that what is read most of the one above it comes down straight.
 *
 * @type {(view: View, copies: Copy[], number: number) => number}
 */
const aligned = (view, copies, number) => {
  const band = view.bands[number],
    above = copies[copies.length - 1];
  if (!above) return -band.width / 2;
  let best = 0,
    shift = above.x + (above.band.width - band.width) / 2;
  band.entries.forEach((read, entry) => {
    const [local, operand] = read[0];
    const place = view.operands[band.start + local][operand];
    const exit = above.band.exits.indexOf((place - above.band.start) % above.band.period);
    if (place < above.band.start || exit < 0 || read.length <= best) return;
    best = read.length;
    shift = above.x + above.band.x[above.band.period + exit] - band.x[band.period + band.exits.length + entry];
  });
  return shift;
};

/** @type {(scene: Scene, copy: Copy) => void} */
const placeNodes = (scene, { band, start, x, y }) => {
  for (let local = 0; local < band.period; local++) {
    const w = band.w[local],
      h = band.h[local];
    scene.at[start + local] = scene.nodes.length;
    scene.nodes.push({ place: start + local, x: x + band.x[local] - w / 2, y: y + band.y[local], w, h });
  }
};

/**
 * The place of the value that comes in at an entry of a copy.
 *
 * @type {(scene: Scene, copy: Copy, entry: number) => number}
 */
const sourceAt = (scene, copy, entry) => {
  const [local, operand] = copy.band.entries[entry][0];
  return scene.view.operands[copy.start + local][operand];
};

/** @type {(scene: Scene, copy: Copy) => void} */
const placeWires = (scene, copy) => {
  const { band, start, x, y } = copy;
  for (const wire of band.wires) {
    const [from, to] = wire;
    const points = [];
    for (let i = 2; i < 4; i++) points.push(wire[i] + (i === 2 ? x : y));
    for (let i = 4; i < wire.length - 2; i += 3) points.push(wire[i] + x, wire[i + 1] + y, wire[i + 2] + y);
    points.push(wire[wire.length - 2] + x, wire[wire.length - 1] + y);
    const producer = from < 0 ? sourceAt(scene, copy, -1 - from) : start + from;
    const consumer = to < band.period ? start + to : -1;
    scene.wires.push(finishWire(scene, points, producer, consumer));
  }
};

/**
 * What a wire means: the gap between two kernels, where there is one, and where its joint is drawn.
 *
 * @type {(scene: Scene, points: number[], from: number, to: number) => Wire}
 */
const finishWire = (scene, points, from, to) => {
  const { view } = scene;
  const bottom = points[points.length - 1];
  const wire = { points, from, to, top: points[1], bottom, gap: -1, x: 0, y: 0 };
  if (wire.to >= 0 && view === planView) {
    const gap = gapOf.get(pairKey(view.kernels[wire.from], view.kernels[wire.to]));
    if (gap !== undefined) {
      wire.gap = gap;
      wire.x = points[points.length - 2];
      wire.y = wire.bottom - 15;
    }
  }
  return wire;
};

/**
 * Wires between copies: straight down to the next, or along a lane at the left past those between.
 *
 * @type {(scene: Scene, copies: Copy[], copyOf: (place: number) => Copy) => void}
 */
const linkCopies = (scene, copies, copyOf) => {
  /** @type {Map<string, number>} */
  const lanes = new Map();
  /** @type {number[]} */
  const ends = [];
  for (const copy of copies) {
    copy.band.entries.forEach((_, entry) => {
      const place = sourceAt(scene, copy, entry);
      const from = copyOf(place);
      if (from.index >= copy.index) return;
      const local = (place - from.band.start) % from.band.period;
      const exit = from.band.period + from.band.exits.indexOf(local);
      const port = copy.band.period + copy.band.exits.length + entry;
      const x0 = from.x + from.band.x[exit],
        y0 = from.y + from.band.height;
      const x1 = copy.x + copy.band.x[port],
        y1 = copy.y;
      const link = { from: place, x0, y0, x1, y1, lane: -1, x: 0 };
      if (from.index + 1 < copy.index) {
        const key = `${from.index} ${local}`;
        const free = ends.findIndex((end) => end < y0);
        link.lane = lanes.get(key) ?? (free < 0 ? ends.length : free);
        lanes.set(key, link.lane);
        ends[link.lane] = Math.max(ends[link.lane] ?? 0, y1 + 1);
      }
      scene.links.push(link);
    });
  }
  const edge = scene.left;
  for (const link of scene.links) {
    if (link.lane < 0) continue;
    link.x = edge - 16 - 9 * (link.lane % 24);
    scene.left = Math.min(scene.left, link.x - 8);
  }
};

/** @type {(scene: Scene) => Bucket[]} */
const bucketed = (scene) => {
  /** @type {Bucket[]} */
  const buckets = [];
  /**
   * @template {keyof Bucket} K
   * @param {K} kind
   * @param {number} top
   * @param {number} bottom
   * @param {Bucket[K][number]} thing
   */
  const put = (kind, top, bottom, thing) => {
    for (let b = Math.max(0, Math.floor(top / BUCKET)); b <= Math.floor(bottom / BUCKET); b++) {
      /** @type {Bucket[K][number][]} */ ((buckets[b] ??= { nodes: [], wires: [], links: [] })[kind]).push(thing);
    }
  };
  for (const node of scene.nodes) put("nodes", node.y, node.y + node.h, node);
  for (const wire of scene.wires) put("wires", wire.top, wire.bottom, wire);
  for (const link of scene.links) put("links", link.y0, link.y1, link);
  return buckets;
};

/**
 * The things between two heights, each once.
 *
 * @template {keyof Bucket} K
 * @param {Scene} scene
 * @param {K} kind
 * @param {number} top
 * @param {number} bottom
 * @returns {Iterable<Bucket[K][number]>}
 */
const between = (scene, kind, top, bottom) => {
  const first = Math.max(0, Math.floor(top / BUCKET)),
    last = Math.min(scene.buckets.length - 1, Math.floor(bottom / BUCKET));
  if (first === 0 && last === scene.buckets.length - 1) return scene[kind];
  if (first >= last) return scene.buckets[first]?.[kind] ?? [];
  /** @type {Set<Bucket[K][number]>} */
  const seen = new Set();
  for (let b = first; b <= last; b++) for (const thing of scene.buckets[b]?.[kind] ?? []) seen.add(thing);
  return seen;
};
