// What the page's scripts share: the data that Python embeds, and the things that are drawn from it.
// The Python side is report/record.py (Report), report/html/page.py (Source), views.py, arena.py, lanes.py and timeline.py.

interface OpNode {
  name: string;
  op: string;
  where: string;
}

interface Kernel {
  name: string;
  op: string;
  type: string;
  phase: "run" | "bind";
  nodes: OpNode[];
  flops: number;
  bytes: number;
  seconds: number;
  floor_seconds: number;
  on_host: boolean;
  form: string;
}

interface Fused {
  rule: string;
  nodes: OpNode[];
  chain: string[];
  kernel: string;
  bytes_saved: number;
  seconds_saved: number;
}

interface Missed {
  rule: string;
  node: string;
  reason: string;
  message: string;
  hint: string;
  bytes: number;
  seconds: number;
  kernels: string[];
  facts: Record<string, string>;
}

interface Boundary {
  producer: string;
  consumer: string;
  rule: string;
  reason: string;
  message: string;
  hint: string;
  bytes: number;
  seconds: number;
}

interface Measured {
  runs: number;
  threads: number;
  seconds: number;
  spread: number;
  roofline: number;
  overhead_seconds: number;
  host_seconds: number;
  kernels: { kernel: string; seconds: number; spread: number }[];
}

interface Report {
  graph: string;
  target: string;
  nodes_before: number;
  nodes_after: number;
  fused: Fused[];
  missed: Missed[];
  boundaries: Boundary[];
  kernels: Kernel[];
  dispatch: { op: string; outcome: string; count: number; reason: string }[];
  passes: { name: string; nodes_before: number; nodes_after: number; seconds: number }[];
  predicted_seconds: number;
  floor_seconds: number;
  assumed_sizes: Record<string, number>;
  arena_bytes: number | null;
  calibration: string;
  measured: Measured | null;
  stopped: { search: string; phase: string; limit: string; message: string }[];
}

interface Machine {
  flops_per_second: number;
  bytes_per_second: number;
  launch_seconds: number;
  levels: { size: number; bytes_per_second: number }[];
  source: string;
}

/** A run of equal blocks of a drawing, laid out once. */
interface Band {
  start: number;
  period: number;
  count: number;
  width: number;
  height: number;
  x: number[];
  y: number[];
  w: number[];
  h: number[];
  /** [from, to, x, y, …]: places inside the band, then the points of the wire. */
  wires: number[][];
  /** For each value that comes in: the operands that read it, as [place, operand]. */
  entries: [number, number][][];
  exits: number[];
}

/** A stage as a drawing: columns in the order of the drawing. Texts are numbers of `words`. */
interface View {
  name: string;
  names: number[];
  ops: number[];
  types: number[];
  wheres: number[];
  families: number[];
  kernels: number[];
  rooms: number[];
  fused: number[];
  late: number[];
  operands: number[][];
  bands: Band[];
}

interface Room {
  w: number;
  h: number;
  chips: [number, number, number][];
  lines: [number, number, number][];
}

interface Span {
  kernel: number;
  start: number;
  seconds: number;
  thread: number;
}

interface Slot {
  kernel: number;
  offset: number;
  size: number;
  first: number;
  last: number;
}

interface Source {
  version: string;
  report: Report;
  machine: Machine;
  stages: { words: string[]; families: string[]; rooms: Room[]; views: View[] };
  arena: {
    steps: number;
    first_kernel: number;
    size: number;
    peak: number;
    unshared: number;
    bound: number;
    slots: Slot[];
    held: number[];
    backward: number | null;
  };
  code: { language: string; of: number[]; packed: string } | null;
  timeline: Span[] | null;
  mesh: Mesh | null;
}

interface MeshJoint {
  kind: string;
  axes: string[];
  devices: number;
  type: string;
  bytes: number;
  seconds: number;
  place: string;
  why: string;
  remedies: number[];
}

interface MeshRemedy {
  pattern: string;
  placed: string;
  instead_of: string;
  collectives: number;
  seconds: number;
  weights: number;
}

interface Mesh {
  axes: { name: string; size: number }[];
  joints: MeshJoint[];
  remedies: MeshRemedy[];
  seconds: number;
  all_weights: number;
  weights: number;
  unexplained: string;
  runs: [start: number, period: number, count: number][];
}

/** One shown copy of a band. */
interface Copy {
  band: Band;
  number: number;
  copy: number;
  start: number;
  x: number;
  y: number;
  index: number;
}

interface Frame {
  number: number;
  copy: number;
  shown: number;
  count: number;
  x: number;
  y: number;
  w: number;
  h: number;
}

interface Placed {
  place: number;
  x: number;
  y: number;
  w: number;
  h: number;
}

/** A wire inside a copy; `gap` is the boundary that it stands for, -1 for none, drawn at (x, y). */
interface Wire {
  points: number[];
  from: number;
  to: number;
  top: number;
  bottom: number;
  gap: number;
  x: number;
  y: number;
}

/** A wire between copies; `lane` is -1 where it goes straight down. */
interface Link {
  from: number;
  x0: number;
  y0: number;
  x1: number;
  y1: number;
  lane: number;
  x: number;
}

interface Bucket {
  nodes: Placed[];
  wires: Wire[];
  links: Link[];
}

interface Scene extends Bucket {
  view: View;
  open: Set<number>;
  frames: Frame[];
  at: Int32Array;
  left: number;
  right: number;
  top: number;
  bottom: number;
  buckets: Bucket[];
  sketch?: Path2D;
  readers?: number[][];
}

type Chosen = { kind: "node"; place: number; kernel: number } | { kind: "gap"; gap: number };
type Hovered = { kind: "node"; place: number } | { kind: "gap"; gap: number } | { kind: "badge"; frame: Frame };

/** The camera, and what is selected, hovered and looked for. */
interface Look {
  x: number;
  y: number;
  scale: number;
  width: number;
  height: number;
  ratio: number;
  selected: Chosen | null;
  hover: Hovered | null;
  matches: Set<number> | null;
}

type Aim = { scale: number; x: number; y: number };

interface Palette {
  paper: string;
  card: string;
  ink: string;
  soft: string;
  faint: string;
  line: string;
  wire: string;
  accent: string;
  warn: string;
  families: string[];
  tints: string[];
}

/** Elements of page.html whose kind matters to a script. */
interface Elements {
  canvas: HTMLCanvasElement;
  keys: HTMLDialogElement;
  search: HTMLInputElement;
  "by-rule": HTMLSelectElement;
  "by-kind": HTMLSelectElement;
  "by-time": HTMLSelectElement;
  sort: HTMLSelectElement;
}

interface Find {
  <K extends keyof Elements>(id: K): Elements[K];
  (id: string): HTMLElement;
}

type Child = Node | string | number | false | null | undefined;
type Children = Child | Children[];
type Props = Record<string, any>;
type Kind = "seconds" | "bytes" | "flops" | "rate" | "flow" | "count" | "percent" | "intensity";
